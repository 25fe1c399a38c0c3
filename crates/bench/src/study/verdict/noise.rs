//! The noise of the machine: the difference of one contender from itself, measured twice in each
//! block (A/A).
//!
//! A bootstrap interval of `n` runs ends at the smallest and the largest of them. With probability
//! `2^(1-n)` all of them lie on one side of the true value, so the interval of few runs is too
//! narrow. A claim is therefore judged by an interval that is widened in both directions by the
//! *outermost* end of the A/A interval. The median of the A/A runs would be misleading: 0.84 and
//! 1.2 have the median 1.02, although that machine changes figures by a fifth.
//!
//! This is sound when noise affects all contenders alike. A ratio exactly at its limit is then
//! judged wrongly only if all `n` runs deviate to one side, and each by more than all `m` A/A runs
//! do: a probability of `2^(1-n) / C(n + m, n)`. For five runs with five A/A runs that is 1 in
//! 4000, low enough for a claim with a dozen measurements. For two runs it would be 1 in 12. With
//! fewer than [`ENOUGH`] runs, the worst A/A check of the whole study counts: 1 in 90 for two
//! blocks of four scenarios.

use std::collections::BTreeMap;

use super::evidence::{Evidence, means, ratios};
use super::tables::Table;
use crate::stats::{Estimate, ratio};
use crate::study::model::{Figures, Sample, Study};

/// The smallest number of runs with which the A/A check of a single scenario is used.
const ENOUGH: usize = 5;

/// A figure of a measurement.
pub(crate) type Figure<'f> = &'f dyn Fn(&Figures) -> Option<f64>;

/// A statistic of pairs of figures of the same block.
pub(crate) type Statistic = fn(&[(f64, f64)]) -> Option<Estimate>;

/// The statistic `what` of the second and the first A/A runs in `tables` of `study`, for a
/// comparison of `runs` runs: one estimate for each table that is used.
///
/// # Errors
/// Why the noise is unknown.
pub(crate) fn twice(
    evidence: &Evidence<'_>,
    study: Study,
    tables: &[&Table],
    runs: usize,
    figure: Figure<'_>,
    what: Statistic,
) -> Result<Vec<Estimate>, String> {
    let of = |table: &Table| {
        let pairs = pairs(evidence, table, figure);
        what(&pairs.into_iter().map(|(_, again, first)| (again, first)).collect::<Vec<_>>())
    };
    // If only one of two tables of the same blocks has A/A runs, they are used for both.
    let own: Vec<Estimate> = tables.iter().filter_map(|table| of(table)).collect();
    let fewest = own.iter().map(|estimate| estimate.runs).min();
    match fewest.map(|fewest| fewest.min(runs)) {
        None => Err("without A/A runs the noise is unknown".to_owned()),
        Some(0 | 1) => Err("one run is not conclusive".to_owned()),
        Some(2..ENOUGH) => Ok(evidence.of_study(study).filter_map(of).collect()),
        Some(_) => Ok(own),
    }
}

/// The noise factor of the geometric mean over `tables`. With few runs, the worst A/A check of the
/// whole study is used, as in all comparisons.
///
/// # Errors
/// Why the noise is unknown.
pub(crate) fn of_means(
    evidence: &Evidence<'_>,
    study: Study,
    tables: &[&Table],
    runs: usize,
    figure: Figure<'_>,
) -> Result<f64, String> {
    let of = |table: &&Table| {
        let pairs = pairs(evidence, table, figure);
        pairs.into_iter().filter_map(|(block, a, b)| Some((block, ratio(a, b)?))).collect()
    };
    let again = means(&tables.iter().map(of).collect::<Vec<BTreeMap<usize, f64>>>());
    match Estimate::of(&again) {
        Some(estimate) if estimate.runs.min(runs) >= ENOUGH => Ok(factor(&[estimate])),
        _ => twice(evidence, study, tables, runs, figure, ratios).map(|twice| factor(&twice)),
    }
}

/// The largest factor, 1 or more, by which an end of `ratios` differs from 1; infinite if one end
/// is 0.
pub(crate) fn factor(ratios: &[Estimate]) -> f64 {
    let factor = |e: &Estimate| e.high.max(if e.low > 0.0 { 1.0 / e.low } else { f64::INFINITY });
    ratios.iter().map(factor).fold(1.0, f64::max)
}

/// The largest distance of an end of `differences` from 0.
pub(crate) fn distance(differences: &[Estimate]) -> f64 {
    differences.iter().map(|e| e.high.max(-e.low)).fold(0.0, f64::max)
}

/// The block number of each A/A pair, with the second and the first figure.
fn pairs(evidence: &Evidence<'_>, table: &Table, figure: Figure<'_>) -> Vec<(usize, f64, f64)> {
    let value = |sample: &Sample| figure(sample.figures.as_ref()?);
    let samples = || evidence.results.samples.iter().filter(|sample| table.has(sample));
    let first = |again: &Sample| {
        let same = |s: &&Sample| (s.contender, s.block) == (again.contender, again.block);
        samples().filter(|sample| !sample.again).find(same).and_then(value)
    };
    let again = samples().filter(|sample| sample.again);
    again.filter_map(|sample| Some((sample.block, value(sample)?, first(sample)?))).collect()
}
