//! Learned state: what a translation can query, and the events that change it.

use crate::recirc::SuspendedState;
use flow::{DatapathKey, PortKey, RecircId, Recirculation};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use wire::MacAddr;

/// A version number of learned state: it grows whenever the answer to a query may have changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Generation(pub u64);

/// The key of a MAC binding: an IP address behind a logical port (OVN's `MAC_Binding` table).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MacBindingKey {
    /// The logical datapath.
    pub datapath: DatapathKey,
    /// The logical port.
    pub port: PortKey,
    /// The IP address.
    pub ip: IpAddr,
}

/// The key of a forwarding database entry: a MAC address in a layer 2 network (OVN's `FDB` table,
/// the MAC table of a learning bridge).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FdbKey {
    /// The logical datapath; 0 for a bridge programmed in the syntax of ovs-ofctl.
    pub datapath: DatapathKey,
    /// The VLAN ID, 0 for untagged frames.
    pub vlan: u16,
    /// The MAC address.
    pub mac: MacAddr,
}

/// The port that a forwarding database entry points to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum FdbPort {
    /// A logical port.
    Logical(PortKey),
    /// A port of the datapath.
    Port(flow::PortNo),
}

/// The port through which a packet entered. Learned entries count against the limit of this port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct IngressPort {
    /// The logical datapath; 0 for a bridge programmed in the syntax of ovs-ofctl.
    pub datapath: DatapathKey,
    /// The logical port if it is known, otherwise the datapath port.
    pub port: FdbPort,
}

/// A virtual address of a load balancer with source-address affinity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AffinityVip {
    /// The address.
    pub ip: IpAddr,
    /// The IP protocol and the port; `None` for all traffic to the address.
    pub service: Option<(u8, u16)>,
}

/// The key of a source-address affinity: a client of a load balancer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AffinityKey {
    /// The logical datapath that balances.
    pub datapath: DatapathKey,
    /// The address of the client.
    pub client: IpAddr,
    /// The virtual address that it connects to.
    pub vip: AffinityVip,
}

/// The backend that serves the connections of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Affinity {
    /// The address.
    pub backend: IpAddr,
    /// The port; 0 to keep that of the packet.
    pub port: u16,
    /// The affinity ends when no new connection has used it for this many seconds.
    pub timeout_s: u16,
}

/// The key of a next hop: a connection as it was opened, seen by a router.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NextHopKey {
    /// The router.
    pub datapath: DatapathKey,
    /// Source and destination of packets in the direction in which it was opened.
    pub addresses: (IpAddr, IpAddr),
    /// The IP protocol.
    pub protocol: u8,
    /// Source port and destination port.
    pub ports: (u16, u16),
}

/// Learned state, as translations read it.
///
/// Every answer carries its generation, even the answer "unknown".
pub trait LearnedState {
    /// The MAC address that an IP address is bound to.
    fn mac_binding(&self, key: &MacBindingKey) -> (Option<MacAddr>, Generation);

    /// The port behind which a MAC address was last seen.
    fn fdb_port(&self, key: &FdbKey) -> (Option<FdbPort>, Generation);

    /// The backend that serves the connections of a client.
    fn affinity(&self, key: &AffinityKey) -> (Option<Affinity>, Generation);

    /// The next hop through which a connection was opened.
    fn next_hop(&self, key: &NextHopKey) -> (Option<MacAddr>, Generation);

    /// Saves the state in which the next pass of a packet begins. Equal states have one number
    /// while it is in use. `None` when there is no room.
    fn suspend(&self, state: SuspendedState) -> Option<Recirculation>;

    /// The saved state with this number; `None` when it no longer exists.
    fn suspended(&self, id: RecircId) -> Option<Arc<SuspendedState>>;
}

/// State in which nothing is ever learned, and no packet can pass the connection tracker.
impl LearnedState for () {
    fn mac_binding(&self, _: &MacBindingKey) -> (Option<MacAddr>, Generation) {
        (None, Generation(0))
    }

    fn fdb_port(&self, _: &FdbKey) -> (Option<FdbPort>, Generation) {
        (None, Generation(0))
    }

    fn affinity(&self, _: &AffinityKey) -> (Option<Affinity>, Generation) {
        (None, Generation(0))
    }

    fn next_hop(&self, _: &NextHopKey) -> (Option<MacAddr>, Generation) {
        (None, Generation(0))
    }

