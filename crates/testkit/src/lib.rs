//! Shared test code: random frames, the conformance suite of datapaths, namespaces that act as
//! hosts, the kernel's GRO, virtual machines, external programs, OVN's databases, and the report of
//! skipped tests and of the real programs that tests ran against.
//!
//! This crate is a dev-dependency only.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod crc32c;
pub mod frames;
pub mod host;
pub mod merging;
pub mod netfilter;
pub mod ovn;
pub mod program;
pub mod random;
pub mod report;
pub mod vm;
