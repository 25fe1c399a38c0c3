//! [`Loader`]: compiles logical flows into a [`Program`], and updates the program when something
//! changes.
//!
//! A logical flow applies to a set of datapaths. The loader compiles it once and stores it in the
//! group of these datapaths. If names in the flow (ports, multicast groups) have different meanings
//! in these datapaths, the set is split by meaning and the flow is compiled once for each part. The
//! loader remembers which names each flow has used, so that a new port or a changed address set
//! recompiles only those flows.

use super::actions::{self, Actions, Stage};
use super::expr::{self, Compiled, Expr};
use super::load_balancer::LoadBalancer;
use super::logical_flow::{FlowError, FlowPart, LogicalFlow};
use super::scope::{PortGroupMembers, Scope};
use super::token::Constant;
use ::flow::{DatapathKey, DropReason, Match, NamedMeter, PortKey, PortNo};
use pipeline::{
    Datapath, DatapathKind, Flow, FlowCounters, FlowId, FlowText, GroupId, LogicalPort,
    MulticastGroup, Op, PortRole, Program, TableId,
};
use services::Service;
use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::sync::Arc;

type Map<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;
type Set<K> = std::collections::HashSet<K, ahash::RandomState>;

/// Compiles logical flows into a program.
#[derive(Debug, Default)]
pub struct Loader {
    program: Program,
    names: Map<DatapathKey, DatapathNames>,
    address_sets: Map<Arc<str>, Vec<Constant>>,
    port_groups: Map<Arc<str>, Set<Arc<str>>>,
    /// The port groups of each port name.
    groups_of_ports: Map<Arc<str>, Vec<Arc<str>>>,
    /// For ports with another value than the default: whether they are on this host.
    resident: Map<Arc<str>, bool>,
    /// True if a port is on this host only after [`Loader::set_resident`].
    has_only_residents: bool,
    groups: Map<Arc<[DatapathKey]>, GroupUse>,
    /// Groups without flows, for reuse.
    free_groups: Vec<GroupId>,
    flows: Map<FlowId, LoadedFlow>,
    /// For each name, the flows that have used it.
    users: Map<NameQuery, Vec<FlowId>>,
    strings: Strings,
    /// Compiled actions without names, shared between flows.
    shared_ops: Map<(Arc<str>, TableId), Arc<[Op]>>,
    /// The number of strings and shared actions at which unused ones are next removed.
    cleanup_at: usize,
    next: u64,
}

/// Unused strings and shared actions are not removed while there are fewer than this.
const MIN_CLEANUP: usize = 4096;

/// The meaning of names in a datapath. A port takes precedence over a multicast group of the same
/// name.
#[derive(Debug, Default)]
struct DatapathNames {
    ports: Map<Arc<str>, PortKey>,
    groups: Map<Arc<str>, PortKey>,
}

impl DatapathNames {
    fn key_of(&self, name: &str) -> Option<PortKey> {
        self.ports.get(name).or_else(|| self.groups.get(name)).copied()
    }

