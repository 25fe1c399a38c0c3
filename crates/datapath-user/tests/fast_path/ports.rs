//! Ports as veth pairs, which stay when the process is killed and are removed when it stops. Also
//! tests the changes that the datapath reports to the programs.

use super::fake_programs::{FakePrograms, Port, Report};
use super::{Lab, MTU, PATIENCE, TAP, config, guest_mac, guest_port, punt};
use datapath::Datapath;
use datapath::config::{DeviceConfig, EndpointConfig, PortConfig, TunnelConfig, Underlay};
use datapath_user::UserDatapath;
use flow::{Dscp, EndpointId, NextHop, PortNo, Ttl, TunnelSpec, TunnelType};
use netdev::{IpNet, Link, Netns, Route};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testkit::host::{TestHost, wait_until};

fn device(guest: &TestHost) -> Link {
    guest.netlink().link("eth0").unwrap()
}

fn veth_pairs(lab: &Lab) -> usize {
    let links = lab.host.netlink().links().unwrap();
    links.iter().filter(|link| link.name.starts_with("weft-") && link.is_veth()).count()
}

/// The bridges that give frames headroom for outer headers.
fn headroom_devices(lab: &Lab) -> Vec<Link> {
    let links = lab.host.netlink().links().unwrap();
    links.into_iter().filter(|link| link.name.starts_with("weft-room")).collect()
}

#[test]
fn guest_device_has_its_settings_and_is_removed_with_its_port() {
    testkit::require_root!();
    let (lab, guest) = (Lab::new(), TestHost::new("g1"));
    let programs = FakePrograms::idle();
    let datapath = lab.start(&programs, Vec::new());
    datapath_add(&lab, &datapath, guest_port(1, &guest));
    let inner = device(&guest);
    assert_eq!((inner.mac, inner.mtu), (guest_mac(1), u32::from(MTU)));
    assert!(inner.is_usable() && inner.has_peer_in_other_netns());
    let addresses = guest.netlink().addresses(Some(inner.index)).unwrap();
    let addresses: Vec<String> = addresses.iter().map(|it| it.prefix.to_string()).collect();
    assert!(addresses.contains(&"10.0.0.1/24".to_owned()), "{addresses:?}");
    assert!(addresses.contains(&"fd00::1/64".to_owned()), "{addresses:?}");
    let features = guest.ethtool().unwrap().features("eth0").unwrap();
    assert!(!features["tx-udp_tnl-segmentation"].active && features["tx-tcp-segmentation"].active);

    let outer = inner.lower.unwrap().index;
    let reported =
        Port { index: outer, is_usable: true, has_peer_in_other_netns: true, mtu: MTU.into() };
    assert_eq!(programs.port(PortNo(1)), Some(reported));
    let quiet = format!(
        "net/ipv6/conf/{}/disable_ipv6",
        lab.host.netlink().link_by_index(outer).unwrap().name
    );
    assert_eq!(lab.host.read_sysctl(&quiet).unwrap(), "1");
    let rooms_now = headroom_devices(&lab);
    assert!(rooms_now.iter().all(|room| !room.up), "{rooms_now:?}");
    let bridge = rooms_now.iter().find(|room| room.kind.as_deref() == Some("bridge")).unwrap();
    let ports = lab.host.netlink().links().unwrap();
    let ports = ports.iter().filter(|link| link.master == Some(bridge.index));
    assert_eq!(ports.filter(|link| link.index == outer || !link.is_veth()).count(), 2);

    // The guest sets its device down, and up again.
    for up in [false, true] {
        let netlink = guest.netlink();
        let set = if up { netlink.set_up(inner.index) } else { netlink.set_down(inner.index) };
        set.unwrap();
        wait_until(PATIENCE, "the programs receive the change", || {
            programs.port(PortNo(1)).is_some_and(|port| port.is_usable == up)
        });
    }
    datapath.remove_port(PortNo(1)).unwrap();
    assert_eq!(programs.port(PortNo(1)), None);
    assert!(guest.netlink().link("eth0").unwrap_err().is_not_found());
    assert_eq!((veth_pairs(&lab), headroom_devices(&lab).len()), (0, 0));
}

