//! The published studies, measured on this machine: runs, a verdict for each claim of a study, and
//! reports.
//!
//! Each layer uses only the layers listed before it:
//!
//! - [`model`]: the studies, the results of a run, and the claims;
//! - [`scenarios`]: the traffic, and how it is measured;
//! - [`verdict`]: tables of the results, the noise of the machine, and the verdicts;
//! - [`run()`]: measures the studies and returns [`Results`], the only input of verdicts and
//!   reports;
//! - `report`: the results as text, HTML and charts.

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
