//! [`Trace`]: the record of a translation, step by step, as text and as serializable data.

use crate::flow::Flow;
use crate::observer::{AfterTracking, Event, Nested, Observer, TrackRequest};
use crate::op::{CtBackend, Direction};
use crate::program::{DatapathKind, Program, TableId};
use crate::state::LearnedState;
use crate::translate::{Translation, translate};
use ::flow::{
    CtNat, DatapathKey, DropReason, EndpointId, FlowKey, Match, PortKey, ShowActions, ShowValue,
    ct_state,
};
use serde::Serialize;
use services::Destination;
use std::fmt::{self, Write as _};

/// The decision of a program for one packet and the steps that led to it, for `weft trace`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Trace {
    /// The fields of the packet that are not 0.
    pub packet: String,
    /// The steps, in order.
    pub steps: Vec<TraceStep>,
    /// The datapath actions.
    pub actions: String,
    /// The match of the megaflow: every packet that matches it has the same actions.
    pub megaflow: String,
    /// The drop reason of a packet that is sent nowhere.
    pub dropped: Option<&'static str>,
    /// The queries of learned state.
    pub consulted: Vec<String>,
    /// The facts that the switch learns from the packet.
    pub learnt: Vec<String>,
}

/// One step of a translation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum TraceStep {
    /// The packet enters a pipeline of a logical datapath.
    Pipeline {
        /// `ingress` or `egress`.
        direction: &'static str,
        /// The name of the datapath.
        datapath: String,
        /// The name of the logical ingress port.
        inport: Option<String>,
        /// The name of the logical egress port; known in an egress pipeline only.
        outport: Option<String>,
    },
    /// A lookup in a table.
    Table {
        /// The number of the table in its pipeline.
        table: u8,
        /// The flow that matched, if any.
        flow: Option<MatchedFlow>,
    },
    /// The value of a field changed.
    Change {
        /// The field.
        field: &'static str,
        /// The value before.
        before: String,
        /// The value after.
        after: String,
    },
    /// Steps on another packet.
    Nested {
        /// A description of the packet.
        what: String,
        /// The steps.
        steps: Vec<TraceStep>,
    },
    /// The packet is sent out of a port.
    Output {
        /// The datapath port.
        port: u32,
        /// The name of the port.
        name: Option<String>,
    },
    /// The packet is sent through a tunnel.
    Encap {
        /// The tunnel end point.
        endpoint: u32,
        /// The description that [`Trace::name_endpoints`] has set.
        remote: Option<String>,
        /// The name of the logical port or multicast group on the other host.
        name: Option<String>,
    },
    /// A remark.
    Note {
        /// The text.
        text: String,
    },
    /// The packet, or this copy of it, is dropped.
    Drop {
        /// The name of the drop reason.
        reason: &'static str,
        /// The meaning of the reason.
        meaning: &'static str,
    },
}

/// A flow that matched.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MatchedFlow {
    /// The name of the stage; empty in a bridge.
    pub stage: String,
    /// Where the flow was defined.
    pub source: String,
    /// The priority.
    pub priority: u16,
    /// The cookie, or the first 32 bits of the UUID.
    pub cookie: u64,
    /// The match.
    #[serde(rename = "match")]
    pub condition: String,
    /// The actions.
    pub actions: String,
}

impl From<&Flow> for MatchedFlow {
    fn from(flow: &Flow) -> Self {
        let text = &flow.text;
        Self {
            stage: text.stage.to_string(),
            source: text.source.to_string(),
            priority: flow.priority,
            cookie: text.cookie,
            condition: text.condition.to_string(),
            actions: text.actions.to_string(),
        }
    }
}

/// The assumptions of a trace.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Assumptions {
    /// The index of the value or backend that every `select` and every load balancer chooses;
    /// `None` leaves it to the hash of the packet.
    pub choice: Option<usize>,
    /// The connection state after each pass through the connection tracker, in order: bits of
    /// [`ct_state`]. After the last one, connections are established.
    pub ct_states: Vec<u8>,
}

/// The connection states that a trace assumes, as ovn-trace(8) does with its option `--ct`.
#[derive(Clone, Debug, Default)]
pub struct AssumedCtStates(std::vec::IntoIter<u8>);

