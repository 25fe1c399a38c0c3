//! From a frame to its [`FlowKey`].
//!
//! A key must never look like that of another frame, because rules that refuse something would be passed by. So:
//!
//! - A frame whose headers are cut off or contradict themselves has no key; it is dropped as malformed. That holds for the
//!   transport header of whole packets and first fragments, for ARP, and for neighbour discovery, too. A later fragment has
//!   no transport header to miss.
//! - Nothing behind the end of the IP packet is read: padding is no payload.
//! - Fields of headers that are not there are 0, and there is always another field that says so: `eth_type`, `ip_proto`
//!   (with `eth_type`: protocol 0 is a protocol in IPv4, and in IPv6 never the last), `ip_frag`, the presence bit of
//!   `vlan_tci`, `icmp_type`.
//! - An IEEE 802.3 frame is not looked into, not even for an EtherType behind a SNAP header: nothing else here would take
//!   its payload for IP, so that a rewrite of a field that the key has would find nothing to write to.
//! - ARP and reverse ARP other than for IPv4 over Ethernet is refused: hosts accept hardware type 6 (IEEE 802) in the place
//!   of 1, and a rule about `arp_spa` must see what they see.
//! - Lengths inside UDP, checksums, and addresses that cannot be are not judged: the key says what the frame says.

use crate::{Field, FlowKey, PortNo, TunnelInfo};
use packet::PacketBuf;
use wire::icmp::nd;
use wire::{
    ArpPacket, EtherType, EthernetPacket, Fragment, Ipv4Packet, Ipv6Packet, Layer, Located,
    MacAddr, NdOption, NdOptions, ParseError, Protocol, TcpPacket, vlan,
};

/// `eth_type` of an IEEE 802.3 frame, which has a length in its place.
const ETH_TYPE_NONE: u16 = 0x05ff;
/// The bit of a `vlan_tci` that says that there is a tag; DEI is not kept.
const TAG_PRESENT: u16 = 0x1000;

/// Reads all that decisions may read of a frame: the port and the tunnel that it came by, and its headers, which are in
/// the linear part of `packet`. Registers are 0.
///
/// # Errors
/// For a frame with headers that are cut off or malformed; see the module for which are.
pub fn extract(
    packet: &PacketBuf,
    in_port: PortNo,
    tunnel: Option<&TunnelInfo>,
) -> Result<FlowKey, ParseError> {
    // Written where the caller gets it: a key is too long to be moved about.
    let mut result = Ok(FlowKey::default());
    if let Ok(key) = &mut result {
        key.set(Field::InPort, in_port.0.into());
        if let Some(tunnel) = tunnel {
            tunnel.write(key);
        }
        headers(key, packet)?;
    }
    result
}

/// Reads the headers of a frame.
#[inline]
fn headers(key: &mut FlowKey, packet: &PacketBuf) -> Result<(), ParseError> {
    let (head, located) = (packet.head(), packet.located()?);
    ethernet(key, head, &located)?;
    let l3 = head.get(located.l3..).unwrap_or_default();
    match located.ethertype {
        EtherType::IPV4 => ipv4(key, l3, &located)?,
        EtherType::IPV6 => ipv6(key, l3, &located)?,
        EtherType::ARP | EtherType::RARP => arp(key, l3)?,
        _ => {}
    }
    if let Some(l4) = located.l4 {
        let end = located.l3_end.min(head.len());
        let elsewhere = located.l3_end - end;
        transport(key, head.get(l4..end).unwrap_or_default(), elsewhere, &located)?;
    }
    Ok(())
}

/// The first bytes of a header.
#[inline]
fn start<const N: usize>(layer: Layer, bytes: &[u8]) -> Result<&[u8; N], ParseError> {
    bytes.first_chunk().ok_or(ParseError::truncated(layer, N, bytes.len()))
}

fn mac(address: MacAddr) -> u128 {
    let [a, b, c, d, e, f] = address.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f]).into()
}

#[inline]
fn ethernet(key: &mut FlowKey, head: &[u8], located: &Located) -> Result<(), ParseError> {
    let header = EthernetPacket::new_unchecked(start::<14>(Layer::Ethernet, head)?);
    key.set(Field::EthDst, mac(header.dst()));
    key.set(Field::EthSrc, mac(header.src()));
    let ethertype = if located.ethertype.is_length() { ETH_TYPE_NONE } else { located.ethertype.0 };
    key.set(Field::EthType, ethertype.into());
    if located.vlan_tags > 0 {
        tags(key, head, located.vlan_tags);
    }
    Ok(())
}

fn tags(key: &mut FlowKey, head: &[u8], count: u8) {
    let fields = [(Field::VlanTpid, Field::VlanTci), (Field::VlanInnerTpid, Field::VlanInnerTci)];
    let (tags, _) = head.get(vlan::ETHERTYPE_OFFSET..).unwrap_or_default().as_chunks();
    for ((tpid, tci), &[a, b, c, d]) in fields.into_iter().zip(tags).take(count.into()) {
        key.set(tpid, u16::from_be_bytes([a, b]).into());
        key.set(tci, (u16::from_be_bytes([c, d]) | TAG_PRESENT).into());
    }
}

