//! Random frames of guests. They contain every header that a flow key can describe. Each field has
//! only a few different values, so that rules often match. Some frames have complete checksums,
//! some have partial checksums, some are super-packets, and some are invalid.

use crate::random::Random;
use packet::{Checksum, Gso, GsoKind, Offload, PacketBuf, complete_checksum};
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::checksum::{checksum, pseudo_v4, pseudo_v6};
use wire::{MacAddr, Protocol};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const FRAGMENT: u8 = 44;
/// The minimum payload of a tagged frame. Linux drops tagged frames of less than 20 bytes, and tags
/// may be removed before sending.
const TAGGED_MIN: usize = 32;
/// The LLC and SNAP header that precedes an EtherType.
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
/// The longest payload of an IEEE 802.3 frame.
const MAX_LENGTH: usize = 1500;

/// The types of frames to generate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameKinds {
    /// Super-packets.
    pub supers: bool,
    /// Frames with a SNAP header. The eBPF programs punt them.
    pub snap: bool,
    /// Frames without a flow key: with truncated or damaged headers, or with more than two tags.
    pub malformed: bool,
    /// The longest payload after the Ethernet header of frames that are not super-packets, in
    /// bytes; at least 100.
    pub max_payload: usize,
}

/// One of a few unicast MAC addresses.
pub fn mac(random: &mut Random) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, 1 + random.below(4) as u8])
}

/// One of a few IPv4 addresses.
pub fn ip4(random: &mut Random) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, random.below(2) as u8, 1 + random.below(3) as u8)
}

/// One of a few IPv6 addresses.
pub fn ip6(random: &mut Random) -> Ipv6Addr {
    let net = random.pick(&[0xfd00, 0xfe80]);
    Ipv6Addr::new(net, 0, 0, 0, 0, 0, random.below(2) as u16, 1 + random.below(3) as u16)
}

/// One of a few TCP or UDP port numbers.
pub fn port(random: &mut Random) -> u16 {
    random.pick(&[22, 53, 80, 443, 4789, 40_000, 40_001])
}

/// A random frame.
pub fn frame(random: &mut Random, kinds: FrameKinds) -> PacketBuf {
    if kinds.supers && random.once_in(4) {
        return super_packet(random);
    }
    let mut packet = small(random, kinds.max_payload.clamp(100, 9000) - 100);
    if packet.offload.checksum != Checksum::Unverified && random.once_in(2) {
        complete_checksum(&mut packet).expect("the checksum is where it belongs");
        packet.offload = Offload::default();
    }
    if kinds.snap && random.once_in(8) {
        packet = in_snap(random, &packet, kinds.malformed);
    }
    if kinds.malformed && random.once_in(10) {
        return damaged(random, &packet);
    }
    if kinds.malformed && random.once_in(12) {
        return priority_tagged(random, &packet);
    }
    packet
}

/// Inserts an LLC and SNAP header. The IEEE 802.3 length may include padding, and with `malformed`
/// it is sometimes wrong. A packet that would be too long is returned unchanged.
fn in_snap(random: &mut Random, packet: &PacketBuf, malformed: bool) -> PacketBuf {
    let packet = completed_if_partial(packet);
    let frame = packet.head();
    let ethertype = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let mut at = 12;
    while matches!(ethertype(at), 0x8100 | 0x88a8) {
        at += 4;
    }
    let padding = random.pick(&[0, 0, 0, 1, 18]);
    let length = SNAP.len() + frame.len() - at + padding;
    if ethertype(at) < 0x0600 || length > MAX_LENGTH {
        return packet;
    }
    let wrong = malformed && random.once_in(12);
    let length = if wrong { random.pick(&[0, 7, 28, length + 1]) } else { length };
    let (addresses, rest) = frame.split_at(at);
    let length = (length as u16).to_be_bytes();
    PacketBuf::from_bytes(&[addresses, &length, &SNAP, rest, &vec![0xa5; padding]].concat())
}

/// Inserts one to five priority tags (VID 0) before the packet's own tags. A flow key contains at
/// most two tags.
fn priority_tagged(random: &mut Random, packet: &PacketBuf) -> PacketBuf {
    let packet = completed_if_partial(packet);
    let tags = [0x81, 0, 0, 0].repeat(1 + random.below(5));
    let (addresses, rest) = packet.head().split_at(12);
    PacketBuf::from_bytes(&[addresses, &tags, rest].concat())
}

/// A TCP or UDP super-packet of 2 to about 40 segments.
pub fn super_packet(random: &mut Random) -> PacketBuf {
    let size = random.pick(&[200, 536, 1000, 1400]);
    let len = size * (2 + random.below(12)) - random.below(size);
    let payload = bytes(random, len);
    let (v6, tcp) = (random.once_in(2), !random.once_in(3));
    let (l4, protocol) = if tcp {
        (tcp_header(random, &payload), Protocol::TCP)
    } else {
        (udp_header(random, &payload), Protocol::UDP)
    };
    let mut packet = tagged_ip(random, v6, protocol, l4);
    let kind = match (tcp, v6) {
        (false, _) => GsoKind::UdpL4,
        (true, false) => GsoKind::TcpV4,
        (true, true) => GsoKind::TcpV6,
    };
    packet.offload.gso = Some(Gso { kind, size: size as u16, ecn: false });
    packet
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let mut word = random.word();
    let next = |_| {
        word = word.rotate_left(5).wrapping_add(0x9e37);
        word as u8
    };
    (0..len).map(next).collect()
}

