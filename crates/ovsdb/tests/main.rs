//! Tests with real servers of Open vSwitch.

mod cluster;
mod cuts;
mod features;
mod harness;
mod random;
mod standalone;
mod transports;
