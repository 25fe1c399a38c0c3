//! A run of studies: its options, its plan, the order of its measurements, and the recording of
//! results.

mod options;
mod plan;
mod record;
mod runner;

pub use options::StudyOptions;
pub use record::SavePoint;
pub use runner::run;
