//! Segmentation, compared with a naive segmenter.

use crate::support::{ACK, CWR, FIN, PSH, Spec, any_spec, naive_sum, same};
use packet::{
    Checksum, ChecksumStatus, Offload, PacketBuf, SegmentChecksum, SegmentError, Segmenter,
    SplitLimits, split, verify_checksum,
};
use proptest::prelude::*;

fn segments(packet: &PacketBuf, outer_len: usize) -> Vec<Vec<u8>> {
    let mut segmenter = Segmenter::new();
    segmenter
        .segment(packet, outer_len, SegmentChecksum::Complete, |_| {})
        .unwrap()
        .map(|(header, payload)| [header, payload].concat())
        .collect()
}

#[test]
fn segment_sets_flags_and_sequence_numbers_when_tcp() {
    let spec =
        Spec { flags: ACK | FIN | PSH | CWR, id: 0xffff, seq: u32::MAX - 10, ..Spec::default() };
    let out = segments(&spec.packet(Some(40)), 0);
    assert_eq!(out.len(), 3);
    let l4 = spec.l4();
    let flags: Vec<u8> = out.iter().map(|s| s[l4 + 13]).collect();
    assert_eq!(flags, [ACK | CWR, ACK, ACK | FIN | PSH]);
    let ids: Vec<[u8; 2]> = out.iter().map(|s| [s[18], s[19]]).collect();
    assert_eq!(ids, [[0xff, 0xff], [0, 0], [0, 1]]);
    let seqs: Vec<u32> =
        out.iter().map(|s| u32::from_be_bytes(s[l4 + 4..l4 + 8].try_into().unwrap())).collect();
    assert_eq!(seqs, [u32::MAX - 10, 29, 69]);
}

#[test]
fn segment_writes_ffff_when_udp_checksum_computes_to_zero() {
    let mut spec = Spec { udp: true, payload: vec![0; 4], ..Spec::default() };
    // Choose the payload so that the sum is 0xffff.
    let rest = !u16::from_be_bytes(spec.frame()[40..42].try_into().unwrap());
    spec.payload[..2].copy_from_slice(&(!rest).to_be_bytes());
    let super_packet =
        Spec { payload: [&spec.payload[..], &spec.payload[..]].concat(), ..spec.clone() };
    for (packet, count) in [(spec.packet(None), 1), (super_packet.packet(Some(4)), 2)] {
        let out = segments(&packet, 0);
        assert_eq!(out.len(), count);
        for segment in out {
            assert_eq!(segment[40..42], [0xff, 0xff]);
            assert_eq!(verify_checksum(&PacketBuf::from_bytes(&segment)), ChecksumStatus::Valid);
        }
    }
}

#[test]
fn segment_leaves_padding_out_when_frame_is_padded() {
    let spec = Spec { payload: vec![7; 3], options: vec![], ..Spec::default() };
    for size in [None, Some(3), Some(2)] {
        let mut packet = spec.packet(size);
        packet.append(&[0xee; 9]);
        let out = segments(&packet, 0);
        for (segment, want) in out.iter().zip(spec.segments(size.unwrap_or(3).into())) {
            let want = want.frame();
            assert_eq!(segment[..want.len()], want);
        }
    }
}

#[test]
fn fix_hook_sees_every_segment_when_outer_prefix_is_given() {
    let spec = Spec::default();
    let mut packet = spec.packet(Some(40));
    packet.push_front(8).unwrap().fill(0xa5);
    let mut segmenter = Segmenter::new();
    let mut seen = Vec::new();
    let out = segmenter
        .segment(&packet, 8, SegmentChecksum::Complete, |s| {
            let transport = s.transport.unwrap();
            let bytes = [&s.header[transport.offset..], s.payload].concat();
            assert_eq!(bytes.len(), transport.len);
            // Local checksum offload depends on this property.
            assert_eq!(naive_sum(&bytes), !transport.pseudo);
            s.header[7] = s.index as u8;
            seen.push((s.index, s.count, s.payload.len()));
        })
        .unwrap();
    assert_eq!(
        (out.len(), out.header_len(), out.segment_len()),
        (3, 8 + spec.header_len(), 8 + spec.header_len() + 40)
    );
    for (i, ((header, payload), want)) in out.zip(spec.segments(40)).enumerate() {
        assert_eq!(header[..8], [0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, i as u8]);
        assert_eq!([&header[8..], payload].concat(), want.frame());
    }
    assert_eq!(seen, [(0, 3, 40), (1, 3, 40), (2, 3, 20)]);
}

