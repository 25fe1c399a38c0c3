//! Completing and verifying transport checksums.

use crate::support::{Spec, any_spec, in_snap};
use packet::{
    Checksum, ChecksumError, ChecksumStatus, Gso, GsoKind, PacketBuf, SegmentChecksum,
    SegmentError, SegmentSizeLost, Segmenter, SplitLimits, coalesce_ranges, complete_checksum,
    complete_crc32c, complete_misplaced_checksum, infer_offload, infer_partial, limit_segments,
    split, verify_checksum, vnet,
};
use proptest::prelude::*;
use testkit::crc32c::crc32c;

/// The same packet with its bytes after `head_len` in buffer fragments of `piece` bytes, with gaps
/// between them.
fn scattered(packet: &PacketBuf, head_len: usize, piece: usize) -> PacketBuf {
    let bytes = packet.to_vec();
    let (head, rest) = bytes.split_at(head_len.min(bytes.len()));
    let mut storage = head.to_vec();
    let mut ranges = Vec::new();
    for chunk in rest.chunks(piece) {
        storage.extend([0x99; 3]);
        ranges.push(storage.len()..storage.len() + chunk.len());
        storage.extend(chunk);
    }
    let mut out = PacketBuf::from_bytes(&storage);
    out.set_ranges(0..head.len(), ranges);
    out.offload = packet.offload;
    out
}

#[test]
fn completion_fails_when_super_packet_or_field_outside() {
    let mut packet = Spec::default().packet(Some(10));
    assert_eq!(complete_checksum(&mut packet), Err(ChecksumError::SuperPacket));
    packet.offload.gso = None;
    packet.truncate(51);
    let before = packet.to_vec();
    assert_eq!(complete_checksum(&mut packet), Err(ChecksumError::OutsideFrame));
    assert_eq!(packet.to_vec(), before);
}

#[test]
fn packet_is_unchanged_when_it_has_no_partial_checksum() {
    for checksum in [Checksum::Unverified, Checksum::Verified] {
        let mut packet = PacketBuf::from_bytes(&[0x33; 70]);
        packet.offload.checksum = checksum;
        complete_checksum(&mut packet).unwrap();
        assert_eq!((packet.to_vec(), packet.offload.checksum), (vec![0x33; 70], checksum));
    }
}

#[test]
fn checksum_is_unknown_when_there_is_none_to_verify() {
    let unknown = |frame: &[u8]| {
        assert_eq!(verify_checksum(&PacketBuf::from_bytes(frame)), ChecksumStatus::Unknown);
    };
    let tcp = Spec::default().frame();
    let udp = Spec { udp: true, ..Spec::default() };
    let mut fragment = tcp.clone();
    fragment[20] = 0x20;
    unknown(&fragment);
    let mut icmp = tcp.clone();
    icmp[23] = 1;
    unknown(&icmp);
    let mut without = udp.frame();
    without[40..42].fill(0);
    unknown(&without);
    unknown(&tcp[..40]);
    unknown(&[]);
    assert_eq!(verify_checksum(&udp.packet(None)), ChecksumStatus::Unknown);
    let v6 = Spec { v6: true, ..udp };
    let mut without = v6.frame();
    let at = v6.l4() + 6;
    without[at..at + 2].fill(0);
    assert_eq!(verify_checksum(&PacketBuf::from_bytes(&without)), ChecksumStatus::Invalid);
}

#[test]
fn checksum_is_unknown_when_a_routing_header_hides_the_destination() {
    let spec = Spec { v6: true, ip_extra: 24, ..Spec::default() };
    let mut frame = spec.frame();
    assert_eq!(verify_checksum(&PacketBuf::from_bytes(&frame)), ChecksumStatus::Valid);
    frame[20] = 43;
    assert_eq!(verify_checksum(&PacketBuf::from_bytes(&frame)), ChecksumStatus::Unknown);
}

