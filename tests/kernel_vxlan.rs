//! Tests interoperability with the kernel's VXLAN device on the other host.

use crate::common::frames::{FrameSocket, count, note};
use crate::common::outer::Outer;
use crate::common::{Attachment, Daemon, GUEST_DEVICE, Lab, Setup, VNI, traffic};
use crate::peers::capture::{Capture, dissect};
use crate::peers::{
    MTU, carry_wire_frames_between, guests_talk, kernel, nothing_was_refused, tried,
};
use std::net::Ipv4Addr;
use std::time::Duration;
use testkit::{require_program, require_root};
use wire::MacAddr;

/// Whether weft and the kernel send outer UDP checksums.
#[derive(Clone, Copy, Debug)]
struct Checksums {
    weft: bool,
    kernel: bool,
}

fn start(family: u8, checksums: Checksums) -> (Lab, Daemon) {
    let options = format!("checksum = {}", checksums.weft);
    let lab = Lab::new(Setup::new("vxlan").family(family).mtu(MTU).options(&options));
    lab.ends().1.attach(&lab.hosts[1], MTU);
    kernel::attach(&lab, checksums.kernel);
    let daemon = lab.start(0);
    (lab, daemon)
}

fn guests_talk_over(family: u8, checksums: Checksums) {
    let (lab, daemon) = start(family, checksums);
    guests_talk(&lab);
    nothing_was_refused(&daemon);
    let with_or_without = |on| if on { "with" } else { "without" };
    let (weft, kernel) = (with_or_without(checksums.weft), with_or_without(checksums.kernel));
    let what = format!("over IPv{family}, weft {weft} and kernel {kernel} outer UDP checksum");
    tried(&daemon, "Linux kernel VXLAN", &what);
    daemon.stop();
}

#[test]
fn guests_talk_when_the_peer_is_kernel_vxlan_over_ipv4() {
    require_root!();
    for weft in [true, false] {
        for kernel in [true, false] {
            guests_talk_over(4, Checksums { weft, kernel });
        }
    }
}

#[test]
fn guests_talk_when_the_peer_is_kernel_vxlan_over_ipv6() {
    require_root!();
    for both in [true, false] {
        guests_talk_over(6, Checksums { weft: both, kernel: both });
    }
}

#[test]
fn guests_talk_when_the_wire_to_kernel_vxlan_has_no_offloads() {
    require_root!();
    for family in [4, 6] {
        let (lab, daemon) = start(family, Checksums { weft: true, kernel: true });
        carry_wire_frames_between(&lab.hosts);
        guests_talk(&lab);
        nothing_was_refused(&daemon);
        let what = format!("over IPv{family}, every segment and checksum made by the sender");
        tried(&daemon, "Linux kernel VXLAN", &what);
        daemon.stop();
    }
}