#[inline]
fn ipv4(key: &mut FlowKey, l3: &[u8], located: &Located) -> Result<(), ParseError> {
    let header = Ipv4Packet::new_unchecked(start::<20>(Layer::Ipv4, l3)?);
    key.set(Field::Ip4Src, header.src().to_bits().into());
    key.set(Field::Ip4Dst, header.dst().to_bits().into());
    ip(key, located, header.tos(), header.ttl());
    Ok(())
}

fn ipv6(key: &mut FlowKey, l3: &[u8], located: &Located) -> Result<(), ParseError> {
    let header = Ipv6Packet::new_unchecked(start::<40>(Layer::Ipv6, l3)?);
    key.set(Field::Ip6Src, header.src().to_bits());
    key.set(Field::Ip6Dst, header.dst().to_bits());
    key.set(Field::Ip6Label, header.flow_label().into());
    ip(key, located, header.traffic_class(), header.hop_limit());
    Ok(())
}

/// What both versions have. In a later fragment of IPv6 the protocol is what the fragment header says, which may be an
/// extension header that only the first fragment has.
#[inline]
fn ip(key: &mut FlowKey, located: &Located, traffic_class: u8, ttl: u8) {
    let fragment = match located.fragment {
        Fragment::Whole => 0,
        Fragment::First => 1,
        Fragment::Later => 3,
    };
    key.set(Field::IpProto, located.protocol.0.into());
    key.set(Field::IpDscp, (traffic_class >> 2).into());
    key.set(Field::IpEcn, traffic_class.into());
    key.set(Field::IpTtl, ttl.into());
    key.set(Field::IpFrag, fragment);
}

fn arp(key: &mut FlowKey, l3: &[u8]) -> Result<(), ParseError> {
    let packet = ArpPacket::new_checked(l3)?;
    let &[_, _, _, _, _, _, high, low] = start(Layer::Arp, l3)?;
    key.set(Field::ArpOp, u16::from_be_bytes([high, low]).into());
    key.set(Field::ArpSpa, packet.sender_ip().to_bits().into());
    key.set(Field::ArpTpa, packet.target_ip().to_bits().into());
    key.set(Field::ArpSha, mac(packet.sender_mac()));
    key.set(Field::ArpTha, mac(packet.target_mac()));
    Ok(())
}

/// `l4` ends where the IP packet ends, or the linear part with `elsewhere` bytes of the packet behind it.
#[inline]
fn transport(
    key: &mut FlowKey,
    l4: &[u8],
    elsewhere: usize,
    located: &Located,
) -> Result<(), ParseError> {
    match (located.protocol, located.ethertype) {
        (Protocol::TCP, _) => {
            TcpPacket::new_checked(l4)?;
            let header = start::<20>(Layer::Tcp, l4)?;
            // 4 bits of data offset in front of them are cut off.
            key.set(Field::TcpFlags, u16::from_be_bytes([header[12], header[13]]).into());
            ports(key, header);
        }
        (Protocol::UDP, _) => ports(key, start::<8>(Layer::Udp, l4)?),
        (Protocol::SCTP, _) => ports(key, start::<12>(Layer::Sctp, l4)?),
        (Protocol::ICMP, EtherType::IPV4) => icmp(key, start::<8>(Layer::Icmpv4, l4)?),
        (Protocol::ICMPV6, EtherType::IPV6) => {
            let header = start::<8>(Layer::Icmpv6, l4)?;
            icmp(key, header);
            if matches!(header[0], nd::NEIGHBOR_SOLICITATION | nd::NEIGHBOR_ADVERTISEMENT)
                && header[1] == 0
            {
                if elsewhere > 0 {
                    // The options are to be read to the last.
                    return Err(ParseError::truncated(Layer::Nd, l4.len() + elsewhere, l4.len()));
                }
                neighbour(key, header[0], l4.get(header.len()..).unwrap_or_default())?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[inline]
fn ports<const N: usize>(key: &mut FlowKey, header: &[u8; N]) {
    if let Some(&[a, b, c, d]) = header.first_chunk() {
        key.set(Field::TpSrc, u16::from_be_bytes([a, b]).into());
        key.set(Field::TpDst, u16::from_be_bytes([c, d]).into());
    }
}

fn icmp(key: &mut FlowKey, header: &[u8; 8]) {
    key.set(Field::IcmpType, header[0].into());
    key.set(Field::IcmpCode, header[1].into());
}

/// A neighbour solicitation or advertisement of code 0 (RFC 4861 sections 4.3 and 4.4); `data` is what follows the header
/// of ICMPv6. What section 7.1 demands of the IPv6 header is left to rules: `ip_ttl` is in the key. A link-layer address
/// that is given twice is refused, because hosts do not agree on which of the two to believe.
fn neighbour(key: &mut FlowKey, kind: u8, data: &[u8]) -> Result<(), ParseError> {
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