impl AssumedCtStates {
    /// Assumes these states in order, and then established connections.
    pub fn new(states: Vec<u8>) -> Self {
        Self(states.into_iter())
    }

    /// The state after a pass through the connection tracker. A commit without a next pass keeps
    /// the present state.
    pub fn track(&mut self, request: &TrackRequest<'_>) -> u8 {
        if !request.recirculates {
            return request.state;
        }
        let mut next = || {
            let state = self.0.next().unwrap_or(ct_state::ESTABLISHED);
            state | ct_state::TRACKED
        };
        match request.nat {
            _ if request.balances => request.state | ct_state::DST_NAT | next(),
            None => next(),
            // NAT tracks the packet as well, unless it was tracked before.
            Some(nat) => {
                let translated = match nat {
                    CtNat::Existing => 0,
                    CtNat::Source(_) => ct_state::SRC_NAT,
                    CtNat::Destination(_) => ct_state::DST_NAT,
                };
                let tracked = if request.state & ct_state::TRACKED != 0 { 0 } else { next() };
                request.state | translated | tracked
            }
        }
    }
}

/// Translates a packet and records each step.
pub fn trace<'p>(
    program: &'p Program,
    key: &FlowKey,
    state: &impl LearnedState,
    assumptions: &Assumptions,
) -> (Trace, Translation<'p>) {
    let mut recorder = TraceRecorder {
        program,
        choice: assumptions.choice,
        ct_states: AssumedCtStates::new(assumptions.ct_states.clone()),
        open: vec![Vec::new()],
        labels: Vec::new(),
    };
    let translation = translate(program, key, state, &mut recorder);
    while !recorder.labels.is_empty() {
        recorder.event(Event::Leave);
    }
    let megaflow = Match::new(key, translation.mask.clone());
    let trace = Trace {
        packet: key.to_string(),
        steps: recorder.open.pop().unwrap_or_default(),
        actions: ShowActions(&translation.actions).to_string(),
        megaflow: megaflow.to_string(),
        dropped: translation.dropped().map(DropReason::name),
        consulted: translation.dependencies.iter().map(|d| d.query.to_string()).collect(),
        learnt: translation.learn_events.iter().map(ToString::to_string).collect(),
    };
    (trace, translation)
}

impl Trace {
    /// Sets the description of each tunnel end point; a program knows only their numbers.
    pub fn name_endpoints(&mut self, name: impl Fn(EndpointId) -> Option<String>) {
        let mut lists = vec![&mut self.steps];
        while let Some(list) = lists.pop() {
            for step in list {
                match step {
                    TraceStep::Nested { steps, .. } => lists.push(steps),
                    TraceStep::Encap { endpoint, remote, .. } => {
                        *remote = name(EndpointId(*endpoint))
                    }
                    _ => {}
                }
            }
        }
    }

    /// A shorter form: only where the packet is sent, or why it is dropped.
    pub const fn summary(&self) -> TraceSummary<'_> {
        TraceSummary(self)
    }

    fn write_result(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for learnt in &self.learnt {
            writeln!(f, "learns:    {learnt}")?;
        }
        for consulted in &self.consulted {
            writeln!(f, "consulted: {consulted}")?;
        }
        writeln!(f, "megaflow:  {}\nactions:   {}", self.megaflow, self.actions)
    }
}

/// A trace without tables and field changes: where the packet is sent, or why it is dropped.
#[derive(Clone, Copy, Debug)]
pub struct TraceSummary<'t>(&'t Trace);

impl fmt::Display for TraceSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {}", self.0.packet)?;
        // A stack of nested lists, each with its label: the output keeps the order of the steps.
        let mut lists = vec![("", self.0.steps.iter())];
        while let Some((_, list)) = lists.last_mut() {
            match list.next() {
                Some(TraceStep::Nested { what, steps }) => lists.push((what, steps.iter())),
                Some(
                    step @ (TraceStep::Output { .. }
                    | TraceStep::Encap { .. }
                    | TraceStep::Drop { .. }),
                ) => {
                    for (what, _) in lists.iter().filter(|(what, _)| !what.is_empty()) {
                        write!(f, "{what}: ")?;
                    }
                    writeln!(f, "{}", FinalStep(step))?;
                }
                Some(_) => {}
                None => drop(lists.pop()),
            }
        }
        self.0.write_result(f)
    }
}

