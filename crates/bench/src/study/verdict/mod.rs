//! The verdicts on a run: tables of its samples, the noise of the machine, and the judgement of
//! each claim.

mod check;
mod criteria;
mod evidence;
mod judge;
mod noise;
mod select;
mod tables;

pub(crate) use evidence::{Evidence, spread};
pub use judge::{judged, verdicts};
pub(crate) use select::{Ratio, SampleSelector};
pub use tables::{AGREEMENT, Metric, Row, Table, tables};
