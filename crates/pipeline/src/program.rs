//! [`Program`]: everything that decides what the switch does with packets, as one immutable value.
//!
//! ```text
//! in_port -> PortRole -> Datapath -> groups -> one classifier per table -> Flow -> ops
//! ```
//!
//! Each flow belongs to a *group* of logical datapaths, so that flows common to a thousand logical
//! switches are stored once. A datapath uses a group of its own and the groups that it shares. A
//! lookup in a table searches each group and takes the flow with the highest rank. A program
//! written in the syntax of ovs-ofctl has one datapath and one group.
//!
//! A clone shares all data with the original (copy on write). To change a program, change a clone
//! and publish it; threads that hold the old program do not see the change.

use crate::flow::Flow;
use crate::op::{AffinityRule, Direction, LearnedOp, Op};
use crate::port_security::PortSecurity;
use crate::port_vlans::PortVlans;
use crate::zones::CtZones;
use ::flow::{DatapathKey, EndpointId, Match, PortKey, PortNo, TagLink, TunnelType};
use classifier::{Classifier, Rank};
use services::Service;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use wire::VlanId;

type Map<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;

/// The number of a table in a program. Logical datapaths have 64 ingress and 64 egress tables; a
/// bridge programmed in the syntax of ovs-ofctl has 255 tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TableId(u8);

impl TableId {
    /// The number of tables of an ingress or egress pipeline.
    pub const LOGICAL: u8 = 64;
    /// The first table, of a bridge or of an ingress pipeline.
    pub const FIRST: Self = Self(0);
    /// The first table of an egress pipeline.
    pub const FIRST_EGRESS: Self = Self(Self::LOGICAL);

    /// The table of a logical datapath that recognizes packets which a load balancer has sent back
    /// to their source. It is in no pipeline, like the next two.
    pub const HAIRPIN: Self = Self(2 * Self::LOGICAL);
    /// The table that recognizes replies to such packets.
    pub const HAIRPIN_REPLY: Self = Self(2 * Self::LOGICAL + 1);
    /// The table that translates the source of such packets to the load balancer's address.
    pub const HAIRPIN_SNAT: Self = Self(2 * Self::LOGICAL + 2);

    /// Table `number`, 0 to 254, of a bridge. `None` for 255, which means "all tables" in
    /// ovs-ofctl.
    pub const fn bridge(number: u8) -> Option<Self> {
        if number == 255 { None } else { Some(Self(number)) }
    }

    /// Table `number`, 0 to 63, of a logical pipeline; `None` for a larger number.
    pub const fn logical(direction: Direction, number: u8) -> Option<Self> {
        match direction {
            _ if number >= Self::LOGICAL => None,
            Direction::Ingress => Some(Self(number)),
            Direction::Egress => Some(Self(Self::LOGICAL + number)),
        }
    }

    /// The index among all tables of the program.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// For a table of a logical datapath: its pipeline, and its number in that pipeline.
    pub const fn in_pipeline(self) -> (Direction, u8) {
        if self.0 < Self::LOGICAL {
            (Direction::Ingress, self.0)
        } else {
            (Direction::Egress, self.0 - Self::LOGICAL)
        }
    }
}

/// The plain number, as ovs-ofctl names the tables of a bridge.
impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a group in its program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GroupId(u32);

/// The flows of one group, by table.
#[derive(Clone, Debug, Default)]
struct Group {
    /// For each table, its index in `classifiers` plus 1; 0 for a table without flows. Tables
    /// beyond the end have no flows.
    slots: Vec<u8>,
    classifiers: Vec<Classifier<Arc<Flow>>>,
    /// The affinity rules in the group's flows, each with the number of flows that contain it.
    affinity_rules: Map<AffinityRule, usize>,
}

impl Group {
    #[inline]
    fn table(&self, table: TableId) -> Option<&Classifier<Arc<Flow>>> {
        let slot = usize::from(*self.slots.get(table.index())?);
        self.classifiers.get(slot.checked_sub(1)?)
    }

    /// Counts the affinity rules of a flow that is added or removed.
    fn count_affinity_rules(&mut self, flow: &Flow, is_added: bool) {
        for op in flow.ops.iter() {
            let Op::Learned(op) = op else { continue };
            let LearnedOp::LearnAffinity(rule) = &**op else { continue };
            let count = self.affinity_rules.entry(*rule).or_default();
            *count = if is_added { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                self.affinity_rules.remove(rule);
            }
        }
    }