    /// The keys of those of `names` that exist in this datapath, in ascending order.
    fn keys_of(&self, names: &Set<Arc<str>>) -> Vec<u16> {
        let own = self.ports.len() + self.groups.len();
        let mut keys: Vec<u16> = if names.len() <= own {
            names.iter().filter_map(|name| self.key_of(name)).map(PortKey::value).collect()
        } else {
            let own = self.ports.keys().chain(self.groups.keys());
            let known = own.filter(|name| names.contains(*name));
            known.filter_map(|name| self.key_of(name)).map(PortKey::value).collect()
        };
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// The kind of a name.
#[derive(Clone, Copy)]
enum NameKind {
    Port,
    Group,
}

/// A group of datapaths that share flows.
#[derive(Clone, Copy, Debug)]
struct GroupUse {
    id: GroupId,
    /// The number of flows in the group.
    flows: usize,
}

/// A flow that the loader has compiled. Its groups are not stored: to remove it, the loader
/// compiles it again with the meanings that its names had before.
#[derive(Debug)]
struct LoadedFlow {
    datapaths: Arc<[DatapathKey]>,
    /// Holds the text and the counters. If the flow is in several groups, each has a copy that
    /// shares these counters.
    flow: Arc<Flow>,
}

/// The source that a flow is compiled from.
#[derive(Clone, Debug)]
struct FlowSource {
    table: TableId,
    priority: u16,
    text: FlowText,
}

impl From<&Flow> for FlowSource {
    fn from(flow: &Flow) -> Self {
        Self { table: flow.table, priority: flow.priority, text: flow.text.clone() }
    }
}

/// The drop reason of a stage, by its name in ovn-northd. The guard stages exist only in programs
/// that are compiled from `network.toml`.
fn drop_reason(stage: &str) -> DropReason {
    match stage {
        "ls_in_l2_unknown" => DropReason::UnknownMac,
        "ls_in_ra_guard" => DropReason::RaGuard,
        "ls_in_dhcp_guard" => DropReason::DhcpGuard,
        _ => DropReason::FlowDrop,
    }
}

/// A flow compiled for the datapaths in which its names have the same meaning.
struct CompiledVariant {
    datapaths: Arc<[DatapathKey]>,
    compiled: Compiled,
    ops: Arc<[Op]>,
}

/// A name that the compiler has looked up.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum NameQuery {
    Port(Arc<str>),
    AddressSet(Arc<str>),
    PortGroup(Arc<str>),
    Resident(Arc<str>),
}

/// The match and the actions of a flow, parsed.
struct ParsedFlow {
    /// The match, combined with the prerequisites of the actions.
    condition: Expr,
    actions: Actions,
}

impl ParsedFlow {
    fn new(recipe: &FlowSource) -> Result<Self, Box<FlowError>> {
        let text = &recipe.text;
        let fault = |part, text: &Arc<str>| {
            let (source_name, text) = (recipe.text.source.to_string(), text.to_string());
            move |error| Box::new(FlowError { source_name, part, text, error: Some(error) })
        };
        let condition =
            expr::parse(&text.condition).map_err(fault(FlowPart::Match, &text.condition))?;
        let actions = actions::parse(&text.actions, Stage::of(recipe.table))
            .map_err(fault(FlowPart::Actions, &text.actions))?;
        let needed = actions.prerequisites().into_iter().filter_map(|text| expr::parse(text).ok());
        Ok(Self { condition: needed.fold(condition, Expr::and), actions })
    }
}

/// The scope of a datapath. It records which names were looked up.
struct RecordingScope<'a> {
    loader: &'a Loader,
    datapath: DatapathKey,
    queries: RefCell<Vec<NameQuery>>,
}

impl RecordingScope<'_> {
    fn record(&self, query: NameQuery) {
        let mut queries = self.queries.borrow_mut();
        if !queries.contains(&query) {
            queries.push(query);
        }
    }
}

impl Scope for RecordingScope<'_> {
    fn port(&self, name: &str) -> Option<u16> {
        // ovn-northd tests with this name whether `outport` is still unset.
        if matches!(name, "none" | "") {
            return Some(0);
        }
        self.record(NameQuery::Port(self.loader.strings.find(name)));
        self.loader.names.get(&self.datapath)?.key_of(name).map(PortKey::value)
    }

    fn address_set(&self, name: &str) -> Option<&[Constant]> {
        self.record(NameQuery::AddressSet(self.loader.strings.find(name)));
        self.loader.address_sets.get(name).map(Vec::as_slice)
    }

    fn port_group(&self, name: &str) -> Option<PortGroupMembers> {
        self.record(NameQuery::PortGroup(self.loader.strings.find(name)));
        let names = self.loader.port_groups.get(name)?;
        let keys = self.loader.names.get(&self.datapath).map(|own| own.keys_of(names));
        Some(PortGroupMembers { is_empty: names.is_empty(), keys: keys.unwrap_or_default() })
    }

    fn is_chassis_resident(&self, port: &str) -> bool {
        self.record(NameQuery::Resident(self.loader.strings.find(port)));
        self.loader.resident.get(port).copied().unwrap_or(!self.loader.has_only_residents)
    }
}

