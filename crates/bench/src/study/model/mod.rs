//! The data of a study: its questions, the results of a run, and the claims.

mod claim;
mod results;
mod study;

pub(crate) use claim::CLAIMS;
pub use claim::{Claim, ClaimVerdict, Finding, Tally};
#[cfg(test)]
pub(crate) use results::empty;
pub use results::{BASE, Figures, Results, SCHEMA, Sample, UnavailableContender};
pub(crate) use results::{INTERLEAVED, blocks_by_study};
pub use study::Study;
