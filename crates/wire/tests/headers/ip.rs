//! IPv4 and IPv6.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{Ipv4Header, Ipv6Header};
use proptest::prelude::*;
use wire::ipv6::{FragmentHeader, MAX_EXTENSION_HEADERS, Upper};
use wire::{
    Fragment, Ipv4Options, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, Layer, ParseError,
    ParseErrorKind, Protocol,
};

use crate::{dirty, refuses_every_truncation};

/// A UDP packet of 32 bytes with one router-alert option (RFC 2113), DF, and TTL 64. The checksum
/// was computed by hand.
const V4: [u8; 32] = [
    0x46, 0xb8, 0x00, 0x20, 0x12, 0x34, 0x40, 0x00, 0x40, 0x11, 0x7e, 0xda, 10, 0, 0, 1, 10, 0, 0,
    2, 0x94, 0x04, 0x00, 0x00, 1, 2, 3, 4, 5, 6, 7, 8,
];

fn v4_repr() -> Ipv4Repr<'static> {
    Ipv4Repr {
        tos: 0xb8,
        payload_len: 8,
        ident: 0x1234,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: 64,
        protocol: Protocol::UDP,
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: Ipv4Addr::new(10, 0, 0, 2),
        options: Ipv4Options::new(&[0x94, 0x04, 0x00, 0x00]).unwrap(),
    }
}

fn kind(error: ParseError) -> ParseErrorKind {
    error.kind
}

#[test]
fn ipv4_is_read_and_emitted_as_the_rfc_lays_it_out() {
    let packet = Ipv4Packet::new_checked(&V4[..]).unwrap();
    assert_eq!(Ipv4Repr::parse(&packet), Ok(v4_repr()));
    assert_eq!(packet.payload(), [1, 2, 3, 4, 5, 6, 7, 8]);
    let mut bytes = dirty(26);
    v4_repr().emit(&mut Ipv4Packet::new_unchecked(&mut bytes));
    assert_eq!(bytes[..24], V4[..24]);
    assert_eq!(bytes[24..], [0xa5, 0xa5], "nothing behind the header is touched");
}

