//! STT.

use proptest::prelude::*;
use wire::checksum::pseudo_v4;
use wire::tunnel::{SttChecksum, SttPacket, SttRepr, SttSegmentPacket, SttSegmentRepr, SttVlan};
use wire::{Layer, ParseError, ParseErrorKind, Protocol, TcpPacket};

use crate::{dirty, refuses_every_truncation};

/// The second segment of a frame of 0x0800 bytes: four bytes at offset 0x05a0.
const SEGMENT: [u8; 24] = [
    0xc0, 0x01, 0x1d, 0x2f, 0x08, 0x00, 0x05, 0xa0, 0x01, 0x02, 0x03, 0x04, 0x50, 0x18, 0xff, 0xff,
    0x00, 0x00, 0x00, 0x00, 1, 2, 3, 4,
];

fn segment_repr() -> SttSegmentRepr {
    SttSegmentRepr {
        src_port: 0xc001,
        dst_port: 7471,
        frame_len: 0x0800,
        offset: 0x05a0,
        packet_id: 0x0102_0304,
    }
}

fn parse_segment(bytes: &[u8]) -> Result<SttSegmentRepr, ParseError> {
    SttSegmentRepr::parse(&SttSegmentPacket::new_checked(bytes)?)
}

fn kind(error: ParseError) -> ParseErrorKind {
    assert_eq!(error.layer, Layer::Stt);
    error.kind
}

#[test]
fn segment_is_read_and_emitted_as_the_draft_lays_it_out() {
    assert_eq!(parse_segment(&SEGMENT), Ok(segment_repr()));
    let mut bytes = dirty(24);
    segment_repr().emit(&mut SttSegmentPacket::new_unchecked(&mut bytes));
    assert_eq!((&bytes[..20], &bytes[20..]), (&SEGMENT[..20], &[0xa5; 4][..]));
    assert_eq!(SttSegmentPacket::new_checked(&SEGMENT[..]).unwrap().payload(), [1, 2, 3, 4]);
}

#[test]
fn segment_looks_like_tcp_and_its_sequence_number_counts_bytes() {
    let tcp = TcpPacket::new_checked(&SEGMENT[..]).unwrap();
    // Segmentation offload adds the bytes sent to the sequence number, which yields the segment
    // offset.
    let next = SttSegmentRepr { offset: 0x05a0 + 1448, ..segment_repr() };
    let mut bytes = dirty(24);
    next.emit(&mut SttSegmentPacket::new_unchecked(&mut bytes));
    assert_eq!(TcpPacket::new_checked(&bytes).unwrap().seq(), tcp.seq() + 1448);
    assert_eq!((tcp.seq(), tcp.ack(), tcp.window()), (0x0800_05a0, 0x0102_0304, 0xffff));
}

#[test]
fn segment_checksum_is_that_of_tcp() {
    let pseudo = pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::TCP, 24);
    let mut bytes = SEGMENT;
    SttSegmentPacket::new_unchecked(&mut bytes[..]).fill_checksum(pseudo);
    assert!(TcpPacket::new_checked(&bytes[..]).unwrap().verify_checksum(pseudo));
    assert!(SttSegmentPacket::new_checked(&bytes[..]).unwrap().verify_checksum(pseudo));
    bytes[23] ^= 1;
    assert!(!SttSegmentPacket::new_checked(&bytes[..]).unwrap().verify_checksum(pseudo));
}

#[test]
fn segment_is_refused_when_its_header_is_truncated() {
    refuses_every_truncation(&SEGMENT[..21], parse_segment);
}

#[test]
fn segment_is_refused_when_length_and_offset_contradict() {
    let with = |change: fn(&mut SttSegmentRepr)| {
        let mut repr = segment_repr();
        change(&mut repr);
        let mut bytes = SEGMENT;
        repr.emit(&mut SttSegmentPacket::new_unchecked(&mut bytes[..]));
        parse_segment(&bytes).map_err(kind)
    };
    assert!(with(|r| r.offset = 0x0800 - 4).is_ok(), "ends exactly with the frame");
    assert_eq!(with(|r| r.offset = 0x0800 - 3), Err(ParseErrorKind::BadLength(0x0801)));
    assert_eq!(with(|r| r.offset = u16::MAX), Err(ParseErrorKind::BadLength(0x1_0003)));
    assert_eq!(with(|r| r.frame_len = 17), Err(ParseErrorKind::BadLength(17)));
    assert_eq!(
        parse_segment(&SEGMENT[..20]).map_err(kind),
        Err(ParseErrorKind::BadLength(0x05a0)),
        "empty segment"
    );
}

#[test]
fn segment_is_refused_when_it_has_options_or_is_real_tcp() {
    let mut bytes = SEGMENT;
    bytes[12] = 0x60;
    assert_eq!(parse_segment(&bytes).map_err(kind), Err(ParseErrorKind::BadLength(24)));
    for flag in [1, 2, 4] {
        let mut bytes = SEGMENT;
        bytes[13] |= flag;
        assert!(matches!(parse_segment(&bytes).map_err(kind), Err(ParseErrorKind::BadField(_))));
    }
}

