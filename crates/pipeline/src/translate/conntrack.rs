//! Connection tracking: passes a packet to the tracker, and begins its next pass.

use super::translator::{LimitExceeded, Packet, Translator};
use crate::observer::{AfterTracking, Event, Nested, Observer, TrackRequest};
use crate::op::{CtBalance, CtOp, CtOriginal, CtZone, Op};
use crate::program::{DatapathKind, TableId};
use crate::reads::ProgramPart;
use crate::recirc::SuspendedState;
use crate::recorder::{RecordedKey, Recorder};
use crate::state::LearnedState;
use flow::{
    Action, CtAction, CtCommit, CtNat, DropReason, Field, FlowKey, NatRange, PortNo, RecircId,
    Subfield, TrackResult, ct_state,
};
use std::net::IpAddr;
use std::sync::Arc;

/// The fields of a packet that has passed the connection tracker.
const CT_FIELDS: [Field; 4] = [Field::CtState, Field::CtMark, Field::CtLabel, Field::CtZone];

/// OVN's registers for zones: of the logical port, and of a router's destination and source NAT.
pub(super) const PORT_ZONE: Field = Field::Reg13;
pub(super) const DNAT_ZONE: Field = Field::Reg11;
pub(super) const SNAT_ZONE: Field = Field::Reg12;

/// A zone: its number in the tracker, and its number in flows.
#[derive(Clone, Copy)]
struct Zone {
    /// The number in the tracker.
    number: u16,
    /// The number in `ct_zone`.
    shown: u16,
    /// False if there is no such zone.
    is_known: bool,
}

/// The request of a flow to the tracker.
struct Tracking {
    nat: Option<CtNat>,
    commit: Option<CtCommit>,
    next: Option<TableId>,
    /// True for a load balancer.
    balances: bool,
}

