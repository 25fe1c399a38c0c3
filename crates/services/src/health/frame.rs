//! The frames of checks: emits probes and parses answers.

use super::Check;
use std::net::{IpAddr, SocketAddr};
use wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use wire::{
    EtherType, EthernetPacket, EthernetRepr, Fragment, Icmpv4Packet, Icmpv6Packet, Ipv4Options,
    Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, Protocol, TcpFlags, TcpOptions, TcpPacket, TcpRepr,
    UdpPacket, UdpRepr,
};

const ETHERNET_LEN: usize = 14;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;
/// The TCP window of probes: one segment, which is enough for a status line.
const WINDOW: u16 = 1460;
const TTL: u8 = 64;
/// Type and code of ICMP "port unreachable" (RFC 792).
const PORT_UNREACHABLE_V4: (u8, u8) = (3, 3);
/// Type and code of ICMPv6 "port unreachable" (RFC 4443 section 3.1).
const PORT_UNREACHABLE_V6: (u8, u8) = (1, 4);

/// A TCP segment to a backend.
pub(super) struct Segment {
    pub(super) source_port: u16,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: TcpFlags,
}

/// A frame with a TCP segment to the backend of a check.
pub(super) fn segment(check: &Check, segment: &Segment, payload: &[u8]) -> Vec<u8> {
    let mut packet = TcpPacket::new_unchecked(vec![0; TCP_LEN + payload.len()]);
    let header = TcpRepr {
        src_port: segment.source_port,
        dst_port: check.backend.port(),
        seq: segment.seq,
        ack: segment.ack,
        flags: segment.flags,
        window: WINDOW,
        urgent: 0,
        options: TcpOptions::default(),
    };
    header.emit(&mut packet);
    let mut bytes = packet.into_inner();
    bytes.splice(TCP_LEN.., payload.iter().copied());
    let sum = pseudo_header(check, Protocol::TCP, bytes.len());
    let mut packet = TcpPacket::new_unchecked(bytes);
    packet.fill_checksum(sum);
    frame(check, (Protocol::TCP, 0), &packet.into_inner())
}

/// A UDP datagram to the backend of a check: the UDP header and the payload.
pub(super) fn datagram(check: &Check, source_port: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; UDP_LEN];
    bytes.extend(payload);
    let sum = pseudo_header(check, Protocol::UDP, bytes.len());
    // The cast is lossless: payloads are short.
    let length = bytes.len() as u16;
    let mut packet = UdpPacket::new_unchecked(bytes);
    UdpRepr { src_port: source_port, dst_port: check.backend.port(), length }.emit(&mut packet);
    packet.fill_checksum(sum);
    packet.into_inner()
}

/// The pseudo-header of a probe with a payload of `len` bytes, which is far below 65,535.
fn pseudo_header(check: &Check, protocol: Protocol, len: usize) -> Sum {
    match (check.source, check.backend.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => pseudo_v4(src, dst, protocol, len as u16),
        (IpAddr::V6(src), IpAddr::V6(dst)) => pseudo_v6(src, dst, protocol, len as u32),
        _ => Sum::default(),
    }
}

/// Prepends Ethernet and IP headers to a payload. An IPv4 header gets the identification `ident`.
/// Empty if the addresses are of different IP versions.
pub(super) fn frame(check: &Check, (protocol, ident): (Protocol, u16), payload: &[u8]) -> Vec<u8> {
    let payload_len = payload.len() as u16;
    let (ethertype, ip) = match (check.source, check.backend.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = Ipv4Repr {
                tos: 0,
                payload_len,
                ident,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset_bytes: 0,
                ttl: TTL,
                protocol,
                src,
                dst,
                options: Ipv4Options::default(),
            };
            let mut packet = Ipv4Packet::new_unchecked(vec![0; header.header_len()]);
            header.emit(&mut packet);
            (EtherType::IPV4, packet.into_inner())
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = Ipv6Repr {
                traffic_class: 0,
                flow_label: 0,
                payload_len,
                next_header: protocol,
                hop_limit: TTL,
                src,
                dst,
            };
            let mut packet = Ipv6Packet::new_unchecked(vec![0; IPV6_LEN]);
            header.emit(&mut packet);
            (EtherType::IPV6, packet.into_inner())
        }
        _ => return Vec::new(),
    };
    let mut packet = EthernetPacket::new_unchecked(vec![0; ETHERNET_LEN]);
    EthernetRepr { dst: check.backend_mac, src: check.source_mac, ethertype }.emit(&mut packet);
    [packet.into_inner().as_slice(), &ip, payload].concat()
}

