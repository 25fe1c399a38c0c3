//! Whether a frame fits what its path carries, and what is to be done when it does not: [`fit`].
//!
//! The limit is `max_frame_len`: the longest *inner* frame, in bytes from its Ethernet header on, that reaches the remote
//! end in one piece. It is the path MTU of the underlay less the outer headers that stand between the outer IP header
//! (included) and the inner Ethernet header (not included). The MTU that a guest is told is less by the guest's own Ethernet
//! header and tags.
//!
//! | what is too long | don't fragment | what is done |
//! |---|---|---|
//! | only padding behind the IP packet | | it is cut off: [`Fit::Resized`] |
//! | IPv4, TCP super-packet | no | segments are made shorter: [`Fit::Resized`] |
//! | IPv4, anything else | no | [`Fit::Fragment`] (RFC 791 section 3.2) |
//! | IPv4 | yes | [`Fit::TooBig`] (RFC 1191 section 4) |
//! | IPv6 | always | [`Fit::TooBig`] (RFC 8200 section 5) |
//! | not IP, malformed IP, or IPv4 where fewer than 68 bytes of it fit | | [`Fit::Never`] |
//!
//! A TCP super-packet is a stream that its sender has not cut yet: any cut is as good as another. Segments that number more
//! than the sender expected take identifications that it may use again; without "don't fragment" that matters only where a
//! later router fragments them (RFC 6864 section 4.3).

use wire::{EtherType, Ipv4Packet, Located, icmp::too_big::MIN_MTU_V4, transport_offset_in, udp};

use crate::buf::{Checksum, GsoKind, PacketBuf};

/// The least payload of a segment that a TCP super-packet is cut into rather than fragmented; what Linux allows at least.
const MIN_SEGMENT: usize = 8;

/// How a frame meets the limit of its path; see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// It fits as it is.
    Fits,
    /// It has been changed and fits now.
    Resized,
    /// An IPv4 packet to be fragmented: [`crate::Fragmenter`], to whom this is said.
    Fragment {
        /// The longest IP packet, in bytes.
        mtu: u16,
    },
    /// An IP packet whose sender is to be told.
    TooBig {
        /// The longest IP packet, in bytes.
        mtu: u16,
    },
    /// It cannot be carried, and there is nobody to tell.
    Never,
}

/// Bytes of the frame as it will be on a wire; of a super-packet, of its longest segment.
#[inline]
pub fn wire_len(packet: &PacketBuf) -> usize {
    let len = packet.len();
    match segment_header_len(packet) {
        Some((header_len, size)) => len.min(header_len + size),
        None => len,
    }
}

/// Bytes in front of the payload of a super-packet, and of payload in each segment; `None` when it is no super-packet.
#[inline]
fn segment_header_len(packet: &PacketBuf) -> Option<(usize, usize)> {
    let (Some(gso), Checksum::Partial { start, .. }) =
        (packet.offload.gso, packet.offload.checksum)
    else {
        return None;
    };
    let l4 = usize::from(start);
    let header_len = match gso.kind {
        GsoKind::UdpL4 => udp::HEADER_LEN,
        GsoKind::TcpV4 | GsoKind::TcpV6 => {
            packet.head().get(l4 + 12).map_or(0, |offset| usize::from(offset >> 4) * 4)
        }
    };
    Some((l4 + header_len, usize::from(gso.size)))
}

/// Compares `packet` with the longest frame that its path carries, and makes it fit where that takes no more than a
/// change of its lengths.
#[inline]
pub fn fit(packet: &mut PacketBuf, max_frame_len: usize) -> Fit {
    if wire_len(packet) <= max_frame_len { Fit::Fits } else { too_long(packet, max_frame_len) }
}

#[cold]
fn too_long(packet: &mut PacketBuf, max_frame_len: usize) -> Fit {
    let Ok(at) = transport_offset_in(packet.head(), packet.len()) else { return Fit::Never };
    if !at.is_ip() {
        return Fit::Never;
    }
    if wire_len(packet).min(at.l3_end) <= max_frame_len {
        packet.truncate(at.l3_end);
        return Fit::Resized;
    }
    // An IP packet is no longer than 65,535 bytes, and this one is longer than the limit.
    let mtu = max_frame_len.saturating_sub(at.l3).min(usize::from(u16::MAX)) as u16;
    if at.ethertype == EtherType::IPV6 {
        return Fit::TooBig { mtu };
    }
    let dont_fragment =
        Ipv4Packet::new_header(&packet.head()[at.l3..]).is_ok_and(|ip| ip.dont_fragment());
    match () {
        () if mtu < MIN_MTU_V4 => Fit::Never,
        () if dont_fragment => Fit::TooBig { mtu },
        () if shorten_segments(packet, &at, max_frame_len) => Fit::Resized,
        () => Fit::Fragment { mtu },
    }
}

/// Makes the segments of a TCP super-packet so short that frames of them fit; false when it is none, or no payload would
/// fit.
fn shorten_segments(packet: &mut PacketBuf, at: &Located, max_frame_len: usize) -> bool {
    let Some((header_len, _)) = segment_header_len(packet) else { return false };
    let Some(gso) = packet.offload.gso.as_mut().filter(|gso| gso.kind != GsoKind::UdpL4) else {
        return false;
    };
    let room = max_frame_len.saturating_sub(header_len);
    let size = u16::try_from(room).unwrap_or(u16::MAX);
    let is_shorter = header_len > at.l3 && room >= MIN_SEGMENT && size < gso.size;
    if is_shorter {
        gso.size = size;
    }
    is_shorter
}
