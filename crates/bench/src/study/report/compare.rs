//! The comparison of two runs.

use std::fmt;

use comfy_table::{Table, presets};

use crate::lab::Contender;
use crate::stats::Estimate;
use crate::study::model::Results;
use crate::study::verdict::{Table as Rows, tables};

/// The smallest number of runs that gives a meaningful interval.
const ENOUGH: usize = 3;

/// The change of one contender in one scenario between two runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// The names of the study, the scenario and the underlay profile.
    pub scenario: String,
    /// The contender.
    pub contender: Contender,
    /// Its ratio to the bridge in the earlier run.
    pub before: Estimate,
    /// Its ratio to the bridge in the later run.
    pub after: Estimate,
}

/// The changes between two runs. Ratios to the bridge are compared, because the conditions of two
/// runs are rarely the same.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// The changes, in the order of the later run.
    pub changes: Vec<Change>,
    /// True when both runs are of the same machine and kernel.
    pub same_machine: bool,
}

impl Change {
    /// The relative change of the ratio, such as 0.1 for +10 %.
    pub fn part(&self) -> f64 {
        self.after.median / self.before.median - 1.0
    }

    /// True when the intervals do not overlap; `None` with fewer than [`ENOUGH`] runs.
    pub fn is_certain(&self) -> Option<bool> {
        let apart = self.after.low > self.before.high || self.after.high < self.before.low;
        (self.after.runs.min(self.before.runs) >= ENOUGH).then_some(apart)
    }
}

/// Compares `before` with `after`.
pub fn compare(before: &Results, after: &Results) -> Comparison {
    let earlier = tables(before);
    let same =
        |a: &Rows, b: &Rows| (&a.study, &a.scenario, a.shape) == (&b.study, &b.scenario, b.shape);
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
            "Ratios to the bridge of the same block. * marks intervals that do not overlap, ? fewer \
             than {ENOUGH} runs, which are not conclusive."
        )?;
        for changes in self.changes.chunk_by(|a, b| a.scenario == b.scenario) {
            let mut table = Table::new();
            table.load_preset(presets::NOTHING);
            for change in changes {
                let mark = match change.is_certain() {
                    Some(true) => "*",
                    Some(false) => "",
                    None => "?",
                };
                table.add_row([
                    format!("  {}", change.contender),
                    format!("{:.2} -> {:.2}", change.before.median, change.after.median),
                    format!("{:+.1} % {mark}", change.part() * 100.0),
                    format!("({} and {} runs)", change.before.runs, change.after.runs),
                ]);
            }
            let scenario = changes.first().map_or("", |change| change.scenario.as_str());
            writeln!(f, "{scenario}\n{}", table.trim_fmt())?;
        }
        Ok(())
    }
}
