//! [`ProgramBuilder`]: builds the switch's program (tables of flows), and updates it for each row
//! of the southbound database that changes.
//!
//! | row that changes | what is done |
//! |---|---|
//! | Logical_Flow | this flow is compiled |
//! | Logical_DP_Group | the flows of the group are compiled |
//! | Address_Set, Port_Group | the flows that name it are compiled |
//! | Port_Binding, Chassis, Interface | these ports are placed; flows naming them are compiled |
//! | Multicast_Group | this group is set |
//! | Load_Balancer | its flows are compiled |
//! | localnet port, bridge mapping | the ports of its switch and of bridges are placed |
//! | Meter, Meter_Band | all flows that name any meter are compiled |
//! | DNS | the names of its datapaths are set |
//! | Chassis_Template_Var of this host | flows and load balancers with variables are compiled |
//! | Datapath_Binding | if its tunnel key changed, everything is rebuilt |
//!
//! Only the flows of datapaths that packets of this host can pass through are compiled
//! ([`ReachableDatapaths`]).
//!
//! A flow that cannot be compiled is left out and recorded ([`BadFlow`]). The others work.

mod bridges;
mod dns;
mod flows;
mod learned;
mod load_balancers;
mod meters;
pub(crate) mod ports;
mod reachable;
mod roles;
mod templates;

use crate::endpoints::Endpoints;
use crate::local::LocalPorts;
use crate::monitored::Monitored;
use crate::tables::{
    AddressSet, ChassisTemplateVar, DatapathBinding, LogicalDpGroup, LogicalFlow, MulticastGroup,
    PortBinding, PortGroup, Text, TextMap, index,
};
use bridges::Bridges;
use dns::NameSet;
use flow::{DatapathKey, NamedMeter, PortKey, PortNo, TunnelType};
use lflow::{Constant, Loader};
pub use load_balancers::BalancedPair;
use load_balancers::LoadedBalancer;
use network::Placement;
use ovsdb::{Atom, Replica, RowChange, Table, Uuid};
use pipeline::{DatapathKind, FlowId, PortRole, Program};
use ports::PlacedPort;
use reachable::ReachableDatapaths;
use roles::PortRoles;
use southbound::{constant, port_group_name};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use templates::Templates;

pub use learned::learned;

/// The inputs, other than the southbound database, that determine where ports are.
#[derive(Clone, Copy, Debug)]
pub struct LocalContext<'a> {
    /// The row of this host in the table Chassis.
    pub chassis: Option<Uuid>,
    /// `system-id` and `hostname` of this host.
    pub names: [&'a str; 2],
    /// The local ports.
    pub local: &'a LocalPorts,
    /// The name of the integration bridge.
    pub integration: &'a str,
    /// The bridges of physical networks, by network.
    pub mappings: &'a BTreeMap<Text, Text>,
    /// The end points of other hosts.
    pub endpoints: &'a Endpoints,
    /// The rows of the southbound database that this host has asked for.
    pub monitored: &'a Monitored,
}

/// A logical flow that was left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadFlow {
    /// Its stage, such as `ls_in_acl`, or its table.
    pub stage: String,
    /// Its priority.
    pub priority: i64,
    /// Its match.
    pub condition: Text,
    /// The reason.
    pub problem: String,
}

impl fmt::Display for BadFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, priority, condition, problem } = self;
        write!(f, "{stage}, priority {priority}, match {condition}: {problem}")
    }
}

/// The program, and which rows it was built from.
#[derive(Debug)]
pub struct ProgramBuilder {
    loader: Loader,
    tunnels: Vec<TunnelType>,
    datapaths: HashMap<Uuid, DatapathKey>,
    ports: HashMap<Uuid, PlacedPort>,
    roles: PortRoles,
    bridges: Bridges,
    groups: HashMap<Uuid, (DatapathKey, PortKey)>,
    load_balancers: HashMap<Uuid, LoadedBalancer>,
    /// Backends that were removed, and whose connections are to end.
    removed_backends: BTreeSet<BalancedPair>,
    name_sets: BTreeMap<Uuid, NameSet>,
    templates: Templates,
    /// The flows that name a meter.
    metered: BTreeSet<Uuid>,
    /// All meters.
    meters: Arc<[NamedMeter]>,
    reachable: ReachableDatapaths,
    /// A cache: for each datapath group, its datapaths whose flows are compiled.
    dp_groups: HashMap<Uuid, Arc<[DatapathKey]>>,
    /// The reachable datapaths may have changed since the last call of
    /// [`take_reachability_change`](Self::take_reachability_change).
    has_reachability_changed: bool,
    /// Port groups by name: their rows with the ports of each.
    port_groups: BTreeMap<Text, BTreeMap<Uuid, Vec<String>>>,
    flows: HashMap<Uuid, FlowId>,
    bad_flows: BTreeMap<Uuid, BadFlow>,
    /// Further bad flows, beyond the limit of those that are recorded with a reason.
    unnamed_bad_flows: BTreeSet<Uuid>,
    /// Container ports whose VLAN tag another container port of the same parent already uses.
    tag_conflicts: BTreeSet<Uuid>,
    warnings: Vec<String>,
}

