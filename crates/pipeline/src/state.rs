//! What the switch learns from packets while it runs, as a translation queries and changes it.

use crate::recirc::SuspendedState;
use flow::{DatapathKey, PortKey, RecircId, Recirculation};
use std::fmt;
use std::net::IpAddr;
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

/// The port by which a packet entered. Learned entries count against the limit of this port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct IngressPort {
    /// The logical datapath; 0 for a bridge programmed in the syntax of ovs-ofctl.
    pub datapath: DatapathKey,
    /// The logical port when the packet's origin is known that exactly, else the datapath port.
    pub port: FdbPort,
}

/// Learned state, as translations read it.
///
/// Every answer carries its generation, also the answer "unknown".
pub trait LearnedState {
    /// The MAC address that an IP address is bound to.
    fn mac_binding(&self, key: &MacBindingKey) -> (Option<MacAddr>, Generation);

    /// The port behind which a MAC address was last seen.
    fn fdb_port(&self, key: &FdbKey) -> (Option<FdbPort>, Generation);

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
    /// Packets with this translation show that the answer is still right: they use the MAC binding,
    /// or come from the station.
    pub confirms: bool,
}

/// A lookup in learned state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum StateQuery {
    /// Which MAC address is this IP address bound to?
    MacBinding(MacBindingKey),
    /// Behind which port is this MAC address?
    Fdb(FdbKey),
}

impl StateQuery {
    /// The datapath that it is about.
    pub const fn datapath(&self) -> DatapathKey {
        match self {
            Self::MacBinding(key) => key.datapath,
            Self::Fdb(key) => key.datapath,
        }
    }
}

/// Something that the switch is to learn from a packet.
///
/// It is not part of the cached decision. Learning it changes the generation of the matching
/// query, which invalidates the megaflows that depend on the old answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum LearnEvent {
    /// An IP address has this MAC address.
    MacBinding(MacBindingKey, MacAddr),
    /// A MAC address was seen behind this port.
    Fdb(FdbKey, FdbPort),
}

impl LearnEvent {
    /// The query whose answer this event changes.
    pub const fn query(&self) -> StateQuery {
        match self {
            Self::MacBinding(key, _) => StateQuery::MacBinding(*key),
            Self::Fdb(key, _) => StateQuery::Fdb(*key),
        }
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
        }
    }
}
