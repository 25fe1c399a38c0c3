//! [`Histogram`]: the number of values in each of several ranges.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of durations in nanoseconds, from 10 µs to 10 s.
pub const DURATIONS_NS: &[u64] = &[
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
];

/// Upper bounds of numbers of packets in a queue.
pub const QUEUE_LENGTHS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Counts values by ranges. Several threads may add to it.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One for each bound, and one for larger values.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// An empty histogram. `bounds` are the largest values of the ranges, in ascending order.
    pub fn new(bounds: &'static [u64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    /// Adds a value.
    pub fn add(&self, value: u64) {
        let range = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(range) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Adds a duration in nanoseconds.
    pub fn add_duration(&self, duration: Duration) {
        self.add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The values so far.
    pub fn counts(&self) -> HistogramCounts {
        HistogramCounts {
            bounds: self.bounds.to_vec(),
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// A histogram of durations, with the bounds [`DURATIONS_NS`].
impl Default for Histogram {
    fn default() -> Self {
        Self::new(DURATIONS_NS)
    }
}

/// The values of a [`Histogram`] at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct HistogramCounts {
    /// The largest value of each range, in ascending order.
    pub bounds: Vec<u64>,
    /// How many values each range has; the last number is that of values above all bounds.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: u64,
}

impl HistogramCounts {
    /// How many values there are.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_in_the_first_range_that_has_them() {
        let histogram = Histogram::new(QUEUE_LENGTHS);
        [0, 1, 2, 3, 4, 5, 512, 513, 100_000].into_iter().for_each(|value| histogram.add(value));
        let found = histogram.counts();
        assert_eq!(found.counts, [2, 1, 2, 1, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!((found.total(), found.sum), (9, 101_040));
        assert_eq!(found.bounds, QUEUE_LENGTHS);
    }

    #[test]
    fn bounds_are_sorted() {
        assert!(DURATIONS_NS.is_sorted() && QUEUE_LENGTHS.is_sorted());
        let longest = Histogram::default();
        longest.add_duration(Duration::MAX);
        assert_eq!(longest.counts().counts.last(), Some(&1));
    }
}
