//! Token buckets for meters. All workers share them, and meters with the same rate and burst share
//! one bucket.

use ahash::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Rate in kilobits per second and burst in kilobits.
type RateAndBurst = (u64, u64);

/// All buckets by rate and burst.
#[derive(Debug, Default)]
pub(super) struct TokenBuckets(Mutex<HashMap<RateAndBurst, Bucket>>);

#[derive(Debug)]
struct Bucket {
    /// Tokens: bits that may be sent now.
    bits: u64,
    /// The time up to which `bits` was refilled.
    filled: Instant,
}

impl TokenBuckets {
    /// True if a packet of `len` bytes conforms at `now`; its bits are then taken from the bucket.
    /// A packet longer than the bucket's depth conforms if the bucket is full.
    pub(super) fn passes(&self, meter: RateAndBurst, len: usize, now: Instant) -> bool {
        let (rate_kbps, burst_kb) = meter;
        let depth = burst_kb.saturating_mul(1000).max(1);
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(meter).or_insert(Bucket { bits: depth, filled: now });
        // Only whole bits are added; the remainder of the time counts next time.
        let elapsed_ns = now.saturating_duration_since(bucket.filled).as_nanos();
        let flowed = elapsed_ns.saturating_mul(u128::from(rate_kbps)) / 1_000_000;
        let flowed = u64::try_from(flowed).unwrap_or(u64::MAX);
        if flowed >= depth - bucket.bits {
            (bucket.bits, bucket.filled) = (depth, now);
        } else {
            bucket.bits += flowed;
            // This is less than the elapsed time. `rate_kbps` is not 0 if `flowed` is not 0.
            let used_ns = u128::from(flowed) * 1_000_000 / u128::from(rate_kbps.max(1));
            bucket.filled += Duration::from_nanos(u64::try_from(used_ns).unwrap_or(u64::MAX));
        }
        let needed = (len as u64).saturating_mul(8).min(depth);
        let passes = bucket.bits >= needed;
        if passes {
            bucket.bits -= needed;
        }
        passes
    }
}

/// A token bucket, stored as the time at which it will be full again.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeBucket {
    full_at: Instant,
}

impl TimeBucket {
    pub(super) fn full(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// The bucket after taking the tokens that it gains in `cost`; `None` if it has too few at
    /// `now`. A full bucket has the tokens that it gains in `burst`.
    pub(super) fn take(self, cost: Duration, burst: Duration, now: Instant) -> Option<Self> {
        let full_at = self.full_at.max(now) + cost;
        (full_at.saturating_duration_since(now) <= burst).then_some(Self { full_at })
    }

    /// True if no tokens are missing.
    pub(super) fn is_full(self, now: Instant) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of bits that pass in `seconds`. Packets of 1,000 bits arrive at twice the rate.
    fn passed(meter: RateAndBurst, seconds: u64) -> u64 {
        let (meters, start) = (TokenBuckets::default(), Instant::now());
        let offered = meter.0 * 2 * seconds;
        let at = |n: u64| start + Duration::from_secs(seconds).mul_f64(n as f64 / offered as f64);
        1000 * (0..offered).filter(|&n| meters.passes(meter, 125, at(n))).count() as u64
    }

    #[test]
    fn bucket_passes_the_burst_plus_the_rate() {
        let bits = passed((100, 20), 10);
        assert!((1_018_000..=1_021_000).contains(&bits), "{bits}");
        assert_eq!(passed((0, 5), 10), 0, "offered nothing");
    }

    #[test]
    fn empty_bucket_without_rate_passes_nothing() {
        let (meters, now) = (TokenBuckets::default(), Instant::now());
        let pass = |seconds| meters.passes((0, 1), 125, now + Duration::from_secs(seconds));
        assert!(pass(0));
        assert!(!pass(0) && !pass(1000));
    }

    #[test]
    fn packet_longer_than_the_bucket_passes_a_full_one() {
        let (meters, now) = (TokenBuckets::default(), Instant::now());
        let pass = |ms| meters.passes((1000, 8), 9000, now + Duration::from_millis(ms));
        assert!(pass(0));
        assert!(!pass(7) && pass(8) && !pass(9));
    }
}
