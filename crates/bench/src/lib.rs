//! Labs of network namespaces on this machine, traffic in them, what it costs, and a table of it.
//!
//! - [`lab`]: two hosts with two guests each, an underlay between them, and the [`lab::Contender`]s that join the guests;
//! - [`traffic`]: pings, TCP streams, transactions, and packets by the hundred thousand;
//! - [`measure`]: processors and frames, as differences of snapshots;
//! - [`trust`]: weft under hostile guests, reloads and kills;
//! - [`study`]: the published studies repeated, with a verdict for each of their claims;
//! - [`crosscheck`]: this crate's traffic beside that of iperf3 and sockperf;
//! - [`exact`]: the same labs in an emulated machine that counts instructions;
//! - [`demo`]: all of that for every tunnel of weft and for what it is compared with.
//!
//! Whatever is built is owned by a value that removes it when dropped: after success, failure, a panic, and Ctrl-C, which
//! raises the [`Stop`] flag that every wait polls. What a killed process leaves behind is removed by the next one.
//!
//! The programs `ip`, `tc` and `ethtool` are not used. Only peers under comparison are run as programs.
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
