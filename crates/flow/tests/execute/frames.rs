//! Frames of all kinds, built and verified without the code under test.

use packet::{Checksum, Gso, GsoKind, PacketBuf};
use proptest::prelude::*;
use testkit::crc32c::crc32c;

/// The payload of an IP packet, or the kind of a frame that is not IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Tcp,
    Udp,
    /// UDP without a checksum.
    UdpNoSum,
    Sctp,
    /// An ICMP or ICMPv6 echo request, depending on the IP version.
    Echo,
    /// An ICMP or ICMPv6 error, depending on the IP version.
    Error,
    /// A neighbour solicitation, or an echo over IPv4; with or without a link-layer address option.
    Solicit(bool),
    /// Like `Solicit`, for an advertisement.
    Advert(bool),
    /// An unknown protocol.
    Other,
    /// A frame that is not IP.
    Arp,
}

/// A frame to build.
#[derive(Clone, Debug)]
pub struct Spec {
    pub tags: usize,
    pub is_v6: bool,
    pub kind: Kind,
    /// IPv4 options or an IPv6 header of destination options.
    pub options: bool,
    /// An IPv6 routing header with one segment left.
    pub routed: bool,
    pub payload: Vec<u8>,
    /// Leaves the checksum partial, if the kind has one.
    pub partial: bool,
    /// Makes a super-packet with segments of that length, if the kind permits it.
    pub gso: Option<u16>,
    /// Cuts the packet after this number of 8-byte units of the IP payload, as a first fragment.
    pub fragment: Option<usize>,
    /// Bytes after the IP packet.
    pub padding: usize,
    /// Stores the payload in several buffers.
    pub pieces: bool,
    pub tcp_flags: u8,
}

pub fn spec() -> impl Strategy<Value = Spec> {
    let kind = prop_oneof![
        4 => Just(Kind::Tcp),
        3 => Just(Kind::Udp),
        1 => Just(Kind::UdpNoSum),
        1 => Just(Kind::Sctp),
        1 => Just(Kind::Echo),
        1 => Just(Kind::Error),
        1 => any::<bool>().prop_map(Kind::Solicit),
        1 => any::<bool>().prop_map(Kind::Advert),
        1 => Just(Kind::Other),
        1 => Just(Kind::Arp),
    ];
    let shape = (0..3usize, any::<bool>(), kind, prop::bool::weighted(0.2), any::<bool>());
    let offload = (any::<bool>(), prop::option::weighted(0.3, 8..600u16));
    let cut = (prop::option::weighted(0.15, 3..10usize), prop::option::weighted(0.2, 1..20usize));
    let payload = prop::collection::vec(any::<u8>(), 0..1500);
    (shape, offload, cut, payload, prop::bool::weighted(0.1), prop::bool::weighted(0.3), 0..=255u8)
        .prop_map(|(shape, offload, cut, payload, routed, pieces, tcp_flags)| {
            let (tags, is_v6, kind, options, partial) = shape;
            let (partial, gso) = (partial || offload.0, offload.1);
            let (fragment, padding) = (cut.0, cut.1.unwrap_or(0));
            Spec {
                tags,
                is_v6: match kind {
                    Kind::Solicit(_) | Kind::Advert(_) => true,
                    _ => is_v6,
                },
                kind,
                options,
                routed: routed && is_v6 && !options,
                payload,
                partial,
                gso,
                fragment,
                padding,
                pieces,
                tcp_flags,
            }
        })
}

impl Spec {
    /// A whole, untagged frame of a kind, without offloads.
    pub fn of(kind: Kind, is_v6: bool) -> Self {
        Self {
            tags: 0,
            is_v6,
            kind,
            options: false,
            routed: false,
            payload: (0..100).collect(),
            partial: false,
            gso: None,
            fragment: None,
            padding: 0,
            pieces: false,
            tcp_flags: 0x10,
        }
    }
}

