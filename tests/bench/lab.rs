//! Tests of labs, contenders and traffic with the running kernel.

use std::net::{IpAddr, Ipv4Addr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bench::demo::{self, DemoOptions};
use bench::lab::{
    Contender, DEFAULT_UPLINK_MTU, GUEST_DEVICE, Lab, Profile, RoutedSetup, Session, remove_stale,
};
use bench::traffic::blast::{Blast, Pace};
use bench::traffic::flow::{Flow, Traffic};
use bench::traffic::frames::{self, Frame};
use bench::traffic::load::{Load, Pattern};
use bench::traffic::ping::Pinger;
use bench::traffic::sink::Sink;
use bench::{Error, Process, Stop};
use netdev::Netns;
use network::{Network, TunnelType};

/// How long to wait for the lock of labs: only one lab can run on a machine at a time.
const PATIENCE: Duration = Duration::from_secs(180);
const LIMIT: Duration = Duration::from_secs(10);
/// A program path for tests whose contenders do not run weft.
const NO_WEFT: &str = "/nonexistent/weft";

fn session() -> Session {
    Session::open(PATIENCE, &Stop::new()).unwrap()
}

fn namespaces_of_this_process() -> Vec<String> {
    let prefix = format!("weft-{}-", std::process::id());
    Netns::list().unwrap().into_iter().filter(|name| name.starts_with(&prefix)).collect()
}

/// Sends pings between all guests that `contender` connects, and TCP between both pairs of guests.
fn exercise(contender: Contender, profile: Profile) {
    let session = session();
    let stop = session.stop();
    let lab = Lab::build(&session, profile, DEFAULT_UPLINK_MTU).unwrap();
    let mut attachment = contender.attach(&lab, Path::new(NO_WEFT)).unwrap();
    for from in lab.guests() {
        for to in lab.guests().iter().filter(|to| contender.joins(from, to)) {
            for address in [IpAddr::from(to.ip4()), to.ip6().into()] {
                let mut pinger = from.run(|| Pinger::open(address)).unwrap().unwrap();
                pinger.wait_for_answer(LIMIT, stop).unwrap();
                assert!(pinger.run(3, stop).unwrap().is_complete(), "{address}");
            }
        }
    }
    let flows = [0, 1, 0, 1].map(|number| {
        let (from, to) = (lab.guest(0, number), lab.guest(1, number));
        Flow::stream(from, to, to.ip4().into()).unwrap()
    });
    let streams = Traffic::start(&flows, stop).unwrap();
    stop.wait_for("a megabyte on each connection", LIMIT, || {
        streams.check()?;
        Ok(streams.received().iter().all(|&bytes| bytes > 1 << 20).then_some(()))
    })
    .unwrap();
    streams.finish().unwrap();
    if contender != Contender::Direct {
        assert!(lab.wire_counters().unwrap().bytes > 4 << 20, "traffic passes the underlay");
    }
    attachment.check_running().unwrap();
    attachment.stop().unwrap();
    drop(lab);
    assert_eq!(namespaces_of_this_process(), Vec::<String>::new());
}

#[test]
fn small_packets_and_transactions_are_counted_when_guests_are_joined() {
    testkit::require_root!();
    let session = session();
    let stop = session.stop();
    let lab = Lab::build(&session, Profile::Full, DEFAULT_UPLINK_MTU).unwrap();
    let _attachment = Contender::LinuxBridge.attach(&lab, Path::new(NO_WEFT)).unwrap();
    let (from, to) = (lab.guest(0, 0), lab.guest(1, 0));
    let mut pinger = from.run(|| Pinger::open(to.ip4().into())).unwrap().unwrap();
    pinger.wait_for_answer(LIMIT, stop).unwrap();

    let sink = Sink::start(to, to.ip4().into()).unwrap();
    let template = Frame::udp_template((from.mac(), from.ip4()), (to.mac(), to.ip4()));
    let port = sink.port();
    let change = move |number: u64, bytes: &mut [u8]| {
        let source = Ipv4Addr::from(0x0ac8_0000 + number as u32 % 1000);
        let mut frame = Frame::of(bytes);
        frame.set_addresses(source, Ipv4Addr::new(10, 77, 0, 21));
        frame.set_ports(number as u16, port);
    };
    let socket = frames::socket(from).unwrap();
    let blast = Blast::start(socket, template, change, Pace::PerSecond(1000.0), 0).unwrap();
    stop.wait_for("200 packets", LIMIT, || Ok((sink.received() >= 200).then_some(()))).unwrap();
    assert!(blast.finish() >= 200);

    let load = Load::new(Pattern::TcpRr, 1, 2).unwrap();
    let flow = Flow { from, to, address: to.ip4().into(), load };
    let traffic = Traffic::start(&[flow], stop).unwrap();
    traffic.begin_measuring();
    let some = || Ok((traffic.counts()[0].transactions > 100).then_some(()));
    stop.wait_for("100 transactions", LIMIT, some).unwrap();
    let times = traffic.finish().unwrap();
    assert!(times.total() > 10, "{times:?}");
    assert!(times.percentile_us(0.5) <= times.percentile_us(0.99), "{times:?}");
}

#[test]
fn bridge_carries_traffic_when_attached() {
    testkit::require_root!();
    exercise(Contender::LinuxBridge, Profile::Full);
}

#[test]
fn kernel_vxlan_carries_traffic_when_the_underlay_segments_nothing() {
    testkit::require_root!();
    exercise(Contender::KERNEL_VXLAN, Profile::None);
}

#[test]
fn direct_veth_carries_traffic_when_attached() {
    testkit::require_root!();
    exercise(Contender::Direct, Profile::Full);
}

#[test]
fn open_vswitch_carries_traffic_when_installed() {
    testkit::require_root!();
    testkit::require_program!("ovs-vswitchd", "openvswitch-switch");
    exercise(Contender::OVS_VXLAN, Profile::Full);
    // A bridge without a tunnel, and QinQ.
    for name in ["ovs-user-bridge", "ovs-user-qinq"] {
        exercise(name.parse().unwrap(), Profile::None);
    }
}

#[test]
fn profiles_are_in_force_when_read_back() {
    testkit::require_root!();
    let session = session();
    for profile in Profile::ALL {
        let lab = Lab::build(&session, profile, DEFAULT_UPLINK_MTU).unwrap();
        let is_on = |name: &str| {
            *lab.offloads().get(name).unwrap_or_else(|| panic!("{name} in {:?}", lab.offloads()))
        };
        assert!(is_on("tx-checksum-ip-generic") && is_on("rx-gro"), "{profile}");
        assert_eq!(is_on("tx-udp_tnl-segmentation"), profile == Profile::Full, "{profile}");
        assert_eq!(is_on("tx-tcp-segmentation"), profile != Profile::None, "{profile}");
    }
}

#[test]
fn network_file_is_valid_for_every_tunnel() {
    testkit::require_root!();
    let session = session();
    let lab = Lab::build(&session, Profile::Full, DEFAULT_UPLINK_MTU).unwrap();
    for tunnel in TunnelType::ALL {
        let text = bench::lab::network_toml(&lab, tunnel);
        let network = Network::parse(&text, "network.toml").unwrap();
        let switch = &network.logical_switches()[0];
        assert_eq!((switch.tunnel, switch.ports.len()), (tunnel, 4));
        assert!((1400..=DEFAULT_UPLINK_MTU).contains(&switch.mtu), "{tunnel}: {}", switch.mtu);
    }
}

#[test]
fn demo_network_has_a_router_and_lists_for_every_tunnel() {
    testkit::require_root!();
    let session = session();
    let lab = Lab::build(&session, Profile::Full, DEFAULT_UPLINK_MTU).unwrap();
    let setup = RoutedSetup::create(&lab).unwrap();
    for tunnel in TunnelType::ALL {
        let text = setup.network_toml(&lab, tunnel);
        let network = Network::parse(&text, "network.toml").unwrap();
        let [near, far] = network.logical_switches() else { panic!("{text}") };
        assert_eq!((near.ports.len(), near.arp_responder, far.ports.len()), (4, false, 2));
        assert_eq!((network.logical_routers()[0].ports.len(), network.acls().len()), (2, 5));
        assert_eq!(near.mtu, far.mtu, "{tunnel}");
    }
}

#[test]
fn nothing_is_left_when_a_study_panics_or_is_interrupted() {
    testkit::require_root!();
    let stop = Stop::new();
    let session = Session::open(PATIENCE, &stop).unwrap();
    let study = catch_unwind(AssertUnwindSafe(|| {
        let lab = Lab::build(&session, Profile::Full, DEFAULT_UPLINK_MTU).unwrap();
        let _attachment = Contender::LinuxBridge.attach(&lab, Path::new(NO_WEFT)).unwrap();
        assert_eq!(namespaces_of_this_process().len(), 6);
        panic!("a fault of the study");
    }));
    assert!(study.is_err());
    assert_eq!(namespaces_of_this_process(), Vec::<String>::new());

    stop.raise();
    let interrupted = Lab::build(&session, Profile::Full, DEFAULT_UPLINK_MTU);
    assert!(interrupted.is_err_and(|error| error.is_interrupted()));
    assert_eq!(namespaces_of_this_process(), Vec::<String>::new());
}

#[test]
fn stale_namespaces_and_their_processes_go_when_their_session_is_dead() {
    testkit::require_root!();
    // While this session is open, no other one removes stale namespaces.
    let session = session();
    // After the process is reaped, no process has this identifier.
    let mut dead = Command::new("true").spawn().unwrap();
    let name = format!("weft-{}-h1", dead.id());
    dead.wait().unwrap();
    let netns = Netns::create(&name).unwrap();
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let mut orphan = Process::spawn("orphan", netns.command(sleep)).unwrap();
    remove_stale(session.stop()).unwrap();
    assert!(!Netns::list().unwrap().contains(&name));
    session
        .stop()
        .wait_for("the end of the orphan", LIMIT, || {
            Ok(orphan.check_running().is_err().then_some(()))
        })
        .unwrap();
}

#[test]
fn connection_fails_with_a_reason_when_the_guests_are_not_joined() {
    testkit::require_root!();
    let session = session();
    let lab = Lab::build(&session, Profile::Full, DEFAULT_UPLINK_MTU).unwrap();
    let _attachment = Contender::Direct.attach(&lab, Path::new(NO_WEFT)).unwrap();
    // This contender does not connect the first guest of one host with the second one of the other.
    let (from, to) = (lab.guest(0, 0), lab.guest(1, 1));
    let flow = Flow::stream(from, to, to.ip4().into()).unwrap();
    let error = Traffic::start(&[flow], session.stop()).unwrap_err();
    assert!(error.to_string().starts_with("h1g1 to h2g2: connect to 10.77.0.22:"), "{error}");

    let mut pinger = from.run(|| Pinger::open(to.ip4().into())).unwrap().unwrap();
    let error = pinger.wait_for_answer(Duration::from_millis(100), session.stop()).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
}

#[test]
fn demo_keeps_the_reason_when_the_daemon_fails() {
    testkit::require_root!();
    let mut options = DemoOptions::new("/bin/false");
    options.contenders = vec![Contender::weft(TunnelType::Geneve)];
    options.seconds = 0.1;
    options.quiet = true;
    // Another test may hold the lock of labs. The demo does not wait long for it, so it is
    // repeated.
    let report = Stop::new()
        .wait_for("the end of other sessions", PATIENCE, || {
            match demo::run(&options, &Stop::new()) {
                Err(error) if error.is_missing() => Ok(None),
                other => other.map(Some),
            }
        })
        .unwrap();
    assert!(!report.passed());
    let rows = &report.profiles[0].rows;
    let failed: Vec<_> = rows.iter().filter(|row| row.failure.is_some()).collect();
    assert_eq!(failed.len(), 1, "{}", report.text(true));
    let reason = failed[0].failure.as_deref().unwrap();
    assert!(
        reason.starts_with("weft run --host h") && reason.contains("exit status: 1"),
        "{reason}"
    );
    assert!(rows[0].one_gbps.is_some_and(|gbps| gbps > 0.0), "the bridge was measured");
}

#[test]
fn guests_have_their_addresses_when_joined() {
    testkit::require_root!();
    let session = session();
    let lab = Lab::build(&session, Profile::Full, 9000).unwrap();
    let attachment = Contender::KERNEL_VXLAN.attach(&lab, Path::new(NO_WEFT)).unwrap();
    assert_eq!(attachment.guest_mtu(), 8950);
    for guest in lab.guests() {
        let netlink = guest.netns().netlink().unwrap();
        let link = netlink.link(GUEST_DEVICE).unwrap();
        assert_eq!((link.mac, link.mtu), (guest.mac(), 8950));
        let addresses = netlink.addresses(Some(link.index)).unwrap();
        let has = |ip: IpAddr| addresses.iter().any(|a| a.prefix.addr() == ip && a.ready);
        assert!(has(guest.ip4().into()) && has(guest.ip6().into()), "{addresses:?}");
    }
}
