//! Logical routers.

use super::{FileLine, HostIndex, SwitchIndex};
use crate::{IpNet, Prefix};
use flow::PortKey;
use std::net::IpAddr;
use wire::MacAddr;

/// The index of a logical router in [`Network::logical_routers`](crate::Network::logical_routers).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RouterIndex(pub(crate) usize);

impl RouterIndex {
    /// The index, from 0.
    pub const fn value(self) -> usize {
        self.0
    }
}

/// A logical router: it routes between logical switches and other logical routers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalRouter {
    /// Its name, unique among logical routers and switches.
    pub name: String,
    /// The only host that it runs on; `None` for every host. With a home host, its ports are linked
    /// to switches only.
    pub home: Option<HostIndex>,
    /// Its ports, in the order of their keys; at least one.
    pub ports: Vec<RouterPort>,
    /// Its static routes, at most one per prefix. The networks of its ports need none.
    pub routes: Vec<Route>,
    /// The source address that forced SNAT gives to connections of the router's load balancers.
    /// Only a router with a home host can have one.
    pub lb_force_snat: Option<ForceSnat>,
    /// The source address that forced SNAT gives to connections whose destination a NAT rule of the
    /// router translates: always [`ForceSnat::Addresses`]. Only a router with a home host can have
    /// one.
    pub dnat_force_snat: Option<ForceSnat>,
    /// Its line in the file.
    pub line: FileLine,
}

/// Forced SNAT: the source address that a router gives to connections, so that their replies return
/// through the same router.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ForceSnat {
    /// The first address of the port by which the connection leaves.
    RouterIp,
    /// One address, or one of each family. An address in a network of one of the router's ports is
    /// that port's own address.
    Addresses(Vec<IpAddr>),
}

impl LogicalRouter {
    /// The port with the key `key`.
    pub fn port(&self, key: PortKey) -> Option<&RouterPort> {
        self.ports.get(usize::from(key.value()).checked_sub(1)?)
    }
}

/// A port of a logical router.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouterPort {
    /// Its name, unique among all ports of the network.
    pub name: String,
    /// Its number among the ports of its router, from 1.
    pub key: PortKey,
    /// Its MAC address: unicast, unique in its switch.
    pub mac: MacAddr,
    /// Its IP addresses, at least one. The networks of a router's ports do not overlap.
    pub addresses: Vec<IpNet>,
    /// The other end of its link.
    pub link: RouterLink,
    /// Its line in the file.
    pub line: FileLine,
}

impl RouterPort {
    /// Its address in the network that contains `other`.
    pub fn address_towards(&self, other: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().find(|net| net.contains(&other)).map(|net| net.addr())
    }
}

/// The name of the switch port that leads to a router port. Names in the file cannot contain a
/// slash.
pub(crate) fn port_in_switch(switch: &str, router_port: &str) -> String {
    format!("{switch}/{router_port}")
}

/// The other end of a router port's link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouterLink {
    /// A logical switch.
    Switch {
        /// The switch.
        switch: SwitchIndex,
        /// The key of the switch port that leads to the router. Router ports take the highest keys
        /// that no guest port has, so adding a guest port does not change them.
        key: PortKey,
    },
    /// A port of another logical router, which is linked back.
    Router {
        /// The router.
        router: RouterIndex,
        /// The key of its port.
        port: PortKey,
    },
}

/// A static route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The destination.
    pub prefix: Prefix,
    /// The next hop: of the same family, and not an address of the router itself.
    pub next_hop: IpAddr,
    /// The egress port.
    pub port: PortKey,
    /// The address of that port from which the router resolves `next_hop`.
    pub source: IpAddr,
    /// Its line in the file.
    pub line: FileLine,
}
