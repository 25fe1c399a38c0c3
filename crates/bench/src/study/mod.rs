//! The published studies, repeated on this machine: runs, a verdict for each claim, and reports.
//!
//! Each layer uses only those above it:
//!
//! - [`model`]: the studies, the results of a run, and the claims;
//! - [`scenarios`]: what is measured, and how;
//! - [`verdict`]: tables of the results, the noise of the machine, and the verdicts;
//! - [`run()`]: measures the studies and gives [`Results`], the only input of the layers below;
//! - `report`: the results for people.

mod format;
mod join;
pub mod model;
mod report;
mod run;
pub mod scenarios;
pub mod verdict;

pub use join::join;
pub use model::{
    BASE, Claim, ClaimVerdict, Figures, Finding, Results, SCHEMA, Sample, Study, Tally,
    UnavailableContender,
};
pub use report::{Change, Comparison, Published, compare, findings, html, markdown, published};
pub use run::{SavePoint, StudyOptions, run};
pub use scenarios::{Cell, Scenario, Timing};
pub use verdict::{AGREEMENT, Metric, Row, Table, judged, tables, verdicts};
