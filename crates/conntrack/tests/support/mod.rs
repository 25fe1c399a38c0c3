//! Packets for the tests.

use std::net::IpAddr;

use conntrack::Headers;
use packet::PacketBuf;
use wire::checksum::{Sum, checksum, pseudo_v4, pseudo_v6};
use wire::{Crc32c, Protocol};

const ETHERNET_LEN: usize = 14;

/// Source and destination of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    pub src: IpAddr,
    pub dst: IpAddr,
}

impl Ends {
    pub fn reversed(self) -> Self {
        Self { src: self.dst, dst: self.src }
    }
}

/// An IP packet with the payload `l4`, whose checksum is filled in. `marker` is the IPv4
/// identification or the IPv6 flow label.
pub fn ip(ends: Ends, protocol: Protocol, mut l4: Vec<u8>, marker: u16) -> Vec<u8> {
    fill_checksum(ends, protocol, &mut l4);
    match (ends.src, ends.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header = vec![0x45, 0];
            header.extend((20 + l4.len() as u16).to_be_bytes());
            header.extend(marker.to_be_bytes());
            header.extend([0x40, 0, 64, protocol.0, 0, 0]);
            header.extend(src.octets());
            header.extend(dst.octets());
            let sum = checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            [header, l4].concat()
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut header = (6 << 28 | u32::from(marker)).to_be_bytes().to_vec();
            header.extend((l4.len() as u16).to_be_bytes());
            header.extend([protocol.0, 64]);
            header.extend(src.octets());
            header.extend(dst.octets());
            [header, l4].concat()
        }
        _ => panic!("the addresses are of different families"),
    }
}

fn fill_checksum(ends: Ends, protocol: Protocol, l4: &mut [u8]) {
    if protocol == Protocol::SCTP {
        if l4.len() >= 12 {
            l4[8..12].fill(0);
            let sum = Crc32c::new().bytes(l4).checksum();
            l4[8..12].copy_from_slice(&sum);
        }
        return;
    }
    let offset = match protocol {
        Protocol::TCP => 16,
        Protocol::UDP => 6,
        Protocol::ICMP | Protocol::ICMPV6 => 2,
        _ => return,
    };
    if l4.len() < offset + 2 {
        return;
    }
    let pseudo = match (ends.src, ends.dst) {
        _ if protocol == Protocol::ICMP => Sum::new(),
        (IpAddr::V4(src), IpAddr::V4(dst)) => pseudo_v4(src, dst, protocol, l4.len() as u16),
        (IpAddr::V6(src), IpAddr::V6(dst)) => pseudo_v6(src, dst, protocol, l4.len() as u32),
        _ => panic!("the addresses are of different families"),
    };
    l4[offset..offset + 2].fill(0);
    let sum = pseudo.bytes(l4).udp_checksum().to_be_bytes();
    l4[offset..offset + 2].copy_from_slice(&sum);
}

/// A TCP header with options and payload.
#[derive(Clone, Debug, Default)]
pub struct TcpSegment {
    pub ports: [u16; 2],
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    /// Padded to a multiple of four.
    pub options: Vec<u8>,
    pub payload_len: usize,
}

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;
pub const URG: u8 = 32;

impl TcpSegment {
    pub fn bytes(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        let mut bytes = self.ports.map(u16::to_be_bytes).concat();
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.extend([(5 + options.len() as u8 / 4) << 4, self.flags]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(options);
        bytes.extend(vec![0x5a; self.payload_len]);
        bytes
    }
}

/// A UDP datagram.
pub fn udp(ports: [u16; 2], payload_len: usize) -> Vec<u8> {
    let [src, dst] = ports;
    let words = [src, dst, 8 + payload_len as u16, 0].map(u16::to_be_bytes);
    [words.concat(), vec![0xa5; payload_len]].concat()
}

/// An ICMP or ICMPv6 message.
pub fn icmp(kind: u8, code: u8, rest: [u8; 4], data: &[u8]) -> Vec<u8> {
    [&[kind, code, 0, 0], &rest[..], data].concat()
}

/// The frame of an IP packet.
pub fn frame(ip: &[u8]) -> PacketBuf {
    let ethertype: [u8; 2] = if ip[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    PacketBuf::from_bytes(&[&[2; 6][..], &[4; 6], &ethertype, ip].concat())
}

/// The IP packet of a frame.
pub fn ip_of(frame: &PacketBuf) -> &[u8] {
    &frame.head()[ETHERNET_LEN..]
}

/// The headers of an IP packet.
pub fn headers(ip: &[u8]) -> Headers {
    Headers::parse(&frame(ip)).expect("the packet is IP")
}
