//! By how much the machine may have moved what two series differ by: what one contender differs from itself, measured twice in
//! each block (A/A).
//!
//! A bootstrap interval of few runs is too narrow: of `n` runs it ends at the smallest and the largest, and all `n` lie on one side of
//! the truth once in `2^(n-1)`. So before a claim is judged its interval is widened, downwards and upwards, by the *outermost* end of
//! the A/A interval. Its median would not do: 0.84 and 1.2 have the median 1.02, on a machine that moves figures by a fifth.
//!
//! That is sound where noise meets all contenders alike. A ratio that is truly at its limit is then taken for one beyond it only if all
//! of its `n` runs deviate to one side, and each by more than all `m` runs of the A/A check deviate either way: a chance of
//! `2^(1-n) / C(n + m, n)`. For five runs and their own A/A check that is 1 in 4000, little enough for a claim of a dozen measurements.
//! For two it would be 1 in 12, so of fewer than [`ENOUGH`] runs the A/A check of the whole study counts, and its worst: 1 in 90 where
//! four scenarios were measured twice in two blocks.

use std::collections::BTreeMap;

use super::evidence::{Evidence, means, ratios};
use super::tables::Table;
use crate::stats::{Estimate, ratio};
use crate::study::model::{Figures, Sample, Study};

/// Runs of which the A/A check of a scenario says how noisy it is.
const ENOUGH: usize = 5;

/// What is taken from a run, if it has it.
pub(crate) type Figure<'f> = &'f dyn Fn(&Figures) -> Option<f64>;

/// By how much two series differ, of what both have in each block.
pub(crate) type Statistic = fn(&[(f64, f64)]) -> Option<Estimate>;

/// `what` the second run of each block differs from the first by, of whoever was measured twice in `tables` of `study`, for a
/// comparison of `runs`: one estimate for each table that counts.
///
/// # Errors
/// Why nothing is known of it.
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
    // Where only one of two tables was measured twice, in the same blocks, that has to do for both.
    let own: Vec<Estimate> = tables.iter().filter_map(|table| of(table)).collect();
    let fewest = own.iter().map(|estimate| estimate.runs).min();
    match fewest.map(|fewest| fewest.min(runs)) {
        None => Err("nobody was measured twice, nothing is known of the noise".to_owned()),
        Some(0 | 1) => Err("one run says nothing".to_owned()),
        Some(2..ENOUGH) => Ok(evidence.of_study(study).filter_map(of).collect()),
        Some(_) => Ok(own),
    }
}

/// The factor of the geometric means over `tables`, each the second run over the first of whoever was measured twice, block by block; of
/// few runs the worst of the whole study, as for any other comparison.
///
/// # Errors
/// Why nothing is known of it.
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

/// The farthest that `ratios` are from 1, as a factor of 1 or more; infinite where one is 0.
pub(crate) fn factor(ratios: &[Estimate]) -> f64 {
    let factor = |e: &Estimate| e.high.max(if e.low > 0.0 { 1.0 / e.low } else { f64::INFINITY });
    ratios.iter().map(factor).fold(1.0, f64::max)
}

/// The farthest that `differences` are from 0.
pub(crate) fn distance(differences: &[Estimate]) -> f64 {
    differences.iter().map(|e| e.high.max(-e.low)).fold(0.0, f64::max)
}

/// Each block with the second and the first run in it.
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
