//! What tests share: packet builders, pcap files, namespaces as hosts, and the report of skipped tests and real peers.
//!
//! A dev-dependency only.
#![forbid(unsafe_code)]

pub mod host;
pub mod report;
