//! [`NamedMeters`]: limits the packets that services of the switch handle, by the meters that flows
//! name (control plane protection of OVN).
//!
//! All workers share the meters. A meter whose rate changes starts with a full bucket.

use crate::token_bucket::TimeBucket;
use ahash::HashMap;
use flow::{MeterUnit, NamedMeter};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Idle meters are removed when there are this many. Beyond it, packets are not allowed.
const MAX_METERS: usize = 4096;
/// Bits of a kilobit.
const KILOBIT: u64 = 1000;

#[derive(Debug)]
struct Bucket {
    meter: NamedMeter,
    tokens: TimeBucket,
}

/// All meters of a datapath by name.
#[derive(Debug, Default)]
pub(super) struct NamedMeters(Mutex<HashMap<String, Bucket>>);

impl NamedMeters {
    /// Takes a packet of `len` bytes from the meter. True if it is allowed at `now`.
    pub(super) fn allows(&self, meter: &NamedMeter, len: usize, now: Instant) -> bool {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match buckets.get_mut(&meter.name) {
            Some(bucket) => {
                if bucket.meter != *meter {
                    *bucket = Bucket::full(meter, now);
                }
                bucket.take(len, now)
            }
            None => {
                if buckets.len() >= MAX_METERS {
                    buckets.retain(|_, bucket| !bucket.tokens.is_full(now));
                }
                if buckets.len() >= MAX_METERS {
                    return false;
                }
                let mut bucket = Bucket::full(meter, now);
                let is_allowed = bucket.take(len, now);
                buckets.insert(meter.name.clone(), bucket);
                is_allowed
            }
        }
    }
}

impl Bucket {
    fn full(meter: &NamedMeter, now: Instant) -> Self {
        Self { meter: meter.clone(), tokens: TimeBucket::full(now) }
    }

    fn take(&mut self, len: usize, now: Instant) -> bool {
        let taken = take(&self.meter, self.tokens, len, now);
        self.tokens = taken.unwrap_or(self.tokens);
        taken.is_some()
    }
}

/// The bucket of a meter without the tokens of a packet of `len` bytes; `None` if it has too few at
/// `now`.
pub(super) fn take(
    meter: &NamedMeter,
    tokens: TimeBucket,
    len: usize,
    now: Instant,
) -> Option<TimeBucket> {
    let NamedMeter { unit, rate, burst, .. } = *meter;
    let (cost, rate, burst) = match unit {
        MeterUnit::Packets => (1, rate, burst),
        MeterUnit::Kilobits => {
            (8 * len as u64, rate.saturating_mul(KILOBIT), burst.saturating_mul(KILOBIT))
        }
    };
    tokens.take(time_of(cost, rate), time_of(burst, rate), now)
}

/// The time in which a bucket gets this many tokens; at most a day.
fn time_of(tokens: u64, rate: u64) -> Duration {
    const DAY_NS: u128 = 86_400_000_000_000;
    let ns = u128::from(tokens) * 1_000_000_000 / u128::from(rate.max(1));
    // The cast is lossless: a day has fewer nanoseconds.
    Duration::from_nanos(ns.min(DAY_NS) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(unit: MeterUnit, rate: u64, burst: u64) -> NamedMeter {
        NamedMeter { name: "m".to_owned(), unit, rate, burst }
    }

    /// How many of 100 packets of 125 bytes the meter allows at each of these times.
    fn allowed(
        meters: &NamedMeters,
        meter: &NamedMeter,
        start: Instant,
        at_ms: &[u64],
    ) -> Vec<usize> {
        let at = |ms: &u64| start + Duration::from_millis(*ms);
        let count = |ms: &u64| (0..100).filter(|_| meters.allows(meter, 125, at(ms))).count();
        at_ms.iter().map(count).collect()
    }

    #[test]
    fn packets_are_allowed_up_to_burst_and_rate() {
        let start = Instant::now();
        for (unit, rate, burst, expected) in [
            (MeterUnit::Packets, 1, 1, [1, 0, 1, 1]),
            (MeterUnit::Packets, 10, 10, [10, 5, 5, 10]),
            (MeterUnit::Packets, 2, 20, [20, 1, 1, 20]),
            // A packet has one kilobit.
            (MeterUnit::Kilobits, 10, 10, [10, 5, 5, 10]),
        ] {
            let (meters, meter) = (NamedMeters::default(), meter(unit, rate, burst));
            let found = allowed(&meters, &meter, start, &[0, 500, 1000, 60_000]);
            assert_eq!(found, expected, "{meter:?}");
        }
    }

    #[test]
    fn meter_with_another_rate_starts_full_and_names_are_apart() {
        let (meters, start) = (NamedMeters::default(), Instant::now());
        let slow = meter(MeterUnit::Packets, 1, 1);
        assert_eq!(allowed(&meters, &slow, start, &[0, 0]), [1, 0]);
        let other = NamedMeter { name: "other".to_owned(), ..slow.clone() };
        assert_eq!(allowed(&meters, &other, start, &[0]), [1]);
        let fast = meter(MeterUnit::Packets, 10, 10);
        assert_eq!(allowed(&meters, &fast, start, &[0, 0]), [10, 0]);
    }
}
