//! [`Program`]: what the switch does with packets, as one immutable value.
//!
//! ```text
//! in_port --> Entry --> Datapath --> groups --> one classifier per table --> Flow --> ops
//! ```
//!
//! A flow belongs to a *group* of logical datapaths, so that what a thousand logical switches have in common is there once. A
//! datapath is a member of its own group and of those that it shares; a lookup in a table asks each of them and takes the
//! best flow. A program written in the syntax of ovs-ofctl has one datapath and one group.
//!
//! A clone shares everything with the original. To change a program, change a clone and publish it: whoever holds the
//! old one sees none of it.

use crate::flow::Flow;
use crate::port_security::PortSecurity;
use ::flow::{DatapathKey, EndpointId, Match, PortKey, PortNo, TagLink, TunnelType};
use classifier::{Classifier, Rank};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

type Map<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;

/// A table of a program. Logical pipelines have two rows of them, ingress and egress; the syntax of ovs-ofctl has one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TableId(u8);

impl TableId {
    /// Tables in a row of a logical pipeline.
    pub const LOGICAL: u8 = 64;
    /// The first table, of a bridge or of an ingress pipeline.
    pub const FIRST: Self = Self(0);
    /// The first table of an egress pipeline.
    pub const FIRST_EGRESS: Self = Self(Self::LOGICAL);

    /// Table `number`, 0 to 254, of a bridge; `None` for 255, which ovs-ofctl takes to mean "all tables".
    pub const fn bridge(number: u8) -> Option<Self> {
        if number == 255 { None } else { Some(Self(number)) }
    }

    /// Table `number`, 0 to 63, of a logical pipeline.
    pub const fn logical(direction: crate::op::Direction, number: u8) -> Option<Self> {
        match direction {
            _ if number >= Self::LOGICAL => None,
            crate::op::Direction::Ingress => Some(Self(number)),
            crate::op::Direction::Egress => Some(Self(Self::LOGICAL + number)),
        }
    }

    /// The place among all tables of the program.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The pipeline and the number in it, of a table of a logical pipeline.
    pub const fn in_pipeline(self) -> (crate::op::Direction, u8) {
        if self.0 < Self::LOGICAL {
            (crate::op::Direction::Ingress, self.0)
        } else {
            (crate::op::Direction::Egress, self.0 - Self::LOGICAL)
        }
    }
}

/// The plain number, as a bridge's tables are named.
impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a group in its program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GroupId(u32);

/// The flows of a group of datapaths.
#[derive(Clone, Debug, Default)]
struct Group {
    /// For each table its place in `classifiers` plus 1; 0 for tables without flows. Shorter than the number of tables.
    places: Vec<u8>,
    classifiers: Vec<Classifier<Arc<Flow>>>,
}

impl Group {
    #[inline]
    fn table(&self, table: TableId) -> Option<&Classifier<Arc<Flow>>> {
        let place = usize::from(*self.places.get(table.index())?);
        self.classifiers.get(place.checked_sub(1)?)
    }

    fn table_mut(&mut self, table: TableId) -> &mut Classifier<Arc<Flow>> {
        if self.places.len() <= table.index() {
            self.places.resize(table.index() + 1, 0);
        }
        if self.places[table.index()] == 0 {
            self.classifiers.push(Classifier::default());
            // 255 tables at most.
            self.places[table.index()] = self.classifiers.len() as u8;
        }
        &mut self.classifiers[usize::from(self.places[table.index()]) - 1]
    }
}

/// What a datapath is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DatapathKind {
    /// A logical switch.
    Switch,
    /// A logical router.
    Router,
    /// A bridge, programmed in the syntax of ovs-ofctl.
    Bridge,
}

/// A logical switch, a logical router, or a bridge.
#[derive(Clone, Debug)]
pub struct Datapath {
    /// For people.
    pub name: String,
    /// What it is.
    pub kind: DatapathKind,
    /// What tunnels carry for it, when that is not its own key: switches of different tunnel types may have the same number on
    /// the wire.
    pub tunnel_key: Option<DatapathKey>,
    /// A multicast group of the underlay that all other hosts hear which have ports of it: what goes to several ports goes there
    /// once, instead of to the end point of each host.
    pub underlay_group: Option<EndpointId>,
    /// Where packets come from whose tunnel names no logical ports.
    pub senders: Senders,
    /// The groups whose flows it executes.
    pub groups: Vec<GroupId>,
    /// Its ports.
    pub ports: Map<PortKey, LogicalPort>,
    /// Its multicast groups; their keys are not those of ports.
    pub multicast: Map<PortKey, MulticastGroup>,
}

