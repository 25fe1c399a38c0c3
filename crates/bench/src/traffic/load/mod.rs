//! Loads with the patterns of netperf, between a [`Server`] and the connections of a [`Client`], in
//! namespaces or between real hosts.
//!
//! Every connection is an *instance* with one thread on the client and one on the server, like a
//! netperf process.

mod client;
mod histogram;
mod instance;
mod pattern;
mod peer;
mod placement;
mod protocol;
mod server;

#[cfg(test)]
mod exchange;

pub use client::{Client, Connected, Counters};
pub use histogram::Histogram;
pub use pattern::{Load, MAX_CONNECTIONS, MAX_DATAGRAM, MAX_MESSAGE, MIN_DATAGRAM, Pattern};
pub use peer::{Peer, PeerCounters};
pub use placement::Placement;
pub use server::{DEFAULT_PORT, Server};
