//! ICMP and ICMPv6.

use etherparse::{Icmpv4Slice, Icmpv4Type, Icmpv6Header, Icmpv6Type};
use proptest::prelude::*;
use wire::checksum::{Sum, pseudo_v6};
use wire::{
    Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, Layer, ParseError, ParseErrorKind, Protocol,
};

use crate::{dirty, refuses_every_truncation};

fn parse_v4(bytes: &[u8]) -> Result<Icmpv4Repr<'_>, ParseError> {
    Icmpv4Repr::parse(&Icmpv4Packet::new_checked(bytes)?)
}

/// Echo request 0x1234/5 with "ab": 0x0800 + 0x1234 + 5 + 0x6162 sum to 0x7b9b.
const ECHO: [u8; 10] = [8, 0, 0x84, 0x64, 0x12, 0x34, 0, 5, b'a', b'b'];

#[test]
fn icmpv4_echo_is_read_and_emitted_as_the_rfc_lays_it_out() {
    let repr = Icmpv4Repr::EchoRequest { ident: 0x1234, seq: 5, data: b"ab" };
    assert_eq!(parse_v4(&ECHO), Ok(repr));
    let mut bytes = dirty(11);
    repr.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes));
    assert_eq!(bytes, [&ECHO[..], &[0xa5]].concat());
}

#[test]
fn icmpv4_is_refused_when_truncated_or_damaged() {
    refuses_every_truncation(&ECHO, parse_v4);
    let mut bytes = ECHO;
    bytes[9] ^= 1;
    let expected = ParseError { layer: Layer::Icmpv4, kind: ParseErrorKind::BadChecksum };
    assert_eq!(parse_v4(&bytes), Err(expected));
    let odd_code = [8, 1, 0x84, 0x63, 0x12, 0x34, 0, 5, b'a', b'b'];
    assert_eq!(parse_v4(&odd_code), Err(ParseError::field(Layer::Icmpv4, "code of an echo")));
}

#[test]
fn icmpv4_fragmentation_needed_carries_the_next_hop_mtu() {
    let repr = Icmpv4Repr::FragmentationNeeded { mtu: 1450, quoted: &[0x45; 28] };
    let mut bytes = dirty(repr.message_len());
    repr.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes));
    assert_eq!((&bytes[..2], &bytes[4..8]), (&[3, 4][..], &[0, 0, 0x05, 0xaa][..]));
    assert_eq!(parse_v4(&bytes), Ok(repr));
}

fn any_v4() -> impl Strategy<Value = Icmpv4Repr<'static>> {
    let bytes = || prop::sample::select(vec![&[][..], b"x", &[0x45; 28], &[7; 48]]);
    prop_oneof![
        (any::<u16>(), any::<u16>(), bytes())
            .prop_map(|(ident, seq, data)| Icmpv4Repr::EchoRequest { ident, seq, data }),
        (any::<u16>(), any::<u16>(), bytes())
            .prop_map(|(ident, seq, data)| Icmpv4Repr::EchoReply { ident, seq, data }),
        (any::<u16>(), bytes())
            .prop_map(|(mtu, quoted)| Icmpv4Repr::FragmentationNeeded { mtu, quoted }),
        (0_u8..4, bytes()).prop_map(|(code, quoted)| Icmpv4Repr::Unreachable { code, quoted }),
        (0_u8..2, bytes()).prop_map(|(code, quoted)| Icmpv4Repr::TimeExceeded { code, quoted }),
        (12_u8.., any::<u8>(), any::<[u8; 4]>(), bytes())
            .prop_map(|(kind, code, rest, data)| Icmpv4Repr::Other { kind, code, rest, data }),
    ]
}

const SRC: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const DST: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

fn pseudo(len: usize) -> Sum {
    pseudo_v6(SRC.into(), DST.into(), Protocol::ICMPV6, len as u32)
}

fn parse_v6(bytes: &[u8]) -> Result<Icmpv6Repr<'_>, ParseError> {
    Icmpv6Repr::parse(&Icmpv6Packet::new_checked(bytes)?, pseudo(bytes.len()), 64)
}

fn emit_v6(repr: &Icmpv6Repr<'_>) -> Vec<u8> {
    let mut bytes = dirty(repr.message_len());
    repr.emit(&mut Icmpv6Packet::new_unchecked(&mut bytes), pseudo(repr.message_len()));
    bytes
}

