//! Random tunnel packets for comparing decapsulation: whole ones, ones with rare headers, and
//! damaged ones.

use super::frames::{self, bytes};
use super::tunnels::Tunnel;
use flow::{Carrier, TunnelType};
use std::net::IpAddr;
use testkit::frames::FrameKinds;
use testkit::random::Random;
use wire::checksum::checksum;

/// Offset of the outer IP header.
pub const L3: usize = 14;
/// The longest inner frame in bytes. A test run takes less than a page.
const MAX_INNER: usize = 1500;
const TEB: u16 = 0x6558;
const UDP: u8 = 17;
const GRE: u8 = 47;

/// A random packet that is valid for one of the tunnels, or differs from such a packet in a few
/// fields.
pub fn packet(random: &mut Random, tunnels: &[Tunnel]) -> Vec<u8> {
    let tunnel = random.pick(tunnels);
    let mut carried = tunnel_header(random, &tunnel);
    carried.extend(inner(random));
    if random.once_in(14) {
        // The lengths in the headers are computed afterwards, so they agree with the cut.
        carried.truncate(random.below(carried.len().min(90)));
    }
    let is_udp = tunnel.spec.tunnel.carrier() == Carrier::Udp;
    if !is_udp && carried.first().is_some_and(|flags| flags & 0x80 != 0) && !random.once_in(5) {
        fill_gre_checksum(&mut carried);
    }
    let (remote, local) = addresses(random, &tunnel, tunnels);
    let payload = match is_udp {
        true => datagram(random, tunnel.spec.port, remote, local, &carried),
        false => carried,
    };
    let protocol = if is_udp { UDP } else { GRE };
    let protocol = if random.once_in(30) { random.pick(&[1, 4, 6, 17, 47, 58]) } else { protocol };
    let mut packet = match (remote, local) {
        (IpAddr::V4(remote), IpAddr::V4(local)) => {
            let addresses = [remote.octets(), local.octets()].concat();
            ipv4(random, protocol, &addresses, &payload)
        }
        (remote, local) => {
            let addresses = [octets(remote), octets(local)].concat();
            ipv6(random, protocol, &addresses, &payload)
        }
    };
    if random.once_in(16) {
        frames::damage(random, &mut packet);
    }
    if random.once_in(25) {
        packet.truncate(L3 + random.below(packet.len().min(140) - L3));
    }
    if random.once_in(25) {
        packet.resize(packet.len() + 1 + random.below(20), 0xa5);
    }
    packet
}

/// The octets of an address.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Sender and receiver: mostly those of the tunnel.
fn addresses(random: &mut Random, tunnel: &Tunnel, tunnels: &[Tunnel]) -> (IpAddr, IpAddr) {
    let flipped = |address| match address {
        IpAddr::V4(address) => IpAddr::V4((address.to_bits() ^ 0x40).into()),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() ^ 1 << 90).into()),
    };
    let other = random.pick(tunnels);
    let other = if other.local.is_ipv4() == tunnel.local.is_ipv4() { other } else { *tunnel };
    match random.below(36) {
        0 => (other.remote, tunnel.local),
        1 => (flipped(tunnel.remote), tunnel.local),
        2 => (tunnel.remote, flipped(tunnel.local)),
        _ => (tunnel.remote, tunnel.local),
    }
}

fn inner(random: &mut Random) -> Vec<u8> {
    let mut frame = match random.below(8) {
        0 => frames::case(random).frame,
        1 => frames::tcp4(),
        2 => frames::tcp6(),
        _ => {
            let malformed = random.once_in(4);
            let kinds = FrameKinds { supers: false, snap: true, malformed, max_payload: 1200 };
            testkit::frames::frame(random, kinds).to_vec()
        }
    };
    if frame.len() < 60 && random.once_in(2) {
        frame.resize(60, 0);
    }
    frame.truncate(if random.once_in(60) { random.below(20) } else { MAX_INNER });
    frame
}

fn tunnel_header(random: &mut Random, tunnel: &Tunnel) -> Vec<u8> {
    match tunnel.spec.tunnel {
        TunnelType::Vxlan => {
            let mut header = vec![8, 0, 0, 0];
            if random.once_in(10) {
                header = bytes(random, 4);
            }
            header.extend(vni(random));
            header
        }
        TunnelType::Geneve => geneve(random),
        TunnelType::Gre => gre(random, tunnel.spec.key),
        TunnelType::Nvgre => gre(random, true),
        other => panic!("programs do not receive {other}"),
    }
}

