//! Services that a switch provides to its guests without a server: DHCP, DHCPv6, router
//! advertisements and DNS. In addition, [`health`] checks the backends of load balancers, and
//! [`announce`] announces addresses and routers to a network.
//!
//! ```text
//! request (UDP payload) --(Service)--> answer (UDP payload, ICMPv6 message), its destination
//! ```
//!
//! A [`Service`] holds only configuration. Its answer is a function of the request, so a switch may
//! call it from any thread and in any order. Requests come from guests and are not trusted: an
//! invalid request gets no answer.
//!
//! This crate has no I/O and no clock. The caller extracts the request from a frame, and builds a
//! frame with the answer.
#![forbid(unsafe_code)]

pub mod announce;
pub mod dhcp4;
pub mod dhcp6;
pub mod dns;
mod domain_name;
pub mod health;
pub mod router;

pub use domain_name::BadDomainName;

/// A configured service.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// A DHCP server for one client.
    Dhcp4(dhcp4::Server),
    /// A DHCPv6 server for one client.
    Dhcp6(dhcp6::Server),
    /// A router that answers solicitations.
    Router(router::Router),
    /// A DNS server for a configured set of names.
    Dns(dns::Resolver),
}

/// The destination of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Destination {
    /// The client's own address.
    Client,
    /// All hosts of the link, because the client may not have its address yet.
    Broadcast,
}

impl Service {
    /// The destinations that its answers may have.
    pub const fn destinations(&self) -> &'static [Destination] {
        match self {
            Self::Dhcp4(_) | Self::Router(_) => &[Destination::Client, Destination::Broadcast],
            Self::Dhcp6(_) | Self::Dns(_) => &[Destination::Client],
        }
    }

    /// The name of the service: `dhcp4`, `dhcp6`, `router`, `dns`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Dhcp4(_) => "dhcp4",
            Self::Dhcp6(_) => "dhcp6",
            Self::Router(_) => "router",
            Self::Dns(_) => "dns",
        }
    }
}
