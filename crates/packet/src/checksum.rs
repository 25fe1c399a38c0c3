//! Transport checksums: completing partial ones in software, verifying complete ones, and inferring
//! their state.

use std::ops::Range;

use wire::checksum::Sum;
use wire::{Crc32c, EtherType, Protocol, UdpPacket, tcp, udp};

use crate::buf::{Checksum, Gso, GsoKind, PacketBuf};
use crate::headers::excess_tags_len;
use crate::locate::{Location, locate, whole};

/// Why a partial checksum cannot be completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChecksumError {
    /// The checksum field is not inside the linear part of the frame.
    #[error("the checksum field is outside the frame")]
    OutsideFrame,
    /// A super-packet has one checksum for each segment, so it must be segmented.
    #[error("a super-packet has no single checksum: segment it first")]
    SuperPacket,
}

/// The result of [`verify_checksum`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChecksumStatus {
    /// The transport checksum is right.
    Valid,
    /// The transport checksum is wrong.
    Invalid,
    /// It cannot be verified: not TCP or UDP over IP, a fragment, malformed headers, UDP over IPv4
    /// without checksum, a partial checksum, or an IPv6 routing header, which hides the final
    /// destination.
    Unknown,
}

/// Completes a partial checksum; any other packet is left alone. The sum ends with the IP packet,
/// so padding behind it does not count. The packet becomes [`Checksum::Verified`].
///
/// # Errors
/// [`ChecksumError`]; the packet is unchanged.
pub fn complete_checksum(packet: &mut PacketBuf) -> Result<(), ChecksumError> {
    let Checksum::Partial { start, offset } = packet.offload.checksum else { return Ok(()) };
    if packet.offload.gso.is_some() {
        return Err(ChecksumError::SuperPacket);
    }
    let partial = partial_sum(packet, 0, start, offset)?;
    let value = partial.compute(packet);
    packet.head_mut()[partial.field..partial.field + 2].copy_from_slice(&value.to_be_bytes());
    packet.offload.checksum = Checksum::Verified;
    Ok(())
}

/// Offset of the checksum, four bytes long, in an SCTP header (RFC 9260 section 3.1).
pub(crate) const SCTP_CHECKSUM_OFFSET: u16 = 8;

/// Completes the checksum of an SCTP packet if it is partial; any other packet is left alone.
/// Returns true if it did so.
///
/// SCTP uses a CRC32c instead of a sum. A virtio-net header cannot express that: it only names the
/// offset of a checksum to complete, which its reader takes for a sum. If a device claims to
/// compute the CRC (veth does), the kernel leaves that to the reader of a packet socket. So this
/// function completes it where such frames are received. Everywhere else, a partial checksum is a
/// sum.
pub fn complete_crc32c(packet: &mut PacketBuf) -> bool {
    const FIELD: Range<usize> = SCTP_CHECKSUM_OFFSET as usize..SCTP_CHECKSUM_OFFSET as usize + 4;
    let Checksum::Partial { start, offset: SCTP_CHECKSUM_OFFSET } = packet.offload.checksum else {
        return false;
    };
    let (start, skipped) = (usize::from(start), excess_tags_len(packet.head()));
    let is_sctp = |at: &Location| at.protocol == Protocol::SCTP && at.l4 + skipped == start;
    let Some(end) = locate(packet, skipped).filter(is_sctp).map(|at| at.end + skipped) else {
        return false;
    };
    let Some(message) = packet.head_mut().get_mut(start..end) else { return false };
    let Some(field) = message.get_mut(FIELD) else { return false };
    field.fill(0);
    let crc = Crc32c::new().bytes(message).checksum();
    message[FIELD].copy_from_slice(&crc);
    packet.offload.checksum = Checksum::Verified;
    true
}

/// Completes a guest's partial checksum unless it may safely stay partial: in the frame's own TCP
/// or UDP header, or behind all headers that a pipeline reads, as in a guest's own tunnels.
/// Completing any other checksum says nothing about the frame's own transport. So the frame becomes
/// [`Checksum::Unverified`], except that a completed SCTP CRC is verified.
///
/// This must be done before any code reads the headers. The guest chooses where the checksum is
/// stored and which bytes are summed. Completed later, it could change an address or port that the
/// pipeline has already matched.
///
/// # Errors
/// [`ChecksumError::SuperPacket`] if a super-packet has such a checksum, which no real sender
/// produces.
#[inline]
pub fn complete_misplaced_checksum(packet: &mut PacketBuf) -> Result<(), ChecksumError> {
    let Checksum::Partial { start, offset } = packet.offload.checksum else { return Ok(()) };
    if may_stay_partial(packet, start, offset) || complete_crc32c(packet) {
        return Ok(());
    }
    complete_checksum(packet)?;
    packet.offload.checksum = Checksum::Unverified;
    Ok(())
}