/// The rows of a batch of changes, by table.
struct Changes<'c>(HashMap<&'c str, Vec<&'c RowChange>>);

impl<'c> Changes<'c> {
    fn of<T: Table>(&self) -> impl Iterator<Item = &'c RowChange> {
        self.0.get(T::NAME).into_iter().flatten().copied()
    }

    fn uuids<T: Table>(&self) -> impl Iterator<Item = Uuid> {
        self.of::<T>().map(RowChange::uuid)
    }
}

impl ProgramBuilder {
    /// An empty program for packets from tunnels of these types.
    pub fn new(tunnels: &[TunnelType]) -> Self {
        let mut loader = Loader::for_a_host();
        for &tunnel in tunnels {
            let role = PortRole::Tunnel(tunnel);
            loader.program_mut().set_port_role(Placement::tunnel_port(tunnel), role);
        }
        Self {
            loader,
            tunnels: tunnels.to_vec(),
            datapaths: HashMap::new(),
            ports: HashMap::new(),
            roles: PortRoles::default(),
            bridges: Bridges::default(),
            groups: HashMap::new(),
            load_balancers: HashMap::new(),
            removed_backends: BTreeSet::new(),
            name_sets: BTreeMap::new(),
            templates: Templates::default(),
            metered: BTreeSet::new(),
            meters: Arc::default(),
            reachable: ReachableDatapaths::default(),
            dp_groups: HashMap::new(),
            has_reachability_changed: true,
            port_groups: BTreeMap::new(),
            flows: HashMap::new(),
            bad_flows: BTreeMap::new(),
            unnamed_bad_flows: BTreeSet::new(),
            tag_conflicts: BTreeSet::new(),
            warnings: Vec::new(),
        }
    }

    /// A program for the whole replica.
    pub fn from_replica(
        replica: &Replica,
        tunnels: &[TunnelType],
        context: &LocalContext<'_>,
    ) -> Self {
        let mut builder = Self::new(tunnels);
        let rows = replica.tables().flat_map(|table| table.rows());
        let all: Vec<_> =
            rows.map(|row| RowChange { old: None, new: Some(Arc::clone(row)) }).collect();
        builder.apply(replica, &all, context);
        builder
    }

    /// A snapshot of the program.
    pub fn program(&self) -> Program {
        self.loader.program()
    }

    /// The values of this host's template variables.
    pub fn template_values(&self) -> &TextMap {
        self.templates.values()
    }

    /// True if there is a logical switch or router.
    pub fn has_datapaths(&self) -> bool {
        !self.datapaths.is_empty()
    }

    /// The number of flows that are in the program.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// The flows that were left out, by row, up to a limit.
    pub fn bad_flows(&self) -> &BTreeMap<Uuid, BadFlow> {
        &self.bad_flows
    }

    /// The number of flows that were left out.
    pub fn bad_flow_count(&self) -> usize {
        self.bad_flows.len() + self.unnamed_bad_flows.len()
    }

    /// The names of the container ports behind a port of this host, without those whose datapath's
    /// flows are not all known.
    pub fn children(&self, port: PortNo) -> impl Iterator<Item = &Text> {
        let children = self.roles.children(port);
        let complete = children.filter(|((datapath, _), _)| self.is_complete(*datapath));
        complete.map(|(_, name)| name)
    }

    /// The datapaths that packets of this host can pass through.
    pub fn reachable_datapaths(&self) -> impl Iterator<Item = (Uuid, DatapathKey)> {
        let all = self.datapaths.iter().map(|(uuid, key)| (*uuid, *key));
        all.filter(|(_, key)| self.reachable.is_reached(*key))
    }

    /// True if [`reachable_datapaths`](Self::reachable_datapaths) may have changed since the last
    /// call.
    pub fn take_reachability_change(&mut self) -> bool {
        std::mem::take(&mut self.has_reachability_changed)
    }

    /// The role of a port of this host.
    pub fn port_role(&self, port: PortNo) -> Option<&PortRole> {
        self.loader.port_role(port)
    }

