//! The published studies, repeated on this machine: runs, a verdict for each claim, and reports.
//!
//! [`run()`] measures and gives [`Results`], which are all that a report is made of: [`tables`] has the rows, [`verdicts`] the claims.

mod catalogue;
mod chart;
mod checks;
mod claims;
mod compare;
mod entropy;
mod findings;
mod html;
mod join;
mod judge;
mod longest;
mod markdown;
mod noise;
mod outline;
mod published;
mod results;
mod run;
mod scale;
mod scenario;
mod select;
mod summary;

pub use catalogue::Study;
pub use claims::{Claim, Finding, Tally, Verdict, verdicts};
pub use compare::{Change, Comparison, compare};
pub use findings::findings;
pub use html::html;
pub use join::join;
pub use markdown::markdown;
pub use published::{Published, published};
pub use results::{Figures, LeftOut, Results, SCHEMA, Sample};
pub use run::{Milestone, Options, run};
pub use scenario::{Cell, Scenario, Timing};
pub use summary::{AGREEMENT, BASE, Metric, Row, Table, tables};
