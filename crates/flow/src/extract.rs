//! Extracts the [`FlowKey`] of a frame.
//!
//! Two frames must never share a key when a rule could tell them apart, or else a rule that drops
//! one of them could be evaded. Therefore:
//!
//! - A frame with truncated or contradictory headers has no key and is dropped as malformed. That
//!   includes ARP, neighbour discovery, and the transport header of unfragmented packets and first
//!   fragments. A later fragment has no transport header.
//! - Bytes after the end of the IP packet are padding and are not read.
//! - Fields of absent headers are 0, and another field always tells that they are absent:
//!   `eth_type`, `ip_proto` together with `eth_type`, `ip_frag`, the presence bit of `vlan_tci`, or
//!   `icmp_type`. (Protocol 0 is a protocol in IPv4, but never the last protocol in IPv6.)
//! - A frame with more than two VLAN tags has no key: hosts remove any number of priority tags, and
//!   would see an IP packet that the key does not show. The same holds for a tag after a SNAP
//!   header.
//! - A SNAP header belongs to the link layer, as in Open vSwitch: a frame with one has the key of
//!   the Ethernet II frame with the same packet. Its IEEE 802.3 length must cover the packet and
//!   must not exceed the frame, because some receivers ignore the length and others obey it. The
//!   payload of other IEEE 802.3 frames is not parsed.
//! - ARP and reverse ARP with other hardware or protocol types than Ethernet and IPv4 are refused.
//!   Hosts accept hardware type 6 (IEEE 802) as well as 1, and a rule on `arp_spa` must apply to
//!   all packets that hosts accept.
//! - UDP lengths, checksums and impossible addresses are not checked: the key repeats what the
//!   frame says.

use crate::{
    ETH_TYPE_NONE, FRAG_FIRST, FRAG_LATER, Field, FlowKey, PortNo, TAG_PRESENT, TunnelInfo,
};
use packet::PacketBuf;
use wire::icmp::nd;
use wire::{
    ArpPacket, EtherType, EthernetPacket, Fragment, Ipv4Packet, Ipv6Packet, Layer, Located,
    MacAddr, NdOption, NdOptions, ParseError, ParseErrorKind, Protocol, TcpPacket, vlan,
};

/// Extracts the key of a frame: its ingress port, its tunnel, and its headers, which must be in the
/// linear part of `packet`. Registers are 0.
///
/// # Errors
/// [`ParseError`] when headers are truncated or malformed, or when there are more than two tags.
/// [`DropReason::of_invalid_frame`](crate::DropReason::of_invalid_frame) maps it to a drop reason.
pub fn extract(
    packet: &PacketBuf,
    in_port: PortNo,
    tunnel: Option<&TunnelInfo>,
) -> Result<FlowKey, ParseError> {
    // Written in place, because moving a large key is expensive.
    let mut result = Ok(FlowKey::default());
    if let Ok(key) = &mut result {
        key.set(Field::InPort, in_port.0.into());
        if let Some(tunnel) = tunnel {
            tunnel.write(key);
        }
        extract_headers(key, packet)?;
    }
    result
}

/// Extracts the headers of a frame.
#[inline]
fn extract_headers(key: &mut FlowKey, packet: &PacketBuf) -> Result<(), ParseError> {
    let (head, located) = (packet.head(), packet.located()?);
    extract_ethernet(key, head, &located)?;
    let l3 = head.get(located.l3..).unwrap_or_default();
    match located.ethertype {
        EtherType::IPV4 => extract_ipv4(key, l3, &located)?,
        EtherType::IPV6 => extract_ipv6(key, l3, &located)?,
        EtherType::ARP | EtherType::RARP => {
            let len = located.l3_end - located.l3;
            extract_arp(key, l3.get(..len).unwrap_or(l3))?;
        }
        ethertype if ethertype.is_vlan() => {
            return Err(ParseError { layer: Layer::Vlan, kind: ParseErrorKind::TooDeep });
        }
        _ => {}
    }
    if let Some(l4) = located.l4 {
        let end = located.l3_end.min(head.len());
        let outside = located.l3_end - end;
        extract_transport(key, head.get(l4..end).unwrap_or_default(), outside, &located)?;
    }
    Ok(())
}

