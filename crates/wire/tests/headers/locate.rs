//! The walk from Ethernet to the transport header.

use etherparse::{LaxSlicedPacket, NetSlice, PacketBuilder, SlicedPacket};
use proptest::prelude::*;
use wire::ipv6::FragmentHeader;
use wire::{
    EtherType, Fragment, Located, ParseErrorKind, Protocol, snap, transport_offset,
    transport_offset_in,
};

use crate::refuses_every_truncation;

fn ethernet(tail: &[&[u8]]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &tail.concat()].concat()
}

/// An IPv4 header without options before `payload` bytes, with the given flags and fragment offset.
fn ipv4(protocol: u8, fragment: u16, payload: usize) -> Vec<u8> {
    let len = ((20 + payload) as u16).to_be_bytes();
    let [a, b] = fragment.to_be_bytes();
    vec![0x45, 0, len[0], len[1], 0, 0, a, b, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]
}

fn ipv6(next: u8, payload: usize) -> Vec<u8> {
    let len = (payload as u16).to_be_bytes();
    [&[0x60, 0, 0, 0, len[0], len[1], next, 64][..], &[1; 32]].concat()
}

#[test]
fn ipv4_tcp_is_located_behind_two_tags() {
    let tags = [0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 0x08, 0];
    let frame = ethernet(&[&tags, &ipv4(6, 0x4000, 20), &[0; 20]]);
    let expected = Located {
        vlan_tags: 2,
        ethertype: EtherType::IPV4,
        l3: 22,
        l4: Some(42),
        protocol: Protocol::TCP,
        fragment: Fragment::Whole,
        l3_end: 62,
    };
    assert_eq!(transport_offset(&frame), Ok(expected));
    refuses_every_truncation(&frame, transport_offset);
}

#[test]
fn ipv4_tcp_is_located_behind_a_snap_header() {
    for (tags, l3) in [(&[][..], 22), (&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2], 30)] {
        // The length covers four bytes of padding.
        let snap = [0, 52, 0xaa, 0xaa, 3, 0, 0, 0, 0x08, 0];
        let frame = ethernet(&[tags, &snap, &ipv4(6, 0x4000, 20), &[0; 24]]);
        let located = transport_offset(&frame).unwrap();
        assert!(located.has_snap() && located.is_ip());
        assert_eq!((located.l3, located.l4, located.l3_end), (l3, Some(l3 + 20), l3 + 40));
        assert_eq!(located.type_offset(), l3 - 10);
        assert!((l3..frame.len()).all(|len| transport_offset(&frame[..len]).is_err()));
        let mut shorter = frame.clone();
        snap::set_payload_len(&mut shorter, l3, 40);
        assert_eq!(transport_offset(&shorter), Ok(located));
        assert_eq!(shorter[located.type_offset()..][..2], [0, 48]);
    }
}

#[test]
fn ip_length_is_trusted_not_frame_length() {
    let padding = [0; 26];
    let v4 = transport_offset(&ethernet(&[&[0x08, 0], &ipv4(17, 0, 0), &padding])).unwrap();
    assert_eq!((v4.l4, v4.l3_end), (Some(34), 34));
    let v6 =
        transport_offset(&ethernet(&[&[0x86, 0xdd], &ipv6(17, 8), &[0; 8], &padding])).unwrap();
    assert_eq!((v6.l4, v6.l3_end), (Some(54), 62));
}

#[test]
fn later_fragments_have_no_transport_header() {
    let later = transport_offset(&ethernet(&[&[0x08, 0], &ipv4(17, 0x2001, 8), &[0; 8]])).unwrap();
    assert_eq!((later.l4, later.fragment, later.protocol), (None, Fragment::Later, Protocol::UDP));
    let first = transport_offset(&ethernet(&[&[0x08, 0], &ipv4(17, 0x2000, 8), &[0; 8]])).unwrap();
    assert_eq!((first.l4, first.fragment), (Some(34), Fragment::First));

    let header = |offset_bytes| {
        FragmentHeader { offset_bytes, more: true, ident: 1 }.to_bytes(Protocol::TCP)
    };
    let later = transport_offset(&ethernet(&[&[0x86, 0xdd], &ipv6(44, 8), &header(8)])).unwrap();
    assert_eq!((later.l4, later.fragment, later.protocol), (None, Fragment::Later, Protocol::TCP));
    let first = transport_offset(&ethernet(&[&[0x86, 0xdd], &ipv6(44, 8), &header(0)])).unwrap();
    assert_eq!((first.l4, first.fragment), (Some(62), Fragment::First));
}

#[test]
fn frames_without_ip_have_no_transport_header() {
    for (tail, l3, ethertype) in [
        (&[0x08, 0x06, 1, 2, 3][..], 14, EtherType::ARP),
        (&[0x00, 0x03, 0xaa, 0xaa, 3], 14, EtherType(3)),
        (&[0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 0x08, 0], 22, EtherType::VLAN),
    ] {
        let frame = ethernet(&[tail]);
        let located = transport_offset(&frame).unwrap();
        assert_eq!((located.l3, located.ethertype, located.l4), (l3, ethertype, None));
        assert_eq!((located.l3_end, located.protocol), (frame.len(), Protocol::NO_NEXT_HEADER));
    }
    let nothing_follows = transport_offset(&ethernet(&[&[0x86, 0xdd], &ipv6(59, 0)])).unwrap();
    assert_eq!(nothing_follows.l4, None);
}

