//! The commands that show, watch and change a running switch, as an operator calls them.

mod call;
mod capture;
mod chosen;
mod counters;
mod faults;
mod learning;
mod monitor;
mod reload;
mod routed;
mod tables;
