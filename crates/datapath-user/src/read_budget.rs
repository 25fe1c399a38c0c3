//! Limits how much a worker reads from one descriptor before the others get their turn.

use packet::{PacketBuf, segment_count};

/// Frames that a worker reads at most.
pub(crate) const BATCH: usize = 32;
/// No frame is read after so many segments. A batch of super-packets with the usual MTU has fewer
/// than 1,500. With the smallest segments that are allowed, one super-packet has 1,820.
const SEGMENTS: usize = 2048;
/// No frame of a guest is read after so many commits of connections. Opening a connection costs
/// many times as much as forwarding a packet, and a guest may send nothing but SYNs. Tunnels have
/// no such limit.
const COMMITS: u32 = 8;

/// The remaining reads from a descriptor in this turn.
#[derive(Debug)]
pub(crate) struct ReadBudget {
    frames: usize,
    segments: usize,
    commits: u32,
}

impl Default for ReadBudget {
    fn default() -> Self {
        Self { frames: BATCH, segments: SEGMENTS, commits: COMMITS }
    }
}

impl ReadBudget {
    /// Takes one read; false if the turn is over. A read that fails counts too: a guest must not
    /// occupy the worker with frames that cannot be read.
    pub(crate) fn take_read(&mut self) -> bool {
        let may_read = self.frames > 0 && self.segments > 0 && self.commits > 0;
        self.frames = self.frames.saturating_sub(1);
        may_read
    }

    /// Takes the segments of the frame that was read.
    pub(crate) fn take_segments(&mut self, packet: &PacketBuf) {
        self.segments = self.segments.saturating_sub(segment_count(packet));
    }

    /// Takes the commits of the frame that was read.
    pub(crate) fn take_commits(&mut self, commits: u32) {
        self.commits = self.commits.saturating_sub(commits);
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
        std::iter::from_fn(|| budget.take_read().then(|| budget.take_segments(&packet))).count()
    }

    #[test]
    fn turn_ends_after_a_number_of_frames_or_segments() {
        assert_eq!(frames_read(60, None), BATCH);
        assert_eq!(frames_read(65_000, Some(1448)), BATCH);
        assert_eq!(frames_read(65_000, Some(536)), 17);
        assert_eq!(frames_read(65_000, Some(36)), 2);
        assert_eq!(frames_read(65_000, Some(8)), 1);
    }

    #[test]
    fn turn_ends_when_no_frame_can_be_read() {
        let mut budget = ReadBudget::default();
        assert_eq!((0..10 * BATCH).filter(|_| budget.take_read()).count(), BATCH);
    }

    #[test]
    fn turn_ends_when_frames_have_opened_connections() {
        let mut budget = ReadBudget::default();
        let mut opened = 0;
        while budget.take_read() {
            budget.take_commits(2);
            opened += 2;
        }
        assert_eq!(opened, COMMITS);
    }
}