/// True if completing the checksum changes nothing that a pipeline reads.
fn may_stay_partial(packet: &PacketBuf, start: u16, offset: u16) -> bool {
    // The longest fixed-length header with ports, that of SCTP.
    const PORTS: usize = 12;
    // A pipeline reads behind the outermost tags once it has removed some.
    let skipped = excess_tags_len(packet.head());
    let Some(start) = usize::from(start).checked_sub(skipped) else { return false };
    let Some(frame) = packet.head().get(skipped..) else { return false };
    let Ok(at) = packet.located_behind(skipped) else { return false };
    if !at.is_ip() {
        return !matches!(at.ethertype, EtherType::ARP | EtherType::RARP) && start >= at.l3;
    }
    let Some(Location { l4, protocol, .. }) = whole(&at) else { return false };
    let (own, header_len) = match protocol {
        Protocol::TCP => {
            let words = frame.get(l4 + 12).map_or(0, |byte| usize::from(byte >> 4));
            (Some(tcp::CHECKSUM_OFFSET), (words * 4).max(tcp::MIN_HEADER_LEN))
        }
        Protocol::UDP => (Some(udp::CHECKSUM_OFFSET), PORTS),
        // Neighbour discovery messages are read with all their options.
        Protocol::ICMP | Protocol::ICMPV6 => return false,
        _ => (None, PORTS),
    };
    (start == l4 && own == Some(usize::from(offset))) || start >= l4 + header_len
}

/// Verifies the TCP or UDP checksum of a packet. Of its offload state only `Partial` matters.
pub fn verify_checksum(packet: &PacketBuf) -> ChecksumStatus {
    if matches!(packet.offload.checksum, Checksum::Partial { .. }) {
        return ChecksumStatus::Unknown;
    }
    if !packet.is_linear() {
        return verify_checksum(&packet.clone());
    }
    let frame = packet.head();
    let Some(at) = locate(packet, 0) else { return ChecksumStatus::Unknown };
    if !at.has_only_options(frame) {
        return ChecksumStatus::Unknown;
    }
    let segment = &frame[at.l4..at.end];
    let segment = match at.protocol {
        Protocol::TCP if segment.len() >= tcp::MIN_HEADER_LEN => segment,
        Protocol::UDP => {
            let Ok(udp) = UdpPacket::new_checked(segment) else { return ChecksumStatus::Unknown };
            if udp.checksum() == 0 {
                return if at.is_v6 { ChecksumStatus::Invalid } else { ChecksumStatus::Unknown };
            }
            &segment[..usize::from(udp.length())]
        }
        _ => return ChecksumStatus::Unknown,
    };
    let sum = at.pseudo_header(frame, segment.len() as u16).bytes(segment);
    if sum.is_valid() { ChecksumStatus::Valid } else { ChecksumStatus::Invalid }
}

/// Marks the transport checksum of a packet as partial if its state is unknown
/// ([`Checksum::Unverified`]) and the field holds the sum of the pseudo header, as a sender leaves
/// it for a NIC to complete. Returns true if it did so.
///
/// Between hosts on one machine, nothing completes a checksum on the way. A packet socket reports
/// that, but a UDP socket cannot report the state of a checksum *inside* its datagrams. A tunnel
/// end point would see a frame with a wrong checksum, which the receiver would drop. A complete
/// checksum equals the sum of its pseudo header in one of 65,535 packets. That does no harm:
/// completing such a packet gives the same bytes, and the outer packet was verified before.
pub fn infer_partial(packet: &mut PacketBuf) -> bool {
    if packet.offload.checksum != Checksum::Unverified || packet.offload.gso.is_some() {
        return false;
    }
    let head = packet.head();
    let Some(at) = locate(packet, 0).filter(|at| at.has_only_options(head)) else { return false };
    let offset = match at.protocol {
        Protocol::TCP => tcp::CHECKSUM_OFFSET,
        Protocol::UDP => udp::CHECKSUM_OFFSET,
        _ => return false,
    };
    let field = head.get(at.l4 + offset..at.end).and_then(|rest| rest.first_chunk());
    let Some(field) = field.map(|bytes| u16::from_be_bytes(*bytes)) else { return false };
    // The sum of a pseudo header is never 0, and in UDP 0 means that there is no checksum.
    if field == 0 || at.pseudo_header(head, (at.end - at.l4) as u16).fold() != field {
        return false;
    }
    packet.offload.checksum = Checksum::Partial { start: at.l4 as u16, offset: offset as u16 };
    true
}

/// A super-packet arrived without its segment size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the segment size of the super-packet is unknown")]
pub struct SegmentSizeLost;

