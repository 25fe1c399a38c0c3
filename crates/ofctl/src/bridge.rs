//! [`Bridge`]: a program of one datapath whose flows are written in the syntax of ovs-ofctl.

use super::line::{FlowChange, FlowSpec};
use super::ports::{PortError, Ports};
use super::{Problems, parse};
use ::flow::{DropReason, Match, PortNo};
use pipeline::{
    BridgePort, BridgePortKind, Datapath, DatapathKind, Flow, FlowCounters, FlowId, FlowText,
    GroupId, Program, TableId,
};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::Arc;

/// The identity of a flow: adding another one with the same table, priority and match replaces it.
type FlowIdentity = (TableId, u16, Match);

/// A bridge with its ports and flows.
#[derive(Clone, Debug)]
pub struct Bridge {
    program: Program,
    group: GroupId,
    ports: Ports,
    flows: BTreeMap<FlowId, BridgeFlow>,
    by_identity: HashMap<FlowIdentity, FlowId, ahash::RandomState>,
    last_id: u64,
}

#[derive(Clone, Debug)]
struct BridgeFlow {
    spec: FlowSpec,
    flow: Arc<Flow>,
    added_ms: u64,
    used_ms: u64,
    /// The packet counter of the flow at `used_ms`.
    packets: u64,
}

/// Why a file was not applied. No line of it was.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BridgeError {
    /// Some lines are wrong.
    #[error(transparent)]
    Problems(#[from] Problems),
    /// The bridge could exceed its limit if every line added a flow.
    #[error("too many flows: {0}, the limit of a bridge is {max}", max = Bridge::MAX_FLOWS)]
    TooManyFlows(usize),
}

impl Bridge {
    /// The limit on the flows of a bridge.
    pub const MAX_FLOWS: usize = 1_000_000;

    /// A bridge without flows, with these ports.
    ///
    /// # Errors
    /// A port has a number or name that flows cannot use, or that another port has.
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
            last_id: 0,
        };
        for (number, port) in ports {
            bridge.add_port(number, port)?;
        }
        Ok(bridge)
    }

    /// A port that is a network device.
    pub fn device(name: &str) -> BridgePort {
        BridgePort { name: name.to_owned(), kind: BridgePortKind::Device }
    }

    /// Adds a port. Existing flows that mention its number apply to it from now on.
    ///
    /// # Errors
    /// Flows cannot use its number or name, or another port has it.
    pub fn add_port(&mut self, number: PortNo, port: BridgePort) -> Result<(), PortError> {
        self.ports.add(number, &port.name)?;
        self.program.set_bridge_port(number, port);
        Ok(())
    }

    /// The program. A clone is cheap and does not see later changes.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The names of the ports.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The number of flows.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// True without flows.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Applies a file, line by line, at time `now_ms` of a monotonic clock. Returns the number of
    /// lines that are not empty.
    ///
    /// # Errors
    /// A line is wrong, or there would be too many flows. Then nothing of the file is applied.
    pub fn apply(
        &mut self,
        text: &str,
        source_name: &str,
        now_ms: u64,
    ) -> Result<usize, BridgeError> {
        // The limit is checked before parsing, so that a far too long file costs nothing. A line
        // adds at most one flow.
        let lines = text.lines().filter(|line| !super::without_comment(line).trim().is_empty());
        let most = self.flows.len() + lines.count();
        if most > Self::MAX_FLOWS {
            return Err(BridgeError::TooManyFlows(most));
        }
        let changes = parse(text, source_name, &self.ports)?;
        let count = changes.len();
        for (line, change) in changes {
            match change {
                FlowChange::Add(spec) => self.add(spec, &format!("{source_name}:{line}"), now_ms),
                FlowChange::Delete(filter) => {
                    for id in self.ids(|entry| filter.selects(&entry.spec)) {
                        self.remove(id);
                    }
                }
                FlowChange::Modify { filter, ops, actions_text } => {
                    for id in self.ids(|entry| filter.selects(&entry.spec)) {
                        let actions = (Arc::clone(&ops), Arc::clone(&actions_text));
                        self.modify(id, actions, &format!("{source_name}:{line}"));
                    }
                }
            }
        }
        Ok(count)
    }

    /// Removes the flows whose timeout has passed at `now_ms`, and returns how many. The counters
    /// of the flows must be up to date.
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
        let mut entries: Vec<_> = self.flows.iter().collect();
        entries.sort_by_key(|(id, entry)| {
            (entry.spec.table, std::cmp::Reverse(entry.spec.priority), **id)
        });
        let mut text = String::new();
        for (_, entry) in entries {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", entry.spec);
        }
        text
    }

    /// The flows and their parsed lines, in the order in which they were added.
    pub fn flows(&self) -> impl Iterator<Item = (&FlowSpec, &Arc<Flow>)> {
        self.flows.values().map(|entry| (&entry.spec, &entry.flow))
    }

    fn ids(&self, wanted: impl Fn(&BridgeFlow) -> bool) -> Vec<FlowId> {
        self.flows.iter().filter(|(_, entry)| wanted(entry)).map(|(id, _)| *id).collect()
    }

    fn add(&mut self, spec: FlowSpec, source: &str, now_ms: u64) {
        let place = (spec.table, spec.priority, spec.condition.clone());
        if let Some(&same) = self.by_identity.get(&place) {
            self.remove(same);
        }
        self.last_id += 1;
        let id = FlowId(self.last_id);
        let flow = Arc::new(flow_of(id, &spec, source));
        self.program.add_flow(self.group, &flow, std::slice::from_ref(&spec.condition));
        self.by_identity.insert(place, id);
        let entry = BridgeFlow { spec, flow, added_ms: now_ms, used_ms: now_ms, packets: 0 };
        self.flows.insert(id, entry);
    }

    fn remove(&mut self, id: FlowId) {
        let Some(BridgeFlow { spec, flow, .. }) = self.flows.remove(&id) else { return };
        self.program.remove_flow(self.group, &flow, std::slice::from_ref(&spec.condition));
        self.by_identity.remove(&(spec.table, spec.priority, spec.condition));
    }

    /// Replaces the actions of a flow. It keeps its number, cookie and counters.
    fn modify(&mut self, id: FlowId, actions: (Arc<[pipeline::Op]>, Arc<str>), source: &str) {
        let Some(entry) = self.flows.get_mut(&id) else { return };
        (entry.spec.ops, entry.spec.actions_text) = actions;
        let flow = Arc::new(flow_of(id, &entry.spec, source));
        let (packets, bytes) = entry.flow.counters.get();
        flow.counters.add(packets, bytes);
        let rows = std::slice::from_ref(&entry.spec.condition);
        self.program.remove_flow(self.group, &entry.flow, rows);
        self.program.add_flow(self.group, &flow, rows);
        entry.flow = flow;
    }
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
        },
        counters: FlowCounters::default(),
    }
}