impl Datapath {
    /// One without ports and flows.
    pub fn new(name: impl Into<String>, kind: DatapathKind) -> Self {
        Self {
            name: name.into(),
            kind,
            tunnel_key: None,
            underlay_group: None,
            senders: Senders::Unnamed,
            groups: Vec::new(),
            ports: Map::default(),
            multicast: Map::default(),
        }
    }
}

/// The logical port by which a packet comes in out of a tunnel that names none: what it teaches is learnt there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Senders {
    /// None.
    #[default]
    Unnamed,
    /// This one, whoever has sent it.
    Wire(PortKey),
    /// One for each host, by the source address of the outer header; none for hosts that are not here.
    Hosts(BTreeMap<IpAddr, PortKey>),
}

/// A port of a logical datapath.
#[derive(Clone, Debug)]
pub struct LogicalPort {
    /// For people, and for the language.
    pub name: String,
    /// Where it is.
    pub place: Place,
    /// What it may send and receive.
    pub security: PortSecurity,
}

/// Several ports under one name.
#[derive(Clone, Debug)]
pub struct MulticastGroup {
    /// For people, and for the language.
    pub name: String,
    /// The ports, in the order in which they are reached.
    pub members: Vec<PortKey>,
}

/// Where a logical port is: the physical side of the program, different on every host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Bound to no host: what is sent there is dropped ([`DropReason::PortDown`](flow::DropReason::PortDown)).
    Unbound,
    /// On this host.
    Local(PortNo),
    /// Behind a tunnel.
    Remote {
        /// The end point of the host that has it.
        endpoint: EndpointId,
        /// The tunnel says which logical port is meant, so that the other host need not decide again.
        logical_ports: bool,
    },
    /// Behind the uplink, in frames with the tags of a link.
    Tagged {
        /// The uplink.
        uplink: PortNo,
        /// The link.
        link: TagLink,
    },
    /// Another name for a port of the same datapath (OVN's `chassisredirect`).
    Redirect(PortKey),
    /// One end of a cable whose other end is a port of another logical datapath. It is on every host.
    Patch {
        /// The other datapath.
        datapath: DatapathKey,
        /// Its port.
        port: PortKey,
    },
}

/// What a packet that comes in by a datapath port is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A guest's frame.
    Vif {
        /// Its logical switch.
        datapath: DatapathKey,
        /// Its logical port.
        port: PortKey,
    },
    /// Out of a tunnel of this type, or from the uplink without the tags that it had there.
    Tunnel(TunnelType),
    /// A port of the bridge.
    Bridge,
}

/// A port of a bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgePort {
    /// For people.
    pub name: String,
    /// What is behind it.
    pub kind: BridgePortKind,
}

/// What is behind a port of a bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BridgePortKind {
    /// A device.
    Device,
    /// A tunnel whose end point is chosen by `tun_dst` and whose key is `tun_id` ("flow-based").
    Tunnel {
        /// The end points by address.
        endpoints: Map<IpAddr, EndpointId>,
    },
}

/// A whole program; see the module.
#[derive(Clone, Debug, Default)]
pub struct Program {
    groups: Vec<Arc<Group>>,
    datapaths: Arc<Map<DatapathKey, Arc<Datapath>>>,
    entries: Arc<Map<PortNo, Entry>>,
    by_tunnel: Arc<Map<(TunnelType, u64), DatapathKey>>,
    bridge_ports: Arc<BTreeMap<PortNo, BridgePort>>,
}

impl Program {
    /// The datapath of a bridge.
    pub const BRIDGE: DatapathKey = DatapathKey(0);

    /// Adds a group without flows.
    pub fn add_group(&mut self) -> GroupId {
        self.groups.push(Arc::default());
        GroupId(self.groups.len() as u32 - 1)
    }

    /// Adds a datapath, or replaces the one with that key.
    pub fn set_datapath(&mut self, key: DatapathKey, datapath: Datapath) {
        Arc::make_mut(&mut self.datapaths).insert(key, Arc::new(datapath));
    }

