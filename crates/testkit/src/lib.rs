//! What tests share: namespaces as hosts, virtual machines, other people's programs, OVN's databases, and the report of
//! skipped tests and real peers.
//!
//! A dev-dependency only.
#![forbid(unsafe_code)]

pub mod host;
pub mod ovn;
pub mod program;
pub mod report;
pub mod vm;
