//! The benchmark of weft: labs made of network namespaces, traffic, measurements and reports.
//!
//! Each layer uses only those above it:
//!
//! - [`lab`]: two hosts with guests, an underlay between them, and the [`lab::Contender`]s that
//!   join the guests;
//! - [`traffic`]: pings, TCP streams, transactions, and floods of small packets;
//! - [`measure`]: processor time and underlay frames, as differences of snapshots;
//! - [`trust`]: weft under hostile guests, reloads and kills;
//! - [`demo`]: every tunnel of weft beside a Linux bridge and other switches, in one table;
//! - [`exact`]: the same labs in an emulated machine that counts instructions;
//! - [`study`]: the published studies, repeated, with a verdict for each of their claims;
//! - [`crosscheck`]: this crate's traffic beside that of iperf3 and sockperf;
//! - [`cli`]: the command line of `weft-bench`.
//!
//! A value owns everything that is built, and removes it when dropped: after success, failure, a
//! panic and Ctrl-C. Ctrl-C raises the [`Stop`] flag, which every wait polls. The next session
//! removes what a killed process left behind.
//!
//! The programs `ip`, `tc` and `ethtool` are not used. Only compared switches run as programs.
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
