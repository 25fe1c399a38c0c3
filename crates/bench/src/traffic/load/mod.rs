//! Loads with netperf's meanings: streams, requests and responses, new connections, and packets, between a [`Server`] and
//! the connections of a [`Client`], in namespaces of this machine as well as between real hosts.
//!
//! Every connection of a load is an *instance* with a thread of its own on either side, as each netperf would be.

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
