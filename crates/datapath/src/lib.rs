//! The datapath: where frames come in, what they are looked up in, and where they go.
//!
//! [`provider::Datapath`] is what a switch asks of it. [`user`] forwards in userspace over TAP, AF_PACKET and UDP sockets,
//! with super-packets whole.
#![forbid(unsafe_code)]

pub mod megaflow;
pub mod provider;
pub mod solicit;
pub mod stats;
pub mod upcall;
pub mod user;
pub mod watch;

pub use provider::{Datapath, DatapathError, DumpCursor};
