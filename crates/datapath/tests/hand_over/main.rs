//! The user datapath behind programs: what is handed over to it, and what it tells.

mod frames;
mod ports;
mod programs;

use datapath::solicit::SolicitLimits;
use datapath::user::hand_over::{FastPath, HandOver};
use datapath::user::{
    Config, DeviceConfig, GuestConfig, PortConfig, Underlay, UserDatapath, Workers,
};
use datapath::{Datapath, upcall::UpcallLimits};
use flow::{EntropySeed, PortNo};
use netdev::{IpPrefix, Netns};
use programs::Programs;
use std::sync::Arc;
use std::time::Duration;
use testkit::conformance::{self, Provider};
use testkit::host::{TestHost, WireEnd, pair};
use wire::MacAddr;

const UPLINK: PortNo = PortNo(0);
const TAP: &str = "handover";
const MTU: u16 = 1400;
const BASE: u16 = 50_000;
const PATIENCE: Duration = Duration::from_secs(20);
const SEED: EntropySeed = EntropySeed::new([
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xff51_afd7_ed55_8ccd,
    0xc4ce_b9fe_1a85_ec53,
]);

/// A host with an uplink, and the host at its other end.
struct Lab {
    host: TestHost,
    peer: TestHost,
    uplink: WireEnd,
    far: WireEnd,
}

impl Lab {
    fn new() -> Self {
        let (host, peer) = (TestHost::new("host"), TestHost::new("peer"));
        let (uplink, far) = pair(&host, &peer);
        Self { host, peer, uplink, far }
    }

    fn start(&self, programs: &Arc<Programs>, ports: Vec<PortConfig>) -> UserDatapath {
        self.start_with(programs, ports, Underlay::default())
    }

    fn start_with(
        &self,
        programs: &Arc<Programs>,
        ports: Vec<PortConfig>,
        underlay: Underlay,
    ) -> UserDatapath {
        let config = config(&self.uplink.name, programs.clone(), ports, underlay);
        self.host.run(|| UserDatapath::start(config)).unwrap()
    }
}

fn config(
    uplink: &str,
    programs: Arc<dyn FastPath>,
    ports: Vec<PortConfig>,
    underlay: Underlay,
) -> Config {
    Config {
        host: "hand-over".to_owned(),
        uplink: uplink.to_owned(),
        uplink_port: UPLINK,
        underlay,
        ports,
        entropy_base: BASE,
        entropy_ports: 64,
        workers: Workers { count: 2, ..Workers::default() },
        megaflows: 1000,
        upcalls: UpcallLimits::default(),
        solicit: SolicitLimits::default(),
        hand_over: Some(HandOver { device: TAP.to_owned(), entropy: SEED, programs }),
    }
}

/// A port in a guest's namespace, whose number its addresses end in.
fn guest_port(number: u8, guest: &Netns) -> PortConfig {
    let addresses = ["10.0.0", "fd00:"].map(|net| match net.ends_with(':') {
        true => format!("{net}:{number}/64").parse::<IpPrefix>().unwrap(),
        false => format!("{net}.{number}/24").parse().unwrap(),
    });
    PortConfig {
        port: PortNo(number.into()),
        name: format!("port{number}"),
        logical_switch: "blue".to_owned(),
        device: DeviceConfig::Tap {
            name: "eth0".to_owned(),
            guest: Some(GuestConfig {
                netns: guest.name().unwrap().to_owned(),
                mac: guest_mac(number),
                addresses: addresses.into(),
            }),
            mtu: MTU,
        },
    }
}

fn guest_mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

/// What a user datapath does that receives nothing by itself.
#[test]
fn what_leaves_is_what_the_reference_says_when_everything_is_handed_over() {
    testkit::require_root!();
    testkit::require_program!("clang-19", "clang-19");
    testkit::require_program!("tc", "iproute2");
    let start = |config: Config, workers: usize| -> Arc<dyn Datapath> {
        let programs = Programs::attached();
        let hand_over = HandOver { device: TAP.to_owned(), entropy: SEED, programs };
        let workers = Workers { count: workers, ..config.workers };
        let config = Config { hand_over: Some(hand_over), workers, ..config };
        Arc::new(UserDatapath::start(config).unwrap())
    };
    conformance::run(Provider::complete(&|config| start(config, 1)));
    conformance::generated(Provider::complete(&|config| start(config, 3)));
}
