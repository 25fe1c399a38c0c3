//! Tests packets that could loop: between two hosts, between two tunnels, or from a host to itself.

use super::gre::gre;
use super::target::{NOBODY, Wrap};
use super::vxlan::vxlan;
use crate::commands::call::weft_json;
use crate::common::daemon::port;
use crate::common::frames::{FrameSocket, contains, count, note};
use crate::common::outer::Outer;
use crate::common::{
    Daemon, Datapath, GUEST_DEVICE, Guest, Host, INNER_VLAN, Lab, PATIENCE, Setup, TUNNELS,
    TempDir, VLAN, VNI,
};
use netdev::{Dad, IpNet, LinkKind, LinkSpec, Route};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use testkit::host::{TestHost, WireEnd, wait_until};
use testkit::require_root;
use wire::MacAddr;

/// The payload of each packet that could loop.
const LOOPS: &str = "ROUND AND ROUND";
const PACKETS: u64 = 10;
/// The MAC address of a machine that exists on no host.
const GHOST: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x66]);

/// Sends a final frame to the other guest. Returns how many packets with [`LOOPS`] have arrived at
/// the uplink of `h2` before it.
fn crossed(lab: &Lab, wire: &FrameSocket, fence: &FrameSocket, round: &str) -> usize {
    let (from, to) = lab.ends();
    fence.send(&note(to.mac, from.mac, round));
    count(&wire.until_note(round), LOOPS)
}

/// Waits until both hosts together have dropped [`PACKETS`] packets for this reason since `before`,
/// and checks that there are not more.
fn ends(daemons: &[Daemon; 2], reason: &str, before: u64, what: &str) {
    let dropped = || -> u64 { daemons.iter().map(|daemon| count_of(daemon, reason)).sum() };
    wait_until(PATIENCE, &format!("{what}: all are counted as {reason}"), || {
        dropped() >= before + PACKETS
    });
    assert_eq!(dropped(), before + PACKETS, "{what}");
}

fn count_of(daemon: &Daemon, reason: &str) -> u64 {
    daemon.drops().get(reason).copied().unwrap_or(0)
}