fn small(random: &mut Random, max_payload: usize) -> PacketBuf {
    let len = random.pick(&[0, 1, 18, 60, 200, 1000, 1452, 4000]).min(max_payload);
    let payload = bytes(random, len);
    let v6 = random.once_in(2);
    match random.below(12) {
        0..3 => {
            let l4 = tcp_header(random, &payload);
            tagged_ip(random, v6, Protocol::TCP, l4)
        }
        3..6 => {
            let l4 = udp_header(random, &payload);
            tagged_ip(random, v6, Protocol::UDP, l4)
        }
        6 => echo(random, v6, &payload),
        7 => neighbour(random),
        8 => arp(random),
        9 => fragment(random, v6, &payload),
        10 => {
            let l4 = [&[0x9c, 0x40, 0x13, 0xc4, 1, 2, 3, 4, 5, 6, 7, 8], &payload[..]].concat();
            plain(tagged_ip(random, v6, Protocol(132), l4))
        }
        _ => {
            let ethertype = random.pick(&[0x88cc, 0x8847, 0x0040, 0x9000]);
            let header = ethernet(random, ethertype);
            let body: Vec<u8> = (0..46).map(|_| random.below(256) as u8).collect();
            let frame = [&header[..], &body, &payload].concat();
            PacketBuf::from_bytes(&frame)
        }
    }
}

/// An Ethernet header with up to two tags.
fn ethernet(random: &mut Random, ethertype: u16) -> Vec<u8> {
    let group = random.pick(&[[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]]);
    let dst = if random.once_in(5) { group } else { mac(random).0 };
    let mut header = [dst, mac(random).0].concat();
    let tags = random.pick(&[0, 0, 0, 0, 1, 1, 2, 2]);
    for number in 0..tags {
        let tpid = if number + 1 < tags && random.once_in(2) { 0x88a8_u16 } else { 0x8100 };
        let tci = random.pick(&[0, 0x2000, 0x6000]) | random.pick(&[0, 1, 2, 100_u16]);
        header.extend(tpid.to_be_bytes());
        header.extend(tci.to_be_bytes());
    }
    header.extend(ethertype.to_be_bytes());
    header
}

/// An IP packet with a partial transport checksum, if the protocol has one.
fn tagged_ip(random: &mut Random, v6: bool, protocol: Protocol, l4: Vec<u8>) -> PacketBuf {
    let mut frame = ethernet(random, if v6 { IPV6 } else { IPV4 });
    let sum = if v6 {
        let (src, dst) = (ip6(random), ip6(random));
        ipv6_header(random, &mut frame, protocol.0, l4.len(), (src, dst));
        pseudo_v6(src, dst, protocol, l4.len() as u32)
    } else {
        let (src, dst) = (ip4(random), ip4(random));
        ipv4_header(random, &mut frame, protocol.0, l4.len(), 0x4000, (src, dst));
        pseudo_v4(src, dst, protocol, l4.len() as u16)
    };
    let start = frame.len();
    frame.extend(l4);
    let offset = match protocol {
        Protocol::TCP => 16,
        Protocol::UDP => 6,
        Protocol::ICMPV6 => 2,
        _ => return PacketBuf::from_bytes(&frame),
    };
    frame[start + offset..start + offset + 2].copy_from_slice(&sum.fold().to_be_bytes());
    let mut packet = PacketBuf::from_bytes(&frame);
    packet.offload.checksum = Checksum::Partial { start: start as u16, offset: offset as u16 };
    packet
}

fn ipv4_header(
    random: &mut Random,
    frame: &mut Vec<u8>,
    protocol: u8,
    len: usize,
    fragment: u16,
    (src, dst): (Ipv4Addr, Ipv4Addr),
) {
    let options: &[u8] = if random.once_in(8) { &[0x94, 4, 0, 0] } else { &[] };
    let fragment = if random.once_in(3) { fragment & 0x3fff } else { fragment };
    let total = (20 + options.len() + len) as u16;
    let mut header = vec![0x45 + (options.len() / 4) as u8, traffic_class(random)];
    header.extend(total.to_be_bytes());
    header.extend([0x12, random.below(4) as u8]);
    header.extend(fragment.to_be_bytes());
    header.extend([random.pick(&[0, 1, 2, 64]), protocol, 0, 0]);
    header.extend(src.octets());
    header.extend(dst.octets());
    header.extend(options);
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    frame.extend(header);
}

fn ipv6_header(
    random: &mut Random,
    frame: &mut Vec<u8>,
    next: u8,
    len: usize,
    (src, dst): (Ipv6Addr, Ipv6Addr),
) {
    let word = 6 << 28 | u32::from(traffic_class(random)) << 20 | random.below(3) as u32;
    frame.extend(word.to_be_bytes());
    frame.extend((len as u16).to_be_bytes());
    frame.extend([next, random.pick(&[0, 1, 2, 64, 255])]);
    frame.extend(src.octets());
    frame.extend(dst.octets());
}