/// Interned strings. Long strings are not interned because they seldom repeat.
#[derive(Debug, Default)]
struct Strings(std::collections::HashSet<Arc<str>, ahash::RandomState>);

impl Strings {
    const LONG: usize = 48;

    fn keep(&mut self, text: &str) -> Arc<str> {
        let kept = self.find(text);
        if text.len() < Self::LONG {
            self.0.insert(Arc::clone(&kept));
        }
        kept
    }

    /// The interned string if there is one, else a new one.
    fn find(&self, text: &str) -> Arc<str> {
        self.0.get(text).map_or_else(|| text.into(), Arc::clone)
    }
}

impl Loader {
    /// A snapshot of the program, which later changes do not affect.
    pub fn program(&self) -> Program {
        self.program.clone()
    }

    /// The role of a port.
    pub fn port_role(&self, port: PortNo) -> Option<&PortRole> {
        self.program.port_role(port)
    }

    /// The program, to set port roles and tunnels. Flows, datapaths and logical ports must be
    /// changed through the loader only.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Adds a datapath without ports.
    pub fn add_datapath(&mut self, key: DatapathKey, name: &str, kind: DatapathKind) {
        let mut datapath = Datapath::new(name, kind);
        let groups = self.groups.iter().filter(|(members, _)| members.contains(&key));
        datapath.groups = groups.map(|(_, group)| group.id).collect();
        self.program.set_datapath(key, datapath);
        self.names.entry(key).or_default();
    }

    /// Adds or replaces a port. Its name must be unique among the ports and multicast groups of the
    /// datapath. Does nothing when the datapath does not exist.
    pub fn set_port(&mut self, datapath: DatapathKey, key: PortKey, port: LogicalPort) {
        let name = port.name.clone();
        let Some(entry) = self.program.datapath_mut(datapath) else { return };
        let old = entry.ports.insert(key, port).map(|port| port.name);
        self.rename(datapath, NameKind::Port, key, old, Some(&name));
    }

    /// Removes a port.
    pub fn remove_port(&mut self, datapath: DatapathKey, key: PortKey) {
        let Some(entry) = self.program.datapath_mut(datapath) else { return };
        let old = entry.ports.remove(&key).map(|port| port.name);
        self.rename(datapath, NameKind::Port, key, old, None);
    }

    /// Adds or replaces a multicast group.
    pub fn set_multicast(&mut self, datapath: DatapathKey, key: PortKey, group: MulticastGroup) {
        let name = group.name.clone();
        let Some(entry) = self.program.datapath_mut(datapath) else { return };
        let old = entry.multicast.insert(key, group).map(|group| group.name);
        self.rename(datapath, NameKind::Group, key, old, Some(&name));
    }

    /// Removes a multicast group.
    pub fn remove_multicast(&mut self, datapath: DatapathKey, key: PortKey) {
        let Some(entry) = self.program.datapath_mut(datapath) else { return };
        let old = entry.multicast.remove(&key).map(|group| group.name);
        self.rename(datapath, NameKind::Group, key, old, None);
    }

    /// Sets the names that `dns_lookup` answers for in a datapath.
    pub fn set_dns(&mut self, datapath: DatapathKey, dns: Option<Arc<Service>>) {
        if let Some(entry) = self.program.datapath_mut(datapath) {
            entry.dns = dns;
        }
    }