/// A VNI, and the byte after it, which is reserved.
fn vni(random: &mut Random) -> [u8; 4] {
    let any = random.word() as u32 & 0xff_ffff;
    let vni = random.pick(&[0, 1, 0xff_ffff, any, any, any]);
    let reserved = if random.once_in(12) { random.word() as u8 } else { 0 };
    (vni << 8 | u32::from(reserved)).to_be_bytes()
}

/// The protocol of a tunnel header: mostly Ethernet.
fn protocol(random: &mut Random) -> [u8; 2] {
    let other = random.pick(&[0x0800, 0x86dd, 0, 0x6559, 0x5865]);
    u16::to_be_bytes(if random.once_in(24) { other } else { TEB })
}

fn geneve(random: &mut Random) -> Vec<u8> {
    let options = match random.below(8) {
        0..3 => Vec::new(),
        3..7 => logical_ports(random),
        _ => geneve_options(random),
    };
    let is_critical = !options.is_empty();
    let words = options.len() / 4 + usize::from(random.once_in(40)) * random.below(64);
    let version = if random.once_in(40) { random.below(4) as u8 } else { 0 };
    let mut flags = if is_critical != random.once_in(30) { 0x40 } else { 0 };
    if random.once_in(24) {
        flags ^= random.word() as u8;
    }
    let mut header = vec![version << 6 | words as u8 & 63, flags];
    header.extend(protocol(random));
    header.extend(vni(random));
    header.extend(options);
    header
}

/// OVN's option, mostly with valid ports.
fn logical_ports(random: &mut Random) -> Vec<u8> {
    let ports = random.word() as u32;
    let ports = match random.below(12) {
        0 => ports,
        1 => ports & 0x7fff_0000,
        _ => ports & 0x7fff_ffff | 1,
    };
    [&[1, 2, 0x80, 1], &ports.to_be_bytes()[..]].concat()
}

/// Up to four options of any class, type and length; at most 252 bytes in all.
fn geneve_options(random: &mut Random) -> Vec<u8> {
    let mut options = Vec::new();
    for _ in 0..1 + random.below(4) {
        let option = if random.once_in(3) {
            logical_ports(random)
        } else {
            let any = random.word();
            let class: u16 = random.pick(&[0x0102, 0x0103, 0, 0xffff, any as u16]);
            let kind = random.pick(&[0x80, 0, 1, 0x7f, 0xff, (any >> 16) as u8]);
            let words = random.pick(&[0, 1, 1, 2, 30, 31]);
            let reserved = if random.once_in(12) { 0xe0 & random.word() as u8 } else { 0 };
            let mut option = class.to_be_bytes().to_vec();
            option.extend([kind, reserved | words]);
            option.extend(bytes(random, usize::from(words) * 4));
            option
        };
        options.extend(option);
    }
    options.truncate(252);
    options
}

/// A GRE header. If it has a checksum, that is 0 until [`fill_gre_checksum`] computes it.
fn gre(random: &mut Random, is_keyed: bool) -> Vec<u8> {
    const CHECKSUM: u16 = 0x8000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    let usual = if is_keyed { KEY } else { 0 };
    let mut flags = match random.below(4) {
        0 => random.word() as u16 & (CHECKSUM | KEY | SEQUENCE),
        _ => usual,
    };
    if random.once_in(24) {
        // Sets random bits among routing, reserved bits and version.
        flags ^= random.word() as u16 & 0x4fff;
    }
    let mut header = flags.to_be_bytes().to_vec();
    header.extend(protocol(random));
    for field in [CHECKSUM, KEY, SEQUENCE] {
        if flags & field != 0 {
            let value = bytes(random, 4);
            header.extend(if field == CHECKSUM { vec![0; 4] } else { value });
        }
    }
    header
}

fn fill_gre_checksum(packet: &mut [u8]) {
    let sum = checksum(packet).to_be_bytes();
    if let Some(place) = packet.get_mut(4..6) {
        place.copy_from_slice(&sum);
    }
}

