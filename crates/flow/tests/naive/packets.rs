//! Random packets: mostly valid, some with rare fields, some damaged, some truncated.

use super::oracle::sum;
use testkit::random::Random;

const TEB: u16 = 0x6558;
/// The longest inner frame in bytes.
const MAX_INNER: usize = 90;

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.word() as u8).collect()
}

/// Changes up to three of the first `limit` bytes.
fn damage(random: &mut Random, packet: &mut [u8], limit: usize) {
    let limit = limit.min(packet.len());
    if limit == 0 {
        return;
    }
    for _ in 0..1 + random.below(3) {
        let at = random.below(limit);
        match random.below(3) {
            0 => packet[at] = random.word() as u8,
            1 => packet[at] = random.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            _ => packet[at] ^= 1 << random.below(8),
        }
    }
}

/// Appends an inner frame to a tunnel header, and damages or cuts some packets.
fn packet(random: &mut Random, header: Vec<u8>) -> Vec<u8> {
    let header_len = header.len();
    let mut packet = header;
    let len = 14 + random.below(MAX_INNER);
    packet.extend(bytes(random, len));
    if random.once_in(6) {
        damage(random, &mut packet, header_len);
    }
    if random.once_in(8) {
        packet.truncate(random.below(header_len + 20));
    }
    packet
}

/// A VNI, and the reserved byte after it.
fn vni(random: &mut Random) -> [u8; 4] {
    let any = random.word() as u32 & 0xff_ffff;
    let vni = random.pick(&[0, 1, 0xff_ffff, any, any]);
    let reserved = if random.once_in(8) { random.word() as u32 & 0xff } else { 0 };
    (vni << 8 | reserved).to_be_bytes()
}

/// The protocol of a tunnel header: mostly Ethernet.
fn protocol(random: &mut Random) -> [u8; 2] {
    let other = random.pick(&[0x0800, 0x86dd, 0, 0x6559, 0x5865]);
    u16::to_be_bytes(if random.once_in(24) { other } else { TEB })
}

pub fn vxlan(random: &mut Random) -> Vec<u8> {
    let flags = if random.once_in(6) { bytes(random, 4) } else { vec![8, 0, 0, 0] };
    let header = [flags, vni(random).to_vec()].concat();
    packet(random, header)
}

pub fn geneve(random: &mut Random) -> Vec<u8> {
    let mut options = Vec::new();
    for _ in 0..random.pick(&[0, 0, 1, 1, 1, 2, 3, 5]) {
        options.extend(option(random));
    }
    options.truncate(252);
    let words = options.len() / 4 + usize::from(random.once_in(30)) * random.below(64);
    let flags = if random.once_in(12) { random.word() as u8 } else { 0x40 & random.word() as u8 };
    let mut header = vec![words as u8 & 0x3f, flags];
    header.extend(protocol(random));
    header.extend(vni(random));
    header.extend(options);
    packet(random, header)
}

/// OVN's option for logical ports, or another one.
fn option(random: &mut Random) -> Vec<u8> {
    if !random.once_in(3) {
        let ports = random.word() as u32;
        let ports = if random.once_in(8) { ports & 0xffff_0000 } else { ports };
        return [&[1, 2, 0x80, 1], &ports.to_be_bytes()[..]].concat();
    }
    let any = random.word();
    let class: u16 = random.pick(&[0x0102, 0x0103, 0, 0xffff, any as u16]);
    let kind = random.pick(&[0, 1, 0x7f, 0x7f, 0x80, 0xff, (any >> 16) as u8]);
    let words = random.pick(&[0, 1, 1, 2, 30, 31]);
    let reserved = if random.once_in(8) { 0xe0 & random.word() as u8 } else { 0 };
    let mut option = class.to_be_bytes().to_vec();
    option.extend([kind, reserved | words]);
    option.extend(bytes(random, usize::from(words) * 4));
    option
}