/// RFC 7348 section 4.2: a broadcast is sent once, to a multicast group of the underlay. Without a
/// group, the third host in the network file, which does not exist, would get a separate copy.
#[test]
fn broadcasts_use_the_multicast_group_once() {
    require_root!();
    require_program!("tcpdump", "tcpdump");
    require_program!("tshark", "tshark");
    for (family, group) in [(4, "239.1.1.1"), (6, "ff05::1:1")] {
        let options = format!("group = \"{group}\"");
        let third = "[[host]]\nname = \"h3\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.77\", \
                     \"2001:db8::77\"]\n\
                     [[logical_switch.port]]\nname = \"g3\"\nhost = \"h3\"\nmac = \
                     \"02:00:00:00:00:77\"\n\
                     device = { tap = \"g3\" }\n";
        let setup = Setup::new("vxlan").family(family).mtu(MTU).options(&options).more(third);
        let lab = Lab::new(setup);
        let (near, far) = lab.ends();
        far.attach(&lab.hosts[1], MTU);
        kernel::attach_to(&lab, true, group.parse().expect("an address"));
        let daemon = lab.start(0);
        guests_talk(&lab);
        let capture = Capture::start(&lab.hosts[0], lab.dir.path(), "group");
        for (from, to) in [(near, far), (far, near)] {
            traffic::broadcast(from, to);
            traffic::ping(&from.netns, to.ip(4));
        }
        let file = capture.stop();
        nothing_was_refused(&daemon);
        let what = format!("by a multicast group of an IPv{family} underlay");
        tried(&daemon, "Linux kernel VXLAN", &what);
        daemon.stop();
        let (destination, ttl) =
            if family == 4 { ("ip.dst", "ip.ttl") } else { ("ipv6.dst", "ipv6.hlim") };
        let fields = [destination, ttl, "eth.src", "udp.dstport", "icmp.type"];
        let rows = dissect(&file, &[], "vxlan", &fields);
        for from in [near, far] {
            let (mac, discard) = (from.mac.to_string(), "9".to_owned());
            let rows = rows.iter().filter(|row| row[2].contains(&mac) && row[3].contains(&discard));
            // The first value is the outer address.
            let outer: Vec<_> = rows.map(|row| [&row[0][0], &row[1][0]]).collect();
            assert_eq!(outer, [[group, "1"]], "one datagram from {} over IPv{family}", from.name);
        }
        // Unicast packets go to the host of their receiver.
        let pings: Vec<_> = rows.iter().filter(|row| !row[4].is_empty()).collect();
        assert!(pings.len() >= 4 && pings.iter().all(|row| row[0][0] != group), "IPv{family}");
    }
}

/// Packets to the multicast group from a host that is not in the network file are dropped.
#[test]
fn packets_to_the_multicast_group_are_dropped_when_their_sender_is_unknown() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan").options("group = \"239.1.1.1\""));
    let (near, far) = lab.ends();
    let daemon = lab.start(0);
    let outer = Outer {
        dst: Ipv4Addr::new(239, 1, 1, 1).into(),
        dst_mac: MacAddr([1, 0, 0x5e, 1, 1, 1]),
        ..Outer::between(&lab.hosts[1], &lab.hosts[0], 4)
    };
    let (wire, stranger) =
        (FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name), "a stranger");
    let guest = FrameSocket::open(&near.netns, GUEST_DEVICE);
    let send = |outer: Outer, text: &str| {
        let inner = note(MacAddr::BROADCAST, far.mac, text);
        let header = [&[8, 0, 0, 0][..], &(VNI << 8).to_be_bytes()].concat();
        wire.send(&outer.udp(4789, &[header, inner].concat()));
    };
    send(outer.as_stranger(), stranger);
    send(outer, "the other host");
    assert_eq!(count(&guest.until_note("the other host"), stranger), 0);
    assert_eq!(daemon.drops().get("unknown_endpoint"), Some(&1));
    daemon.stop();
}

/// RFC 6936: zero UDP checksums over IPv6 must be configured at both ends.
#[test]
fn nothing_is_delivered_when_only_one_end_accepts_zero_checksums_over_ipv6() {
    require_root!();
    for weft in [true, false] {
        let (lab, daemon) = start(6, Checksums { weft, kernel: !weft });
        let (near, far) = lab.ends();
        // In both directions, either the request or the reply has a checksum of zero, which one end
        // drops.
        for (from, to) in [(near, far), (far, near)] {
            let answer = traffic::ping_within(&from.netns, to.ip(4), Duration::from_secs(1));
            assert!(answer.is_err(), "weft with checksums: {weft}; {} was answered", from.name);
        }
        daemon.stop();
    }
}

/// Super-packets from the kernel are not segmented. The port of the guest has an existing
/// `interface`, which accepts frames longer than its MTU only with segmentation metadata.
#[test]
fn guests_talk_when_the_guest_of_weft_has_an_interface_port() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan").mtu(MTU).attachment(Attachment::Veth));
    kernel::attach(&lab, true);
    let daemon = lab.start(0);
    guests_talk(&lab);
    nothing_was_refused(&daemon);
    tried(&daemon, "Linux kernel VXLAN", "weft's guest behind a veth pair");
    daemon.stop();
}
