//! Tests of the commands that show, watch and change a running switch.

pub mod call;
mod capture;
mod chosen;
mod counters;
mod faults;
mod graph;
mod learning;
mod log;
mod monitor;
mod reload;
mod routed;
mod support;
mod tables;
mod top;