/// GRE or NVGRE.
pub fn gre(random: &mut Random) -> Vec<u8> {
    const FIELDS: u16 = 0xb000;
    let any = random.word() as u16;
    let mut flags = random.pick(&[0x2000, 0x2000, 0x2000, any & FIELDS]);
    if random.once_in(16) {
        flags ^= random.word() as u16 & !FIELDS;
    }
    let mut header = flags.to_be_bytes().to_vec();
    header.extend(protocol(random));
    for field in [0x8000, 0x2000, 0x1000] {
        if flags & field != 0 {
            let value = if field == 0x8000 { vec![0; 4] } else { bytes(random, 4) };
            header.extend(value);
        }
    }
    let mut packet = packet(random, header);
    if packet.len() >= 6 && packet[0] & 0x80 != 0 && !random.once_in(4) {
        packet[4..6].fill(0);
        let checksum = !sum(&[&packet]);
        packet[4..6].copy_from_slice(&checksum.to_be_bytes());
    }
    packet
}

/// A frame with up to four tags, mostly of links that a host has.
pub fn tagged(random: &mut Random) -> Vec<u8> {
    let mut frame = bytes(random, 12);
    if random.once_in(2) {
        // The tags of a link of the hosts, with any priority.
        let known: &[(u16, u16)] = random.pick(&[
            &[(0x8100, 7)],
            &[(0x88a8, 7), (0x8100, 8)],
            &[(0x9100, 1), (0x8100, 4094)],
        ]);
        for (tpid, vlan) in known {
            let tci = vlan | random.word() as u16 & 0xf000;
            frame.extend([*tpid, tci].map(u16::to_be_bytes).as_flattened());
        }
    }
    for _ in 0..random.pick(&[0, 0, 1, 1, 1, 2, 2, 2, 3, 4]) {
        let any = random.word() as u16;
        let tpid: u16 = random.pick(&[0x8100, 0x8100, 0x8100, 0x88a8, 0x9100]);
        let vlan = random.pick(&[7, 7, 8, 9, 1, 4094, 0, 4095, any & 0xfff]);
        let priority = if random.once_in(4) { any & 0xf000 } else { 0 };
        frame.extend([tpid, priority | vlan].map(u16::to_be_bytes).as_flattened());
    }
    frame.extend([0x88, 0xb5]);
    let headers = frame.len();
    let len = random.below(MAX_INNER);
    frame.extend(bytes(random, len));
    if random.once_in(12) {
        damage(random, &mut frame, headers);
    }
    if random.once_in(8) {
        frame.truncate(random.below(headers + 4));
    }
    frame
}

/// An inner frame, and what a partial checksum in it would be about: whether it is IPv4, its
/// protocol, and the offset of the transport header.
pub struct Inner {
    pub bytes: Vec<u8>,
    pub ip: Option<(bool, u8, usize)>,
}

/// An STT segment from its outer Ethernet header on.
pub struct SttCase {
    pub bytes: Vec<u8>,
    /// The offset of the TCP-like header.
    pub l4: usize,
    /// The outer addresses, source first.
    pub addresses: Vec<u8>,
    pub traffic_class: u8,
    /// The network card has verified the outer checksum.
    pub is_verified: bool,
    pub inner: Inner,
}

