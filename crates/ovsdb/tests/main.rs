//! Tests against real servers of Open vSwitch.

mod harness;
mod standalone;