#[test]
fn packet_passes_unchanged_when_no_offload_is_pending() {
    let mut packet = PacketBuf::from_bytes(&[0x5a; 60]);
    assert_eq!(segments(&packet, 0), [[0x5a; 60]]);
    packet.push_front(4).unwrap().fill(1);
    assert_eq!(segments(&packet, 4)[0].len(), 64);
}

#[test]
fn split_parts_respect_both_limits() {
    let spec = Spec { payload: vec![1; 1000], ..Spec::default() };
    let packet = spec.packet(Some(10));
    let mut segmenter = Segmenter::new();
    let all = segmenter.segment(&packet, 0, SegmentChecksum::Complete, |_| {}).unwrap();
    let want: Vec<_> = all.collect();
    for (max_segments, max_bytes) in [(64, 65_507), (64, 1000), (1, 1), (0, 0), (1000, 1 << 20)] {
        let trains: Vec<_> = all.trains(max_segments, max_bytes).collect();
        assert_eq!(trains.iter().copied().flatten().collect::<Vec<_>>(), want);
        for train in &trains {
            assert!(
                train.len() == 1 || (train.len() <= max_segments && train.total_len() <= max_bytes)
            );
        }
        let largest = all.segment_len();
        let ideal = (max_bytes / largest).min(max_segments).max(1);
        assert_eq!(trains.len(), 100usize.div_ceil(ideal));
    }
}

#[test]
fn segmentation_fails_when_offload_is_inconsistent() {
    let spec = Spec::default();
    let try_with = |change: &dyn Fn(&mut PacketBuf)| {
        let mut packet = spec.packet(Some(40));
        change(&mut packet);
        Segmenter::new().segment(&packet, 0, SegmentChecksum::Complete, |_| {}).map(|s| s.len())
    };
    let gso = |p: &mut PacketBuf| p.offload.gso.unwrap();
    assert_eq!(try_with(&|_| {}), Ok(3));
    assert_eq!(
        try_with(&|p| p.offload.checksum = Checksum::Verified),
        Err(SegmentError::ChecksumMisplaced)
    );
    assert_eq!(
        try_with(&|p| p.offload.checksum = Checksum::Partial { start: 35, offset: 16 }),
        Err(SegmentError::ChecksumMisplaced)
    );
    assert_eq!(
        try_with(&|p| p.offload.gso = Some(packet::Gso { kind: packet::GsoKind::TcpV6, ..gso(p) })),
        Err(SegmentError::KindMismatch)
    );
    assert_eq!(
        try_with(&|p| p.offload.gso = Some(packet::Gso { size: 0, ..gso(p) })),
        Err(SegmentError::ZeroSize)
    );
    assert_eq!(try_with(&|p| p.head_mut()[14] = 0x55), Err(SegmentError::NotTransport));
    assert_eq!(try_with(&|p| p.head_mut()[20] = 0x20), Err(SegmentError::NotTransport));
    assert_eq!(try_with(&|p| p.head_mut()[46] = 0x40), Err(SegmentError::Truncated));
    assert_eq!(try_with(&|p| p.truncate(100)), Err(SegmentError::NotTransport));
    let many = Spec { payload: vec![0; 8193], ..Spec::default() }.packet(Some(1));
    assert_eq!(
        Segmenter::new().segment(&many, 0, SegmentChecksum::Complete, |_| {}).map(|s| s.len()),
        Err(SegmentError::TooManySegments(8193))
    );
}

#[test]
fn segmentation_fails_when_headers_are_too_long() {
    let spec = Spec { v6: true, options: vec![], ip_extra: 248, ..Spec::default() };
    let len = spec.header_len();
    let mut packet = spec.packet(Some(10));
    for (outer, fits) in [(512 - len, true), (513 - len, false)] {
        packet.pull_front(packet.len() - spec.packet(None).len());
        packet.push_front(outer).unwrap();
        let count = Segmenter::new()
            .segment(&packet, outer, SegmentChecksum::Complete, |_| {})
            .map(|s| s.len());
        assert_eq!(count, if fits { Ok(10) } else { Err(SegmentError::HeadersTooLong(513)) });
    }
}

#[test]
fn split_does_nothing_when_within_limits() {
    let spec = Spec::default();
    let mut packet = spec.packet(Some(40));
    let limits = SplitLimits { max_segments: 3, max_bytes: packet.len() };
    assert!(split(&mut packet, limits).unwrap().is_empty());
    assert!(same(&packet, &spec.packet(Some(40))));
}