    /// True if the program has all flows of the datapath.
    pub fn is_complete(&self, datapath: DatapathKey) -> bool {
        self.reachable.contains(datapath)
    }

    /// Warnings since the last call, for the log.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Applies changes of rows. `replica` has these changes already.
    pub fn apply(&mut self, replica: &Replica, changes: &[RowChange], context: &LocalContext<'_>) {
        let mut by_table: HashMap<&str, Vec<&RowChange>> = HashMap::new();
        for change in changes {
            by_table.entry(change.table()).or_default().push(change);
        }
        let changes = Changes(by_table);
        if self.moves_datapath(&changes) {
            *self = Self::from_replica(replica, &self.tunnels, context);
            return;
        }
        if changes.of::<LogicalDpGroup>().chain(changes.of::<DatapathBinding>()).next().is_some() {
            self.dp_groups.clear();
        }
        // Flows are removed first and added last, so that each is compiled once, with the final
        // names.
        let flows: Vec<Uuid> = changes.uuids::<LogicalFlow>().collect();
        let of_groups = changes.uuids::<LogicalDpGroup>();
        let of_groups = of_groups.flat_map(|group| flows_of_group(replica, group));
        let has_templates = changes.of::<ChassisTemplateVar>().next().is_some();
        let [host, _] = context.names;
        let of_templates = has_templates.then(|| self.templates.read(replica, host)).flatten();
        let has_values = of_templates.is_some();
        let of_templates = of_templates.into_iter().flatten();
        let flows: BTreeSet<Uuid> =
            flows.into_iter().chain(of_groups).chain(of_templates).collect();
        let flows = &flows | &self.flows_of_meters(&changes).into_iter().collect();
        self.update_meters(replica, &changes);
        flows.iter().for_each(|&uuid| self.remove_flow(uuid));
        let renamed = self.apply_datapaths(replica, &changes);
        self.bridges.is_outdated |= Self::affects_localnets(&changes);
        let moved = self.update_localnets(replica, context);
        let incomplete: BTreeSet<Uuid> = renamed.union(&moved).copied().collect();
        self.apply_ports(replica, &changes, &incomplete, context);
        self.apply_groups(replica, &changes, &renamed);
        self.apply_sets(&changes);
        self.apply_dns(replica, &changes, &renamed);
        self.update_reachable(replica, &flows, context);
        self.place_bridge_ports(context.local);
        for uuid in flows {
            self.add_flow(replica, uuid);
        }
        self.apply_load_balancers(replica, &changes, has_values);
    }

    /// True if a datapath got another tunnel key. The whole program refers to it by the old one.
    fn moves_datapath(&self, changes: &Changes<'_>) -> bool {
        changes.of::<DatapathBinding>().any(|change| {
            let new = change.new.as_deref().and_then(DatapathBinding::from_row);
            let old = self.datapaths.get(&change.uuid());
            matches!((old, new), (Some(&old), Some(new)) if datapath_key(&new) != Some(old))
        })
    }

    /// Returns the datapaths that were added or renamed, and now lack their ports and groups.
    fn apply_datapaths(&mut self, replica: &Replica, changes: &Changes<'_>) -> BTreeSet<Uuid> {
        for change in changes.of::<DatapathBinding>().filter(|change| change.new.is_none()) {
            if let Some(key) = self.datapaths.remove(&change.uuid()) {
                self.loader.remove_datapath(key);
            }
        }
        let mut added = BTreeSet::new();
        for uuid in changes.uuids::<DatapathBinding>() {
            let Some(row) = replica.get::<DatapathBinding>(uuid) else { continue };
            let Some(key) = datapath_key(&row) else { continue };
            let (name, kind) = name_and_kind(uuid, &row.external_ids);
            let known = self.loader.program_mut().datapath(key);
            if known.is_some_and(|known| known.name == name && known.kind == kind) {
                continue;
            }
            self.loader.remove_datapath(key);
            self.loader.add_datapath(key, &name, kind);
            for &tunnel in &self.tunnels {
                self.loader.program_mut().set_tunnel(tunnel, key.0.into(), key);
            }
            self.datapaths.insert(uuid, key);
            added.insert(uuid);
        }
        added
    }

