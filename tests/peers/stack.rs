//! A frame as a list of headers of the crate `wire`. It is parsed from bytes, described as JSON,
//! and emitted to bytes.

use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use wire::icmp::nd::NdPrefix;
use wire::ipv6::FragmentHeader;
use wire::tunnel::{
    GeneveOption, GenevePacket, GeneveRepr, GrePacket, GreRepr, NvgreRepr, VxlanPacket, VxlanRepr,
    geneve, vxlan,
};
use wire::udp::ZeroChecksum;
use wire::vlan::{Tag, Tags};
use wire::{
    ArpOperation, ArpPacket, ArpRepr, EtherType, EthernetPacket, EthernetRepr, Fragment,
    Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr,
    MacAddr, NdOption, NdOptions, NdRepr, ParseError, Protocol, TcpFlags, TcpOption, TcpPacket,
    TcpRepr, UdpPacket, UdpRepr, Vni, ethernet, ipv6,
};

/// The value of all buffer bytes before a header is emitted, so that bytes which are not set can be
/// detected.
const UNSET: u8 = 0xa5;

/// One header, or the payload.
#[derive(Clone, Copy, Debug)]
pub enum Layer<'a> {
    Ethernet(EthernetRepr),
    /// A tag and the EtherType that follows it.
    Tag(Tag, EtherType),
    Arp(ArpRepr),
    Ipv4(Ipv4Repr<'a>),
    Ipv6 {
        repr: Ipv6Repr,
        /// The bytes of all extension headers.
        extensions: &'a [u8],
        protocol: Protocol,
        fragment: Option<FragmentHeader>,
    },
    Icmpv4(Icmpv4Repr<'a>),
    Icmpv6(Icmpv6Repr<'a>),
    Tcp(TcpRepr<'a>),
    Udp {
        repr: UdpRepr,
        has_checksum: bool,
    },
    Vxlan(VxlanRepr),
    Geneve {
        repr: GeneveRepr<'a>,
        has_critical: bool,
    },
    /// The header, and its interpretation as NVGRE if that is possible.
    Gre(GreRepr, Option<NvgreRepr>),
    Payload(&'a [u8]),
}

/// The headers of a frame.
#[derive(Clone, Debug, Default)]
pub struct Stack<'a> {
    /// The layers, outermost first.
    pub layers: Vec<Layer<'a>>,
    /// Number of wrong TCP and UDP checksums. Other wrong checksums are parse errors.
    pub wrong_checksums: usize,
}

/// Data of the IP header that precedes a transport header.
#[derive(Clone, Copy)]
struct Around {
    pseudo: Sum,
    /// The hop limit; only IPv6 headers need it.
    hop_limit: Option<u8>,
}

impl<'a> Stack<'a> {
    /// Parses a frame down to the innermost header.
    ///
    /// # Errors
    /// The error of the first invalid header.
    pub fn read(frame: &'a [u8]) -> Result<Self, ParseError> {
        let mut stack = Self::default();
        stack.ethernet(frame)?;
        Ok(stack)
    }

    fn ethernet(&mut self, frame: &'a [u8]) -> Result<(), ParseError> {
        let packet = EthernetPacket::new_checked(frame)?;
        self.layers.push(Layer::Ethernet(EthernetRepr::parse(&packet)));
        let tags = Tags::parse(frame)?;
        if let Some(outer) = tags.outer() {
            let next = tags.inner().map_or(tags.ethertype(), |inner| inner.tpid);
            self.layers.push(Layer::Tag(outer, next));
        }
        self.layers.extend(tags.inner().map(|inner| Layer::Tag(inner, tags.ethertype())));
        self.network(tags.ethertype(), &frame[tags.payload_offset()..])
    }

    fn network(&mut self, ethertype: EtherType, bytes: &'a [u8]) -> Result<(), ParseError> {
        match ethertype {
            EtherType::IPV4 => self.ipv4(bytes),
            EtherType::IPV6 => self.ipv6(bytes),
            EtherType::ARP => {
                let repr = ArpRepr::parse(&ArpPacket::new_checked(bytes)?)?;
                self.layers.push(Layer::Arp(repr));
                Ok(())
            }
            EtherType::TEB => self.ethernet(bytes),
            _ => self.payload(bytes),
        }
    }

    fn payload(&mut self, bytes: &'a [u8]) -> Result<(), ParseError> {
        if !bytes.is_empty() {
            self.layers.push(Layer::Payload(bytes));
        }
        Ok(())
    }

    fn ipv4(&mut self, bytes: &'a [u8]) -> Result<(), ParseError> {
        let packet = Ipv4Packet::new_checked(bytes)?;
        let repr = Ipv4Repr::parse(&packet)?;
        self.layers.push(Layer::Ipv4(repr));
        let around = Around { pseudo: packet.pseudo_header(), hop_limit: None };
        match packet.fragment() {
            Fragment::Whole => self.transport(repr.protocol, packet.payload(), around),
            Fragment::First | Fragment::Later => self.payload(packet.payload()),
        }
    }

    fn ipv6(&mut self, bytes: &'a [u8]) -> Result<(), ParseError> {
        let packet = Ipv6Packet::new_checked(bytes)?;
        let repr = Ipv6Repr::parse(&packet)?;
        let upper = packet.upper()?;
        self.layers.push(Layer::Ipv6 {
            repr,
            extensions: &bytes[ipv6::HEADER_LEN..upper.offset],
            protocol: upper.protocol,
            fragment: upper.fragment,
        });
        let body = &bytes[upper.offset..packet.total_len()];
        let pseudo = pseudo_v6(repr.src, repr.dst, upper.protocol, body.len() as u32);
        let around = Around { pseudo, hop_limit: Some(repr.hop_limit) };
        match upper.fragmentation() {
            Fragment::Whole => self.transport(upper.protocol, body, around),
            Fragment::First | Fragment::Later => self.payload(body),
        }
    }

    fn transport(
        &mut self,
        protocol: Protocol,
        bytes: &'a [u8],
        around: Around,
    ) -> Result<(), ParseError> {
        match (protocol, around.hop_limit) {
            (Protocol::TCP, _) => {
                let packet = TcpPacket::new_checked(bytes)?;
                self.wrong_checksums += usize::from(!packet.verify_checksum(around.pseudo));
                self.layers.push(Layer::Tcp(TcpRepr::parse(&packet)?));
                self.payload(packet.payload())
            }
            (Protocol::UDP, hop_limit) => self.udp(bytes, around.pseudo, hop_limit.is_some()),
            (Protocol::ICMP, None) => {
                let repr = Icmpv4Repr::parse(&Icmpv4Packet::new_checked(bytes)?)?;
                self.layers.push(Layer::Icmpv4(repr));
                Ok(())
            }
            (Protocol::ICMPV6, Some(hop_limit)) => {
                let packet = Icmpv6Packet::new_checked(bytes)?;
                let repr = Icmpv6Repr::parse(&packet, around.pseudo, hop_limit)?;
                self.layers.push(Layer::Icmpv6(repr));
                Ok(())
            }
            (Protocol::GRE, _) => {
                let packet = GrePacket::new_checked(bytes)?;
                let repr = GreRepr::parse(&packet)?;
                self.layers.push(Layer::Gre(repr, NvgreRepr::parse(&packet).ok()));
                self.network(repr.protocol, packet.payload())
            }
            _ => self.payload(bytes),
        }
    }

    fn udp(&mut self, bytes: &'a [u8], pseudo: Sum, is_v6: bool) -> Result<(), ParseError> {
        let packet = UdpPacket::new_checked(bytes)?;
        let zero = if is_v6 { ZeroChecksum::Refuse } else { ZeroChecksum::Accept };
        self.wrong_checksums += usize::from(!packet.verify_checksum(pseudo, zero));
        let (repr, has_checksum) = (UdpRepr::parse(&packet), packet.checksum() != 0);
        self.layers.push(Layer::Udp { repr, has_checksum });
        match repr.dst_port {
            vxlan::PORT => {
                let tunnel = VxlanPacket::new_checked(packet.payload())?;
                self.layers.push(Layer::Vxlan(VxlanRepr::parse(&tunnel)?));
                self.ethernet(tunnel.payload())
            }
            geneve::PORT => {
                let tunnel = GenevePacket::new_checked(packet.payload())?;
                let repr = GeneveRepr::parse(&tunnel)?;
                self.layers.push(Layer::Geneve { repr, has_critical: tunnel.has_critical() });
                self.network(repr.protocol, tunnel.payload())
            }
            _ => self.payload(packet.payload()),
        }
    }

    /// A description of the fields, with the same names as in `frames.py`.
    pub fn describe(&self) -> Value {
        self.layers.iter().map(describe).collect()
    }

    /// Emits the frame with the lengths of its headers and computed checksums.
    pub fn emit(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for (index, layer) in self.layers.iter().enumerate().rev() {
            body = emit(layer, &self.layers[..index], &body);
        }
        body
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes all");
        text
    })
}

fn describe(layer: &Layer<'_>) -> Value {
    match *layer {
        Layer::Ethernet(EthernetRepr { dst, src, ethertype }) => {
            let [dst, src] = [dst, src].map(|mac| mac.to_string());
            json!({"layer": "ethernet", "dst": dst, "src": src, "type": ethertype.0})
        }
        Layer::Tag(Tag { tpid, pcp, dei, vid }, ethertype) => {
            let (tpid, next) = (tpid.0, ethertype.0);
            json!({"layer": "tag", "tpid": tpid, "pcp": pcp, "dei": dei, "vid": vid, "type": next})
        }
        Layer::Arp(arp) => json!({
            "layer": "arp",
            "operation": match arp.operation {
                ArpOperation::Request => 1,
                ArpOperation::Reply => 2,
                ArpOperation::Other(other) => other,
            },
            "sender_mac": arp.sender_mac.to_string(), "sender_ip": arp.sender_ip,
            "target_mac": arp.target_mac.to_string(), "target_ip": arp.target_ip,
        }),
        Layer::Ipv4(ip) => json!({
            "layer": "ipv4", "tos": ip.tos, "payload_len": ip.payload_len, "ident": ip.ident,
            "dont_fragment": ip.dont_fragment, "more_fragments": ip.more_fragments,
            "offset": ip.fragment_offset_bytes, "ttl": ip.ttl, "protocol": ip.protocol.0,
            "src": ip.src, "dst": ip.dst, "options": hex(ip.options.as_bytes()),
        }),
        Layer::Ipv6 { repr: ip, extensions, protocol, fragment } => json!({
            "layer": "ipv6", "traffic_class": ip.traffic_class, "flow_label": ip.flow_label,
            "payload_len": ip.payload_len, "next_header": ip.next_header.0,
            "hop_limit": ip.hop_limit, "src": ip.src, "dst": ip.dst,
            "extensions": hex(extensions), "protocol": protocol.0,
            "fragment": fragment.map(|fragment| json!({
                "offset": fragment.offset_bytes, "more": fragment.more, "ident": fragment.ident,
            })),
        }),
        Layer::Icmpv4(message) => icmpv4(message),
        Layer::Icmpv6(message) => icmpv6(message),
        Layer::Tcp(tcp) => json!({
            "layer": "tcp", "src_port": tcp.src_port, "dst_port": tcp.dst_port, "seq": tcp.seq,
            "ack": tcp.ack, "flags": tcp.flags.0, "window": tcp.window, "urgent": tcp.urgent,
            "options": tcp.options.iter().map(tcp_option).collect::<Value>(),
        }),
        Layer::Udp { repr, has_checksum } => json!({
            "layer": "udp", "src_port": repr.src_port, "dst_port": repr.dst_port,
            "length": repr.length, "has_checksum": has_checksum,
        }),
        Layer::Vxlan(vxlan) => json!({"layer": "vxlan", "vni": vxlan.vni.value()}),
        Layer::Geneve { repr, has_critical } => json!({
            "layer": "geneve", "control": repr.control, "critical": has_critical,
            "protocol": repr.protocol.0, "vni": repr.vni.value(),
            "options": repr.options.iter().map(geneve_option).collect::<Value>(),
        }),
        Layer::Gre(gre, nvgre) => json!({
            "layer": "gre", "protocol": gre.protocol.0, "checksum": gre.checksum, "key": gre.key,
            "sequence": gre.sequence,
            "nvgre": nvgre.map(|nvgre| json!({
                "vsid": nvgre.vsid.value(), "flow_id": nvgre.flow_id,
            })),
        }),
        Layer::Payload(bytes) => json!({"layer": "payload", "bytes": hex(bytes)}),
    }
}

fn tcp_option(option: TcpOption<'_>) -> Value {
    let (kind, data) = match option {
        TcpOption::NoOperation => (1, Vec::new()),
        TcpOption::MaxSegmentSize(size) => (2, size.to_be_bytes().to_vec()),
        TcpOption::WindowScale(shift) => (3, vec![shift]),
        TcpOption::SackPermitted => (4, Vec::new()),
        TcpOption::Timestamps { value, echo_reply } => {
            (8, [value.to_be_bytes(), echo_reply.to_be_bytes()].concat())
        }
        TcpOption::Unknown { kind, data } => (kind, data.to_vec()),
    };
    json!({"kind": kind, "data": hex(&data)})
}

fn geneve_option(option: GeneveOption<'_>) -> Value {
    match option {
        GeneveOption::LogicalPorts(ports) => {
            json!({"ingress": ports.ingress, "egress": ports.egress})
        }
        GeneveOption::Unknown { class, kind, data } => {
            json!({"class": class, "type": kind, "data": hex(data)})
        }
    }
}

fn icmpv4(message: Icmpv4Repr<'_>) -> Value {
    let mut value = match message {
        Icmpv4Repr::EchoRequest { ident, seq, data } => {
            json!({"type": 8, "code": 0, "ident": ident, "seq": seq, "data": hex(data)})
        }
        Icmpv4Repr::EchoReply { ident, seq, data } => {
            json!({"type": 0, "code": 0, "ident": ident, "seq": seq, "data": hex(data)})
        }
        Icmpv4Repr::FragmentationNeeded { mtu, quoted } => {
            json!({"type": 3, "code": 4, "mtu": mtu, "data": hex(quoted)})
        }
        Icmpv4Repr::Unreachable { code, quoted } => {
            json!({"type": 3, "code": code, "data": hex(quoted)})
        }
        Icmpv4Repr::TimeExceeded { code, quoted } => {
            json!({"type": 11, "code": code, "data": hex(quoted)})
        }
        Icmpv4Repr::Other { kind, code, rest, data } => {
            json!({"type": kind, "code": code, "rest": hex(&rest), "data": hex(data)})
        }
    };
    value["layer"] = "icmpv4".into();
    value
}

fn icmpv6(message: Icmpv6Repr<'_>) -> Value {
    let mut value = match message {
        Icmpv6Repr::Unreachable { code, quoted } => {
            json!({"type": 1, "code": code, "data": hex(quoted)})
        }
        Icmpv6Repr::PacketTooBig { mtu, quoted } => {
            json!({"type": 2, "code": 0, "mtu": mtu, "data": hex(quoted)})
        }
        Icmpv6Repr::TimeExceeded { code, quoted } => {
            json!({"type": 3, "code": code, "data": hex(quoted)})
        }
        Icmpv6Repr::ParameterProblem { code, pointer, quoted } => {
            json!({"type": 4, "code": code, "pointer": pointer, "data": hex(quoted)})
        }
        Icmpv6Repr::EchoRequest { ident, seq, data } => {
            json!({"type": 128, "code": 0, "ident": ident, "seq": seq, "data": hex(data)})
        }
        Icmpv6Repr::EchoReply { ident, seq, data } => {
            json!({"type": 129, "code": 0, "ident": ident, "seq": seq, "data": hex(data)})
        }
        Icmpv6Repr::Nd(nd) => neighbour_discovery(nd),
        Icmpv6Repr::Other { kind, code, rest, data } => {
            json!({"type": kind, "code": code, "rest": hex(&rest), "data": hex(data)})
        }
    };
    value["layer"] = "icmpv6".into();
    value
}

fn neighbour_discovery(message: NdRepr<'_>) -> Value {
    let mut value = match message {
        NdRepr::RouterSolicitation { .. } => json!({"type": 133}),
        NdRepr::RouterAdvertisement {
            hop_limit,
            flags,
            lifetime_s,
            reachable_ms,
            retransmit_ms,
            ..
        } => json!({
            "type": 134, "hop_limit": hop_limit, "flags": flags, "lifetime": lifetime_s,
            "reachable": reachable_ms, "retransmit": retransmit_ms,
        }),
        NdRepr::NeighborSolicitation { target, .. } => json!({"type": 135, "target": target}),
        NdRepr::NeighborAdvertisement { router, solicited, replace, target, .. } => json!({
            "type": 136, "target": target, "router": router, "solicited": solicited,
            "replace": replace,
        }),
        NdRepr::Redirect { target, destination, .. } => {
            json!({"type": 137, "target": target, "destination": destination})
        }
    };
    value["code"] = 0.into();
    value["options"] = nd_options(message.options());
    value
}

fn nd_options(options: NdOptions<'_>) -> Value {
    let one = |option| match option {
        NdOption::SourceLinkLayer(mac) => json!({"type": 1, "mac": mac.to_string()}),
        NdOption::TargetLinkLayer(mac) => json!({"type": 2, "mac": mac.to_string()}),
        NdOption::Prefix(NdPrefix {
            len,
            on_link,
            autonomous,
            valid_lifetime_s,
            preferred_lifetime_s,
            prefix,
        }) => json!({
            "type": 3, "len": len, "on_link": on_link, "autonomous": autonomous,
            "valid": valid_lifetime_s, "preferred": preferred_lifetime_s, "prefix": prefix,
        }),
        NdOption::Mtu(mtu) => json!({"type": 5, "mtu": mtu}),
        NdOption::Unknown { kind, data } => json!({"type": kind, "data": hex(data)}),
    };
    options.iter().map(one).collect()
}

/// The bytes of a header, followed by `body`.
fn headed(header_len: usize, body: &[u8], emit: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![UNSET; header_len];
    bytes.extend(body);
    emit(&mut bytes);
    bytes
}

fn emit(layer: &Layer<'_>, outside: &[Layer<'_>], body: &[u8]) -> Vec<u8> {
    let len = body.len();
    match *layer {
        Layer::Ethernet(repr) => headed(ethernet::HEADER_LEN, body, |bytes| {
            repr.emit(&mut EthernetPacket::new_unchecked(bytes));
        }),
        Layer::Tag(tag, ethertype) => {
            [&tag.to_bytes()[2..], &ethertype.0.to_be_bytes(), body].concat()
        }
        Layer::Arp(repr) => headed(repr.header_len(), body, |bytes| {
            repr.emit(&mut ArpPacket::new_unchecked(bytes));
        }),
        Layer::Ipv4(repr) => headed(repr.header_len(), body, |bytes| {
            repr.emit(&mut Ipv4Packet::new_unchecked(bytes));
        }),
        Layer::Ipv6 { repr, extensions, .. } => {
            headed(ipv6::HEADER_LEN, &[extensions, body].concat(), |bytes| {
                repr.emit(&mut Ipv6Packet::new_unchecked(bytes));
            })
        }
        Layer::Icmpv4(repr) => headed(repr.message_len(), body, |bytes| {
            repr.emit(&mut Icmpv4Packet::new_unchecked(bytes));
        }),
        Layer::Icmpv6(repr) => headed(repr.message_len(), body, |bytes| {
            let pseudo = pseudo_header(outside, bytes.len());
            repr.emit(&mut Icmpv6Packet::new_unchecked(bytes), pseudo);
        }),
        Layer::Tcp(repr) => headed(repr.header_len(), body, |bytes| {
            let pseudo = pseudo_header(outside, bytes.len());
            let mut packet = TcpPacket::new_unchecked(bytes);
            repr.emit(&mut packet);
            packet.fill_checksum(pseudo);
        }),
        Layer::Udp { repr, has_checksum } => headed(repr.header_len(), body, |bytes| {
            let pseudo = pseudo_header(outside, bytes.len());
            let mut packet = UdpPacket::new_unchecked(bytes);
            repr.emit(&mut packet);
            if has_checksum {
                packet.fill_checksum(pseudo);
            }
        }),
        Layer::Vxlan(repr) => headed(repr.header_len(), body, |bytes| {
            repr.emit(&mut VxlanPacket::new_unchecked(bytes));
        }),
        Layer::Geneve { repr, .. } => headed(repr.header_len(), body, |bytes| {
            repr.emit(&mut GenevePacket::new_unchecked(bytes));
        }),
        Layer::Gre(repr, nvgre) => {
            let bytes = headed(repr.header_len(), body, |bytes| {
                let mut packet = GrePacket::new_unchecked(bytes);
                repr.emit(&mut packet);
                packet.fill_checksum();
            });
            if let Some(nvgre) = nvgre {
                let other = headed(nvgre.header_len(), body, |bytes| {
                    nvgre.emit(&mut GrePacket::new_unchecked(bytes));
                });
                assert_eq!(bytes, other, "{nvgre:?}");
            }
            bytes
        }
        Layer::Payload(payload) => {
            assert_eq!(len, 0, "nothing is behind the payload");
            payload.to_vec()
        }
    }
}

/// The pseudo header sum for a transport packet of `len` bytes in the innermost IP packet of
/// `outside`.
fn pseudo_header(outside: &[Layer<'_>], len: usize) -> Sum {
    let around = outside.iter().rev().find_map(|layer| match *layer {
        Layer::Ipv4(ip) => Some(pseudo_v4(ip.src, ip.dst, ip.protocol, len as u16)),
        Layer::Ipv6 { repr, protocol, .. } => {
            Some(pseudo_v6(repr.src, repr.dst, protocol, len as u32))
        }
        _ => None,
    });
    around.expect("a transport header is in an IP packet")
}

/// Pseudo-random numbers (xorshift64), which are the same in every run.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn mac(&mut self) -> MacAddr {
        let [a, b, c, d, e, ..] = self.next().to_be_bytes();
        MacAddr([2, a, b, c, d, e])
    }

    fn ip4(&mut self) -> Ipv4Addr {
        let [_, b, c, d] = (self.next() as u32).to_be_bytes();
        Ipv4Addr::from([10, b, c, d])
    }

    fn ip6(&mut self) -> Ipv6Addr {
        let low = u128::from(self.next()) << 56 | u128::from(self.next() >> 8);
        Ipv6Addr::from(0xfd << 120 | low)
    }

    /// A port number that scapy assigns to no protocol.
    fn port(&mut self) -> u16 {
        20_000 + (self.next() % 10_000) as u16
    }
}