#[test]
fn split_fails_when_no_segment_fits() {
    let spec = Spec::default();
    for limits in [
        SplitLimits { max_segments: 0, max_bytes: 65_535 },
        SplitLimits { max_segments: 64, max_bytes: spec.header_len() + 39 },
    ] {
        let mut packet = spec.packet(Some(40));
        assert_eq!(split(&mut packet, limits).unwrap_err(), SegmentError::LimitTooSmall);
        assert!(same(&packet, &spec.packet(Some(40))));
    }
}

proptest! {
    #[test]
    fn segments_equal_those_of_the_naive_segmenter(
        spec in any_spec(3000), size in 1u16..1500, outer in 0usize..60,
    ) {
        let mut packet = spec.packet(Some(size));
        packet.push_front(outer).unwrap().fill(0xa5);
        let out = segments(&packet, outer);
        let want: Vec<_> = spec.segments(size.into()).iter().map(Spec::frame).collect();
        prop_assert_eq!(out.len(), want.len());
        for (segment, want) in out.iter().zip(&want) {
            prop_assert_eq!(&segment[..outer], &vec![0xa5; outer]);
            prop_assert_eq!(&segment[outer..], want);
        }
    }

    #[test]
    fn partial_segments_equal_complete_ones_after_the_device_completes_them(
        spec in any_spec(3000), size in 1u16..1500,
    ) {
        let packet = spec.packet(Some(size));
        let mut segmenter = Segmenter::new();
        let out = segmenter.segment(&packet, 0, SegmentChecksum::Partial, |_| {}).unwrap();
        let offload = out.offload();
        for ((header, payload), want) in out.zip(spec.segments(size.into())) {
            let mut one = PacketBuf::from_bytes(&[header, payload].concat());
            one.offload = offload;
            packet::complete_checksum(&mut one).unwrap();
            prop_assert_eq!(one.to_vec(), want.frame());
        }
    }

    #[test]
    fn checksum_is_completed_when_packet_is_no_super_packet(
        spec in any_spec(300),
        outer in 0usize..40,
    ) {
        let mut packet = spec.packet(None);
        packet.push_front(outer).unwrap().fill(1);
        prop_assert_eq!(&segments(&packet, outer)[0][outer..], &spec.frame());
    }

    #[test]
    fn split_parts_give_the_same_segments_when_segmented(
        spec in any_spec(3000),
        size in 1u16..1500,
        max_segments in 1usize..10,
        room in 0usize..3000,
    ) {
        let mut packet = spec.packet(Some(size));
        let max_bytes = spec.header_len() + usize::from(size) + room;
        let parts = split(&mut packet, SplitLimits { max_segments, max_bytes }).unwrap();
        let mut out = Vec::new();
        for part in std::iter::once(&packet).chain(&parts) {
            prop_assert!(part.len() <= max_bytes);
            if !parts.is_empty() {
                let payload_len = part.len() - spec.header_len();
                prop_assert_eq!(part.offload.gso.is_some(), payload_len > usize::from(size));
            }
            if let (Some(gso), false) = (part.offload.gso, spec.udp) {
                let cwr = part.head()[spec.l4() + 13] & CWR != 0;
                prop_assert!(gso.ecn == cwr);
            }
            let own = segments(part, 0);
            prop_assert!(own.len() <= max_segments);
            out.extend(own);
        }
        let want: Vec<_> = spec.segments(size.into()).iter().map(Spec::frame).collect();
        prop_assert_eq!(out, want);
    }

    #[test]
    fn segmentation_does_not_panic_on_arbitrary_bytes(
        spec in any_spec(200), size in 0u16..100, cut in 0usize..400, outer in 0usize..70,
        changes in prop::collection::vec((0usize..120, any::<u8>()), 0..6),
        start in any::<Option<u16>>(),
    ) {
        let mut packet = spec.packet(Some(size));
        if let Some(start) = start {
            packet.offload.checksum = Checksum::Partial { start, offset: start };
        }
        for (at, value) in changes {
            if let Some(byte) = packet.head_mut().get_mut(at) {
                *byte = value;
            }
        }
        packet.truncate(cut);
        let segment = |packet: &PacketBuf, checksum| {
            let mut segmenter = Segmenter::new();
            let _ = segmenter.segment(packet, outer, checksum, |_| {}).map(Iterator::count);
        };
        segment(&packet, SegmentChecksum::Complete);
        let _ = split(&mut packet.clone(), SplitLimits { max_segments: 3, max_bytes: 200 });
        let _ = verify_checksum(&packet);
        let _ = packet::complete_checksum(&mut packet.clone());
        packet.offload.gso = None;
        segment(&packet, SegmentChecksum::Complete);
        let _ = packet::complete_checksum(&mut packet);
        packet.offload = Offload::default();
        segment(&packet, SegmentChecksum::Partial);
    }
}