fn datapath_add(lab: &Lab, datapath: &dyn Datapath, port: PortConfig) {
    lab.host.run(|| datapath.add_port(port)).unwrap();
}

#[test]
fn device_in_the_hosts_namespace_is_reported_as_local() {
    testkit::require_root!();
    let lab = Lab::new();
    let programs = FakePrograms::idle();
    let device = DeviceConfig::Tap { name: "here".to_owned(), guest: None, mtu: MTU };
    let port = PortConfig { device, ..guest_port(1, &lab.peer) };
    let datapath = lab.start(&programs, vec![port]);
    let inner = lab.host.netlink().link("here").unwrap();
    let reported = programs.port(PortNo(1)).unwrap();
    assert!(reported.is_usable && !reported.has_peer_in_other_netns);
    assert_eq!(reported.index, inner.lower.unwrap().index);
    datapath.join().unwrap();
    assert!(lab.host.netlink().link("here").unwrap_err().is_not_found());
}

#[test]
fn port_is_reopened_when_its_guest_returns() {
    testkit::require_root!();
    let lab = Lab::new();
    let programs = FakePrograms::idle();
    let name = format!("weft-test-{}-back", std::process::id());
    let guest = Netns::create(&name).unwrap();
    let datapath = lab.start(&programs, vec![guest_port(1, &guest)]);
    let first = programs.port(PortNo(1)).unwrap();
    let state = || datapath.snapshot().unwrap().ports[0].state.clone();
    assert_eq!(state(), "up");
    drop(guest);
    Netns::remove(&name).unwrap();
    wait_until(PATIENCE, "the port is down", || state().starts_with("down"));
    assert_eq!(programs.port(PortNo(1)), None);
    let guest = Netns::create(&name).unwrap();
    wait_until(PATIENCE, "the port is up", || state() == "up");
    assert_ne!(programs.port(PortNo(1)).unwrap().index, first.index);
    assert!(guest.netlink().unwrap().link("eth0").unwrap().is_usable());
    drop(datapath);
    Netns::remove(&name).unwrap();
}

/// A process with a datapath, for tests that kill it.
struct DatapathProcess(Child);

const GUESTS: &str = "WEFT_TEST_GUESTS";
const UPLINK_NAME: &str = "WEFT_TEST_UPLINK";

