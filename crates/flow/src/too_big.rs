//! Path MTU discovery for guests: the ICMP error to a guest whose packet exceeds a tunnel's path
//! MTU ([`too_big`]).
//!
//! To the guest, the tunnel is a link with the MTU of its port, and only the tunnel end point knows
//! the smaller MTU. No router on that link can be the source of the error. Its source is therefore
//! the destination of the packet, as with Linux tunnels on a bridge. The guest accepts the error
//! because it quotes the packet.

use crate::DropReason;
use crate::reply::{LinkHeader, OriginalPacket, error_v4, error_v6};
use packet::PacketBuf;
use wire::icmp::too_big::MIN_MTU_V6;
use wire::vlan::Tag;
use wire::{EtherType, Icmpv4Repr, Icmpv6Repr, MacAddr};

/// The link-layer addresses and tags of an answer to the sender of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyAddresses<'a> {
    /// Destination of the answer: the packet's Ethernet source at ingress.
    pub eth_dst: MacAddr,
    /// Source of the answer: the packet's Ethernet destination at ingress.
    pub eth_src: MacAddr,
    /// The VLAN tags of the packet at ingress, the outer one first.
    pub tags: &'a [Tag],
}

/// Builds an ICMP "fragmentation needed" (RFC 1191 section 4) or an ICMPv6 "packet too big" (RFC
/// 4443 section 3.2) about `packet`. The result is the frame for the guest, with all checksums.
///
/// `mtu` is the longest IP packet that the tunnel carries. The error is at most 576 bytes of IPv4
/// (RFC 1812 section 4.3.2.3) or 1280 bytes of IPv6. A super-packet is answered like its first
/// segment.
///
/// The MTU in an ICMPv6 error is at least 1280, the minimum of IPv6 (RFC 8200 section 5). A tunnel
/// with a smaller MTU would have to fragment the outer packet (RFC 2473 section 7.1).
///
/// The caller limits the rate of these messages (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 f).
///
/// # Errors
/// [`DropReason::NotApplicable`] when no answer is allowed or needed:
///
/// - The packet is not IP, or is IPv4 without DF.
/// - The packet is an ICMP error, or a later IPv4 fragment.
/// - The destination is multicast. RFC 4443 allows an answer, but no host could be its source.
/// - The source is not a single host.
/// - The packet is IPv6 of at most 1280 bytes.
///
/// [`DropReason::Malformed`] for a packet that does not parse, and [`DropReason::Segmentation`] for
/// one that cannot be segmented.
pub fn too_big(
    packet: &PacketBuf,
    mtu: u16,
    back: &ReplyAddresses<'_>,
) -> Result<PacketBuf, DropReason> {
    let original = OriginalPacket::new(packet)?;
    let tags: Vec<u8> = back.tags.iter().flat_map(|tag| tag.to_bytes()).collect();
    let link = LinkHeader { dst: back.eth_dst, src: back.eth_src, tags: &tags };
    match original.at.ethertype {
        EtherType::IPV4 => too_big_v4(&original, packet, mtu, link),
        EtherType::IPV6 => too_big_v6(&original, packet, mtu, link),
        _ => Err(DropReason::NotApplicable),
    }
}

fn too_big_v4(
    original: &OriginalPacket<'_>,
    packet: &PacketBuf,
    mtu: u16,
    link: LinkHeader<'_>,
) -> Result<PacketBuf, DropReason> {
    let ip = original.ip4()?;
    if !ip.dont_fragment() {
        return Err(DropReason::NotApplicable);
    }
    original.refuse_error_v4(&ip)?;
    let quoted = original.quoted_v4(packet)?;
    let message = Icmpv4Repr::FragmentationNeeded { mtu, quoted: &quoted };
    Ok(error_v4(link, (ip.dst(), ip.src()), &message))
}

fn too_big_v6(
    original: &OriginalPacket<'_>,
    packet: &PacketBuf,
    mtu: u16,
    link: LinkHeader<'_>,
) -> Result<PacketBuf, DropReason> {
    let ip = original.ip6()?;
    let wire_len = packet::wire_len(packet).min(original.at.l3_end) - original.at.l3;
    if wire_len <= usize::from(MIN_MTU_V6) {
        return Err(DropReason::NotApplicable);
    }
    original.refuse_error_v6(&ip)?;
    let quoted = original.quoted_v6(packet)?;
    let message = Icmpv6Repr::PacketTooBig { mtu: mtu.max(MIN_MTU_V6).into(), quoted: &quoted };
    Ok(error_v6(link, (ip.dst(), ip.src()), &message))
}