    /// Removes a datapath with its ports and multicast groups. Flows for it stay, and apply again
    /// when it is added again.
    pub fn remove_datapath(&mut self, key: DatapathKey) {
        let Some(datapath) = self.program.datapath(key) else { return };
        let ports: Vec<PortKey> = datapath.ports.keys().copied().collect();
        let groups: Vec<PortKey> = datapath.multicast.keys().copied().collect();
        ports.into_iter().for_each(|port| self.remove_port(key, port));
        groups.into_iter().for_each(|group| self.remove_multicast(key, group));
        self.program.remove_datapath(key);
        self.names.remove(&key);
    }

    /// Makes `name` stand for `key` in a datapath, and removes the meaning of `old`.
    fn rename(
        &mut self,
        datapath: DatapathKey,
        kind: NameKind,
        key: PortKey,
        old: Option<String>,
        name: Option<&str>,
    ) {
        if old.as_deref() == name {
            return;
        }
        for (name, meaning) in [(old.as_deref(), None), (name, Some(key))] {
            let Some(name) = name else { continue };
            let name = self.strings.keep(name);
            let groups = self.groups_of_ports.get(&name).into_iter().flatten();
            let mut queries: Vec<_> = groups.cloned().map(NameQuery::PortGroup).collect();
            queries.push(NameQuery::Port(Arc::clone(&name)));
            self.change(&queries, |loader| {
                let names = loader.names.entry(datapath).or_default();
                let names = match kind {
                    NameKind::Port => &mut names.ports,
                    NameKind::Group => &mut names.groups,
                };
                match meaning {
                    Some(key) => drop(names.insert(name, key)),
                    // Another port may have taken the name already.
                    None if names.get(&name) == Some(&key) => drop(names.remove(&name)),
                    None => {}
                }
            });
        }
    }

    /// Sets the members of the address set `$name`.
    pub fn set_address_set(&mut self, name: &str, members: Vec<Constant>) {
        let name = self.strings.keep(name);
        self.change(&[NameQuery::AddressSet(Arc::clone(&name))], |loader| {
            loader.address_sets.insert(name, members);
        });
    }

    /// Sets the port names of the port group `@name`.
    pub fn set_port_group(&mut self, name: &str, ports: Vec<String>) {
        let name = self.strings.keep(name);
        let ports: Set<Arc<str>> = ports.iter().map(|port| self.strings.keep(port)).collect();
        self.change(&[NameQuery::PortGroup(Arc::clone(&name))], |loader| {
            let old = loader.port_groups.insert(Arc::clone(&name), ports.clone());
            let old = old.unwrap_or_default();
            for port in old.difference(&ports) {
                if let Entry::Occupied(mut groups) = loader.groups_of_ports.entry(port.clone()) {
                    groups.get_mut().retain(|group| *group != name);
                    if groups.get().is_empty() {
                        groups.remove();
                    }
                }
            }
            for port in ports.difference(&old) {
                loader.groups_of_ports.entry(port.clone()).or_default().push(name.clone());
            }
        });
    }

    /// A loader for which a port is on this host only after [`Loader::set_resident`]. With other
    /// loaders, every port is on this host by default.
    pub fn for_a_host() -> Self {
        Self { has_only_residents: true, ..Self::default() }
    }

    /// Sets whether a port is on this host, for `is_chassis_resident`.
    pub fn set_resident(&mut self, port: &str, resident: bool) {
        let port = self.strings.keep(port);
        self.change(&[NameQuery::Resident(Arc::clone(&port))], |loader| {
            if resident == loader.has_only_residents {
                loader.resident.insert(port, resident);
            } else {
                loader.resident.remove(&port);
            }
        });
    }