    fn table_mut(&mut self, table: TableId) -> &mut Classifier<Arc<Flow>> {
        if self.slots.len() <= table.index() {
            self.slots.resize(table.index() + 1, 0);
        }
        if self.slots[table.index()] == 0 {
            self.classifiers.push(Classifier::default());
            // The cast is lossless: there are at most 255 tables.
            self.slots[table.index()] = self.classifiers.len() as u8;
        }
        &mut self.classifiers[usize::from(self.slots[table.index()]) - 1]
    }
}

/// The kind of a datapath.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DatapathKind {
    /// A logical switch.
    Switch,
    /// A logical router.
    Router,
    /// A bridge, programmed in the syntax of ovs-ofctl.
    Bridge,
    /// A provider bridge: a learning switch of this host, without flows, between the host's devices
    /// and logical switches. Its ports are [`PortLocation::Local`] or [`PortLocation::Patch`].
    Provider,
}

/// A logical switch, a logical router, or a bridge.
#[derive(Clone, Debug)]
pub struct Datapath {
    /// The name, shown in output.
    pub name: String,
    /// The kind.
    pub kind: DatapathKind,
    /// The key in tunnel headers, if it differs from the datapath's own key. Switches with
    /// different tunnel types may use the same number on the wire.
    pub tunnel_key: Option<DatapathKey>,
    /// The underlay multicast group that the other hosts with ports of this datapath have joined.
    /// Multicast goes there once instead of to the end point of each host.
    pub underlay_group: Option<EndpointId>,
    /// The logical ingress port of packets whose tunnel header names no logical ports.
    pub tunnel_inport: TunnelInport,
    /// The groups whose flows apply to this datapath.
    pub groups: Vec<GroupId>,
    /// The logical ports.
    pub ports: Map<PortKey, LogicalPort>,
    /// The VLANs of the ports of a provider bridge. Other ports carry all VLANs, tagged.
    pub vlans: Map<PortKey, PortVlans>,
    /// Ports that exist on every host, and whose packets stay on this host (OVN's `localport`).
    pub localports: BTreeSet<PortKey>,
    /// The multicast groups. They share the number space of ports.
    pub multicast: Map<PortKey, MulticastGroup>,
    /// The names that [`Op::DnsLookup`] answers for.
    pub dns: Option<Arc<Service>>,
    /// The ports of a bridge, by the numbers that its flows use.
    pub bridge_ports: BTreeMap<PortNo, BridgePort>,
    /// The connection tracking zones that the flows of a bridge name.
    pub bridge_zones: BTreeSet<u16>,
}

impl Datapath {
    /// A datapath without ports and flows.
    pub fn new(name: impl Into<String>, kind: DatapathKind) -> Self {
        Self {
            name: name.into(),
            kind,
            tunnel_key: None,
            underlay_group: None,
            tunnel_inport: TunnelInport::None,
            groups: Vec::new(),
            ports: Map::default(),
            vlans: Map::default(),
            localports: BTreeSet::new(),
            multicast: Map::default(),
            dns: None,
            bridge_ports: BTreeMap::new(),
            bridge_zones: BTreeSet::new(),
        }
    }
}

/// The logical ingress port of packets that come out of a tunnel whose header names no logical
/// ports. MAC addresses are learned behind this port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum TunnelInport {
    /// There is none.
    #[default]
    None,
    /// One port for all remote hosts.
    Shared(PortKey),
    /// One port for each remote host, by the outer source address; none for other addresses.
    ByHost(BTreeMap<IpAddr, PortKey>),
}

/// A port of a logical datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalPort {
    /// The name, also in matches and actions.
    pub name: String,
    /// Where the port is attached.
    pub location: PortLocation,
    /// The addresses that it may use.
    pub security: PortSecurity,
}

/// A name for several logical ports of one datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MulticastGroup {
    /// The name, also in matches and actions.
    pub name: String,
    /// The member ports, in the order in which packets are sent to them.
    pub members: Vec<PortKey>,
}