#[test]
fn icmpv6_packet_too_big_is_read_and_emitted_as_the_rfc_lays_it_out() {
    let repr = Icmpv6Repr::PacketTooBig { mtu: 1400, quoted: &[0x60, 1, 2] };
    let bytes = emit_v6(&repr);
    assert_eq!((&bytes[..2], &bytes[4..]), (&[2, 0][..], &[0, 0, 0x05, 0x78, 0x60, 1, 2][..]));
    assert_eq!(parse_v6(&bytes), Ok(repr));
    // The code is ignored (RFC 4443 section 3.2).
    let mut odd = bytes;
    odd[1] = 9;
    odd[2..4].fill(0);
    let checksum = pseudo(odd.len()).bytes(&odd).checksum();
    odd[2..4].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(parse_v6(&odd), Ok(repr));
}

#[test]
fn icmpv6_is_refused_when_truncated_or_damaged() {
    let mut bytes = emit_v6(&Icmpv6Repr::EchoReply { ident: 1, seq: 2, data: b"abc" });
    refuses_every_truncation(&bytes, parse_v6);
    bytes[8] ^= 1;
    let expected = ParseError { layer: Layer::Icmpv6, kind: ParseErrorKind::BadChecksum };
    assert_eq!(parse_v6(&bytes), Err(expected));
}

#[test]
fn icmpv6_checksum_covers_the_pseudo_header() {
    let bytes = emit_v6(&Icmpv6Repr::EchoReply { ident: 1, seq: 2, data: b"abc" });
    let other = pseudo_v6(DST.into(), DST.into(), Protocol::ICMPV6, bytes.len() as u32);
    let packet = Icmpv6Packet::new_checked(&bytes[..]).unwrap();
    assert!(Icmpv6Repr::parse(&packet, other, 64).is_err());
}

fn any_v6() -> impl Strategy<Value = Icmpv6Repr<'static>> {
    let bytes = || prop::sample::select(vec![&[][..], b"x", &[0x60; 48], &[7; 49]]);
    prop_oneof![
        (any::<u16>(), any::<u16>(), bytes())
            .prop_map(|(ident, seq, data)| Icmpv6Repr::EchoRequest { ident, seq, data }),
        (any::<u16>(), any::<u16>(), bytes())
            .prop_map(|(ident, seq, data)| Icmpv6Repr::EchoReply { ident, seq, data }),
        (any::<u32>(), bytes()).prop_map(|(mtu, quoted)| Icmpv6Repr::PacketTooBig { mtu, quoted }),
        (0_u8..7, bytes()).prop_map(|(code, quoted)| Icmpv6Repr::Unreachable { code, quoted }),
        (0_u8..2, bytes()).prop_map(|(code, quoted)| Icmpv6Repr::TimeExceeded { code, quoted }),
        (0_u8..3, any::<u32>(), bytes()).prop_map(|(code, pointer, quoted)| {
            Icmpv6Repr::ParameterProblem { code, pointer, quoted }
        }),
        (138_u8.., any::<u8>(), any::<[u8; 4]>(), bytes())
            .prop_map(|(kind, code, rest, data)| Icmpv6Repr::Other { kind, code, rest, data }),
    ]
}

proptest! {
    #[test]
    fn icmpv4_round_trips_and_agrees_with_etherparse(repr in any_v4()) {
        let mut bytes = dirty(repr.message_len());
        repr.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes));
        prop_assert_eq!(parse_v4(&bytes), Ok(repr));
        let theirs = Icmpv4Slice::from_slice(&bytes).map(|slice| slice.icmp_type());
        match (repr, theirs) {
            (Icmpv4Repr::EchoRequest { ident, seq, .. }, Ok(Icmpv4Type::EchoRequest(echo)))
            | (Icmpv4Repr::EchoReply { ident, seq, .. }, Ok(Icmpv4Type::EchoReply(echo))) => {
                prop_assert_eq!((echo.id, echo.seq), (ident, seq));
            }
            (Icmpv4Repr::EchoRequest { .. } | Icmpv4Repr::EchoReply { .. }, theirs) => {
                prop_assert!(false, "{theirs:?}");
            }
            _ => {}
        }
    }

    #[test]
    fn icmpv6_round_trips_and_agrees_with_etherparse(repr in any_v6()) {
        let bytes = emit_v6(&repr);
        prop_assert_eq!(parse_v6(&bytes), Ok(repr));
        let (theirs, rest) = Icmpv6Header::from_slice(&bytes).unwrap();
        let checksum = theirs.icmp_type.calc_checksum(SRC, DST, rest).unwrap();
        prop_assert_eq!(checksum, theirs.checksum);
        if let Icmpv6Repr::PacketTooBig { mtu, .. } = repr {
            prop_assert_eq!(theirs.icmp_type, Icmpv6Type::PacketTooBig { mtu });
        }
    }
}