#[test]
fn split_works_when_super_packet_has_fragments() {
    let spec = Spec { payload: (0..=255).cycle().take(1000).collect(), ..Spec::default() };
    let frames = spec.segments(100);
    let bytes: Vec<u8> = frames.iter().flat_map(|s| s.frame()).collect();
    let len = frames[0].frame().len();
    let ranges: Vec<_> = (0..10).map(|i| i * len..(i + 1) * len).collect();
    let mut packet = PacketBuf::from_bytes(&bytes);
    assert_eq!(coalesce_ranges(&mut packet, &ranges, false), 10);
    assert!(!packet.is_linear());
    let limits = SplitLimits { max_segments: 1000, max_bytes: 65_535 };
    assert!(split(&mut packet, limits).unwrap().is_empty());
    assert!(!packet.is_linear(), "a packet within the limits is not linearized");
    let parts = split(&mut packet, SplitLimits { max_segments: 4, ..limits }).unwrap();
    let payloads: Vec<Vec<u8>> = std::iter::once(&packet)
        .chain(&parts)
        .map(|p| p.to_vec()[spec.header_len()..].to_vec())
        .collect();
    assert_eq!(payloads.iter().map(Vec::len).collect::<Vec<_>>(), [400, 400, 200]);
    assert_eq!(payloads.concat(), spec.payload);
}

#[test]
fn nothing_is_inferred_when_there_is_no_partial_checksum() {
    let udp = Spec { udp: true, ..Spec::default() };
    let mut without = udp.frame();
    without[40..42].fill(0);
    let mut fragment = Spec::default().packet(None).to_vec();
    fragment[20] = 0x20;
    for frame in [Spec::default().frame(), udp.frame(), without, fragment, vec![0; 60], vec![]] {
        let mut packet = PacketBuf::from_bytes(&frame);
        assert!(!infer_partial(&mut packet), "{frame:?}");
        assert_eq!(packet.offload.checksum, Checksum::Unverified);
    }
    let mut known = Spec::default().packet(None);
    known.offload.checksum = Checksum::Verified;
    assert!(!infer_partial(&mut known), "a known checksum state is kept");
    assert_eq!(known.offload.checksum, Checksum::Verified);
}

#[test]
fn super_packet_is_inferred_when_longer_than_the_mtu() {
    for v6 in [false, true] {
        let spec = Spec { v6, payload: vec![7; 3000], ..Spec::default() };
        let unknown = || {
            let mut packet = spec.packet(None);
            packet.offload.checksum = Checksum::Unverified;
            packet
        };
        let mut packet = unknown();
        assert_eq!(infer_offload(&mut packet, spec.header_len() + 3000), Ok(()));
        assert_eq!(packet.offload, spec.packet(None).offload, "it fits");
        let mut packet = unknown();
        assert_eq!(infer_offload(&mut packet, spec.header_len() + 1000), Ok(()));
        let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        assert_eq!(packet.offload.gso, Some(Gso { kind, size: 1000, ecn: false }));
        assert_eq!(packet.offload.checksum, spec.packet(None).offload.checksum);
        assert_eq!(infer_offload(&mut unknown(), spec.header_len()), Err(SegmentSizeLost));
        let complete = &mut PacketBuf::from_bytes(&spec.frame());
        assert_eq!(
            infer_offload(complete, 1000),
            Ok(()),
            "a long packet with a complete checksum is no super-packet"
        );
        assert_eq!(complete.offload.gso, None);
    }
}

/// The segment limit of a guest's port may be lower than that of the path.
#[test]
fn partial_tcp_packet_is_limited_when_it_is_no_super_packet() {
    let spec = Spec { payload: vec![7; 1344], ..Spec::default() };
    let mut packet = spec.packet(None);
    assert_eq!(limit_segments(&mut packet, spec.header_len() + 1344), Ok(()));
    assert_eq!(packet.offload.gso, None, "it fits");
    assert_eq!(limit_segments(&mut packet, spec.header_len() + 1328), Ok(()));
    assert_eq!(packet.offload.gso, Some(Gso { kind: GsoKind::TcpV4, size: 1328, ecn: false }));
    assert_eq!(
        limit_segments(&mut packet, 1000),
        Err(SegmentSizeLost),
        "it already is a super-packet"
    );
    let complete = &mut PacketBuf::from_bytes(&spec.frame());
    assert_eq!(limit_segments(complete, 1000), Err(SegmentSizeLost));
    assert_eq!(complete.offload.gso, None);
}

