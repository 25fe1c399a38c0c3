//! The machine: packets, their unfinished flows, and the steps of flows.

use super::emit::Sent;
use super::{MAX_DEPTH, MAX_STEPS, MAX_TOTAL_STEPS, Translation};
use crate::flow::Flow;
use crate::observer::{Event, Nested, Observer};
use crate::op::{Direction, Op};
use crate::program::{Datapath, Program, TableId};
use crate::recorder::{PlainRecorder, RecordedKey, Recorder};
use crate::state::{Dependency, FdbPort, IngressPort, LearnEvent, LearnedState};
use classifier::Rank;
use flow::{Action, DatapathKey, DropReason, Field, FlowMask, KeyStep, PortNo, Reply, Subfield};
use std::sync::Arc;

/// The bit of `vlan_tci` that says that there is a tag.
pub(super) const TAG_PRESENT: u128 = 0x1000;

/// Ends a whole translation: the program asks for more than is allowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abort(pub DropReason);

/// What is the same for all packets of a translation.
pub(super) struct Machine<'p, 's, S, O> {
    pub program: &'p Program,
    pub state: &'s S,
    pub observer: &'s mut O,
    /// The bits of the packet that were read.
    pub read: FlowMask,
    pub dependencies: Vec<Dependency>,
    pub learn_events: Vec<LearnEvent>,
    /// Who teaches them; known before any flow is looked up.
    pub ingress: IngressPort,
    flows: Vec<&'p Arc<Flow>>,
    /// Of the packet, or the copy, that is on its way.
    pub steps: u32,
    total_steps: u32,
}

/// A flow that is being executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'p> {
    /// What is left of it.
    ops: &'p [Op],
    table: TableId,
}

/// A packet, or a copy, on its way through tables.
#[derive(Clone, Debug)]
pub(super) struct Packet<'p> {
    pub key: RecordedKey,
    /// The key as the actions so far leave the packet.
    pub sent: Sent,
    /// Bits of headers that were written since.
    pub dirty: FlowMask,
    /// The datapath it is in.
    pub datapath: (DatapathKey, &'p Datapath),
    /// It came through a tunnel: the host it came from has served the other hosts, and the patch ports of groups.
    pub from_tunnel: bool,
    pub in_port: PortNo,
    /// Flows that are not finished, the current one last.
    pub frames: Vec<Frame<'p>>,
    /// The table of the flow that is executed.
    table: TableId,
    values: Vec<u128>,
    /// What was decided so far.
    pub actions: Vec<Action>,
    /// Why it is not sent anywhere, should it come to that.
    pub reason: DropReason,
    pub depth: usize,
}

impl<'p, 's, S: LearnedState, O: Observer> Machine<'p, 's, S, O> {
    pub fn new(program: &'p Program, state: &'s S, observer: &'s mut O) -> Self {
        Self {
            program,
            state,
            observer,
            read: FlowMask::default(),
            dependencies: Vec::new(),
            learn_events: Vec::new(),
            ingress: IngressPort { datapath: Program::BRIDGE, port: FdbPort::Port(PortNo(0)) },
            flows: Vec::with_capacity(48),
            steps: 0,
            total_steps: 0,
        }
    }

