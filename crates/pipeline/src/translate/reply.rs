//! Packets that are generated from a packet: ICMP errors, TCP resets, SCTP ABORTs, ARP and
//! neighbour discovery replies.

use super::translator::{LimitExceeded, Packet, Translator};
use crate::observer::{Event, Nested, Observer};
use crate::op::Op;
use crate::recorder::{RecordedKey, Recorder};
use crate::state::LearnedState;
use flow::{DropReason, Field, KeyEdit, Reply};

impl<'p, S: LearnedState, O: Observer> Translator<'p, '_, S, O> {
    /// Generates a packet from this one, applies `steps` to its key, and executes `ops` on it.
    pub fn reply(
        &mut self,
        packet: &mut Packet<'p>,
        reply: Reply,
        ops: &'p [Op],
        steps: &[KeyEdit],
    ) -> Result<(), LimitExceeded> {
        self.emit_changes(packet);
        let mut inner = packet.fork(ops);
        // This host originates the reply, so it may be sent to the host that the packet came from.
        inner.from_tunnel = false;
        self.run_nested(Nested::Reply(reply), packet, inner, |translator, inner| {
            translator.become_reply(inner, reply);
            translator.apply_steps(inner, steps);
            Ok(())
        })
    }

    /// Rejects the packet. Unlike other replies, a rejection swaps the source and destination
    /// addresses.
    pub fn reject(&mut self, packet: &mut Packet<'p>, ops: &'p [Op]) -> Result<(), LimitExceeded> {
        const TCP: u128 = 6;
        const UDP: u128 = 17;
        const SCTP: u128 = 132;
        let (a, b, error, no_such_port) = match self.read_field(packet, Field::EthType) {
            0x0800 => (Field::Ip4Src, Field::Ip4Dst, Reply::Icmp4, 3),
            0x86dd => (Field::Ip6Src, Field::Ip6Dst, Reply::Icmp6, 4),
            _ => {
                packet.reason = DropReason::NotApplicable;
                return Ok(());
            }
        };
        let macs = KeyEdit::Swap { a: Field::EthSrc, b: Field::EthDst };
        let addresses = KeyEdit::Swap { a, b };
        let code = KeyEdit::Load { to: Field::IcmpCode.into(), value: no_such_port };
        if self.must_not_be_answered(packet) {
            packet.reason = DropReason::NotApplicable;
            return Ok(());
        }
        match self.read_field(packet, Field::IpProto) {
            TCP => self.reply(packet, Reply::TcpReset, ops, &[macs, addresses]),
            UDP => self.reply(packet, error, ops, &[macs, addresses, code]),
            SCTP => self.reply(packet, Reply::SctpAbort, ops, &[macs, addresses]),
            _ => self.reply(packet, error, ops, &[macs, addresses]),
        }
    }

    /// True for packets that must not be answered, because two hosts could then answer each other
    /// forever: TCP resets (RFC 9293 section 3.10.7.1) and ICMP errors (RFC 1122 section 3.2.2, RFC
    /// 4443 section 2.4).
    fn must_not_be_answered(&mut self, packet: &mut Packet<'p>) -> bool {
        const RST: u128 = 0x04;
        let mut key = packet.key.recorder(&mut self.read);
        match (key.read_field(Field::EthType), key.read_field(Field::IpProto)) {
            (_, 6) => key.read(Field::TcpFlags, RST) != 0,
            (0x0800, 1) => matches!(key.read_field(Field::IcmpType), 3 | 4 | 5 | 11 | 12),
            // ICMPv6 errors have types below 128.
            (0x86dd, 58) => key.read(Field::IcmpType, 0x80) == 0,
            _ => false,
        }
    }

    /// Turns the key of the packet into the key of its reply. The executor builds the reply itself,
    /// so these changes emit no actions.
    fn become_reply(&mut self, packet: &mut Packet<'p>, reply: Reply) {
        let advert = matches!(reply, Reply::NeighbourAdvert { .. });
        let unspecified_src = advert && self.read_field(packet, Field::Ip6Src) == 0;
        for step in reply.key_edits(unspecified_src) {
            match *step {
                KeyEdit::Swap { a, b } => self.rearrange(packet, &[a, b], |key| key.swap(a, b)),
                KeyEdit::Flip(bits) => {
                    self.rearrange(packet, &[bits.field()], |key| key.flip(bits))
                }
                KeyEdit::Load { .. } | KeyEdit::Move { .. } => self.apply_steps(packet, &[*step]),
            }
        }
        packet.begin_frame();
    }

    /// Applies a change that does not depend on the values of the fields, so nothing is recorded.
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

    /// Applies steps to the key. Copied bits are recorded, because actions write them into the
    /// packet.
    pub fn apply_steps(&mut self, packet: &mut Packet<'p>, steps: &[KeyEdit]) {
        for step in steps {
            match *step {
                KeyEdit::Load { to, value } => self.write(packet, to, value),
                KeyEdit::Move { from, to } => {
                    let value = self.read_bits(packet, from);
                    self.write(packet, to, value);
                }
                KeyEdit::Swap { a, b } => {
                    let (of_a, of_b) = (self.read_field(packet, a), self.read_field(packet, b));
                    self.write(packet, a.into(), of_b);
                    self.write(packet, b.into(), of_a);
                }
                KeyEdit::Flip(bits) => {
                    let value = self.read_bits(packet, bits);
                    self.write(packet, bits, !value);
                }
            }
        }
    }
}
