//! TCP and UDP.

use etherparse::{TcpHeader, UdpHeader};
use proptest::prelude::*;
use wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use wire::tcp::MAX_OPTIONS_LEN;
use wire::udp::ZeroChecksum;
use wire::{
    Layer, ParseError, ParseErrorKind, Protocol, TcpFlags, TcpOption, TcpOptions, TcpPacket,
    TcpRepr, UdpPacket, UdpRepr,
};

use crate::{dirty, refuses_every_truncation};

/// A SYN as Linux sends it: MSS 1460, SACK permitted, timestamps, no operation, window scale 7.
const SYN: [u8; 40] = [
    0x9c, 0x40, 0x00, 0x50, 0x01, 0x02, 0x03, 0x04, 0x00, 0x00, 0x00, 0x00, 0xa0, 0xc2, 0xfa, 0xf0,
    0x12, 0x34, 0x00, 0x07, 0x02, 0x04, 0x05, 0xb4, 0x04, 0x02, 0x08, 0x0a, 0x00, 0x00, 0x10, 0x00,
    0x00, 0x00, 0x20, 0x00, 0x01, 0x03, 0x03, 0x07,
];

const SYN_OPTIONS: [TcpOption<'static>; 5] = [
    TcpOption::MaxSegmentSize(1460),
    TcpOption::SackPermitted,
    TcpOption::Timestamps { value: 0x1000, echo_reply: 0x2000 },
    TcpOption::NoOperation,
    TcpOption::WindowScale(7),
];

#[test]
fn tcp_is_read_as_the_rfc_lays_it_out() {
    let packet = TcpPacket::new_checked(&SYN[..]).unwrap();
    let repr = TcpRepr::parse(&packet).unwrap();
    assert_eq!((repr.src_port, repr.dst_port, repr.seq, repr.ack), (40_000, 80, 0x0102_0304, 0));
    assert_eq!(repr.flags, TcpFlags::SYN | TcpFlags::ECE | TcpFlags::CWR);
    assert_eq!((repr.window, packet.checksum(), repr.urgent), (0xfaf0, 0x1234, 7));
    assert_eq!(repr.options.iter().collect::<Vec<_>>(), SYN_OPTIONS);
    assert!(packet.payload().is_empty());
}

#[test]
fn tcp_is_emitted_over_dirty_bytes_with_zero_checksum() {
    let mut scratch = [0xa5; MAX_OPTIONS_LEN];
    let repr = TcpRepr {
        src_port: 40_000,
        dst_port: 80,
        seq: 0x0102_0304,
        ack: 0,
        flags: TcpFlags(0xc2),
        window: 0xfaf0,
        urgent: 7,
        options: TcpOptions::write(&SYN_OPTIONS, &mut scratch).unwrap(),
    };
    let mut bytes = dirty(repr.header_len());
    repr.emit(&mut TcpPacket::new_unchecked(&mut bytes));
    let mut expected = SYN;
    expected[16..18].fill(0);
    assert_eq!(bytes, expected);
}

#[test]
fn tcp_is_refused_when_truncated_or_shorter_than_its_header() {
    refuses_every_truncation(&SYN, TcpPacket::new_checked);
    let mut bytes = SYN;
    bytes[12] = 0x40;
    let expected = ParseError { layer: Layer::Tcp, kind: ParseErrorKind::BadLength(16) };
    assert_eq!(TcpPacket::new_checked(bytes).map(|_| ()), Err(expected));
}

