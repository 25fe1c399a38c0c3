//! MSS clamping: lowers the TCP maximum segment size to what a tunnel carries ([`clamp_mss`]).

use packet::{Checksum, PacketBuf};
use wire::checksum::update_bytes;
use wire::{EtherType, Fragment, Protocol, TcpFlags, TcpPacket, ipv4, ipv6, tcp};

/// The lower limit for a clamped MSS: the minimum MTU of IPv4, 68 bytes, less the headers.
const MIN_MSS: usize = 28;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MAX_SEGMENT_SIZE: u8 = 2;
/// Bytes of the MSS option: kind, length and value.
const MAX_SEGMENT_SIZE_LEN: usize = 4;

/// Lowers the maximum segment size option (RFC 9293 section 3.7.1) of a SYN or SYN-ACK, so that its
/// segments fit frames of `max_frame_len` bytes. Returns whether the packet changed.
///
/// - `max_frame_len` counts from the Ethernet header of `packet`.
/// - A lower MSS stays. No option is added: without one, the sender uses 536 or 1220 bytes.
/// - The MSS is the MTU less the fixed IP and TCP headers, without options (RFC 6691 section 2).
/// - With malformed options, those before the first error are used.
/// - The checksum is updated (RFC 1624), so a wrong one stays wrong. A partial checksum covers only
///   the pseudo header and does not change.
pub fn clamp_mss(packet: &mut PacketBuf, max_frame_len: usize) -> bool {
    let Some((l4, header_len, limit)) = syn(packet, max_frame_len) else { return false };
    let is_partial = matches!(packet.offload.checksum, Checksum::Partial { start, offset }
        if usize::from(start) + usize::from(offset) == l4 + tcp::CHECKSUM_OFFSET);
    let Some(header) = packet.head_mut().get_mut(l4..l4 + header_len) else { return false };
    let (mut at, mut clamped) = (tcp::MIN_HEADER_LEN, false);
    while let Some((option, len)) = option_at(header, at) {
        if option == MAX_SEGMENT_SIZE && len == MAX_SEGMENT_SIZE_LEN {
            clamped |= lower(header, at + 2, limit, is_partial);
        }
        at += len;
    }
    clamped
}

/// True for a segment that opens a connection.
pub(crate) fn is_syn(packet: &PacketBuf) -> bool {
    syn(packet, 0).is_some()
}

/// Offset and length of the TCP header of a segment with SYN, and the largest MSS that fits.
fn syn(packet: &PacketBuf, max_frame_len: usize) -> Option<(usize, usize, u16)> {
    let head = packet.head();
    let at = packet.located().ok()?;
    if at.protocol != Protocol::TCP || at.fragment != Fragment::Whole {
        return None;
    }
    let l4 = at.l4?;
    let segment = TcpPacket::new_checked(head.get(l4..at.l3_end.min(head.len()))?).ok()?;
    if !segment.flags().contains(TcpFlags::SYN) {
        return None;
    }
    let ip_len =
        if at.ethertype == EtherType::IPV6 { ipv6::HEADER_LEN } else { ipv4::MIN_HEADER_LEN };
    let limit = max_frame_len.saturating_sub(at.l3 + ip_len + tcp::MIN_HEADER_LEN).max(MIN_MSS);
    Some((l4, segment.header_len(), u16::try_from(limit).ok()?))
}

/// Kind and length of the option at `at`; `None` at the end of the list, and for a malformed
/// option.
fn option_at(header: &[u8], at: usize) -> Option<(u8, usize)> {
    let kind = *header.get(at)?;
    let len = match kind {
        END => return None,
        NO_OPERATION => 1,
        _ => usize::from(*header.get(at + 1)?),
    };
    let is_whole = (len >= 2 || kind == NO_OPERATION) && at + len <= header.len();
    is_whole.then_some((kind, len))
}

/// Lowers the MSS at `at`, which is inside `header`, to `limit`, and updates the checksum.
fn lower(header: &mut [u8], at: usize, limit: u16, is_partial: bool) -> bool {
    let Some(number) = header.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) else {
        return false;
    };
    if u16::from_be_bytes(*number) <= limit {
        return false;
    }
    // Update whole 16-bit words of the checksum. The header is a multiple of four bytes long, so
    // the range stays inside it.
    let words = at & !1..(at + 3) & !1;
    let old = header[words.clone()].to_vec();
    header[at..at + 2].copy_from_slice(&limit.to_be_bytes());
    if !is_partial {
        let sum = [header[tcp::CHECKSUM_OFFSET], header[tcp::CHECKSUM_OFFSET + 1]];
        let sum = update_bytes(u16::from_be_bytes(sum), &old, &header[words]);
        header[tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&sum.to_be_bytes());
    }
    true
}