/// A built frame.
#[derive(Debug)]
pub struct Frame {
    pub packet: PacketBuf,
    /// The rest of the datagram, which a first fragment does not contain.
    pub missing: Vec<u8>,
}

pub const SRC_V4: [u8; 4] = [10, 0, 0, 1];
pub const DST_V4: [u8; 4] = [192, 0, 2, 200];
pub const SRC_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
pub const DST_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56, 0x78];
pub const ETH_DST: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const ETH_SRC: [u8; 6] = [6, 0x11, 0x22, 0x33, 0x44, 0x55];
/// The final destination of a packet with a routing header, which its checksum covers.
const LAST_STOP: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

impl Spec {
    fn is_super(&self) -> bool {
        matches!(self.kind, Kind::Tcp | Kind::Udp)
            && self.gso.is_some()
            && !self.routed
            && self.fragment.is_none()
    }

    fn is_partial(&self) -> bool {
        let possible = matches!(self.kind, Kind::Tcp | Kind::Udp) && self.fragment.is_none();
        possible && (self.partial || self.is_super())
    }

    pub fn build(&self) -> Frame {
        let mut frame = [ETH_DST, ETH_SRC].concat();
        for tag in &[[0x88, 0xa8, 0xb0, 0x64], [0x81, 0, 0x20, 0x0a]][2 - self.tags..] {
            frame.extend(tag);
        }
        let mut missing = Vec::new();
        if self.kind == Kind::Arp {
            frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
            frame.extend([&ETH_SRC[..], &SRC_V4, &[0; 6], &DST_V4].concat());
            frame.extend(vec![0; self.padding]);
            return Frame { packet: PacketBuf::from_bytes(&frame), missing };
        }
        frame.extend(if self.is_v6 { [0x86, 0xdd] } else { [8, 0] });
        let l3 = frame.len();
        let (protocol, mut message) = self.message();
        if let Some(cut) = self.fragment.map(|cut| cut * 8).filter(|&cut| cut < message.len()) {
            missing = message.split_off(cut);
        }
        frame.extend(self.ip(protocol, message.len(), !missing.is_empty()));
        let l4 = frame.len();
        frame.extend(&message);
        let end = frame.len();
        // Super-packets never have padding.
        frame.extend(vec![0xee; if self.is_super() || self.pieces { 0 } else { self.padding }]);
        let mut packet = PacketBuf::from_bytes(&frame);
        if self.pieces && end > l4 + 80 {
            packet = in_pieces(&frame, l4 + 80);
        }
        if self.is_partial() {
            let offset = if self.kind == Kind::Tcp { 16 } else { 6 };
            packet.offload.checksum = Checksum::Partial { start: l4 as u16, offset };
        }
        if let (true, Some(size)) = (self.is_super(), self.gso) {
            let kind = match (self.kind, self.is_v6) {
                (Kind::Udp, _) => GsoKind::UdpL4,
                (_, true) => GsoKind::TcpV6,
                (_, false) => GsoKind::TcpV4,
            };
            packet.offload.gso = Some(Gso { kind, size, ecn: false });
        }
        assert!(l3 < l4);
        Frame { packet, missing }
    }

