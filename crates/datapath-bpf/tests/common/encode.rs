//! Entries of the programs' tables, written by hand from what the reference has: beside the provider's own way of making them, so
//! that a test of the programs is one of the programs.

use flow::{Action, Dscp, Field, FlowKey, LogicalPorts, PortNo, Ttl, TunnelSpec, TunnelType};
use std::net::IpAddr;

/// `WEFT_PORT_PEER`, `WEFT_PORT_WATCHED`.
pub const PEER: u32 = 1;
pub const WATCHED: u32 = 2;

const MAX_ACTIONS: usize = 15;
const NO_ENDPOINT: u32 = u32::MAX;
const HEADER_MAX: usize = 72;

/// Bytes of a struct, in the order of the machine.
#[derive(Clone, Default)]
pub struct Bytes(Vec<u8>);

impl Bytes {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn u8(self, value: u8) -> Self {
        self.raw(&[value])
    }

    pub fn u16(self, value: u16) -> Self {
        self.raw(&value.to_ne_bytes())
    }

    pub fn u32(self, value: u32) -> Self {
        self.raw(&value.to_ne_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.raw(&value.to_ne_bytes())
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn padded(mut self, len: usize) -> Self {
        self.0.resize(len, 0);
        self
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

/// A `struct weft_class`.
pub fn class(spec: &TunnelSpec, local: IpAddr, template: &[u8], in_port: PortNo) -> Bytes {
    let is_v6 = template[14] >> 4 == 6;
    let mut header = template.to_vec();
    header[..12].fill(0);
    let remote = if is_v6 { 38..54 } else { 30..34 };
    header[remote].fill(0);
    let mut sum = 0;
    if !is_v6 {
        header[24..26].fill(0);
        let words = header[14..34].as_chunks().0.iter();
        sum = words.map(|&word: &[u8; 2]| u32::from(u16::from_be_bytes(word))).sum::<u32>();
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let tunnel = match spec.tunnel {
        TunnelType::Vxlan => 0,
        TunnelType::Geneve => 1,
        TunnelType::Gre => 2,
        other => panic!("programs do not do {other}"),
    };
    let flags = class_flags(spec, is_v6);
    let ttl = if let Ttl::Fixed(ttl) = spec.ttl { ttl } else { 0 };
    let dscp = if let Dscp::Fixed(dscp) = spec.dscp { dscp << 2 } else { 0 };
    let bytes = Bytes::new().raw(&header).padded(HEADER_MAX);
    let bytes = bytes.u8(template.len() as u8).u8(tunnel).u8(flags).u8(ttl).u8(dscp).u8(0);
    let (port, proto) = match spec.tunnel {
        TunnelType::Gre => (0, 47),
        _ => (spec.port, 17),
    };
    let octets = match local {
        IpAddr::V4(v4) => std::net::Ipv4Addr::octets(&v4).to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let bytes = bytes.raw(&(sum as u16).to_be_bytes()).u32(in_port.0);
    let bytes = bytes.raw(&port.to_be_bytes()).u8(proto).u8(is_v6.into()).raw(&octets);
    bytes.padded(HEADER_MAX + 32)
}

fn class_flags(spec: &TunnelSpec, is_v6: bool) -> u8 {
    let flag = |is, bit: u8| if is { bit } else { 0 };
    flag(is_v6, 1)
        | flag(spec.checksum, 2)
        | flag(spec.ttl == Ttl::Inherit, 4)
        | flag(spec.dscp == Dscp::Inherit, 8)
        | flag(spec.tunnel == TunnelType::Gre && spec.key, 16)
        | flag(spec.clamp_mss, 32)
}

/// A `struct weft_endpoint`.
pub fn endpoint(spec: &TunnelSpec, template: &[u8], class: u16, is_resolved: bool) -> Bytes {
    let is_v6 = template[14] >> 4 == 6;
    let remote = if is_v6 { &template[38..54] } else { &template[30..34] };
    let max_len = usize::from(spec.path_mtu_bytes) + 14 - template.len();
    let known = if is_resolved { 3 } else { 1 };
    let option = if spec.tunnel == TunnelType::Geneve { 4 } else { 0 };
    let of_class = u32::from(class_flags(spec, is_v6)) << 8 | (template.len() as u32) << 16;
    let (max_len, flags) = (max_len as u16, known | option | of_class);
    let bytes = Bytes::new().raw(remote).padded(16).raw(&template[..12]);
    bytes.u16(class).u16(max_len).u32(flags).u32(0).padded(72)
}

/// A `struct weft_tag_link` and its key.
pub fn link(link: flow::TagLink, in_port: PortNo) -> (Bytes, Bytes) {
    let (outer, inner) = link.tags();
    let vlan = |tag: wire::vlan::Tag| tag.tci() & 0xfff;
    let key = Bytes::new().u16(outer.tpid.0).u16(vlan(outer));
    let key = key.u16(inner.map_or(0, |tag| tag.tpid.0)).u16(inner.map_or(0, vlan));
    let flags = u64::from(flow::tun_flags::KEY) << 48;
    (key, Bytes::new().u32(in_port.0).u32(0).u64(link.key().0.into()).u64(flags))
}

struct Encoded {
    kind: u8,
    field: u8,
    has_ports: u8,
    number: u32,
    value: u64,
}

const fn plain(kind: u8, number: u32, value: u64) -> Encoded {
    Encoded { kind, field: 0, has_ports: 0, number, value }
}

/// A `struct weft_action_list` for frames of `key`.
pub fn list(actions: &[Action], key: &FlowKey, max_len: u32) -> Bytes {
    let mut encoded = Vec::new();
    let (mut endpoint, mut grows) = (NO_ENDPOINT, 0_i32);
    for action in actions {
        match action {
            Action::PushVlan(_) => grows += 4,
            Action::PopVlan => grows -= 4,
            Action::Encap { endpoint: id, .. } => endpoint = id.0,
            _ => {}
        }
        encode(action, key, &mut encoded);
    }
    let count = encoded.len();
    assert!(count <= MAX_ACTIONS, "{actions:?}");
    let mut bytes = Bytes::new().u32(count as u32).u32(endpoint).u32(max_len).u32(grows as u32);
    for Encoded { kind, field, has_ports, number, value } in encoded {
        bytes = bytes.u8(kind).u8(field).u8(has_ports).u8(0).u32(number).u64(value);
    }
    bytes.padded(16 + 16 * MAX_ACTIONS)
}

fn encode(action: &Action, key: &FlowKey, out: &mut Vec<Encoded>) {
    let one = match action {
        Action::Output(port) if *port == super::switch::Switch::UPLINK => plain(2, 0, 0),
        Action::Output(port) => plain(1, port.0, 0),
        Action::Encap { endpoint, key } => {
            let ports = key.ports.map(|LogicalPorts { ingress, egress }| {
                ingress.map_or(0, |port| u64::from(port.value())) << 16 | u64::from(egress.value())
            });
            let value = u64::from(key.datapath.0) << 32 | ports.unwrap_or(0);
            Encoded { has_ports: ports.is_some().into(), ..plain(3, endpoint.0, value) }
        }
        Action::Drop(reason) => Encoded { field: *reason as u8, ..plain(4, 0, 0) },
        Action::PushVlan(tag) => {
            let [a, b, c, d] = tag.to_bytes();
            plain(5, 0, u32::from_be_bytes([a, b, c, d]).into())
        }
        Action::PopVlan => plain(6, 0, 0),
        Action::Set { field, value, .. } => return set(*field, *value, key, out),
        other => panic!("programs do not do {other:?}"),
    };
    out.push(one);
}

fn set(field: Field, value: u128, key: &FlowKey, out: &mut Vec<Encoded>) {
    let is_v6 = key.get(Field::EthType) == 0x86dd;
    let mut push = |field, number, value| out.push(Encoded { field, ..plain(7, number, value) });
    let low = value as u64;
    match field {
        Field::EthDst => push(1, 0, low),
        Field::EthSrc => push(2, 0, low),
        Field::Ip4Src => push(3, 0, low),
        Field::Ip4Dst => push(4, 0, low),
        Field::IpTtl => push(if is_v6 { 11 } else { 5 }, 0, low),
        Field::IpDscp => push(if is_v6 { 12 } else { 6 }, 0xfc, low << 2),
        Field::IpEcn => push(if is_v6 { 12 } else { 6 }, 0x03, low),
        Field::Ip6Src | Field::Ip6Dst => {
            let first = if field == Field::Ip6Src { 7 } else { 9 };
            push(first, 0, (value >> 64) as u64);
            push(first + 1, 0, low);
        }
        Field::TpSrc => push(13, 0, low),
        Field::TpDst => push(14, 0, low),
        other => panic!("programs do not set {other}"),
    }
}
