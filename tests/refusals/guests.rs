//! Tests guests that forge tunnel packets or send forbidden frames.

use super::geneve::{GENEVE_PORT, geneve, geneve_header, logical_ports};
use super::gre::{gre, nvgre};
use super::stt::stt;
use super::target::{FORBIDDEN, NOBODY, TEB, Target, Wrap, kernel_count};
use super::vxlan::{VXLAN_PORT, vxlan, vxlan_header};
use crate::common::daemon::port;
use crate::common::frames::{EXPERIMENT, FrameSocket, contains, frame, note};
use crate::common::outer::Outer;
use crate::common::{
    Attachment, Daemon, Datapath, GUEST_DEVICE, Lab, PATIENCE, Setup, VNI, traffic,
};
use std::net::UdpSocket;
use testkit::host::wait_until;
use testkit::require_root;
use wire::MacAddr;

/// A guest with an `interface` port can send packets to the host's network stack. It forges tunnel
/// packets from a remote end point, which must be dropped, because they did not arrive at the
/// uplink.
#[test]
fn tunnel_packets_are_dropped_when_a_guest_forges_them() {
    require_root!();
    let setup = Setup::new("vxlan").guests(2, 1).mtu(1450).attachment(Attachment::Veth);
    let mut target = Target::new(setup);
    let (near, far) = (target.near(), target.far());
    let attacker = target.lab.guests_of(0).nth(1).expect("two guests are on h1");
    let device = attacker.host_device();
    let netlink = target.lab.hosts[0].netns.netlink();
    let dst_mac = netlink.link(&device).expect("the attacker's interface on the host").mac;
    let forged = Outer { src_mac: attacker.mac, dst_mac, ..target.outer };
    let socket = FrameSocket::open(&attacker.netns, GUEST_DEVICE);
    let before = kernel_count(&target, "NoPorts");
    // With the kernel datapath, eBPF programs process the packets before the network stack.
    let by_stack = match target.daemon.show().datapath == Datapath::User.name() {
        true => 10,
        false => 0,
    };
    for _ in 0..10 {
        socket.send(&vxlan(&forged, &note(near, far, FORBIDDEN)));
    }
    wait_until(PATIENCE, "all ten were refused", || {
        let sent = port(&target.daemon, "g2").rx.packets;
        sent >= 10 && kernel_count(&target, "NoPorts") == before + by_stack
    });
    let seen = target.seen(vxlan, &[]);
    assert!(!seen.iter().any(|frame| contains(frame, FORBIDDEN)), "a forged frame was delivered");
    target.finish();
}