/// The step that ends a packet or copy.
struct FinalStep<'t>(&'t TraceStep);

impl fmt::Display for FinalStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            TraceStep::Output { port, name: Some(name) } => {
                write!(f, "=> output to {name:?} (port {port})")
            }
            TraceStep::Output { port, name: None } => write!(f, "=> output to port {port}"),
            TraceStep::Encap { endpoint, remote, name } => {
                f.write_str("=> tunnel")?;
                if let Some(name) = name {
                    write!(f, " to {name:?}")?;
                }
                write!(f, " by end point {endpoint}")?;
                match remote {
                    Some(remote) => write!(f, ", {remote}"),
                    None => Ok(()),
                }
            }
            TraceStep::Drop { reason, meaning } => write!(f, "=> drop, {reason}: {meaning}"),
            _ => Ok(()),
        }
    }
}

struct TraceRecorder<'p> {
    program: &'p Program,
    choice: Option<usize>,
    ct_states: AssumedCtStates,
    /// Unfinished lists of steps, the innermost last; never empty.
    open: Vec<Vec<TraceStep>>,
    /// The labels of the nested lists.
    labels: Vec<String>,
}

impl TraceRecorder<'_> {
    fn push(&mut self, step: TraceStep) {
        if let Some(list) = self.open.last_mut() {
            list.push(step);
        }
    }

    fn port_name(&self, datapath: DatapathKey, port: PortKey) -> Option<String> {
        let datapath = self.program.datapath(datapath)?;
        let port_name = datapath.ports.get(&port).map(|port| &port.name);
        port_name.or(datapath.multicast.get(&port).map(|group| &group.name)).cloned()
    }

    fn describe(&self, nested: Nested) -> String {
        match nested {
            Nested::Clone => "clone".to_owned(),
            Nested::Reply(reply) => reply.to_string(),
            Nested::Member { datapath, port } => {
                let name = self.port_name(datapath, port).unwrap_or_else(|| port.to_string());
                format!("copy for {name:?}")
            }
            Nested::Output => "output".to_owned(),
            Nested::Longer(bytes) => format!("if longer than {bytes} bytes"),
            Nested::NotLonger(bytes) => format!("if not longer than {bytes} bytes"),
            Nested::Answered(service, Destination::Client) => {
                format!("if {service} answers the client")
            }
            Nested::Answered(service, Destination::Broadcast) => {
                format!("if {service} answers by broadcast")
            }
            Nested::Unanswered(service) => format!("if {service} gives no answer"),
            Nested::Tracked { state } => format!("ct(ct_state={})", ct_state::names(state)),
        }
    }
}

