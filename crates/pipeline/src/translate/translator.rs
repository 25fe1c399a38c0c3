//! [`Translator`]: executes the steps of flows on the key of a packet.

use super::emit::EmittedHeaders;
use super::entry::{has_side_effect, sends_or_drops};
use super::{MAX_DEPTH, MAX_STEPS, MAX_TOTAL_STEPS, Translation};
use crate::flow::Flow;
use crate::observer::{Event, Nested, Observer};
use crate::op::{Direction, Op};
use crate::program::{Datapath, Program, TableId};
use crate::reads::{ProgramPart, ProgramReads};
use crate::recorder::{PlainRecorder, RecordedKey, Recorder};
use crate::state::{Dependency, FdbPort, IngressPort, LearnEvent, LearnedState};
use classifier::Rank;
use flow::{Action, DatapathKey, DropReason, Field, FlowMask, PortKey, PortNo, Subfield};
use std::sync::Arc;

/// The bit of `vlan_tci` that is 1 in tagged frames.
pub(super) const TAG_PRESENT: u128 = flow::TAG_PRESENT as u128;

/// The fields that, with the protocol, identify the connection of a packet.
const TUPLE: [Field; 6] =
    [Field::Ip4Src, Field::Ip4Dst, Field::Ip6Src, Field::Ip6Dst, Field::TpSrc, Field::TpDst];

/// Ends the whole translation because the program exceeds a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitExceeded(pub DropReason);

/// The state of a translation that all copies of the packet share.
pub(super) struct Translator<'p, 's, S, O> {
    pub program: &'p Program,
    pub state: &'s S,
    pub observer: &'s mut O,
    /// The bits of the packet read so far.
    pub read: FlowMask,
    pub dependencies: Vec<Dependency>,
    pub learn_events: Vec<LearnEvent>,
    /// The port that learn events count against; set before the first lookup.
    pub ingress: IngressPort,
    /// True in a later pass of a packet.
    pub is_recirculated: bool,
    /// True when the result holds for this packet only: nothing may be cached.
    pub is_transient: bool,
    /// The steps that a packet entering a bridge executes instead of a flow of the first table.
    pub first_ops: Option<&'p [Op]>,
    flows: Vec<&'p Arc<Flow>>,
    /// The other parts of the program that were read.
    pub reads: ProgramReads,
    /// Steps of the current packet or copy.
    pub steps: u32,
    total_steps: u32,
}

/// A flow that is being executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveFlow<'p> {
    /// The steps not executed yet.
    ops: &'p [Op],
    table: TableId,
}

/// The packet, or a copy of it, during translation.
#[derive(Clone, Debug)]
pub(super) struct Packet<'p> {
    pub key: RecordedKey,
    /// The headers after the actions emitted so far.
    pub emitted: EmittedHeaders,
    /// Header bits written since the last emitted action.
    pub dirty: FlowMask,
    /// The current datapath.
    pub datapath: (DatapathKey, &'p Datapath),
    /// True for a packet from a tunnel: the sending host has already sent copies to the other hosts
    /// and through the patch ports of multicast groups.
    pub from_tunnel: bool,
    /// The ingress port; in a bridge, its number in the bridge, which flows use.
    pub in_port: PortNo,
    /// Unfinished flows, the current one last.
    pub frames: Vec<ActiveFlow<'p>>,
    /// The table of the current flow.
    table: TableId,
    pub stack: Vec<u128>,
    /// True when a flow has made the packet untracked, or has changed its addresses or ports, since
    /// it last passed the connection tracker. Also true for the answer of a service to such a
    /// packet.
    pub ct_cleared: bool,
    /// The actions so far.
    pub actions: Vec<Action>,
    /// The drop reason, in case the packet ends without being sent.
    pub reason: DropReason,
    pub depth: usize,
}

impl<'p, 's, S: LearnedState, O: Observer> Translator<'p, 's, S, O> {
    pub fn new(program: &'p Program, state: &'s S, observer: &'s mut O) -> Self {
        Self {
            program,
            state,
            observer,
            read: FlowMask::default(),
            dependencies: Vec::new(),
            learn_events: Vec::new(),
            ingress: IngressPort { datapath: Program::BRIDGE, port: FdbPort::Port(PortNo(0)) },
            is_recirculated: false,
            is_transient: false,
            first_ops: None,
            flows: Vec::with_capacity(48),
            reads: ProgramReads::default(),
            steps: 0,
            total_steps: 0,
        }
    }