fn datagram(
    random: &mut Random,
    port: u16,
    remote: IpAddr,
    local: IpAddr,
    carried: &[u8],
) -> Vec<u8> {
    let other = random.pick(&[4789, 6081, 53, port ^ 1]);
    let port = if random.once_in(30) { other } else { port };
    let len = 8 + carried.len() as u16;
    let any = random.word() as u16;
    let wrong = random.pick(&[len - 1, len + 1, 0, 7, 8, any]);
    let len = if random.once_in(24) { wrong } else { len };
    let mut datagram = (random.word() as u16).to_be_bytes().to_vec();
    datagram.extend([port, len, 0].map(u16::to_be_bytes).as_flattened());
    datagram.extend(carried);
    let sum = match random.below(12) {
        0..3 => 0,
        3 => random.word() as u16,
        _ => udp_checksum(remote, local, &datagram),
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

/// The checksum of a datagram whose checksum field is 0 (RFC 768, RFC 8200 section 8.1).
fn udp_checksum(remote: IpAddr, local: IpAddr, datagram: &[u8]) -> u16 {
    let len = (datagram.len() as u32).to_be_bytes();
    let pseudo = [&octets(remote)[..], &octets(local), &len, &[0, 0, 0, UDP]].concat();
    match checksum(&[&pseudo[..], datagram].concat()) {
        0 => 0xffff,
        sum => sum,
    }
}

fn ethernet(random: &mut Random, ethertype: u16) -> Vec<u8> {
    let mut header = bytes(random, 12);
    let other = random.pick(&[0x0800, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x05dc]);
    let ethertype = if random.once_in(60) { other } else { ethertype };
    header.extend(ethertype.to_be_bytes());
    header
}

fn ipv4(random: &mut Random, protocol: u8, addresses: &[u8], payload: &[u8]) -> Vec<u8> {
    // No-operation options.
    let options = vec![1; if random.once_in(20) { random.pick(&[4, 8, 40]) } else { 0 }];
    let len = 20 + options.len() + payload.len();
    let any = usize::from(random.word() as u16);
    let wrong = random.pick(&[len + 1, len - 1, 19, 20, any]);
    let total = if random.once_in(30) { wrong } else { len };
    let fragment: u16 = match random.below(20) {
        0 => random.pick(&[0x2000, 1, 0x2001, 0x6000, 0x8000]),
        1..8 => 0,
        _ => 0x4000,
    };
    let first = 0x45 + (options.len() / 4) as u8;
    let first = if random.once_in(60) { random.word() as u8 } else { first };
    let mut header = vec![first, random.word() as u8];
    header.extend((total as u16).to_be_bytes());
    header.extend(bytes(random, 2));
    header.extend(fragment.to_be_bytes());
    header.extend([random.word() as u8, protocol, 0, 0]);
    header.extend(addresses);
    header.extend(options);
    let sum = checksum(&header) ^ if random.once_in(30) { random.word() as u16 } else { 0 };
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [ethernet(random, 0x0800), header, payload.to_vec()].concat()
}

fn ipv6(random: &mut Random, protocol: u8, addresses: &[u8], payload: &[u8]) -> Vec<u8> {
    let (mut next, mut payload) = (protocol, payload.to_vec());
    if random.once_in(12) {
        for _ in 0..1 + random.below(3) {
            let kind = random.pick(&[60, 60, 43, 44, 51, 0]);
            let mut header = vec![next, if kind == 51 { 4 } else { 0 }];
            header.extend(match kind {
                // An atomic fragment, or a true one.
                44 => [0, random.pick(&[0, 0, 1, 8]), 0, 0, 0, 1],
                // One option, as padding.
                _ => [1, 4, 0, 0, 0, 0],
            });
            header.resize(if kind == 51 { 24 } else { 8 }, 0);
            header.extend(payload);
            (next, payload) = (kind, header);
        }
    }
    let len = payload.len();
    let any = usize::from(random.word() as u16);
    let wrong = random.pick(&[len + 1, len.saturating_sub(1), 0, any]);
    let len = if random.once_in(30) { wrong } else { len };
    let version = if random.once_in(60) { random.word() as u8 & 0xf0 } else { 0x60 };
    let mut packet = ethernet(random, 0x86dd);
    packet.push(version | random.word() as u8 & 0x0f);
    packet.extend(bytes(random, 3));
    packet.extend((len as u16).to_be_bytes());
    packet.extend([next, random.word() as u8]);
    packet.extend(addresses);
    packet.extend(payload);
    packet
}