    fn suspend(&self, _: SuspendedState) -> Option<Recirculation> {
        None
    }

    fn suspended(&self, _: RecircId) -> Option<Arc<SuspendedState>> {
        None
    }
}

/// A query that a translation made, with the generation of the answer. The translation stays valid
/// as long as the generation does not change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Dependency {
    /// The query.
    pub query: StateQuery,
    /// The generation of the answer.
    pub generation: Generation,
    /// True if packets with this translation confirm the answer: they use the MAC binding, the
    /// affinity or the next hop, or come from the station.
    pub confirms: bool,
}

/// A lookup in learned state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum StateQuery {
    /// Which MAC address is this IP address bound to?
    MacBinding(MacBindingKey),
    /// Behind which port is this MAC address?
    Fdb(FdbKey),
    /// Which backend serves this client?
    Affinity(AffinityKey),
    /// Through which next hop was this connection opened?
    NextHop(NextHopKey),
}

impl StateQuery {
    /// The datapath that the query is about.
    pub const fn datapath(&self) -> DatapathKey {
        match self {
            Self::MacBinding(key) => key.datapath,
            Self::Fdb(key) => key.datapath,
            Self::Affinity(key) => key.datapath,
            Self::NextHop(key) => key.datapath,
        }
    }
}

/// A fact that the switch is to learn from a packet.
///
/// It is not part of the cached decision. Learning it changes the generation of the matching
/// query, which invalidates the megaflows that depend on the old answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum LearnEvent {
    /// An IP address has this MAC address.
    MacBinding(MacBindingKey, MacAddr),
    /// A MAC address was seen behind this port.
    Fdb(FdbKey, FdbPort),
    /// This backend serves the connections of a client.
    Affinity(AffinityKey, Affinity),
    /// A connection was opened through this next hop.
    NextHop(NextHopKey, MacAddr),
}

impl LearnEvent {
    /// The query whose answer this event changes.
    pub const fn query(&self) -> StateQuery {
        match self {
            Self::MacBinding(key, _) => StateQuery::MacBinding(*key),
            Self::Fdb(key, _) => StateQuery::Fdb(*key),
            Self::Affinity(key, _) => StateQuery::Affinity(*key),
            Self::NextHop(key, _) => StateQuery::NextHop(*key),
        }
    }

    /// True for an event that other hosts may learn too. Affinities and next hops belong to
    /// connections, which one host tracks.
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::MacBinding(..) | Self::Fdb(..))
    }
}

/// Prints `10.9.9.9:80`, or without a service `10.9.9.9`.
impl fmt::Display for AffinityVip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_address(f, self.ip, self.service.map_or(0, |(_, port)| port))
    }
}

/// Prints `10.0.0.1:8080`, or without a port `10.0.0.1`.
impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_address(f, self.backend, self.port)
    }
}

fn show_address(f: &mut fmt::Formatter<'_>, ip: IpAddr, port: u16) -> fmt::Result {
    match port {
        0 => write!(f, "{ip}"),
        port => write!(f, "{}", SocketAddr::new(ip, port)),
    }
}

impl fmt::Display for StateQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MacBinding(MacBindingKey { datapath, port, ip }) => {
                write!(f, "the MAC address of {ip} behind port {port} of datapath {datapath}")
            }
            Self::Fdb(FdbKey { datapath, vlan, mac }) => {
                write!(f, "the port of {mac} in VLAN {vlan} of datapath {datapath}")
            }
            Self::Affinity(AffinityKey { datapath, client, vip }) => {
                write!(f, "the backend of {client} for {vip} in datapath {datapath}")
            }
            Self::NextHop(NextHopKey { datapath, addresses: (src, dst), ports, .. }) => {
                let (src, dst) = (SocketAddr::new(*src, ports.0), SocketAddr::new(*dst, ports.1));
                write!(f, "the next hop of {src} -> {dst} in datapath {datapath}")
            }
        }
    }
}

impl fmt::Display for LearnEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let query = self.query();
        match self {
            Self::MacBinding(_, mac) => write!(f, "{query} is {mac}"),
            Self::Fdb(_, FdbPort::Logical(port)) => write!(f, "{query} is logical port {port}"),
            Self::Fdb(_, FdbPort::Port(port)) => write!(f, "{query} is port {port}"),
            Self::Affinity(_, affinity) => write!(f, "{query} is {affinity}"),
            Self::NextHop(_, mac) => write!(f, "{query} is {mac}"),
        }
    }
}
