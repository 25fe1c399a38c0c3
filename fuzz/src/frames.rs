//! Builds frames from plain bytes. This does not use the crate `wire`, so that a fault of that
//! crate cannot be hidden by the same fault in the seeds.

use std::net::{Ipv4Addr, Ipv6Addr};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const GRE: u8 = 47;
pub const ICMP: u8 = 1;
pub const ICMPV6: u8 = 58;

pub const TYPE_IPV4: u16 = 0x0800;
pub const TYPE_ARP: u16 = 0x0806;
pub const TYPE_IPV6: u16 = 0x86dd;
pub const TYPE_TEB: u16 = 0x6558;

/// Concatenates `parts`.
pub fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// An Ethernet frame between two locally administered addresses.
pub fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    join(&[&[2, 0, 0, 0, 0, 2], &[2, 0, 0, 0, 0, 1], &ethertype.to_be_bytes(), payload])
}

/// Inserts a VLAN tag between the addresses and the EtherType of `frame`.
pub fn tag(frame: &[u8], tpid: u16, tci: u16) -> Vec<u8> {
    join(&[&frame[..12], &tpid.to_be_bytes(), &tci.to_be_bytes(), &frame[12..]])
}

/// The one's complement sum of RFC 1071, folded and inverted.
fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = join(parts);
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The source and the destination address of an IP packet.
#[derive(Clone, Copy)]
pub enum Ends {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

/// The IPv4 addresses of two hosts of the underlay.
pub const UNDERLAY_V4: Ends = Ends::V4(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
/// The IPv6 addresses of two hosts of the underlay.
pub const UNDERLAY_V6: Ends = Ends::V6(
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
);
/// The IPv4 addresses of two guests.
pub const GUESTS_V4: Ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
/// The IPv6 addresses of two guests.
pub const GUESTS_V6: Ends = Ends::V6(
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
);

impl Ends {
    /// An Ethernet frame with an IP packet; the DF bit is set, the TTL is 64.
    pub fn frame(self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        match self {
            Self::V4(src, dst) => ethernet(TYPE_IPV4, &ipv4(src, dst, protocol, &[], payload)),
            Self::V6(src, dst) => ethernet(TYPE_IPV6, &ipv6(src, dst, protocol, payload)),
        }
    }

    /// The destination of an IPv6 packet.
    pub fn v6_dst(self) -> Ipv6Addr {
        match self {
            Self::V6(_, dst) => dst,
            Self::V4(_, dst) => dst.to_ipv6_mapped(),
        }
    }

    /// The pseudo header.
    fn pseudo(self, protocol: u8, len: usize) -> Vec<u8> {
        let len = (len as u32).to_be_bytes();
        match self {
            Self::V4(src, dst) => join(&[&src.octets(), &dst.octets(), &[0, protocol], &len[2..]]),
            Self::V6(src, dst) => join(&[&src.octets(), &dst.octets(), &len, &[0, 0, 0, protocol]]),
        }
    }

    /// A UDP datagram with its checksum, or with a checksum field of 0.
    pub fn udp(self, ports: (u16, u16), with_checksum: bool, payload: &[u8]) -> Vec<u8> {
        let len = (8 + payload.len()) as u16;
        let head = join(&[&ports.0.to_be_bytes(), &ports.1.to_be_bytes(), &len.to_be_bytes()]);
        let sum = match checksum(&[&self.pseudo(UDP, len.into()), &head, &[0, 0], payload]) {
            _ if !with_checksum => 0,
            0 => 0xffff,
            sum => sum,
        };
        self.frame(UDP, &join(&[&head, &sum.to_be_bytes(), payload]))
    }

    /// A TCP segment from port 40000 to port 80 with `sequence` and `flags` (low byte). The length
    /// of `options` is a multiple of 4 bytes.
    pub fn tcp(self, sequence: u32, flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let words = (5 + options.len() / 4) as u8;
        let head = join(&[
            &40_000_u16.to_be_bytes(),
            &80_u16.to_be_bytes(),
            &sequence.to_be_bytes(),
            &7_u32.to_be_bytes(),
            &[words << 4, flags, 0xff, 0xff],
        ]);
        let tail = join(&[&[0, 0], options, payload]);
        let len = head.len() + 2 + tail.len();
        let sum = checksum(&[&self.pseudo(TCP, len), &head, &[0, 0], &tail]);
        self.frame(TCP, &join(&[&head, &sum.to_be_bytes(), &tail]))
    }

    /// An ICMP or ICMPv6 message with type `kind` and `code`; `body` follows the checksum.
    pub fn icmp(self, kind: u8, code: u8, body: &[u8]) -> Vec<u8> {
        let (protocol, pseudo) = match self {
            Self::V4(..) => (ICMP, Vec::new()),
            Self::V6(..) => (ICMPV6, self.pseudo(ICMPV6, 4 + body.len())),
        };
        let sum = checksum(&[&pseudo, &[kind, code, 0, 0], body]);
        self.frame(protocol, &join(&[&[kind, code], &sum.to_be_bytes(), body]))
    }

    /// One segment of an STT frame: the TCP-like header to port 7471, and `part`, which is at
    /// `offset` of a frame of `total` bytes.
    pub fn stt_segment(self, id: u32, total: u16, offset: u16, part: &[u8]) -> Vec<u8> {
        let head = join(&[
            &50_000_u16.to_be_bytes(),
            &7471_u16.to_be_bytes(),
            &total.to_be_bytes(),
            &offset.to_be_bytes(),
            &id.to_be_bytes(),
            &[5 << 4, 0x18, 0xff, 0xff],
        ]);
        let sum = checksum(&[&self.pseudo(TCP, 20 + part.len()), &head, &[0; 4], part]);
        self.frame(TCP, &join(&[&head, &sum.to_be_bytes(), &[0, 0], part]))
    }
}

/// An IPv4 packet; the length of `options` is a multiple of 4 bytes.
pub fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let len = (20 + options.len() + payload.len()) as u16;
    let head = join(&[
        &[0x45 + (options.len() / 4) as u8, 0],
        &len.to_be_bytes(),
        &[0, 0, 0x40, 0, 64, protocol],
    ]);
    let tail = join(&[&src.octets(), &dst.octets(), options]);
    join(&[&head, &checksum(&[&head, &[0, 0], &tail]).to_be_bytes(), &tail, payload])
}

/// An IPv6 packet. With ICMPv6 its hop limit is 255, as neighbour discovery requires.
pub fn ipv6(src: Ipv6Addr, dst: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16).to_be_bytes();
    let hop_limit = if next == ICMPV6 { 255 } else { 64 };
    join(&[&[0x60, 0, 0, 0], &len, &[next, hop_limit], &src.octets(), &dst.octets(), payload])
}

