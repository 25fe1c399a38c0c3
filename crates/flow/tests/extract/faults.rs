//! Published faults of other switches, and frames that have no key.

use crate::frame::{
    ARP, Frame, IPV4, IPV6, TARGET, arp, ethernet, extension, icmp, in_snap, ipv4, ipv6, neighbour,
    sctp, tcp, udp,
};
use crate::{PORT, key_of};
use flow::{DropReason, Field, extract};
use packet::PacketBuf;

fn error(frame: &[u8]) -> String {
    key_of(frame).map_or_else(|error| error.to_string(), |key| format!("{key:?}"))
}

/// Open vSwitch, CVE-2020-35498: the padding of a short frame was parsed as part of the packet.
#[test]
fn padding_is_not_read_when_the_transport_header_is_short() {
    // The missing bytes of the header exist, but after the end of the packet.
    let table = [
        (
            ipv4(6, 0, &[], Frame::default().read([0x9c, 0x40, 1, 0xbb])),
            "TCP: 20 bytes needed, 4 there",
        ),
        (
            ipv4(6, 0, &[], Frame::default().read(&tcp(2, &[]).bytes[..19])),
            "TCP: 20 bytes needed, 19 there",
        ),
        (ipv4(17, 0, &[], Frame::default()), "UDP: 8 bytes needed, 0 there"),
        (
            ipv4(17, 0, &[], Frame::default().read([0x9c, 0x40, 0, 53])),
            "UDP: 8 bytes needed, 4 there",
        ),
        (
            ipv4(132, 0, &[], Frame::default().read(&sctp().bytes[..11])),
            "SCTP: 12 bytes needed, 11 there",
        ),
        (ipv4(1, 0, &[], Frame::default().read([8, 0])), "ICMP: 8 bytes needed, 2 there"),
    ];
    for (ip, expected) in table {
        let frame = ethernet(&[], IPV4).then(ip).payload([0x5a; 40]);
        assert_eq!(error(&frame.bytes), expected);
    }
    let table = [
        (ipv6(58, 255, Frame::default().read([135, 0])), "ICMPv6: 8 bytes needed, 2 there"),
        (ipv6(58, 255, icmp(135, 0)), "ND: 24 bytes needed, 8 there"),
        (
            ipv6(58, 255, icmp(136, 0).read(&TARGET.to_be_bytes()[..15])),
            "ND: 24 bytes needed, 23 there",
        ),
        (ipv6(58, 255, neighbour(135, &[1, 1, 2, 0])), "ND: impossible length 8"),
        (
            ipv6(0, 64, Frame::default().read([6, 1, 0, 0, 0, 0, 0, 0])),
            "IPv6: 56 bytes needed, 48 there",
        ),
        (ipv6(44, 64, Frame::default().read([6, 0, 0, 0])), "IPv6: 48 bytes needed, 44 there"),
    ];
    for (ip, expected) in table {
        let frame = ethernet(&[], IPV6).then(ip).payload([0x5a; 40]);
        assert_eq!(error(&frame.bytes), expected);
    }
    // ND options end where the packet ends.
    let frame = ethernet(&[], IPV6).then(ipv6(58, 255, neighbour(135, &[])));
    let padded = frame.clone().payload([1, 1, 2, 0, 0, 0, 0, 9]);
    assert_eq!(key_of(&padded.bytes), key_of(&frame.bytes));
    assert!(key_of(&frame.bytes).is_ok());
}

/// Open vSwitch, CVE-2023-1668: a megaflow for protocol 0 matched every other protocol.
#[test]
fn protocol_0_is_a_protocol_in_ipv4_and_never_the_last_in_ipv6() {
    let proto = |frame: Frame| key_of(&frame.bytes).map(|key| key.get(Field::IpProto));
    let v4 = ethernet(&[], IPV4).then(ipv4(0, 0, &[], tcp(2, &[])));
    assert_eq!(proto(v4), Ok(0));
    let hop_by_hop = || extension(0, 17, 0).then(udp(0));
    assert_eq!(proto(ethernet(&[], IPV6).then(ipv6(0, 64, hop_by_hop()))), Ok(17));
    for fragment in [0, 1, 8] {
        let rest = extension(44, 0, fragment).then(hop_by_hop());
        let frame = ethernet(&[], IPV6).then(ipv6(44, 64, rest));
        assert_eq!(
            error(&frame.bytes),
            "IPv6: forbidden value of hop-by-hop header after another one"
        );
    }
}

