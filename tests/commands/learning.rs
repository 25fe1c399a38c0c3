//! Tests ports that learn MAC addresses: behind them is a bridge with machines that are not in the
//! network file.

use super::call::{weft, weft_json};
use crate::common::daemon::{port, reply};
use crate::common::frames::{FrameSocket, contains, count, note};
use crate::common::{Daemon, GUEST_DEVICE, Lab, PATIENCE, Setup, traffic};
use netdev::{Dad, IpNet, LinkKind, LinkSpec};
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use testkit::host::{TestHost, wait_until};
use testkit::require_root;
use wire::MacAddr;

/// An MTU that fits every tunnel.
const MTU: u32 = 1400;

/// A machine that is connected to the bridge inside a guest.
struct Nested {
    netns: TestHost,
    mac: MacAddr,
    ip: Ipv4Addr,
}

/// A lab with one guest on h1, and two guests on h2 whose ports learn MAC addresses.
struct Learning {
    lab: Lab,
    daemons: [Daemon; 2],
}

impl Learning {
    fn start(tunnel: &str) -> Self {
        let lab = Lab::new(Setup::new(tunnel).guests(1, 2));
        let mut text = fs::read_to_string(lab.network_file()).expect("a network file");
        for guest in lab.guests_of(1) {
            let line = format!("mac = \"{}\"\n", guest.mac);
            assert!(text.contains(&line), "{text}");
            text = text.replace(&line, &format!("{line}learn = true\n"));
        }
        fs::write(lab.network_file(), text).expect("a file can be written");
        let daemons = lab.start_both();
        Self { lab, daemons }
    }

    /// Connects two machines to a bridge behind the first guest of h2.
    fn nest(&self) -> [Nested; 2] {
        let guest = &self.lab.guests[1].netns;
        let netlink = guest.netlink();
        let bridge = LinkSpec::new("br0").mtu(MTU).up();
        let bridge = netlink.create(&bridge, &LinkKind::Bridge).expect("a bridge can be made");
        let device = netlink.index_of(GUEST_DEVICE).expect("the guest's device");
        netlink.set_master(device, Some(bridge)).expect("a device can join a bridge");
        [0x91, 0x92].map(|number| {
            let (netns, mac) =
                (TestHost::new(&format!("n{number}")), MacAddr([2, 0, 0, 0, 0, number]));
            netns.sysctl("net/ipv4/ping_group_range", "0 2147483647").expect("a sysctl can be set");
            let name = format!("to{number}");
            let peer = LinkSpec::new(&name).mtu(MTU).master(bridge).netns(guest).up();
            let spec = LinkSpec::new(GUEST_DEVICE).mac(mac).mtu(MTU).up();
            let inside = netns.netlink();
            let index = inside.create(&spec, &LinkKind::Veth { peer }).expect("a veth can be made");
            // A device can only join a bridge of its own namespace.
            let outer = netlink.index_of(&name).expect("the other end");
            netlink.set_master(outer, Some(bridge)).expect("a device can join a bridge");
            let ip = Ipv4Addr::new(192, 168, 7, number);
            let prefix = IpNet::new(ip.into(), 24).expect("the length fits the family");
            inside.add_address(index, prefix, Dad::Skip).expect("an address can be added");
            Nested { netns, mac, ip }
        })
    }

    fn control(&self, host: usize) -> std::path::PathBuf {
        self.lab.control(host)
    }

    fn stop(self) {
        self.daemons.into_iter().for_each(Daemon::stop);
    }
}

