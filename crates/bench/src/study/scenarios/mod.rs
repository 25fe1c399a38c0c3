//! The scenarios of the studies: their catalogue, and the code that measures each type of scenario.

mod catalogue;
mod entropy;
mod longest;
mod scale;
mod scenario;

pub use scale::Axis;
pub(crate) use scenario::RATE_TRIALS;
pub use scenario::{Cell, Scenario, Timing};
