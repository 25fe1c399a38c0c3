//! A run of studies: its options, its plan, its order, and its growing results.

mod options;
mod outline;
mod record;
mod runner;

pub use options::Options;
pub use record::Milestone;
pub use runner::run;
