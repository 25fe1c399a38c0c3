//! Evaluates the rules of base chains, and of the chains that they jump to.

use super::registers::{Byte, Registers, compare, known, may_be, values};
use super::{ChainView, Firewall, PacketDirection, TunnelPacket, path};
use netdev::nftables::{Chain, Element, Expression, Register, Rule, Set, Verdict};
use std::collections::HashMap;
use std::net::IpAddr;

/// The maximum nesting of chains that the kernel accepts.
const DEPTH: usize = 16;

/// The possible outcomes of a chain.
#[derive(Clone, Default, Debug)]
pub(super) struct ChainOutcomes {
    /// The packet is accepted.
    pub(super) accepts: bool,
    /// The end of the chain may be reached without a verdict.
    falls: bool,
    /// The packet may be dropped, first by this rule.
    pub(super) drops: Option<String>,
}

impl ChainOutcomes {
    fn drop(&mut self, by: &str) {
        self.drops.get_or_insert_with(|| by.to_owned());
    }

    fn join(&mut self, other: Self) {
        self.accepts |= other.accepts;
        self.falls |= other.falls;
        self.drops = self.drops.take().or(other.drops);
    }
}

/// The value of a condition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ternary {
    True,
    False,
    Either,
}

impl Ternary {
    fn of(value: Option<bool>) -> Self {
        match value {
            Some(true) => Self::True,
            Some(false) => Self::False,
            None => Self::Either,
        }
    }
}

/// The changes that the rules evaluated so far may have made to the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct PacketChanges {
    /// Its headers may have been rewritten.
    altered: bool,
    /// It may be exempt from connection tracking (`notrack`).
    untracked: bool,
}

/// The evaluation of the rules for one packet.
pub(super) struct RuleEvaluation<'a> {
    firewall: &'a Firewall<'a>,
    packet: &'a TunnelPacket,
    direction: PacketDirection,
    view: ChainView,
    done: PacketChanges,
    /// The chains evaluated so far for this base chain, so that none is evaluated twice.
    walked: HashMap<(*const Chain, PacketChanges), (ChainOutcomes, PacketChanges)>,
}

impl<'a> RuleEvaluation<'a> {
    pub(super) fn new(
        firewall: &'a Firewall<'a>,
        packet: &'a TunnelPacket,
        direction: PacketDirection,
    ) -> Self {
        let view = ChainView {
            stage: 0,
            priority: 0,
            device: None,
            is_certain: false,
            nfproto: 0,
            is_tracked: false,
        };
        let (done, walked) = (PacketChanges::default(), HashMap::new());
        Self { firewall, packet, direction, view, done, walked }
    }

    /// Evaluates a base chain. Its policy applies when no rule gives a verdict.
    pub(super) fn base(&mut self, chain: &'a Chain, view: ChainView) -> ChainOutcomes {
        self.view = view;
        self.walked.clear();
        let mut ends = self.chain(chain, 0);
        if ends.falls && chain.drops {
            ends.drop("its policy");
        }
        ends.accepts |= ends.falls && !chain.drops || !self.view.is_certain;
        ends
    }

    fn chain(&mut self, chain: &'a Chain, depth: usize) -> ChainOutcomes {
        let before = (std::ptr::from_ref(chain), self.done);
        if let Some((ends, done)) = self.walked.get(&before) {
            self.done = *done;
            return ends.clone();
        }
        let ends = self.rules(chain, depth);
        self.walked.insert(before, (ends.clone(), self.done));
        ends
    }

    fn rules(&mut self, chain: &'a Chain, depth: usize) -> ChainOutcomes {
        let mut ends = ChainOutcomes::default();
        let name = (chain.family, chain.table.as_str(), chain.name.as_str());
        for rule in self.firewall.rules.get(&name).into_iter().flatten() {
            let by = format!("handle {} of {}", rule.handle, path(chain));
            let mut goes_on = false;
            for verdict in self.rule(rule) {
                match verdict {
                    Verdict::Continue => goes_on = true,
                    Verdict::Accept => ends.accepts = true,
                    Verdict::Drop => ends.drop(&by),
                    // A userspace program decides, so both outcomes are possible.
                    Verdict::Queue => {
                        ends.accepts = true;
                        ends.drop(&by);
                    }
                    Verdict::Return => ends.falls = true,
                    Verdict::Jump(name) => {
                        let inner = self.named(chain, &name, &by, depth);
                        goes_on |= inner.falls;
                        ends.join(ChainOutcomes { falls: false, ..inner });
                    }
                    // After a `goto`, evaluation continues after the calling chain.
                    Verdict::Goto(name) => ends.join(self.named(chain, &name, &by, depth)),
                }
            }
            if !goes_on {
                return ends;
            }
        }
        ends.falls = true;
        ends
    }