/// The first `N` bytes of a header.
#[inline]
fn first_bytes<const N: usize>(layer: Layer, bytes: &[u8]) -> Result<&[u8; N], ParseError> {
    bytes.first_chunk().ok_or(ParseError::truncated(layer, N, bytes.len()))
}

fn mac(address: MacAddr) -> u128 {
    let [a, b, c, d, e, f] = address.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f]).into()
}

#[inline]
fn extract_ethernet(key: &mut FlowKey, head: &[u8], located: &Located) -> Result<(), ParseError> {
    let header = EthernetPacket::new_unchecked(first_bytes::<14>(Layer::Ethernet, head)?);
    key.set(Field::EthDst, mac(header.dst()));
    key.set(Field::EthSrc, mac(header.src()));
    let ethertype = if located.ethertype.is_length() { ETH_TYPE_NONE } else { located.ethertype.0 };
    key.set(Field::EthType, ethertype.into());
    if located.vlan_tags > 0 {
        extract_tags(key, head, located.vlan_tags);
    }
    Ok(())
}

fn extract_tags(key: &mut FlowKey, head: &[u8], count: u8) {
    let fields = [(Field::VlanTpid, Field::VlanTci), (Field::VlanInnerTpid, Field::VlanInnerTci)];
    let (tags, _) = head.get(vlan::ETHERTYPE_OFFSET..).unwrap_or_default().as_chunks();
    for ((tpid, tci), &[a, b, c, d]) in fields.into_iter().zip(tags).take(count.into()) {
        key.set(tpid, u16::from_be_bytes([a, b]).into());
        key.set(tci, (u16::from_be_bytes([c, d]) | TAG_PRESENT).into());
    }
}

#[inline]
fn extract_ipv4(key: &mut FlowKey, l3: &[u8], located: &Located) -> Result<(), ParseError> {
    let header = Ipv4Packet::new_unchecked(first_bytes::<20>(Layer::Ipv4, l3)?);
    key.set(Field::Ip4Src, header.src().to_bits().into());
    key.set(Field::Ip4Dst, header.dst().to_bits().into());
    extract_ip(key, located, header.tos(), header.ttl());
    Ok(())
}

fn extract_ipv6(key: &mut FlowKey, l3: &[u8], located: &Located) -> Result<(), ParseError> {
    let header = Ipv6Packet::new_unchecked(first_bytes::<40>(Layer::Ipv6, l3)?);
    key.set(Field::Ip6Src, header.src().to_bits());
    key.set(Field::Ip6Dst, header.dst().to_bits());
    key.set(Field::Ip6Label, header.flow_label().into());
    extract_ip(key, located, header.traffic_class(), header.hop_limit());
    Ok(())
}

/// The fields common to both IP versions. In a later fragment of IPv6 the protocol is the fragment
/// header's next header, which may be an extension header that only the first fragment has.
#[inline]
fn extract_ip(key: &mut FlowKey, located: &Located, traffic_class: u8, ttl: u8) {
    let fragment = match located.fragment {
        Fragment::Whole => 0,
        Fragment::First => FRAG_FIRST,
        Fragment::Later => FRAG_LATER,
    };
    key.set(Field::IpProto, located.protocol.0.into());
    key.set(Field::IpDscp, (traffic_class >> 2).into());
    key.set(Field::IpEcn, traffic_class.into());
    key.set(Field::IpTtl, ttl.into());
    key.set(Field::IpFrag, fragment.into());
}

fn extract_arp(key: &mut FlowKey, l3: &[u8]) -> Result<(), ParseError> {
    let packet = ArpPacket::new_checked(l3)?;
    let &[_, _, _, _, _, _, high, low] = first_bytes(Layer::Arp, l3)?;
    key.set(Field::ArpOp, u16::from_be_bytes([high, low]).into());
    key.set(Field::ArpSpa, packet.sender_ip().to_bits().into());
    key.set(Field::ArpTpa, packet.target_ip().to_bits().into());
    key.set(Field::ArpSha, mac(packet.sender_mac()));
    key.set(Field::ArpTha, mac(packet.target_mac()));
    Ok(())
}

