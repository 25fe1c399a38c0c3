//! Replies: their checksums and keys are correct, and none is generated when the standards forbid
//! it.

use crate::frames::{
    DST_V4, DST_V6, ETH_DST, ETH_SRC, Frame, Kind, SRC_V4, SRC_V6, Spec, spec, wrong_checksum,
};
use crate::set::key;
use etherparse::{
    ArpHardwareId, EtherType, Icmpv4Type, Icmpv6Type, NetHeaders, PacketHeaders, PayloadSlice,
    TransportHeader,
};
use flow::{DropReason, Field, FlowKey, Reply};
use packet::{Checksum, PacketBuf};
use proptest::prelude::*;

/// True when `reply` can be generated for a packet with `key`. The frames' addresses belong to
/// single hosts.
fn fits(reply: Reply, key: &FlowKey, payload: &[u8]) -> bool {
    let is = |field, value| key.get(field) == value;
    let is_v4 = is(Field::EthType, 0x0800);
    let is_v6 = is(Field::EthType, 0x86dd);
    let is_tcp = is(Field::IpProto, 6) && is(Field::IpFrag, 0);
    let is_error = !is(Field::IpFrag, 3)
        && (is_v4 && is(Field::IpProto, 1) && is(Field::IcmpType, 3)
            || is_v6 && is(Field::IpProto, 58) && is(Field::IcmpType, 1));
    match reply {
        Reply::Arp => is_v4,
        Reply::NeighbourAdvert { .. } => {
            is_v6 && is(Field::IpFrag, 0) && is(Field::IpProto, 58) && is(Field::IcmpType, 135)
        }
        Reply::NeighbourSolicit => is_v6,
        Reply::Icmp4 => is_v4 && !is_error,
        Reply::Icmp6 => is_v6 && !is_error,
        Reply::TcpReset => (is_v4 || is_v6) && is_tcp && key.get(Field::TcpFlags) & 4 == 0,
        Reply::SctpAbort => {
            let is_sctp = is(Field::IpProto, 132) && is(Field::IpFrag, 0);
            (is_v4 || is_v6) && is_sctp && may_be_aborted(payload)
        }
    }
}

/// True if the bytes are chunks that an ABORT answers: an INIT with a tag, or chunks that are not
/// about the end of an association.
fn may_be_aborted(bytes: &[u8]) -> bool {
    match bytes {
        [1, _, high, low, tag @ ..] if tag.len() >= 4 => {
            u16::from_be_bytes([*high, *low]) >= 20 && tag[..4] != [0; 4]
        }
        _ => has_chunks(bytes),
    }
}