    /// Changes the meaning of names, and recompiles the flows that use them.
    fn change(&mut self, queries: &[NameQuery], change: impl FnOnce(&mut Self)) {
        let users = queries.iter().filter_map(|query| self.users.remove(query));
        // A flow that uses several of the names is detached once.
        let users: Vec<FlowId> = users.flatten().collect();
        let affected: Vec<(FlowId, LoadedFlow)> =
            users.into_iter().filter_map(|id| Some((id, self.detach(id)?))).collect();
        change(self);
        for (id, loaded) in affected {
            // The flow has compiled before, so its text is valid for all meanings of the names.
            if self.store(id, loaded.datapaths, FlowSource::from(&*loaded.flow)).is_ok()
                && let Some(again) = self.flows.get(&id)
            {
                let (packets, bytes) = loaded.flow.counters.get();
                again.flow.counters.add(packets, bytes);
            }
        }
    }

    /// Adds a flow. Returns its number, for [`Loader::remove_flow`].
    ///
    /// # Errors
    /// [`FlowError`] when the match or the actions are invalid. The program is then unchanged.
    pub fn add_flow(&mut self, flow: &LogicalFlow) -> Result<FlowId, Box<FlowError>> {
        let table = TableId::logical(flow.direction, flow.table).ok_or_else(|| {
            Box::new(FlowError {
                source_name: flow.source.clone(),
                part: FlowPart::Table,
                text: flow.table.to_string(),
                error: None,
            })
        })?;
        self.add_flow_to(table, flow, None)
    }

    /// Adds a flow as [`add_flow`](Self::add_flow) does. Packets that it passes to services of the
    /// switch are limited by the meter.
    ///
    /// # Errors
    /// The same as [`add_flow`](Self::add_flow).
    pub fn add_metered_flow(
        &mut self,
        flow: &LogicalFlow,
        meter: Option<Arc<NamedMeter>>,
    ) -> Result<FlowId, Box<FlowError>> {
        let Some(table) = TableId::logical(flow.direction, flow.table) else {
            return self.add_flow(flow);
        };
        self.add_flow_to(table, flow, meter)
    }

    /// Adds a load balancer of these datapaths. Returns the numbers of its flows, for
    /// [`Loader::remove_flow`].
    ///
    /// # Errors
    /// [`FlowError`] when a flow cannot be compiled. The program is then unchanged.
    pub fn add_load_balancer(
        &mut self,
        load_balancer: &LoadBalancer,
        datapaths: &[DatapathKey],
    ) -> Result<Vec<FlowId>, Box<FlowError>> {
        let mut added = Vec::new();
        for (table, flow) in load_balancer.flows(datapaths) {
            match self.add_flow_to(table, &flow, None) {
                Ok(id) => added.push(id),
                Err(error) => {
                    for id in added {
                        self.remove_flow(id);
                    }
                    return Err(error);
                }
            }
        }
        Ok(added)
    }

    fn add_flow_to(
        &mut self,
        table: TableId,
        flow: &LogicalFlow,
        meter: Option<Arc<NamedMeter>>,
    ) -> Result<FlowId, Box<FlowError>> {
        let text = FlowText {
            condition: self.strings.keep(&flow.condition),
            actions: self.strings.keep(&flow.actions),
            stage: self.strings.keep(&flow.stage),
            source: self.strings.keep(&flow.source),
            cookie: flow.cookie,
            meter,
        };
        let mut datapaths = flow.datapaths.clone();
        datapaths.sort_unstable();
        datapaths.dedup();
        let datapaths = match self.groups.get_key_value(&*datapaths) {
            Some((kept, _)) => Arc::clone(kept),
            None => datapaths.into(),
        };
        let id = FlowId(self.next);
        self.store(id, datapaths, FlowSource { table, priority: flow.priority, text })?;
        self.next += 1;
        self.remove_unused();
        Ok(id)
    }

    /// Removes a flow. False when there is none with this number.
    pub fn remove_flow(&mut self, id: FlowId) -> bool {
        self.detach(id).is_some()
    }