impl DatapathProcess {
    /// Starts a process with a port for each guest.
    fn start(lab: &Lab, guests: &[&TestHost]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let names: Vec<&str> = guests.iter().filter_map(|guest| guest.name()).collect();
        command
            .args([
                "--exact",
                "fast_path::ports::datapath_of_another_process",
                "--ignored",
                "--nocapture",
            ])
            .env(GUESTS, names.join(" "))
            .env(UPLINK_NAME, &lab.uplink.name)
            .stdout(Stdio::piped());
        let mut child = lab.host.command(command).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("all ports are open")));
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Not a test: the main function of [`DatapathProcess`].
#[test]
#[ignore = "other tests run it in a child process"]
fn datapath_of_another_process() {
    let guests = std::env::var(GUESTS).expect("WEFT_TEST_GUESTS has names of namespaces");
    let uplink = std::env::var(UPLINK_NAME).expect("WEFT_TEST_UPLINK has the name of a device");
    let guests: Vec<Netns> = guests.split(' ').map(|name| Netns::open(name).unwrap()).collect();
    let ports = (1..).zip(&guests).map(|(number, guest)| guest_port(number, guest));
    let config = config(&uplink, ports.collect(), Underlay::default());
    let _datapath = UserDatapath::start_behind(punt(FakePrograms::idle()), config).unwrap();
    println!("all ports are open");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn guests_keep_their_devices_when_the_process_is_killed_and_restarted() {
    testkit::require_root!();
    let lab = Lab::new();
    let guests = ["stays", "moves", "goes"].map(TestHost::new);
    let [stays, changes, goes] = &guests;
    DatapathProcess::start(&lab, &[stays, changes, goes]).kill();
    let before = guests.each_ref().map(device);
    assert!(before.iter().all(Link::is_usable), "the kill did not affect the devices");
    assert_eq!(veth_pairs(&lab), 3);
    assert!(lab.host.netlink().link(TAP).unwrap_err().is_not_found());

    // The next process has no port for guest 3, another MAC address for guest 2, and other port
    // numbers.
    let programs = FakePrograms::idle();
    let renumbered = PortConfig { port: PortNo(9), ..guest_port(1, stays) };
    let mut changed = guest_port(2, changes);
    if let DeviceConfig::Tap { guest: Some(guest), .. } = &mut changed.device {
        guest.mac = guest_mac(77);
    }
    let datapath = lab.start(&programs, vec![renumbered, changed]);
    let after = [stays, changes].map(device);
    assert_eq!(after[0].index, before[0].index, "adopted");
    assert_eq!(programs.port(PortNo(9)).unwrap().index, before[0].lower.unwrap().index);
    assert_eq!(after[1].mac, guest_mac(77));
    assert_ne!(after[1].index, before[1].index, "made anew");
    assert!(goes.netlink().link("eth0").unwrap_err().is_not_found(), "removed");

    datapath.join().unwrap();
    assert_eq!(veth_pairs(&lab), 0);
    assert!(stays.netlink().link("eth0").unwrap_err().is_not_found());
}

#[test]
fn tap_replaces_a_veth_pair_that_was_left_behind() {
    testkit::require_root!();
    let (lab, guest) = (Lab::new(), TestHost::new("g1"));
    DatapathProcess::start(&lab, &[&guest]).kill();
    assert_eq!(device(&guest).kind.as_deref(), Some("veth"));
    let ports = vec![guest_port(1, &guest)];
    let config = config(&lab.uplink.name, ports, Underlay::default());
    let datapath = lab.host.run(|| UserDatapath::start(config)).unwrap();
    assert_eq!(datapath.snapshot().unwrap().ports[0].state, "up");
    assert_eq!(device(&guest).kind.as_deref(), Some("tun"));
    assert_eq!(veth_pairs(&lab), 0);
}

#[test]
fn foreign_link_is_unchanged_when_it_has_the_guests_name() {
    testkit::require_root!();
    let (lab, guest) = (Lab::new(), TestHost::new("g1"));
    testkit::host::pair(&guest, &lab.peer);
    let before = device(&guest);
    let datapath = lab.start(&FakePrograms::idle(), vec![guest_port(1, &guest)]);
    let state = datapath.snapshot().unwrap().ports[0].state.clone();
    assert!(state.contains("has a link of that name already"), "{state}");
    drop(datapath);
    assert_eq!(device(&guest).index, before.index);
}

const VXLAN: TunnelSpec = TunnelSpec {
    tunnel: TunnelType::Vxlan,
    port: 4789,
    checksum: false,
    ttl: Ttl::Fixed(64),
    dscp: Dscp::Inherit,
    key: true,
    sequence: false,
    path_mtu_bytes: 1500,
    clamp_mss: false,
};

#[test]
fn changes_are_reported_in_order_and_for_all_end_points() {
    testkit::require_root!();
    let (lab, guest) = (Lab::new(), TestHost::new("g1"));
    let programs = FakePrograms::idle();
    let local = IpAddr::from(lab.uplink.ip4);
    let spec = VXLAN;
    let endpoint = |id, remote| EndpointConfig { id: EndpointId(id), spec, local, remote };
    let underlay = Underlay {
        tunnels: vec![TunnelConfig { port: PortNo(70_000), spec, local, group: None }],
        // No neighbour has the address of the last one.
        endpoints: vec![endpoint(4, lab.far.ip4.into()), endpoint(5, [203, 0, 113, 1].into())],
        ..Underlay::default()
    };
    let datapath = lab.start_with(&programs, vec![guest_port(1, &guest)], underlay.clone());
    let reports = programs.reports();
    let position =
        |reports: &[Report], what: &dyn Fn(&Report) -> bool| reports.iter().position(what);
    let uplink = position(&reports, &|it| *it == Report::Uplink(Some(lab.uplink.index))).unwrap();
    let port = position(&reports, &|it| matches!(it, Report::Port(PortNo(1), Some(_)))).unwrap();
    let punt_device = position(&reports, &|it| *it == Report::PuntDevice(true)).unwrap();
    assert!(punt_device < uplink && uplink < port, "{reports:?}");
    let hop = NextHop { source: lab.uplink.mac, destination: lab.far.mac };
    let resolved = Report::Resolved((EndpointId(4), Some(hop)));
    wait_until(PATIENCE, "the end point is resolved", || programs.reports().contains(&resolved));
    let of_unreachable = |it: &Report| matches!(it, Report::Resolved((EndpointId(5), _)));
    assert!(!programs.reports().iter().any(of_unreachable));

    // The two end points swap numbers.
    let endpoints = vec![endpoint(5, lab.far.ip4.into()), endpoint(4, [203, 0, 113, 1].into())];
    datapath.set_underlay(Underlay { endpoints, ..underlay.clone() }).unwrap();
    assert!(
        programs.reports().contains(&Report::Resolved((EndpointId(4), None))),
        "the next hop of the old end point is withdrawn"
    );
    datapath.set_underlay(underlay).unwrap();

    // The uplink changes its MAC address. Then the TAP and the uplink are deleted.
    let mac = wire::MacAddr([2, 9, 9, 9, 9, 9]);
    lab.host.netlink().set_mac(lab.uplink.index, mac).unwrap();
    let hop = NextHop { source: mac, destination: lab.far.mac };
    let resolved = Report::Resolved((EndpointId(4), Some(hop)));
    wait_until(PATIENCE, "the new address is reported", || programs.reports().contains(&resolved));
    lab.host.netlink().delete(lab.host.netlink().index_of(TAP).unwrap()).unwrap();
    wait_until(PATIENCE, "the TAP is replaced", || {
        let reports = programs.reports();
        reports.ends_with(&[Report::PuntDevice(false), Report::PuntDevice(true)])
    });
    lab.host.netlink().delete(lab.uplink.index).unwrap();
    wait_until(PATIENCE, "the uplink is gone", || {
        programs.reports().contains(&Report::Uplink(None))
    });
    drop(datapath);
}

#[test]
fn all_end_points_behind_a_router_are_resolved_when_there_are_many() {
    testkit::require_root!();
    // More than the datapath resolves before it starts.
    let count: u32 = std::env::var("WEFT_ENDPOINTS").map_or(20_000, |count| count.parse().unwrap());
    let lab = Lab::new();
    let programs = FakePrograms::idle();
    let local = IpAddr::from(lab.uplink.ip4);
    let everywhere = "0.0.0.0/0".parse::<IpNet>().unwrap();
    lab.host.netlink().add_route(&Route::via(everywhere, lab.far.ip4.into())).unwrap();
    let remote = |number: u32| Ipv4Addr::from(0x6440_0000 + number).into();
    let endpoint = |number| {
        let (id, remote) = (EndpointId(number), remote(number));
        EndpointConfig { id, spec: VXLAN, local, remote }
    };
    let underlay = Underlay {
        tunnels: vec![TunnelConfig { port: PortNo(70_000), spec: VXLAN, local, group: None }],
        endpoints: (0..count).map(endpoint).collect(),
        ..Underlay::default()
    };
    let start = std::time::Instant::now();
    let datapath = lab.start_with(&programs, Vec::new(), underlay);
    eprintln!("{count} end points: started after {:?}", start.elapsed());
    let hop = NextHop { source: lab.uplink.mac, destination: lab.far.mac };
    let mut resolved = std::collections::BTreeSet::new();
    wait_until(PATIENCE * (1 + count / 100_000), "all end points are resolved", || {
        for report in programs.take() {
            if let Report::Resolved((id, to)) = report {
                assert_eq!(to, Some(hop));
                resolved.insert(id);
            }
        }
        resolved.len() == count as usize
    });
    eprintln!("all end points resolved after {:?}", start.elapsed());
    drop(datapath);
}