/// Open vSwitch, CVE-2023-5366: packets evaded rules on the target of neighbour discovery.
#[test]
fn nd_target_is_extracted_whenever_a_host_would_read_it() {
    let target = |rest| {
        let frame = ethernet(&[], IPV6).then(rest);
        key_of(&frame.bytes).map(|key| key.get(Field::NdTarget))
    };
    assert_eq!(target(ipv6(58, 255, neighbour(136, &[]))), Ok(TARGET));
    for kind in [0, 43, 60, 51, 44] {
        let rest = extension(kind, 58, 0).then(neighbour(136, &[]));
        assert_eq!(target(ipv6(kind, 255, rest)), Ok(TARGET), "behind {kind}");
    }
    // A message with a target and invalid options has no key; a key without the target would evade
    // rules.
    for (options, expected) in [
        (&[14, 0, 0, 0, 0, 0, 0, 0][..], "ND: impossible length 0"),
        (&[2, 2, 0, 0, 0, 0, 0, 0], "ND: impossible length 16"),
        (&[1], "ND: impossible length 1"),
        (
            &[2, 1, 2, 0, 0, 0, 0, 1, 2, 1, 2, 0, 0, 0, 0, 1],
            "ND: forbidden value of repeated link-layer address",
        ),
        (
            &[2, 1, 0, 0, 0, 0, 0, 0, 2, 1, 2, 0, 0, 0, 0, 1],
            "ND: forbidden value of repeated link-layer address",
        ),
    ] {
        let frame = ethernet(&[], IPV6).then(ipv6(58, 255, neighbour(136, options)));
        assert_eq!(error(&frame.bytes), expected);
    }
}

#[test]
fn frame_with_an_unread_nd_option_has_no_key() {
    let option = [2, 1, 2, 0, 0, 0, 0, 1];
    let frame = ethernet(&[], IPV6).then(ipv6(58, 255, neighbour(136, &option)));
    let mut packet = PacketBuf::from_bytes(&frame.bytes);
    let options = frame.len() - option.len();
    packet.set_ranges(0..options, std::iter::once(options..frame.len()));
    let error = extract(&packet, PORT, None).unwrap_err();
    assert_eq!(error.to_string(), "ND: 32 bytes needed, 24 there");
}

/// CVE-2021-27853: stacked priority tags in front of a packet evaded rules on IP and ARP. Hosts
/// remove all of them.
#[test]
fn frame_has_no_key_when_a_third_tag_hides_its_packet() {
    let reason = |frame: &Frame| key_of(&frame.bytes).map_err(DropReason::of_invalid_frame);
    for tpid in [0x8100, 0x88a8, 0x9100] {
        for tags in 0..=5 {
            let tags = vec![(tpid, 0); tags];
            let telnet = || ipv4(6, 0, &[], tcp(2, &[]));
            let frames = [
                ethernet(&tags, IPV4).then(telnet()),
                in_snap(&tags, IPV4, telnet(), 0),
                ethernet(&tags, ARP).then(arp(1)),
            ];
            for frame in frames {
                let reason = reason(&frame);
                let is_shown = if tags.len() <= 2 {
                    reason
                        .is_ok_and(|key| key.get(Field::IpProto) == 6 || key.get(Field::ArpOp) == 1)
                } else {
                    reason == Err(DropReason::TagsTooDeep)
                };
                assert!(is_shown, "{tpid:#x}, {} tags", tags.len());
            }
        }
        let tag = Frame::default().read([0, 0, 8, 0]).then(ipv4(6, 0, &[], tcp(2, &[])));
        let inside = in_snap(&[], tpid, tag, 0);
        assert_eq!(reason(&inside), Err(DropReason::TagsTooDeep), "behind a SNAP header");
        assert_eq!(error(&inside.bytes), "VLAN: more headers than are parsed");
    }
}

/// CVE-2021-27861 and CVE-2021-27862: SNAP headers after a wrong length, which some hosts ignore,
/// evaded rules.
#[test]
fn frame_with_snap_has_no_key_when_its_length_is_wrong() {
    let of = |ethertype, packet: Frame, length: u16| {
        let mut frame = in_snap(&[], ethertype, packet, 0).payload([0x5a; 4]).bytes;
        frame[12..14].copy_from_slice(&length.to_be_bytes());
        error(&frame)
    };
    let telnet = || ipv4(6, 0, &[], tcp(2, &[]));
    for (length, expected) in [
        (0, "SNAP: impossible length 0"),
        (7, "SNAP: impossible length 7"),
        (8, "IPv4: 40 bytes needed, 0 there"),
        (47, "IPv4: 40 bytes needed, 39 there"),
        (53, "SNAP: 53 bytes needed, 52 there"),
        (0x5ff, "SNAP: 1535 bytes needed, 52 there"),
    ] {
        assert_eq!(of(IPV4, telnet(), length), expected);
    }
    assert_eq!(of(IPV6, ipv6(6, 64, tcp(2, &[])), 67), "IPv6: 60 bytes needed, 59 there");
    assert_eq!(of(ARP, arp(1), 35), "ARP: 28 bytes needed, 27 there");
    let frame = in_snap(&[], IPV4, telnet(), 0);
    for len in 22..frame.len() {
        assert!(key_of(&frame.bytes[..len]).is_err(), "{len} bytes");
    }
}

