//! TokenBuckets: token buckets, of which equal ones are one, whichever worker asks.

use ahash::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Rate in kilobits per second and burst in kilobits.
type Kind = (u64, u64);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct TokenBuckets(Mutex<HashMap<Kind, Bucket>>);

#[derive(Debug)]
struct Bucket {
    /// Bits that may be sent now.
    bits: u64,
    /// Up to when what has flowed in is in `bits`.
    filled: Instant,
}

impl TokenBuckets {
    /// True when a packet of `len` bytes keeps the rate at `now`; its bits are taken out of the bucket then. A packet that is
    /// longer than the bucket is deep passes a full one.
    pub(super) fn passes(&self, kind: Kind, len: usize, now: Instant) -> bool {
        let (rate_kbps, burst_kb) = kind;
        let depth = burst_kb.saturating_mul(1000).max(1);
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(kind).or_insert(Bucket { bits: depth, filled: now });
        // Whole bits only: what is left over flows in next time.
        let elapsed_ns = now.saturating_duration_since(bucket.filled).as_nanos();
        let flowed = elapsed_ns.saturating_mul(u128::from(rate_kbps)) / 1_000_000;
        let flowed = u64::try_from(flowed).unwrap_or(u64::MAX);
        if flowed >= depth - bucket.bits {
            (bucket.bits, bucket.filled) = (depth, now);
        } else {
            bucket.bits += flowed;
            // Smaller than what has elapsed: `rate_kbps` is not 0 where something has flowed.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits that pass in `seconds` when packets of 1,000 bits are offered at twice the rate.
    fn passed(kind: Kind, seconds: u64) -> u64 {
        let (meters, start) = (TokenBuckets::default(), Instant::now());
        let offered = kind.0 * 2 * seconds;
        let at = |n: u64| start + Duration::from_secs(seconds).mul_f64(n as f64 / offered as f64);
        1000 * (0..offered).filter(|&n| meters.passes(kind, 125, at(n))).count() as u64
    }

    #[test]
    fn rate_is_kept_and_the_burst_is_on_top_of_it() {
        let bits = passed((100, 20), 10);
        assert!((1_018_000..=1_021_000).contains(&bits), "{bits}");
        assert_eq!(passed((0, 5), 10), 0, "offered nothing");
    }

    #[test]
    fn nothing_passes_an_empty_bucket_without_rate() {
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
