//! The rate of short segments in a port's super-packets.

use packet::{PacketBuf, SHORT_SEGMENT_LEN, segment_count};
use std::time::{Duration, Instant};

/// Short segments per second of one port: a host can receive them one by one in addition to other
/// traffic. With 499 bytes each they are 200 Mb/s.
pub const SHORT_SEGMENTS_PER_SECOND: u32 = 50_000;
/// The most short segments in a burst: five super-packets with the smallest segments.
pub const SHORT_SEGMENTS_BURST: u32 = 10_000;

/// A port's token bucket of short segments.
#[derive(Debug)]
pub(crate) struct SegmentLimit {
    tokens: u32,
    /// The time up to which `tokens` was refilled.
    filled: Option<Instant>,
}

impl Default for SegmentLimit {
    fn default() -> Self {
        Self { tokens: SHORT_SEGMENTS_BURST, filled: None }
    }
}

impl SegmentLimit {
    /// False for a super-packet of short segments that exceeds the rate.
    pub(crate) fn passes(&mut self, packet: &PacketBuf) -> bool {
        let is_short = packet.offload.gso.is_some_and(|gso| gso.size < SHORT_SEGMENT_LEN);
        !is_short || self.take(segment_count(packet), Instant::now())
    }

    #[cold]
    fn take(&mut self, segments: usize, now: Instant) -> bool {
        let filled = *self.filled.get_or_insert(now);
        let period = Duration::from_secs(1) / SHORT_SEGMENTS_PER_SECOND;
        let fresh = now.saturating_duration_since(filled).as_nanos() / period.as_nanos();
        let fresh = u32::try_from(fresh).unwrap_or(u32::MAX);
        if fresh >= SHORT_SEGMENTS_BURST - self.tokens {
            (self.tokens, self.filled) = (SHORT_SEGMENTS_BURST, Some(now));
        } else {
            self.tokens += fresh;
            self.filled = Some(filled + period * fresh);
        }
        let cost = u32::try_from(segments).unwrap_or(u32::MAX);
        let has_enough = cost <= self.tokens;
        if has_enough {
            self.tokens -= cost;
        }
        has_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::{Gso, GsoKind};

    #[test]
    fn short_segments_pass_up_to_the_burst_plus_the_rate() {
        let (mut limit, start) = (SegmentLimit::default(), Instant::now());
        let mut passed = 0;
        for ms in 0..10_000 {
            let now = start + Duration::from_millis(ms);
            passed += (0..3).filter(|_| limit.take(1000, now)).count() as u32 * 1000;
        }
        let most = SHORT_SEGMENTS_BURST + 10 * SHORT_SEGMENTS_PER_SECOND;
        assert!((most - 2000..=most).contains(&passed), "{passed} of {most}");
    }

    #[test]
    fn only_super_packets_of_short_segments_count() {
        let mut packet = PacketBuf::from_bytes(&vec![0; 60_000]);
        let mut limit = SegmentLimit::default();
        assert!((0..1000).all(|_| limit.passes(&packet)));
        for (size, is_limited) in [(1448, false), (SHORT_SEGMENT_LEN, false), (499, true)] {
            packet.offload.gso = Some(Gso { kind: GsoKind::TcpV4, size, ecn: false });
            assert_eq!((0..2000).all(|_| limit.passes(&packet)), !is_limited, "{size}");
        }
    }
}
