//! The data of a study: what it asks, what a run measured, and the claims it is judged by.

mod claim;
mod results;
mod study;

pub(crate) use claim::CLAIMS;
pub use claim::{Claim, ClaimVerdict, Finding, Tally};
#[cfg(test)]
pub(crate) use results::empty;
pub use results::{BASE, Figures, LeftOut, Results, SCHEMA, Sample};
pub(crate) use results::{INTERLEAVED, blocks_by_study};
pub use study::Study;
