//! Decapsulation: from the tunnel header on, which logical switch a frame belongs to and where it begins.
//!
//! Who sent the packet, and to which address and port, has been checked before (see
//! [`EndpointTable::find`](crate::EndpointTable::find)); here the bytes from outside are read. Nothing panics whatever
//! they are, and every refusal is a [`DropReason`].

use crate::{DatapathKey, DropReason, LogicalPorts, PortKey, TunnelKey};
use packet::PacketBuf;
use std::net::IpAddr;
use wire::ecn::{self, Ecn};
use wire::tunnel::{GenevePacket, GeneveRepr, GrePacket, VxlanPacket, VxlanRepr};
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
    fn new(key: TunnelKey, inner: usize, bytes: &[u8]) -> Result<Self, DropReason> {
        if bytes.len() < inner + ethernet::HEADER_LEN {
            return Err(DropReason::Malformed);
        }
        Ok(Self { key, inner })
    }
}

/// The reason under which a tunnel header that does not parse is counted.
fn refused(error: ParseError) -> DropReason {
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

/// Reads a VXLAN header (RFC 7348 section 5) and what it carries.
///
/// # Errors
/// [`DropReason::VxlanNoVni`] without the I flag, [`DropReason::MalformedTunnel`] or [`DropReason::Malformed`] when header
/// or frame is cut.
pub fn decap_vxlan(bytes: &[u8]) -> Result<Decapped, DropReason> {
    let packet = VxlanPacket::new_checked(bytes).map_err(refused)?;
    let repr = VxlanRepr::parse(&packet).map_err(|_| DropReason::VxlanNoVni)?;
    let key = TunnelKey { datapath: DatapathKey(repr.vni.value()), ports: None };
    Decapped::new(key, repr.header_len(), bytes)
}

/// Reads a Geneve header (RFC 8926 section 3.4) with its options and what it carries.
///
/// # Errors
/// [`DropReason::GeneveCriticalOption`] for a critical option not known here, [`DropReason::GeneveControl`] for control
/// packets, [`DropReason::TunnelProtocol`] unless it carries Ethernet, [`DropReason::MalformedTunnel`] or
/// [`DropReason::Malformed`] when header, options or frame are cut or inconsistent.
pub fn decap_geneve(bytes: &[u8]) -> Result<Decapped, DropReason> {
    let packet = GenevePacket::new_checked(bytes).map_err(refused)?;
    let repr = GeneveRepr::parse(&packet).map_err(refused)?;
    if repr.control {
        return Err(DropReason::GeneveControl);
    }
    if repr.protocol != EtherType::TEB {
        return Err(DropReason::TunnelProtocol);
    }
    let ports = match repr.options.logical_ports() {
        None => None,
        Some(ports) => Some(LogicalPorts {
            ingress: PortKey::new(ports.ingress),
            egress: PortKey::new(ports.egress).ok_or(DropReason::UnknownLogicalPort)?,
        }),
    };
    let key = TunnelKey { datapath: DatapathKey(repr.vni.value()), ports };
    Decapped::new(key, packet.header_len(), bytes)
}

/// Reads a GRE header (RFC 2784 and 2890) and what it carries; the checksum, where there is one, is verified over all of
/// `bytes`. `keyed` says whether a key is demanded or forbidden; a key is taken as 32 bits.
///
/// `is_sure` says that there is nothing to verify. Either the kernel has merged several packets into this one: it has verified
/// the checksum of each before, and the one that is left covers the first alone. Or a checksum inside is still owed: then
/// the packet has been on no wire, and its sum will be right only when that checksum is made.
///
/// # Errors
/// [`DropReason::GreChecksum`], [`DropReason::GreNoKey`] when a key is missing, [`DropReason::UnknownDatapath`] for one
/// where there should be none, [`DropReason::TunnelProtocol`] unless it carries Ethernet (Transparent Ethernet Bridging),
/// [`DropReason::MalformedTunnel`] or [`DropReason::Malformed`].
pub fn decap_gre(bytes: &[u8], keyed: bool, is_sure: bool) -> Result<Decapped, DropReason> {
    let packet = GrePacket::new_checked(bytes).map_err(refused)?;
    if !is_sure && !packet.verify_checksum() {
        return Err(DropReason::GreChecksum);
    }
    if packet.protocol() != EtherType::TEB {
        return Err(DropReason::TunnelProtocol);
    }
    let datapath = match (packet.key(), keyed) {
        (Some(key), true) => DatapathKey(key),
        (None, false) => DatapathKey(0),
        (None, true) => return Err(DropReason::GreNoKey),
        (Some(_), false) => return Err(DropReason::UnknownDatapath),
    };
    Decapped::new(TunnelKey { datapath, ports: None }, packet.header_len(), bytes)
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