/// One of a few DSCPs, with any ECN value.
fn traffic_class(random: &mut Random) -> u8 {
    random.pick(&[0, 10, 46]) << 2 | random.below(4) as u8
}

fn tcp_header(random: &mut Random, payload: &[u8]) -> Vec<u8> {
    let flags = random.pick(&[0x02, 0x10, 0x12, 0x18]);
    let options: &[u8] = match flags & 2 {
        0 => &[1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8],
        _ => &[2, 4, 5, 0xb4],
    };
    let mut header = [port(random).to_be_bytes(), port(random).to_be_bytes()].concat();
    header.extend((random.word() as u32).to_be_bytes());
    header.extend([
        0,
        0,
        0,
        1,
        0x50 + ((options.len() as u8 / 4) << 4),
        flags,
        0xff,
        0,
        0,
        0,
        0,
        0,
    ]);
    [&header, options, payload].concat()
}

fn udp_header(random: &mut Random, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let words = [port(random), port(random), len, 0].map(u16::to_be_bytes);
    [&words.concat(), payload].concat()
}

fn echo(random: &mut Random, v6: bool, payload: &[u8]) -> PacketBuf {
    let kind = if v6 { 128 } else { 8 } + random.below(2) as u8 * u8::from(v6);
    let mut l4 = [&[kind, 0, 0, 0, 0, 1, 0, 2], payload].concat();
    if v6 {
        return completed(tagged_ip(random, true, Protocol::ICMPV6, l4));
    }
    let sum = checksum(&l4).to_be_bytes();
    l4[2..4].copy_from_slice(&sum);
    tagged_ip(random, false, Protocol::ICMP, l4)
}

/// A neighbour solicitation or advertisement, with or without an option, some with an invalid hop
/// limit.
fn neighbour(random: &mut Random) -> PacketBuf {
    let kind = random.pick(&[135, 136]);
    let mut l4 = vec![kind, 0, 0, 0, 0x60, 0, 0, 0];
    l4.extend(ip6(random).octets());
    if !random.once_in(3) {
        l4.extend([kind - 134, 1]);
        l4.extend(mac(random).0);
    }
    completed(tagged_ip(random, true, Protocol::ICMPV6, l4))
}

fn completed(mut packet: PacketBuf) -> PacketBuf {
    complete_checksum(&mut packet).expect("the checksum is where it belongs");
    plain(packet)
}

/// A frame without a partial checksum.
fn plain(mut packet: PacketBuf) -> PacketBuf {
    packet.offload = Offload::default();
    packet
}

fn arp(random: &mut Random) -> PacketBuf {
    let mut frame = ethernet(random, ARP);
    frame.extend([0, 1, 8, 0, 6, 4, 0, random.pick(&[1, 2])]);
    frame.extend(mac(random).0);
    frame.extend(ip4(random).octets());
    frame.extend(mac(random).0);
    frame.extend(ip4(random).octets());
    // Padded to the minimum frame length.
    frame.resize(frame.len().max(60), 0);
    PacketBuf::from_bytes(&frame)
}

/// A first or later fragment.
fn fragment(random: &mut Random, v6: bool, payload: &[u8]) -> PacketBuf {
    let later = random.once_in(2);
    let l4 = [&udp_header(random, payload)[..], &[0; 8]].concat();
    let l4 = &l4[..l4.len() / 8 * 8];
    let mut frame = ethernet(random, if v6 { IPV6 } else { IPV4 });
    if v6 {
        let ends = (ip6(random), ip6(random));
        ipv6_header(random, &mut frame, FRAGMENT, 8 + l4.len(), ends);
        frame.extend([17, 0, 0, if later { 8 } else { 1 }, 0, 0, 0, 7]);
    } else {
        let ends = (ip4(random), ip4(random));
        ipv4_header(random, &mut frame, 17, l4.len(), if later { 1 } else { 0x2000 }, ends);
    }
    frame.extend(l4);
    PacketBuf::from_bytes(&frame)
}

/// Truncates the packet, or changes a byte of its headers.
fn damaged(random: &mut Random, packet: &PacketBuf) -> PacketBuf {
    let mut frame = completed_if_partial(packet).to_vec();
    if random.once_in(2) {
        frame.truncate(TAGGED_MIN + random.below(frame.len().max(TAGGED_MIN + 1) - TAGGED_MIN));
    } else {
        // The changed byte is neither in the MAC addresses nor in the EtherTypes of tags.
        let at = 16 + random.below(frame.len().min(70) - 16);
        frame[at] ^= 1 << random.below(8);
    }
    PacketBuf::from_bytes(&frame)
}

fn completed_if_partial(packet: &PacketBuf) -> PacketBuf {
    if packet.offload.checksum == Checksum::Unverified {
        packet.clone()
    } else {
        completed(packet.clone())
    }
}
