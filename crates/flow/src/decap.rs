//! Decapsulation: from the tunnel header on, which logical switch a frame belongs to and where it begins.
//!
//! Who sent the packet, and to which address and port, has been checked before (see
//! [`EndpointTable::find`](crate::EndpointTable::find)); here the bytes from outside are read. Nothing panics whatever
//! they are, and every refusal is a [`DropReason`].

use crate::{DropReason, TunnelKey};
use packet::PacketBuf;
use std::net::IpAddr;
use wire::ecn::{self, Ecn};
use wire::{
    EtherType, Fragment, Ipv4Packet, Ipv6Packet, ParseError, ParseErrorKind, Protocol, ethernet,
};

/// What a tunnel header says, and where the frame begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decapped {
    /// The logical switch, and the logical ports where the header names them.
    pub key: TunnelKey,
    /// Where the inner frame begins, counted from the tunnel header.
    pub inner: usize,
}

impl Decapped {
    /// Refuses what cannot hold an Ethernet header.
    pub(crate) fn new(key: TunnelKey, inner: usize, bytes: &[u8]) -> Result<Self, DropReason> {
        if bytes.len() < inner + ethernet::HEADER_LEN {
            return Err(DropReason::Malformed);
        }
        Ok(Self { key, inner })
    }
}

/// The reason under which a tunnel header that does not parse is counted.
pub(crate) fn malformed(error: ParseError) -> DropReason {
    match error.kind {
        ParseErrorKind::UnknownCriticalOption { .. } => DropReason::GeneveCriticalOption,
        _ => DropReason::MalformedTunnel,
    }
}

/// The outer IP header of a packet that was received as a whole frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OuterIp {
    /// Who sent it.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// What follows.
    pub protocol: Protocol,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv4's "don't fragment"; false in IPv6, where no router fragments anyway.
    pub dont_fragment: bool,
}

/// Takes the outer Ethernet and IP headers off, and the padding behind the IP packet.
///
/// # Errors
/// [`DropReason::Malformed`] for headers that do not parse, [`DropReason::OuterChecksum`] for a wrong checksum of the IPv4
/// header, [`DropReason::OuterFragment`] for IP fragments; the packet is unchanged then.
pub fn strip_outer(packet: &mut PacketBuf) -> Result<OuterIp, DropReason> {
    packet.linearize();
    let frame = packet.head();
    let located = wire::transport_offset(frame).map_err(|_| DropReason::Malformed)?;
    if located.fragment != Fragment::Whole {
        return Err(DropReason::OuterFragment);
    }
    let l4 = located.l4.ok_or(DropReason::Malformed)?;
    let ip = &frame[located.l3..];
    let outer = if located.ethertype == EtherType::IPV4 {
        let ip = Ipv4Packet::new_unchecked(ip);
        // A packet socket sees what the host's own stack has not verified yet.
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

/// Carries the outer ECN mark into an inner Ethernet frame (RFC 6040 section 4.2).
///
/// # Errors
/// [`DropReason::EcnNotCapable`] when congestion was experienced outside and the inner packet cannot say so,
/// [`DropReason::Malformed`] for an inner IP header that cannot be read although the mark has to go into it.
pub fn propagate_ecn(outer_traffic_class: u8, frame: &mut [u8]) -> Result<(), DropReason> {
    let outer = Ecn::of(outer_traffic_class);
    if outer == Ecn::NotEct {
        return Ok(()); // RFC 6040: the inner field stays, whatever it is.
    }
    let located = wire::transport_offset(frame).map_err(|_| DropReason::Malformed)?;
    match ecn::decap_frame(frame, &located, outer).ecn {
        Some(_) => Ok(()),
        None => Err(DropReason::EcnNotCapable),
    }
}