    /// Evaluates the chain `name` of the same table. Beyond the nesting limit, all outcomes are
    /// possible.
    fn named(&mut self, chain: &Chain, name: &str, by: &str, depth: usize) -> ChainOutcomes {
        let found = self.firewall.chains.get(&(chain.family, chain.table.as_str(), name));
        match found {
            Some(next) if depth < DEPTH => self.chain(next, depth + 1),
            _ => ChainOutcomes { accepts: true, falls: true, drops: Some(by.to_owned()) },
        }
    }

    /// The verdicts that a rule may give.
    fn rule(&mut self, rule: &Rule) -> Vec<Verdict> {
        let mut registers = Registers::new();
        let mut possible = Vec::new();
        for expression in &rule.expressions {
            let condition = match expression {
                Expression::Meta { key, to } => {
                    registers.load(*to, self.meta(*key));
                    continue;
                }
                Expression::Payload { base, offset, len, to } => {
                    registers.load(*to, self.payload(*base, *offset, *len));
                    continue;
                }
                Expression::Connection { key, to } => {
                    registers.load(*to, self.connection(*key));
                    continue;
                }
                Expression::Bitwise { from, to, mask, xor } => {
                    registers.combine(*from, *to, mask, xor);
                    continue;
                }
                Expression::Neutral => {
                    registers = Registers::new();
                    continue;
                }
                Expression::Alters => {
                    self.done.altered = true;
                    continue;
                }
                Expression::Untracked => {
                    self.done.untracked = true;
                    continue;
                }
                Expression::Diverts => {
                    self.done.altered = true;
                    possible.extend([Verdict::Queue, Verdict::Continue]);
                    continue;
                }
                Expression::Verdict(verdict) => {
                    possible.push(verdict.clone());
                    return possible;
                }
                Expression::Reject => {
                    possible.push(Verdict::Drop);
                    return possible;
                }
                Expression::Compare { from, how, value } => {
                    Ternary::of(compare(registers.bytes(*from, value.len()), *how, value))
                }
                Expression::Range { from, inverted, first, last } => {
                    let value = registers.bytes(*from, first.len()).and_then(values);
                    Ternary::of(value.map(|value| (&value >= first && &value <= last) != *inverted))
                }
                Expression::Lookup { from, set, inverted } => {
                    let (condition, verdicts) =
                        self.look_up(rule, *from, set, *inverted, &registers);
                    if !verdicts.is_empty() {
                        possible.extend(verdicts);
                        possible.extend((condition != Ternary::True).then_some(Verdict::Continue));
                        return possible;
                    }
                    condition
                }
                Expression::Unknown(_) => {
                    registers = Registers::new();
                    Ternary::Either
                }
            };
            match condition {
                Ternary::False => break,
                Ternary::Either => possible.push(Verdict::Continue),
                Ternary::True => {}
            }
        }
        possible.push(Verdict::Continue);
        possible
    }

    /// The known bits of the value of a `meta` expression (NFT_META_*).
    fn meta(&self, key: u32) -> Vec<Byte> {
        const PROTOCOL: u32 = 1;
        const IIF: u32 = 4;
        const OIF: u32 = 5;
        const IIFNAME: u32 = 6;
        const OIFNAME: u32 = 7;
        const NFPROTO: u32 = 15;
        const L4PROTO: u32 = 16;
        const PKTTYPE: u32 = 19;
        let is_in = self.direction == PacketDirection::In;
        let device = self.view.device.as_ref();
        match key {
            // At these hooks, the device of the other direction is not set.
            IIF | OIF if is_in != (key == IIF) => known(&[0; 4]),
            IIFNAME | OIFNAME if is_in != (key == IIFNAME) => known(&[0; 16]),
            IIF | OIF => {
                device.map_or(vec![Byte::UNKNOWN; 4], |(_, index)| known(&index.to_ne_bytes()))
            }
            IIFNAME | OIFNAME => device.map_or(vec![Byte::UNKNOWN; 16], |(name, _)| {
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(16, 0);
                known(&bytes)
            }),
            NFPROTO => known(&[self.view.nfproto]),
            L4PROTO => known(&[self.packet.protocol]),
            PROTOCOL => {
                let ethertype: u16 = if self.packet.v6 { 0x86dd } else { 0x0800 };
                known(&ethertype.to_be_bytes())
            }
            // Tunnel packets are unicast.
            PKTTYPE if is_in => known(&[0]),
            _ => vec![Byte::UNKNOWN; 16],
        }
    }