/// Payload of later fragments was taken for ports.
#[test]
fn later_fragments_have_no_transport_header_whatever_their_payload_looks_like() {
    let payloads = [
        (6, tcp(2, &[])),
        (17, udp(0)),
        (132, sctp()),
        (1, icmp(8, 0)),
        (58, neighbour(135, &[1, 1, 2, 0, 0, 0, 0, 1])),
    ];
    for (protocol, payload) in payloads {
        for bytes in [payload.bytes.clone(), payload.bytes[..1].to_vec(), vec![]] {
            let payload = Frame::default().payload(bytes);
            let v4 = ipv4(protocol, 0x2001, &[], payload.clone());
            let v6 = ipv6(44, 255, extension(44, protocol, 8).then(payload));
            for frame in [ethernet(&[], IPV4).then(v4), ethernet(&[], IPV6).then(v6)] {
                let key = key_of(&frame.bytes).unwrap();
                assert_eq!((key.get(Field::IpFrag), key.get(Field::IpProto)), (3, protocol.into()));
                assert_eq!(key.words()[flow::STAGES[3].clone()], [0; 5], "{key:?}");
            }
        }
    }
    // A first fragment with a truncated header is refused (RFC 1858, RFC 7112).
    let tiny = ipv4(6, 0x2000, &[], Frame::default().read(&tcp(2, &[]).bytes[..8]));
    assert_eq!(error(&ethernet(&[], IPV4).then(tiny).bytes), "TCP: 20 bytes needed, 8 there");
}

/// ARP operations above 255 were taken for 0, and packets for other hardware types had no
/// addresses.
#[test]
fn arp_operation_has_16_bits_and_other_hardware_is_refused() {
    let op = |operation| {
        let frame = ethernet(&[], ARP).then(arp(operation));
        key_of(&frame.bytes).map(|key| key.get(Field::ArpOp))
    };
    assert_eq!((op(0x0101), op(0x0100), op(1)), (Ok(0x0101), Ok(0x0100), Ok(1)));
    for (at, value, expected) in [
        (1, 6, "ARP: forbidden value of hardware type"),
        (3, 6, "ARP: forbidden value of protocol type"),
        (4, 8, "ARP: forbidden value of address lengths"),
        (5, 16, "ARP: forbidden value of address lengths"),
    ] {
        let mut frame = ethernet(&[], ARP).then(arp(1)).payload([0; 18]).bytes;
        frame[14 + at] = value;
        assert_eq!(error(&frame), expected);
    }
}

#[test]
fn frame_has_no_key_when_any_header_is_cut() {
    let icmp6 = |options| ipv6(58, 255, neighbour(135, options));
    let tags = [(0x88a8, 1), (0x8100, 2)];
    for frame in [
        ethernet(&tags, IPV4).then(ipv4(6, 0, &[1; 8], tcp(2, &[1; 12]))),
        ethernet(&tags, IPV4).then(ipv4(17, 0, &[], udp(0))),
        ethernet(&[], IPV6).then(ipv6(
            0,
            64,
            extension(0, 60, 0).then(extension(60, 6, 0)).then(tcp(2, &[])),
        )),
        ethernet(&[], IPV6).then(icmp6(&[1, 1, 2, 0, 0, 0, 0, 1])),
        ethernet(&tags, ARP).then(arp(1)),
    ] {
        assert!(key_of(&frame.bytes).is_ok());
        for len in 0..frame.len() {
            assert!(key_of(&frame.bytes[..len]).is_err(), "{len} of {:02x?}", frame.bytes);
        }
    }
}

#[test]
fn frame_has_no_key_when_a_header_contradicts_itself() {
    let v4 = ethernet(&[], IPV4).then(ipv4(6, 0, &[], tcp(2, &[]))).bytes;
    let v6 = ethernet(&[], IPV6).then(ipv6(6, 64, tcp(2, &[]))).bytes;
    for (frame, at, value, expected) in [
        (&v4, 14, 0x65, "IPv4: unknown version 6"),
        (&v4, 14, 0x44, "IPv4: impossible length 16"),
        (&v4, 17, 19, "IPv4: impossible length 19"),
        (&v4, 17, 41, "IPv4: 41 bytes needed, 40 there"),
        (&v4, 46, 0x40, "TCP: impossible length 16"),
        (&v4, 46, 0x60, "TCP: 24 bytes needed, 20 there"),
        (&v6, 14, 0x45, "IPv6: unknown version 4"),
        (&v6, 19, 21, "IPv6: 61 bytes needed, 60 there"),
    ] {
        let mut frame = frame.clone();
        frame[at] = value;
        assert_eq!(error(&frame), expected);
    }
    let chain = (0..13)
        .fold(tcp(2, &[]), |rest, n| extension(60, if n == 0 { 6 } else { 60 }, 0).then(rest));
    let endless = ethernet(&[], IPV6).then(ipv6(60, 64, chain));
    assert_eq!(error(&endless.bytes), "IPv6: forbidden value of number of extension headers");
}
