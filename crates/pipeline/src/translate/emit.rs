//! From changes of the key to actions.

use super::machine::{Machine, Packet, TAG_PRESENT};
use super::presence::has_field;
use crate::observer::{Event, Observer};
use crate::recorder::RecordedKey;
use crate::state::State;
use flow::{Action, DropReason, Field, FlowMask, KeyStep, Reply, Subfield};
use wire::EtherType;
use wire::vlan::Tag;

impl<'p, S: State, O: Observer> Machine<'p, '_, S, O> {
    /// Leaves actions that give the packet the headers that its key has.
    pub fn emit_changes(&mut self, packet: &mut Packet<'p>) {
        if packet.dirty == FlowMask::default() {
            return;
        }
        for (field, bits) in std::mem::take(&mut packet.dirty).fields() {
            let value = packet.key.key().get(field) & bits;
            let known = packet.sent.written().get(field);
            let same = packet.sent.key().get(field) & bits == value;
            // What the program has put there already is not written again. A value that the packet merely happens to have is:
            // others of its megaflow need not have it.
            if same && bits & !known == 0 {
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
    pub fn has_header(&mut self, key: &RecordedKey, field: Field) -> bool {
        has_field(&mut key.recorder(&mut self.read), field)
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

impl<'p, S: State, O: Observer> Machine<'p, '_, S, O> {
    /// Turns the key into that of the reply to the packet. The executor makes the packet itself: nothing is left to emit.
    pub fn become_reply(&mut self, packet: &mut Packet<'p>, reply: Reply) {
        let advert = matches!(reply, Reply::NeighbourAdvert { .. });
        let unspecified_src = advert && self.read_field(packet, Field::Ip6Src) == 0;
        self.take_steps(packet, reply.steps(unspecified_src));
        packet.sent = packet.key.clone();
        packet.dirty = FlowMask::default();
    }

    /// Carries steps out on the key.
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
