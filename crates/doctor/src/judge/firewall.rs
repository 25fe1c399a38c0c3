//! Whether the firewall eats the packets of a tunnel: its rules are followed for a packet of which something is known (protocol,
//! port, perhaps addresses and device) and the rest is not.
//!
//! A condition is then true, false, or may be either; what may be either can make a packet that is dropped one that may be dropped.

use netdev::nftables::{
    Chain, Comparison, Element, Expression, Family, Register, Rule, Ruleset, Set, Verdict,
};
use std::net::IpAddr;

/// A packet of a tunnel, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// IPv6 outside.
    pub v6: bool,
    /// The IP protocol.
    pub protocol: u8,
    /// The destination port, for UDP and TCP.
    pub port: Option<u16>,
    /// The sender.
    pub source: Option<IpAddr>,
    /// The receiver.
    pub destination: Option<IpAddr>,
    /// The device by which it comes or goes.
    pub device: String,
}

/// Which way a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// It is received: at the device, before routing, and for this host.
    In,
    /// It is sent.
    Out,
}

/// What becomes of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It passes.
    Passes,
    /// It may be dropped, depending on what is not known.
    MayDrop(Place),
    /// It is dropped.
    Drops(Place),
}

/// What drops it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// `inet filter input`: the chain at which packets arrive, where a rule can be put before.
    pub chain: String,
    /// `handle 7 of inet filter blocked`, or `its policy`.
    pub by: String,
}

/// Jumps followed at most, as in the kernel.
const DEPTH: usize = 16;

/// What the rules do with a packet. All chains that see it have to let it pass.
pub fn fate(rules: &Ruleset, packet: &Packet, direction: Direction) -> Fate {
    let mut worst = Fate::Passes;
    for chain in rules.chains.iter().filter(|chain| sees(chain, packet, direction)) {
        let mut walk = Walk { rules, packet, direction, may_be_accepted: false, may_drop: None };
        let place = |by: String| Place { chain: path(chain), by };
        let ended = match walk.chain(chain, 0) {
            End::Accepted => {
                walk.may_drop.take().map_or(Fate::Passes, |by| Fate::MayDrop(place(by)))
            }
            End::Dropped(by) if walk.may_be_accepted => Fate::MayDrop(place(by)),
            End::Dropped(by) => Fate::Drops(place(by)),
            End::Fell => match walk.may_drop.take() {
                _ if chain.drops && !walk.may_be_accepted => {
                    Fate::Drops(place("its policy".to_owned()))
                }
                _ if chain.drops => Fate::MayDrop(place("its policy".to_owned())),
                Some(by) => Fate::MayDrop(place(by)),
                None => Fate::Passes,
            },
        };
        match (&worst, &ended) {
            (_, Fate::Drops(_)) => return ended,
            (Fate::Passes, _) => worst = ended,
            _ => {}
        }
    }
    worst
}

fn path(chain: &Chain) -> String {
    format!("{} {} {}", chain.family.name(), chain.table, chain.name)
}

/// Whether packets of this kind arrive at a chain.
fn sees(chain: &Chain, packet: &Packet, direction: Direction) -> bool {
    let Some(hook) = &chain.hook else { return false };
    let is_device = hook.devices.is_empty() || hook.devices.contains(&packet.device);
    let hooks: &[u32] = match (chain.family, direction) {
        (Family::Inet, Direction::In) => &[0, 1, 5],
        (Family::Ip | Family::Ip6, Direction::In) => &[0, 1],
        (Family::Inet | Family::Ip | Family::Ip6, Direction::Out) => &[3, 4],
        (Family::Netdev, Direction::In) => &[0],
        (Family::Netdev, Direction::Out) => &[1],
        (Family::Other(_), _) => &[],
    };
    let is_version = match chain.family {
        Family::Ip => !packet.v6,
        Family::Ip6 => packet.v6,
        _ => true,
    };
    is_version && is_device && hooks.contains(&hook.number)
}

/// How a chain ended.
enum End {
    Accepted,
    /// By this rule.
    Dropped(String),
    /// No rule decided.
    Fell,
}

/// What a condition is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Truth {
    True,
    False,
    Either,
}

impl Truth {
    fn of(value: Option<bool>) -> Self {
        match value {
            Some(true) => Self::True,
            Some(false) => Self::False,
            None => Self::Either,
        }
    }
}

struct Walk<'a> {
    rules: &'a Ruleset,
    packet: &'a Packet,
    direction: Direction,
    /// A rule that may match accepts.
    may_be_accepted: bool,
    /// The first rule that may match and drops.
    may_drop: Option<String>,
}

