//! Two runs beside each other: before and after.

use std::fmt;

use crate::lab::Contender;
use crate::stats::Estimate;
use crate::study::model::Results;
use crate::study::verdict::{Table, tables};

/// Runs of which an interval says something: of three, one may be wrong.
const ENOUGH: usize = 3;

/// One contender in one scenario of two runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// Study and scenario, and where.
    pub scenario: String,
    /// Who.
    pub contender: Contender,
    /// Its ratio to the bridge before.
    pub before: Estimate,
    /// Its ratio to the bridge now.
    pub after: Estimate,
}

/// The changes of all that both runs have. It is ratios to the bridge of the same block that are compared: two runs
/// hardly ever meet the same machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// In the order of the second run.
    pub changes: Vec<Change>,
    /// True when both runs say that they are of the same machine and kernel.
    pub same_machine: bool,
}

impl Change {
    /// The change in parts of what was before.
    pub fn part(&self) -> f64 {
        self.after.median / self.before.median - 1.0
    }

    /// True when the two intervals have nothing in common; `None` where either stands on less than [`ENOUGH`] runs, of which no
    /// interval says anything.
    pub fn is_certain(&self) -> Option<bool> {
        let apart = self.after.low > self.before.high || self.after.high < self.before.low;
        (self.after.runs.min(self.before.runs) >= ENOUGH).then_some(apart)
    }
}

/// Compares `before` with `after`.
pub fn compare(before: &Results, after: &Results) -> Comparison {
    let earlier = tables(before);
    let same =
        |a: &Table, b: &Table| (&a.study, &a.scenario, a.shape) == (&b.study, &b.scenario, b.shape);
    let mut changes = Vec::new();
    for table in tables(after) {
        let Some(old) = earlier.iter().find(|old| same(old, &table)) else { continue };
        for row in &table.rows {
            let old_ratio = old.row(row.contender).and_then(|old| old.ratio);
            if let (Some(before), Some(after)) = (old_ratio, row.ratio) {
                let scenario =
                    format!("{} {}, {}", table.study, table.scenario, table.shape.profile);
                changes.push(Change { scenario, contender: row.contender, before, after });
            }
        }
    }
    let machine = |results: &Results| {
        let e = &results.environment;
        (e.kernel.clone(), e.cpu_model.clone(), e.cores)
    };
    Comparison { changes, same_machine: machine(before) == machine(after) }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.same_machine {
            writeln!(f, "The two runs are of different machines or kernels.")?;
        }
        if self.changes.is_empty() {
            return write!(f, "The two runs have no scenario in common.");
        }
        writeln!(
            f,
            "Ratios to the bridge of the same block; * where the intervals lie apart, ? with fewer than {ENOUGH} runs, which cannot tell."
        )?;
        let mut last = "";
        for change in &self.changes {
            if change.scenario != last {
                writeln!(f, "{}", change.scenario)?;
                last = &change.scenario;
            }
            let mark = match change.is_certain() {
                Some(true) => "*",
                Some(false) => " ",
                None => "?",
            };
            writeln!(
                f,
                "  {:20} {:6.2} -> {:6.2}  {:+6.1} % {mark}  ({} and {} runs)",
                change.contender.to_string(),
                change.before.median,
                change.after.median,
                change.part() * 100.0,
                change.before.runs,
                change.after.runs
            )?;
        }
        Ok(())
    }
}