#[test]
fn tunnels_stay_closed_when_a_guest_sends_tunnel_packets() {
    require_root!();
    for (tunnel, header) in [
        ("vxlan", vxlan_header(8, VNI)),
        ("geneve", geneve_header(0, 0, TEB, VNI, &[])),
        ("geneve", geneve_header(0, 0x40, TEB, VNI, &logical_ports(1, 2))),
    ] {
        let lab = Lab::new(Setup::new(tunnel).guests(2, 2));
        let daemons = lab.start_both();
        let [a, b, c, _] = &lab.guests[..] else { panic!("there are four guests") };
        for (to, other) in [(c, b), (b, c)] {
            traffic::ping(&a.netns, to.ip(4));
            let sockets = [to, other].map(|guest| FrameSocket::open(&guest.netns, GUEST_DEVICE));
            // A daemon that decapsulated this packet would deliver it to the other guest, or to
            // both.
            let inner =
                [other.mac, MacAddr::BROADCAST, to.mac].map(|dst| note(dst, a.mac, FORBIDDEN));
            for port in [VXLAN_PORT, GENEVE_PORT] {
                let address = (to.ip(4), port);
                let receiver = to.netns.run(|| UdpSocket::bind(address)).expect("a UDP socket");
                receiver.set_read_timeout(Some(PATIENCE)).expect("a time limit");
                let sender = traffic::udp_socket(a, 4);
                for inner in &inner {
                    let sent = [&header[..], inner].concat();
                    sender.send_to(&sent, address).expect("a datagram is sent");
                    let mut bytes = [0; 2000];
                    let (len, _) = receiver.recv_from(&mut bytes).expect("the datagram arrives");
                    assert!(bytes[..len] == sent, "{tunnel}: the datagram was altered");
                }
            }
            let fence = FrameSocket::open(&a.netns, GUEST_DEVICE);
            for (guest, socket) in [to, other].into_iter().zip(&sockets) {
                fence.send(&note(guest.mac, a.mac, "the end"));
                let mut seen = socket.until_note("the end");
                seen.retain(|frame| frame[12..14] == EXPERIMENT.to_be_bytes());
                assert_eq!(seen.len(), 1, "{tunnel}: {} received the inner frame", guest.name);
            }
        }
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// For each tunnel type: its name, the function that adds outer headers, and the options of a lab
/// in which its packets are valid.
const NESTED: [(&str, Wrap, &str); 5] = [
    ("vxlan", vxlan, ""),
    ("geneve", geneve, ""),
    ("gre", gre, ""),
    ("nvgre", nvgre, ""),
    ("stt", stt, "logical_ports = false"),
];

#[test]
fn nested_tunnel_packets_are_not_decapsulated_again() {
    require_root!();
    const LEVELS: usize = 4;
    let cases = NESTED.into_iter().map(|row| (row, 4)).chain([(NESTED[0], 6), (NESTED[4], 6)]);
    for ((tunnel, wrap, options), family) in cases {
        let mut target = Target::new(Setup::new(tunnel).family(family).options(options));
        // The inner packets have the same addresses as the outer one: those of the tunnel end
        // points.
        let outer = target.outer;
        let inner = Outer { dst_mac: target.near(), src_mac: target.far(), ..outer };
        let every_type = NESTED.map(|(_, wrap, _)| wrap);
        for (what, wraps) in [("itself", &[wrap; LEVELS][..]), ("all types", &every_type)] {
            let note = note(target.near(), target.far(), "nested");
            let nested = wraps.iter().fold(note, |frame, wrap| wrap(&inner, &frame));
            let what = format!("{tunnel} around {what}, IPv{family}");
            target.wire.send(&wrap(&outer, &nested));
            // A punted packet may be overtaken by later ones.
            let mut seen = target.guest.until(&what, |frame| frame == nested);
            seen.extend(target.seen(wrap, &[]));
            let seen: Vec<_> = seen.iter().filter(|frame| contains(frame, "nested")).collect();
            assert_eq!(seen, [&nested], "{what}: the guest gets the packet, and only once");
        }
        target.finish();
    }
}

#[test]
fn frames_are_dropped_when_a_guest_must_not_send_them() {
    require_root!();
    let lab = Lab::new(Setup::new("geneve").guests(2, 1));
    let daemons = lab.start_both();
    let [a, b, c] = &lab.guests[..] else { panic!("there are three guests") };
    let sockets: Vec<_> =
        lab.guests.iter().map(|guest| FrameSocket::open(&guest.netns, GUEST_DEVICE)).collect();
    let cases = [
        ("unknown_mac", note(NOBODY, a.mac, FORBIDDEN)),
        ("flow_drop", note(b.mac, MacAddr([1, 0, 0x5e, 0, 0, 9]), FORBIDDEN)),
        ("flow_drop", note(c.mac, MacAddr::BROADCAST, FORBIDDEN)),
        ("hairpin", note(a.mac, a.mac, FORBIDDEN)),
        // The EtherType is IPv4, but the payload is not.
        ("malformed", frame(b.mac, a.mac, 0x0800, FORBIDDEN.as_bytes())),
    ];
    let mut expected = daemons[0].show().ports.swap_remove(0).drops;
    for (reason, frame) in cases {
        sockets[0].send(&frame);
        *expected.entry(reason.to_owned()).or_default() += 1;
    }
    for (guest, socket) in [b, c].into_iter().zip(&sockets[1..]) {
        sockets[0].send(&note(guest.mac, a.mac, "the end"));
        let seen = socket.until_note("the end");
        assert!(!seen.iter().any(|frame| contains(frame, FORBIDDEN)), "{} saw it", guest.name);
    }
    let dropped = daemons[0].show().ports.swap_remove(0).drops;
    assert_eq!(dropped, expected, "counted at the guest's port");
    daemons.into_iter().for_each(Daemon::stop);
}
