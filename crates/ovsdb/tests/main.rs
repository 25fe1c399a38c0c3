//! Tests against real servers of Open vSwitch.

mod cluster;
mod cuts;
mod harness;
mod random;
mod standalone;