/// Where a logical port is attached, seen from this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortLocation {
    /// On no host. Packets sent there are dropped as
    /// [`DropReason::PortDown`](flow::DropReason::PortDown).
    Unbound,
    /// On this host.
    Local(PortNo),
    /// On another host, reached through a tunnel.
    Remote {
        /// The tunnel end point of that host.
        endpoint: EndpointId,
        /// True when the tunnel header carries the logical ports, so that the other host skips the
        /// ingress pipeline.
        logical_ports: bool,
    },
    /// Behind the uplink, in frames tagged for one VLAN or QinQ link.
    Tagged {
        /// The uplink.
        uplink: PortNo,
        /// The link.
        link: TagLink,
    },
    /// Behind a port of this host, in frames with a tag (OVN's container ports, which have a
    /// parent port).
    Child {
        /// The port of the parent.
        parent: PortNo,
        /// The VLAN ID.
        vlan: VlanId,
    },
    /// An alias of another port of the same datapath (OVN's `chassisredirect`).
    Redirect(PortKey),
    /// A patch port: its peer is a port of another logical datapath. It exists on every host.
    Patch {
        /// The peer's datapath.
        datapath: DatapathKey,
        /// The peer.
        port: PortKey,
    },
}

/// The role of a datapath port: how a packet that arrives on it enters the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortRole {
    /// The interface of a guest (VIF).
    Vif {
        /// The guest's logical switch.
        datapath: DatapathKey,
        /// The guest's logical port.
        port: PortKey,
    },
    /// The interface of a guest with containers behind it. Frames with the tag of a container
    /// belong to its port, others to the parent.
    Parent {
        /// The switch and port of the parent, if it is known.
        own: Option<(DatapathKey, PortKey)>,
        /// The switches and ports of the containers, by VLAN ID.
        children: BTreeMap<u16, (DatapathKey, PortKey)>,
    },
    /// Frames decapsulated from a tunnel of this type, or received from the uplink and stripped of
    /// their tags.
    Tunnel(TunnelType),
    /// A port of a bridge.
    Bridge {
        /// The bridge.
        datapath: DatapathKey,
        /// The port's number in the bridge, which flows use.
        port: PortNo,
    },
}

impl PortRole {
    /// The logical port of untagged frames, for a port of this host.
    pub fn logical_port(&self) -> Option<(DatapathKey, PortKey)> {
        match self {
            Self::Vif { datapath, port } => Some((*datapath, *port)),
            Self::Parent { own, .. } => *own,
            Self::Tunnel(_) | Self::Bridge { .. } => None,
        }
    }
}

/// A port of a bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgePort {
    /// The name.
    pub name: String,
    /// The datapath port. Flows use the port's number in the bridge instead.
    pub number: PortNo,
    /// The kind.
    pub kind: BridgePortKind,
}

/// The kind of a bridge port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BridgePortKind {
    /// A network device.
    Device,
    /// A flow-based tunnel: flows choose the end point by `tun_dst` and the key by `tun_id`.
    Tunnel {
        /// The end points by remote address.
        endpoints: Map<IpAddr, EndpointId>,
    },
}

/// The tables, datapaths and ports of a switch. Cloning is cheap; see the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Program {
    groups: Vec<Arc<Group>>,
    datapaths: Arc<Map<DatapathKey, Arc<Datapath>>>,
    port_roles: Arc<Map<PortNo, PortRole>>,
    by_tunnel: Arc<Map<(TunnelType, u64), DatapathKey>>,
    zones: Arc<CtZones>,
}

impl Program {
    /// The key of the bridge in a program of one bridge.
    pub const BRIDGE: DatapathKey = DatapathKey(0);

    /// Adds a group without flows.
    pub fn add_group(&mut self) -> GroupId {
        self.groups.push(Arc::default());
        GroupId(self.groups.len() as u32 - 1)
    }

    /// Adds a datapath, or replaces the one with this key.
    pub fn set_datapath(&mut self, key: DatapathKey, datapath: Datapath) {
        Arc::make_mut(&mut self.datapaths).insert(key, Arc::new(datapath));
    }

    /// Removes a datapath. False when there is none with this key.
    pub fn remove_datapath(&mut self, key: DatapathKey) -> bool {
        Arc::make_mut(&mut self.datapaths).remove(&key).is_some()
    }

    /// The datapath with this key, for changes.
    pub fn datapath_mut(&mut self, key: DatapathKey) -> Option<&mut Datapath> {
        Arc::make_mut(&mut self.datapaths).get_mut(&key).map(Arc::make_mut)
    }

    /// The datapath with this key.
    #[inline]
    pub fn datapath(&self, key: DatapathKey) -> Option<&Datapath> {
        self.datapaths.get(&key).map(|datapath| &**datapath)
    }

    /// All datapaths, in no particular order.
    pub fn datapaths(&self) -> impl Iterator<Item = (DatapathKey, &Datapath)> {
        self.datapaths.iter().map(|(key, datapath)| (*key, &**datapath))
    }

