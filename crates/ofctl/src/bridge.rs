//! [`Bridge`]: a program of one datapath whose flows are written in the syntax of ovs-ofctl.

use super::line::{FlowChange, FlowSelector, FlowSpec};
use super::packet_out::PacketOut;
use super::ports::{PortError, Ports};
use super::text::TextSlice;
use super::zones::ZoneCollector;
use super::{Problem, Problems, parse};
use ::flow::{DatapathKey, DropReason, Match, PortNo};
use pipeline::{
    BridgePort, BridgePortKind, Datapath, DatapathKind, Flow, FlowCounters, FlowId, FlowText,
    GroupId, Op, Program, TableId,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;

/// The identity of a flow. A new flow with the same identity replaces the old one.
type FlowIdentity = (TableId, u16, Match);

/// A bridge with its ports and flows.
///
/// Its own program contains only this datapath. [`Bridge::install`] adds the bridge to a program
/// with other datapaths, and [`Bridge::update`] updates its flows in that program.
#[derive(Clone, Debug)]
pub struct Bridge {
    program: Program,
    group: GroupId,
    ports: Ports,
    flows: BTreeMap<FlowId, BridgeFlow>,
    by_identity: HashMap<FlowIdentity, FlowId, ahash::RandomState>,
    zones: ZoneCollector,
    /// The number of flows with a timeout.
    with_timeout: usize,
    last_id: u64,
}

#[derive(Clone, Debug)]
pub(super) struct BridgeFlow {
    pub spec: FlowSpec,
    pub flow: Arc<Flow>,
    pub added_ms: u64,
    used_ms: u64,
    /// The packet counter of the flow at `used_ms`.
    packets: u64,
}

/// The reason why a change was not applied. No part of it was applied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BridgeError {
    /// Some lines have errors.
    #[error(transparent)]
    Problems(#[from] Problems),
    /// The bridge would exceed its limit. Each line that adds a flow counts, even if it replaces a
    /// flow.
    #[error("too many flows: {0}, the limit of a bridge is {max}", max = Bridge::MAX_FLOWS)]
    TooManyFlows(usize),
    /// The flows use too many zones.
    #[error(
        "too many connection tracking zones: {0}, the limit of a bridge is {max}; use fewer",
        max = Bridge::MAX_ZONES
    )]
    TooManyZones(usize),
}

impl Bridge {
    /// The limit on the flows of a bridge.
    pub const MAX_FLOWS: usize = 1_000_000;
    /// The limit on the connection tracking zones of a bridge.
    pub const MAX_ZONES: usize = 8192;

    /// A bridge without flows, with these ports.
    ///
    /// # Errors
    /// The number or name of a port is not valid in flows, or belongs to another port.
    pub fn new(
        name: &str,
        ports: impl IntoIterator<Item = (PortNo, BridgePort)>,
    ) -> Result<Self, PortError> {
        let mut program = Program::default();
        let group = program.add_group();
        let mut datapath = Datapath::new(name, DatapathKind::Bridge);
        datapath.groups.push(group);
        program.set_datapath(Program::BRIDGE, datapath);
        let mut bridge = Self {
            program,
            group,
            ports: Ports::new(),
            flows: BTreeMap::new(),
            by_identity: HashMap::default(),
            zones: ZoneCollector::default(),
            with_timeout: 0,
            last_id: 0,
        };
        for (number, port) in ports {
            bridge.add_port(number, port)?;
        }
        Ok(bridge)
    }

    /// A port that is a network device. Its number in flows equals its number in the datapath.
    pub fn device(number: PortNo, name: &str) -> (PortNo, BridgePort) {
        (number, BridgePort { name: name.to_owned(), number, kind: BridgePortKind::Device })
    }

    /// Adds a port that has the number `number` in flows. Existing flows that use this number apply
    /// to the port from now on.
    ///
    /// # Errors
    /// Its number or name is not valid in flows, or belongs to another port.
    pub fn add_port(&mut self, number: PortNo, port: BridgePort) -> Result<(), PortError> {
        self.ports.add(number, &port.name)?;
        self.program.set_bridge_port(Program::BRIDGE, number, port);
        Ok(())
    }

    /// The program. A clone is cheap and does not see later changes.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Adds the bridge to a program, as the datapath with this key.
    pub fn install(&self, program: &mut Program, key: DatapathKey) {
        let Some(own) = self.program.datapath(Program::BRIDGE) else { return };
        let mut datapath = own.clone();
        let ports = std::mem::take(&mut datapath.bridge_ports);
        datapath.groups = vec![program.add_group()];
        program.set_datapath(key, datapath);
        for (number, port) in ports {
            program.set_bridge_port(key, number, port);
        }
        self.update(program, key);
    }