    /// Takes a datapath out.
    pub fn remove_datapath(&mut self, key: DatapathKey) -> bool {
        Arc::make_mut(&mut self.datapaths).remove(&key).is_some()
    }

    /// The datapath with that key, to be changed.
    pub fn datapath_mut(&mut self, key: DatapathKey) -> Option<&mut Datapath> {
        Arc::make_mut(&mut self.datapaths).get_mut(&key).map(Arc::make_mut)
    }

    /// The datapath with that key.
    #[inline]
    pub fn datapath(&self, key: DatapathKey) -> Option<&Datapath> {
        self.datapaths.get(&key).map(|datapath| &**datapath)
    }

    /// All datapaths, in no particular order.
    pub fn datapaths(&self) -> impl Iterator<Item = (DatapathKey, &Datapath)> {
        self.datapaths.iter().map(|(key, datapath)| (*key, &**datapath))
    }

    /// Adds a flow: one rule for each of `rows`, which together with the flow's residual predicate are its match. A flow of the
    /// same group, table, priority and number is not to be there already.
    pub fn add_flow(&mut self, group: GroupId, flow: &Arc<Flow>, rows: &[Match]) {
        let Some(group) = self.groups.get_mut(group.0 as usize) else { return };
        let table = Arc::make_mut(group).table_mut(flow.table);
        for row in rows {
            table.insert(row, flow.rank(), Arc::clone(flow));
        }
    }

    /// Takes out a flow that was added with these rows.
    pub fn remove_flow(&mut self, group: GroupId, flow: &Flow, rows: &[Match]) {
        let Some(group) = self.groups.get_mut(group.0 as usize) else { return };
        let table = Arc::make_mut(group).table_mut(flow.table);
        for row in rows {
            table.remove(row, flow.rank());
        }
    }

    /// The flows of a group and table with their rows; a flow with several rows is there several times.
    pub fn rules(
        &self,
        group: GroupId,
        table: TableId,
    ) -> impl Iterator<Item = (Match, Rank, &Arc<Flow>)> {
        self.groups
            .get(group.0 as usize)
            .and_then(|group| group.table(table))
            .into_iter()
            .flat_map(Classifier::iter)
    }

    /// The groups, in order.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.groups.len() as u32).map(GroupId)
    }

    #[inline]
    pub(crate) fn table(&self, group: GroupId, table: TableId) -> Option<&Classifier<Arc<Flow>>> {
        self.groups.get(group.0 as usize)?.table(table)
    }

    /// Says what comes in by a port.
    pub fn set_entry(&mut self, port: PortNo, entry: Entry) {
        Arc::make_mut(&mut self.entries).insert(port, entry);
    }

    /// Forgets a port.
    pub fn remove_entry(&mut self, port: PortNo) -> Option<Entry> {
        Arc::make_mut(&mut self.entries).remove(&port)
    }

    /// What comes in by a port.
    #[inline]
    pub fn entry(&self, port: PortNo) -> Option<&Entry> {
        self.entries.get(&port)
    }

    /// Every port by which packets come in.
    pub fn entries(&self) -> impl Iterator<Item = (PortNo, &Entry)> {
        self.entries.iter().map(|(port, entry)| (*port, entry))
    }

    /// Says which logical switch the frames of a tunnel type with this key belong to.
    pub fn set_tunnel(&mut self, tunnel: TunnelType, key: u64, datapath: DatapathKey) {
        Arc::make_mut(&mut self.by_tunnel).insert((tunnel, key), datapath);
    }

    /// The logical switch of a tunnel key.
    pub fn datapath_of_tunnel(&self, tunnel: TunnelType, key: u64) -> Option<DatapathKey> {
        self.by_tunnel.get(&(tunnel, key)).copied()
    }

    /// Adds a port of the bridge, and its entry.
    pub fn set_bridge_port(&mut self, port: PortNo, bridge_port: BridgePort) {
        Arc::make_mut(&mut self.bridge_ports).insert(port, bridge_port);
        self.set_entry(port, Entry::Bridge);
    }

    /// The ports of the bridge, in order.
    pub fn bridge_ports(&self) -> impl Iterator<Item = (PortNo, &BridgePort)> {
        self.bridge_ports.iter().map(|(port, bridge_port)| (*port, bridge_port))
    }

    /// A port of the bridge.
    pub fn bridge_port(&self, port: PortNo) -> Option<&BridgePort> {
        self.bridge_ports.get(&port)
    }
}