#[test]
fn frame_is_refused_when_an_ip_header_is_malformed() {
    let bad_version = ethernet(&[&[0x86, 0xdd], &ipv4(6, 0, 20), &[0; 40]]);
    assert_eq!(transport_offset(&bad_version).unwrap_err().kind, ParseErrorKind::BadVersion(4));
    let mut zero_len = ethernet(&[&[0x08, 0], &ipv4(6, 0, 20), &[0; 20]]);
    zero_len[16..18].fill(0);
    assert_eq!(transport_offset(&zero_len).unwrap_err().kind, ParseErrorKind::BadLength(0));
}

#[test]
fn packet_may_end_behind_the_bytes_at_hand() {
    for head in [
        ethernet(&[&[0x08, 0], &ipv4(6, 0, 3000), &[0; 20]]),
        ethernet(&[&[0x86, 0xdd], &ipv6(6, 3000), &[0; 20]]),
    ] {
        let end = head.len() - 20 + 3000;
        for frame_len in [end, end + 6] {
            let located = transport_offset_in(&head, frame_len).unwrap();
            assert_eq!((located.l4, located.l3_end), (Some(head.len() - 20), end));
        }
        assert!(transport_offset_in(&head, end - 1).is_err());
        assert_eq!(transport_offset_in(&head, 0), transport_offset(&head));
    }
}

#[test]
fn frame_is_refused_when_a_hop_by_hop_header_is_not_the_first() {
    for offset_bytes in [0, 8] {
        let header = FragmentHeader { offset_bytes, more: true, ident: 1 };
        let header = header.to_bytes(Protocol::HOP_BY_HOP);
        let frame = ethernet(&[&[0x86, 0xdd], &ipv6(44, 16), &header, &[6, 0, 0, 0, 0, 0, 0, 0]]);
        let error = transport_offset(&frame).unwrap_err();
        assert_eq!(
            error.to_string(),
            "IPv6: forbidden value of hop-by-hop header after another one"
        );
    }
}

/// The invariant that callers rely on to slice the frame.
fn is_ordered(located: &Located, frame: &[u8]) -> bool {
    let l4 = located.l4.unwrap_or(located.l3);
    14 <= located.l3 && located.l3 <= l4 && l4 <= located.l3_end && located.l3_end <= frame.len()
}

proptest! {
    #[test]
    fn offsets_are_ordered_for_any_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..120), shape in 0_usize..7,
    ) {
        // Random bytes are almost never IP, so some of the inputs get a valid beginning.
        let mut frame = bytes;
        let look: &[u8] = [
            &[][..], &[0x08, 0, 0x45, 0, 0, 40], &[0x08, 0, 0x46],
            &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 60, 0], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 60, 44],
            &[0x81, 0, 0, 1, 0x08, 0, 0x45, 0, 0, 60],
            &[0, 60, 0xaa, 0xaa, 3, 0, 0, 0, 0x08, 0, 0x45, 0, 0, 40],
        ][shape];
        if let Some(place) = frame.get_mut(12..12 + look.len()) {
            place.copy_from_slice(look);
        }
        if let Ok(located) = transport_offset(&frame) {
            prop_assert!(is_ordered(&located, &frame), "{located:?}");
        }
    }

    #[test]
    fn locations_agree_with_etherparse(
        v6: bool, tags in 0_usize..3, tcp: bool, padding in 0_usize..30,
        payload in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let (builder, vid) = (PacketBuilder::ethernet2([2; 6], [4; 6]), 7.try_into().unwrap());
        let mut frame = Vec::new();
        macro_rules! ip {
            ($b:expr) => {
                if v6 {
                    $b.ipv6([1; 16], [2; 16], 9)
                } else {
                    $b.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9)
                }
            };
        }
        let ip = match tags {
            0 => ip!(builder),
            1 => ip!(builder.single_vlan(vid)),
            _ => ip!(builder.double_vlan(vid, vid)),
        };
        if tcp {
            ip.tcp(1, 2, 3, 4).write(&mut frame, &payload).unwrap()
        } else {
            ip.udp(1, 2).write(&mut frame, &payload).unwrap()
        }
        let end = frame.len();
        frame.resize(end + padding, 0);

        let located = transport_offset(&frame).unwrap();
        let theirs = SlicedPacket::from_ethernet(&frame).unwrap();
        let l4_len = if tcp { 20 } else { 8 } + payload.len();
        prop_assert_eq!(usize::from(located.vlan_tags), tags);
        prop_assert_eq!((located.l3_end, located.l4), (end, Some(end - l4_len)));
        let ip_payload = match theirs.net.unwrap() {
            NetSlice::Ipv4(ip) => ip.payload().payload,
            NetSlice::Ipv6(ip) => ip.payload().payload,
            NetSlice::Arp(_) => unreachable!("an IP packet was built"),
        };
        prop_assert_eq!(&frame[located.l4.unwrap()..located.l3_end], ip_payload);
        prop_assert!(LaxSlicedPacket::from_ethernet(&frame).is_ok());
    }
}