#[test]
fn udp_super_packet_is_rejected_when_its_segment_size_is_lost() {
    let spec = Spec { udp: true, payload: vec![7; 3000], ..Spec::default() };
    let mut packet = spec.packet(None);
    packet.offload.checksum = Checksum::Unverified;
    assert_eq!(infer_offload(&mut packet, 1000), Err(SegmentSizeLost));
    packet.offload.checksum = Checksum::Unverified;
    assert_eq!(infer_offload(&mut packet, 4000), Ok(()));
}

proptest! {
    #[test]
    fn partial_checksum_is_inferred_when_its_field_holds_the_pseudo_header(
        spec in any_spec(300), padding in 0usize..10,
    ) {
        let mut packet = spec.packet(None);
        packet.append(&vec![0x77; padding]);
        let wanted = packet.offload;
        packet.offload.checksum = Checksum::Unverified;
        prop_assert!(infer_partial(&mut packet));
        prop_assert_eq!(packet.offload, wanted);
        complete_checksum(&mut packet).unwrap();
        prop_assert_eq!(&packet.to_vec()[..packet.len() - padding], spec.frame());
    }

    #[test]
    fn completed_packet_equals_the_naive_one_for_any_fragment_length(
        spec in any_spec(500), piece in 1usize..60, padding in 0usize..10,
    ) {
        let whole = spec.packet(None);
        let mut linear = whole.clone();
        linear.append(&vec![0x77; padding]);
        let mut pieces = scattered(&whole, spec.header_len(), piece);
        prop_assert_eq!(verify_checksum(&whole), ChecksumStatus::Unknown);
        complete_checksum(&mut linear).unwrap();
        complete_checksum(&mut pieces).unwrap();
        let want = spec.frame();
        prop_assert_eq!(&linear.to_vec()[..want.len()], &want[..]);
        prop_assert_eq!(pieces.to_vec(), want);
        for packet in [linear, pieces] {
            prop_assert_eq!(packet.offload.checksum, Checksum::Verified);
            prop_assert_eq!(verify_checksum(&packet), ChecksumStatus::Valid);
        }
    }

    #[test]
    fn verification_fails_when_one_bit_flips(
        spec in any_spec(300),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
        padding in 0usize..10,
    ) {
        let mut bytes = spec.frame();
        let end = bytes.len();
        bytes.extend(vec![0; padding]);
        let at = spec.l4() + at.index(bytes.len() - spec.l4());
        bytes[at] ^= 1 << bit;
        let status = verify_checksum(&PacketBuf::from_bytes(&bytes));
        // An invalid length, or a checksum that becomes zero, makes verification impossible.
        let leaves_none = spec.udp && (spec.l4() + 4..spec.l4() + 8).contains(&at);
        if at >= end {
            prop_assert_eq!(status, ChecksumStatus::Valid, "the checksum does not cover padding");
        } else {
            prop_assert!(status == ChecksumStatus::Invalid || leaves_none);
            prop_assert_ne!(status, ChecksumStatus::Valid);
        }
    }
}

/// An SCTP message with checksum offload: the checksum field is zero.
fn sctp(v6: bool) -> (Vec<u8>, usize) {
    let spec = Spec { v6, options: Vec::new(), tags: vec![0x8100], ..Spec::default() };
    let (mut frame, l3, l4) = (spec.frame(), spec.l3(), spec.l4());
    frame[l3 + if v6 { 6 } else { 9 }] = 132;
    frame[l4 + 8..l4 + 12].fill(0);
    (frame, l4)
}

#[test]
fn sctp_crc_is_completed_when_the_checksum_is_offloaded() {
    for v6 in [false, true] {
        let (frame, l4) = sctp(v6);
        let mut expected = frame.clone();
        expected[l4 + 8..l4 + 12].copy_from_slice(&crc32c(&frame[l4..]).to_le_bytes());
        // The checksum does not cover padding after the IP packet.
        let (mut padded, padding) = (frame, [0xee; 7]);
        padded.extend(padding);
        expected.extend(padding);

        let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, 2000);
        packet.spare_mut()[..padded.len()].copy_from_slice(&padded);
        let header = [1, 0, 0, 0, 0, 0, l4 as u8, 0, 8, 0];
        vnet::receive(&mut packet, &header, padded.len()).unwrap();
        assert_eq!((packet.to_vec(), packet.offload.checksum), (expected, Checksum::Verified));
    }
}

