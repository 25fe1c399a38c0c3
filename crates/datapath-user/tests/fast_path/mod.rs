//! The user datapath behind programs: the packets that they punt, and the changes that it reports.

mod fake_programs;
mod frames;
mod ports;

use datapath::config::{
    Config, DeviceConfig, GuestConfig, PUNT_LIMIT, PortConfig, PortPeer, UPCALL_CPU_PERCENT,
    Underlay, Workers,
};
use datapath::solicit::SolicitLimits;
use datapath::{Datapath, upcall::UpcallLimits};
use datapath_user::UserDatapath;
use datapath_user::fast_path::{FastPath, Punt};
use fake_programs::FakePrograms;
use flow::{EntropySeed, PortNo};
use netdev::{IpNet, Netns};
use std::sync::Arc;
use std::time::Duration;
use testkit::conformance::{self, Provider};
use testkit::host::{TestHost, WireEnd, pair};
use wire::MacAddr;

const UPLINK: PortNo = PortNo(0);
const TAP: &str = "punt";
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

/// A host with an uplink, and the host at the other end of the link.
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

    fn start(&self, programs: &Arc<FakePrograms>, ports: Vec<PortConfig>) -> UserDatapath {
        self.start_with(programs, ports, Underlay::default())
    }

    fn start_with(
        &self,
        programs: &Arc<FakePrograms>,
        ports: Vec<PortConfig>,
        underlay: Underlay,
    ) -> UserDatapath {
        let config = config(&self.uplink.name, ports, underlay);
        self.host.run(|| UserDatapath::start_behind(punt(programs.clone()), config)).unwrap()
    }
}

fn punt(fast_path: Arc<dyn FastPath>) -> Punt {
    Punt { device: TAP.to_owned(), entropy: SEED, fast_path }
}

fn config(uplink: &str, ports: Vec<PortConfig>, underlay: Underlay) -> Config {
    Config {
        host: "punt".to_owned(),
        uplink: uplink.to_owned(),
        uplink_port: UPLINK,
        underlay,
        ports,
        entropy_base: BASE,
        entropy_ports: 64,
        workers: Workers { count: 2, ..Workers::default() },
        megaflows: 1000,
        upcalls: UpcallLimits::default(),
        punt_limit: PUNT_LIMIT,
        upcall_cpu_percent: UPCALL_CPU_PERCENT,
        solicit: SolicitLimits::default(),
        conntrack: Default::default(),
    }
}

/// A port in a guest's namespace. The guest's addresses end in the number of the port.
fn guest_port(number: u8, guest: &Netns) -> PortConfig {
    let addresses = ["10.0.0", "fd00:"].map(|net| match net.ends_with(':') {
        true => format!("{net}:{number}/64").parse::<IpNet>().unwrap(),
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
        peer: PortPeer::Guest,
    }
}

fn guest_mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

/// The programs punt every frame, so the user datapath receives no frame from a device itself.
#[test]
fn output_agrees_with_the_reference_when_every_frame_is_punted() {
    testkit::require_root!();
    testkit::require_program!("clang-19", "clang-19");
    testkit::require_program!("tc", "iproute2");
    let start = |config: Config, workers: usize| -> Arc<dyn Datapath> {
        let programs = FakePrograms::attached();
        let workers = Workers { count: workers, ..config.workers };
        let config = Config { workers, ..config };
        Arc::new(UserDatapath::start_behind(punt(programs), config).unwrap())
    };
    conformance::run(Provider::complete(&|config| start(config, 1)));
    let several = |config| start(config, 3);
    let several = Provider { second_half: true, ..Provider::complete(&several) };
    conformance::generated(several);
}
