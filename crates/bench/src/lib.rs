//! The benchmark of weft: labs made of network namespaces, traffic, measurements and reports.
//!
//! Each layer uses only the layers listed before it:
//!
//! - [`lab`]: two hosts with guests, an underlay between them, and the [`lab::Contender`]s
//!   (switches and tunnels) that connect the guests;
//! - [`traffic`]: pings, TCP streams, transactions, and floods of small packets;
//! - [`measure`]: processor time and underlay frames, as differences of snapshots;
//! - [`trust`]: weft under hostile guests, reloads and kills;
//! - [`demo`]: compares every tunnel of weft to a Linux bridge and other switches, in one table;
//! - [`exact`]: the same labs in an emulated machine that counts instructions;
//! - [`study`]: the published studies, repeated, with a verdict for each of their claims;
//! - [`crosscheck`]: compares this crate's traffic with that of iperf3 and sockperf;
//! - [`cli`]: the command line of `weft-bench`.
//!
//! Everything that is built has an owner, and is removed when the owner is dropped: after success,
//! failure, a panic and Ctrl-C. Ctrl-C raises the [`Stop`] flag, which every wait polls. The next
//! session removes what a killed process left behind.
//!
//! The programs `ip`, `tc` and `ethtool` are not used. Only the compared switches run as external
//! programs.
#![forbid(unsafe_code)]

pub mod cli;
mod control;
pub mod crosscheck;
pub mod demo;
mod environment;
mod error;
pub mod exact;
pub mod file;
pub mod lab;
pub mod measure;
mod process;
mod progress;
mod random;
pub mod stats;
mod stop;
pub mod study;
pub mod traffic;
pub mod trust;

pub use environment::Environment;
pub use error::{Error, Result};
pub use process::Process;
pub use stop::Stop;
