//! Reassembles STT segments.

use flow::strip_stt_segment;
use packet::stt::{SttLimits, SttProgress, SttReassembler};
use packet::{Checksum, PacketBuf};

use crate::lists;

/// Small, so that inputs reach the limits.
const LIMITS: SttLimits = SttLimits { max_bytes: 100_000, max_frames: 3, timeout_ms: 20 };

/// Reassembles a list of Ethernet frames with STT segments. Returns the number of complete STT
/// frames.
pub fn list(bytes: &[u8]) -> usize {
    let mut reassembler = SttReassembler::new(LIMITS);
    let mut complete = 0;
    for (now_ms, frame) in (0..).zip(lists::read(bytes)) {
        let mut packet = PacketBuf::from_bytes(frame);
        // Mutated segments rarely have a right checksum.
        packet.offload.checksum = Checksum::Verified;
        let Ok(segment) = strip_stt_segment(&mut packet) else { continue };
        let progress = reassembler.push(segment.key, segment.place, &mut packet, now_ms);
        if let Ok(SttProgress::Complete { .. }) = progress {
            assert_eq!(packet.len(), usize::from(segment.place.total));
            complete += 1;
        }
        assert!(reassembler.bytes() <= LIMITS.max_bytes);
        assert!(reassembler.frames() <= LIMITS.max_frames);
    }
    reassembler.expire(u64::MAX);
    assert_eq!((reassembler.bytes(), reassembler.frames()), (0, 0));
    complete
}
