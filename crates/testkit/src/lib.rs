//! What tests share: namespaces as hosts, other people's programs, OVN's databases, and the report of skipped tests and
//! real peers.
//!
//! A dev-dependency only.
#![forbid(unsafe_code)]

pub mod host;
pub mod ovn;
pub mod program;
pub mod report;
