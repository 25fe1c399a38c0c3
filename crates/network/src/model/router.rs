//! Logical routers.

use super::{Line, SwitchIndex};
use crate::{IpNet, Prefix};
use flow::PortKey;
use std::net::IpAddr;
use wire::MacAddr;

/// The place of a logical router in [`Network::logical_routers`](crate::Network::logical_routers).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RouterIndex(pub(crate) usize);

impl RouterIndex {
    /// The place, from 0.
    pub const fn value(self) -> usize {
        self.0
    }
}

/// A logical router: it is on every host, and leads packets from one layer 2 network to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalRouter {
    /// Unique among logical routers and logical switches.
    pub name: String,
    /// Its ports, in the order of their keys; at least one.
    pub ports: Vec<RouterPort>,
    /// Its static routes, no two for one prefix. The networks of its ports need none.
    pub routes: Vec<Route>,
    /// Where it is in the file.
    pub line: Line,
}

impl LogicalRouter {
    /// The port with that key.
    pub fn port(&self, key: PortKey) -> Option<&RouterPort> {
        self.ports.get(usize::from(key.value()).checked_sub(1)?)
    }
}

/// A port of a logical router.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouterPort {
    /// Unique among the ports of the whole network.
    pub name: String,
    /// Its place among the ports of its router, from 1.
    pub key: PortKey,
    /// Its address; unicast, unique in its switch.
    pub mac: MacAddr,
    /// Its IP addresses, at least one. The networks of a router's ports are apart from each other.
    pub addresses: Vec<IpNet>,
    /// What is at the other end.
    pub link: RouterLink,
    /// Where it is in the file.
    pub line: Line,
}

impl RouterPort {
    /// Its address in the network that `other` is in.
    pub fn address_towards(&self, other: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().find(|net| net.contains(&other)).map(|net| net.addr())
    }
}

/// The name of the port that a switch has for a port of a router. No name in the file has a slash.
pub(crate) fn port_in_switch(switch: &str, router_port: &str) -> String {
    format!("{switch}/{router_port}")
}

/// What a port of a logical router is linked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouterLink {
    /// A logical switch.
    Switch {
        /// Which.
        switch: SwitchIndex,
        /// The key of the port that the switch has for the router. They are given from the last that no guest has, mostly 32,767,
        /// down, so that a new port of a guest moves none.
        key: PortKey,
    },
    /// A port of another logical router, whose link leads back.
    Router {
        /// Which router.
        router: RouterIndex,
        /// Which of its ports.
        port: PortKey,
    },
}

/// A static route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Where to.
    pub prefix: Prefix,
    /// By which router: of the same family, and not one of the router's own addresses.
    pub next_hop: IpAddr,
    /// Out of which port.
    pub port: PortKey,
    /// The address of that port from which `next_hop` is asked for.
    pub source: IpAddr,
    /// Where it is in the file.
    pub line: Line,
}
