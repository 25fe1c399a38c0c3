//! Random frames for comparing the parsers: those of `testkit`, hand-made ones with rare headers,
//! and damaged ones.

use flow::{OuterIp, PortNo, TunnelInfo, TunnelKey, TunnelType};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testkit::frames::{self, FrameKinds};
use testkit::random::Random;
use wire::{Located, Protocol};

/// Bytes that are passed to the kernel; the rest of a longer frame is 0.
pub const MAX_DATA: usize = 2048;
/// The longest frame that a program can produce: SKB_MAX_ALLOC, less the struct skb_shared_info.
const MAX_FRAME: usize = 15_000;

/// A frame and how it arrives.
#[derive(Clone)]
pub struct Case {
    /// The generator of the frame.
    pub kind: &'static str,
    /// The frame with its tags.
    pub frame: Vec<u8>,
    pub port: PortNo,
    pub tunnel: Option<TunnelInfo>,
    /// Put the outer tag into the skb's metadata, if possible.
    pub strip: bool,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.kind, self.frame.len())?;
        write!(f, ", tag {}, ", if self.strip { "stripped" } else { "left" })?;
        self.frame.iter().take(200).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A random frame of any kind.
pub fn case(random: &mut Random) -> Case {
    let (kind, mut frame) = match random.below(8) {
        0 => ("extensions", extensions(random)),
        1 => ("nd", nd(random)),
        2 => ("noise", noise(random)),
        _ => ("testkit", testkit_frame(random)),
    };
    if random.once_in(3) {
        damage(random, &mut frame);
    }
    if random.once_in(10) {
        // Padding is not part of the IP packet.
        let len = frame.len() + random.below(60);
        frame.resize(len, 0xa5);
    }
    if random.once_in(20) {
        frame.truncate(14 + random.below(90));
    }
    frame.truncate(MAX_FRAME);
    if let Some(rest) = frame.get_mut(MAX_DATA..) {
        rest.fill(0);
    }
    frame.resize(frame.len().max(14), 0);
    let strip = random.once_in(2);
    let tunnel = random.once_in(3).then(|| tunnel(random));
    Case { kind, frame, port: PortNo(random.word() as u32), tunnel, strip }
}

fn testkit_frame(random: &mut Random) -> Vec<u8> {
    let kinds = FrameKinds { supers: true, snap: true, malformed: true, max_payload: 3000 };
    frames::frame(random, kinds).to_vec()
}

pub fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.word() as u8).collect()
}

fn ethernet(random: &mut Random, ethertype: u16) -> Vec<u8> {
    let mut header = bytes(random, 12);
    for _ in 0..random.pick(&[0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 5]) {
        header.extend(random.pick(&[0x8100_u16, 0x88a8, 0x9100]).to_be_bytes());
        header.extend(bytes(random, 2));
    }
    header.extend(ethertype.to_be_bytes());
    header
}

/// An IPv6 header in front of `payload`.
fn ipv6(random: &mut Random, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(random, 0x86dd);
    frame.push(0x60 | random.word() as u8 & 0x0f);
    frame.extend(bytes(random, 3));
    let len = payload.len() + usize::from(random.once_in(20));
    frame.extend((len as u16).to_be_bytes());
    frame.push(next);
    frame.extend(bytes(random, 33));
    frame.extend(payload);
    frame
}

/// A random transport header, whose length may be invalid.
fn transport(random: &mut Random) -> (u8, Vec<u8>) {
    let protocol = random.pick(&[1, 6, 6, 17, 17, 58, 59, 132, 50, 47]);
    let len = random.pick(&[0, 4, 7, 8, 11, 12, 19, 20, 24, 32, 60]);
    let mut header = bytes(random, len);
    if protocol == 6 && !random.once_in(4) {
        header.iter_mut().skip(12).take(1).for_each(|byte| *byte = 0x50);
    }
    (protocol, header)
}

/// IPv6 with up to 14 extension headers, which is more than the parsers accept.
fn extensions(random: &mut Random) -> Vec<u8> {
    let (mut next, mut payload) = transport(random);
    for _ in 0..random.pick(&[1, 1, 2, 3, 5, 11, 12, 13, 14]) {
        // Hop-by-hop options are invalid behind another header.
        let kind = if random.once_in(20) { 0 } else { random.pick(&[60, 60, 60, 43, 44, 51]) };
        let units = random.pick(&[0, 0, 0, 1, 2, 20]);
        let mut header = vec![next, 0];
        match kind {
            44 => {
                header.extend(random.pick(&[0_u16, 0, 0, 1, 6, 8, 9]).to_be_bytes());
                header.extend(bytes(random, 4));
            }
            51 => {
                header[1] = units as u8;
                header.extend(bytes(random, (units + 2) * 4 - 2));
            }
            _ => {
                header[1] = units as u8;
                header.extend(bytes(random, (units + 1) * 8 - 2));
            }
        }
        header.extend(payload);
        (next, payload) = (kind, header);
    }
    if random.once_in(3) {
        let header = [next, 0, 0, 0, 0, 0, 0, 0];
        payload.splice(0..0, header);
        next = 0;
    }
    ipv6(random, next, &payload)
}

