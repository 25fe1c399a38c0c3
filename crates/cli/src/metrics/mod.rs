//! Metrics of the daemon for Prometheus, at the address that `weft run --metrics` names.
//!
//! [`families`] is the one table of all metrics: name, type, labels, help, and a function that
//! reads the values from an [`Observation`]. The unit is the last word of the name. [`exposition`]
//! writes them in the text formats of OpenMetrics and Prometheus, [`http`] reads requests, and
//! [`server`] serves them.
//!
//! An observation consists of replies of the control socket, so that metrics and commands report
//! the same values. The thread that serves the HTTP client takes it. Apart from histograms, metrics
//! add no counters to the datapath. Other values are read only for a request.

mod address;
mod exposition;
mod families;
mod http;
mod observation;
mod server;

pub use address::MetricsAddress;
pub use observation::{Observation, OvnFacts, PortDrops, ProcessFacts};
pub use server::MetricsSocket;

#[cfg(test)]
pub use families::document;
