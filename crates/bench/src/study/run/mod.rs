//! A run of studies: its options, its plan, its order, and its growing results.

mod options;
mod plan;
mod record;
mod runner;

pub use options::StudyOptions;
pub use record::SavePoint;
pub use runner::run;