/// True if the bytes are chunks of which none is an INIT or about the end of an association.
fn has_chunks(bytes: &[u8]) -> bool {
    match bytes {
        [1 | 6 | 11 | 14, _, _, _, ..] => false,
        [_, _, high, low, ..] => {
            let len = usize::from(*high) << 8 | usize::from(*low);
            let rest = bytes.get(len.div_ceil(4) * 4..).unwrap_or_default();
            len >= 4 && (rest.len() < 4 || has_chunks(rest))
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn reply_has_the_key_that_its_steps_make(spec in spec(), dad in prop::bool::weighted(0.3)) {
        let Frame { mut packet, .. } = spec.build();
        if dad && matches!(spec.kind, Kind::Solicit(false)) {
            let at = 14 + 4 * spec.tags + 8;
            packet.head_mut()[at..at + 16].fill(0);
        }
        let Some(original) = key(&packet) else { return Ok(()) };
        let unspecified_src = original.get(Field::Ip6Src) == 0;
        for reply in Reply::ALL {
            // No error is sent to an unspecified address.
            let expected = fits(reply, &original, &spec.payload)
                && !(unspecified_src && reply == Reply::Icmp6);
            let built = reply.build(&packet);
            let error = (!expected).then_some(DropReason::NotApplicable);
            prop_assert_eq!(built.as_ref().err().copied(), error, "{:?}", reply);
            let Ok(built) = built else { continue };
            let mut expected = original.clone();
            reply.key_edits(unspecified_src).iter().for_each(|edit| edit.apply(&mut expected));
            prop_assert_eq!(key(&built), Some(expected), "{:?}", reply);
            prop_assert_eq!(wrong_checksum(&built, &[]), None, "{:?}", reply);
            prop_assert_eq!(built.offload.checksum, Checksum::Verified);
            prop_assert!(built.headroom() >= PacketBuf::HEADROOM);
            prop_assert!(PacketHeaders::from_ethernet_slice(built.head()).is_ok());
        }
    }

    #[test]
    fn quoted_packet_is_as_on_a_wire(spec in spec()) {
        let Frame { packet, missing } = spec.build();
        let (reply, max_len) = if spec.is_v6 { (Reply::Icmp6, 1280) } else { (Reply::Icmp4, 576) };
        let Ok(built) = reply.build(&packet) else { return Ok(()) };
        let (l3, header) = (14 + 4 * spec.tags, if spec.is_v6 { 48 } else { 28 });
        prop_assert!(built.len() <= l3 + max_len);
        let quoted = &built.head()[l3 + header..];
        let whole = packet.len() - l3 - if spec.pieces { 0 } else { spec.padding };
        if packet.offload.gso.is_none() {
            prop_assert_eq!(quoted.len(), whole.min(max_len - header));
        }
        if quoted.len() < max_len - header {
            // The whole packet is quoted, so its checksums can be verified.
            let frame = PacketBuf::from_bytes(&[&built.head()[..l3], quoted].concat());
            prop_assert_eq!(wrong_checksum(&frame, &missing), None);
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0..4u8) {
        let mut bytes = bytes;
        // Most inputs pass the first checks.
        let version: &[u8] = if kind & 1 == 0 { &[8, 0, 0x45] } else { &[0x86, 0xdd, 0x60] };
        if let (true, Some(place)) = (kind < 3, bytes.get_mut(12..15)) {
            place.copy_from_slice(version);
        }
        let packet = PacketBuf::from_bytes(&bytes);
        for reply in Reply::ALL {
            if let Ok(built) = reply.build(&packet) {
                prop_assert!(key(&built).is_some());
            }
        }
    }
}

fn build(reply: Reply, spec: &Spec) -> PacketBuf {
    reply.build(&spec.build().packet).unwrap()
}

#[test]
fn arp_asks_for_the_destination() {
    let built = build(Reply::Arp, &Spec { tags: 2, ..Spec::of(Kind::Udp, false) });
    let headers = PacketHeaders::from_ethernet_slice(built.head()).unwrap();
    assert_eq!(built.head()[..12], [[0xff; 6], ETH_SRC].concat());
    assert_eq!(built.head()[12..20], [0x88, 0xa8, 0xb0, 0x64, 0x81, 0, 0x20, 0x0a]);
    let Some(NetHeaders::Arp(arp)) = headers.net else { panic!("{headers:?}") };
    assert_eq!((arp.hw_addr_type, arp.proto_addr_type), (ArpHardwareId::ETHERNET, EtherType::IPV4));
    assert_eq!((arp.sender_hw_addr(), arp.sender_protocol_addr()), (&ETH_SRC[..], &SRC_V4[..]));
    assert_eq!((arp.target_hw_addr(), arp.target_protocol_addr()), (&[0; 6][..], &DST_V4[..]));
    assert_eq!(arp.operation.0, 1);
}

#[test]
fn advertisement_says_who_has_the_target() {
    for router in [false, true] {
        let built = build(Reply::NeighbourAdvert { router }, &Spec::of(Kind::Solicit(true), true));
        assert_eq!(built.head()[..12], [ETH_SRC, ETH_DST].concat());
        assert_eq!(built.head()[21], 255);
        assert_eq!(built.head()[22..54], [DST_V6, SRC_V6].concat());
        let flags = if router { 0xe0 } else { 0x60 };
        assert_eq!(built.head()[54..56], [136, 0]);
        assert_eq!(built.head()[58..62], [flags, 0, 0, 0]);
        assert_eq!(built.head()[62..78], DST_V6);
        assert_eq!(built.head()[78..], [&[2, 1], &ETH_DST[..]].concat());
    }
}

#[test]
fn advertisement_goes_to_all_when_nobody_asked_by_address() {
    let mut packet = Spec::of(Kind::Solicit(false), true).build().packet;
    packet.head_mut()[22..38].fill(0);
    let built = Reply::NeighbourAdvert { router: false }.build(&packet).unwrap();
    assert_eq!(built.head()[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(built.head()[38..54], [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(built.head()[58], 0x20, "not solicited");
}

#[test]
fn advertisement_is_refused_for_a_solicitation_that_a_router_has_forwarded() {
    let mut packet = Spec::of(Kind::Solicit(false), true).build().packet;
    packet.head_mut()[21] = 254;
    let refused = Reply::NeighbourAdvert { router: false }.build(&packet);
    assert_eq!(refused.unwrap_err(), DropReason::NotApplicable);
}

#[test]
fn solicitation_goes_to_the_neighbours_of_the_destination() {
    let built = build(Reply::NeighbourSolicit, &Spec::of(Kind::Tcp, true));
    assert_eq!(built.head()[..12], [[0x33, 0x33, 0xff, 0x34, 0x56, 0x78], ETH_SRC].concat());
    let src = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 4, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55];
    let dst = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0x34, 0x56, 0x78];
    assert_eq!(built.head()[22..54], [src, dst].concat());
    assert_eq!((built.head()[21], built.head()[54]), (255, 135));
    assert_eq!(built.head()[62..78], DST_V6);
    assert_eq!(built.head()[78..], [&[1, 1], &ETH_SRC[..]].concat());
}

#[test]
fn icmp_error_quotes_the_packet() {
    for (is_v6, reply) in [(false, Reply::Icmp4), (true, Reply::Icmp6)] {
        let spec = Spec { partial: true, padding: 5, ..Spec::of(Kind::Udp, is_v6) };
        let built = build(reply, &spec);
        let complete = Spec { partial: false, padding: 0, ..spec }.build().packet;
        let headers = PacketHeaders::from_ethernet_slice(built.head()).unwrap();
        match headers.transport {
            Some(TransportHeader::Icmpv4(icmp)) => assert!(matches!(
                icmp.icmp_type,
                Icmpv4Type::DestinationUnreachable(code) if code.code_u8() == 1
            )),
            Some(TransportHeader::Icmpv6(icmp)) => assert!(matches!(
                icmp.icmp_type,
                Icmpv6Type::DestinationUnreachable(code) if code.code_u8() == 1
            )),
            other => panic!("{other:?}"),
        }
        let (PayloadSlice::Icmpv4(quoted) | PayloadSlice::Icmpv6(quoted)) = headers.payload else {
            panic!("{:?}", headers.payload)
        };
        assert_eq!(quoted, &complete.head()[14..]);
        let addresses = if is_v6 { 22..54 } else { 26..34 };
        assert_eq!(built.head()[addresses.clone()], complete.head()[addresses]);
    }
}

#[test]
fn error_about_a_super_packet_quotes_its_first_segment() {
    let spec = Spec { gso: Some(40), ..Spec::of(Kind::Tcp, false) };
    let built = build(Reply::Icmp4, &spec);
    let quoted = &built.head()[42..];
    assert_eq!((quoted.len(), &quoted[2..4]), (84, &[0, 84][..]));
    let frame = PacketBuf::from_bytes(&[&built.head()[..14], quoted].concat());
    assert_eq!(wrong_checksum(&frame, &[]), None);
}

/// Changes bytes of a frame without updating its checksums.
fn with(mut packet: PacketBuf, at: usize, bytes: &[u8]) -> PacketBuf {
    packet.head_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    packet
}

#[test]
fn errors_and_resets_are_refused_for_groups_and_for_no_single_host() {
    let tcp = |is_v6| Spec::of(Kind::Tcp, is_v6).build().packet;
    let fragment = Spec { fragment: Some(4), ..Spec::of(Kind::Tcp, true) }.build().packet;
    let v4 = [
        ("Ethernet group", with(tcp(false), 0, &[1])),
        ("from nobody", with(tcp(false), 26, &[0; 4])),
        ("from a group", with(tcp(false), 26, &[224])),
        ("to a group", with(tcp(false), 30, &[239])),
        ("to all", with(tcp(false), 30, &[255; 4])),
        ("later fragment", with(tcp(false), 20, &[0, 9])),
    ];
    let v6 = [
        ("Ethernet group", with(tcp(true), 0, &[0x33])),
        ("from nobody", with(tcp(true), 22, &[0; 16])),
        ("from a group", with(tcp(true), 22, &[0xff])),
        ("to a group", with(tcp(true), 38, &[0xff])),
        ("later fragment", with(fragment, 57, &[9])),
    ];
    let cases = v4.iter().map(|case| (Reply::Icmp4, case));
    for (reply, (what, packet)) in cases.chain(v6.iter().map(|case| (Reply::Icmp6, case))) {
        for reply in [reply, Reply::TcpReset] {
            let refused = reply.build(packet).map(|_| ());
            assert_eq!(refused, Err(DropReason::NotApplicable), "{reply:?} {what}");
        }
    }
}

#[test]
fn reset_answers_as_the_closed_state_does() {
    // Flags of the segment; sequence number, acknowledgement number and flags of the reset. The
    // segment has sequence number 1, acknowledges 2, and carries 100 bytes.
    let cases = [
        ("ACK", 0x10, (2, 0, 0x04)),
        ("SYN, ACK", 0x12, (2, 0, 0x04)),
        ("SYN", 0x02, (0, 102, 0x14)),
        ("FIN", 0x01, (0, 102, 0x14)),
        ("none", 0x00, (0, 101, 0x14)),
    ];
    for (name, tcp_flags, (seq, ack, flags)) in cases {
        for is_v6 in [false, true] {
            let built = build(Reply::TcpReset, &Spec { tcp_flags, ..Spec::of(Kind::Tcp, is_v6) });
            let headers = PacketHeaders::from_ethernet_slice(built.head()).unwrap();
            let Some(TransportHeader::Tcp(tcp)) = headers.transport else { panic!("{name}") };
            assert_eq!((tcp.source_port, tcp.destination_port), (80, 12345), "{name}");
            assert_eq!((tcp.sequence_number, tcp.acknowledgment_number), (seq, ack), "{name}");
            let l4 = if is_v6 { 54 } else { 34 };
            assert_eq!(
                built.head()[l4 + 12..],
                [&[0x50, flags, 0, 0], &built.head()[l4 + 16..]].concat()
            );
            assert_eq!(built.len(), l4 + 20, "{name}");
        }
    }
    let packet = Spec { tcp_flags: 0x14, ..Spec::of(Kind::Tcp, false) }.build().packet;
    assert_eq!(Reply::TcpReset.build(&packet).unwrap_err(), DropReason::NotApplicable);
}