/// Partial TCP over IPv4 at offset 34, MSS 1448, VLAN 5 with priority 3, context
/// 0x0102030405060708.
const FRAME: [u8; 18] = [0, 0x0e, 34, 0, 0x05, 0xa8, 0x70, 0x05, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0];

fn frame_repr() -> SttRepr {
    SttRepr {
        checksum: SttChecksum::Partial { l4_offset: 34, ipv4: true, tcp: true, mss: 1448 },
        vlan: Some(SttVlan { pcp: 3, vid: 5 }),
        context_id: 0x0102_0304_0506_0708,
    }
}

fn parse_frame(bytes: &[u8], ethernet_len: usize) -> Result<SttRepr, ParseError> {
    SttRepr::parse(&SttPacket::new_checked(bytes)?, ethernet_len)
}

#[test]
fn frame_is_read_and_emitted_as_the_draft_lays_it_out() {
    assert_eq!(parse_frame(&FRAME, 1514), Ok(frame_repr()));
    let mut bytes = dirty(20);
    frame_repr().emit(&mut SttPacket::new_unchecked(&mut bytes));
    assert_eq!(bytes, [&FRAME[..], &[0xa5, 0xa5]].concat());
    assert_eq!(SttPacket::new_checked(&bytes).unwrap().payload(), [0xa5, 0xa5]);
}

#[test]
fn frame_flags_tell_verified_from_unverified() {
    for (flags, checksum) in
        [(0, SttChecksum::Unverified), (1, SttChecksum::Verified), (0x0d, SttChecksum::Verified)]
    {
        let mut bytes = FRAME;
        bytes[1] = flags;
        bytes[2] = 255; // means nothing unless the checksum is partial
        assert_eq!(parse_frame(&bytes, 60).unwrap().checksum, checksum);
    }
}

#[test]
fn frame_has_a_vlan_tag_only_when_bit_12_says_so() {
    let mut bytes = FRAME;
    bytes[6] = 0x60;
    assert_eq!(parse_frame(&bytes, 1514).unwrap().vlan, None);
}

#[test]
fn frame_is_refused_when_its_transport_header_does_not_fit() {
    let with = |flags: u8, l4_offset: u8, ethernet_len: usize| {
        let mut bytes = FRAME;
        (bytes[1], bytes[2]) = (flags, l4_offset);
        parse_frame(&bytes, ethernet_len).is_ok()
    };
    for (flags, min_offset, l4_len) in
        [(0x0e, 34, 20), (0x0a, 54, 20), (0x06, 34, 8), (0x02, 54, 8)]
    {
        let exact = usize::from(min_offset) + l4_len;
        assert!(with(flags, min_offset, exact));
        assert!(!with(flags, min_offset - 1, exact), "inside the IP header");
        assert!(!with(flags, min_offset, exact - 1), "beyond the frame");
    }
}

#[test]
fn frame_is_refused_when_truncated_or_of_another_version() {
    refuses_every_truncation(&FRAME, |bytes| parse_frame(bytes, 1514));
    let mut bytes = FRAME;
    bytes[0] = 1;
    assert_eq!(parse_frame(&bytes, 1514).map_err(kind), Err(ParseErrorKind::BadVersion(1)));
    assert_eq!(parse_frame(&FRAME, 13).map_err(kind), Err(ParseErrorKind::BadLength(13)));
}

proptest! {
    #[test]
    fn segment_round_trips(
        src_port: u16, dst_port: u16, frame_len in 18_u16.., offset: u16, packet_id: u32,
        len in 1_usize..100,
    ) {
        let repr = SttSegmentRepr { src_port, dst_port, frame_len, offset, packet_id };
        let mut bytes = dirty(20 + len);
        repr.emit(&mut SttSegmentPacket::new_unchecked(&mut bytes));
        let fits = usize::from(offset) + len <= usize::from(frame_len);
        prop_assert_eq!(parse_segment(&bytes).ok(), fits.then_some(repr));
    }

    #[test]
    fn frame_round_trips(
        l4_offset in 54_u8.., ipv4: bool, tcp: bool, mss: u16,
        tag in prop::option::of((0_u8..8, 0_u16..4096)), context_id: u64, state in 0..3,
    ) {
        let checksum = match state {
            0 => SttChecksum::Unverified,
            1 => SttChecksum::Verified,
            _ => SttChecksum::Partial { l4_offset, ipv4, tcp, mss },
        };
        let vlan = tag.map(|(pcp, vid)| SttVlan { pcp, vid });
        let repr = SttRepr { checksum, vlan, context_id };
        let mut bytes = dirty(18);
        repr.emit(&mut SttPacket::new_unchecked(&mut bytes));
        prop_assert_eq!(parse_frame(&bytes, 1514), Ok(repr));
    }
}
