//! The interface between the switch and a datapath, and what all datapath providers share.
//!
//! A datapath receives frames, looks each of them up among cached decisions ([`megaflow`]), and
//! executes the actions that it finds. A frame without a cached decision goes to the switch as an
//! [`upcall`]. [`Datapath`] is the interface; crate `datapath-user` forwards in userspace threads,
//! crate `datapath-bpf` in eBPF programs with the user datapath behind them.
//!
//! [`config`] describes ports and tunnels, [`stats`] is the form in which counters are reported,
//! [`histogram`] counts durations and lengths,
//! [`watch`] delivers copies of frames to observers, [`solicit`] limits how often a logical router
//! asks for a neighbour, [`tracker`] holds the connections of a datapath, [`saved_connections`]
//! saves them for the next daemon, [`number_pool`] numbers ports and end points, and [`none`] is a
//! datapath that forwards nothing.
#![forbid(unsafe_code)]

pub mod config;
pub mod cpu_meter;
pub mod histogram;
pub mod megaflow;
pub mod none;
pub mod number_pool;
pub mod provider;
pub mod saved_connections;
pub mod solicit;
pub mod stats;
pub mod tracker;
pub mod upcall;
pub mod watch;

pub use provider::{Cursor, Datapath, DatapathError, DumpCursor, DumpPage};
