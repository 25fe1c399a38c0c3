//! GRE and NVGRE.

use proptest::prelude::*;
use wire::tunnel::{GrePacket, GreRepr, NvgreRepr};
use wire::{EtherType, Layer, ParseError, ParseErrorKind, Vni};

use crate::{dirty, refuses_every_truncation};

fn parse(bytes: &[u8]) -> Result<GreRepr, ParseError> {
    GreRepr::parse(&GrePacket::new_checked(bytes)?)
}

fn kind(error: ParseError) -> ParseErrorKind {
    assert_eq!(error.layer, Layer::Gre);
    error.kind
}

/// Checksum, key 7, sequence 9, two bytes of payload. The words sum to 0xb000 + 0x6558 + 7 + 9 +
/// 0x0102 = 0x1166a, folded 0x166b.
const ALL: [u8; 18] = [0xb0, 0, 0x65, 0x58, 0xe9, 0x94, 0, 0, 0, 0, 0, 7, 0, 0, 0, 9, 1, 2];

#[test]
fn gre_checksum_key_and_sequence_stand_in_this_order() {
    let repr =
        GreRepr { protocol: EtherType::TEB, checksum: true, key: Some(7), sequence: Some(9) };
    assert_eq!(parse(&ALL), Ok(repr));
    let packet = GrePacket::new_checked(&ALL[..]).unwrap();
    assert_eq!((packet.checksum(), packet.payload()), (Some(0xe994), &[1, 2][..]));
    let mut bytes = dirty(16);
    repr.emit(&mut GrePacket::new_unchecked(&mut bytes));
    bytes.extend([1, 2]);
    GrePacket::new_unchecked(&mut bytes).fill_checksum();
    assert_eq!(bytes, ALL);
}

#[test]
fn gre_fields_add_4_bytes_each_when_present() {
    for fields in 0..8_u8 {
        let (checksum, key, sequence) = (fields & 4 != 0, fields & 2 != 0, fields & 1 != 0);
        let repr = GreRepr {
            protocol: EtherType::TEB,
            checksum,
            key: key.then_some(0xdead_beef),
            sequence: sequence.then_some(0x0102_0304),
        };
        assert_eq!(repr.header_len(), 4 + 4 * fields.count_ones() as usize);
        let mut bytes = dirty(repr.header_len());
        repr.emit(&mut GrePacket::new_unchecked(&mut bytes));
        GrePacket::new_unchecked(&mut bytes).fill_checksum();
        assert_eq!(
            bytes[0],
            u8::from(checksum) << 7 | u8::from(key) << 5 | u8::from(sequence) << 4
        );
        assert_eq!(parse(&bytes), Ok(repr));
        refuses_every_truncation(&bytes, |b| GrePacket::new_checked(b).map(|_| ()));
    }
}

#[test]
fn gre_is_refused_when_routing_or_reserved_bits_or_version_are_set() {
    for (bit, refused) in [(0x40, true), (0x08, true), (0x04, true), (0x02, false), (0x01, false)] {
        assert_eq!(parse(&[bit, 0, 0x65, 0x58]).is_err(), refused, "{bit:#x}");
    }
    assert!(
        parse(&[0, 0xf8, 0x65, 0x58]).is_ok(),
        "the other reserved bits are ignored (RFC 2784 section 2.3)"
    );
    assert_eq!(parse(&[0, 1, 0x65, 0x58]).map_err(kind), Err(ParseErrorKind::BadVersion(1)));
}

#[test]
fn gre_is_refused_when_any_byte_differs_from_what_the_checksum_covers() {
    for at in [4, 5, 11, 15, 16, 17] {
        let mut bytes = ALL;
        bytes[at] ^= 0x40;
        assert_eq!(parse(&bytes).map_err(kind), Err(ParseErrorKind::BadChecksum), "byte {at}");
    }
    assert!(parse(&[0, 0, 0x65, 0x58, 1, 2, 3]).is_ok(), "without the C flag nothing is summed");
}

#[test]
fn gre_checksum_is_left_alone_without_the_c_flag() {
    let mut bytes = [0x20, 0, 0x65, 0x58, 1, 2, 3, 4];
    GrePacket::new_unchecked(&mut bytes[..]).fill_checksum();
    assert_eq!(bytes, [0x20, 0, 0x65, 0x58, 1, 2, 3, 4]);
}

const NVGRE: [u8; 8] = [0x20, 0, 0x65, 0x58, 0x12, 0x34, 0x56, 0x78];

fn parse_nvgre(bytes: &[u8]) -> Result<NvgreRepr, ParseError> {
    NvgreRepr::parse(&GrePacket::new_checked(bytes)?)
}

#[test]
fn nvgre_splits_the_key_into_24_and_8_bits() {
    let repr = NvgreRepr { vsid: Vni::new(0x12_3456).unwrap(), flow_id: 0x78 };
    assert_eq!(parse_nvgre(&NVGRE), Ok(repr));
    let mut bytes = dirty(repr.header_len());
    repr.emit(&mut GrePacket::new_unchecked(&mut bytes));
    assert_eq!(bytes, NVGRE);
    refuses_every_truncation(&NVGRE, parse_nvgre);
}

#[test]
fn nvgre_forbids_checksum_and_sequence_and_demands_key_and_ethernet() {
    for bytes in [
        &[0xa0, 0, 0x65, 0x58, 0, 0, 0, 0, 1, 2, 3, 4][..], // checksum
        &[0x30, 0, 0x65, 0x58, 1, 2, 3, 4, 0, 0, 0, 1],     // sequence
        &[0x00, 0, 0x65, 0x58],                             // no key
        &[0x20, 0, 0x08, 0x00, 1, 2, 3, 4],                 // IPv4
    ] {
        assert!(
            matches!(parse_nvgre(bytes).map_err(kind), Err(ParseErrorKind::BadField(_))),
            "{bytes:?}"
        );
    }
}

proptest! {
    #[test]
    fn gre_round_trips(
        protocol: u16, checksum: bool, key: Option<u32>, sequence: Option<u32>,
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let repr = GreRepr { protocol: EtherType(protocol), checksum, key, sequence };
        let mut bytes = dirty(repr.header_len());
        bytes.extend(&payload);
        let mut packet = GrePacket::new_unchecked(&mut bytes);
        repr.emit(&mut packet);
        packet.fill_checksum();
        prop_assert_eq!(parse(&bytes), Ok(repr));
        prop_assert_eq!(GrePacket::new_checked(&bytes).unwrap().payload(), payload);
    }

    #[test]
    fn nvgre_round_trips(vsid in 0_u32..=Vni::MAX, flow_id: u8) {
        let repr = NvgreRepr { vsid: Vni::new(vsid).unwrap(), flow_id };
        let mut bytes = dirty(repr.header_len());
        repr.emit(&mut GrePacket::new_unchecked(&mut bytes));
        prop_assert_eq!(parse_nvgre(&bytes), Ok(repr));
    }
}
