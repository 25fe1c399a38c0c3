//! Decapsulation: reads a tunnel header, and returns its logical switch and the offset of the inner
//! frame.
//!
//! The caller has checked the outer source, destination and port
//! ([`EndpointTable::find`](crate::EndpointTable::find)). The bytes are untrusted: no input causes
//! a panic, and every rejected packet gets a [`DropReason`].

use crate::{DropReason, TunnelKey};
use packet::PacketBuf;
use std::net::IpAddr;
use wire::ecn::{self, Ecn};
use wire::{
    EtherType, Fragment, Ipv4Packet, Ipv6Packet, Located, ParseError, ParseErrorKind, Protocol,
    ethernet,
};

/// The content of a tunnel header, and the offset of the inner frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decapped {
    /// The logical switch, and the logical ports if the header names them.
    pub key: TunnelKey,
    /// Offset of the inner frame from the tunnel header, in bytes.
    pub inner: usize,
}

impl Decapped {
    /// Rejects an inner frame that is shorter than an Ethernet header.
    pub(crate) fn new(key: TunnelKey, inner: usize, bytes: &[u8]) -> Result<Self, DropReason> {
        if bytes.len() < inner + ethernet::HEADER_LEN {
            return Err(DropReason::Malformed);
        }
        Ok(Self { key, inner })
    }
}

/// The drop reason for a tunnel header that does not parse.
pub(crate) fn malformed(error: ParseError) -> DropReason {
    match error.kind {
        ParseErrorKind::UnknownCriticalOption { .. } => DropReason::GeneveCriticalOption,
        _ => DropReason::MalformedTunnel,
    }
}

/// The outer IP header of a packet that was received as a whole frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OuterIp {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol of the payload.
    pub protocol: Protocol,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// The DF bit of IPv4; false for IPv6, which routers never fragment.
    pub dont_fragment: bool,
}

/// Removes the outer Ethernet and IP headers, and the padding after the IP packet.
///
/// # Errors
/// [`DropReason::Malformed`] for headers that do not parse, [`DropReason::OuterChecksum`] for a
/// wrong IPv4 header checksum, [`DropReason::OuterFragment`] for IP fragments. The packet is
/// unchanged then.
pub fn strip_outer(packet: &mut PacketBuf) -> Result<OuterIp, DropReason> {
    packet.linearize();
    let frame = packet.head();
    let located = wire::transport_offset(frame).map_err(|_| DropReason::Malformed)?;
    if located.has_snap() {
        // The host's IP stack does not accept IP after a SNAP header either.
        return Err(DropReason::Malformed);
    }
    if located.fragment != Fragment::Whole {
        return Err(DropReason::OuterFragment);
    }
    let l4 = located.l4.ok_or(DropReason::Malformed)?;
    let ip = &frame[located.l3..];
    let outer = if located.ethertype == EtherType::IPV4 {
        let ip = Ipv4Packet::new_unchecked(ip);
        // A packet socket receives packets before the host's IP stack has verified the checksum.
        if !ip.verify_checksum() {
            return Err(DropReason::OuterChecksum);
        }
        OuterIp {
            source: IpAddr::V4(ip.src()),
            destination: IpAddr::V4(ip.dst()),
            protocol: located.protocol,
            traffic_class: ip.tos(),
            ttl: ip.ttl(),
            dont_fragment: ip.dont_fragment(),
        }
    } else {
        let ip = Ipv6Packet::new_unchecked(ip);
        OuterIp {
            source: IpAddr::V6(ip.src()),
            destination: IpAddr::V6(ip.dst()),
            protocol: located.protocol,
            traffic_class: ip.traffic_class(),
            ttl: ip.hop_limit(),
            dont_fragment: false,
        }
    };
    packet.truncate(located.l3_end);
    packet.pull_front(l4);
    Ok(outer)
}

/// Combines the outer ECN mark into an inner Ethernet frame (RFC 6040 section 4.2).
///
/// # Errors
/// [`DropReason::EcnNotCapable`] when the outer header reports congestion and the inner packet is
/// not ECN-capable. [`DropReason::Malformed`] for an inner IP header that must be marked and does
/// not parse.
pub fn propagate_ecn(outer_traffic_class: u8, packet: &mut PacketBuf) -> Result<(), DropReason> {
    let Some(outer) = marked(outer_traffic_class) else { return Ok(()) };
    let located = packet.located().map_err(|_| DropReason::Malformed)?;
    combine(packet.fields_mut(), &located, outer)
}

/// [`propagate_ecn`] for one of several frames in a buffer.
///
/// # Errors
/// As of [`propagate_ecn`].
pub fn propagate_ecn_in_slice(outer_traffic_class: u8, frame: &mut [u8]) -> Result<(), DropReason> {
    let Some(outer) = marked(outer_traffic_class) else { return Ok(()) };
    let located = wire::transport_offset(frame).map_err(|_| DropReason::Malformed)?;
    combine(frame, &located, outer)
}

/// The ECN field of an outer traffic class; `None` if it is not marked, so that the inner field is
/// kept (RFC 6040).
fn marked(outer_traffic_class: u8) -> Option<Ecn> {
    Some(Ecn::of(outer_traffic_class)).filter(|outer| *outer != Ecn::NotEct)
}

fn combine(frame: &mut [u8], located: &Located, outer: Ecn) -> Result<(), DropReason> {
    match ecn::decap_frame(frame, located, outer).ecn {
        Some(_) => Ok(()),
        None => Err(DropReason::EcnNotCapable),
    }
}