    /// IP header and options or extension headers, before `len` bytes.
    fn ip(&self, protocol: u8, len: usize, is_fragment: bool) -> Vec<u8> {
        if !self.is_v6 {
            let options: &[u8] = if self.options { &[1, 1, 1, 0] } else { &[] };
            let total = ((20 + options.len() + len) as u16).to_be_bytes();
            let flags = if is_fragment { 0x20 } else { 0 };
            let first = 0x40 | (5 + options.len() / 4) as u8;
            let mut ip = vec![first, 0x2a, total[0], total[1], 1, 2, flags, 0, 64, protocol, 0, 0];
            ip.extend([&SRC_V4[..], &DST_V4, options].concat());
            let sum = !naive_sum(&[&ip]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            return ip;
        }
        let mut extensions = Vec::new();
        let mut next = protocol;
        if is_fragment {
            extensions.splice(..0, [next, 0, 0, 1, 1, 2, 3, 4]);
            next = 44;
        }
        if self.routed {
            let mut header = vec![next, 2, 0, 1, 0, 0, 0, 0];
            header.extend(LAST_STOP);
            extensions.splice(..0, header);
            next = 43;
        }
        if self.options {
            extensions.splice(..0, [next, 0, 1, 4, 0, 0, 0, 0]);
            next = 60;
        }
        let payload = ((extensions.len() + len) as u16).to_be_bytes();
        let hops = if matches!(self.kind, Kind::Solicit(_) | Kind::Advert(_)) { 255 } else { 64 };
        let mut ip = vec![0x62, 0xa1, 0x23, 0x45, payload[0], payload[1], next, hops];
        ip.extend([&SRC_V6[..], &DST_V6, &extensions].concat());
        ip
    }

    /// The whole datagram, with its checksum, and its protocol.
    fn message(&self) -> (u8, Vec<u8>) {
        let ports = [0x30, 0x39, 0, 80];
        let (protocol, field, mut message) = match self.kind {
            Kind::Tcp => {
                let mut tcp = [&ports[..], &[0, 0, 0, 1, 0, 0, 0, 2]].concat();
                tcp.extend([0x60, self.tcp_flags, 0xff, 0, 0, 0, 0, 0, 2, 4, 5, 0xb4]);
                (6, 16, tcp)
            }
            Kind::Udp | Kind::UdpNoSum => {
                let len = (8 + self.payload.len() as u16).to_be_bytes();
                (17, 6, [&ports[..], &len, &[0, 0]].concat())
            }
            Kind::Sctp => (132, 8, [&ports[..], &[1, 2, 3, 4, 0, 0, 0, 0]].concat()),
            Kind::Echo if self.is_v6 => (58, 2, vec![128, 0, 0, 0, 0, 7, 0, 1]),
            Kind::Error if self.is_v6 => (58, 2, vec![1, 4, 0, 0, 0, 0, 0, 0]),
            Kind::Error => (1, 2, vec![3, 3, 0, 0, 0, 0, 0, 0]),
            Kind::Solicit(option) => (58, 2, neighbour(135, option)),
            Kind::Advert(option) => (58, 2, neighbour(136, option)),
            Kind::Echo => (1, 2, vec![8, 0, 0, 0, 0, 7, 0, 1]),
            Kind::Other | Kind::Arp => (200, 0, vec![1, 2, 3, 4, 5, 6, 7, 8]),
        };
        if !matches!(self.kind, Kind::Solicit(_) | Kind::Advert(_)) {
            message.extend(&self.payload);
        }
        match self.kind {
            Kind::UdpNoSum | Kind::Other | Kind::Arp => {}
            Kind::Sctp => {
                let crc = crc32c(&message).to_le_bytes();
                message[field..field + 4].copy_from_slice(&crc);
            }
            _ => {
                let pseudo = match (protocol, self.is_v6, self.routed) {
                    (1, ..) => Vec::new(),
                    (_, false, _) => [&SRC_V4[..], &DST_V4].concat(),
                    (_, true, false) => [&SRC_V6[..], &DST_V6].concat(),
                    (_, true, true) => [&SRC_V6[..], &LAST_STOP].concat(),
                };
                let pseudo = pseudo_header(&pseudo, protocol, message.len());
                let mut sum = if self.is_partial() {
                    naive_sum(&[&pseudo])
                } else {
                    !naive_sum(&[&pseudo, &message])
                };
                if protocol == 17 && sum == 0 {
                    sum = 0xffff;
                }
                message[field..field + 2].copy_from_slice(&sum.to_be_bytes());
            }
        }
        (protocol, message)
    }
}

fn neighbour(kind: u8, option: bool) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, if kind == 136 { 0xe0 } else { 0 }, 0, 0, 0];
    message.extend([&DST_V6[..], &[14, 1, 0, 0, 0, 0, 0, 0]].concat());
    if option {
        message.extend([if kind == 135 { 1 } else { 2 }, 1]);
        message.extend(ETH_SRC);
    }
    message
}