/// Like [`infer_partial`], for a frame that may be a super-packet whose sender left segmentation to
/// the NIC as well. A TCP packet in a frame longer than `max_frame_len` bytes, the longest frame
/// that the path carries, becomes a super-packet. Its segments get that frame length: the sender's
/// segment size is unknown, but was not larger.
///
/// # Errors
/// [`SegmentSizeLost`] for any other packet whose frame is too long, because the boundaries of its
/// datagrams are lost. Then only the checksum's state has changed.
pub fn infer_offload(packet: &mut PacketBuf, max_frame_len: usize) -> Result<(), SegmentSizeLost> {
    if infer_partial(packet) { limit_segments(packet, max_frame_len) } else { Ok(()) }
}

/// Turns a TCP packet with a partial checksum into a super-packet if its frame is longer than
/// `max_frame_len` bytes. The frame of each segment then has at most that length. A packet that
/// fits is unchanged.
///
/// # Errors
/// [`SegmentSizeLost`] if the frame is too long and the packet is not TCP, has no partial checksum,
/// or is a super-packet already; it is unchanged.
pub fn limit_segments(packet: &mut PacketBuf, max_frame_len: usize) -> Result<(), SegmentSizeLost> {
    let head = packet.head();
    let at = locate(packet, 0).ok_or(SegmentSizeLost)?;
    if at.end <= max_frame_len {
        return Ok(());
    }
    let is_partial = matches!(packet.offload.checksum, Checksum::Partial { .. });
    if at.protocol != Protocol::TCP || !is_partial || packet.offload.gso.is_some() {
        return Err(SegmentSizeLost);
    }
    let data_offset = head.get(at.l4 + 12).ok_or(SegmentSizeLost)?;
    let header_len = at.l4 + usize::from(data_offset >> 4) * 4;
    let size = max_frame_len.checked_sub(header_len).and_then(|size| u16::try_from(size).ok());
    let size = size.filter(|&size| size > 0).ok_or(SegmentSizeLost)?;
    let kind = if at.is_v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
    packet.offload.gso = Some(Gso { kind, size, ecn: false });
    Ok(())
}

/// A partial checksum: where it is stored and what it covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialSum {
    /// The first byte that is summed, from the start of the frame.
    start: usize,
    /// The checksum field, from the start of the frame.
    pub field: usize,
    /// The end of what is summed, from the start of the frame.
    pub end: usize,
    /// The content of the field: the sum of the pseudo header.
    pub pseudo: u16,
    is_udp: bool,
}

/// Describes the partial checksum at `start` and `offset` of a packet with `outer_len` bytes before
/// its Ethernet header.
pub(crate) fn partial_sum(
    packet: &PacketBuf,
    outer_len: usize,
    start: u16,
    offset: u16,
) -> Result<PartialSum, ChecksumError> {
    let head = packet.head();
    let (start, is_udp) = (usize::from(start), usize::from(offset) == udp::CHECKSUM_OFFSET);
    let field = start + usize::from(offset);
    let value: [u8; 2] = head
        .get(field..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .ok_or(ChecksumError::OutsideFrame)?;
    // `locate` does not find the headers of a frame with buffer fragments, but such a frame has no
    // padding.
    let end = match locate(packet, outer_len) {
        Some(at) if at.l4 + outer_len == start && at.end + outer_len >= field + 2 => {
            at.end + outer_len
        }
        _ => packet.len(),
    };
    Ok(PartialSum { start, field, end, pseudo: u16::from_be_bytes(value), is_udp })
}

impl PartialSum {
    /// The complete checksum. For UDP it is never 0, which would mean that there is none (RFC 768).
    pub(crate) fn compute(&self, packet: &PacketBuf) -> u16 {
        let sum = sum_range(packet, self.start, self.end, Sum::new());
        if self.is_udp { sum.udp_checksum() } else { sum.checksum() }
    }
}

/// The bytes `range` of the frame as slices of its pieces.
fn pieces_of(packet: &PacketBuf, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
    let mut at = 0;
    packet.pieces().map(move |piece| {
        let from = range.start.saturating_sub(at).min(piece.len());
        let to = range.end.saturating_sub(at).min(piece.len());
        at += piece.len();
        piece.get(from..to).unwrap_or_default()
    })
}

/// Adds the bytes `start..end` of the frame to `sum`.
pub(crate) fn sum_range(packet: &PacketBuf, start: usize, end: usize, sum: Sum) -> Sum {
    pieces_of(packet, start..end).fold(sum, Sum::bytes)
}

/// Appends the bytes `range` of the frame to `copy`.
pub(crate) fn copy_range(packet: &PacketBuf, range: Range<usize>, copy: &mut PacketBuf) {
    pieces_of(packet, range).for_each(|piece| copy.append(piece));
}
