//! From changes of the key to actions.

use super::machine::{Machine, Packet, TAG_PRESENT};
use super::presence::has_field;
use crate::observer::{Event, Observer};
use crate::recorder::RecordedKey;
use crate::state::LearnedState;
use flow::{Action, DropReason, Field, FlowKey, FlowMask, KeyStep, Reply, Subfield};
use wire::EtherType;
use wire::vlan::Tag;

/// The key as the actions so far leave the packet.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    key: FlowKey,
    /// Bits that the program has put there.
    written: FlowMask,
}

impl Sent {
    pub fn of(key: &RecordedKey) -> Self {
        Self { key: key.key().clone(), written: key.written().clone() }
    }

    fn write(&mut self, field: Field, value: u128, mask: u128) {
        let kept = self.key.get(field) & !mask;
        self.key.set(field, kept | value & mask);
        self.written.add_bits(field, mask);
    }

    /// True when the program has put these bits there already. A value that the packet merely happens to have does not count:
    /// others of its megaflow need not have it.
    fn has(&self, field: Field, value: u128, mask: u128) -> bool {
        self.key.get(field) & mask == value && mask & !self.written.get(field) == 0
    }
}

impl<'p, S: LearnedState, O: Observer> Machine<'p, '_, S, O> {
    /// Leaves actions that give the packet the headers that its key has.
    pub fn emit_changes(&mut self, packet: &mut Packet<'p>) {
        if packet.dirty == FlowMask::default() {
            return;
        }
        for (field, bits) in std::mem::take(&mut packet.dirty).fields() {
            let value = packet.key.key().get(field) & bits;
            if packet.sent.has(field, value, bits) {
                continue;
            }
            packet.sent.write(field, value, bits);
            match (field, packet.actions.last_mut()) {
                (Field::VlanTci, Some(Action::PushVlan(tag))) => {
                    let tci = u128::from(tag.tci()) & !bits | value;
                    *tag = Tag::from_tci(tag.tpid, tci as u16 & !(TAG_PRESENT as u16));
                }
                _ => packet.actions.push(Action::Set { field, value, mask: bits }),
            }
        }
    }

    /// True when the packet has the header that `field` belongs to. What it depends on is recorded.
    pub fn has_header(&mut self, packet: &mut Packet<'p>, field: Field) -> bool {
        has_field(&mut packet.key.recorder(&mut self.read), field)
    }

    pub fn push_vlan(&mut self, packet: &mut Packet<'p>, tpid: u16) {
        let inner = self.read_field(packet, Field::VlanInnerTci);
        if inner & TAG_PRESENT != 0 {
            return self.end(packet, DropReason::VlanDepth);
        }
        self.emit_changes(packet);
        let outer =
            (self.read_field(packet, Field::VlanTpid), self.read_field(packet, Field::VlanTci));
        self.write_tags(packet, (tpid.into(), TAG_PRESENT), outer);
        packet.actions.push(Action::PushVlan(Tag::from_tci(EtherType(tpid), 0)));
    }

    pub fn pop_vlan(&mut self, packet: &mut Packet<'p>) {
        if self.read_field(packet, Field::VlanTci) & TAG_PRESENT == 0 {
            return;
        }
        let ethertype = EtherType(self.read_field(packet, Field::EthType) as u16);
        if ethertype.is_vlan() {
            // A third tag would come into sight, of which the key knows nothing.
            return self.end(packet, DropReason::VlanDepth);
        }
        self.emit_changes(packet);
        let inner = (
            self.read_field(packet, Field::VlanInnerTpid),
            self.read_field(packet, Field::VlanInnerTci),
        );
        self.write_tags(packet, inner, (0, 0));
        packet.actions.push(Action::PopVlan);
    }

    pub fn set_vlan(&mut self, packet: &mut Packet<'p>, bits: Subfield, value: u16) {
        if self.read_field(packet, Field::VlanTci) & TAG_PRESENT == 0 {
            self.push_vlan(packet, EtherType::VLAN.0);
        }
        self.write(packet, bits, value.into());
    }

    /// Writes the tags of the key, which an action has given to the packet.
    fn write_tags(&mut self, packet: &mut Packet<'p>, outer: (u128, u128), inner: (u128, u128)) {
        let fields = [
            (Field::VlanTpid, outer.0),
            (Field::VlanTci, outer.1),
            (Field::VlanInnerTpid, inner.0),
            (Field::VlanInnerTci, inner.1),
        ];
        for (field, value) in fields {
            let before = packet.key.key().get(field);
            packet.key.write(field, value, field.all_ones());
            packet.sent.write(field, value, field.all_ones());
            if before != value {
                self.observer.event(Event::Change { field, before, after: value });
            }
        }
    }
}

impl<'p, S: LearnedState, O: Observer> Machine<'p, '_, S, O> {
    /// Turns the key into that of the reply to the packet. The executor makes the packet itself: nothing is left to emit.
    pub fn become_reply(&mut self, packet: &mut Packet<'p>, reply: Reply) {
        let advert = matches!(reply, Reply::NeighbourAdvert { .. });
        let unspecified_src = advert && self.read_field(packet, Field::Ip6Src) == 0;
        for step in reply.steps(unspecified_src) {
            match *step {
                KeyStep::Swap { a, b } => self.rearrange(packet, &[a, b], |key| key.swap(a, b)),
                KeyStep::Flip(bits) => {
                    self.rearrange(packet, &[bits.field()], |key| key.flip(bits))
                }
                KeyStep::Load { .. } | KeyStep::Move { .. } => self.take_steps(packet, &[*step]),
            }
        }
        packet.sent = Sent::of(&packet.key);
        packet.dirty = FlowMask::default();
    }

    /// Changes fields in a way that is the same whatever they have.
    fn rearrange(
        &mut self,
        packet: &mut Packet<'p>,
        fields: &[Field],
        change: impl FnOnce(&mut RecordedKey),
    ) {
        let old = packet.key.key().clone();
        change(&mut packet.key);
        for &field in fields {
            let (before, after) = (old.get(field), packet.key.key().get(field));
            if before != after {
                self.observer.event(Event::Change { field, before, after });
            }
        }
    }

    /// Carries steps out on the key. What they copy is read: actions are to put it into the packet.
    pub fn take_steps(&mut self, packet: &mut Packet<'p>, steps: &[KeyStep]) {
        for step in steps {
            match *step {
                KeyStep::Load { to, value } => self.write(packet, to, value),
                KeyStep::Move { from, to } => {
                    let value = self.read_bits(packet, from);
                    self.write(packet, to, value);
                }
                KeyStep::Swap { a, b } => {
                    let (of_a, of_b) = (self.read_field(packet, a), self.read_field(packet, b));
                    self.write(packet, a.into(), of_b);
                    self.write(packet, b.into(), of_a);
                }
                KeyStep::Flip(bits) => {
                    let value = self.read_bits(packet, bits);
                    self.write(packet, bits, !value);
                }
            }
        }
    }
}