    /// Updates the flows of the bridge with this key in `program`. [`Bridge::install`] must have
    /// added it before.
    pub fn update(&self, program: &mut Program, key: DatapathKey) {
        let Some(datapath) = program.datapath_mut(key) else { return };
        if datapath.bridge_zones != self.zones.zones {
            datapath.bridge_zones.clone_from(&self.zones.zones);
        }
        if let Some(&group) = datapath.groups.first() {
            program.copy_group(group, &self.program, self.group);
        }
    }

    /// The names of the ports.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The ports, with their numbers in flows.
    pub fn bridge_ports(&self) -> impl Iterator<Item = (PortNo, &BridgePort)> {
        let datapath = self.program.datapath(Program::BRIDGE);
        datapath.into_iter().flat_map(|own| own.bridge_ports.iter().map(|(n, port)| (*n, port)))
    }

    /// The number of flows.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// True if the bridge has no flows.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// True if some flow has a timeout, so that [`Bridge::expire`] may remove it.
    pub fn has_timeouts(&self) -> bool {
        self.with_timeout > 0
    }

    /// Applies a file, line by line, at time `now_ms` of a monotonic clock. Returns the number of
    /// lines that are not empty.
    ///
    /// # Errors
    /// A line has an error, or there would be too many flows or zones. No part of the file is
    /// applied.
    pub fn apply(
        &mut self,
        text: &str,
        source_name: &str,
        now_ms: u64,
    ) -> Result<usize, BridgeError> {
        let changes = self.parse(text, source_name, self.flows.len())?;
        self.check_zones(changes.iter().map(|(_, change)| change))?;
        let count = changes.len();
        for (line, change) in changes {
            self.change(change, &format!("{source_name}:{line}"), now_ms);
        }
        Ok(count)
    }

    /// Applies one change: `command` is `add`, `modify`, `modify_strict`, `delete` or
    /// `delete_strict`, and `text` the rest of the line. Columns of errors count from its start.
    ///
    /// # Errors
    /// As [`Bridge::apply`].
    pub fn apply_line(
        &mut self,
        command: &str,
        text: &str,
        source: &str,
        now_ms: u64,
    ) -> Result<(), BridgeError> {
        let change = super::parse_command(command, text, &self.ports).map_err(|problem| {
            let source_name = source.to_owned();
            BridgeError::Problems(Problems { source_name, problems: vec![problem] })
        })?;
        check_limit(self.flows.len() + usize::from(change.adds()))?;
        self.check_zones(std::iter::once(&change))?;
        self.change(change, source, now_ms);
        Ok(())
    }

    /// Parses `in_port=PORT packet=HEX actions=ACTIONS`, as `ovs-ofctl packet-out` does. Columns of
    /// errors count from the start of `text`. Also returns true if the actions use zones that are
    /// new for the bridge. The caller must then call [`Bridge::update`] before it executes them.
    ///
    /// # Errors
    /// The text has an error, or there would be too many zones.
    pub fn packet_out(&mut self, text: &str) -> Result<(PacketOut, bool), BridgeError> {
        let parsed = super::packet_out::parse(TextSlice::new(text), &self.ports);
        let packet_out = parsed.map_err(|fault| {
            let (source_name, problems) = (String::new(), vec![Problem::new(1, text, fault)]);
            BridgeError::Problems(Problems { source_name, problems })
        })?;
        let before = self.zones.zones.len();
        self.check_zones_of(std::iter::once(&*packet_out.ops))?;
        Ok((packet_out, self.zones.zones.len() != before))
    }

    fn change(&mut self, change: FlowChange, source: &str, now_ms: u64) {
        match change {
            FlowChange::Add(spec) => self.add(spec, source, now_ms),
            FlowChange::Delete(filter) => {
                for id in self.ids(|entry| filter.selects(&entry.spec)) {
                    self.remove(id);
                }
            }
            FlowChange::Modify { filter, ops, actions_text } => {
                for id in self.ids(|entry| filter.selects(&entry.spec)) {
                    let actions = (Arc::clone(&ops), Arc::clone(&actions_text));
                    self.modify(id, actions, source);
                }
            }
        }
    }

    /// Copies the flows of another bridge, with their counters and ages. This bridge must not have
    /// flows yet.
    pub fn adopt_flows(&mut self, other: &Self) {
        self.flows.clone_from(&other.flows);
        self.by_identity.clone_from(&other.by_identity);
        self.zones = ZoneCollector::of(other.flows.values().map(|entry| &entry.spec));
        (self.with_timeout, self.last_id) = (other.with_timeout, other.last_id);
        self.program.copy_group(self.group, &other.program, other.group);
    }