/// A frame in one segment, mostly.
pub fn stt(random: &mut Random) -> SttCase {
    let inner = inner(random);
    let mut frame = stt_header(random, &inner);
    frame.extend(&inner.bytes);
    let total = frame.len() as u16;
    if random.once_in(10) {
        frame.truncate(random.below(frame.len() + 1));
    }
    let any = random.word() as u16;
    let wrong = random.pick(&[total - 1, total + 1, 17, 18, 0, any]);
    let total = if random.once_in(10) { wrong } else { total };
    let offset = if random.once_in(16) { random.pick(&[1, 18, any]) } else { 0 };
    let mut segment = bytes(random, 4);
    segment.extend([total, offset].map(u16::to_be_bytes).as_flattened());
    segment.extend(bytes(random, 4));
    segment.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(frame);
    if random.once_in(5) {
        damage(random, &mut segment, 38);
    }
    if random.once_in(16) {
        segment.truncate(random.below(40));
    }
    let traffic_class = random.word() as u8;
    let is_v4 = random.once_in(2);
    let addresses = bytes(random, if is_v4 { 8 } else { 32 });
    if segment.len() >= 18 && !random.once_in(6) {
        segment[16..18].fill(0);
        let len = (segment.len() as u32).to_be_bytes();
        let checksum = !sum(&[&addresses, &len, &[0, 0, 0, 6], &segment]);
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    }
    let mut packet = bytes(random, 12);
    packet.extend(ip_header(is_v4, 6, segment.len(), traffic_class, &addresses));
    let l4 = packet.len();
    packet.extend(segment);
    let is_verified = random.once_in(3);
    SttCase { bytes: packet, l4, addresses, traffic_class, is_verified, inner }
}

/// EtherType and IP header.
fn ip_header(is_v4: bool, protocol: u8, payload: usize, class: u8, addresses: &[u8]) -> Vec<u8> {
    if is_v4 {
        let [high, low] = (20 + payload as u16).to_be_bytes();
        let mut header = vec![0x45, class, high, low, 0, 1, 0x40, 0, 64, protocol, 0, 0];
        header.extend(addresses);
        let checksum = !sum(&[&header]);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        [&[8, 0], &header[..]].concat()
    } else {
        let [high, low] = (payload as u16).to_be_bytes();
        let mut header = vec![0x86, 0xdd, 0x60 | class >> 4, class << 4, 0, 0, high, low];
        header.extend([protocol, 64]);
        header.extend(addresses);
        header
    }
}

/// TCP or UDP over IPv4 or IPv6, or no IP.
fn inner(random: &mut Random) -> Inner {
    let mut frame = bytes(random, 12);
    if random.once_in(8) {
        frame.extend([0x88, 0xb5]);
        let len = random.below(MAX_INNER);
        frame.extend(bytes(random, len));
        return Inner { bytes: frame, ip: None };
    }
    let is_v4 = random.once_in(2);
    let protocol = random.pick(&[6, 6, 17]);
    let len = 20 + random.below(MAX_INNER);
    let addresses = bytes(random, if is_v4 { 8 } else { 32 });
    frame.extend(ip_header(is_v4, protocol, len, 0, &addresses));
    let l4 = frame.len();
    frame.extend(bytes(random, len));
    Inner { bytes: frame, ip: Some((is_v4, protocol, l4)) }
}

/// An STT header, mostly one that is right for the inner frame.
fn stt_header(random: &mut Random, inner: &Inner) -> Vec<u8> {
    let any = random.word();
    let (mut flags, mut l4, mut size) = (any as u8 & 1, 0, 0);
    if let (Some((is_v4, protocol, offset)), true) = (inner.ip, random.once_in(2)) {
        flags = 2 | if is_v4 { 4 } else { 0 } | if protocol == 6 { 8 } else { 0 };
        l4 = offset as u8;
        if protocol == 6 {
            size = random.pick(&[0, 1448, (any >> 8) as u16]);
        }
    }
    if random.once_in(8) {
        flags ^= 1 << random.below(8);
    }
    if random.once_in(16) {
        size = random.pick(&[0, 1, 1448]);
    }
    let tci = if random.once_in(4) { (any >> 24) as u16 } else { 0 };
    let context = random.word();
    // Bits 55 to 63 are reserved.
    let context = if random.once_in(8) { context } else { context & ((1 << 55) - 1) };
    let context = if random.once_in(4) { context & 0xff_ffff } else { context };
    let mut header = vec![0, flags, l4, 0];
    header.extend([size, tci].map(u16::to_be_bytes).as_flattened());
    header.extend(context.to_be_bytes());
    header.extend([0, 0]);
    header
}
