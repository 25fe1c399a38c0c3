//! Encodes map entries of the programs independently of the daemon's code, so that tests of the
//! programs do not depend on that code.

use super::abi;
use flow::{Action, Dscp, Field, FlowKey, LogicalPorts, PortNo, Ttl, TunnelSpec, TunnelType};
use std::net::IpAddr;

const HEADER_MAX: usize = abi::WEFT_HEADER_MAX as usize;

/// The bytes of a C structure in native byte order.
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
    let is_over_gre = matches!(spec.tunnel, TunnelType::Gre | TunnelType::Nvgre);
    let carrier_bit = if is_over_gre { abi::WEFT_OVER_GRE } else { 0 };
    let tunnel = spec.tunnel as u8 | carrier_bit as u8;
    let flags = class_flags(spec, is_v6);
    let ttl = if let Ttl::Fixed(ttl) = spec.ttl { ttl } else { 0 };
    let dscp = if let Dscp::Fixed(dscp) = spec.dscp { dscp << 2 } else { 0 };
    let bytes = Bytes::new().raw(&header).padded(HEADER_MAX);
    let bytes = bytes.u8(template.len() as u8).u8(tunnel).u8(flags).u8(ttl).u8(dscp).u8(0);
    let bytes = bytes.raw(&(sum as u16).to_be_bytes()).u32(in_port.0);
    let bytes = bytes.u32(carrier(spec, is_v6)).raw(&octets(local));
    bytes.padded(HEADER_MAX + 32)
}

