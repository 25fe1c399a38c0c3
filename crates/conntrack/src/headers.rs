//! [`Headers`]: the header fields of a packet that connection tracking reads.

mod quote;
mod sctp;
mod tcp;

use std::net::IpAddr;

use packet::PacketBuf;
use wire::{EtherType, Fragment, Ipv4Packet, Ipv6Packet, Located, Protocol, icmp, udp};

pub(crate) use sctp::{Chunk, SctpPacket};
pub(crate) use tcp::{Segment, TcpEvent, is_after};

use crate::{Invalid, Tuple};

/// The highest ICMP type that RFC 792 and its successors define; Linux's conntrack accepts no
/// higher type.
const MAX_ICMP_TYPE: u8 = 18;

/// The header fields of a packet that connection tracking reads.
///
/// The values are copies, so headers stay usable after the packet was rewritten.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    /// `Err` when the packet is malformed or cannot be tracked.
    pub(crate) content: Result<Content, Invalid>,
}

/// The contents of a packet that can be tracked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    /// The tuple of the packet; for an ICMP error, the tuple of the quoted packet.
    pub tuple: Tuple,
    pub transport: Transport,
}

/// The fields that the state machine of the packet's protocol reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    Tcp(Segment),
    Udp,
    /// A request or reply.
    Icmp,
    /// An ICMP or ICMPv6 error, which quotes a packet of the connection. `is_redirect` is true for
    /// ICMP redirects, which contain an address that NAT cannot translate.
    Error {
        is_redirect: bool,
    },
    Sctp(SctpPacket),
    Other,
}

impl Headers {
    /// Reads the headers of `packet`. `None` when it is not IP, or when its headers up to the
    /// transport layer do not parse: such a packet is not tracked.
    ///
    /// An invalid IP packet, for example a fragment, also has headers:
    /// [`Table::track`](crate::Table::track) reports it as invalid. Checksums are not verified; see
    /// [`Headers::with_wrong_checksum`].
    pub fn parse(packet: &PacketBuf) -> Option<Self> {
        let at = packet.located().ok()?;
        let head = packet.head();
        let (src, dst): (IpAddr, IpAddr) = match at.ethertype {
            EtherType::IPV4 => {
                let ip = Ipv4Packet::new_header(head.get(at.l3..)?).ok()?;
                (ip.src().into(), ip.dst().into())
            }
            EtherType::IPV6 => {
                let ip = Ipv6Packet::new_header(head.get(at.l3..)?).ok()?;
                (ip.src().into(), ip.dst().into())
            }
            _ => return None,
        };
        Some(Self { content: content(head, &at, src, dst) })
    }

    /// Marks the packet as invalid because a checksum is wrong. The caller verifies checksums that
    /// no device has verified, as far as it wants to pay for that. The datapaths do not, so only
    /// tests call this; [`Invalid::Checksum`] is there for one that does.
    #[must_use]
    pub const fn with_wrong_checksum(self) -> Self {
        Self { content: Err(Invalid::Checksum) }
    }

    /// The packet's own tuple. `None` for an invalid packet and for an ICMP error.
    pub fn tuple(&self) -> Option<Tuple> {
        let content = self.content.ok()?;
        (!matches!(content.transport, Transport::Error { .. })).then_some(content.tuple)
    }
}

fn content(head: &[u8], at: &Located, src: IpAddr, dst: IpAddr) -> Result<Content, Invalid> {
    if at.fragment != Fragment::Whole {
        return Err(Invalid::Fragment);
    }
    let plain = |transport, src_port, dst_port| {
        let tuple = Tuple::new(src, dst, at.protocol, src_port, dst_port);
        Ok(Content { tuple: tuple.ok_or(Invalid::Malformed)?, transport })
    };
    // After an IPv6 "no next header" there is no transport header, and no field to distinguish
    // flows.
    let Some(l4) = at.l4 else { return plain(Transport::Other, 0, 0) };
    let bytes = head.get(l4..at.l3_end.min(head.len())).ok_or(Invalid::Malformed)?;
    let len = at.l3_end - l4;
    let is_v4 = at.ethertype == EtherType::IPV4;
    match at.protocol {
        Protocol::TCP => {
            let (segment, [src_port, dst_port]) = Segment::parse(bytes, len)?;
            plain(Transport::Tcp(segment), src_port, dst_port)
        }
        Protocol::UDP => {
            let &[a, b, c, d, high, low, ..] = first::<{ udp::HEADER_LEN }>(bytes)?;
            let length = usize::from(u16::from_be_bytes([high, low]));
            if length < udp::HEADER_LEN || length > len {
                return Err(Invalid::Malformed);
            }
            plain(Transport::Udp, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
        }
        Protocol::SCTP => {
            let (packet, [src_port, dst_port]) = SctpPacket::parse(bytes, len)?;
            plain(Transport::Sctp(packet), src_port, dst_port)
        }
        Protocol::ICMP if is_v4 => icmp4(bytes, src, dst),
        Protocol::ICMPV6 if !is_v4 => icmp6(bytes, src, dst),
        _ => plain(Transport::Other, 0, 0),
    }
}

fn first<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], Invalid> {
    bytes.first_chunk().ok_or(Invalid::Malformed)
}

fn icmp4(bytes: &[u8], src: IpAddr, dst: IpAddr) -> Result<Content, Invalid> {
    let &[kind, code, _, _, high, low, _, _] = first::<{ icmp::HEADER_LEN }>(bytes)?;
    match kind {
        3 | 4 | 5 | 11 | 12 => quoted(&bytes[icmp::HEADER_LEN..], true, dst, kind == 5),
        0..=MAX_ICMP_TYPE => {
            message(Tuple::icmp(src, dst, kind, code, u16::from_be_bytes([high, low])))
        }
        _ => Err(Invalid::Untrackable),
    }
}

fn icmp6(bytes: &[u8], src: IpAddr, dst: IpAddr) -> Result<Content, Invalid> {
    let &[kind, code, _, _, high, low, _, _] = first::<{ icmp::HEADER_LEN }>(bytes)?;
    match kind {
        0..128 => quoted(&bytes[icmp::HEADER_LEN..], false, dst, false),
        _ => message(Tuple::icmp(src, dst, kind, code, u16::from_be_bytes([high, low]))),
    }
}

/// A request or reply. Messages without a counterpart, such as neighbour discovery, are not
/// tracked.
fn message(tuple: Option<Tuple>) -> Result<Content, Invalid> {
    let tuple = tuple.filter(|tuple| tuple.reversed().is_some()).ok_or(Invalid::Untrackable)?;
    Ok(Content { tuple, transport: Transport::Icmp })
}

/// An error about the packet quoted in `bytes`. The error must be addressed to the sender of that
/// packet.
fn quoted(bytes: &[u8], is_v4: bool, dst: IpAddr, is_redirect: bool) -> Result<Content, Invalid> {
    let tuple = quote::parse(bytes, is_v4).ok_or(Invalid::Quote)?;
    if tuple.src() != dst {
        return Err(Invalid::Quote);
    }
    Ok(Content { tuple, transport: Transport::Error { is_redirect } })
}
