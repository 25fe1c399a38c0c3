//! Geneve.

use proptest::prelude::*;
use wire::tunnel::geneve::MAX_OPTIONS_LEN;
use wire::tunnel::{GeneveOption, GeneveOptions, GenevePacket, GeneveRepr, LogicalPorts};
use wire::{EtherType, Layer, ParseError, ParseErrorKind, Vni};

use crate::{dirty, refuses_every_truncation};

/// VNI 0x123456, C bit, one logical-port option: ingress 3, egress 0x8001.
const OVN: [u8; 16] = [
    0x02, 0x40, 0x65, 0x58, 0x12, 0x34, 0x56, 0x00, 0x01, 0x02, 0x80, 0x01, 0x00, 0x03, 0x80, 0x01,
];
const PORTS: LogicalPorts = LogicalPorts { ingress: 3, egress: 0x8001 };
const PORTS_BYTES: [u8; 8] = [0x01, 0x02, 0x80, 0x01, 0x00, 0x03, 0x80, 0x01];
/// Class 0x0103, type 1, not critical, 8 bytes of data.
const HARMLESS: [u8; 12] = [0x01, 0x03, 0x01, 0x02, 1, 2, 3, 4, 5, 6, 7, 8];
/// Class 0x0104, type 0x81, critical, no data.
const CRITICAL: [u8; 4] = [0x01, 0x04, 0x81, 0x00];

/// A header with these option bytes, the C bit clear.
fn with_options(options: &[&[u8]]) -> Vec<u8> {
    let options = options.concat();
    [&[(options.len() / 4) as u8, 0, 0x65, 0x58, 0, 0, 9, 0][..], &options].concat()
}

fn parse(bytes: &[u8]) -> Result<GeneveRepr<'_>, ParseError> {
    GeneveRepr::parse(&GenevePacket::new_checked(bytes)?)
}

fn kind(error: ParseError) -> ParseErrorKind {
    assert_eq!(error.layer, Layer::Geneve);
    error.kind
}

#[test]
fn geneve_is_read_and_emitted_as_the_rfc_lays_it_out() {
    let mut scratch = [0xa5; MAX_OPTIONS_LEN];
    let repr = GeneveRepr {
        control: false,
        protocol: EtherType::TEB,
        vni: Vni::new(0x12_3456).unwrap(),
        options: GeneveOptions::write(&[GeneveOption::LogicalPorts(PORTS)], &mut scratch).unwrap(),
    };
    assert_eq!(parse(&OVN), Ok(repr));
    let mut bytes = dirty(17);
    repr.emit(&mut GenevePacket::new_unchecked(&mut bytes));
    assert_eq!(bytes, [&OVN[..], &[0xa5]].concat());
    assert_eq!(GenevePacket::new_checked(&bytes).unwrap().payload(), [0xa5]);
}

#[test]
fn geneve_c_bit_is_set_exactly_when_a_critical_option_is_present() {
    for (options, critical) in
        [(&[][..], false), (&HARMLESS, false), (&CRITICAL, true), (&PORTS_BYTES, true)]
    {
        let options = GeneveOptions::new(options).unwrap();
        let repr =
            GeneveRepr { control: false, protocol: EtherType::TEB, vni: Vni::default(), options };
        let mut bytes = dirty(repr.header_len());
        repr.emit(&mut GenevePacket::new_unchecked(&mut bytes));
        assert_eq!(GenevePacket::new_checked(&bytes).unwrap().has_critical(), critical);
        assert_eq!(bytes[1] & 0x3f, 0, "reserved bits are zero");
    }
}

#[test]
fn geneve_unknown_critical_option_is_refused_even_when_the_c_bit_is_clear() {
    let expected = ParseErrorKind::UnknownCriticalOption { class: 0x0104, kind: 0x81 };
    for options in [&[&CRITICAL[..]][..], &[&PORTS_BYTES, &CRITICAL], &[&CRITICAL, &HARMLESS]] {
        assert_eq!(parse(&with_options(options)).map_err(kind), Err(expected));
    }
}

#[test]
fn geneve_unknown_option_passes_and_is_kept() {
    let bytes = with_options(&[&HARMLESS, &PORTS_BYTES]);
    let options = parse(&bytes).unwrap().options;
    let harmless =
        GeneveOption::Unknown { class: 0x0103, kind: 1, data: &[1, 2, 3, 4, 5, 6, 7, 8] };
    assert_eq!(options.iter().collect::<Vec<_>>(), [harmless, GeneveOption::LogicalPorts(PORTS)]);
}

#[test]
fn geneve_options_are_accepted_in_any_order() {
    for options in [[&HARMLESS[..], &PORTS_BYTES], [&PORTS_BYTES, &HARMLESS]] {
        assert_eq!(parse(&with_options(&options)).unwrap().options.logical_ports(), Some(PORTS));
    }
    assert_eq!(parse(&with_options(&[&HARMLESS])).unwrap().options.logical_ports(), None);
}

