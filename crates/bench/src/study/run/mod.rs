//! The run of studies: options, plan, order, and the results as they grow.

mod options;
mod outline;
mod record;
mod runner;

pub use options::Options;
pub use record::Milestone;
pub use runner::run;