    /// Replaces all flows by those of a file, as `ovs-ofctl replace-flows` does: unchanged flows
    /// keep their counters and their age. Returns the number of flows that were added or replaced,
    /// and the number of flows that were removed.
    ///
    /// # Errors
    /// As [`Bridge::apply`], or a line is not a flow to be added.
    pub fn replace(
        &mut self,
        text: &str,
        source_name: &str,
        now_ms: u64,
    ) -> Result<(usize, usize), BridgeError> {
        let changes = self.parse(text, source_name, 0)?;
        self.check_zones(changes.iter().map(|(_, change)| change))?;
        let mut new_flows: Vec<(usize, FlowSpec)> = Vec::new();
        for (line, change) in changes {
            let FlowChange::Add(spec) = change else {
                let message = "a file that replaces the flows takes no commands".to_owned();
                let problems = vec![Problem { line, column: 1, message }];
                let source_name = source_name.to_owned();
                return Err(Problems { source_name, problems }.into());
            };
            new_flows.push((line, spec));
        }
        // Of two flows with the same identity, the later one wins.
        let mut known: HashSet<FlowIdentity> = HashSet::new();
        new_flows.reverse();
        new_flows.retain(|(_, spec)| known.insert(identity(spec)));
        new_flows.reverse();
        let gone = self.ids(|entry| !known.contains(&identity(&entry.spec)));
        gone.iter().for_each(|&id| self.remove(id));
        let mut added = 0;
        for (line, spec) in new_flows {
            let old = self.by_identity.get(&identity(&spec)).and_then(|id| self.flows.get(id));
            if old.is_none_or(|old| old.spec != spec) {
                self.add(spec, &format!("{source_name}:{line}"), now_ms);
                added += 1;
            }
        }
        Ok((added, gone.len()))
    }

    /// Parses changes for a bridge that has `present` flows.
    fn parse(
        &self,
        text: &str,
        source_name: &str,
        present: usize,
    ) -> Result<Vec<(usize, FlowChange)>, BridgeError> {
        // The lines are counted before they are parsed, so that a file with too many lines is
        // rejected cheaply.
        let lines = text.lines().filter(|line| !super::without_comment(line).trim().is_empty());
        check_limit(lines.count())?;
        let changes = parse(text, source_name, &self.ports)?;
        check_limit(present + changes.iter().filter(|(_, change)| change.adds()).count())?;
        Ok(changes)
    }

