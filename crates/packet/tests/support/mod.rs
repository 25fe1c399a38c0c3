//! Hand-built frames, and naive implementations to compare the crate with. They use none of the
//! crate's arithmetic.
#![allow(dead_code, reason = "each test file uses a part of this")]

use packet::{Checksum, Gso, GsoKind, Offload, PacketBuf};
use proptest::prelude::*;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const PSH: u8 = 8;
pub const ACK: u8 = 0x10;
pub const CWR: u8 = 0x80;

/// A TCP or UDP packet, described by its header fields.
#[derive(Clone, Debug)]
pub struct Spec {
    pub v6: bool,
    pub udp: bool,
    pub tags: Vec<u16>,
    /// IPv4 options or an IPv6 destination options header; a multiple of 8 bytes.
    pub ip_extra: usize,
    pub tos: u8,
    pub ttl: u8,
    pub id: u16,
    pub df: bool,
    pub ports: (u16, u16),
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    /// TCP options, a multiple of 4 bytes.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            v6: false,
            udp: false,
            tags: Vec::new(),
            ip_extra: 0,
            tos: 0,
            ttl: 64,
            id: 100,
            df: true,
            ports: (40_000, 5201),
            seq: 1000,
            ack: 77,
            flags: ACK,
            window: 501,
            options: vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            payload: (0..100).collect(),
        }
    }
}

/// The frame behind an LLC and SNAP header, with `tags` tags. The IEEE 802.3 length covers all of
/// it.
pub fn in_snap(frame: &[u8], tags: usize) -> Vec<u8> {
    let (front, rest) = frame.split_at(12 + 4 * tags);
    let length = (6 + rest.len()) as u16;
    [front, &length.to_be_bytes(), &[0xaa, 0xaa, 3, 0, 0, 0], rest].concat()
}

/// The one's complement sum of the big-endian words of `bytes`.
pub fn naive_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

impl Spec {
    pub fn l3(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    pub fn l4(&self) -> usize {
        self.l3() + if self.v6 { 40 } else { 20 } + self.ip_extra
    }

    pub fn header_len(&self) -> usize {
        self.l4() + if self.udp { 8 } else { 20 + self.options.len() }
    }

    fn protocol(&self) -> u8 {
        if self.udp { 17 } else { 6 }
    }

    fn transport(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.ports.0.to_be_bytes());
        out.extend(self.ports.1.to_be_bytes());
        if self.udp {
            out.extend((8 + self.payload.len() as u16).to_be_bytes());
            out.extend([0, 0]);
        } else {
            out.extend(self.seq.to_be_bytes());
            out.extend(self.ack.to_be_bytes());
            out.extend([((20 + self.options.len()) as u8 / 4) << 4, self.flags]);
            out.extend(self.window.to_be_bytes());
            out.extend([0, 0, 0, 0]);
            out.extend(&self.options);
        }
        out.extend(&self.payload);
        out
    }

