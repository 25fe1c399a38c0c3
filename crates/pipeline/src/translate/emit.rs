//! Turns header changes in the key into actions.

use super::presence::has_field;
use super::translator::{Packet, TAG_PRESENT, Translator};
use crate::observer::{Event, Observer};
use crate::recorder::RecordedKey;
use crate::state::LearnedState;
use flow::{Action, DropReason, Field, FlowKey, FlowMask, Subfield};
use wire::EtherType;
use wire::vlan::Tag;

/// The VLAN ID of the outer tag, and the bit that marks frames as tagged.
pub(super) const VLAN_TAG: Subfield = match Subfield::new(Field::VlanTci, 0, 13) {
    Some(bits) => bits,
    None => Subfield::whole(Field::VlanTci),
};

/// The headers of the packet after the actions emitted so far.
#[derive(Clone, Debug)]
pub(super) struct EmittedHeaders {
    key: FlowKey,
    /// Bits that the program has written.
    written: FlowMask,
}

impl EmittedHeaders {
    pub fn of(key: &RecordedKey) -> Self {
        Self { key: key.key().clone(), written: key.written().clone() }
    }

    fn write(&mut self, field: Field, value: u128, mask: u128) {
        let kept = self.key.get(field) & !mask;
        self.key.set(field, kept | value & mask);
        self.written.add_bits(field, mask);
    }

    /// True when the program has already written this value. A value that came with the packet does
    /// not count: other packets of the megaflow may have another one.
    fn has(&self, field: Field, value: u128, mask: u128) -> bool {
        self.key.get(field) & mask == value && mask & !self.written.get(field) == 0
    }
}

impl<'p, S: LearnedState, O: Observer> Translator<'p, '_, S, O> {
    /// Emits the actions that bring the headers of the packet up to date with its key.
    pub fn emit_changes(&mut self, packet: &mut Packet<'p>) {
        if packet.dirty == FlowMask::default() {
            return;
        }
        for (field, bits) in std::mem::take(&mut packet.dirty).fields() {
            let value = packet.key.key().get(field) & bits;
            if packet.emitted.has(field, value, bits) {
                continue;
            }
            packet.emitted.write(field, value, bits);
            match (field, packet.actions.last_mut()) {
                (Field::VlanTci, Some(Action::PushVlan(tag))) => {
                    let tci = u128::from(tag.tci()) & !bits | value;
                    *tag = Tag::from_tci(tag.tpid, tci as u16 & !(TAG_PRESENT as u16));
                }
                _ => packet.actions.push(Action::Set { field, value, mask: bits }),
            }
        }
    }

    /// True when the packet has the header of `field`. The bits that determine the result are
    /// recorded.
    pub fn has_header(&mut self, packet: &mut Packet<'p>, field: Field) -> bool {
        has_field(&mut packet.key.recorder(&mut self.read), field)
    }

    /// Pushes a tag. If there is no room, ends the packet and returns false.
    pub fn push_vlan(&mut self, packet: &mut Packet<'p>, tpid: u16) -> bool {
        let inner = self.read_field(packet, Field::VlanInnerTci);
        if inner & TAG_PRESENT != 0 {
            self.end(packet, DropReason::VlanDepth);
            return false;
        }
        self.emit_changes(packet);
        let outer =
            (self.read_field(packet, Field::VlanTpid), self.read_field(packet, Field::VlanTci));
        self.write_tags(packet, (tpid.into(), TAG_PRESENT), outer);
        packet.actions.push(Action::PushVlan(Tag::from_tci(EtherType(tpid), 0)));
        true
    }

    /// Pops the outermost tag, if any. If the key does not contain the header after the tag, ends
    /// the packet and returns false.
    pub fn pop_vlan(&mut self, packet: &mut Packet<'p>) -> bool {
        if self.read_field(packet, Field::VlanTci) & TAG_PRESENT == 0 {
            return true;
        }
        let ethertype = EtherType(self.read_field(packet, Field::EthType) as u16);
        if ethertype.is_vlan() {
            // The key holds two tags. Popping one would expose a third tag that the key does not
            // hold.
            self.end(packet, DropReason::VlanDepth);
            return false;
        }
        self.emit_changes(packet);
        let inner = (
            self.read_field(packet, Field::VlanInnerTpid),
            self.read_field(packet, Field::VlanInnerTci),
        );
        self.write_tags(packet, inner, (0, 0));
        packet.actions.push(Action::PopVlan);
        true
    }

    /// Like `pop_vlan`, but adds the TPID to the mask, because the programs of the kernel datapath
    /// need it to pop a tag.
    pub fn pop_known_vlan(&mut self, packet: &mut Packet<'p>) -> bool {
        self.read_field(packet, Field::VlanTpid);
        self.pop_vlan(packet)
    }

    pub fn set_vlan(&mut self, packet: &mut Packet<'p>, bits: Subfield, value: u16) {
        if self.read_field(packet, Field::VlanTci) & TAG_PRESENT == 0 {
            self.push_vlan(packet, EtherType::VLAN.0);
        }
        self.write(packet, bits, value.into());
    }

    /// Writes both tags of the key. The caller emits the action that changes the packet.
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
            packet.emitted.write(field, value, field.all_ones());
            if before != value {
                self.observer.event(Event::Change { field, before, after: value });
            }
        }
    }
}
