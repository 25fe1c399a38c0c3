//! Load balancers and network address translation.

use super::{FileLine, RouterIndex, SwitchIndex};
use crate::Prefix;
use flow::PortKey;
use lflow::actions::Transport;
use services::health;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use wire::MacAddr;

/// A load balancer: the switches of its clients, or routers on the path, distribute connections to
/// a virtual address over several backends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadBalancer {
    /// Its name, unique among load balancers.
    pub name: String,
    /// The switches of its clients; at least one unless there are routers.
    pub switches: Vec<SwitchIndex>,
    /// The routers that distribute the connections that pass through them. They have a home host.
    pub routers: Vec<RouterIndex>,
    /// The protocol of the connections.
    pub protocol: Transport,
    /// The virtual address and port.
    pub vip: SocketAddr,
    /// The backends, of the same family; at least one.
    pub backends: Vec<SocketAddr>,
    /// Further connections of a client go to its backend, until it has opened none for this many
    /// seconds. `None` without affinity.
    pub affinity_s: Option<u16>,
    /// How its backends are checked; `None` without checks.
    pub health: Option<HealthChecks>,
    /// The backends that get no new connections, because their checks fail. Empty when the file is
    /// read.
    pub offline: BTreeSet<SocketAddr>,
    /// Its line in the file.
    pub line: FileLine,
}

impl LoadBalancer {
    /// The backends that get new connections.
    pub fn active(&self) -> impl Iterator<Item = &SocketAddr> {
        self.backends.iter().filter(|backend| !self.offline.contains(backend))
    }
}

/// How the backends of a load balancer are checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HealthChecks {
    /// The kind of check.
    pub kind: health::Kind,
    /// The intervals and timeouts of checks.
    pub timing: health::Timing,
    /// The backends, in the order of the load balancer.
    pub targets: Vec<HealthTarget>,
}

/// A backend that is checked: a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HealthTarget {
    /// The backend.
    pub backend: SocketAddr,
    /// The switch of the guest.
    pub switch: SwitchIndex,
    /// The port of the guest in that switch.
    pub port: PortKey,
    /// The MAC address of the guest.
    pub mac: MacAddr,
    /// The source address of checks, which no guest and no router in that switch has.
    pub source: IpAddr,
}

/// A rule of network address translation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nat {
    /// The router that translates. It has a home host.
    pub router: RouterIndex,
    /// The addresses that it translates.
    pub kind: NatKind,
    /// The address that is visible outside.
    pub external: IpAddr,
    /// The addresses inside, of the same family; one address unless the kind is
    /// [`NatKind::Snat`].
    pub internal: Prefix,
    /// Its line in the file.
    pub line: FileLine,
}

/// The addresses that a [`Nat`] translates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NatKind {
    /// The source of connections from inside.
    Snat,
    /// The destination of connections from outside.
    Dnat,
    /// Both.
    DnatAndSnat,
}

impl NatKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Snat, Self::Dnat, Self::DnatAndSnat];

    /// The word in the file, as in OVN.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Snat => "snat",
            Self::Dnat => "dnat",
            Self::DnatAndSnat => "dnat_and_snat",
        }
    }

    /// True if the source of connections from inside is translated.
    pub const fn translates_source(self) -> bool {
        !matches!(self, Self::Dnat)
    }

    /// True if the destination of connections from outside is translated.
    pub const fn translates_destination(self) -> bool {
        !matches!(self, Self::Snat)
    }
}