/// The frame with the 16-bit checksum (RFC 1071) of the bytes from `start` written at
/// `start + offset`.
fn summed(frame: &[u8], start: usize, offset: usize) -> Vec<u8> {
    let words = frame[start..].chunks(2).map(|two| match *two {
        [a, b] => u32::from(a) << 8 | u32::from(b),
        ref one => u32::from(one[0]) << 8,
    });
    let sum = words.fold(0, |sum, word| (sum + word) % 0xffff);
    let any = frame[start..].iter().any(|byte| *byte != 0);
    // 0xffff and 0 are equal in one's complement. Only zero bytes sum to 0.
    let sum = if sum == 0 && any { 0 } else { !(sum as u16) };
    let sum = if sum == 0 && offset == 6 { 0xffff } else { sum };
    let mut out = frame.to_vec();
    out[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
    out
}

proptest! {
    #[test]
    fn checksum_of_the_transport_stays_partial_when_it_is_settled(
        spec in any_spec(2000), size in prop::option::of(1u16..2000),
    ) {
        let sent = spec.packet(size);
        let mut packet = sent.clone();
        complete_misplaced_checksum(&mut packet).unwrap();
        prop_assert_eq!((packet.to_vec(), packet.offload), (sent.to_vec(), sent.offload));
    }

    /// A guest may request a checksum of any bytes at any offset. The flow key must be extracted
    /// after it is written.
    #[test]
    fn completion_changes_no_header_after_the_checksum_is_settled(
        spec in any_spec(200),
        at in 0usize..400,
        offset in prop::sample::select(vec![0u16, 1, 2, 6, 8, 16, 30]),
    ) {
        let sent = spec.packet(None);
        let frame = sent.to_vec();
        let start = at % (frame.len() - 32);
        let mut packet = sent.clone();
        packet.offload.checksum = Checksum::Partial { start: start as u16, offset };
        let is_own = packet.offload == sent.offload;
        complete_misplaced_checksum(&mut packet).unwrap();
        let settled = packet.to_vec();
        complete_checksum(&mut packet).unwrap();
        prop_assert_eq!(packet.to_vec(), summed(&frame, start, offset.into()));
        let headers = frame.len() - spec.payload.len();
        if !is_own {
            prop_assert_eq!(&settled[..headers], &packet.to_vec()[..headers]);
        }
    }
}

#[test]
fn checksum_inside_a_guests_own_tunnel_stays_partial_when_it_is_settled() {
    let inner = Spec { payload: vec![7; 900], ..Spec::default() };
    let gre = [
        &[0x45, 0, 0, 0, 0, 1, 0, 0, 64, 47, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2][..],
        &[0, 0, 0x65, 0x58],
    ];
    for (tags, size) in [(0, None), (0, Some(100)), (1, Some(100)), (3, Some(100)), (3, None)] {
        let nested = inner.packet(size);
        let mut outer =
            [&[2; 12][..], &[0x81, 0, 0, 9].repeat(tags), &[8, 0], &gre.concat()].concat();
        let l3 = 14 + 4 * tags;
        outer[l3 + 2..l3 + 4].copy_from_slice(&(24 + nested.len() as u16).to_be_bytes());
        let Checksum::Partial { start, offset } = nested.offload.checksum else { unreachable!() };
        let mut packet = PacketBuf::from_bytes(&[&outer[..], &nested.to_vec()].concat());
        packet.offload = nested.offload;
        let checksum = Checksum::Partial { start: start + outer.len() as u16, offset };
        packet.offload.checksum = checksum;
        let before = packet.to_vec();
        complete_misplaced_checksum(&mut packet).unwrap();
        assert_eq!((packet.to_vec(), packet.offload.checksum), (before, checksum), "{tags} tags");
    }
}

#[test]
fn checksum_is_completed_at_once_when_its_field_is_in_an_arp_address() {
    for (kind, tags) in [(0x0806_u16, 0), (0x8035, 0), (0x8035, 1), (0x0806, 3)] {
        let arp = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &[9; 20], &[0; 18]].concat();
        let tag = [0x81, 0, 0, 9].repeat(tags);
        let frame = [&[2; 12][..], &tag, &kind.to_be_bytes(), &arp].concat();
        let mut packet = PacketBuf::from_bytes(&frame);
        let l3 = 14 + 4 * tags;
        packet.offload.checksum = Checksum::Partial { start: l3 as u16, offset: 14 };
        complete_misplaced_checksum(&mut packet).unwrap();
        let expected = (summed(&frame, l3, 14), Checksum::Unverified);
        assert_eq!((packet.to_vec(), packet.offload.checksum), expected, "{kind:x}, {tags} tags");
    }
}

