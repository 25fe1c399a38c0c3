//! The answer to a packet that is too long for a tunnel, toward the guest that sent it: [`too_big`].
//!
//! The guest takes the tunnel for a link with the MTU of its port, and nobody but the end point of the tunnel knows better.
//! There is no router on that link in whose name the message could come, so it comes in the name of the packet's
//! destination, by the way that the packet came; that is what Linux's tunnels do on a bridge, too. A guest believes it
//! because of the packet that it quotes.

use crate::DropReason;
use crate::reply::{Link, Original, error_v4, error_v6};
use packet::PacketBuf;
use wire::icmp::too_big::MIN_MTU_V6;
use wire::vlan::Tag;
use wire::{EtherType, Icmpv4Repr, Icmpv6Repr, MacAddr};

/// The way back to the sender of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WayBack<'a> {
    /// Where the answer goes: the packet's Ethernet source when it came in.
    pub eth_dst: MacAddr,
    /// Whom it seems to come from: the packet's Ethernet destination when it came in.
    pub eth_src: MacAddr,
    /// The tags that the packet had when it came in, the outer one first.
    pub tags: &'a [Tag],
}

/// An ICMP "fragmentation needed" (RFC 1191 section 4) or an ICMPv6 "packet too big" (RFC 4443 section 3.2) about `packet`,
/// of which `mtu` bytes of IP packet could be carried: the frame to hand to the guest, with all checksums. It is no longer than
/// 576 bytes of IPv4 (RFC 1812 section 4.3.2.3) or 1280 of IPv6. A super-packet is answered as its first segment would be.
///
/// IPv6 knows no path of less than 1280 bytes (RFC 8200 section 5), so that is what is said instead of less. Whoever carries
/// IPv6 over less would have to fragment the outer packet (RFC 2473 section 7.1).
///
/// RFC 1812 section 4.3.2.8 and RFC 4443 section 2.4 f limit the rate of such messages; that is up to the caller.
///
/// # Errors
/// [`DropReason::NotApplicable`] when there is no answer: the packet is not IP, may be fragmented (IPv4 without DF), is an ICMP
/// error, a later fragment of IPv4, sent to a group (in whose name nobody can answer, although RFC 4443 would allow it) or by
/// no single host, or IPv6 of at most 1280 bytes. [`DropReason::Malformed`] and [`DropReason::Segmentation`] for a packet
/// that does not parse or cannot be cut.
pub fn too_big(packet: &PacketBuf, mtu: u16, back: &WayBack<'_>) -> Result<PacketBuf, DropReason> {
    let original = Original::new(packet)?;
    let tags: Vec<u8> = back.tags.iter().flat_map(|tag| tag.to_bytes()).collect();
    let link = Link { dst: back.eth_dst, src: back.eth_src, tags: &tags };
    match original.at.ethertype {
        EtherType::IPV4 => too_big_v4(&original, packet, mtu, link),
        EtherType::IPV6 => too_big_v6(&original, packet, mtu, link),
        _ => Err(DropReason::NotApplicable),
    }
}

fn too_big_v4(
    original: &Original<'_>,
    packet: &PacketBuf,
    mtu: u16,
    link: Link<'_>,
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
    original: &Original<'_>,
    packet: &PacketBuf,
    mtu: u16,
    link: Link<'_>,
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
