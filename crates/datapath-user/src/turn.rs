//! How much a worker reads from one descriptor before the others get their turn.

use packet::{PacketBuf, segment_count};

/// Frames of one turn.
pub(crate) const BATCH: usize = 32;
/// Segments of one turn. Whole super-packets of a guest with the usual MTU have fewer than 1,500.
/// With the smallest segments that are allowed, one super-packet has 1,820.
const SEGMENTS: usize = 2048;

/// The turn of a descriptor.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    frames: usize,
    segments: usize,
}

impl Turn {
    /// True if another frame may be read.
    pub(crate) fn goes_on(&self) -> bool {
        self.frames < BATCH && self.segments < SEGMENTS
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

    fn frames_of_a_turn(len: usize, size: Option<u16>) -> usize {
        let mut packet = PacketBuf::from_bytes(&vec![0; len]);
        packet.offload.gso = size.map(|size| Gso { kind: GsoKind::TcpV4, size, ecn: false });
        let mut turn = Turn::default();
        std::iter::from_fn(|| turn.goes_on().then(|| turn.add(&packet))).count()
    }

    #[test]
    fn turn_ends_after_a_number_of_frames_or_segments() {
        assert_eq!(frames_of_a_turn(60, None), BATCH);
        assert_eq!(frames_of_a_turn(65_000, Some(1448)), BATCH);
        assert_eq!(frames_of_a_turn(65_000, Some(536)), 17);
        assert_eq!(frames_of_a_turn(65_000, Some(36)), 2);
        assert_eq!(frames_of_a_turn(65_000, Some(8)), 1);
    }
}