    /// Adds the zones of these changes to the zones of the bridge. A zone stays when the last flow
    /// that uses it is removed, so that connections survive a replacement of the flows.
    fn check_zones<'c>(
        &mut self,
        changes: impl Iterator<Item = &'c FlowChange> + Clone,
    ) -> Result<(), BridgeError> {
        self.check_zones_of(changes.filter_map(|change| match change {
            FlowChange::Add(spec) => Some(&*spec.ops),
            FlowChange::Modify { ops, .. } => Some(&**ops),
            FlowChange::Delete(_) => None,
        }))
    }

    fn check_zones_of<'c>(
        &mut self,
        ops: impl Iterator<Item = &'c [Op]> + Clone,
    ) -> Result<(), BridgeError> {
        let with_changes = |mut zones: ZoneCollector| {
            let mut is_new_field = false;
            for list in ops.clone() {
                is_new_field |= zones.add(list);
            }
            if is_new_field {
                self.flows.values().for_each(|entry| zones.add_loads(&entry.spec.ops));
                ops.clone().for_each(|list| zones.add_loads(list));
            }
            zones
        };
        let mut zones = with_changes(self.zones.clone());
        if zones.zones.len() > Self::MAX_ZONES {
            let present = self.flows.values().map(|entry| &entry.spec);
            zones = with_changes(ZoneCollector::of(present));
        }
        if zones.zones.len() > Self::MAX_ZONES {
            return Err(BridgeError::TooManyZones(zones.zones.len()));
        }
        self.zones = zones;
        Ok(())
    }

    /// Removes the flows whose timeout has passed at `now_ms`, and returns their number. The
    /// counters of the flows must be up to date.
    pub fn expire(&mut self, now_ms: u64) -> usize {
        let after = |start: u64, seconds: u16| {
            seconds > 0 && now_ms.saturating_sub(start) >= u64::from(seconds) * 1000
        };
        for entry in self.flows.values_mut().filter(|entry| entry.spec.idle_timeout_s > 0) {
            let (packets, _) = entry.flow.counters.get();
            if packets != entry.packets {
                (entry.packets, entry.used_ms) = (packets, now_ms);
            }
        }
        let over = self.ids(|entry| {
            after(entry.added_ms, entry.spec.hard_timeout_s)
                || after(entry.used_ms, entry.spec.idle_timeout_s)
        });
        for &id in &over {
            self.remove(id);
        }
        over.len()
    }

    /// The flows in canonical form, one per line: by table, highest priority first.
    /// [`Bridge::apply`] reads the result.
    pub fn dump(&self) -> String {
        let mut text = String::new();
        for entry in self.selected(None) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", entry.spec);
        }
        text
    }

    /// The parsed lines and the flows, in the order in which they were added.
    pub fn flows(&self) -> impl Iterator<Item = (&FlowSpec, &Arc<Flow>)> {
        self.flows.values().map(|entry| (&entry.spec, &entry.flow))
    }

    /// The flows that a selector selects, or all flows, in the order in which tables are searched.
    pub(super) fn selected(&self, selector: Option<&FlowSelector>) -> Vec<&BridgeFlow> {
        let is_wanted =
            |entry: &&BridgeFlow| selector.is_none_or(|selector| selector.selects(&entry.spec));
        let mut found: Vec<_> = self.flows.values().filter(is_wanted).collect();
        found.sort_by_key(|entry| {
            (entry.spec.table, std::cmp::Reverse(entry.spec.priority), entry.flow.id)
        });
        found
    }

    fn ids(&self, is_selected: impl Fn(&BridgeFlow) -> bool) -> Vec<FlowId> {
        self.flows.iter().filter(|(_, entry)| is_selected(entry)).map(|(id, _)| *id).collect()
    }

    fn add(&mut self, spec: FlowSpec, source: &str, now_ms: u64) {
        let place = identity(&spec);
        if let Some(&same) = self.by_identity.get(&place) {
            self.remove(same);
        }
        self.last_id += 1;
        let id = FlowId(self.last_id);
        let flow = Arc::new(flow_of(id, &spec, source));
        self.program.add_flow(self.group, &flow, std::slice::from_ref(&spec.condition));
        self.by_identity.insert(place, id);
        self.with_timeout += usize::from(has_timeout(&spec));
        let entry = BridgeFlow { spec, flow, added_ms: now_ms, used_ms: now_ms, packets: 0 };
        self.flows.insert(id, entry);
    }

    fn remove(&mut self, id: FlowId) {
        let Some(BridgeFlow { spec, flow, .. }) = self.flows.remove(&id) else { return };
        self.program.remove_flow(self.group, &flow, std::slice::from_ref(&spec.condition));
        self.with_timeout -= usize::from(has_timeout(&spec));
        self.by_identity.remove(&(spec.table, spec.priority, spec.condition));
    }

    /// Replaces the actions of a flow. It keeps its number, cookie and counters.
    fn modify(&mut self, id: FlowId, actions: (Arc<[Op]>, Arc<str>), source: &str) {
        let Some(entry) = self.flows.get_mut(&id) else { return };
        (entry.spec.ops, entry.spec.actions_text) = actions;
        // The new flow shares the counters, because present megaflows still add to those of the old
        // flow.
        let counters = FlowCounters::of(&entry.flow);
        let flow = Arc::new(Flow { counters, ..flow_of(id, &entry.spec, source) });
        let rows = std::slice::from_ref(&entry.spec.condition);
        self.program.remove_flow(self.group, &entry.flow, rows);
        self.program.add_flow(self.group, &flow, rows);
        entry.flow = flow;
    }
}

fn check_limit(flows: usize) -> Result<(), BridgeError> {
    if flows > Bridge::MAX_FLOWS { Err(BridgeError::TooManyFlows(flows)) } else { Ok(()) }
}

fn has_timeout(spec: &FlowSpec) -> bool {
    spec.idle_timeout_s > 0 || spec.hard_timeout_s > 0
}

fn identity(spec: &FlowSpec) -> FlowIdentity {
    (spec.table, spec.priority, spec.condition.clone())
}

fn flow_of(id: FlowId, spec: &FlowSpec, source: &str) -> Flow {
    Flow {
        id,
        table: spec.table,
        priority: spec.priority,
        residual: None,
        ops: Arc::clone(&spec.ops),
        drop_reason: DropReason::FlowDrop,
        text: FlowText {
            condition: Arc::clone(&spec.condition_text),
            actions: Arc::clone(&spec.actions_text),
            stage: Arc::from(""),
            source: source.into(),
            cookie: spec.cookie,
            meter: None,
        },
        counters: FlowCounters::default(),
    }
}