impl Walk<'_> {
    fn chain(&mut self, chain: &Chain, depth: usize) -> End {
        if depth > DEPTH {
            return End::Fell;
        }
        let rules = self.rules;
        let of_chain = |rule: &&Rule| {
            rule.family == chain.family && rule.table == chain.table && rule.chain == chain.name
        };
        for rule in rules.rules.iter().filter(of_chain) {
            let Some((truth, verdict)) = self.rule(rule) else { continue };
            let by = format!("handle {} of {}", rule.handle, path(chain));
            match (verdict, truth) {
                (_, Truth::False) | (Verdict::Continue, _) => {}
                (Verdict::Accept | Verdict::Queue, Truth::True) => return End::Accepted,
                (Verdict::Accept | Verdict::Queue, Truth::Either) => self.may_be_accepted = true,
                (Verdict::Drop, Truth::True) => return End::Dropped(by),
                (Verdict::Drop, Truth::Either) => {
                    self.may_drop.get_or_insert(by);
                }
                (Verdict::Return, Truth::True) => return End::Fell,
                // Whatever follows may not be seen.
                (Verdict::Return, Truth::Either) => self.may_be_accepted = true,
                (Verdict::Jump(name) | Verdict::Goto(name), truth) => {
                    let is_it = |other: &&Chain| {
                        other.family == chain.family
                            && other.table == chain.table
                            && other.name == name
                    };
                    let Some(next) = rules.chains.iter().find(is_it) else { continue };
                    match (self.chain(next, depth + 1), truth) {
                        (End::Fell, _) => {}
                        (ended, Truth::True) => return ended,
                        (End::Accepted, _) => self.may_be_accepted = true,
                        (End::Dropped(by), _) => {
                            self.may_drop.get_or_insert(by);
                        }
                    }
                }
            }
        }
        End::Fell
    }

    /// Whether a rule matches, and what it does then; `None` when it does nothing.
    fn rule(&self, rule: &Rule) -> Option<(Truth, Verdict)> {
        let mut registers = Registers::default();
        let mut truth = Truth::True;
        let mut decided = None;
        for expression in &rule.expressions {
            let next = match expression {
                Expression::Meta { key, to } => {
                    registers.load(*to, self.meta(*key));
                    continue;
                }
                Expression::Payload { base, offset, len, to } => {
                    registers.load(*to, self.payload(*base, *offset, *len));
                    continue;
                }
                Expression::Connection { key, to } => {
                    registers.load(*to, connection(*key));
                    continue;
                }
                Expression::Bitwise { from, to, mask, xor } => {
                    registers.combine(*from, *to, mask, xor);
                    continue;
                }
                Expression::Compare { from, how, value } => {
                    Truth::of(compare(registers.bytes(*from, value.len()), *how, value))
                }
                Expression::Range { from, inverted, first, last } => {
                    let value = registers.known(*from, first.len());
                    Truth::of(value.map(|value| (&value >= first && &value <= last) != *inverted))
                }
                Expression::Lookup { from, set, inverted } => {
                    let (truth, verdict) = self.look_up(rule, *from, set, *inverted, &registers);
                    decided = verdict.or(decided);
                    truth
                }
                Expression::Verdict(verdict) => {
                    decided = Some(verdict.clone());
                    continue;
                }
                Expression::Reject => {
                    decided = Some(Verdict::Drop);
                    continue;
                }
                Expression::Neutral => continue,
                Expression::Unknown(_) => Truth::Either,
            };
            match next {
                Truth::False => return None,
                Truth::Either => truth = Truth::Either,
                Truth::True => {}
            }
        }
        Some((truth, decided?))
    }

    /// NFT_META_*, as far as it is known.
    fn meta(&self, key: u32) -> Vec<Option<u8>> {
        const IIFNAME: u32 = 6;
        const OIFNAME: u32 = 7;
        const NFPROTO: u32 = 15;
        const L4PROTO: u32 = 16;
        const PROTOCOL: u32 = 1;
        let name = || {
            let mut bytes = self.packet.device.as_bytes().to_vec();
            bytes.resize(16, 0);
            bytes.into_iter().map(Some).collect()
        };
        match (key, self.direction) {
            (IIFNAME, Direction::In) | (OIFNAME, Direction::Out) => name(),
            (NFPROTO, _) => vec![Some(if self.packet.v6 { 10 } else { 2 })],
            (L4PROTO, _) => vec![Some(self.packet.protocol)],
            (PROTOCOL, _) => {
                let ethertype: u16 = if self.packet.v6 { 0x86dd } else { 0x0800 };
                ethertype.to_be_bytes().map(Some).to_vec()
            }
            _ => vec![None; 16],
        }
    }

    fn payload(&self, base: u32, offset: usize, len: usize) -> Vec<Option<u8>> {
        const NETWORK: u32 = 1;
        const TRANSPORT: u32 = 2;
        let mut header = vec![None; 64];
        let mut put = |at: usize, bytes: &[u8]| {
            for (slot, byte) in header.iter_mut().skip(at).zip(bytes) {
                *slot = Some(*byte);
            }
        };
        let address = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let Packet { v6, protocol, port, source, destination, .. } = self.packet;
        match (base, v6) {
            (NETWORK, false) => {
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
        header.into_iter().skip(offset).chain(std::iter::repeat(None)).take(len).collect()
    }

    /// Whether a value is in a set, and the verdict that a map has for it.
    fn look_up(
        &self,
        rule: &Rule,
        from: Register,
        name: &str,
        inverted: bool,
        registers: &Registers,
    ) -> (Truth, Option<Verdict>) {
        let is_it =
            |set: &&Set| set.family == rule.family && set.table == rule.table && set.name == name;
        let Some(set) = self.rules.sets.iter().find(is_it) else { return (Truth::Either, None) };
        let len = set.elements.iter().map(|element| element.key.len()).max().unwrap_or(0);
        let Some(value) = registers.known(from, len) else {
            // Of a map that may drop, say so; otherwise nothing is decided.
            let drops = set.elements.iter().any(|e| e.verdict == Some(Verdict::Drop));
            return (Truth::Either, drops.then_some(Verdict::Drop));
        };
        match find(set, &value) {
            Some(element) => (Truth::of(Some(!inverted)), element.verdict.clone()),
            None => (Truth::of(Some(inverted)), None),
        }
    }
}

/// The element of a set that has a value.
fn find<'a>(set: &'a Set, value: &Vec<u8>) -> Option<&'a Element> {
    let catch_all = || set.elements.iter().find(|element| element.is_catch_all);
    let plain = set.elements.iter().filter(|element| !element.is_catch_all);
    if set.is_interval && !set.is_concatenation {
        // The nearest boundary at or below the value tells; where a range ends and another begins, the beginning counts.
        let below = plain.filter(|element| element.key <= *value);
        let nearest = below.max_by_key(|element| (&element.key, !element.ends_interval));
        return nearest.filter(|element| !element.ends_interval).or_else(catch_all);
    }
    let mut plain = plain;
    let holds = |element: &&Element| match &element.key_end {
        None => element.key == *value,
        Some(last) => element.key <= *value && value <= last,
    };
    plain.find(holds).or_else(catch_all)
}