#[test]
fn ipv4_length_is_trusted_not_frame_length() {
    let padded = [&V4[..], &[0; 14]].concat();
    let packet = Ipv4Packet::new_checked(&padded).unwrap();
    assert_eq!(packet.payload(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(packet.payload_len(), 8);
}

#[test]
fn ipv4_is_refused_when_truncated() {
    refuses_every_truncation(&V4, Ipv4Packet::new_checked);
    refuses_every_truncation(&V4[..24], Ipv4Packet::new_header);
}

#[test]
fn ipv4_is_refused_when_lengths_or_version_are_wrong() {
    let with = |at: usize, value: u8| {
        let mut bytes = V4;
        bytes[at] = value;
        Ipv4Packet::new_checked(bytes).map(|_| ()).map_err(kind)
    };
    assert_eq!(with(0, 0x66), Err(ParseErrorKind::BadVersion(6)));
    assert_eq!(with(0, 0x44), Err(ParseErrorKind::BadLength(16)), "header shorter than 20");
    assert_eq!(with(3, 23), Err(ParseErrorKind::BadLength(23)), "total shorter than the header");
    assert_eq!(with(3, 33), Err(ParseErrorKind::Truncated { needed: 33, have: 32 }));
}

#[test]
fn ipv4_repr_is_refused_when_checksum_is_wrong() {
    let mut bytes = V4;
    bytes[8] -= 1;
    let packet = Ipv4Packet::new_checked(&bytes).unwrap();
    assert_eq!(Ipv4Repr::parse(&packet).map_err(kind), Err(ParseErrorKind::BadChecksum));
}

#[test]
fn ipv4_fragments_are_told_apart() {
    for (word, fragment, offset) in [
        (0x4000_u16, Fragment::Whole, 0),
        (0x2000, Fragment::First, 0),
        (0x2003, Fragment::Later, 24),
        (0x0003, Fragment::Later, 24),
    ] {
        let mut bytes = V4;
        bytes[6..8].copy_from_slice(&word.to_be_bytes());
        let packet = Ipv4Packet::new_checked(bytes).unwrap();
        assert_eq!((packet.fragment(), packet.fragment_offset_bytes()), (fragment, offset));
        assert_eq!(packet.dont_fragment(), word & 0x4000 != 0);
    }
}

#[test]
fn ipv4_fragment_is_refused_when_it_ends_beyond_the_datagram() {
    let mut bytes = dirty(200);
    let repr = Ipv4Repr { fragment_offset_bytes: 65_528, payload_len: 100, ..v4_repr() };
    repr.emit(&mut Ipv4Packet::new_unchecked(&mut bytes));
    let packet = Ipv4Packet::new_checked(&bytes).unwrap();
    assert_eq!(Ipv4Repr::parse(&packet).map_err(kind), Err(ParseErrorKind::BadLength(65_652)));
}

#[test]
fn ipv4_checksum_stays_right_when_the_tos_is_set() {
    let mut bytes = V4;
    let mut packet = Ipv4Packet::new_checked(&mut bytes[..]).unwrap();
    packet.set_tos(0x03);
    assert!(packet.verify_checksum());
    assert_eq!((packet.tos(), packet.protocol()), (3, Protocol::UDP));
}

#[test]
fn ipv4_options_are_refused_when_too_long_or_ragged() {
    assert_eq!(Ipv4Options::new(&[0; 44]).map_err(kind), Err(ParseErrorKind::BadLength(44)));
    assert_eq!(Ipv4Options::new(&[0; 3]).map_err(kind), Err(ParseErrorKind::BadLength(3)));
}

const V6_SRC: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const V6_DST: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// An IPv6 packet of the given next header and payload.
fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16).to_be_bytes();
    [&[0x6b, 0x81, 0x23, 0x45, len[0], len[1], next, 64], &V6_SRC[..], &V6_DST, payload].concat()
}

fn v6_repr() -> Ipv6Repr {
    Ipv6Repr {
        traffic_class: 0xb8,
        flow_label: 0x12345,
        payload_len: 4,
        next_header: Protocol::UDP,
        hop_limit: 64,
        src: V6_SRC.into(),
        dst: V6_DST.into(),
    }
}

#[test]
fn ipv6_is_read_and_emitted_as_the_rfc_lays_it_out() {
    let expected = v6(17, &[1, 2, 3, 4]);
    let packet = Ipv6Packet::new_checked(&expected).unwrap();
    assert_eq!(Ipv6Repr::parse(&packet), Ok(v6_repr()));
    let mut bytes = dirty(44);
    v6_repr().emit(&mut Ipv6Packet::new_unchecked(&mut bytes));
    assert_eq!((&bytes[..40], &bytes[40..]), (&expected[..40], &[0xa5; 4][..]));
}

#[test]
fn ipv6_length_is_trusted_not_frame_length() {
    let padded = [&v6(17, &[1, 2, 3, 4])[..], &[0; 6]].concat();
    assert_eq!(Ipv6Packet::new_checked(&padded).unwrap().payload(), [1, 2, 3, 4]);
}

#[test]
fn ipv6_is_refused_when_truncated_or_of_another_version() {
    refuses_every_truncation(&v6(17, &[1, 2, 3, 4]), Ipv6Packet::new_checked);
    refuses_every_truncation(&v6(17, &[]), Ipv6Packet::new_header);
    let mut bytes = v6(17, &[]);
    bytes[0] = 0x4b;
    assert_eq!(Ipv6Packet::new_checked(&bytes).map_err(kind), Err(ParseErrorKind::BadVersion(4)));
}

#[test]
fn ipv6_repr_is_refused_when_source_is_multicast() {
    let mut bytes = v6(17, &[]);
    bytes[8] = 0xff;
    let packet = Ipv6Packet::new_checked(&bytes).unwrap();
    assert_eq!(Ipv6Repr::parse(&packet), Err(ParseError::field(Layer::Ipv6, "source address")));
}