/// Neighbour discovery with up to 11 options, which is more than a program parses.
fn nd(random: &mut Random) -> Vec<u8> {
    let kind = random.pick(&[135, 136, 134]);
    let mut message = vec![kind, u8::from(random.once_in(10)), 0, 0];
    message.extend(bytes(random, 20));
    for _ in 0..random.pick(&[0, 1, 1, 2, 3, 7, 8, 9, 11]) {
        let (option, usual) =
            random.pick(&[(1, 1), (2, 1), (3, 4), (5, 1), (14, 1), (14, 2), (25, 3)]);
        let units = if random.once_in(15) { random.below(4) } else { usual };
        let mut data = bytes(random, (units * 8).max(2));
        data[0] = option;
        data[1] = units as u8;
        if option == 3 && !random.once_in(4) {
            data[2..].iter_mut().take(1).for_each(|len| *len &= 0x7f);
        }
        message.extend(data);
    }
    if random.once_in(10) {
        message.truncate(random.below(message.len()));
    }
    if random.once_in(5) {
        let header = [58, 0, 0, u8::from(random.once_in(2)), 0, 0, 0, 1];
        message.splice(0..0, header);
        return ipv6(random, 44, &message);
    }
    ipv6(random, 58, &message)
}

/// Random bytes behind an Ethernet header.
fn noise(random: &mut Random) -> Vec<u8> {
    let ethertype = random.pick(&[0x0800, 0x0806, 0x8035, 0x86dd, 0x88cc, 0x05dc, 0x05ff, 0x0600]);
    let mut frame = ethernet(random, ethertype);
    let l3 = frame.len();
    let len = random.below(80);
    frame.extend(bytes(random, len));
    if ethertype == 0x0800 && len >= 20 {
        let (protocol, header) = transport(random);
        frame[l3] = random.pick(&[0x45, 0x45, 0x46, 0x4f, 0x44, 0x55]);
        let total = 20 + header.len() + random.below(3);
        frame[l3 + 2..l3 + 4].copy_from_slice(&(total as u16).to_be_bytes());
        frame[l3 + 6] &= random.pick(&[0x40, 0x20, 0x3f]);
        frame[l3 + 7] &= random.pick(&[0, 0, 1]);
        frame[l3 + 9] = protocol;
        frame.truncate(l3 + 20);
        frame.extend(header);
    }
    frame
}

/// Changes some bits, mostly in headers.
pub fn damage(random: &mut Random, frame: &mut [u8]) {
    for _ in 0..1 + random.below(3) {
        let limit = random.pick(&[20, 60, 130]);
        let at = random.below(frame.len().min(limit));
        match random.below(3) {
            0 => frame[at] = random.word() as u8,
            1 => frame[at] = random.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            _ => frame[at] ^= 1 << random.below(8),
        }
    }
}

fn tunnel(random: &mut Random) -> TunnelInfo {
    let address = |random: &mut Random, v6| -> IpAddr {
        if v6 {
            IpAddr::V6(Ipv6Addr::from_bits(random.wide()))
        } else {
            IpAddr::V4(Ipv4Addr::from_bits(random.word() as u32))
        }
    };
    let v6 = random.once_in(2);
    let outer = OuterIp {
        source: address(random, v6),
        destination: address(random, v6),
        traffic_class: random.word() as u8,
        ttl: random.word() as u8,
        dont_fragment: random.once_in(2),
        protocol: wire::Protocol::UDP,
    };
    let key =
        TunnelKey { datapath: flow::DatapathKey(random.below(0xff_ffff) as u32), ports: None };
    TunnelInfo::new(random.pick(&[TunnelType::Vxlan, TunnelType::Geneve]), &outer, &key)
}

/// Whether a frame has a SNAP header, behind at most two tags. Programs punt all these frames.
pub fn has_snap(frame: &[u8]) -> bool {
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let is_tag = |at: &usize| matches!(word(*at), Some(0x8100 | 0x88a8 | 0x9100));
    let at = [12, 16, 20].into_iter().find(|at| !is_tag(at));
    at.is_some_and(|at| {
        let header = frame.get(at + 2..at + 10);
        word(at).is_some_and(|length| length < 0x600)
            && header.is_some_and(|header| header.starts_with(&[0xaa, 0xaa, 3, 0, 0, 0]))
    })
}

/// Whether a frame is neighbour discovery, which may have more options than a program parses.
pub fn is_neighbour_discovery(frame: &[u8]) -> bool {
    let located = wire::transport_offset(frame).ok();
    let is_icmp6 = |at: &Located| at.is_ip() && at.protocol == Protocol::ICMPV6;
    let l4 = located.filter(is_icmp6).and_then(|at| at.l4);
    let message = l4.and_then(|l4| frame.get(l4..));
    matches!(message, Some([135 | 136, 0, ..]))
}

/// A typical TCP segment.
pub fn tcp4() -> Vec<u8> {
    let mut frame = b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\0".to_vec();
    let total = 20 + 32 + 100_u16;
    frame.extend([0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    tcp(frame)
}

/// A typical TCP segment over IPv6.
pub fn tcp6() -> Vec<u8> {
    let mut frame = b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x86\xdd\x60\0\0\0".to_vec();
    frame.extend((32 + 100_u16).to_be_bytes());
    frame.extend([6, 64]);
    for host in [1, 2] {
        frame.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host).octets());
    }
    tcp(frame)
}

/// A UDP datagram between the same hosts. Its checksum does not matter.
pub fn udp4(payload: &[u8]) -> Vec<u8> {
    let mut frame = b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\0\x45\0".to_vec();
    let len = 8 + payload.len() as u16;
    frame.extend((20 + len).to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x9c, 0x40, 0x14, 0x51]);
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

fn tcp(mut frame: Vec<u8>) -> Vec<u8> {
    frame.extend([0x9c, 0x40, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1]);
    frame.extend([0; 100]);
    frame
}