/// The network files of the two hosts contradict each other: in each, the same port is on the other
/// host.
#[test]
fn frames_end_at_the_second_host_when_each_has_the_receiver_at_the_other() {
    require_root!();
    for tunnel in TUNNELS {
        let mut lab = Lab::new(Setup::new(tunnel));
        let file = |lab: &mut Lab, host: &str| {
            let port = format!(
                "[[logical_switch.port]]\nname = \"ghost\"\nhost = \"{host}\"\nmac = \"{GHOST}\"\n\
                 key = 9\ndevice = {{ tap = \"ghost\" }}\n"
            );
            lab.change_setup(|setup| setup.more(&port));
        };
        file(&mut lab, "h2");
        let first = lab.start(0);
        file(&mut lab, "h1");
        let daemons = [first, lab.start(1)];
        let (near, far) = lab.ends();
        crate::common::traffic::ping(&near.netns, far.ip(4));
        let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
        let sender = FrameSocket::open(&near.netns, GUEST_DEVICE);
        let before = daemons[1].show().uplink.drops;
        for _ in 0..PACKETS {
            sender.send(&note(GHOST, near.mac, LOOPS));
        }
        let reason = "hairpin";
        let before = before.get(reason).copied().unwrap_or(0);
        ends(&daemons, reason, before, tunnel);
        let crossed = crossed(&lab, &wire, &sender, "the end");
        assert_eq!(crossed as u64, PACKETS, "{tunnel}: each crossed the underlay once");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// Two logical switches with tunnels of different types, and between them two routers on different
/// hosts. Each router uses the other one as its next hop toward [`NOWHERE`].
fn routers_toml(lab: &Lab) -> String {
    let mut text = String::from("tunnel = \"geneve\"\n");
    for host in &lab.hosts {
        let (name, uplink, address) = (host.name, &host.uplink.name, host.uplink.ip4);
        text += &format!("[[host]]\nname = \"{name}\"\nuplink = \"{uplink}\"\n");
        text += &format!("underlay = [\"{address}\"]\n");
    }
    text += "[[logical_switch]]\nname = \"there\"\nvni = 8\ntunnel = \"vxlan\"\n\
             [[logical_switch]]\nname = \"back\"\nvni = 9\n";
    for (number, guest) in (1..).zip(&lab.guests) {
        let (name, mac, host) = (&guest.name, guest.mac, lab.hosts[guest.host].name);
        let netns = guest.netns.name().expect("a name");
        text += &format!(
            "[[logical_switch]]\nname = \"s{number}\"\nvni = {number}\n\
             [[logical_switch.port]]\nname = \"{name}\"\nhost = \"{host}\"\nmac = \"{mac}\"\n\
             addresses = [\"10.0.{number}.10/24\"]\n\
             device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{netns}\" }}\n"
        );
    }
    for (number, next_hop) in [(1, "10.0.8.2"), (2, "10.0.9.1")] {
        text += &format!("[[logical_router]]\nname = \"r{number}\"\nhost = \"h{number}\"\n");
        for (network, switch) in [(number, &*format!("s{number}")), (8, "there"), (9, "back")] {
            text += &format!(
                "[[logical_router.port]]\nname = \"r{number}-{switch}\"\nswitch = \"{switch}\"\n\
                 mac = \"02:00:00:00:{network:02x}:{number:02x}\"\n\
                 addresses = [\"10.0.{network}.{number}/24\"]\n"
            );
        }
        for prefix in ["10.66.0.0/16", if number == 1 { "10.0.2.0/24" } else { "10.0.1.0/24" }] {
            text += &format!(
                "[[logical_router.route]]\nprefix = \"{prefix}\"\nnext_hop = \"{next_hop}\"\n"
            );
        }
    }
    text
}

/// An address to which each router has a route via the other one.
const NOWHERE: [u8; 4] = [10, 66, 0, 1];

/// Each host forwards packets that arrive through one tunnel into the other tunnel, back to the
/// host that sent them.
#[test]
fn packets_end_when_two_routers_send_them_through_two_tunnels_in_a_circle() {
    require_root!();
    /// The TTL that [`Outer`] sets.
    const TTL: u64 = 64;
    let lab = Lab::new(Setup::new("geneve"));
    fs::write(lab.network_file(), routers_toml(&lab)).expect("a file can be written");
    let daemons = lab.start_both();
    let near = &lab.guests[0];
    let everywhere = "0.0.0.0/0".parse().expect("a prefix");
    for (guest, gateway) in lab.guests.iter().zip([[10, 0, 1, 1], [10, 0, 2, 2]]) {
        let route = Route::via(everywhere, IpAddr::from(gateway));
        guest.netns.netlink().add_route(&route).expect("a route can be added");
    }
    // The routers forward packets to a destination that exists.
    crate::common::traffic::ping(&near.netns, [10, 0, 2, 10].into());
    let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
    let sender = FrameSocket::open(&near.netns, GUEST_DEVICE);
    let packet = Outer {
        src_mac: near.mac,
        dst_mac: MacAddr([2, 0, 0, 0, 1, 1]),
        src: [10, 0, 1, 10].into(),
        dst: NOWHERE.into(),
        traffic_class: 0,
    };
    let frame = packet.udp(9, LOOPS.as_bytes());
    for _ in 0..PACKETS {
        sender.send(&frame);
    }
    ends(&daemons, "ttl_expired", 0, "two routers");
    // A router reports this to the sender with ICMP type 11 (RFC 792).
    sender.until("a report that the TTL expired", |frame| {
        frame[12..14] == [8, 0] && frame[23] == 1 && frame[34] == 11
    });
    let end = Outer { dst: [10, 0, 2, 10].into(), ..packet }.udp(9, b"the end");
    sender.send(&end);
    let seen = wire.until_note("the end");
    // Every router decrements the TTL, and every second one sends toward `h2`.
    assert_eq!(count(&seen, LOOPS) as u64, PACKETS * TTL / 2, "crossings toward h2");
    daemons.into_iter().for_each(Daemon::stop);
}

/// Each host has learned the same address behind the other one, from forged packets.
#[test]
fn frames_end_at_the_second_host_when_each_has_learned_the_receiver_at_the_other() {
    require_root!();
    for (tunnel, wrap) in [("vxlan", vxlan as Wrap), ("gre", gre)] {
        let lab = Lab::new(Setup::new(tunnel));
        let text = fs::read_to_string(lab.network_file()).expect("a network file");
        let text = text.replace("addresses = ", "learn = true\naddresses = ");
        fs::write(lab.network_file(), text).expect("a file can be written");
        let daemons = lab.start_both();
        let (near, far) = lab.ends();
        let [at_first, wire] =
            [0, 1].map(|at| FrameSocket::open(&lab.hosts[at].netns, &lab.hosts[at].uplink.name));
        for (from, to, socket) in [(0, 1, &at_first), (1, 0, &wire)] {
            let outer = Outer::between(&lab.hosts[from], &lab.hosts[to], 4);
            let receiver = [near, far][to].mac;
            let learned = || {
                let fdb = weft_json(&lab.control(to), &["fdb"]);
                let stations = fdb["stations"].as_array().expect("an array").clone();
                let mut ghosts = stations.into_iter().filter(|at| at["mac"] == GHOST.to_string());
                ghosts.next().is_some_and(|ghost| ghost["host"] == lab.hosts[from].name)
            };
            socket.send(&wrap(&outer, &note(receiver, GHOST, "here I am")));
            wait_until(PATIENCE, "the address is learned", learned);
        }
        let sender = FrameSocket::open(&near.netns, GUEST_DEVICE);
        for _ in 0..PACKETS {
            sender.send(&note(GHOST, near.mac, LOOPS));
        }
        ends(&daemons, "hairpin", 0, tunnel);
        let once = crossed(&lab, &wire, &sender, "the end");
        assert_eq!(once as u64, PACKETS, "{tunnel}: each crossed the underlay once");
        // Unknown unicast is flooded to all ports that learn, but not from one tunnel into another.
        let receiver = FrameSocket::open(&far.netns, GUEST_DEVICE);
        for _ in 0..PACKETS {
            sender.send(&note(NOBODY, near.mac, LOOPS));
        }
        for _ in 0..PACKETS {
            receiver.until("a flooded frame", |frame| contains(frame, LOOPS));
        }
        let once = crossed(&lab, &wire, &sender, "the end again");
        assert_eq!(once as u64, PACKETS, "{tunnel}: each was flooded to the other host once");
        assert_eq!(count(&receiver.until_note("the end again"), LOOPS), 0, "{tunnel}: once more");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// A host whose uplink is connected to one of its own guests, so it encapsulates its own packets
/// again.
struct Ouroboros {
    _host: Host,
    guest: TestHost,
    daemon: Daemon,
    _dir: TempDir,
}

const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 2);
const FIRST_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

impl Ouroboros {
    fn start(tunnel: &str) -> Self {
        let (netns, guest, dir) = (TestHost::new("h1"), TestHost::new("g1"), TempDir::new());
        let peer = LinkSpec::new("tail").up();
        let netlink = netns.netlink();
        let kind = LinkKind::Veth { peer };
        let index = netlink.create(&LinkSpec::new("mouth").up(), &kind).expect("a veth pair");
        let prefix = IpNet::new(LOCAL.into(), 24).expect("a prefix");
        netlink.add_address(index, prefix, Dad::Skip).expect("an address can be added");
        // The next hop of tunnel packets has the MAC address of a guest of the other host.
        netlink.set_neighbour(index, REMOTE.into(), GHOST).expect("a neighbour can be added");
        let mac = netlink.link("mouth").expect("it is there").mac;
        let ip6 = "fd00::1".parse().expect("an address");
        let uplink = WireEnd { name: "mouth".to_owned(), index, mac, ip4: LOCAL, ip6 };
        let host = Host { name: "h1", netns, uplink };
        let number = match tunnel {
            "vlan" => format!("vlan = {VLAN}"),
            "qinq" => format!("vlan = {{ outer = {VLAN}, inner = {INNER_VLAN} }}"),
            _ => format!("vni = {VNI}"),
        };
        let text = format!(
            "tunnel = \"{tunnel}\"\n\
             [[host]]\nname = \"h1\"\nuplink = \"mouth\"\nunderlay = [\"{LOCAL}\"]\n\
             [[host]]\nname = \"h2\"\nuplink = \"mouth\"\nunderlay = [\"{REMOTE}\"]\n\
             [[logical_switch]]\nname = \"blue\"\n{number}\n\
             [[logical_switch.port]]\nname = \"g1\"\nhost = \"h1\"\nmac = \"{FIRST_MAC}\"\n\
             device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{}\" }}\n\
             [[logical_switch.port]]\nname = \"tail\"\nhost = \"h1\"\nmac = \"{NOBODY}\"\n\
             device = {{ interface = \"tail\" }}\n\
             [[logical_switch.port]]\nname = \"ghost\"\nhost = \"h2\"\nmac = \"{GHOST}\"\n\
             device = {{ tap = \"ghost\" }}\n",
            guest.name().expect("a name")
        );
        let (file, control) = (dir.path().join("network.toml"), dir.path().join("h1.sock"));
        fs::write(&file, text).expect("a file can be written");
        let datapath = Datapath::from_environment().map(|datapath| ["--datapath", datapath.name()]);
        let arguments: Vec<_> = datapath.into_iter().flatten().collect();
        let daemon = Daemon::spawn(&host, &file, &control, &arguments);
        daemon.wait_ready();
        Self { _host: host, guest, daemon, _dir: dir }
    }
}

/// Each round adds headers, until the packet is too long or has too many tags. STT segments packets
/// that are too long, so only the TTL can end its loop.
#[test]
fn packets_end_when_the_uplink_of_a_host_leads_to_its_own_guest() {
    require_root!();
    for (tunnel, reason) in [
        ("vxlan", "underlay_too_big"),
        ("geneve", "underlay_too_big"),
        ("gre", "underlay_too_big"),
        ("nvgre", "underlay_too_big"),
        ("stt", "ttl_expired"),
        ("vlan", "tags_too_deep"),
        ("qinq", "tags_too_deep"),
    ] {
        let net = Ouroboros::start(tunnel);
        let sender = FrameSocket::open(&net.guest, GUEST_DEVICE);
        for _ in 0..PACKETS {
            sender.send(&note(GHOST, FIRST_MAC, LOOPS));
        }
        wait_until(PATIENCE, &format!("{tunnel}: all are counted as {reason}"), || {
            count_of(&net.daemon, reason) >= PACKETS
        });
        // The guest and the host may have sent other packets, which must end as well.
        let rounds = || port(&net.daemon, "tail").rx.packets;
        wait_until(PATIENCE, &format!("{tunnel}: nothing moves any more"), || {
            let before = rounds();
            std::thread::sleep(Duration::from_millis(300));
            rounds() == before
        });
        net.daemon.stop();
    }
}

/// A guest that bridges its ports on two hosts forwards frames with MAC addresses that are not its
/// own. Port security must drop them.
#[test]
fn frames_of_others_end_when_a_guest_with_port_security_bridges_its_ports() {
    require_root!();
    let lab = Lab::new(Setup::new("geneve").guests(2, 1).secured());
    let daemons = lab.start_both();
    let [sender, ports @ ..] = &lab.guests[..] else { panic!("there are three guests") };
    let open = |guest: &Guest| FrameSocket::open(&guest.netns, GUEST_DEVICE);
    let (at_sender, at_ports) = (open(sender), [open(&ports[0]), open(&ports[1])]);
    let udp = |from: &Guest, dst_mac, dst: Ipv4Addr, text: &str| {
        let (src_mac, src, dst) = (from.mac, from.ip(4), dst.into());
        Outer { src_mac, dst_mac, src, dst, traffic_class: 0 }.udp(9, text.as_bytes())
    };
    let broadcast = udp(sender, MacAddr::BROADCAST, Ipv4Addr::new(192, 168, 7, 255), LOOPS);
    let before = count_of(&daemons[0], "flow_drop") + count_of(&daemons[1], "flow_drop");
    for _ in 0..PACKETS / 2 {
        at_sender.send(&broadcast);
        for (this, other) in [(0, 1), (1, 0)] {
            let frame = at_ports[this].until_note(LOOPS).pop().expect("the broadcast");
            at_ports[other].send(&frame);
        }
    }
    ends(&daemons, "flow_drop", before, "a bridge");
    at_ports[0].send(&udp(&ports[0], sender.mac, sender.ip4, "the end"));
    assert_eq!(count(&at_sender.until_note("the end"), LOOPS), 0, "the sender gets nothing back");
    daemons.into_iter().for_each(Daemon::stop);
}