    fn apply_groups(&mut self, replica: &Replica, changes: &Changes<'_>, added: &BTreeSet<Uuid>) {
        let table = replica.table(MulticastGroup::NAME);
        let by = |name: &str, uuid: Uuid| {
            let rows = table.and_then(|table| table.index(name));
            rows.into_iter().flat_map(move |rows| rows.find_atom(Atom::Uuid(uuid)))
        };
        let mut affected: BTreeSet<Uuid> = changes.uuids::<MulticastGroup>().collect();
        let of_datapaths = added.iter().flat_map(|&uuid| by(index::DATAPATH, uuid));
        affected.extend(of_datapaths.map(|row| row.uuid()));
        let of_ports = changes.uuids::<PortBinding>().flat_map(|uuid| by(index::PORTS, uuid));
        affected.extend(of_ports.map(|row| row.uuid()));
        for uuid in &affected {
            if let Some((datapath, key)) = self.groups.remove(uuid) {
                self.loader.remove_multicast(datapath, key);
            }
        }
        for uuid in affected {
            let Some(row) = replica.get::<MulticastGroup>(uuid) else { continue };
            let key = u16::try_from(row.tunnel_key).ok().and_then(PortKey::new);
            let (Some(&datapath), Some(key)) = (self.datapaths.get(&row.datapath), key) else {
                continue;
            };
            let members = row.ports.iter().filter_map(|port| self.ports.get(port));
            let mut members: Vec<PortKey> = members.map(|port| port.key).collect();
            members.sort_unstable();
            let group = pipeline::MulticastGroup { name: row.name.to_string(), members };
            self.loader.set_multicast(datapath, key, group);
            self.groups.insert(uuid, (datapath, key));
        }
    }

    fn apply_sets(&mut self, changes: &Changes<'_>) {
        // First all removals, because another row may have the name now.
        for change in changes.of::<AddressSet>() {
            let (Some(old), new) = both::<AddressSet>(change) else { continue };
            if new.is_none_or(|new| new.name != old.name) {
                self.loader.set_address_set(&old.name, Vec::new());
            }
        }
        for change in changes.of::<AddressSet>() {
            let (_, Some(new)) = both::<AddressSet>(change) else { continue };
            let members = new.addresses.iter().filter_map(|member| {
                let constant: Option<Constant> = constant(member);
                if constant.is_none() {
                    let name = &new.name;
                    self.warnings.push(format!("address set {name}: `{member}` is no address"));
                }
                constant
            });
            let members = members.collect();
            self.loader.set_address_set(&new.name, members);
        }
        let mut affected: BTreeSet<Text> = BTreeSet::new();
        for change in changes.of::<PortGroup>() {
            let (old, new) = both::<PortGroup>(change);
            if let Some(old) = old {
                let name: Text = port_group_name(&old.name).into();
                if let Some(parts) = self.port_groups.get_mut(&name) {
                    parts.remove(&change.uuid());
                }
                affected.insert(name);
            }
            if let Some(new) = new {
                let name: Text = port_group_name(&new.name).into();
                let parts = self.port_groups.entry(name.clone()).or_default();
                parts.insert(change.uuid(), new.ports);
                affected.insert(name);
            }
        }
        // northd writes one row of a port group for each datapath. Port names are resolved in each
        // datapath anyway, so the rows are merged.
        for name in affected {
            let parts = self.port_groups.get(&name).into_iter().flat_map(BTreeMap::values);
            self.loader.set_port_group(&name, parts.flatten().cloned().collect());
            self.port_groups.retain(|_, parts| !parts.is_empty());
        }
    }
}

fn both<T: Table>(change: &RowChange) -> (Option<T>, Option<T>) {
    change.typed().unwrap_or((None, None))
}

fn flows_of_group(replica: &Replica, group: Uuid) -> impl Iterator<Item = Uuid> + use<'_> {
    let flows = replica.table(LogicalFlow::NAME).and_then(|table| table.index(index::DP_GROUP));
    let rows = flows.into_iter().flat_map(move |flows| flows.find_atom(Atom::Uuid(group)));
    rows.map(|row| row.uuid())
}

/// The key of a datapath, 1 to 2^24 - 1.
fn datapath_key(row: &DatapathBinding) -> Option<DatapathKey> {
    let key = u32::try_from(row.tunnel_key).ok()?;
    (1..1 << 24).contains(&key).then_some(DatapathKey(key))
}

/// A datapath's configured name, else the UUID of its northbound row, else that of this row; and
/// its kind.
fn name_and_kind(uuid: Uuid, ids: &TextMap) -> (String, DatapathKind) {
    let names = ["name", "logical-switch", "logical-router"];
    let name = names.iter().find_map(|key| ids.get(*key)).map(|name| name.to_string());
    let is_router = ids.contains_key("logical-router");
    let kind = if is_router { DatapathKind::Router } else { DatapathKind::Switch };
    (name.unwrap_or_else(|| uuid.to_string()), kind)
}
