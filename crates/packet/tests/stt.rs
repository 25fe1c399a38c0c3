//! Reassembly of STT frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::PacketBuf;
use packet::stt::{
    SttDrop, SttFrameKey, SttLimits, SttProgress, SttReassembler, SttSegmentPosition,
};
use proptest::prelude::*;

const KEY: SttFrameKey = SttFrameKey {
    src: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    dst: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
    src_port: 50_000,
    packet_id: 1,
};

fn key(packet_id: u32) -> SttFrameKey {
    SttFrameKey { packet_id, ..KEY }
}

fn frame(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

struct Rig {
    reassembler: SttReassembler,
    now_ms: u64,
}

impl Rig {
    fn new(limits: SttLimits) -> Self {
        Self { reassembler: SttReassembler::new(limits), now_ms: 1_000_000 }
    }

    /// Pushes `bytes[from..to]` and returns the frame when it is complete.
    fn push(
        &mut self,
        id: u32,
        bytes: &[u8],
        from: usize,
        to: usize,
    ) -> Result<Option<Vec<u8>>, SttDrop> {
        let place =
            SttSegmentPosition { total: bytes.len() as u16, offset: from as u16, ce: false };
        let mut packet = PacketBuf::from_bytes(&bytes[from..to]);
        match self.reassembler.push(key(id), place, &mut packet, self.now_ms)? {
            SttProgress::Complete { .. } => Ok(Some(packet.to_vec())),
            SttProgress::Pending => Ok(None),
        }
    }
}

#[test]
fn frame_passes_without_copy_when_whole() {
    let mut reassembler = SttReassembler::new(SttLimits::default());
    let bytes = frame(3000);
    let mut packet = PacketBuf::from_bytes(&bytes);
    let before = packet.head().as_ptr();
    let place = SttSegmentPosition { total: 3000, offset: 0, ce: true };
    assert_eq!(
        reassembler.push(KEY, place, &mut packet, 0),
        Ok(SttProgress::Complete { ce: true })
    );
    assert_eq!((packet.head().as_ptr(), packet.to_vec()), (before, bytes));
    assert_eq!((reassembler.frames(), reassembler.bytes()), (0, 0));
}

#[test]
fn give_back_restores_the_callers_buffer() {
    let mut reassembler = SttReassembler::new(SttLimits::default());
    let bytes = frame(100);
    let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
    let own = packet.spare_mut().as_ptr();
    for id in 1..10 {
        for (from, to) in [(0, 60), (60, 100)] {
            packet.reset(PacketBuf::HEADROOM);
            packet.append(&bytes[from..to]);
            let place = SttSegmentPosition { total: 100, offset: from as u16, ce: false };
            let progress = reassembler.push(key(id), place, &mut packet, 0).unwrap();
            assert_eq!(progress == SttProgress::Pending, from == 0);
        }
        assert_eq!(packet.to_vec(), bytes);
        reassembler.restore_buffer(&mut packet);
        assert!(packet.is_empty());
        assert_eq!(packet.spare_mut().as_ptr(), own, "the longest frame still fits");
        reassembler.restore_buffer(&mut packet);
        assert_eq!(packet.spare_mut().as_ptr(), own, "a second call has no effect");
    }
}

#[test]
fn frame_is_complete_when_segments_come_in_any_order() {
    let bytes = frame(65_535);
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut rig = Rig::new(SttLimits::default());
        let cuts = [0, 20_001, 50_000, 65_535];
        for (n, i) in order.into_iter().enumerate() {
            let out = rig.push(1, &bytes, cuts[i], cuts[i + 1]).unwrap();
            assert_eq!(out, (n == 2).then(|| bytes.clone()));
        }
        assert_eq!((rig.reassembler.frames(), rig.reassembler.bytes()), (0, 0));
    }
}

#[test]
fn frame_has_headroom_when_reassembled() {
    let mut reassembler = SttReassembler::new(SttLimits::default());
    let bytes = frame(100);
    let mut packet = PacketBuf::with_capacity(0, 50);
    for from in [0, 50] {
        packet.reset(0);
        packet.append(&bytes[from..from + 50]);
        let place = SttSegmentPosition { total: 100, offset: from as u16, ce: false };
        reassembler.push(KEY, place, &mut packet, 0).unwrap();
    }
    assert_eq!((packet.headroom(), packet.head()), (PacketBuf::HEADROOM, &bytes[..]));
}

#[test]
fn buffers_are_reused_when_large_enough() {
    let mut reassembler = SttReassembler::new(SttLimits::default());
    let bytes = frame(100);
    // The address of the buffer with the frame that was reassembled from two segments.
    let mut receive = |len: u16| {
        let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, 100);
        for offset in [0, 40] {
            let end = if offset == 0 { 40 } else { len };
            packet.reset(PacketBuf::HEADROOM);
            packet.append(&bytes[usize::from(offset)..usize::from(end)]);
            let place = SttSegmentPosition { total: len, offset, ce: false };
            reassembler.push(KEY, place, &mut packet, 0).unwrap();
        }
        assert_eq!(packet.head(), &bytes[..usize::from(len)]);
        let storage = packet.head().as_ptr();
        reassembler.restore_buffer(&mut packet);
        (storage, packet)
    };
    let _one_byte_too_small = receive(79);
    let (storage, _callers) = receive(80);
    assert_eq!(receive(80).0, storage);
    assert_eq!(receive(79).0, storage);
}