/// A frame that may be an answer to a probe.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    /// A TCP segment.
    Segment {
        from: SocketAddr,
        to: SocketAddr,
        seq: u32,
        ack: u32,
        flags: TcpFlags,
        payload: &'a [u8],
    },
    /// An ICMP error about a UDP datagram from `from` to `to`.
    PortUnreachable {
        from: SocketAddr,
        to: SocketAddr,
        /// The identification of the quoted IPv4 header.
        ident: Option<u16>,
        /// The quoted bytes from the UDP header on.
        datagram: &'a [u8],
    },
}

impl<'a> Answer<'a> {
    /// Parses a frame; `None` if it cannot be an answer. Checksums are not verified: with checksum
    /// offload, a guest's kernel leaves them to its device, which is this switch.
    pub(super) fn parse(frame: &'a [u8]) -> Option<Self> {
        let ethernet = EthernetPacket::new_checked(frame).ok()?;
        match ethernet.ethertype() {
            EtherType::IPV4 => {
                let packet = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
                if packet.fragment() != Fragment::Whole {
                    return None;
                }
                let addresses = (packet.src().into(), packet.dst().into());
                match packet.protocol() {
                    Protocol::TCP => Self::segment(addresses, packet.payload()),
                    Protocol::ICMP => Self::error_v4(addresses, packet.payload()),
                    _ => None,
                }
            }
            EtherType::IPV6 => {
                let packet = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
                let addresses = (packet.src().into(), packet.dst().into());
                // Answers to probes have no extension headers.
                match packet.next_header() {
                    Protocol::TCP => Self::segment(addresses, packet.payload()),
                    Protocol::ICMPV6 => Self::error_v6(addresses, packet.payload()),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn segment((src, dst): (IpAddr, IpAddr), bytes: &'a [u8]) -> Option<Self> {
        let packet = TcpPacket::new_checked(bytes).ok()?;
        Some(Self::Segment {
            from: SocketAddr::new(src, packet.src_port()),
            to: SocketAddr::new(dst, packet.dst_port()),
            seq: packet.seq(),
            ack: packet.ack(),
            flags: packet.flags(),
            payload: packet.payload(),
        })
    }

    fn error_v4((src, dst): (IpAddr, IpAddr), bytes: &'a [u8]) -> Option<Self> {
        let error = Icmpv4Packet::new_checked(bytes).ok()?;
        if (error.kind(), error.code()) != PORT_UNREACHABLE_V4 {
            return None;
        }
        let quoted = Ipv4Packet::new_header(error.data()).ok()?;
        if quoted.protocol() != Protocol::UDP {
            return None;
        }
        let addresses = (quoted.src().into(), quoted.dst().into());
        let datagram = error.data().get(quoted.header_len()..)?;
        Self::quoted((src, dst), addresses, (Some(quoted.ident()), datagram))
    }

    fn error_v6((src, dst): (IpAddr, IpAddr), bytes: &'a [u8]) -> Option<Self> {
        let error = Icmpv6Packet::new_checked(bytes).ok()?;
        if (error.kind(), error.code()) != PORT_UNREACHABLE_V6 {
            return None;
        }
        let quoted = Ipv6Packet::new_header(error.data()).ok()?;
        if quoted.next_header() != Protocol::UDP {
            return None;
        }
        let addresses = (quoted.src().into(), quoted.dst().into());
        Self::quoted((src, dst), addresses, (None, error.data().get(IPV6_LEN..)?))
    }

    /// Accepts an ICMP error only if it travels from the backend to the sender of the quoted
    /// datagram.
    fn quoted(
        (src, dst): (IpAddr, IpAddr),
        (from, to): (IpAddr, IpAddr),
        (ident, datagram): (Option<u16>, &'a [u8]),
    ) -> Option<Self> {
        let header = UdpPacket::new_header(datagram).ok()?;
        ((src, dst) == (to, from)).then(|| Self::PortUnreachable {
            from: SocketAddr::new(from, header.src_port()),
            to: SocketAddr::new(to, header.dst_port()),
            ident,
            datagram,
        })
    }

    /// The backend that may have been probed.
    pub(super) const fn backend(&self) -> SocketAddr {
        match self {
            Self::Segment { from, .. } => *from,
            Self::PortUnreachable { to, .. } => *to,
        }
    }

    /// The source port of the probe.
    pub(super) const fn source_port(&self) -> u16 {
        match self {
            Self::Segment { to, .. } => to.port(),
            Self::PortUnreachable { from, .. } => from.port(),
        }
    }

    /// The source address of the probe.
    pub(super) const fn destination(&self) -> IpAddr {
        match self {
            Self::Segment { to, .. } => to.ip(),
            Self::PortUnreachable { from, .. } => from.ip(),
        }
    }
}
