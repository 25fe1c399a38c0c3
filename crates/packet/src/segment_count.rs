//! Counts the segments of a super-packet, and recognises super-packets that no network stack sends.
//!
//! The cost of a super-packet grows with its segments, and its sender chooses their size. 64 KiB in
//! segments of 8 bytes are 8,192 packets.

use crate::buf::PacketBuf;
use crate::fit::segment_header_len;
use crate::segment_limits::{LEAST_SEGMENT_LEN, SHORT_SEGMENTS};

/// The number of packets that a frame becomes on a wire: 1, or about the segments of a
/// super-packet. The headers count as payload, so that they need not be parsed.
#[inline]
pub fn segment_count(packet: &PacketBuf) -> usize {
    packet.offload.gso.map_or(1, |gso| packet.len().div_ceil(usize::from(gso.size.max(1))))
}

/// True for a super-packet of more than about [`SHORT_SEGMENTS`] segments that are shorter than
/// [`LEAST_SEGMENT_LEN`]. This allows 128 bytes for headers, which are not parsed.
#[inline]
pub fn has_tiny_segments(packet: &PacketBuf) -> bool {
    packet.offload.gso.is_some_and(|gso| {
        gso.size < LEAST_SEGMENT_LEN && packet.len() > SHORT_SEGMENTS * (usize::from(gso.size) + 1)
    })
}

/// The bytes of all segments of a super-packet with their headers; otherwise the length of the
/// frame.
pub fn total_wire_len(packet: &PacketBuf) -> usize {
    let len = packet.len();
    let Some((header_len, size)) = segment_header_len(packet).filter(|(_, size)| *size > 0) else {
        return len;
    };
    let segments = len.saturating_sub(header_len).div_ceil(size);
    len + header_len * segments.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::{Checksum, Gso, GsoKind};

    /// A TCP frame over IPv4 with headers of 54 bytes.
    fn packet(payload: usize, size: Option<u16>) -> PacketBuf {
        let mut packet = PacketBuf::from_bytes(&vec![0; 54 + payload]);
        packet.head_mut()[34 + 12] = 0x50;
        packet.offload.checksum = Checksum::Partial { start: 34, offset: 16 };
        packet.offload.gso = size.map(|size| Gso { kind: GsoKind::TcpV4, size, ecn: false });
        packet
    }

    #[test]
    fn segments_are_counted_and_a_plain_frame_is_one() {
        assert_eq!(segment_count(&packet(60_000, None)), 1);
        assert_eq!(segment_count(&packet(60_000, Some(1448))), 42);
        assert_eq!(segment_count(&packet(64_000, Some(8))), 8007);
        assert_eq!(segment_count(&packet(100, Some(1448))), 1);
    }

    #[test]
    fn tiny_segments_are_those_that_no_stack_sends() {
        let is_tiny = |payload, size| has_tiny_segments(&packet(payload, Some(size)));
        assert!(is_tiny(65_000, 8) && is_tiny(65_000, 1) && is_tiny(65_000, 35));
        // The peer of a Linux guest announced an MSS of 48.
        assert!(!is_tiny(65_000, 36));
        for size in 1..LEAST_SEGMENT_LEN {
            let most = SHORT_SEGMENTS * usize::from(size);
            assert!(!is_tiny(most, size), "what UDP_SEGMENT allows, {size} bytes each");
            assert!(is_tiny(most + SHORT_SEGMENTS - 53, size), "{size}");
        }
        assert!(!has_tiny_segments(&packet(65_000, None)));
    }

    #[test]
    fn total_wire_len_has_the_headers_of_each_segment() {
        assert_eq!(total_wire_len(&packet(3000, None)), 3054);
        assert_eq!(total_wire_len(&packet(3000, Some(1000))), 3000 + 3 * 54);
        assert_eq!(total_wire_len(&packet(3001, Some(1000))), 3001 + 4 * 54);
        assert_eq!(total_wire_len(&packet(3000, Some(36))), 3000 + 84 * 54);
        assert_eq!(total_wire_len(&packet(0, Some(36))), 54);
    }
}