/// A frame whose bytes after the first `len` are in separate buffers.
fn in_pieces(frame: &[u8], len: usize) -> PacketBuf {
    let mut packet = PacketBuf::with_capacity(64, frame.len() * 2 + 64);
    packet.spare_mut()[..len].copy_from_slice(&frame[..len]);
    let (mut ranges, mut at) = (Vec::new(), len + 3);
    for piece in frame[len..].chunks(97) {
        packet.spare_mut()[at..at + piece.len()].copy_from_slice(piece);
        ranges.push(at..at + piece.len());
        at += piece.len() + 5;
    }
    packet.set_ranges(0..len, ranges);
    packet
}

fn pseudo_header(addresses: &[u8], protocol: u8, len: usize) -> Vec<u8> {
    if addresses.is_empty() {
        return Vec::new();
    }
    let mut pseudo = addresses.to_vec();
    pseudo.extend([0, protocol]);
    pseudo.extend((len as u32).to_be_bytes());
    pseudo
}

/// The ones-complement sum of byte strings; all but the last must have an even length.
pub fn naive_sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The first wrong checksum of a frame. `missing` is the rest of a datagram after its first
/// fragment.
pub fn wrong_checksum(packet: &PacketBuf, missing: &[u8]) -> Option<&'static str> {
    let frame = packet.to_vec();
    let mut at = 12;
    while matches!(frame[at..at + 2], [0x81, 0] | [0x88, 0xa8] | [0x91, 0]) {
        at += 4;
    }
    let (is_v6, l3) = match frame[at..at + 2] {
        [8, 0] => (false, at + 2),
        [0x86, 0xdd] => (true, at + 2),
        _ => return None,
    };
    let u16_at = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let (mut protocol, mut l4, end);
    let mut addresses;
    if is_v6 {
        (protocol, l4, end) = (frame[l3 + 6], l3 + 40, l3 + 40 + u16_at(l3 + 4));
        addresses = frame[l3 + 8..l3 + 40].to_vec();
        while matches!(protocol, 43 | 44 | 60) {
            if protocol == 43 {
                addresses.splice(16.., frame[l4 + 8..l4 + 24].iter().copied());
            }
            let len = if protocol == 44 { 8 } else { usize::from(frame[l4 + 1]) * 8 + 8 };
            (protocol, l4) = (frame[l4], l4 + len);
        }
    } else {
        (protocol, end) = (frame[l3 + 9], l3 + u16_at(l3 + 2));
        l4 = l3 + usize::from(frame[l3] & 15) * 4;
        addresses = frame[l3 + 12..l3 + 20].to_vec();
        if naive_sum(&[&frame[l3..l4]]) != 0xffff {
            return Some("IPv4 header");
        }
    }
    let message = [&frame[l4..end], missing].concat();
    let pseudo = match protocol {
        1 => Vec::new(),
        _ => pseudo_header(&addresses, protocol, message.len()),
    };
    if let Checksum::Partial { start, offset } = packet.offload.checksum {
        let field = usize::from(start + offset);
        let right = naive_sum(&[&pseudo]) == u16_at(field) as u16 && usize::from(start) == l4;
        return (!right).then_some("partial");
    }
    let right = match protocol {
        17 if message[6..8] == [0, 0] => true,
        1 | 6 | 17 | 58 => naive_sum(&[&pseudo, &message]) == 0xffff,
        132 => {
            let mut zeroed = message.clone();
            zeroed[8..12].fill(0);
            crc32c(&zeroed).to_le_bytes() == message[8..12]
        }
        _ => true,
    };
    (!right).then_some("transport")
}