    fn payload(&self, base: u32, offset: usize, len: usize) -> Vec<Byte> {
        const NETWORK: u32 = 1;
        const TRANSPORT: u32 = 2;
        let mut header = vec![Byte::UNKNOWN; 64];
        let mut put = |at: usize, bytes: &[u8]| {
            for (slot, byte) in header.iter_mut().skip(at).zip(bytes) {
                *slot = Byte::known(*byte);
            }
        };
        let address = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let TunnelPacket { v6, protocol, port, source, destination, .. } = self.packet;
        match (base, v6) {
            _ if self.done.altered => {}
            (NETWORK, false) => {
                // IPv4 without options.
                put(0, &[0x45]);
                put(9, &[*protocol]);
                source.iter().for_each(|ip| put(12, &address(*ip)));
                destination.iter().for_each(|ip| put(16, &address(*ip)));
            }
            (NETWORK, true) => {
                put(6, &[*protocol]);
                source.iter().for_each(|ip| put(8, &address(*ip)));
                destination.iter().for_each(|ip| put(24, &address(*ip)));
            }
            (TRANSPORT, _) => port.iter().for_each(|port| put(2, &port.to_be_bytes())),
            _ => {}
        }
        header.into_iter().skip(offset).chain(std::iter::repeat(Byte::UNKNOWN)).take(len).collect()
    }

    /// The value of a `ct` expression (NFT_CT_*). Every packet of a UDP tunnel can be the first of
    /// a connection, because replies have other ports. GRE and STT packets can belong to existing
    /// connections.
    fn connection(&self, key: u32) -> Vec<Byte> {
        const UDP: u8 = 17;
        const STATE: u32 = 0;
        const NEW: u32 = 8;
        const STATUS: u32 = 2;
        /// The destination was rewritten (IPS_DST_NAT).
        const DIVERTED: u8 = 0x20;
        match key {
            _ if self.done.untracked || !self.view.is_tracked => vec![Byte::UNKNOWN; 16],
            STATE if self.packet.protocol == UDP => known(&NEW.to_ne_bytes()),
            STATUS if !self.done.altered => {
                let mut status = vec![Byte::UNKNOWN; 4];
                status[if cfg!(target_endian = "little") { 0 } else { 3 }] =
                    Byte::without(DIVERTED);
                status
            }
            _ => vec![Byte::UNKNOWN; 16],
        }
    }

    /// Whether a value is in a set, and the verdicts that a verdict map may give for it.
    fn look_up(
        &self,
        rule: &Rule,
        from: Register,
        name: &str,
        inverted: bool,
        registers: &Registers,
    ) -> (Ternary, Vec<Verdict>) {
        let found = self.firewall.sets.get(&(rule.family, rule.table.as_str(), name));
        // An unknown set can give any verdict.
        let Some(set) = found else { return (Ternary::Either, vec![Verdict::Queue]) };
        let len = set.elements.iter().map(|element| element.key.len()).max().unwrap_or(0);
        let Some(bytes) = registers.bytes(from, len) else { return (Ternary::Either, Vec::new()) };
        match values(bytes).map(|value| find(set, &value)) {
            Some(Some(element)) => {
                (Ternary::of(Some(!inverted)), element.verdict.iter().cloned().collect())
            }
            Some(None) => (Ternary::of(Some(inverted)), Vec::new()),
            None => {
                let is_plain = |element: &Element| {
                    !set.is_interval && !element.is_catch_all && element.key_end.is_none()
                };
                let may_match =
                    |element: &&Element| !is_plain(element) || may_be(bytes, &element.key);
                let verdicts =
                    set.elements.iter().filter(may_match).filter_map(|e| e.verdict.clone());
                match set.elements.iter().any(|element| may_match(&element)) {
                    true => (Ternary::Either, verdicts.collect()),
                    false => (Ternary::of(Some(inverted)), Vec::new()),
                }
            }
        }
    }
}

/// The element of a set that matches a value.
fn find<'a>(set: &'a Set, value: &Vec<u8>) -> Option<&'a Element> {
    let catch_all = || set.elements.iter().find(|element| element.is_catch_all);
    let mut plain = set.elements.iter().filter(|element| !element.is_catch_all);
    if set.is_interval && !set.is_concatenation {
        // The nearest interval boundary at or below the value decides. If one interval ends where
        // the next one begins, the begin counts.
        let below = plain.filter(|element| element.key <= *value);
        let nearest = below.max_by_key(|element| (&element.key, !element.ends_interval));
        return nearest.filter(|element| !element.ends_interval).or_else(catch_all);
    }
    let holds = |element: &&Element| match &element.key_end {
        None => element.key == *value,
        Some(last) => is_between(&set.field_lens, &element.key, value, last),
    };
    plain.find(holds).or_else(catch_all)
}

/// Compares a concatenated key field by field: each field must be within its range.
fn is_between(field_lens: &[usize], first: &[u8], value: &[u8], last: &[u8]) -> bool {
    let whole = [value.len()];
    let lens = if field_lens.is_empty() { &whole } else { field_lens };
    let mut at = 0;
    lens.iter().all(|&len| {
        let field = at..at + len;
        at = field.end.next_multiple_of(4);
        let parts = [first, value, last].map(|bytes| bytes.get(field.clone()));
        parts[1].is_some() && parts[0] <= parts[1] && parts[1] <= parts[2]
    })
}