    pub fn finish(self, actions: Vec<Action>) -> Translation<'p> {
        Translation {
            mask: self.read.of_packet(),
            actions,
            dependencies: self.dependencies,
            learn_events: self.learn_events,
            ingress: self.ingress,
            flows: self.flows,
        }
    }

    pub fn step(&mut self) -> Result<(), Abort> {
        self.steps += 1;
        self.total_steps += 1;
        if self.steps > MAX_STEPS || self.total_steps > MAX_TOTAL_STEPS {
            return Err(Abort(DropReason::TranslationSteps));
        }
        Ok(())
    }

    /// Executes until no flow is left. What is decided is in `packet.actions`; why nothing is, in `packet.reason`.
    pub fn run(&mut self, packet: &mut Packet<'p>) -> Result<(), Abort> {
        if packet.depth > MAX_DEPTH {
            return Err(Abort(DropReason::TranslationDepth));
        }
        while let Some(frame) = packet.frames.last_mut() {
            let Some((op, rest)) = frame.ops.split_first() else {
                packet.frames.pop();
                continue;
            };
            frame.ops = rest;
            packet.table = frame.table;
            if rest.is_empty() || matches!(op, Op::Drop) {
                // A flow's last step needs the flow no more: a chain of `next` is no deeper than one.
                packet.frames.pop();
            }
            self.step()?;
            self.execute(op, packet)?;
        }
        Ok(())
    }

    /// Runs `inner`, a copy of `packet`, to its end after `begin`, and leaves what it does as an action.
    pub fn run_nested(
        &mut self,
        nested: Nested,
        packet: &mut Packet<'p>,
        mut inner: Packet<'p>,
        begin: impl FnOnce(&mut Self, &mut Packet<'p>) -> Result<(), Abort>,
    ) -> Result<(), Abort> {
        inner.depth = packet.depth + 1;
        self.observer.event(Event::Enter(nested));
        begin(self, &mut inner)?;
        self.run(&mut inner)?;
        if inner.actions.is_empty() {
            self.observer.event(Event::Drop(inner.reason));
        }
        self.observer.event(Event::Leave);
        packet.key.know(&self.read);
        let actions = inner.actions;
        if actions.is_empty() {
            packet.reason = inner.reason;
        } else if let Nested::Reply(reply) = nested {
            packet.actions.push(Action::Reply { reply, actions: actions.into() });
        } else if actions.iter().all(leaves_packet_alone) {
            packet.actions.extend(actions);
        } else {
            packet.actions.push(Action::Clone(actions.into()));
        }
        Ok(())
    }

    fn execute(&mut self, op: &'p Op, packet: &mut Packet<'p>) -> Result<(), Abort> {
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
                packet.values.push(value);
            }
            Op::Pop(bits) => {
                let value = packet.values.pop().unwrap_or_default();
                self.assign(packet, *bits, value);
            }
            Op::PushVlan { tpid } => self.push_vlan(packet, *tpid),
            Op::PopVlan => self.pop_vlan(packet),
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
            Op::LearnedTables(op) => self.ask_or_learn(packet, op),
            Op::PortSecurity { to, direction } => self.port_security(packet, *to, *direction),
            Op::CheckLength { to, bytes } => return self.check_length(packet, *to, *bytes),
            Op::Select { to, choices } => self.select(packet, *to, choices),
            Op::Log(record) => {
                self.emit_changes(packet);
                packet.actions.push(Action::Log(record.clone()));
            }
            Op::Meter { rate_kbps, burst_kb } => {
                packet.actions.push(Action::Meter { rate_kbps: *rate_kbps, burst_kb: *burst_kb })
            }
            Op::SetQueue(queue) => packet.actions.push(Action::SetQueue(*queue)),
            Op::Drop => packet.reason = DropReason::FlowDrop,
            Op::Unsupported(name) => {
                self.observer.event(Event::Note(name));
                self.end(packet, DropReason::UnsupportedAction);
            }
        }
        Ok(())
    }

    /// Ends the packet because of a fault, which is counted even when other copies went out.
    pub fn end(&mut self, packet: &mut Packet<'p>, reason: DropReason) {
        packet.frames.clear();
        packet.reason = reason;
        packet.actions.push(Action::Drop(reason));
        self.observer.event(Event::Drop(reason));
    }

    /// Reads bits, and records them.
    #[inline]
    pub fn read_bits(&mut self, packet: &mut Packet<'p>, bits: Subfield) -> u128 {
        packet.key.recorder(&mut self.read).read_bits(bits)
    }

    /// Reads a field, and records it.
    #[inline]
    pub fn read_field(&mut self, packet: &mut Packet<'p>, field: Field) -> u128 {
        packet.key.recorder(&mut self.read).read_field(field)
    }

    /// Writes bits as a flow asks for it: of a header that the packet does not have, nothing. The languages see to it that
    /// flows ask for no such thing.
    pub fn assign(&mut self, packet: &mut Packet<'p>, bits: Subfield, value: u128) {
        if !bits.field().is_header() {
            self.write(packet, bits, value);
        } else if self.has_header(packet, bits.field()) {
            // The bit that says that there is a tag is written by putting one on or taking it off.
            let keeps = bits.field() == Field::VlanTci && bits.field_mask() & TAG_PRESENT != 0;
            let value = if keeps { value | TAG_PRESENT >> bits.first() } else { value };
            self.write(packet, bits, value);
        }
    }

    /// Writes bits; the value must follow from the program and from bits that were read.
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

    /// Looks the packet up in a table of its datapath, and goes on with the flow found.
    pub fn look_up(&mut self, packet: &mut Packet<'p>, table: TableId) -> Result<(), Abort> {
        self.step()?;
        if packet.frames.len() >= MAX_DEPTH {
            return Err(Abort(DropReason::TranslationDepth));
        }
        let flow = self.find(packet, table);
        let (datapath, key) = (packet.datapath.0, packet.key.key());
        self.observer.event(Event::Lookup { datapath, table, flow: flow.map(Arc::as_ref), key });
        match flow {
            None => packet.reason = DropReason::NoFlow,
            Some(flow) => {
                self.flows.push(flow);
                packet.reason = flow.drop_reason;
                packet.frames.push(Frame { ops: &flow.ops, table });
            }
        }
        Ok(())
    }

    /// The best flow of a table for the packet.
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
    ) -> Result<(), Abort> {
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
        // IP packets alone have one.
        if !matches!(self.read_field(packet, Field::EthType), 0x0800 | 0x86dd) {
            return;
        }
        let ttl = self.read_field(packet, Field::IpTtl);
        if ttl > 1 {
            self.write(packet, Field::IpTtl.into(), ttl - 1);
        } else {
            packet.frames.clear();
            packet.reason = DropReason::TtlExpired;
            self.observer.event(Event::Note("the TTL or hop limit has run out"));
        }
    }

    fn check_length(
        &mut self,
        packet: &mut Packet<'p>,
        to: Subfield,
        bytes: u16,
    ) -> Result<(), Abort> {
        let mut longer = packet.clone();
        longer.actions = Vec::new();
        let mut other = longer.clone();
        packet.frames.clear();
        let mut lists = Vec::with_capacity(2);
        for (case, nested, bit) in
            [(&mut longer, Nested::Longer(bytes), 1), (&mut other, Nested::NotLonger(bytes), 0)]
        {
            case.depth += 1;
            case.key.know(&self.read);
            self.observer.event(Event::Enter(nested));
            self.assign(case, to, bit);
            self.run(case)?;
            if case.actions.is_empty() {
                self.observer.event(Event::Drop(case.reason));
                case.actions.push(Action::Drop(case.reason));
            }
            self.observer.event(Event::Leave);
            lists.push(std::mem::take(&mut case.actions));
        }
        if let (Some(otherwise), Some(larger)) = (lists.pop(), lists.pop()) {
            if larger == otherwise {
                packet.actions.extend(larger);
            } else {
                let (larger, otherwise) = (larger.into(), otherwise.into());
                packet.actions.push(Action::CheckLength { bytes, larger, otherwise });
            }
        }
        Ok(())
    }

    /// Executes `ops` on a packet made from this one, after `steps`.
    fn reply(
        &mut self,
        packet: &mut Packet<'p>,
        reply: Reply,
        ops: &'p [Op],
        steps: &[KeyStep],
    ) -> Result<(), Abort> {
        self.emit_changes(packet);
        let mut inner = packet.fork(ops);
        // A packet of this host's own: it may go where the one that it answers came from.
        inner.from_tunnel = false;
        self.run_nested(Nested::Reply(reply), packet, inner, |machine, inner| {
            machine.become_reply(inner, reply);
            machine.take_steps(inner, steps);
            Ok(())
        })
    }

    /// Answers back to where the packet came from: a rejection changes places of addresses, which other replies do not.
    fn reject(&mut self, packet: &mut Packet<'p>, ops: &'p [Op]) -> Result<(), Abort> {
        const TCP: u128 = 6;
        const UDP: u128 = 17;
        let (a, b, error, no_such_port) = match self.read_field(packet, Field::EthType) {
            0x0800 => (Field::Ip4Src, Field::Ip4Dst, Reply::Icmp4, 3),
            0x86dd => (Field::Ip6Src, Field::Ip6Dst, Reply::Icmp6, 4),
            _ => {
                packet.reason = DropReason::NotApplicable;
                return Ok(());
            }
        };
        let stations = KeyStep::Swap { a: Field::EthSrc, b: Field::EthDst };
        let addresses = KeyStep::Swap { a, b };
        let code = KeyStep::Load { to: Field::IcmpCode.into(), value: no_such_port };
        if self.must_not_be_answered(packet) {
            packet.reason = DropReason::NotApplicable;
            return Ok(());
        }
        match self.read_field(packet, Field::IpProto) {
            TCP => self.reply(packet, Reply::TcpReset, ops, &[stations, addresses]),
            UDP => self.reply(packet, error, ops, &[stations, addresses, code]),
            _ => self.reply(packet, error, ops, &[stations, addresses]),
        }
    }

    /// True for what would make two hosts answer each other for ever: resets (RFC 9293 section 3.10.7.1) and ICMP errors
    /// (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
    fn must_not_be_answered(&mut self, packet: &mut Packet<'p>) -> bool {
        const RST: u128 = 0x04;
        let mut key = packet.key.recorder(&mut self.read);
        match (key.read_field(Field::EthType), key.read_field(Field::IpProto)) {
            (_, 6) => key.read(Field::TcpFlags, RST) != 0,
            (0x0800, 1) => matches!(key.read_field(Field::IcmpType), 3 | 4 | 5 | 11 | 12),
            // Errors have the highest bit clear.
            (0x86dd, 58) => key.read(Field::IcmpType, 0x80) == 0,
            _ => false,
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
            sent: Sent::of(&key),
            key,
            dirty: FlowMask::default(),
            datapath,
            from_tunnel,
            in_port,
            frames: Vec::with_capacity(4),
            table: TableId::FIRST,
            values: Vec::new(),
            actions: Vec::new(),
            reason: DropReason::NoFlow,
            depth: 0,
        }
    }

    /// A copy without unfinished flows that is to execute `ops`.
    pub fn fork(&self, ops: &'p [Op]) -> Self {
        Self {
            key: self.key.clone(),
            sent: self.sent.clone(),
            dirty: self.dirty.clone(),
            datapath: self.datapath,
            from_tunnel: self.from_tunnel,
            in_port: self.in_port,
            frames: vec![Frame { ops, table: self.table }],
            table: self.table,
            values: self.values.clone(),
            actions: Vec::new(),
            reason: DropReason::FlowDrop,
            depth: self.depth,
        }
    }

    /// True when the flow that is executed is in an egress pipeline.
    pub fn in_egress(&self) -> bool {
        self.table.in_pipeline().0 == Direction::Egress
    }

    /// True when nothing is left to do with the packet as it is now: it may be changed without a copy.
    pub fn is_last_step(&self) -> bool {
        self.frames.iter().all(|frame| frame.ops.is_empty())
    }
}

/// True for actions after which the packet is as before, whatever comes of them.
fn leaves_packet_alone(action: &Action) -> bool {
    match action {
        Action::Output(_)
        | Action::Encap { .. }
        | Action::Clone(_)
        | Action::Reply { .. }
        | Action::Log(_)
        | Action::Controller => true,
        Action::PushVlan(_)
        | Action::PopVlan
        | Action::Drop(_)
        | Action::Set { .. }
        | Action::SetIcmpMtu(_)
        | Action::CheckLength { .. }
        | Action::Meter { .. }
        | Action::SetQueue(_) => false,
    }
}