/// Extracts the transport header. `l4` ends where the IP packet or the linear part ends. `outside`
/// is the number of bytes of the IP packet that are not in the linear part (the bytes readable
/// without a copy).
#[inline]
fn extract_transport(
    key: &mut FlowKey,
    l4: &[u8],
    outside: usize,
    located: &Located,
) -> Result<(), ParseError> {
    match (located.protocol, located.ethertype) {
        (Protocol::TCP, _) => {
            TcpPacket::new_checked(l4)?;
            let header = first_bytes::<20>(Layer::Tcp, l4)?;
            // `set` removes the 4 bits of data offset before the flags.
            key.set(Field::TcpFlags, u16::from_be_bytes([header[12], header[13]]).into());
            extract_ports(key, header);
        }
        (Protocol::UDP, _) => extract_ports(key, first_bytes::<8>(Layer::Udp, l4)?),
        (Protocol::SCTP, _) => extract_ports(key, first_bytes::<12>(Layer::Sctp, l4)?),
        (Protocol::ICMP, EtherType::IPV4) => {
            extract_icmp(key, first_bytes::<8>(Layer::Icmpv4, l4)?)
        }
        (Protocol::ICMPV6, EtherType::IPV6) => {
            let header = first_bytes::<8>(Layer::Icmpv6, l4)?;
            extract_icmp(key, header);
            if matches!(header[0], nd::NEIGHBOR_SOLICITATION | nd::NEIGHBOR_ADVERTISEMENT)
                && header[1] == 0
            {
                if outside > 0 {
                    // An option outside the linear part could hold a link-layer address that the
                    // key would miss.
                    return Err(ParseError::truncated(Layer::Nd, l4.len() + outside, l4.len()));
                }
                extract_nd(key, header[0], l4.get(header.len()..).unwrap_or_default())?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[inline]
fn extract_ports<const N: usize>(key: &mut FlowKey, header: &[u8; N]) {
    if let Some(&[a, b, c, d]) = header.first_chunk() {
        key.set(Field::TpSrc, u16::from_be_bytes([a, b]).into());
        key.set(Field::TpDst, u16::from_be_bytes([c, d]).into());
    }
}

fn extract_icmp(key: &mut FlowKey, header: &[u8; 8]) {
    key.set(Field::IcmpType, header[0].into());
    key.set(Field::IcmpCode, header[1].into());
}

/// A neighbour solicitation or advertisement of code 0 (RFC 4861 sections 4.3 and 4.4); `data`
/// follows the ICMPv6 header. The hop limit check that section 7.1 demands is left to rules, which
/// can match `ip_ttl`. A repeated link-layer address option is refused, because hosts disagree on
/// which of the two counts.
fn extract_nd(key: &mut FlowKey, kind: u8, data: &[u8]) -> Result<(), ParseError> {
    let (target, options) = data.split_first_chunk::<16>().ok_or(ParseError::truncated(
        Layer::Nd,
        24,
        8 + data.len(),
    ))?;
    key.set(Field::NdTarget, u128::from_be_bytes(*target));
    let mut address = None;
    for option in NdOptions::new(options)?.iter() {
        let found = match (kind, option) {
            (nd::NEIGHBOR_SOLICITATION, NdOption::SourceLinkLayer(mac)) => (Field::NdSll, mac),
            (nd::NEIGHBOR_ADVERTISEMENT, NdOption::TargetLinkLayer(mac)) => (Field::NdTll, mac),
            _ => continue,
        };
        if address.replace(found).is_some() {
            return Err(ParseError::field(Layer::Nd, "repeated link-layer address"));
        }
    }
    if let Some((field, address)) = address {
        key.set(field, mac(address));
    }
    Ok(())
}