#[test]
fn ipv6_traffic_class_is_set_without_other_fields() {
    let mut bytes = v6(17, &[]);
    let mut packet = Ipv6Packet::new_unchecked(&mut bytes);
    packet.set_traffic_class(0x03);
    let expected = Ipv6Repr { traffic_class: 3, payload_len: 0, ..v6_repr() };
    assert_eq!(Ipv6Repr::parse(&packet), Ok(expected));
    assert_eq!(bytes[0] >> 4, 6);
}

/// Hop-by-hop, routing (16 bytes), authentication (16) and destination options, then TCP at offset
/// 40 + 8 + 16 + 16 + 8.
fn extension_headers() -> Vec<u8> {
    let mut chain = vec![43, 0, 1, 4, 0, 0, 0, 0];
    chain.extend([51, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    chain.extend([60, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 9, 9, 9, 9]);
    chain.extend([6, 0, 1, 4, 0, 0, 0, 0]);
    chain
}

#[test]
fn ipv6_extension_headers_are_walked_to_the_upper_layer() {
    let bytes = v6(0, &[&extension_headers()[..], &[7; 20]].concat());
    let upper = Ipv6Packet::new_checked(&bytes).unwrap().upper();
    assert_eq!(upper, Ok(Upper { protocol: Protocol::TCP, offset: 88, fragment: None }));
}

#[test]
fn ipv6_extension_header_is_refused_when_it_reaches_beyond_the_payload() {
    let chain = extension_headers();
    for len in 0..chain.len() {
        let bytes = v6(0, &chain[..len]);
        let upper = Ipv6Packet::new_checked(&bytes).unwrap().upper();
        assert!(
            matches!(upper.map_err(kind), Err(ParseErrorKind::Truncated { .. })),
            "{len}: {upper:?}"
        );
    }
    // The frame continues after the packet; the packet's length field still decides.
    let bytes = [v6(0, &chain[..8]), chain[8..].to_vec()].concat();
    assert!(Ipv6Packet::new_checked(&bytes).unwrap().upper().is_err());
}

#[test]
fn ipv6_fragments_are_told_apart() {
    for (offset_bytes, more, fragmentation) in [
        (0, false, Fragment::Whole),
        (0, true, Fragment::First),
        (1480, true, Fragment::Later),
        (2960, false, Fragment::Later),
    ] {
        let header = FragmentHeader { offset_bytes, more, ident: 0xdead_beef };
        // The bytes after the fragment header look like a destination options header.
        let bytes = v6(
            44,
            &[&header.to_bytes(Protocol::DESTINATION_OPTIONS)[..], &[17, 0, 1, 4, 0, 0, 0, 0]]
                .concat(),
        );
        let upper = Ipv6Packet::new_checked(&bytes).unwrap().upper().unwrap();
        assert_eq!((upper.fragment, upper.fragmentation()), (Some(header), fragmentation));
        let expected = if fragmentation == Fragment::Later {
            (Protocol::DESTINATION_OPTIONS, 48) // data of a later fragment is never read as headers
        } else {
            (Protocol::UDP, 56)
        };
        assert_eq!((upper.protocol, upper.offset), expected);
    }
}

#[test]
fn ipv6_hop_by_hop_is_refused_when_not_first() {
    let bytes = v6(60, &[0, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0]);
    let upper = Ipv6Packet::new_checked(&bytes).unwrap().upper();
    assert!(matches!(upper.map_err(kind), Err(ParseErrorKind::BadField(_))));
}

#[test]
fn ipv6_extension_walk_is_bounded() {
    let chain = |count: usize| {
        let mut headers = [60, 0, 1, 4, 0, 0, 0, 0].repeat(count);
        headers[(count - 1) * 8] = 59;
        v6(60, &headers)
    };
    let upper = |bytes: &[u8]| Ipv6Packet::new_checked(bytes).unwrap().upper();
    assert_eq!(upper(&chain(MAX_EXTENSION_HEADERS)).unwrap().protocol, Protocol::NO_NEXT_HEADER);
    assert!(upper(&chain(MAX_EXTENSION_HEADERS + 1)).is_err());
}

prop_compose! {
    fn any_v4()(
        tos: u8, payload_len in 0_u16..1400, ident: u16, dont_fragment: bool, more_fragments: bool,
        offset in 0_u16..7000, ttl: u8, protocol: u8, src: [u8; 4], dst: [u8; 4],
        options in prop::sample::select(vec![&[][..], &[1, 1, 1, 0], &[7; 40]]),
    ) -> Ipv4Repr<'static> {
        Ipv4Repr {
            tos, payload_len, ident, dont_fragment, more_fragments,
            fragment_offset_bytes: offset * 8, ttl,
            protocol: Protocol(protocol), src: src.into(), dst: dst.into(),
            options: Ipv4Options::new(options).unwrap(),
        }
    }
}

proptest! {
    #[test]
    fn ipv4_round_trips_and_agrees_with_etherparse(repr in any_v4()) {
        let mut bytes = dirty(usize::from(repr.total_len()));
        repr.emit(&mut Ipv4Packet::new_unchecked(&mut bytes));
        prop_assert_eq!(Ipv4Repr::parse(&Ipv4Packet::new_checked(&bytes).unwrap()), Ok(repr));

        let (theirs, payload) = Ipv4Header::from_slice(&bytes).unwrap();
        prop_assert_eq!(theirs.header_checksum, theirs.calc_header_checksum());
        prop_assert_eq!(payload.len(), usize::from(repr.payload_len));
        prop_assert_eq!((theirs.dscp.value() << 2) | theirs.ecn.value(), repr.tos);
        prop_assert_eq!(theirs.fragment_offset.value() * 8, repr.fragment_offset_bytes);
        prop_assert_eq!(
            (theirs.dont_fragment, theirs.more_fragments), (repr.dont_fragment, repr.more_fragments)
        );
        prop_assert_eq!(
            (theirs.identification, theirs.time_to_live, theirs.protocol.0),
            (repr.ident, repr.ttl, repr.protocol.0)
        );
        prop_assert_eq!(
            (theirs.source, theirs.destination), (repr.src.octets(), repr.dst.octets())
        );
        prop_assert_eq!(&theirs.options[..], repr.options.as_bytes());
        prop_assert_eq!(&theirs.to_bytes()[..], &bytes[..repr.header_len()]);
    }

    #[test]
    fn ipv6_round_trips_and_agrees_with_etherparse(
        traffic_class: u8, flow_label in 0_u32..1 << 20, payload_len in 0_u16..100, next: u8,
        hop_limit: u8, src: u128, dst: u128,
    ) {
        let src = Ipv6Addr::from(src >> 8); // never multicast
        let repr = Ipv6Repr {
            traffic_class, flow_label, payload_len, next_header: Protocol(next), hop_limit, src,
            dst: dst.into(),
        };
        let mut bytes = dirty(40 + usize::from(payload_len));
        repr.emit(&mut Ipv6Packet::new_unchecked(&mut bytes));
        prop_assert_eq!(Ipv6Repr::parse(&Ipv6Packet::new_checked(&bytes).unwrap()), Ok(repr));

        let (theirs, _) = Ipv6Header::from_slice(&bytes).unwrap();
        prop_assert_eq!(
            (theirs.traffic_class, theirs.flow_label.value()), (traffic_class, flow_label)
        );
        prop_assert_eq!(
            (theirs.payload_length, theirs.next_header.0, theirs.hop_limit),
            (payload_len, next, hop_limit)
        );
        prop_assert_eq!(
            (theirs.source, theirs.destination), (repr.src.octets(), repr.dst.octets())
        );
        prop_assert_eq!(&theirs.to_bytes()[..], &bytes[..40]);
    }
}
