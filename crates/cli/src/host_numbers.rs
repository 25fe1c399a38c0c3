//! The numbers of a host's ports and tunnel end points. An item that stays in the network file
//! keeps its number across reloads.

use datapath::number_pool::NumberPool;
use flow::TunnelSpec;
use std::net::IpAddr;
use std::time::Instant;

/// Identifies a port: the names of its logical switch and of the port. A port that moves to another
/// switch gets a new number.
pub type PortName = (String, String);
/// An end point: its specification, local address and remote address.
pub type EndpointName = (TunnelSpec, IpAddr, IpAddr);

/// The numbers of one host.
#[derive(Clone, Debug)]
pub struct HostNumbers {
    /// Starts at 1: port 0 is the uplink.
    pub ports: NumberPool<PortName>,
    /// Starts at 0.
    pub endpoints: NumberPool<EndpointName>,
}

impl Default for HostNumbers {
    fn default() -> Self {
        Self { ports: NumberPool::starting_at(1), endpoints: NumberPool::starting_at(0) }
    }
}

impl HostNumbers {
    /// Releases the numbers that were not requested since the last call. A released number can be
    /// given to another item after five seconds.
    pub fn release_unused(&mut self, now: Instant) {
        self.ports.release_unused(now);
        self.endpoints.release_unused(now);
    }
}
