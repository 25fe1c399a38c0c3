//! Builds outer headers field by field, so that tests can set any field to a wrong value.

use super::Host;
use super::frames::frame;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::MacAddr;
use wire::checksum::Sum;

/// The IP protocol number of TCP.
pub const TCP: u8 = 6;
/// The IP protocol number of UDP.
pub const UDP: u8 = 17;
/// The IP protocol number of GRE.
pub const GRE: u8 = 47;

/// ECN "congestion experienced" (RFC 3168 section 5).
pub const CE: u8 = 3;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const TTL: u8 = 64;

/// The addresses of an outer packet.
#[derive(Clone, Copy, Debug)]
pub struct Outer {
    /// The sender's MAC address.
    pub src_mac: MacAddr,
    /// The receiver's MAC address.
    pub dst_mac: MacAddr,
    /// The sender's IP address.
    pub src: IpAddr,
    /// The receiver's IP address, of the same family.
    pub dst: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
}

impl Outer {
    /// The addresses of a packet between two hosts.
    pub fn between(from: &Host, to: &Host, family: u8) -> Self {
        Self {
            src_mac: from.uplink.mac,
            dst_mac: to.uplink.mac,
            src: from.underlay(family),
            dst: to.underlay(family),
            traffic_class: 0,
        }
    }

    /// The same addresses, except that the sender is an unknown host.
    pub fn as_stranger(self) -> Self {
        let src = match self.src {
            IpAddr::V4(ip) => Ipv4Addr::from(u32::from(ip) | 0x50).into(),
            IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) | 0x50).into(),
        };
        Self { src, ..self }
    }

    /// Sets the traffic class byte.
    pub fn traffic_class(self, traffic_class: u8) -> Self {
        Self { traffic_class, ..self }
    }

    /// An IP packet in an Ethernet frame.
    pub fn packet(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let (ethertype, header) = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (ETHERTYPE_IPV4, {
                let total = (20 + payload.len()) as u16;
                let mut header = vec![0x45, self.traffic_class];
                header.extend(total.to_be_bytes());
                header.extend([0, 0, 0x40, 0, TTL, protocol, 0, 0]);
                header.extend(src.octets());
                header.extend(dst.octets());
                let checksum = Sum::of(&header).checksum();
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
                header
            }),
            (src, dst) => (ETHERTYPE_IPV6, {
                let first = 6 << 28 | u32::from(self.traffic_class) << 20;
                let mut header = first.to_be_bytes().to_vec();
                header.extend((payload.len() as u16).to_be_bytes());
                header.extend([protocol, TTL]);
                header.extend(octets(src));
                header.extend(octets(dst));
                header
            }),
        };
        frame(self.dst_mac, self.src_mac, ethertype, &[&header[..], payload].concat())
    }

    /// A UDP datagram with its checksum.
    pub fn udp(&self, dst_port: u16, payload: &[u8]) -> Vec<u8> {
        self.packet(UDP, &self.datagram(dst_port, payload))
    }

    /// UDP header and payload.
    pub fn datagram(&self, dst_port: u16, payload: &[u8]) -> Vec<u8> {
        const SRC_PORT: u16 = 50_000;
        let len = (8 + payload.len()) as u16;
        let header = [SRC_PORT, dst_port, len, 0].map(u16::to_be_bytes).concat();
        let mut datagram = [&header[..], payload].concat();
        let checksum = self.transport_sum(UDP, &datagram).udp_checksum();
        datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
        datagram
    }

    /// The unfolded sum for the checksum over pseudo header and transport packet.
    pub fn transport_sum(&self, protocol: u8, transport: &[u8]) -> Sum {
        let addresses = Sum::of(&octets(self.src)).bytes(&octets(self.dst));
        addresses.u16(protocol.into()).u32(transport.len() as u32).bytes(transport)
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// One STT segment.
#[derive(Clone, Copy, Debug)]
pub struct SttSegment {
    /// The packet id.
    pub id: u32,
    /// The length of the frame, as the header states it.
    pub total: u16,
    /// The offset in the frame, as the header states it.
    pub offset: u16,
    /// The TCP flags.
    pub flags: u8,
}

impl SttSegment {
    /// The flags ACK and PSH, which STT requires.
    pub const FLAGS: u8 = 0x18;

    /// The TCP-like header and `payload`, in an Ethernet frame.
    pub fn frame(&self, outer: &Outer, dst_port: u16, payload: &[u8]) -> Vec<u8> {
        outer.packet(TCP, &self.segment(outer, dst_port, payload))
    }

    /// The TCP-like header and `payload`.
    pub fn segment(&self, outer: &Outer, dst_port: u16, payload: &[u8]) -> Vec<u8> {
        const SRC_PORT: u16 = 50_000;
        let mut segment =
            [SRC_PORT, dst_port, self.total, self.offset].map(u16::to_be_bytes).concat();
        segment.extend(self.id.to_be_bytes());
        segment.extend([5 << 4, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(payload);
        let checksum = outer.transport_sum(TCP, &segment).checksum();
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        segment
    }
}

/// The STT header of a frame without offloads, with this context ID.
pub fn stt_header(context: u64) -> Vec<u8> {
    [&[0; 8][..], &context.to_be_bytes(), &[0; 2]].concat()
}