impl Observer for TraceRecorder<'_> {
    fn event(&mut self, event: Event<'_>) {
        let step = match event {
            Event::Pipeline { datapath, direction, inport, outport } => TraceStep::Pipeline {
                direction: direction.name(),
                datapath: self
                    .program
                    .datapath(datapath)
                    .map_or_else(|| datapath.to_string(), |datapath| datapath.name.clone()),
                inport: inport.and_then(|port| self.port_name(datapath, port)),
                outport: outport.and_then(|port| self.port_name(datapath, port)),
            },
            Event::Lookup { datapath, table, flow, .. } => {
                let kind = self.program.datapath(datapath).map(|datapath| datapath.kind);
                TraceStep::Table {
                    table: table_number(kind, table),
                    flow: flow.map(MatchedFlow::from),
                }
            }
            Event::Change { field, before, after } => TraceStep::Change {
                field: field.name(),
                before: ShowValue(field, before).to_string(),
                after: ShowValue(field, after).to_string(),
            },
            Event::Output { port, logical, .. } => {
                let bridge = || self.program.bridge_port(port).map(|port| port.name.clone());
                let name = logical.and_then(|(datapath, port)| self.port_name(datapath, port));
                TraceStep::Output { port: port.0, name: name.or_else(bridge) }
            }
            Event::Encap { endpoint, logical, .. } => TraceStep::Encap {
                endpoint: endpoint.0,
                remote: None,
                name: logical.and_then(|(datapath, port)| self.port_name(datapath, port)),
            },
            Event::Note(text) => TraceStep::Note { text: text.to_owned() },
            Event::Drop(reason) => {
                TraceStep::Drop { reason: reason.name(), meaning: reason.meaning() }
            }
            Event::Enter(nested) => {
                self.labels.push(self.describe(nested));
                self.open.push(Vec::new());
                return;
            }
            Event::Leave => {
                let (Some(what), Some(steps)) = (self.labels.pop(), self.open.pop()) else {
                    return;
                };
                TraceStep::Nested { what, steps }
            }
        };
        self.push(step);
    }

    fn select(&mut self, choices: &[(u16, u16)]) -> Option<usize> {
        self.choice.map(|choice| choice % choices.len())
    }

    fn balance(&mut self, backends: &[CtBackend]) -> Option<usize> {
        self.choice.and_then(|choice| choice.checked_rem(backends.len()))
    }

    fn track(&mut self, request: &TrackRequest<'_>) -> AfterTracking {
        AfterTracking::Assume(self.ct_states.track(request))
    }
}

/// The number of a table within its pipeline or bridge.
fn table_number(kind: Option<DatapathKind>, table: TableId) -> u8 {
    match kind {
        Some(DatapathKind::Switch | DatapathKind::Router) => table.in_pipeline().1,
        // The cast is lossless: the index is at most 254.
        Some(DatapathKind::Bridge | DatapathKind::Provider) | None => table.index() as u8,
    }
}

impl Direction {
    /// `ingress` or `egress`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {}", self.packet)?;
        write_steps(f, &self.steps, 0)?;
        writeln!(f)?;
        self.write_result(f)
    }
}

fn write_steps(f: &mut fmt::Formatter<'_>, steps: &[TraceStep], depth: usize) -> fmt::Result {
    let indent = depth * 4;
    for step in steps {
        match step {
            TraceStep::Pipeline { direction, datapath, inport, outport } => {
                let mut title = format!("{direction}(dp={datapath:?}");
                for (name, port) in [("inport", inport), ("outport", outport)] {
                    if let Some(port) = port {
                        write!(title, ", {name}={port:?}")?;
                    }
                }
                title.push(')');
                writeln!(f, "\n{:indent$}{title}\n{:indent$}{}", "", "", "-".repeat(title.len()))?;
            }
            TraceStep::Table { table, flow: None } => {
                writeln!(f, "{:indent$}{table:2}. no flow matches", "")?;
            }
            TraceStep::Table { table, flow: Some(flow) } => write_flow(f, *table, flow, indent)?,
            TraceStep::Change { field, before, after } => {
                writeln!(f, "{:indent$}      {field}: {before} -> {after}", "")?;
            }
            TraceStep::Nested { what, steps } => {
                writeln!(f, "{:indent$}    {what} {{", "")?;
                write_steps(f, steps, depth + 1)?;
                writeln!(f, "{:indent$}    }}", "")?;
            }
            step
            @ (TraceStep::Output { .. } | TraceStep::Encap { .. } | TraceStep::Drop { .. }) => {
                writeln!(f, "{:indent$}    {}", "", FinalStep(step))?;
            }
            TraceStep::Note { text } => writeln!(f, "{:indent$}    # {text}", "")?,
        }
    }
    Ok(())
}

fn write_flow(
    f: &mut fmt::Formatter<'_>,
    table: u8,
    flow: &MatchedFlow,
    indent: usize,
) -> fmt::Result {
    write!(f, "{:indent$}{table:2}. ", "")?;
    if !flow.stage.is_empty() {
        write!(f, "{} ", flow.stage)?;
    }
    write!(f, "({}): {}, priority {}", flow.source, flow.condition, flow.priority)?;
    if flow.cookie != 0 {
        write!(f, ", cookie {:#x}", flow.cookie)?;
    }
    writeln!(f, "\n{:indent$}    {}", "", flow.actions)
}