/// NFT_CT_STATE: the first packet of a tunnel belongs to no connection that is known.
fn connection(key: u32) -> Vec<Option<u8>> {
    const STATE: u32 = 0;
    const NEW: u32 = 8;
    match key {
        STATE => NEW.to_ne_bytes().map(Some).to_vec(),
        _ => vec![None; 16],
    }
}

/// Values that expressions keep, byte by byte.
struct Registers([Option<u8>; 64]);

impl Default for Registers {
    fn default() -> Self {
        Self([None; 64])
    }
}

impl Registers {
    /// Words of four bytes are filled up with zeros.
    fn load(&mut self, to: Register, mut bytes: Vec<Option<u8>>) {
        bytes.resize(bytes.len().next_multiple_of(4), Some(0));
        for (slot, byte) in self.0.iter_mut().skip(to.0).zip(bytes) {
            *slot = byte;
        }
    }

    fn bytes(&self, from: Register, len: usize) -> Vec<Option<u8>> {
        self.0.iter().skip(from.0).take(len).copied().collect()
    }

    fn known(&self, from: Register, len: usize) -> Option<Vec<u8>> {
        let bytes: Option<Vec<u8>> = self.bytes(from, len).into_iter().collect();
        bytes.filter(|bytes| bytes.len() == len)
    }

    fn combine(&mut self, from: Register, to: Register, mask: &[u8], xor: &[u8]) {
        let parts = self.bytes(from, mask.len()).into_iter().zip(mask.iter().zip(xor));
        let combined = parts.map(|(byte, (mask, xor))| match byte {
            Some(byte) => Some(byte & mask ^ xor),
            None if *mask == 0 => Some(*xor),
            None => None,
        });
        let combined: Vec<_> = combined.collect();
        self.load(to, combined);
    }
}

/// `None` when it depends on bytes that are not known.
fn compare(bytes: Vec<Option<u8>>, how: Comparison, value: &[u8]) -> Option<bool> {
    let differs = bytes.iter().zip(value).any(|(byte, other)| byte.is_some_and(|b| b != *other));
    let known: Option<Vec<u8>> = bytes.into_iter().collect();
    match (how, known) {
        (Comparison::Equal, None) => differs.then_some(false),
        (Comparison::NotEqual, None) => differs.then_some(true),
        (_, None) => None,
        (how, Some(bytes)) => Some(match (how, bytes.as_slice().cmp(value)) {
            (Comparison::Equal, order) => order.is_eq(),
            (Comparison::NotEqual, order) => order.is_ne(),
            (Comparison::Less, order) => order.is_lt(),
            (Comparison::LessOrEqual, order) => order.is_le(),
            (Comparison::Greater, order) => order.is_gt(),
            (Comparison::GreaterOrEqual, order) => order.is_ge(),
        }),
    }
}
