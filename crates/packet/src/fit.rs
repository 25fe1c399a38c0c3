//! Whether a frame fits what its path carries, and what is to be done when it does not: [`fit`].
//!
//! The limit is `max_frame_len`: the longest *inner* frame, in bytes from its Ethernet header on, that reaches the remote
//! end in one piece. It is the path MTU of the underlay less the outer headers that stand between the outer IP header
//! (included) and the inner Ethernet header (not included). The MTU that a guest is told is less by the guest's own Ethernet
//! header and tags.
//!
//! | what is too long | don't fragment | what is to be done |
//! |---|---|---|
//! | only padding behind the IP packet | | [`Fit::Resize`]: it is cut off |
//! | IPv4, TCP super-packet | no | [`Fit::Resize`]: segments are made shorter |
//! | IPv4, anything else | no | [`Fit::Fragment`] (RFC 791 section 3.2) |
//! | IPv4 | yes | [`Fit::TooBig`] (RFC 1191 section 4) |
//! | IPv6 | always | [`Fit::TooBig`] (RFC 8200 section 5) |
//! | not IP, malformed IP, or IPv4 where fewer than 68 bytes of it fit | | [`Fit::Never`] |
//!
//! A TCP super-packet is a stream that its sender has not cut yet: any cut is as good as another. Segments that number more
//! than the sender expected take identifications that it may use again; without "don't fragment" that matters only where a
//! later router fragments them (RFC 6864 section 4.3).

use wire::{EtherType, Ipv4Packet, Located, icmp::too_big::MIN_MTU_V4, udp};

use crate::buf::{Checksum, GsoKind, PacketBuf};

/// The least payload of a segment that a TCP super-packet is cut into rather than fragmented; what Linux allows at least.
const MIN_SEGMENT: usize = 8;

/// How a frame meets the limit of its path; see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// It fits as it is.
    Fits,
    /// It fits after a change of its lengths.
    Resize(Resize),
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

/// How a frame is made to fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Resize {
    /// By cutting off what lies behind this length, in bytes.
    Truncate(usize),
    /// By cutting the super-packet into segments of so many bytes of payload.
    Segments(u16),
}

impl Resize {
    /// Makes `packet`, which is as it was when [`fit`] looked at it, fit.
    pub fn apply(self, packet: &mut PacketBuf) {
        match (self, &mut packet.offload.gso) {
            (Self::Truncate(len), _) => packet.truncate(len),
            (Self::Segments(size), Some(gso)) => gso.size = size,
            (Self::Segments(_), None) => {}
        }
    }
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

/// Compares `packet` with the longest frame that its path carries. Nothing is copied or changed.
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
    // An IP packet is no longer than 65,535 bytes, and this one is longer than the limit.
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

/// The payload of segments of a TCP super-packet that fit; `None` when it is no such packet, or next to nothing would fit.
fn shorter_segments(packet: &PacketBuf, at: &Located, max_frame_len: usize) -> Option<u16> {
    let gso = packet.offload.gso.filter(|gso| gso.kind != GsoKind::UdpL4)?;
    let (header_len, _) = segment_header_len(packet).filter(|(len, _)| *len > at.l3)?;
    let room = max_frame_len.checked_sub(header_len).filter(|room| *room >= MIN_SEGMENT)?;
    u16::try_from(room).ok().filter(|size| *size < gso.size)
}
