//! Executes datapath actions of weft, and of Open vSwitch, on a flow key.

use flow::{Action, Field, FlowKey};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::MacAddr;

/// A copy of the packet that is sent: the name of the port, and the headers.
#[derive(Clone, PartialEq, Eq)]
pub struct Sent {
    port: String,
    headers: Vec<(Field, u128)>,
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.port)?;
        let mut headers = self.headers.iter().filter(|(_, value)| *value != 0);
        headers.try_for_each(|(field, value)| write!(f, " {field}={value:x}"))
    }
}

const TAGS: [(Field, Field); 2] =
    [(Field::VlanTpid, Field::VlanTci), (Field::VlanInnerTpid, Field::VlanInnerTci)];
const TAGGED: u128 = 0x1000;

impl Sent {
    fn new(port: impl Into<String>, key: &FlowKey) -> Self {
        let headers = Field::ALL.iter().filter(|field| field.is_header());
        Self { port: port.into(), headers: headers.map(|&field| (field, key.get(field))).collect() }
    }
}

fn push(key: &mut FlowKey, tpid: u128, tci: u128) {
    let [outer, inner] = TAGS;
    key.set(inner.0, key.get(outer.0));
    key.set(inner.1, key.get(outer.1));
    key.set(outer.0, tpid);
    key.set(outer.1, tci | TAGGED);
}

fn pop(key: &mut FlowKey) {
    let [outer, inner] = TAGS;
    key.set(outer.0, key.get(inner.0));
    key.set(outer.1, key.get(inner.1));
    key.set(inner.0, 0);
    key.set(inner.1, 0);
}

/// The copies that weft's actions send.
pub fn of_ours(key: &FlowKey, actions: &[Action]) -> Vec<Sent> {
    let (mut key, mut sent) = (key.clone(), Vec::new());
    for action in actions {
        match action {
            Action::Output(port) => sent.push(Sent::new(format!("p{port}"), &key)),
            Action::Controller => sent.push(Sent::new("controller", &key)),
            Action::Set { field, value, mask } => {
                key.set(*field, key.get(*field) & !mask | value);
            }
            Action::PushVlan(tag) => push(&mut key, tag.tpid.0.into(), tag.tci().into()),
            Action::PopVlan => pop(&mut key),
            Action::Clone(actions) => sent.extend(of_ours(&key, actions)),
            Action::Drop(_) => break,
            other => panic!("{other:?}: these programs do not cause this action"),
        }
    }
    sent
}

/// The copies that the actions of Open vSwitch's datapath send, except to its internal port.
pub fn of_theirs(key: &FlowKey, actions: &str) -> Vec<Sent> {
    let (mut key, mut sent) = (key.clone(), Vec::new());
    for action in split(actions) {
        let (name, inside) = match action.split_once('(') {
            Some((name, inside)) => (name, inside.strip_suffix(')').unwrap_or(inside)),
            None => (action, ""),
        };
        match name {
            "drop" | "br0" => {}
            "p1" | "p2" | "p3" | "p4" => sent.push(Sent::new(name, &key)),
            "userspace" if inside.contains("controller") => {
                sent.push(Sent::new("controller", &key))
            }
            "set" => set(&mut key, inside),
            "push_vlan" => {
                let part = |name: &str, default| {
                    let found = split(inside).find_map(|part| part.strip_prefix(name));
                    found.map_or(default, |value| number(value.trim_start_matches('=')))
                };
                push(&mut key, part("tpid", 0x8100), part("vid", 0) | part("pcp", 0) << 13);
            }
            "pop_vlan" => pop(&mut key),
            "clone" => sent.extend(of_theirs(&key, inside)),
            other => panic!("{other} in {actions}: these programs do not cause this action"),
        }
    }
    sent
}

/// The parts between commas outside parentheses.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .filter(|piece| !piece.is_empty())
}

fn number(text: &str) -> u128 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u128::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{text} is no number"))
}

/// A number or an address.
fn value(text: &str) -> u128 {
    if let Ok(mac) = text.parse::<MacAddr>() {
        return mac.0.iter().fold(0, |bits, &byte| bits << 8 | u128::from(byte));
    }
    if let Ok(ip) = text.parse::<Ipv4Addr>() {
        return ip.to_bits().into();
    }
    match text.parse::<Ipv6Addr>() {
        Ok(ip) => ip.to_bits(),
        Err(_) => number(text),
    }
}

/// `ipv4(src=10.0.0.1,ttl=3)`.
fn set(key: &mut FlowKey, inside: &str) {
    let (header, parts) = inside.split_once('(').unwrap_or_else(|| panic!("set({inside})"));
    for part in split(parts.strip_suffix(')').unwrap_or(parts)) {
        let (name, text) = part.split_once('=').unwrap_or_else(|| panic!("set({inside})"));
        let (text, mask) = match text.split_once('/') {
            Some((text, mask)) => (text, value(mask)),
            None => (text, u128::MAX),
        };
        let value = value(text);
        let mut write = |field: Field, value: u128, mask: u128| {
            key.set(field, key.get(field) & !mask | value & mask);
        };
        match (header, name) {
            ("eth", "src") => write(Field::EthSrc, value, mask),
            ("eth", "dst") => write(Field::EthDst, value, mask),
            ("ipv4", "src") => write(Field::Ip4Src, value, mask),
            ("ipv4", "dst") => write(Field::Ip4Dst, value, mask),
            ("ipv6", "src") => write(Field::Ip6Src, value, mask),
            ("ipv6", "dst") => write(Field::Ip6Dst, value, mask),
            ("ipv6", "label") => write(Field::Ip6Label, value, mask),
            ("ipv4", "tos") | ("ipv6", "tclass") => {
                write(Field::IpDscp, value >> 2, mask >> 2);
                write(Field::IpEcn, value & 3, mask & 3);
            }
            ("ipv4", "ttl") | ("ipv6", "hlimit") => write(Field::IpTtl, value, mask),
            ("tcp" | "udp" | "sctp", "src") => write(Field::TpSrc, value, mask),
            ("tcp" | "udp" | "sctp", "dst") => write(Field::TpDst, value, mask),
            ("icmp" | "icmpv6", "type") => write(Field::IcmpType, value, mask),
            ("icmp" | "icmpv6", "code") => write(Field::IcmpCode, value, mask),
            ("arp", "sip") => write(Field::ArpSpa, value, mask),
            ("arp", "tip") => write(Field::ArpTpa, value, mask),
            ("arp", "op") => write(Field::ArpOp, value, mask),
            ("arp", "sha") => write(Field::ArpSha, value, mask),
            ("arp", "tha") => write(Field::ArpTha, value, mask),
            ("nd", "target") => write(Field::NdTarget, value, mask),
            ("nd", "sll") => write(Field::NdSll, value, mask),
            ("nd", "tll") => write(Field::NdTll, value, mask),
            _ => panic!("set({inside}): these programs do not cause this action"),
        }
    }
}