#[test]
fn geneve_options_are_accepted_at_every_length_from_0_to_252() {
    for words in 0..=63_usize {
        let bytes = with_options(&[&[0x01, 0x03, 0x01, 0x00].repeat(words)]);
        assert_eq!(parse(&bytes).unwrap().options.iter().count(), words);
    }
    let too_long = [0; MAX_OPTIONS_LEN + 4];
    assert_eq!(GeneveOptions::new(&too_long).map_err(kind), Err(ParseErrorKind::BadLength(256)));
    assert_eq!(GeneveOptions::new(&[0; 6]).map_err(kind), Err(ParseErrorKind::BadLength(6)));
}

#[test]
fn geneve_option_is_refused_when_it_reaches_beyond_the_options() {
    let bytes =
        [&with_options(&[&[0x01, 0x03, 0x01, 0x02, 1, 2, 3, 4]])[..], &[5, 6, 7, 8]].concat();
    assert_eq!(parse(&bytes).map_err(kind), Err(ParseErrorKind::BadLength(12)));
}

#[test]
fn geneve_logical_port_option_is_refused_when_repeated_or_of_the_wrong_length() {
    let twice = with_options(&[&PORTS_BYTES, &PORTS_BYTES]);
    assert!(matches!(parse(&twice).map_err(kind), Err(ParseErrorKind::BadField(_))));
    let empty = with_options(&[&[0x01, 0x02, 0x80, 0x00]]);
    assert_eq!(parse(&empty).map_err(kind), Err(ParseErrorKind::BadLength(4)));
}

#[test]
fn geneve_o_bit_is_exposed_so_that_control_packets_never_reach_guests() {
    let mut bytes = OVN;
    assert!(!parse(&bytes).unwrap().control);
    bytes[1] |= 0x80;
    let repr = parse(&bytes).unwrap();
    assert!(repr.control);
    let mut emitted = dirty(16);
    repr.emit(&mut GenevePacket::new_unchecked(&mut emitted));
    assert_eq!(emitted, bytes);
}

#[test]
fn geneve_reserved_bits_are_ignored() {
    let mut bytes = OVN;
    bytes[1] |= 0x3f;
    bytes[7] = 0xff;
    bytes[11] |= 0xe0;
    bytes[12] |= 0x80;
    let (noisy, clean) = (parse(&bytes).unwrap(), parse(&OVN).unwrap());
    assert_eq!((noisy.vni, noisy.options.logical_ports()), (clean.vni, Some(PORTS)));
}

#[test]
fn geneve_is_refused_when_truncated_or_of_another_version() {
    refuses_every_truncation(&OVN, parse);
    let mut bytes = OVN;
    bytes[0] |= 0x40;
    assert_eq!(parse(&bytes).map_err(kind), Err(ParseErrorKind::BadVersion(1)));
}

#[test]
fn geneve_options_are_not_written_when_they_cannot_be() {
    let unknown = |data| GeneveOption::Unknown { class: 1, kind: 1, data };
    let write = |options: &[GeneveOption<'_>]| {
        GeneveOptions::write(options, &mut [0xa5; MAX_OPTIONS_LEN])
            .map(|o| o.as_bytes().len())
            .map_err(kind)
    };
    assert_eq!(write(&[unknown(&[0; 124]), unknown(&[0; 120])]), Ok(252));
    assert_eq!(
        write(&[unknown(&[0; 124]), unknown(&[0; 124])]),
        Err(ParseErrorKind::BadLength(256))
    );
    assert_eq!(write(&[unknown(&[0; 128])]), Err(ParseErrorKind::BadLength(128)));
    assert_eq!(write(&[unknown(&[0; 3])]), Err(ParseErrorKind::BadLength(3)));
}

proptest! {
    #[test]
    fn geneve_round_trips(
        control: bool, protocol: u16, vni in 0_u32..=Vni::MAX,
        ports in prop::option::of((0_u16..0x8000, any::<u16>())),
        others in prop::collection::vec((0x0200_u16.., 0_u8..0x80, 0_usize..5), 0..5),
        at in 0_usize..5,
    ) {
        const DATA: [u8; 16] = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6];
        let mut options: Vec<_> = others
            .into_iter()
            .map(|(class, kind, words)| {
                GeneveOption::Unknown { class, kind, data: &DATA[..words * 4] }
            })
            .collect();
        if let Some((ingress, egress)) = ports {
            let ports = GeneveOption::LogicalPorts(LogicalPorts { ingress, egress });
            options.insert(at.min(options.len()), ports);
        }
        let mut scratch = [0xa5; MAX_OPTIONS_LEN];
        let repr = GeneveRepr {
            control, protocol: EtherType(protocol), vni: Vni::new(vni).unwrap(),
            options: GeneveOptions::write(&options, &mut scratch).unwrap(),
        };
        let mut bytes = dirty(repr.header_len());
        repr.emit(&mut GenevePacket::new_unchecked(&mut bytes));
        let parsed = parse(&bytes).unwrap();
        prop_assert_eq!(parsed, repr);
        prop_assert_eq!(parsed.options.iter().collect::<Vec<_>>(), options);
    }

    #[test]
    fn geneve_never_panics_on_any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 8..300)) {
        bytes[0] &= 0x3f;
        if let Ok(repr) = parse(&bytes) {
            prop_assert!(repr.header_len() <= bytes.len());
        }
    }
}