#[test]
fn tcp_options_are_refused_when_malformed() {
    for bytes in [
        &[2, 0, 0, 0][..], // length 0 would loop
        &[2, 1, 0, 0],     // shorter than kind and length
        &[2, 5, 0, 0],     // beyond the end
        &[3, 4, 0, 0],     // window scale of the wrong length
        &[1, 1, 1, 8],     // kind without length
        &[4, 3, 0, 0],     // SACK permitted with data
        &[1, 1, 1],        // not a multiple of 4
        &[1; 44],          // more than a header can hold
    ] {
        assert!(TcpOptions::new(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn tcp_options_end_at_end_of_list() {
    let options = TcpOptions::new(&[4, 2, 0, 0xff]).unwrap();
    assert_eq!(options.iter().collect::<Vec<_>>(), [TcpOption::SackPermitted]);
}

#[test]
fn tcp_unknown_option_is_kept() {
    let sack = TcpOption::Unknown { kind: 5, data: &[1, 2, 3, 4, 5, 6, 7, 8] };
    let mut scratch = [0xa5; MAX_OPTIONS_LEN];
    let options = TcpOptions::write(&[sack], &mut scratch).unwrap();
    assert_eq!(options.as_bytes(), [5, 10, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
    assert_eq!(options.iter().collect::<Vec<_>>(), [sack]);
    let mut scratch = [0; MAX_OPTIONS_LEN];
    assert!(
        TcpOptions::write(&[TcpOption::Unknown { kind: 5, data: &[0; 39] }], &mut scratch).is_err()
    );
}

const UDP: [u8; 12] = [0x12, 0xb5, 0x17, 0xc1, 0x00, 0x0b, 0xab, 0xcd, 1, 2, 3, 0xee];

#[test]
fn udp_is_read_and_emitted_as_the_rfc_lays_it_out() {
    let packet = UdpPacket::new_checked(&UDP[..]).unwrap();
    let repr = UdpRepr { src_port: 4789, dst_port: 6081, length: 11 };
    assert_eq!((UdpRepr::parse(&packet), packet.checksum()), (repr, 0xabcd));
    assert_eq!(packet.payload(), [1, 2, 3], "the byte behind the length is not payload");
    let mut bytes = dirty(9);
    repr.emit(&mut UdpPacket::new_unchecked(&mut bytes));
    assert_eq!(bytes, [0x12, 0xb5, 0x17, 0xc1, 0x00, 0x0b, 0, 0, 0xa5]);
}

#[test]
fn udp_is_refused_when_truncated_or_shorter_than_its_header() {
    refuses_every_truncation(&UDP[..11], UdpPacket::new_checked);
    refuses_every_truncation(&UDP[..8], UdpPacket::new_header);
    let mut bytes = UDP;
    bytes[5] = 7;
    let expected = ParseError { layer: Layer::Udp, kind: ParseErrorKind::BadLength(7) };
    assert_eq!(UdpPacket::new_checked(bytes).map(|_| ()), Err(expected));
}

/// Two payload bytes chosen so that everything sums to 0xffff.
fn udp_that_computes_to_zero(pseudo: Sum) -> [u8; 10] {
    let mut bytes = [0, 1, 0, 2, 0, 10, 0, 0, 0, 0];
    let rest = pseudo.bytes(&bytes).checksum();
    bytes[8..].copy_from_slice(&rest.to_be_bytes());
    bytes
}

#[test]
fn udp_computed_checksum_0_is_sent_as_ffff() {
    let pseudo = pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::UDP, 10);
    let mut bytes = udp_that_computes_to_zero(pseudo);
    assert_eq!(pseudo.bytes(&bytes).checksum(), 0);
    let mut packet = UdpPacket::new_checked(&mut bytes[..]).unwrap();
    packet.fill_checksum(pseudo);
    assert_eq!(packet.checksum(), 0xffff);
    assert!(packet.verify_checksum(pseudo, ZeroChecksum::Refuse));
}

#[test]
fn udp_zero_checksum_is_none_and_refused_over_ipv6_unless_configured() {
    let mut bytes = UDP;
    bytes[6..8].fill(0);
    let packet = UdpPacket::new_checked(bytes).unwrap();
    let pseudo = pseudo_v6([1; 16].into(), [2; 16].into(), Protocol::UDP, 11);
    assert!(packet.verify_checksum(pseudo, ZeroChecksum::Accept));
    assert!(!packet.verify_checksum(pseudo, ZeroChecksum::Refuse));
}

#[test]
fn udp_checksum_is_wrong_when_a_byte_differs() {
    let pseudo = pseudo_v6([1; 16].into(), [2; 16].into(), Protocol::UDP, 11);
    let mut bytes = UDP;
    UdpPacket::new_unchecked(&mut bytes[..11]).fill_checksum(pseudo);
    for at in 0..12 {
        let mut changed = bytes;
        changed[at] ^= 0x10;
        let right =
            UdpPacket::new_header(changed).unwrap().verify_checksum(pseudo, ZeroChecksum::Accept);
        assert_eq!(right, at == 11, "byte {at}");
    }
}

fn any_options() -> impl Strategy<Value = Vec<TcpOption<'static>>> {
    let option = prop_oneof![
        Just(TcpOption::NoOperation),
        any::<u16>().prop_map(TcpOption::MaxSegmentSize),
        any::<u8>().prop_map(TcpOption::WindowScale),
        Just(TcpOption::SackPermitted),
        any::<(u32, u32)>()
            .prop_map(|(value, echo_reply)| TcpOption::Timestamps { value, echo_reply }),
        (9_u8..=255).prop_map(|kind| TcpOption::Unknown { kind, data: &[1, 2, 3] }),
    ];
    prop::collection::vec(option, 0..4)
}

proptest! {
    #[test]
    fn tcp_round_trips_and_agrees_with_etherparse(
        ports: (u16, u16), seq: u32, ack: u32, flags: u8, window: u16, urgent: u16,
        options in any_options(),
        payload in prop::collection::vec(any::<u8>(), 0..40), addresses: ([u8; 4], [u8; 4]),
    ) {
        let mut scratch = [0xa5; MAX_OPTIONS_LEN];
        let repr = TcpRepr {
            src_port: ports.0, dst_port: ports.1, seq, ack, flags: TcpFlags(flags), window, urgent,
            options: TcpOptions::write(&options, &mut scratch).unwrap(),
        };
        prop_assert_eq!(repr.options.iter().collect::<Vec<_>>(), options);
        let mut bytes = dirty(repr.header_len());
        bytes.extend(&payload);
        let mut packet = TcpPacket::new_unchecked(&mut bytes);
        repr.emit(&mut packet);
        let len = repr.header_len() + payload.len();
        let pseudo = pseudo_v4(addresses.0.into(), addresses.1.into(), Protocol::TCP, len as u16);
        packet.fill_checksum(pseudo);
        prop_assert!(packet.verify_checksum(pseudo));
        let packet = TcpPacket::new_checked(&bytes).unwrap();
        prop_assert_eq!(TcpRepr::parse(&packet), Ok(repr));

        let (theirs, rest) = TcpHeader::from_slice(&bytes).unwrap();
        prop_assert_eq!(rest, &payload[..]);
        prop_assert_eq!((theirs.source_port, theirs.destination_port), ports);
        prop_assert_eq!(
            (theirs.sequence_number, theirs.acknowledgment_number, theirs.window_size),
            (seq, ack, window)
        );
        prop_assert_eq!(
            (theirs.syn, theirs.ack, theirs.cwr, theirs.fin),
            (flags & 2 != 0, flags & 16 != 0, flags & 128 != 0, flags & 1 != 0)
        );
        let checksum = theirs.calc_checksum_ipv4_raw(addresses.0, addresses.1, rest).unwrap();
        prop_assert_eq!(checksum, packet.checksum());
    }

    #[test]
    fn udp_round_trips(ports: (u16, u16), payload in prop::collection::vec(any::<u8>(), 0..60)) {
        let length = 8 + payload.len() as u16;
        let repr = UdpRepr { src_port: ports.0, dst_port: ports.1, length };
        let mut bytes = dirty(repr.header_len());
        bytes.extend(&payload);
        repr.emit(&mut UdpPacket::new_unchecked(&mut bytes));
        let packet = UdpPacket::new_checked(&bytes).unwrap();
        prop_assert_eq!((UdpRepr::parse(&packet), packet.payload()), (repr, &payload[..]));
    }

    #[test]
    fn udp_checksum_agrees_with_etherparse(
        ports: (u16, u16), payload in prop::collection::vec(any::<u8>(), 0..60),
        addresses: ([u8; 16], [u8; 16]),
    ) {
        let length = 8 + payload.len() as u16;
        let mut bytes = dirty(8);
        bytes.extend(&payload);
        let mut packet = UdpPacket::new_unchecked(&mut bytes);
        UdpRepr { src_port: ports.0, dst_port: ports.1, length }.emit(&mut packet);
        packet.fill_checksum(
            pseudo_v6(addresses.0.into(), addresses.1.into(), Protocol::UDP, u32::from(length)),
        );
        let (theirs, _) = UdpHeader::from_slice(&bytes).unwrap();
        prop_assert_eq!(
            (theirs.source_port, theirs.destination_port, theirs.length), (ports.0, ports.1, length)
        );
        prop_assert_eq!(
            theirs.calc_checksum_ipv6_raw(addresses.0, addresses.1, &payload).unwrap(),
            theirs.checksum
        );
    }
}
