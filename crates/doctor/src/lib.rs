//! Diagnosis of a host: the capabilities of its NICs, MTUs and kernel for tunnels, faults, and
//! fixes.
//!
//! [`facts`] reads the state of the host from netlink, ioctl and `/proc`. [`checks`] turns facts
//! into [`Finding`]s without any I/O, so that recorded hardware is checked by the same code as a
//! live host. [`report`] prints them. [`fix`] applies the safe fixes and can undo them.
#![forbid(unsafe_code)]

pub mod checks;
pub mod choice;
pub mod cost;
pub mod diagnose;
pub mod drivers;
pub mod facts;
mod finding;
pub mod fix;
pub mod host;
pub mod path;
pub mod report;

pub use finding::{Finding, Fix, Level};