impl<'p, S: LearnedState, O: Observer> Translator<'p, '_, S, O> {
    pub fn execute_ct_op(
        &mut self,
        packet: &mut Packet<'p>,
        op: &'p CtOp,
    ) -> Result<(), LimitExceeded> {
        let commit = op.commit.as_deref();
        let commit =
            commit.map(|exec| CtCommit { force: op.force, ..self.ct_commit(packet, exec) });
        let tracking = Tracking { nat: op.nat, commit, next: op.next, balances: false };
        self.track(packet, op.zone, tracking)
    }

    /// Chooses a backend for a new connection. The packets of a committed connection keep their
    /// backend.
    pub fn balance(
        &mut self,
        packet: &mut Packet<'p>,
        op: &'p CtBalance,
    ) -> Result<(), LimitExceeded> {
        let is_v6 = match self.read_field(packet, Field::EthType) {
            0x0800 => false,
            0x86dd => true,
            _ => {
                self.end(packet, DropReason::NotApplicable);
                return Ok(());
            }
        };
        let backends: Vec<_> =
            op.backends.iter().filter(|backend| backend.ip.is_ipv6() == is_v6).collect();
        let wanted = self.observer.balance(&op.backends).and_then(|index| op.backends.get(index));
        let hash = match wanted {
            Some(_) => 0,
            None => self.balance_hash(packet, &op.hash_fields),
        };
        let by_hash =
            hash.checked_rem(backends.len() as u64).and_then(|i| backends.get(i as usize));
        let Some(backend) = wanted.or(by_hash.copied()) else {
            self.end(packet, DropReason::FlowDrop);
            return Ok(());
        };
        let ports = (backend.port != 0).then_some((backend.port, backend.port));
        let range = NatRange { ports, ..NatRange::address(backend.ip) };
        let commit = Some(self.ct_commit(packet, &op.exec));
        let nat = Some(CtNat::Destination(range));
        self.track(packet, op.zone, Tracking { nat, commit, next: op.next, balances: true })
    }

    /// The value of the mark and the label that `exec` assigns.
    fn ct_commit(&mut self, packet: &mut Packet<'p>, exec: &'p [Op]) -> CtCommit {
        let mut commit = CtCommit::default();
        for op in exec {
            let (to, value) = match op {
                Op::Load { to, value } => (*to, *value),
                Op::Move { from, to } => (*to, self.read_bits(packet, *from)),
                // No language compiles other steps into a commit.
                _ => continue,
            };
            let (mask, value) = (to.field_mask(), value << to.first() & to.field_mask());
            match to.field() {
                // The casts are lossless: the mark has 32 bits.
                Field::CtMark => {
                    commit.mark = commit.mark & !(mask as u32) | value as u32;
                    commit.mark_mask |= mask as u32;
                }
                Field::CtLabel => {
                    commit.label = commit.label & !mask | value;
                    commit.label_mask |= mask;
                }
                _ => {}
            }
        }
        commit
    }

    fn zone(&mut self, packet: &mut Packet<'p>, zone: CtZone) -> Zone {
        let field = match (zone, packet.datapath.1.kind) {
            (CtZone::Number(number), _) => return self.named_zone(packet, number),
            (CtZone::Bits(bits), _) => {
                // The cast is lossless: the languages accept at most 16 bits.
                let number = self.read_bits(packet, bits) as u16;
                return self.named_zone(packet, number);
            }
            (CtZone::Snat, _) => SNAT_ZONE,
            (CtZone::Logical | CtZone::LogicalSnat, DatapathKind::Switch) => PORT_ZONE,
            (CtZone::LogicalSnat, _) => SNAT_ZONE,
            (CtZone::Logical | CtZone::Dnat, _) => DNAT_ZONE,
        };
        // The cast is lossless: only zones are written to these registers.
        let number = self.read_field(packet, field) as u16;
        Zone { number, shown: number, is_known: number != 0 }
    }

    /// A zone that a flow names by number. Equal numbers in two bridges are different zones.
    fn named_zone(&mut self, packet: &Packet<'p>, shown: u16) -> Zone {
        match packet.datapath.1.kind {
            DatapathKind::Switch | DatapathKind::Router | DatapathKind::Provider => {
                Zone { number: shown, shown, is_known: true }
            }
            DatapathKind::Bridge => {
                self.reads.add(ProgramPart::Zones);
                let number = self.program.zones().of_bridge(packet.datapath.0, shown);
                Zone { number: number.unwrap_or(0), shown, is_known: number.is_some() }
            }
        }
    }

    fn track(
        &mut self,
        packet: &mut Packet<'p>,
        zone: CtZone,
        tracking: Tracking,
    ) -> Result<(), LimitExceeded> {
        let zone = self.zone(packet, zone);
        if !zone.is_known && packet.datapath.1.kind == DatapathKind::Bridge {
            self.end(packet, DropReason::CtUnavailable);
            return Ok(());
        }
        // The read is not recorded, because only an observer uses the value.
        let state = packet.key.key().get(Field::CtState) as u8;
        let request = TrackRequest {
            zone: zone.number,
            nat: tracking.nat.as_ref(),
            commit: tracking.commit.as_ref(),
            fresh: packet.ct_cleared,
            recirculates: tracking.next.is_some(),
            is_last_step: packet.is_last_step(),
            balances: tracking.balances,
            state,
        };
        match (self.observer.track(&request), tracking.next) {
            (AfterTracking::Assume(state), Some(next)) => {
                return self.continue_inline(packet, zone.shown, (&tracking, next), state);
            }
            (AfterTracking::Known(result), next) => {
                return self.continue_tracked(packet, zone.shown, next, &result);
            }
            (AfterTracking::Suspend | AfterTracking::Assume(_), _) => {}
        }
        if !zone.is_known {
            self.end(packet, DropReason::CtUnavailable);
            return Ok(());
        }
        self.emit_changes(packet);
        let recirculation = match tracking.next {
            None => None,
            Some(table) => {
                let state = self.suspended_state(packet, table);
                let Some(recirculation) = self.state.suspend(state) else {
                    self.is_transient = true;
                    self.end(packet, DropReason::RecircTableFull);
                    return Ok(());
                };
                Some(recirculation)
            }
        };
        let Tracking { nat, commit, .. } = tracking;
        packet.actions.push(Action::Ct(Arc::new(CtAction {
            zone: zone.number,
            nat,
            commit,
            fresh: std::mem::take(&mut packet.ct_cleared),
            recirculation,
        })));
        self.write_untracked(packet);
        Ok(())
    }

    fn suspended_state(&self, packet: &Packet<'p>, table: TableId) -> SuspendedState {
        SuspendedState {
            datapath: packet.datapath.0,
            table,
            from_tunnel: packet.from_tunnel,
            ingress: self.ingress,
            words: packet.key.saved(),
            stack: packet.stack.as_slice().into(),
        }
    }

    /// Continues in the next table with the tracker's known result for all such packets.
    fn continue_tracked(
        &mut self,
        packet: &mut Packet<'p>,
        zone: u16,
        next: Option<TableId>,
        result: &TrackResult,
    ) -> Result<(), LimitExceeded> {
        let TrackResult { state, mark, label, rewrite } = *result;
        let addresses = [
            (rewrite.src, Field::Ip4Src, Field::Ip6Src),
            (rewrite.dst, Field::Ip4Dst, Field::Ip6Dst),
        ];
        for (address, v4, v6) in addresses {
            match address {
                Some(IpAddr::V4(ip)) => self.assign(packet, v4.into(), ip.to_bits().into()),
                Some(IpAddr::V6(ip)) => self.assign(packet, v6.into(), ip.to_bits()),
                None => {}
            }
        }
        for (port, field) in [(rewrite.src_port, Field::TpSrc), (rewrite.dst_port, Field::TpDst)] {
            if let Some(port) = port {
                self.assign(packet, field.into(), port.into());
            }
        }
        // The tracker itself has translated the packet.
        packet.ct_cleared = false;
        let Some(next) = next else {
            self.write_untracked(packet);
            return Ok(());
        };
        let fields = [u128::from(state), mark.into(), label, zone.into()];
        for (field, value) in CT_FIELDS.into_iter().zip(fields) {
            self.write(packet, field.into(), value);
        }
        self.look_up(packet, next)
    }

    /// Continues in the next table with the connection state that the observer assumes.
    fn continue_inline(
        &mut self,
        packet: &mut Packet<'p>,
        zone: u16,
        (tracking, next): (&Tracking, TableId),
        state: u8,
    ) -> Result<(), LimitExceeded> {
        let inner = packet.fork(&[]);
        self.run_nested(Nested::Tracked { state }, packet, inner, |translator, inner| {
            translator.write(inner, Field::CtState.into(), state.into());
            translator.write(inner, Field::CtZone.into(), zone.into());
            match &tracking.nat {
                Some(CtNat::Source(range)) => {
                    translator.assume_nat(inner, range, [Field::Ip4Src, Field::Ip6Src], None);
                }
                Some(CtNat::Destination(range)) => {
                    let port = tracking.balances.then_some(Field::TpDst);
                    translator.assume_nat(inner, range, [Field::Ip4Dst, Field::Ip6Dst], port);
                }
                Some(CtNat::Existing) | None => {}
            }
            translator.look_up(inner, next)
        })?;
        self.write_untracked(packet);
        Ok(())
    }

    fn assume_nat(
        &mut self,
        packet: &mut Packet<'p>,
        range: &NatRange,
        [v4, v6]: [Field; 2],
        port: Option<Field>,
    ) {
        match range.first {
            kept if kept.is_unspecified() => {}
            IpAddr::V4(ip) => self.assign(packet, v4.into(), ip.to_bits().into()),
            IpAddr::V6(ip) => self.assign(packet, v6.into(), ip.to_bits()),
        }
        if let (Some(port), Some((first, _))) = (port, range.ports) {
            self.assign(packet, port.into(), first.into());
        }
        packet.ct_cleared = false;
    }

    /// Reads a header field of the packet that opened the connection. Only the current packet is
    /// known, so the result is unknown if the tracker has translated the field.
    pub fn ct_original(&mut self, packet: &mut Packet<'p>, to: Subfield, part: CtOriginal) {
        let ethertype = self.read_field(packet, Field::EthType);
        // The cast is lossless: the bits above are 0.
        let state = self.read_field(packet, Field::CtState) as u8;
        let has = |flags| state & flags != 0;
        let (is_reply, is_v4) = (has(ct_state::REPLY), ethertype == 0x0800);
        let is_ip = is_v4 || ethertype == 0x86dd;
        let of_packet = |source, destination| if is_reply { source } else { destination };
        let field = match part {
            _ if !is_ip || !has(ct_state::NEW | ct_state::ESTABLISHED) => None,
            CtOriginal::Ip4Dst => is_v4.then_some(of_packet(Field::Ip4Src, Field::Ip4Dst)),
            CtOriginal::Ip6Dst => (!is_v4).then_some(of_packet(Field::Ip6Src, Field::Ip6Dst)),
            CtOriginal::PortDst if self.service(packet).is_none() => None,
            CtOriginal::PortDst => Some(of_packet(Field::TpSrc, Field::TpDst)),
            CtOriginal::Protocol => Some(Field::IpProto),
        };
        let translated = if is_reply { ct_state::SRC_NAT } else { ct_state::DST_NAT };
        if field.is_some() && part != CtOriginal::Protocol && has(translated) {
            self.observer.event(Event::Note("the translated destination is unknown"));
            return self.end(packet, DropReason::UnsupportedAction);
        }
        let value = field.map_or(0, |field| self.read_field(packet, field));
        self.assign(packet, to, value);
    }

    /// Makes the packet untracked: later passes ignore the tracker's results so far.
    pub fn clear_ct(&mut self, packet: &mut Packet<'p>) {
        packet.ct_cleared = true;
        self.write_untracked(packet);
    }

    fn write_untracked(&mut self, packet: &mut Packet<'p>) {
        for field in CT_FIELDS {
            self.write(packet, field.into(), 0);
        }
    }

    /// Translates a later pass of a packet.
    pub fn translate_recirculated(&mut self, key: &FlowKey) -> Result<Vec<Action>, LimitExceeded> {
        self.is_recirculated = true;
        self.read.add(Field::RecircId);
        // The cast is lossless: the field has 48 bits.
        let id = RecircId::new(key.get(Field::RecircId) as u64);
        let found = id.and_then(|id| self.state.suspended(id));
        let entered = found.and_then(|state| Some((self.find_datapath(state.datapath)?, state)));
        let Some((datapath, state)) = entered else {
            self.is_transient = true;
            self.observer.event(Event::Drop(DropReason::RecircStale));
            return Ok(vec![Action::Drop(DropReason::RecircStale)]);
        };
        let mut key = RecordedKey::resumed(key.clone(), &state.words);
        key.know(&self.read);
        let in_port = key.recorder(&mut self.read).read_field(Field::InPort);
        // The cast is lossless: the field is 32 bits wide.
        let in_port = PortNo(in_port as u32);
        self.ingress = state.ingress;
        let datapath = (state.datapath, datapath);
        let mut packet = Packet::new(key, in_port, datapath, state.from_tunnel);
        packet.stack = state.stack.to_vec();
        if datapath.1.kind == DatapathKind::Bridge {
            // The cast is lossless: the field has 16 bits.
            let number = self.read_field(&mut packet, Field::CtZone) as u16;
            self.reads.add(ProgramPart::Zones);
            let shown = self.program.zones().shown_in_bridge(datapath.0, number);
            self.write(&mut packet, Field::CtZone.into(), shown.into());
        }
        self.look_up(&mut packet, state.table)?;
        self.finish_packet(packet)
    }

    /// Executes the packet to its end, and returns its actions.
    pub fn finish_packet(&mut self, mut packet: Packet<'p>) -> Result<Vec<Action>, LimitExceeded> {
        self.run(&mut packet)?;
        unwrap_last_clone(&mut packet.actions);
        self.drop_unless_sent(&mut packet);
        Ok(packet.actions)
    }
}

/// Executes the actions of the last copy on the packet itself, which no later action needs. The
/// programs of the kernel datapath cannot change copies.
fn unwrap_last_clone(actions: &mut Vec<Action>) {
    while let Some(Action::Clone(last)) =
        actions.pop_if(|action| matches!(action, Action::Clone(_)))
    {
        actions.extend(last);
    }
}