    pub fn finish(self, actions: Vec<Action>) -> Translation<'p> {
        Translation {
            mask: match self.is_recirculated {
                false => self.read.of_packet(),
                true => self.read.of_recirculated(),
            },
            actions,
            is_transient: self.is_transient,
            dependencies: self.dependencies,
            learn_events: self.learn_events,
            ingress: self.ingress,
            flows: self.flows,
            reads: self.reads.compact(),
        }
    }

    /// Records that the translation depends on the logical port, or on the multicast group, with
    /// this key in the packet's datapath.
    pub fn reads_port(&mut self, packet: &Packet<'p>, port: PortKey) {
        self.reads.add(ProgramPart::Port(packet.datapath.0, port));
    }

    /// A datapath of the program. Records that the translation depends on it.
    pub fn find_datapath(&mut self, key: DatapathKey) -> Option<&'p Datapath> {
        self.reads.add(ProgramPart::Datapath(key));
        self.program.datapath(key)
    }

    pub fn step(&mut self) -> Result<(), LimitExceeded> {
        self.steps += 1;
        self.total_steps += 1;
        if self.steps > MAX_STEPS || self.total_steps > MAX_TOTAL_STEPS {
            return Err(LimitExceeded(DropReason::TranslationSteps));
        }
        Ok(())
    }

    /// Executes steps until no unfinished flow is left. The result is in `packet.actions`, or in
    /// `packet.reason` when there are none.
    pub fn run(&mut self, packet: &mut Packet<'p>) -> Result<(), LimitExceeded> {
        if packet.depth > MAX_DEPTH {
            return Err(LimitExceeded(DropReason::TranslationDepth));
        }
        while let Some(frame) = packet.frames.last_mut() {
            let Some((op, rest)) = frame.ops.split_first() else {
                packet.frames.pop();
                continue;
            };
            frame.ops = rest;
            packet.table = frame.table;
            if rest.is_empty() || matches!(op, Op::Drop) {
                // Like a tail call: a chain of `next` does not nest.
                packet.frames.pop();
            }
            self.step()?;
            self.execute_op(op, packet)?;
        }
        Ok(())
    }

    /// Runs `begin` on `inner`, a copy of `packet`, then executes the copy to its end. Appends its
    /// actions to those of `packet`.
    pub fn run_nested(
        &mut self,
        nested: Nested,
        packet: &mut Packet<'p>,
        mut inner: Packet<'p>,
        begin: impl FnOnce(&mut Self, &mut Packet<'p>) -> Result<(), LimitExceeded>,
    ) -> Result<(), LimitExceeded> {
        inner.depth = packet.depth + 1;
        self.observer.event(Event::Enter(nested));
        begin(self, &mut inner)?;
        self.run(&mut inner)?;
        if inner.actions.is_empty() {
            self.observer.event(Event::Drop(inner.reason));
        } else if matches!(nested, Nested::Reply(_)) {
            self.drop_unless_sent(&mut inner);
        }
        self.observer.event(Event::Leave);
        packet.key.know(&self.read);
        let actions = inner.actions;
        if actions.is_empty() {
            packet.reason = inner.reason;
        } else if let Nested::Reply(reply) = nested {
            packet.actions.push(Action::Reply { reply, actions: actions.into() });
        } else if actions.iter().all(keeps_packet_unchanged) {
            packet.actions.extend(actions);
        } else {
            packet.actions.push(Action::Clone(actions.into()));
        }
        Ok(())
    }

    fn execute_op(&mut self, op: &'p Op, packet: &mut Packet<'p>) -> Result<(), LimitExceeded> {
        match op {
            Op::Load { to, value } => self.assign(packet, *to, *value),
            Op::Move { from, to } => {
                let value = self.read_bits(packet, *from);
                self.assign(packet, *to, value);
            }
            Op::Exchange(a, b) => {
                let (old_a, old_b) = (self.read_bits(packet, *a), self.read_bits(packet, *b));
                self.assign(packet, *a, old_b);
                self.assign(packet, *b, old_a);
            }
            Op::Push(bits) => {
                let value = self.read_bits(packet, *bits);
                packet.stack.push(value);
            }
            Op::Pop(bits) => {
                let value = packet.stack.pop().unwrap_or_default();
                self.assign(packet, *bits, value);
            }
            Op::PushVlan { tpid } => drop(self.push_vlan(packet, *tpid)),
            Op::PopVlan => drop(self.pop_vlan(packet)),
            Op::SetVlan { bits, value } => self.set_vlan(packet, *bits, *value),
            Op::DecTtl => self.decrement_ttl(packet),
            Op::Next(table) => return self.look_up(packet, *table),
            Op::Resubmit { in_port, table } => return self.resubmit(packet, *in_port, *table),
            Op::Output => return self.output(packet),
            Op::OutputPort(port) => self.output_port(packet, *port),
            Op::OutputField(bits) => self.output_field(packet, *bits),
            Op::OutputInPort => self.send(packet, packet.in_port),
            Op::Flood => self.flood(packet),
            Op::Normal => self.normal(packet),
            Op::Controller => {
                self.emit_changes(packet);
                packet.actions.push(Action::Controller);
            }
            Op::Clone(ops) => {
                let inner = packet.fork(ops);
                return self.run_nested(Nested::Clone, packet, inner, |_, _| Ok(()));
            }
            Op::Reply { reply, ops } => return self.reply(packet, *reply, ops, &[]),
            Op::Reject(ops) => return self.reject(packet, ops),
            Op::SetIcmpMtu(mtu) => packet.actions.push(Action::SetIcmpMtu(*mtu)),
            Op::Learned(op) => self.execute_learned_op(packet, op),
            Op::PortSecurity { to, direction } => self.port_security(packet, *to, *direction),
            Op::CheckLength { to, bytes } => return self.check_length(packet, *to, *bytes),
            Op::Serve { to, service } => return self.serve(packet, *to, service),
            Op::DnsLookup(to) => match &packet.datapath.1.dns {
                Some(service) => return self.serve(packet, *to, service),
                None => self.assign(packet, *to, 0),
            },
            Op::Select { to, choices } => self.select(packet, *to, choices),
            Op::Log(record) => {
                self.emit_changes(packet);
                packet.actions.push(Action::Log(record.clone()));
            }
            Op::Meter { rate_kbps, burst_kb } => {
                packet.actions.push(Action::Meter { rate_kbps: *rate_kbps, burst_kb: *burst_kb })
            }
            Op::NamedMeter(meter) => {
                self.emit_changes(packet);
                packet.actions.push(Action::NamedMeter(Arc::clone(meter)));
            }
            Op::SetQueue(queue) => packet.actions.push(Action::SetQueue(*queue)),
            Op::Ct(op) => return self.execute_ct_op(packet, op),
            Op::CtBalance(op) => return self.balance(packet, op),
            Op::CtOriginal { to, part } => self.ct_original(packet, *to, *part),
            Op::CtClear => self.clear_ct(packet),
            Op::Drop => packet.reason = DropReason::FlowDrop,
            Op::Unsupported(name) => {
                self.observer.event(Event::Note(name));
                self.end(packet, DropReason::UnsupportedAction);
            }
        }
        Ok(())
    }

    /// Drops the packet because of an error. The drop is counted even when other copies were sent.
    pub fn end(&mut self, packet: &mut Packet<'p>, reason: DropReason) {
        packet.frames.clear();
        packet.reason = reason;
        packet.actions.push(Action::Drop(reason));
        self.observer.event(Event::Drop(reason));
    }

    /// Reads and records a range of bits.
    #[inline]
    pub fn read_bits(&mut self, packet: &mut Packet<'p>, bits: Subfield) -> u128 {
        packet.key.recorder(&mut self.read).read_bits(bits)
    }

    /// Reads and records a field.
    #[inline]
    pub fn read_field(&mut self, packet: &mut Packet<'p>, field: Field) -> u128 {
        packet.key.recorder(&mut self.read).read_field(field)
    }

    /// Writes bits on behalf of a flow. Does nothing when the packet lacks the header; the
    /// languages reject flows that would do that.
    pub fn assign(&mut self, packet: &mut Packet<'p>, bits: Subfield, value: u128) {
        if bits.field() == Field::InPort {
            self.write(packet, bits, value);
            // Output to the old port is no longer a hairpin. The cast is lossless: the field is 32
            // bits wide.
            packet.in_port = PortNo(self.read_field(packet, Field::InPort) as u32);
        } else if !bits.field().is_header() {
            self.write(packet, bits, value);
        } else if self.has_header(packet, bits.field()) {
            // Only pushing and popping a tag changes the bit that marks frames as tagged.
            let keeps_tag = bits.field() == Field::VlanTci && bits.field_mask() & TAG_PRESENT != 0;
            let value = if keeps_tag { value | TAG_PRESENT >> bits.first() } else { value };
            self.write(packet, bits, value);
            // With other addresses or ports, the packet may belong to another connection.
            packet.ct_cleared |= TUPLE.contains(&bits.field());
        }
    }

    /// Writes bits. The value must follow from the program and from recorded bits.
    pub fn write(&mut self, packet: &mut Packet<'p>, bits: Subfield, value: u128) {
        let (field, mask) = (bits.field(), bits.field_mask());
        let before = packet.key.key().get(field);
        packet.key.write(field, value << bits.first(), mask);
        if field.is_header() {
            packet.dirty.add_bits(field, mask);
        }
        let after = packet.key.key().get(field);
        if before != after {
            self.observer.event(Event::Change { field, before, after });
        }
    }

    /// Looks the packet up in a table of its datapath and makes the flow found the current one.
    pub fn look_up(
        &mut self,
        packet: &mut Packet<'p>,
        table: TableId,
    ) -> Result<(), LimitExceeded> {
        self.step()?;
        if packet.frames.len() >= MAX_DEPTH {
            return Err(LimitExceeded(DropReason::TranslationDepth));
        }
        let flow = self.find(packet, table);
        let (datapath, key) = (packet.datapath.0, packet.key.key());
        self.reads.add_lookup(datapath, table, flow.is_some());
        self.observer.event(Event::Lookup { datapath, table, flow: flow.map(Arc::as_ref), key });
        match flow {
            None => packet.reason = DropReason::NoFlow,
            Some(flow) => {
                self.flows.push(flow);
                packet.reason = flow.drop_reason;
                packet.frames.push(ActiveFlow { ops: &flow.ops, table });
            }
        }
        Ok(())
    }

    /// The flow of a table with the highest rank that matches the packet.
    fn find(&mut self, packet: &mut Packet<'p>, table: TableId) -> Option<&'p Arc<Flow>> {
        let groups = packet.datapath.1.groups.iter();
        let mut tables = groups.filter_map(|&group| self.program.table(group, table)).peekable();
        tables.peek()?;
        packet.key.look_up(&mut self.read, |key, known| {
            let mut best: Option<(Rank, &'p Arc<Flow>)> = None;
            for classifier in tables {
                let better = best.map(|(rank, _)| rank);
                let found = classifier.lookup(key, better, known, |flow, read| {
                    let mut recorder = PlainRecorder { key, read };
                    flow.residual.as_ref().is_none_or(|rest| rest.holds(&mut recorder))
                });
                best = found.or(best);
            }
            best.map(|(_, flow)| flow)
        })
    }

    fn resubmit(
        &mut self,
        packet: &mut Packet<'p>,
        in_port: PortNo,
        table: Option<TableId>,
    ) -> Result<(), LimitExceeded> {
        let table = table.unwrap_or(packet.table);
        let mut key = packet.key.clone();
        key.write(Field::InPort, in_port.0.into(), Field::InPort.all_ones());
        let key = std::mem::replace(&mut packet.key, key);
        let done = self.look_up(packet, table);
        packet.key = key;
        packet.key.know(&self.read);
        done
    }

    fn decrement_ttl(&mut self, packet: &mut Packet<'p>) {
        // Only IP packets have a TTL.
        if !matches!(self.read_field(packet, Field::EthType), 0x0800 | 0x86dd) {
            return;
        }
        let ttl = self.read_field(packet, Field::IpTtl);
        if ttl > 1 {
            self.write(packet, Field::IpTtl.into(), ttl - 1);
        } else {
            packet.frames.clear();
            packet.reason = DropReason::TtlExpired;
            self.observer.event(Event::Note("TTL or hop limit expired"));
        }
    }

    /// Translates the rest of the program twice, once for frames longer than the limit and once for
    /// the others: the length is not part of the key, so the datapath chooses for each packet.
    fn check_length(
        &mut self,
        packet: &mut Packet<'p>,
        to: Subfield,
        bytes: u16,
    ) -> Result<(), LimitExceeded> {
        let mut rest = packet.clone();
        rest.actions = Vec::new();
        packet.frames.clear();
        self.observer.event(Event::Enter(Nested::Longer(bytes)));
        let larger = self.run_branch(rest.clone(), to, 1)?;
        self.observer.event(Event::Enter(Nested::NotLonger(bytes)));
        let otherwise = self.run_branch(rest, to, 0)?;
        if larger == otherwise {
            packet.actions.extend(larger);
        } else {
            packet.actions.push(Action::CheckLength { bytes, larger, otherwise });
        }
        Ok(())
    }

    /// Loads `value` into `to`, executes the remaining steps, and reports the end of the nested
    /// steps to the observer. Returns the actions, which are never empty.
    pub fn run_branch(
        &mut self,
        mut branch: Packet<'p>,
        to: Subfield,
        value: u128,
    ) -> Result<Box<[Action]>, LimitExceeded> {
        branch.depth += 1;
        branch.key.know(&self.read);
        self.assign(&mut branch, to, value);
        self.run(&mut branch)?;
        self.drop_unless_sent(&mut branch);
        self.observer.event(Event::Leave);
        Ok(branch.actions.into())
    }

    /// Drops a packet whose actions neither send nor drop it, so that the drop is counted. Keeps
    /// the actions up to the last one that has an effect on a dropped packet too. A log record, for
    /// example, describes the packet as changed by the actions before it.
    pub fn drop_unless_sent(&mut self, packet: &mut Packet<'p>) {
        if !packet.actions.iter().any(sends_or_drops) {
            self.observer.event(Event::Drop(packet.reason));
            let last = packet.actions.iter().rposition(has_side_effect);
            packet.actions.truncate(last.map_or(0, |last| last + 1));
            packet.actions.push(Action::Drop(packet.reason));
        }
    }
}

impl<'p> Packet<'p> {
    pub fn new(
        key: RecordedKey,
        in_port: PortNo,
        datapath: (DatapathKey, &'p Datapath),
        from_tunnel: bool,
    ) -> Self {
        Self {
            emitted: EmittedHeaders::of(&key),
            key,
            dirty: FlowMask::default(),
            datapath,
            from_tunnel,
            in_port,
            frames: Vec::with_capacity(4),
            table: TableId::FIRST,
            stack: Vec::new(),
            ct_cleared: false,
            actions: Vec::new(),
            reason: DropReason::NoFlow,
            depth: 0,
        }
    }

    /// A copy that is to execute `ops` and has no other unfinished flow.
    pub fn fork(&self, ops: &'p [Op]) -> Self {
        Self {
            key: self.key.clone(),
            emitted: self.emitted.clone(),
            dirty: self.dirty.clone(),
            datapath: self.datapath,
            from_tunnel: self.from_tunnel,
            in_port: self.in_port,
            frames: vec![ActiveFlow { ops, table: self.table }],
            table: self.table,
            stack: self.stack.clone(),
            ct_cleared: self.ct_cleared,
            actions: Vec::new(),
            reason: DropReason::FlowDrop,
            depth: self.depth,
        }
    }

    /// Executes steps that belong to no flow.
    pub fn begin(&mut self, ops: &'p [Op]) {
        self.frames.push(ActiveFlow { ops, table: TableId::FIRST });
        self.reason = DropReason::FlowDrop;
    }

    /// Begins a new frame that the datapath generates with the headers of the key.
    pub fn begin_frame(&mut self) {
        self.emitted = EmittedHeaders::of(&self.key);
        self.dirty = FlowMask::default();
    }

    /// True when the current flow is in an egress pipeline.
    pub fn in_egress(&self) -> bool {
        self.table.in_pipeline().0 == Direction::Egress
    }

    /// True when no step is left after the current one, so that the packet may be changed without
    /// making a copy first.
    pub fn is_last_step(&self) -> bool {
        self.frames.iter().all(|frame| frame.ops.is_empty())
    }
}

/// True for actions that leave the packet unchanged for the actions after them.
fn keeps_packet_unchanged(action: &Action) -> bool {
    match action {
        Action::Output(_)
        | Action::Encap { .. }
        | Action::Clone(_)
        | Action::Reply { .. }
        | Action::Log(_)
        | Action::Controller
        | Action::Ct(_) => true,
        Action::PushVlan(_)
        | Action::PopVlan
        | Action::Drop(_)
        | Action::Set { .. }
        | Action::SetIcmpMtu(_)
        | Action::CheckLength { .. }
        | Action::Serve { .. }
        | Action::Meter { .. }
        | Action::NamedMeter(_)
        | Action::SetQueue(_) => false,
    }
}