/// The port and the host behind which this daemon has learned a MAC address.
fn learned(control: &Path, mac: MacAddr) -> Option<(String, Option<String>)> {
    let fdb = reply(control, r#"{"command":"fdb"}"#);
    let stations = fdb["stations"].as_array().expect("an array");
    let station = stations.iter().find(|station| station["mac"] == mac.to_string())?;
    assert!(station["age_ms"].is_u64(), "{station}");
    let text = |key: &str| station[key].as_str().map(str::to_owned);
    Some((text("port").expect("a port"), text("host")))
}

/// Waits until this daemon has learned a MAC address behind this port and host.
fn wait_learned(control: &Path, mac: MacAddr, (port, host): (&str, Option<&str>)) {
    let wanted = Some((port.to_owned(), host.map(str::to_owned)));
    let what = format!("{mac} is known behind {port}, not {:?}", learned(control, mac));
    wait_until(PATIENCE, &what, || learned(control, mac) == wanted);
}

#[test]
fn machines_behind_a_bridge_are_learned_and_moves_are_followed() {
    require_root!();
    // If the tunnel carries port numbers, the other host learns the port. Otherwise it learns the
    // host, or, with VLANs, only the uplink.
    let (named, host, wire) = (
        [("g2", Some("h2")), ("g3", Some("h2"))],
        [("blue//h2", Some("h2")); 2],
        [("blue//uplink", None); 2],
    );
    for (tunnel, [far_first, far_second]) in [
        ("geneve", named),
        ("stt", named),
        ("vxlan", host),
        ("gre", host),
        ("vlan", wire),
        ("qinq", wire),
    ] {
        let net = Learning::start(tunnel);
        let nested = net.nest();
        let [near, first, second] = &net.lab.guests[..] else { panic!("three guests") };
        for machine in &nested {
            traffic::ping(&near.netns, machine.ip.into());
            traffic::ping(&machine.netns, near.ip4.into());
            wait_learned(&net.control(1), machine.mac, ("g2", Some("h2")));
            wait_learned(&net.control(0), machine.mac, far_first);
        }

        // The first frame is unknown unicast and flooded to both ports. Later frames go to one
        // port.
        let (unknown, known) = (MacAddr([2, 0, 0, 0, 0, 0x77]), nested[0].mac);
        let [from, at_first, at_second] =
            [near, first, second].map(|guest| FrameSocket::open(&guest.netns, GUEST_DEVICE));
        wait_until(PATIENCE, "flooding has ended", || {
            let flooded = port(&net.daemons[1], "g3").tx.packets;
            traffic::ping(&near.netns, nested[0].ip.into());
            port(&net.daemons[1], "g3").tx.packets == flooded
        });
        for number in 0..10 {
            from.send(&note(known, near.mac, &format!("known-{number}.")));
        }
        from.send(&note(unknown, near.mac, "nobody"));
        assert_eq!(count(&at_second.until_note("nobody"), "known"), 0, "{tunnel}");
        assert_eq!(count(&at_first.until_note("nobody"), "known"), 10, "{tunnel}");

        // The machine moves behind another port and sends from there.
        let inside = nested[0].netns.netlink();
        let index = inside.index_of(GUEST_DEVICE).expect("the device of the machine");
        inside.set_down(index).expect("a link can be set down");
        at_second.send(&note(near.mac, known, "moved"));
        from.until_note("moved");
        wait_learned(&net.control(1), known, ("g3", Some("h2")));
        wait_learned(&net.control(0), known, far_second);
        wait_until(PATIENCE, "it is followed", || {
            from.send(&note(known, near.mac, "follow"));
            from.send(&note(second.mac, near.mac, "marker"));
            count(&at_second.until_note("marker"), "follow") > 0
        });
        for number in 0..10 {
            from.send(&note(known, near.mac, &format!("there-{number}.")));
        }
        from.send(&note(unknown, near.mac, "at last"));
        let here = at_first.until_note("at last");
        assert!(!here.iter().any(|frame| contains(frame, "there-")), "{tunnel}");
        assert_eq!(count(&at_second.until_note("at last"), "there-"), 10, "{tunnel}");

        let (code, _, stderr) = weft(&net.control(1), &["fdb", "--forget", &known.to_string()]);
        assert_eq!((code, &*stderr), (0, ""), "{tunnel}");
        assert_eq!(learned(&net.control(1), known), None, "{tunnel}");
        let fdb = weft_json(&net.control(1), &["fdb"]).to_string();
        assert!(!fdb.contains(&known.to_string()), "{tunnel}: {fdb}");
        assert!(fdb.contains(&nested[1].mac.to_string()), "{tunnel}: {fdb}");
        net.stop();
    }
}

#[test]
fn learned_addresses_are_forgotten_when_their_port_stops_learning() {
    require_root!();
    let net = Learning::start("geneve");
    let nested = net.nest();
    traffic::ping(&nested[0].netns, net.lab.guests[0].ip4.into());
    for host in [0, 1] {
        wait_learned(&net.control(host), nested[0].mac, ("g2", Some("h2")));
    }
    let text = fs::read_to_string(net.lab.network_file()).expect("a network file");
    let changed = text.replacen("learn = true\n", "", 1);
    fs::write(net.lab.network_file(), changed).expect("a file can be written");
    let file = net.lab.network_file();
    let file = file.to_str().expect("UTF-8");
    for host in [0, 1] {
        let (code, _, stderr) = weft(&net.control(host), &["reload", file]);
        assert_eq!(code, 0, "{stderr}");
        assert_eq!(learned(&net.control(host), nested[0].mac), None);
    }
    net.stop();
}
