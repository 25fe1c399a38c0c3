//! What tests share: random frames, the conformance suite of datapaths, namespaces as hosts, what a kernel merges, virtual machines, other people's
//! programs, OVN's databases, and the report of skipped tests and real peers.
//!
//! A dev-dependency only.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod crc32c;
pub mod frames;
pub mod host;
pub mod merging;
pub mod ovn;
pub mod program;
pub mod random;
pub mod report;
pub mod vm;
