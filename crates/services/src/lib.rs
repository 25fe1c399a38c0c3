//! Services that a switch gives its guests, so that no server is needed for them: DHCP, DHCPv6,
//! router advertisements and DNS. Beside them, [`health`] checks the backends of load balancers,
//! and [`announce`] tells a network what this host serves.
//!
//! ```text
//! request (UDP payload) --(Service)--> answer (UDP payload, ICMPv6 message), its destination
//! ```
//!
//! A [`Service`] holds only configuration. Its answer is a function of the request, so a switch may
//! ask it from any thread and in any order. Requests come from guests: whatever their bytes are,
//! they get an answer or none.
//!
//! This crate has no I/O and no clock. The caller finds the request in a frame, and makes a frame
//! of the answer.
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
    /// A DNS server for a few names.
    Dns(dns::Resolver),
}

/// To whom an answer is sent.
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