fn carrier(spec: &TunnelSpec, is_v6: bool) -> u32 {
    let (port, proto) = match spec.tunnel {
        TunnelType::Gre | TunnelType::Nvgre => (0, 47),
        _ => (spec.port, 17),
    };
    u32::from(is_v6) << abi::WEFT_CARRIER_IP6_SHIFT
        | proto << abi::WEFT_CARRIER_PROTO_SHIFT
        | u32::from(port.to_be())
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => std::net::Ipv4Addr::octets(&v4).to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// A `struct weft_local`.
pub fn local(spec: &TunnelSpec, local: IpAddr) -> Bytes {
    let carrier = carrier(spec, local.is_ipv6());
    Bytes::new().raw(&octets(local)).padded(16).u32(carrier)
}

fn class_flags(spec: &TunnelSpec, is_v6: bool) -> u8 {
    let flag = |is, bit: u32| if is { bit as u8 } else { 0 };
    flag(is_v6, abi::WEFT_CLASS_IP6)
        | flag(spec.checksum, abi::WEFT_CLASS_CHECKSUM)
        | flag(spec.ttl == Ttl::Inherit, abi::WEFT_CLASS_TTL_INHERIT)
        | flag(spec.dscp == Dscp::Inherit, abi::WEFT_CLASS_DSCP_INHERIT)
        | flag(spec.tunnel == TunnelType::Gre && spec.key, abi::WEFT_CLASS_KEY)
        | flag(spec.clamp_mss, abi::WEFT_CLASS_CLAMP_MSS)
}

/// A `struct weft_endpoint`.
pub fn endpoint(spec: &TunnelSpec, template: &[u8], class: u16, is_resolved: bool) -> Bytes {
    let is_v6 = template[14] >> 4 == 6;
    let remote = if is_v6 { &template[38..54] } else { &template[30..34] };
    let max_len = usize::from(spec.path_mtu_bytes) + 14 - template.len();
    let resolved = if is_resolved { abi::WEFT_ENDPOINT_RESOLVED } else { 0 };
    let known = abi::WEFT_ENDPOINT_PRESENT | resolved;
    let option = if spec.tunnel == TunnelType::Geneve { abi::WEFT_ENDPOINT_OPTION } else { 0 };
    let of_class = u32::from(class_flags(spec, is_v6)) << abi::WEFT_ENDPOINT_CLASS_SHIFT
        | (template.len() as u32) << abi::WEFT_ENDPOINT_LEN_SHIFT;
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
    let flags = 1_u64 << abi::WEFT_TUN_FLAG_KEY_SHIFT;
    (key, Bytes::new().u32(in_port.0).u32(0).u64(link.key().0.into()).u64(flags))
}

struct Encoded {
    kind: u8,
    field: u8,
    has_ports: u8,
    number: u32,
    value: u64,
}

const fn plain(kind: u32, number: u32, value: u64) -> Encoded {
    Encoded { kind: kind as u8, field: 0, has_ports: 0, number, value }
}

/// A `struct weft_action_list` for frames of `key`.
pub fn list(actions: &[Action], key: &FlowKey, max_len: u32) -> Bytes {
    let mut encoded = Vec::new();
    let (mut endpoint, mut grows) = (abi::WEFT_NO_ENDPOINT, 0_i32);
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
    assert!(count <= abi::WEFT_MAX_ACTIONS as usize, "{actions:?}");
    let mut bytes = Bytes::new().u32(count as u32).u32(endpoint).u32(max_len).u32(grows as u32);
    for Encoded { kind, field, has_ports, number, value } in encoded {
        bytes = bytes.u8(kind).u8(field).u8(has_ports).u8(0).u32(number).u64(value);
    }
    bytes.padded(16 + 16 * abi::WEFT_MAX_ACTIONS as usize)
}

fn encode(action: &Action, key: &FlowKey, out: &mut Vec<Encoded>) {
    let one = match action {
        Action::Output(port) if *port == super::switch::Switch::UPLINK => {
            plain(abi::WEFT_ACTION_UPLINK, 0, 0)
        }
        Action::Output(port) => plain(abi::WEFT_ACTION_OUTPUT, port.0, 0),
        Action::Encap { endpoint, key } => {
            let ports = key.ports.map(|LogicalPorts { ingress, egress }| {
                ingress.map_or(0, |port| u64::from(port.value())) << 16 | u64::from(egress.value())
            });
            let value = u64::from(key.datapath.0) << abi::WEFT_ENCAP_KEY_SHIFT | ports.unwrap_or(0);
            Encoded {
                has_ports: ports.is_some().into(),
                ..plain(abi::WEFT_ACTION_ENCAP, endpoint.0, value)
            }
        }
        Action::Drop(reason) => {
            Encoded { field: *reason as u8, ..plain(abi::WEFT_ACTION_DROP, 0, 0) }
        }
        Action::PushVlan(tag) => {
            let [a, b, c, d] = tag.to_bytes();
            plain(abi::WEFT_ACTION_PUSH_VLAN, 0, u32::from_be_bytes([a, b, c, d]).into())
        }
        Action::PopVlan => plain(abi::WEFT_ACTION_POP_VLAN, 0, 0),
        Action::Set { field, value, .. } => return set(*field, *value, key, out),
        other => panic!("programs do not do {other:?}"),
    };
    out.push(one);
}

fn set(field: Field, value: u128, key: &FlowKey, out: &mut Vec<Encoded>) {
    let is_v6 = key.get(Field::EthType) == 0x86dd;
    let mut push = |field: u32, number, value| {
        out.push(Encoded { field: field as u8, ..plain(abi::WEFT_ACTION_SET, number, value) });
    };
    let low = value as u64;
    let (ttl, tos) = if is_v6 {
        (abi::WEFT_SET_IP6_HOP_LIMIT, abi::WEFT_SET_IP6_TOS)
    } else {
        (abi::WEFT_SET_IP4_TTL, abi::WEFT_SET_IP4_TOS)
    };
    match field {
        Field::EthDst => push(abi::WEFT_SET_ETH_DST, 0, low),
        Field::EthSrc => push(abi::WEFT_SET_ETH_SRC, 0, low),
        Field::Ip4Src => push(abi::WEFT_SET_IP4_SRC, 0, low),
        Field::Ip4Dst => push(abi::WEFT_SET_IP4_DST, 0, low),
        Field::IpTtl => push(ttl, 0, low),
        Field::IpDscp => push(tos, 0xfc, low << 2),
        Field::IpEcn => push(tos, 0x03, low),
        Field::Ip6Src | Field::Ip6Dst => {
            let [high_field, low_field] = if field == Field::Ip6Src {
                [abi::WEFT_SET_IP6_SRC_HIGH, abi::WEFT_SET_IP6_SRC_LOW]
            } else {
                [abi::WEFT_SET_IP6_DST_HIGH, abi::WEFT_SET_IP6_DST_LOW]
            };
            push(high_field, 0, (value >> 64) as u64);
            push(low_field, 0, low);
        }
        Field::TpSrc => push(abi::WEFT_SET_TP_SRC, 0, low),
        Field::TpDst => push(abi::WEFT_SET_TP_DST, 0, low),
        Field::ArpOp => push(abi::WEFT_SET_ARP_OP, 0, low),
        Field::ArpSha => push(abi::WEFT_SET_ARP_SHA, 0, low),
        Field::ArpSpa => push(abi::WEFT_SET_ARP_SPA, 0, low),
        Field::ArpTha => push(abi::WEFT_SET_ARP_THA, 0, low),
        Field::ArpTpa => push(abi::WEFT_SET_ARP_TPA, 0, low),
        other => panic!("programs do not set {other}"),
    }
}