#[test]
fn checksum_is_completed_at_once_when_the_packet_has_a_snap_header() {
    let spec = Spec { payload: vec![7; 900], ..Spec::default() };
    let sent = spec.packet(None);
    let Checksum::Partial { start, offset } = sent.offload.checksum else { unreachable!() };
    let mut packet = PacketBuf::from_bytes(&in_snap(&sent.to_vec(), 0));
    packet.offload.checksum = Checksum::Partial { start: start + 8, offset };
    let mut large = packet.clone();
    complete_misplaced_checksum(&mut packet).unwrap();
    let expected = (in_snap(&spec.frame(), 0), Checksum::Unverified);
    assert_eq!((packet.to_vec(), packet.offload.checksum), expected);
    // Each segment would need an IEEE 802.3 length of its own.
    large.offload.gso = spec.packet(Some(100)).offload.gso;
    assert_eq!(complete_misplaced_checksum(&mut large), Err(ChecksumError::SuperPacket));
    assert_eq!(
        Segmenter::new().segment(&large, 0, SegmentChecksum::Complete, |_| {}).err(),
        Some(SegmentError::NotTransport)
    );
}

#[test]
fn super_packet_is_rejected_when_its_checksum_field_is_in_a_header() {
    let sent = Spec { payload: vec![7; 900], ..Spec::default() }.packet(Some(100));
    let Checksum::Partial { start: own, offset } = sent.offload.checksum else { unreachable!() };
    for start in [0, own - 20, own - 1, own + 1] {
        let mut packet = sent.clone();
        packet.offload.checksum = Checksum::Partial { start, offset };
        assert_eq!(
            complete_misplaced_checksum(&mut packet),
            Err(ChecksumError::SuperPacket),
            "{start}"
        );
    }
}

#[test]
fn sctp_crc_is_completed_after_any_number_of_tags() {
    for tags in 0..5 {
        let (frame, l4) = sctp(false);
        let frame = [&frame[..12], &[0x88, 0xa8, 0, 5].repeat(tags), &frame[12..]].concat();
        let l4 = l4 + 4 * tags;
        let mut expected = frame.clone();
        expected[l4 + 8..l4 + 12].copy_from_slice(&crc32c(&frame[l4..]).to_le_bytes());
        let mut packet = PacketBuf::from_bytes(&frame);
        packet.offload.checksum = Checksum::Partial { start: l4 as u16, offset: 8 };
        complete_misplaced_checksum(&mut packet).unwrap();
        assert_eq!((packet.to_vec(), packet.offload.checksum), (expected, Checksum::Verified));
    }
}

#[test]
fn partial_checksum_is_unchanged_when_not_sctp() {
    let (frame, l4) = sctp(false);
    let l4 = l4 as u16;
    for (at, value, start, offset) in [
        (None, 0, l4, 16),
        (None, 0, l4 + 2, 8),
        (Some(18 + 9), 6, l4, 8),
        (Some(18 + 6), 0x20, l4, 8),
        (Some(18 + 3), 31, l4, 8),
        (Some(18), 0x55, l4, 8),
    ] {
        let mut frame = frame.clone();
        if let Some(at) = at {
            frame[at] = value;
        }
        let mut packet = PacketBuf::from_bytes(&frame);
        packet.offload.checksum = Checksum::Partial { start, offset };
        assert!(!complete_crc32c(&mut packet), "{at:?} {start} {offset}");
        assert_eq!(packet.to_vec(), frame);
        assert_eq!(packet.offload.checksum, Checksum::Partial { start, offset });
    }
}