impl Layer<'_> {
    /// Sets random values for all fields except lengths and those that select the next header.
    pub fn vary(&mut self, numbers: &mut Numbers) {
        match self {
            Self::Ethernet(repr) => (repr.dst, repr.src) = (numbers.mac(), numbers.mac()),
            Self::Tag(tag, _) => *tag = Tag::from_tci(tag.tpid, numbers.next() as u16),
            Self::Arp(repr) => {
                (repr.sender_mac, repr.target_mac) = (numbers.mac(), numbers.mac());
                (repr.sender_ip, repr.target_ip) = (numbers.ip4(), numbers.ip4());
            }
            Self::Ipv4(repr) => {
                (repr.src, repr.dst) = (numbers.ip4(), numbers.ip4());
                (repr.tos, repr.ttl) = (numbers.next() as u8, numbers.next() as u8);
                repr.ident = numbers.next() as u16;
                repr.dont_fragment = numbers.next() & 1 == 0;
            }
            Self::Ipv6 { repr, .. } => {
                (repr.src, repr.dst) = (numbers.ip6(), numbers.ip6());
                repr.traffic_class = numbers.next() as u8;
                repr.flow_label = numbers.next() as u32 & 0xf_ffff;
            }
            Self::Icmpv4(Icmpv4Repr::EchoRequest { ident, seq, .. })
            | Self::Icmpv6(Icmpv6Repr::EchoReply { ident, seq, .. }) => {
                (*ident, *seq) = (numbers.next() as u16, numbers.next() as u16);
            }
            Self::Icmpv6(Icmpv6Repr::Nd(NdRepr::NeighborAdvertisement {
                target, router, ..
            })) => {
                (*target, *router) = (numbers.ip6(), !*router);
            }
            Self::Icmpv4(_) | Self::Icmpv6(_) | Self::Payload(_) => {}
            Self::Tcp(repr) => {
                (repr.src_port, repr.dst_port) = (numbers.port(), numbers.port());
                (repr.seq, repr.ack) = (numbers.next() as u32, numbers.next() as u32);
                repr.flags = TcpFlags(numbers.next() as u8);
                (repr.window, repr.urgent) = (numbers.next() as u16, numbers.next() as u16);
            }
            // The destination port selects the next header.
            Self::Udp { repr, .. } => repr.src_port = numbers.port(),
            Self::Vxlan(repr) => repr.vni = vni(numbers),
            Self::Geneve { repr, .. } => {
                (repr.vni, repr.control) = (vni(numbers), !repr.control);
            }
            Self::Gre(repr, nvgre) => {
                repr.sequence = repr.sequence.map(|_| numbers.next() as u32);
                if let Some(key) = &mut repr.key {
                    *key = numbers.next() as u32;
                    let [a, b, c, flow_id] = key.to_be_bytes();
                    let vsid = Vni::from_be_bytes([a, b, c]);
                    *nvgre = nvgre.map(|_| NvgreRepr { vsid, flow_id });
                }
            }
        }
    }
}

fn vni(numbers: &mut Numbers) -> Vni {
    let [a, b, c, ..] = numbers.next().to_be_bytes();
    Vni::from_be_bytes([a, b, c])
}