    /// Adds a flow, as one classifier rule for each of `rows`. The rows and the flow's residual
    /// predicate together are its match. The group must not yet have a flow with the same table,
    /// priority and number.
    pub fn add_flow(&mut self, group: GroupId, flow: &Arc<Flow>, rows: &[Match]) {
        let Some(group) = self.groups.get_mut(group.0 as usize) else { return };
        let group = Arc::make_mut(group);
        group.count_affinity_rules(flow, true);
        let table = group.table_mut(flow.table);
        for row in rows {
            table.insert(row, flow.rank(), Arc::clone(flow));
        }
    }

    /// Removes a flow that was added with these rows.
    pub fn remove_flow(&mut self, group: GroupId, flow: &Flow, rows: &[Match]) {
        let Some(group) = self.groups.get_mut(group.0 as usize) else { return };
        let group = Arc::make_mut(group);
        group.count_affinity_rules(flow, false);
        let table = group.table_mut(flow.table);
        for row in rows {
            table.remove(row, flow.rank());
        }
    }

    /// The flows of a table of a group, with their rows. A flow with several rows is listed several
    /// times.
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

    /// True if a flow of the group contains this affinity rule.
    pub(crate) fn has_affinity_rule(&self, group: GroupId, rule: &AffinityRule) -> bool {
        let group = self.groups.get(group.0 as usize);
        group.is_some_and(|group| group.affinity_rules.contains_key(rule))
    }

    #[inline]
    pub(crate) fn table(&self, group: GroupId, table: TableId) -> Option<&Classifier<Arc<Flow>>> {
        self.groups.get(group.0 as usize)?.table(table)
    }

    /// Sets the role of a datapath port.
    pub fn set_port_role(&mut self, port: PortNo, role: PortRole) {
        Arc::make_mut(&mut self.port_roles).insert(port, role);
    }

    /// Removes the role of a datapath port and returns it.
    pub fn remove_port_role(&mut self, port: PortNo) -> Option<PortRole> {
        Arc::make_mut(&mut self.port_roles).remove(&port)
    }

    /// The role of a datapath port.
    #[inline]
    pub fn port_role(&self, port: PortNo) -> Option<&PortRole> {
        self.port_roles.get(&port)
    }

    /// Every datapath port that has a role, in no particular order.
    pub fn port_roles(&self) -> impl Iterator<Item = (PortNo, &PortRole)> {
        self.port_roles.iter().map(|(port, role)| (*port, role))
    }

    /// Sets the datapath that frames with this key belong to when they come out of a tunnel of this
    /// type.
    pub fn set_tunnel(&mut self, tunnel: TunnelType, key: u64, datapath: DatapathKey) {
        Arc::make_mut(&mut self.by_tunnel).insert((tunnel, key), datapath);
    }

    /// The datapath of a tunnel key.
    pub fn datapath_of_tunnel(&self, tunnel: TunnelType, key: u64) -> Option<DatapathKey> {
        self.by_tunnel.get(&(tunnel, key)).copied()
    }

    /// Adds a port to a bridge, whose flows use the number `port` for it. Sets the role of its
    /// datapath port. Does nothing if there is no such bridge.
    pub fn set_bridge_port(&mut self, bridge: DatapathKey, port: PortNo, bridge_port: BridgePort) {
        let Some(datapath) = self.datapath_mut(bridge) else { return };
        let number = bridge_port.number;
        datapath.bridge_ports.insert(port, bridge_port);
        self.set_port_role(number, PortRole::Bridge { datapath: bridge, port });
    }

    /// The bridge port that this datapath port belongs to.
    pub fn bridge_port(&self, number: PortNo) -> Option<&BridgePort> {
        match self.port_role(number)? {
            PortRole::Bridge { datapath, port } => self.datapath(*datapath)?.bridge_ports.get(port),
            PortRole::Vif { .. } | PortRole::Parent { .. } | PortRole::Tunnel(_) => None,
        }
    }

    /// Replaces the flows of a group by those of a group of another program. Takes constant time.
    pub fn copy_group(&mut self, group: GroupId, from: &Self, theirs: GroupId) {
        if let (Some(group), Some(theirs)) =
            (self.groups.get_mut(group.0 as usize), from.groups.get(theirs.0 as usize))
        {
            *group = Arc::clone(theirs);
        }
    }

    /// The connection tracking zones; none before [`Program::allocate_zones`].
    pub fn zones(&self) -> &Arc<CtZones> {
        &self.zones
    }

    pub(crate) fn set_zones(&mut self, zones: Arc<CtZones>) {
        self.zones = zones;
    }
}
