//! Formats figures with a suitable number of digits.

use crate::stats::Estimate;

/// An estimate such as `1.02 [0.98, 1.05]`.
pub(crate) fn estimate(estimate: Option<Estimate>) -> String {
    let Some(Estimate { median, low, high, runs }) = estimate else { return "-".to_owned() };
    if runs == 1 {
        return number(median);
    }
    format!("{} [{}, {}]", number(median), number(low), number(high))
}

/// A number with about three significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        small if small >= 0.1 || small == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
