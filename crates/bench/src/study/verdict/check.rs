//! A measurement for or against a claim.

use super::select::Ratio;
use crate::stats::Estimate;
use crate::study::model::ClaimVerdict;

/// A measured ratio, and the range that the claim states for it.
pub(crate) struct Check {
    pub(crate) what: String,
    /// The ratio; `None` when it was not measured.
    pub(crate) found: Option<Ratio>,
    /// The range of the claim.
    pub(crate) range: (f64, f64),
}

impl Check {
    /// The verdict of this measurement; `None` when it was not measured.
    pub(super) fn verdict(&self) -> Option<ClaimVerdict> {
        let (low, high) = self.range;
        Some(match self.found.as_ref()?.widened() {
            Ok((from, to, _)) if from >= low && to <= high => ClaimVerdict::Holds,
            Ok((from, to, _)) if to < low || from > high => ClaimVerdict::DoesNotHold,
            Ok(_) | Err(_) => ClaimVerdict::NotConverged,
        })
    }

    pub(super) fn line(&self) -> Option<String> {
        let found = self.found.as_ref()?;
        let Estimate { median, low, high, runs } = found.estimate;
        let verdict = self.verdict()?;
        let range = match self.range {
            (low, f64::INFINITY) => format!("at least {low}"),
            (f64::NEG_INFINITY, high) => format!("at most {high}"),
            (low, high) => format!("{low} to {high}"),
        };
        let what = &self.what;
        let plural = if runs == 1 { "run" } else { "runs" };
        let noise = match found.widened() {
            // A factor of 1.0 marks a count, which has no noise.
            Ok((_, _, 1.0)) => String::new(),
            Ok((low, high, factor)) => moved(low, high, &format!("{factor:.2} times")),
            Err(why) => format!("; {why}"),
        };
        let words = verdict.words();
        Some(format!(
            "{what}: {median:.2} [{low:.2}, {high:.2}], {runs} {plural}{noise}; claimed {range}: \
             {words}"
        ))
    }
}

/// Formats the range of a figure that noise may have changed by `by`.
pub(super) fn moved(low: f64, high: f64, by: &str) -> String {
    format!("; A/A up to {by}, so [{low:.2}, {high:.2}]")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::study::verdict) fn check(low: f64, high: f64, noise: Result<f64, &str>) -> Check {
        let estimate = Estimate { median: 1.0, low, high, runs: 5 };
        let found = Some(Ratio { estimate, noise: noise.map_err(str::to_owned) });
        Check { what: String::new(), found, range: (0.5, 2.0) }
    }

    #[test]
    fn check_is_open_when_its_widened_interval_crosses_a_limit() {
        let verdict = |low, high, noise| check(low, high, Ok(noise)).verdict();
        let (holds, fails, open) = (
            Some(ClaimVerdict::Holds),
            Some(ClaimVerdict::DoesNotHold),
            Some(ClaimVerdict::NotConverged),
        );
        // Without noise. A limit belongs to its range.
        assert_eq!((verdict(0.5, 2.0, 1.0), verdict(0.49, 0.6, 1.0)), (holds, open));
        assert_eq!((verdict(0.4, 0.49, 1.0), verdict(2.01, 3.0, 1.0)), (fails, fails));
        assert_eq!((verdict(0.4, 0.5, 1.0), verdict(2.0, 3.0, 1.0)), (open, open));
        // With a noise factor of 1.25: completely inside, and completely outside of either limit.
        assert_eq!((verdict(0.625, 1.6, 1.25), verdict(0.62, 1.0, 1.25)), (holds, open));
        assert_eq!((verdict(1.0, 1.61, 1.25), verdict(0.3, 0.39, 1.25)), (open, fails));
        assert_eq!((verdict(0.3, 0.4, 1.25), verdict(2.5, 3.0, 1.25)), (open, open));
        assert_eq!(verdict(2.51, 3.0, 1.25), fails);
        assert_eq!(verdict(1.0, 1.0, f64::INFINITY), open);
    }

    #[test]
    fn far_ratio_is_judged_when_the_machine_is_noisy() {
        let far = check(0.10, 0.11, Ok(1.35));
        assert_eq!(far.verdict(), Some(ClaimVerdict::DoesNotHold));
        let line = far.line().unwrap();
        assert!(
            line.contains("[0.10, 0.11], 5 runs; A/A up to 1.35 times, so [0.07, 0.15];"),
            "{line}"
        );
    }

    #[test]
    fn check_is_open_with_its_numbers_when_the_noise_is_unknown() {
        let open = check(0.10, 0.11, Err("one run is not conclusive"));
        assert_eq!(open.verdict(), Some(ClaimVerdict::NotConverged));
        let line = open.line().unwrap();
        assert!(line.contains("[0.10, 0.11]"), "{line}");
        assert!(
            line.ends_with("one run is not conclusive; claimed 0.5 to 2: not converged here"),
            "{line}"
        );
    }
}
