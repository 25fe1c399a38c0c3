//! Statistics of repeated measurements: medians with confidence intervals, and relative standard
//! deviations.

use crate::random::scramble;

/// Bootstrap resamples for an interval.
const RESAMPLES: u64 = 2000;
/// The part of the resamples that lies below a 95 % interval, and the part that lies above it.
const TAIL: f64 = 0.025;

/// A median with its bootstrap 95 % interval.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The lower end of the interval; equal to the median if there is only one run.
    pub low: f64,
    /// The upper end of the interval; equal to the median if there is only one run.
    pub high: f64,
    /// The number of runs.
    pub runs: usize,
}

impl Estimate {
    /// The median of `values`, or `None` if there are none. The same values give the same interval.
    pub fn of(values: &[f64]) -> Option<Self> {
        // The runs in the order of their values. A resample is sorted by counting how often it drew
        // each run.
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
        let mut times_drawn = vec![0; values.len()];
        Self::bootstrap(values.len(), |drawn| {
            times_drawn.fill(0);
            for &run in drawn {
                times_drawn[run] += 1;
            }
            let mut before = 0;
            let mut below = None;
            for &run in &order {
                before += times_drawn[run];
                if below.is_none() && before > (drawn.len() - 1) / 2 {
                    below = Some(values[run]);
                }
                if before > drawn.len() / 2 {
                    return below.map(|below| f64::midpoint(below, values[run]));
                }
            }
            None
        })
    }

    /// The bootstrap interval of a `statistic` of `runs` runs. `statistic` gets the indices of the
    /// drawn runs. Returns `None` when it has no value for the original runs.
    pub fn bootstrap(
        runs: usize,
        mut statistic: impl FnMut(&[usize]) -> Option<f64>,
    ) -> Option<Self> {
        let mut drawn: Vec<usize> = (0..runs).collect();
        let median = statistic(&drawn)?;
        // With few runs, all possible resamples are enumerated instead of drawn.
        let resamples =
            u32::try_from(runs).ok().and_then(|places| (runs as u64).checked_pow(places));
        let all = resamples.filter(|resamples| *resamples <= RESAMPLES);
        let mut values: Vec<f64> = (0..all.unwrap_or(RESAMPLES))
            .filter_map(|sample| {
                let mut rest = sample;
                for (place, run) in drawn.iter_mut().enumerate() {
                    let number = match all {
                        Some(_) => rest,
                        None => scramble(sample * runs as u64 + place as u64),
                    };
                    *run = (number % runs as u64) as usize;
                    rest /= runs as u64;
                }
                statistic(&drawn)
            })
            .collect();
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let index = (part * (values.len().saturating_sub(1)) as f64).round() as usize;
            values.get(index).copied().unwrap_or(median)
        };
        Some(Self { median, low: at(TAIL), high: at(1.0 - TAIL), runs })
    }

    /// True when `value` lies within the interval.
    pub fn includes(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// The standard deviation divided by the mean; `None` for fewer than two values, or when the mean
/// is 0.
pub fn relative_deviation(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    if values.len() < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    ratio((squares / (count - 1.0)).sqrt(), mean)
}

/// `a / b`, or `None` when that is not a finite number.
pub fn ratio(a: f64, b: f64) -> Option<f64> {
    let value = a / b;
    (b != 0.0 && value.is_finite()).then_some(value)
}

/// The median of `values` in any order, or `None` if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_holds_the_median_and_narrows_with_steady_values() {
        let steady = Estimate::of(&[1.0, 1.01, 0.99, 1.0, 1.0]).unwrap();
        let scattered = Estimate::of(&[1.0, 2.0, 0.5, 1.5, 0.7]).unwrap();
        for estimate in [steady, scattered] {
            assert!(estimate.includes(estimate.median));
            assert_eq!(estimate.runs, 5);
        }
        assert!(steady.high - steady.low < 0.03 && scattered.high - scattered.low > 0.5);
        assert_eq!(Estimate::of(&[1.0, 2.0, 0.5, 1.5, 0.7]).unwrap(), scattered);
    }

    #[test]
    fn one_run_has_no_interval() {
        let one = Estimate::of(&[3.0]).unwrap();
        assert_eq!((one.low, one.high, one.runs), (3.0, 3.0, 1));
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn all_resamples_are_enumerated_when_there_are_few() {
        let two = Estimate::of(&[1.0, 3.0]).unwrap();
        assert_eq!((two.median, two.low, two.high), (2.0, 1.0, 3.0));
        let four = Estimate::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((four.median, four.low, four.high), (2.5, 1.0, 4.0));
    }

    #[test]
    fn interval_is_that_of_the_medians_of_resamples() {
        for count in 1..20_u64 {
            let values: Vec<f64> = (0..count).map(|at| (scramble(at) % 7) as f64).collect();
            let medians = Estimate::bootstrap(values.len(), |drawn| {
                median(drawn.iter().map(|&run| values[run]))
            });
            assert_eq!(Estimate::of(&values), medians, "{values:?}");
        }
    }

    #[test]
    fn deviation_is_that_of_a_sample() {
        let found = relative_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert!((found - 2.138 / 5.0).abs() < 1e-3, "{found}");
        assert_eq!((relative_deviation(&[1.0]), relative_deviation(&[0.0, 0.0])), (None, None));
    }

    #[test]
    fn median_is_the_middle_when_unsorted() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn ratio_is_absent_when_the_base_is_zero() {
        assert_eq!(ratio(1.0, 4.0), Some(0.25));
        assert_eq!((ratio(1.0, 0.0), ratio(0.0, 0.0)), (None, None));
    }
}
