//! [`fit`] decides whether a frame fits its path, and what to do if it does not.
//!
//! The limit is `max_frame_len`: the longest *inner* frame that reaches the remote end in one
//! piece, in bytes from its Ethernet header on. It is the path MTU of the underlay less the headers
//! between the outer IP header (included) and the inner Ethernet header (excluded). The MTU
//! reported to a guest is less by the guest's own Ethernet header and tags.
//!
//! | too long | don't fragment | result |
//! |---|---|---|
//! | only padding behind the IP packet | | [`Fit::Resize`]: the padding is removed |
//! | IPv4, TCP super-packet | no | [`Fit::Resize`]: segments become shorter |
//! | IPv4, anything else | no | [`Fit::Fragment`] (RFC 791 section 3.2) |
//! | IPv4 | yes | [`Fit::TooBig`] (RFC 1191 section 4) |
//! | IPv6 | always | [`Fit::TooBig`] (RFC 8200 section 5) |
//! | not IP, malformed IP, or IPv4 with a limit below 68 bytes | | [`Fit::Never`] |
//!
//! A TCP super-packet may be segmented in any way, because its sender has not segmented it yet.
//! Additional segments use IPv4 identifications that the sender may use again for later packets.
//! Without "don't fragment", that matters only if a later router fragments them (RFC 6864 section
//! 4.3).

use wire::{EtherType, Ipv4Packet, Located, icmp::too_big::MIN_MTU_V4, snap, udp};

use crate::buf::{Checksum, GsoKind, PacketBuf};

/// The least payload of a TCP segment; below that, fragmentation is used. Linux has the same limit.
const MIN_SEGMENT: usize = 8;

/// The relation of a frame to the limit of its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// It fits.
    Fits,
    /// It fits after a change of its length or of its segment size.
    Resize(Resize),
    /// It is an IPv4 packet that [`crate::Fragmenter`] must fragment.
    Fragment {
        /// The longest IP packet in bytes.
        mtu: u16,
    },
    /// It is an IP packet whose sender needs an ICMP "packet too big".
    TooBig {
        /// The longest IP packet in bytes.
        mtu: u16,
    },
    /// It cannot be carried, and no ICMP error can report that to the sender.
    Never,
}

/// A change that makes a frame fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Resize {
    /// Truncate the frame to this length in bytes.
    Truncate(usize),
    /// Set the segment size to this payload in bytes.
    Segments(u16),
}

impl Resize {
    /// Applies the change to the packet for which [`fit`] returned it.
    pub fn apply(self, packet: &mut PacketBuf) {
        match (self, &mut packet.offload.gso) {
            (Self::Truncate(len), _) => truncate(packet, len),
            (Self::Segments(size), Some(gso)) => gso.size = size,
            (Self::Segments(_), None) => {}
        }
    }
}

/// Truncates a frame, and adjusts the IEEE 802.3 length if it has a SNAP header.
fn truncate(packet: &mut PacketBuf, len: usize) {
    let snap_l3 = packet.located().ok().filter(Located::has_snap).map(|at| at.l3);
    packet.truncate(len);
    if let Some(l3) = snap_l3 {
        snap::set_payload_len(packet.head_mut(), l3, len.saturating_sub(l3));
    }
}

/// The length in bytes of the frame on a wire; of a super-packet, that of its longest segment.
#[inline]
pub fn wire_len(packet: &PacketBuf) -> usize {
    let len = packet.len();
    match segment_header_len(packet) {
        Some((header_len, size)) => len.min(header_len + size),
        None => len,
    }
}

/// The header length and the payload length of each segment of a super-packet, in bytes; `None` for
/// other packets.
#[inline]
pub(crate) fn segment_header_len(packet: &PacketBuf) -> Option<(usize, usize)> {
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

/// Compares `packet` with the longest frame that its path carries.
#[inline]
pub fn fit(packet: &PacketBuf, max_frame_len: usize) -> Fit {
    if wire_len(packet) <= max_frame_len { Fit::Fits } else { too_long(packet, max_frame_len) }
}

#[cold]
fn too_long(packet: &PacketBuf, max_frame_len: usize) -> Fit {
    let Ok(at) = packet.located() else { return Fit::Never };
    if !at.is_ip() {
        return Fit::Never;
    }
    if wire_len(packet).min(at.l3_end) <= max_frame_len {
        return Fit::Resize(Resize::Truncate(at.l3_end));
    }
    // The cast is lossless: an IP packet has at most 65,535 bytes, and this one exceeds the limit.
    let mtu = max_frame_len.saturating_sub(at.l3).min(usize::from(u16::MAX)) as u16;
    if at.ethertype == EtherType::IPV6 {
        return Fit::TooBig { mtu };
    }
    let dont_fragment =
        Ipv4Packet::new_header(&packet.head()[at.l3..]).is_ok_and(|ip| ip.dont_fragment());
    if mtu < MIN_MTU_V4 {
        Fit::Never
    } else if dont_fragment {
        Fit::TooBig { mtu }
    } else if let Some(size) = shorter_segments(packet, &at, max_frame_len) {
        Fit::Resize(Resize::Segments(size))
    } else {
        Fit::Fragment { mtu }
    }
}

/// The segment size with which a TCP super-packet fits; `None` for other packets, or if it would be
/// too small.
fn shorter_segments(packet: &PacketBuf, at: &Located, max_frame_len: usize) -> Option<u16> {
    let gso = packet.offload.gso.filter(|gso| gso.kind != GsoKind::UdpL4)?;
    let (header_len, _) = segment_header_len(packet).filter(|(len, _)| *len > at.l3)?;
    let room = max_frame_len.checked_sub(header_len).filter(|room| *room >= MIN_SEGMENT)?;
    u16::try_from(room).ok().filter(|size| *size < gso.size)
}