#[test]
fn ce_is_reported_when_any_segment_had_it() {
    for marked in 0..4 {
        let mut reassembler = SttReassembler::new(SttLimits::default());
        let bytes = frame(300);
        let mut last = None;
        for i in 0..3u16 {
            let at = usize::from(i) * 100;
            let mut packet = PacketBuf::from_bytes(&bytes[at..at + 100]);
            let place = SttSegmentPosition { total: 300, offset: i * 100, ce: i == marked };
            last = reassembler.push(KEY, place, &mut packet, 0).ok();
        }
        assert_eq!(last, Some(SttProgress::Complete { ce: marked < 3 }));
    }
}

#[test]
fn frames_are_kept_apart_when_any_part_of_the_key_differs() {
    let keys = [
        KEY,
        SttFrameKey { packet_id: 2, ..KEY },
        SttFrameKey { src_port: 1, ..KEY },
        SttFrameKey { src: KEY.dst, ..KEY },
        SttFrameKey { dst: IpAddr::V6(Ipv6Addr::LOCALHOST), ..KEY },
    ];
    let mut reassembler = SttReassembler::new(SttLimits::default());
    for (half, offset) in [(0, 0), (1, 20u16)] {
        for (i, key) in keys.into_iter().enumerate() {
            let mut packet = PacketBuf::from_bytes(&[i as u8; 20]);
            let got = reassembler.push(
                key,
                SttSegmentPosition { total: 40, offset, ce: false },
                &mut packet,
                0,
            );
            match half {
                0 => assert_eq!(got, Ok(SttProgress::Pending)),
                _ => assert_eq!(
                    (got, packet.to_vec()),
                    (Ok(SttProgress::Complete { ce: false }), vec![i as u8; 40])
                ),
            }
        }
    }
}

#[test]
fn segment_is_rejected_and_counted_when_inconsistent() {
    let mut rig = Rig::new(SttLimits::default());
    let bytes = frame(1000);
    assert_eq!(rig.push(1, &bytes, 100, 300), Ok(None));
    let cases = [
        (SttDrop::Empty, rig.push(1, &bytes, 300, 300)),
        (SttDrop::TotalTooShort, rig.push(1, &bytes[..17], 0, 17)),
        (SttDrop::InconsistentTotal, rig.push(1, &bytes[..900], 300, 400)),
        (SttDrop::Overlap, rig.push(1, &bytes, 100, 300)),
        (SttDrop::Overlap, rig.push(1, &bytes, 0, 101)),
        (SttDrop::Overlap, rig.push(1, &bytes, 299, 400)),
        (SttDrop::Overlap, rig.push(1, &bytes, 150, 200)),
    ];
    for (reason, got) in cases {
        assert_eq!(got, Err(reason));
    }
    let mut long = PacketBuf::from_bytes(&bytes[..101]);
    let place = SttSegmentPosition { total: 1000, offset: 900, ce: false };
    assert_eq!(rig.reassembler.push(key(1), place, &mut long, 0), Err(SttDrop::BeyondTotal));
    assert_eq!(long.len(), 101, "a rejected packet is unchanged");
    let counted: Vec<u64> = SttDrop::ALL.iter().map(|&r| rig.reassembler.dropped(r)).collect();
    assert_eq!(counted, [1, 1, 1, 1, 4, 0, 0, 0, 0, 0]);
    // The rejected segments did not affect the frame.
    assert_eq!(rig.push(1, &bytes, 0, 100), Ok(None));
    assert_eq!(rig.push(1, &bytes, 300, 1000), Ok(Some(bytes)));
}

#[test]
fn incomplete_frame_is_dropped_when_a_whole_frame_has_its_packet_id() {
    let mut rig = Rig::new(SttLimits::default());
    let (old, new) = (frame(1000), frame(300));
    assert_eq!(rig.push(1, &old, 0, 500), Ok(None));
    assert_eq!(rig.push(1, &new, 0, 300), Ok(Some(new)));
    assert_eq!((rig.reassembler.frames(), rig.reassembler.bytes()), (0, 0));
    assert_eq!(rig.reassembler.dropped(SttDrop::Superseded), 1);
}

#[test]
fn frame_expires_when_not_complete_in_time() {
    let mut rig = Rig::new(SttLimits::default());
    let bytes = frame(100);
    assert_eq!(rig.push(1, &bytes, 0, 50), Ok(None));
    rig.now_ms += 29_999;
    assert_eq!(rig.push(2, &bytes, 0, 50), Ok(None));
    assert_eq!(rig.reassembler.frames(), 2);
    rig.now_ms += 1;
    rig.reassembler.expire(rig.now_ms);
    assert_eq!((rig.reassembler.frames(), rig.reassembler.bytes()), (1, 100));
    assert_eq!(rig.reassembler.dropped(SttDrop::Expired), 1);
    assert_eq!(rig.push(2, &bytes, 50, 100), Ok(Some(bytes)));
}