/// A VXLAN header with the I flag.
pub fn vxlan(vni: u32, frame: &[u8]) -> Vec<u8> {
    join(&[&[8, 0, 0, 0], &(vni << 8).to_be_bytes(), frame])
}

/// A Geneve header for an Ethernet frame; the length of `options` is a multiple of 4 bytes, and
/// `flags` is the second byte of the header.
pub fn geneve(vni: u32, flags: u8, options: &[u8], frame: &[u8]) -> Vec<u8> {
    let words = (options.len() / 4) as u8;
    join(&[&[words, flags], &TYPE_TEB.to_be_bytes(), &(vni << 8).to_be_bytes(), options, frame])
}

/// A Geneve option; the length of `data` is a multiple of 4 bytes.
pub fn geneve_option(class: u16, kind: u8, data: &[u8]) -> Vec<u8> {
    join(&[&class.to_be_bytes(), &[kind, (data.len() / 4) as u8], data])
}

/// A GRE header for an Ethernet frame, with the fields that are `Some`.
pub fn gre(with_checksum: bool, key: Option<u32>, sequence: Option<u32>, frame: &[u8]) -> Vec<u8> {
    let flags = u8::from(with_checksum) << 7
        | u8::from(key.is_some()) << 5
        | u8::from(sequence.is_some()) << 4;
    let word = |value: Option<u32>| value.map(u32::to_be_bytes).map_or(vec![], Vec::from);
    let head = join(&[&[flags, 0], &TYPE_TEB.to_be_bytes()]);
    let tail = join(&[&word(key), &word(sequence), frame]);
    if !with_checksum {
        return join(&[&head, &tail]);
    }
    join(&[&head, &checksum(&[&head, &[0; 4], &tail]).to_be_bytes(), &[0, 0], &tail])
}

/// An STT header followed by its frame. The header has flags, offset of the inner transport header,
/// MSS, VLAN tag, and context ID.
pub fn stt(flags: u8, l4_offset: u8, mss: u16, tci: u16, context: u64, frame: &[u8]) -> Vec<u8> {
    let head = join(&[&[0, flags, l4_offset, 0], &mss.to_be_bytes(), &tci.to_be_bytes()]);
    join(&[&head, &context.to_be_bytes(), &[0, 0], frame])
}

/// An ARP request that is sent to the broadcast address.
pub fn arp_request() -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, 1];
    let body = join(&[&head, &[2, 0, 0, 0, 0, 1, 10, 0, 0, 1], &[0; 6], &[10, 0, 0, 2]]);
    join(&[&[0xff; 6], &ethernet(TYPE_ARP, &body)[6..]])
}
