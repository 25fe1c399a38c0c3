//! How much a worker reads from one descriptor before the others get their turn.

use packet::{PacketBuf, segment_count};

/// Frames that a worker reads at most.
pub(crate) const BATCH: usize = 32;
/// No frame is read after so many segments. A batch of super-packets with the usual MTU has fewer
/// than 1,500. With the smallest segments that are allowed, one super-packet has 1,820.
const SEGMENTS: usize = 2048;

/// What a worker has read from a descriptor in this turn.
#[derive(Debug, Default)]
pub(crate) struct ReadBudget {
    frames: usize,
    segments: usize,
}

impl ReadBudget {
    /// True if no other frame may be read.
    pub(crate) fn is_spent(&self) -> bool {
        self.frames >= BATCH || self.segments >= SEGMENTS
    }

    /// A frame was read.
    pub(crate) fn add(&mut self, packet: &PacketBuf) {
        self.frames += 1;
        self.segments += segment_count(packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::{Gso, GsoKind};

    fn frames_read(len: usize, size: Option<u16>) -> usize {
        let mut packet = PacketBuf::from_bytes(&vec![0; len]);
        packet.offload.gso = size.map(|size| Gso { kind: GsoKind::TcpV4, size, ecn: false });
        let mut budget = ReadBudget::default();
        std::iter::from_fn(|| (!budget.is_spent()).then(|| budget.add(&packet))).count()
    }

    #[test]
    fn budget_is_spent_after_a_number_of_frames_or_segments() {
        assert_eq!(frames_read(60, None), BATCH);
        assert_eq!(frames_read(65_000, Some(1448)), BATCH);
        assert_eq!(frames_read(65_000, Some(536)), 17);
        assert_eq!(frames_read(65_000, Some(36)), 2);
        assert_eq!(frames_read(65_000, Some(8)), 1);
    }
}