    fn network(&self, l4_len: usize) -> Vec<u8> {
        let mut ip = Vec::new();
        if self.v6 {
            ip.extend((0x6000_0000 | u32::from(self.tos) << 20 | 0xabcde).to_be_bytes());
            ip.extend(((l4_len + self.ip_extra) as u16).to_be_bytes());
            ip.push(if self.ip_extra > 0 { 60 } else { self.protocol() });
            ip.push(self.ttl);
            ip.extend([0xfd; 16]);
            ip.extend([0xfe; 16]);
            if self.ip_extra > 0 {
                let pad = self.ip_extra - 4;
                ip.extend([self.protocol(), (self.ip_extra / 8 - 1) as u8, 1, pad as u8]);
                ip.extend(vec![0; pad]);
            }
        } else {
            let len = 20 + self.ip_extra;
            ip.extend([0x40 | (len / 4) as u8, self.tos]);
            ip.extend(((len + l4_len) as u16).to_be_bytes());
            ip.extend(self.id.to_be_bytes());
            ip.extend(if self.df { [0x40, 0] } else { [0, 0] });
            ip.extend([self.ttl, self.protocol(), 0, 0]);
            ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            ip.extend(vec![1; self.ip_extra]);
            let checksum = !naive_sum(&ip);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        ip
    }

    fn pseudo(&self, l4_len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        if self.v6 {
            out.extend([0xfd; 16]);
            out.extend([0xfe; 16]);
        } else {
            out.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        }
        out.extend([0, self.protocol()]);
        out.extend((l4_len as u16).to_be_bytes());
        out
    }

    fn build(&self, partial: bool) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        for tag in &self.tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 5]);
        }
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [8, 0] });
        let mut l4 = self.transport();
        frame.extend(self.network(l4.len()));
        let mut summed = self.pseudo(l4.len());
        if !partial {
            summed.extend(&l4);
        }
        let mut checksum = naive_sum(&summed);
        if !partial {
            checksum = !checksum;
            if self.udp && checksum == 0 {
                checksum = 0xffff;
            }
        }
        let at = if self.udp { 6 } else { 16 };
        l4[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(l4);
        frame
    }

    /// The frame with complete checksums.
    pub fn frame(&self) -> Vec<u8> {
        self.build(false)
    }

    /// The packet with a partial checksum. With `size`, a super-packet of that segment size.
    pub fn packet(&self, size: Option<u16>) -> PacketBuf {
        let mut packet = PacketBuf::from_bytes(&self.build(true));
        let kind = match (self.udp, self.v6) {
            (true, _) => GsoKind::UdpL4,
            (false, false) => GsoKind::TcpV4,
            (false, true) => GsoKind::TcpV6,
        };
        packet.offload = Offload {
            checksum: Checksum::Partial {
                start: self.l4() as u16,
                offset: if self.udp { 6 } else { 16 },
            },
            gso: size.map(|size| Gso { kind, size, ecn: !self.udp && self.flags & CWR != 0 }),
        };
        packet
    }

    /// The specs of the segments that segmentation of `self` must produce.
    pub fn segments(&self, size: usize) -> Vec<Self> {
        let pieces: Vec<&[u8]> =
            if self.payload.is_empty() { vec![&[]] } else { self.payload.chunks(size).collect() };
        let last = pieces.len() - 1;
        let mut seq = self.seq;
        let mut out = Vec::new();
        for (i, piece) in pieces.into_iter().enumerate() {
            let mut one = Self { payload: piece.to_vec(), seq, ..self.clone() };
            one.id = self.id.wrapping_add(i as u16);
            if i != last {
                one.flags &= !(FIN | PSH);
            }
            if i != 0 {
                one.flags &= !CWR;
            }
            seq = seq.wrapping_add(piece.len() as u32);
            out.push(one);
        }
        out
    }
}

/// True when two packets have the same bytes and the same offload state.
pub fn same(a: &PacketBuf, b: &PacketBuf) -> bool {
    a.to_vec() == b.to_vec() && a.offload == b.offload
}

prop_compose! {
    /// Any packet that can be segmented.
    pub fn any_spec(max_payload: usize)(
        (v6, udp, df) in any::<(bool, bool, bool)>(),
        tags in prop::collection::vec(prop::sample::select(vec![0x8100u16, 0x88a8, 0x9100]), 0..3),
        ip_extra in prop::sample::select(vec![0usize, 0, 8, 24, 40]),
        (tos, ttl, id) in any::<(u8, u8, u16)>(),
        ports in any::<(u16, u16)>(),
        (seq, ack, window) in any::<(u32, u32, u16)>(),
        flags in 0u8..=255,
        option_words in 0usize..=10,
        payload in prop::collection::vec(any::<u8>(), 0..max_payload),
    ) -> Spec {
        let options = (0..option_words * 4).map(|i| i as u8).collect();
        Spec {
            v6, udp, tags, ip_extra, tos, ttl, id, df, ports, seq, ack, flags, window, options,
            payload,
        }
    }
}
