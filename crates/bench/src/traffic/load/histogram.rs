//! Times of transactions, with a precision of 1 % for percentiles.

/// The longest recorded time, in nanoseconds. Longer times are recorded as this value.
const MAX_NS: u64 = 60_000_000_000;
/// Significant decimal digits of a recorded time.
const DIGITS: u8 = 2;

/// The distribution of times in nanoseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Histogram(hdrhistogram::Histogram<u64>);

impl Default for Histogram {
    fn default() -> Self {
        let buckets = hdrhistogram::Histogram::new_with_bounds(1, MAX_NS, DIGITS);
        Self(buckets.expect("the bounds are valid"))
    }
}

impl Histogram {
    /// Records a time.
    pub fn add(&mut self, time_ns: u64) {
        self.0.saturating_record(time_ns);
    }

    /// Adds all times of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// The number of recorded times.
    pub fn total(&self) -> u64 {
        self.0.len()
    }

    /// The time that the share `part` (0 to 1) of all transactions does not exceed, in
    /// microseconds; `None` if no time was recorded.
    pub fn percentile_us(&self, part: f64) -> Option<f64> {
        (self.total() > 0).then(|| self.0.value_at_quantile(part) as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_near_those_of_the_sorted_times() {
        let mut histogram = Histogram::default();
        (1..=1000_u64).for_each(|us| histogram.add(us * 1000));
        for (part, us) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1000.0)] {
            let found = histogram.percentile_us(part).unwrap();
            assert!(found >= us && found <= us * 1.01, "{part}: {found}");
        }
        assert_eq!(Histogram::default().percentile_us(0.5), None);
    }

    #[test]
    fn longer_times_count_as_the_longest_one() {
        let mut histogram = Histogram::default();
        histogram.add(u64::MAX);
        let found = histogram.percentile_us(1.0).unwrap();
        assert!((found / (MAX_NS as f64 / 1000.0) - 1.0).abs() < 0.01, "{found}");
    }

    #[test]
    fn merged_histograms_count_both() {
        let (mut a, mut b) = (Histogram::default(), Histogram::default());
        a.add(10);
        b.add(1_000_000);
        a.merge(&b);
        assert_eq!((a.total(), a.percentile_us(0.5)), (2, Some(0.01)));
    }
}
