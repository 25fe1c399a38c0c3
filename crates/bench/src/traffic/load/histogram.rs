//! How long things took: counts in buckets whose width grows with the time, so that a percentile is off by 3 % at most.

/// Buckets of each power of two.
const STEPS: u64 = 32;
/// Longest time that has a bucket of its own: 2^36 ns, about 69 s.
const POWERS: u64 = 36;
const BUCKETS: usize = (STEPS * (POWERS - 4)) as usize;

/// Times in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }
}

impl Histogram {
    /// Counts one.
    pub fn add(&mut self, time_ns: u64) {
        if let Some(count) = self.counts.get_mut(bucket(time_ns)) {
            *count += 1;
            self.total += 1;
        }
    }

    /// Counts all of `other`, too.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
    }

    /// How many there are.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// In microseconds, what `part` (0 to 1) of all did not exceed; `None` of nothing.
    pub fn percentile_us(&self, part: f64) -> Option<f64> {
        let wanted = (self.total as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        let index = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(upper_ns(index) as f64 / 1000.0)
    }
}

/// Times below [`STEPS`] have a bucket each; above, each power of two has as many.
const fn bucket(time_ns: u64) -> usize {
    if time_ns < STEPS {
        return time_ns as usize;
    }
    let power = time_ns.ilog2() as u64;
    if power >= POWERS {
        return BUCKETS - 1;
    }
    let step = (time_ns >> (power - 5)) - STEPS;
    (STEPS * (power - 4) + step) as usize
}

/// The longest time of a bucket.
const fn upper_ns(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let (power, step) = (index / STEPS + 4, index % STEPS);
    ((STEPS + step + 1) << (power - 5)) - 1
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
            assert!(found >= us && found <= us * 1.032, "{part}: {found}");
        }
        assert_eq!(Histogram::default().percentile_us(0.5), None);
    }

    #[test]
    fn every_time_is_within_its_bucket() {
        for power in 0..POWERS {
            for time in [1 << power, (1 << power) + 1, (2 << power) - 1] {
                let upper = upper_ns(bucket(time));
                assert!(upper >= time && upper - time <= time / 32, "{time} {upper}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
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