    /// The number of flows.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    fn detach(&mut self, id: FlowId) -> Option<LoadedFlow> {
        let loaded = self.flows.remove(&id)?;
        // The flow compiled when it was added, so it compiles now.
        let (variants, used_names) =
            self.compile(&loaded.datapaths, &FlowSource::from(&*loaded.flow)).ok()?;
        for variant in variants {
            if !variant.compiled.rows.is_empty() {
                self.leave_group(&variant.datapaths, &loaded.flow, &variant.compiled.rows);
            }
        }
        for query in used_names {
            if let Entry::Occupied(mut users) = self.users.entry(query) {
                users.get_mut().retain(|user| *user != id);
                if users.get().is_empty() {
                    users.remove();
                }
            }
        }
        Some(loaded)
    }

    /// Compiles a flow and stores it in the groups of datapaths in which its names have the same
    /// meaning.
    fn store(
        &mut self,
        id: FlowId,
        datapaths: Arc<[DatapathKey]>,
        recipe: FlowSource,
    ) -> Result<(), Box<FlowError>> {
        let (variants, used_names) = self.compile(&datapaths, &recipe)?;
        if used_names.is_empty()
            && recipe.text.meter.is_none()
            && recipe.text.actions.len() < Strings::LONG
            && let Some(variant) = variants.first()
        {
            let key = (Arc::clone(&recipe.text.actions), recipe.table);
            self.shared_ops.entry(key).or_insert_with(|| Arc::clone(&variant.ops));
        }
        let make = |residual, ops, counters| {
            Arc::new(Flow {
                id,
                table: recipe.table,
                priority: recipe.priority,
                residual,
                ops,
                drop_reason: drop_reason(&recipe.text.stage),
                text: recipe.text.clone(),
                counters,
            })
        };
        let mut first: Option<Arc<Flow>> = None;
        for CompiledVariant { datapaths, compiled, ops } in variants {
            if compiled.rows.is_empty() {
                continue;
            }
            let counters = first.as_ref().map(FlowCounters::of).unwrap_or_default();
            let flow = make(compiled.residual.map(Box::new), ops, counters);
            let group = self.join_group(datapaths);
            self.program.add_flow(group, &flow, &compiled.rows);
            first.get_or_insert(flow);
        }
        for query in used_names {
            self.users.entry(query).or_default().push(id);
        }
        let flow = first.unwrap_or_else(|| make(None, Arc::default(), FlowCounters::default()));
        self.flows.insert(id, LoadedFlow { datapaths, flow });
        Ok(())
    }

    /// Compiles a flow for each set of datapaths in which its names have the same meaning. Also
    /// returns the names that it uses, without duplicates.
    fn compile(
        &self,
        datapaths: &Arc<[DatapathKey]>,
        recipe: &FlowSource,
    ) -> Result<(Vec<CompiledVariant>, Vec<NameQuery>), Box<FlowError>> {
        let parsed = ParsedFlow::new(recipe)?;
        let mut variants = Vec::with_capacity(1);
        let mut used_names: Vec<NameQuery> = Vec::new();
        let mut left: Vec<DatapathKey> = Vec::new();
        let mut next = datapaths.first().copied();
        while let Some(first) = next {
            let scope =
                RecordingScope { loader: self, datapath: first, queries: RefCell::default() };
            let compiled = expr::compile(&parsed.condition, &scope);
            let ops = self.compile_actions(&parsed.actions, recipe, &scope);
            let queries = scope.queries.into_inner();
            let resolved: Vec<_> =
                queries.iter().map(|query| (query, self.resolve(first, query))).collect();
            let is_same = |datapath: &DatapathKey| {
                resolved.iter().all(|(query, keys)| self.resolve(*datapath, query) == *keys)
            };
            let candidates = if variants.is_empty() { &datapaths[..] } else { &left };
            let (same, other): (Vec<_>, Vec<_>) = candidates.iter().copied().partition(is_same);
            let whole = same.len() == datapaths.len();
            let members = if whole { Arc::clone(datapaths) } else { same.into() };
            variants.push(CompiledVariant { datapaths: members, compiled, ops });
            used_names.extend(queries);
            left = other;
            next = left.first().copied();
        }
        used_names.sort_unstable();
        used_names.dedup();
        Ok((variants, used_names))
    }

    fn compile_actions(
        &self,
        actions: &Actions,
        recipe: &FlowSource,
        scope: &RecordingScope<'_>,
    ) -> Arc<[Op]> {
        if let Some(meter) = &recipe.text.meter {
            return metered(&actions::compile(actions, scope), meter);
        }
        let key = (Arc::clone(&recipe.text.actions), recipe.table);
        match self.shared_ops.get(&key) {
            Some(ops) => Arc::clone(ops),
            None => actions::compile(actions, scope),
        }
    }

    /// Removes unused strings and shared actions. It runs only after their number may have doubled,
    /// so that the cost for each flow does not grow with their number.
    fn remove_unused(&mut self) {
        if self.shared_ops.len() + self.strings.0.len() < self.cleanup_at {
            return;
        }
        self.shared_ops.retain(|_, ops| Arc::strong_count(ops) > 1);
        self.strings.0.retain(|text| Arc::strong_count(text) > 1);
        self.cleanup_at = MIN_CLEANUP.max(2 * (self.shared_ops.len() + self.strings.0.len()));
    }

    /// The group of these datapaths, created if necessary. Counts one more flow in it.
    fn join_group(&mut self, members: Arc<[DatapathKey]>) -> GroupId {
        if let Some(group) = self.groups.get_mut(&members) {
            group.flows += 1;
            return group.id;
        }
        let id = self.free_groups.pop().unwrap_or_else(|| self.program.add_group());
        for &member in &*members {
            if let Some(datapath) = self.program.datapath_mut(member) {
                datapath.groups.push(id);
            }
        }
        self.groups.insert(members, GroupUse { id, flows: 1 });
        id
    }

    /// Removes a flow from a group. An empty group is freed, because every lookup in its datapaths
    /// would search it.
    fn leave_group(&mut self, members: &Arc<[DatapathKey]>, flow: &Flow, rows: &[Match]) {
        let Some(group) = self.groups.get_mut(members) else { return };
        self.program.remove_flow(group.id, flow, rows);
        group.flows -= 1;
        if group.flows > 0 {
            return;
        }
        let id = group.id;
        self.groups.remove(members);
        self.free_groups.push(id);
        for &member in &**members {
            if let Some(datapath) = self.program.datapath_mut(member) {
                datapath.groups.retain(|group| *group != id);
            }
        }
    }

    /// The keys that a name means in a datapath, if they can differ between datapaths.
    fn resolve(&self, datapath: DatapathKey, query: &NameQuery) -> Vec<u16> {
        let Some(names) = self.names.get(&datapath) else { return Vec::new() };
        match query {
            NameQuery::Port(name) => names.key_of(name).map(PortKey::value).into_iter().collect(),
            NameQuery::PortGroup(name) => {
                let members = self.port_groups.get(name);
                members.map(|members| names.keys_of(members)).unwrap_or_default()
            }
            // These have the same meaning in all datapaths.
            NameQuery::AddressSet(_) | NameQuery::Resident(_) => Vec::new(),
        }
    }
}

/// Puts the meter before each step that passes packets to a service of the switch.
fn metered(ops: &[Op], meter: &Arc<NamedMeter>) -> Arc<[Op]> {
    let with_meter = |op: &Op| match op {
        Op::Clone(inner) => vec![Op::Clone(metered(inner, meter))],
        Op::Reply { .. } | Op::Reject(_) | Op::Serve { .. } | Op::DnsLookup(_) | Op::Controller => {
            vec![Op::NamedMeter(Arc::clone(meter)), op.clone()]
        }
        _ => vec![op.clone()],
    };
    ops.iter().flat_map(with_meter).collect()
}