#[test]
fn oldest_frame_is_evicted_when_memory_is_full() {
    let mut rig = Rig::new(SttLimits { max_bytes: 300, max_frames: 100, timeout_ms: 30_000 });
    let bytes = frame(100);
    for id in 0..4 {
        assert_eq!(rig.push(id, &bytes, 0, 50), Ok(None));
    }
    assert_eq!((rig.reassembler.frames(), rig.reassembler.bytes()), (3, 300));
    assert_eq!(rig.reassembler.dropped(SttDrop::Evicted), 1);
    assert_eq!(rig.push(1, &bytes, 50, 100), Ok(Some(bytes.clone())));
    assert_eq!(rig.push(0, &bytes, 50, 100), Ok(None), "the first half was evicted");
    assert_eq!(rig.push(9, &frame(301), 0, 50), Err(SttDrop::OverLimit));
    assert_eq!(
        rig.push(9, &frame(301), 0, 301),
        Ok(Some(frame(301))),
        "a whole frame needs no memory"
    );
}

#[test]
fn oldest_frame_is_evicted_when_there_are_too_many() {
    let mut rig = Rig::new(SttLimits { max_frames: 2, ..SttLimits::default() });
    let bytes = frame(100);
    for id in 0..3 {
        assert_eq!(rig.push(id, &bytes, 0, 50), Ok(None));
    }
    assert_eq!((rig.reassembler.frames(), rig.reassembler.dropped(SttDrop::Evicted)), (2, 1));
    assert_eq!(rig.push(2, &bytes, 50, 100), Ok(Some(bytes)));
    let mut none = Rig::new(SttLimits { max_frames: 0, ..SttLimits::default() });
    assert_eq!(none.push(1, &frame(100), 0, 50), Err(SttDrop::OverLimit));
}

#[test]
fn segment_is_rejected_when_its_frame_has_too_many_ranges() {
    let mut rig = Rig::new(SttLimits::default());
    let bytes = frame(1000);
    for i in 0..64 {
        assert_eq!(rig.push(1, &bytes, i * 2, i * 2 + 1), Ok(None));
    }
    assert_eq!(rig.push(1, &bytes, 128, 129), Err(SttDrop::Scattered));
    for i in 0..63 {
        assert_eq!(rig.push(1, &bytes, i * 2 + 1, i * 2 + 2), Ok(None));
    }
    assert_eq!(rig.push(1, &bytes, 127, 1000), Ok(Some(bytes)));
}

proptest! {
    /// Compares the reassembler with a model that keeps one flag per byte.
    #[test]
    fn reassembler_agrees_with_the_model_on_random_segments(
        total in 18usize..300,
        segments in prop::collection::vec((0usize..300, 1usize..120), 1..40),
    ) {
        let bytes = frame(total);
        let mut rig = Rig::new(SttLimits::default());
        let mut have = vec![false; total];
        for (from, len) in segments {
            let to = (from + len).min(total);
            if from >= to {
                continue;
            }
            let got = rig.push(1, &bytes, from, to);
            if from == 0 && to == total {
                prop_assert_eq!(got, Ok(Some(bytes.clone())));
                have.fill(false);
                continue;
            }
            if have[from..to].contains(&true) {
                prop_assert_eq!(got, Err(SttDrop::Overlap));
                continue;
            }
            have[from..to].fill(true);
            if have.contains(&false) {
                prop_assert_eq!(got, Ok(None));
            } else {
                prop_assert_eq!(got, Ok(Some(bytes.clone())));
                have.fill(false);
            }
        }
    }

    #[test]
    fn limits_hold_on_random_segments(
        segments in prop::collection::vec(
            (0u32..6, any::<u16>(), any::<u16>(), 0usize..2000, 0u64..20_000),
            1..60,
        ),
    ) {
        let limits = SttLimits { max_bytes: 100_000, max_frames: 3, timeout_ms: 30_000 };
        let mut rig = Rig::new(limits);
        for (id, total, offset, len, wait_ms) in segments {
            rig.now_ms += wait_ms;
            let mut packet = PacketBuf::from_bytes(&vec![0; len]);
            let place = SttSegmentPosition { total, offset, ce: false };
            let progress = rig.reassembler.push(key(id), place, &mut packet, rig.now_ms);
            if matches!(progress, Ok(SttProgress::Complete { .. })) {
                prop_assert_eq!(packet.len(), usize::from(total));
            }
            prop_assert!(rig.reassembler.bytes() <= limits.max_bytes);
            prop_assert!(rig.reassembler.frames() <= limits.max_frames);
        }
        rig.reassembler.expire(rig.now_ms + limits.timeout_ms);
        prop_assert_eq!((rig.reassembler.frames(), rig.reassembler.bytes()), (0, 0));
    }
}
