//! STT segments put together.

use std::net::{IpAddr, Ipv4Addr};

use packet::PacketBuf;
use packet::stt::{SttFrameKey, SttLimits, SttPlace, SttProgress, SttReassembler};

use crate::lists;

/// Small, so that the limits are met.
const LIMITS: SttLimits = SttLimits { max_bytes: 100_000, max_frames: 3, timeout_ms: 20 };
const IPV4_HEADERS_LEN: usize = 14 + 20 + 20;

/// Takes in a list of Ethernet frames with STT segments; returns how many STT frames were complete.
pub fn list(bytes: &[u8]) -> usize {
    let mut reassembler = SttReassembler::new(LIMITS);
    let mut complete = 0;
    for (now_ms, frame) in (0..).zip(lists::read(bytes)) {
        let Some((key, place, payload)) = segment(frame) else { continue };
        let mut packet = PacketBuf::from_bytes(payload);
        if let Ok(SttProgress::Complete { .. }) = reassembler.push(key, place, &mut packet, now_ms)
        {
            assert_eq!(packet.len(), usize::from(place.total));
            complete += 1;
        }
        assert!(
            reassembler.bytes() <= LIMITS.max_bytes && reassembler.frames() <= LIMITS.max_frames
        );
    }
    reassembler.expire(u64::MAX);
    assert_eq!((reassembler.bytes(), reassembler.frames()), (0, 0));
    complete
}

/// Reads the fields where they stand in an IPv4 packet without options; what the outer headers must be is another
/// target's concern.
fn segment(frame: &[u8]) -> Option<(SttFrameKey, SttPlace, &[u8])> {
    let (headers, payload) = frame.split_at_checked(IPV4_HEADERS_LEN)?;
    let word = |at: usize| u16::from_be_bytes([headers[at], headers[at + 1]]);
    let address = |at: usize| {
        IpAddr::V4(Ipv4Addr::new(headers[at], headers[at + 1], headers[at + 2], headers[at + 3]))
    };
    let key = SttFrameKey {
        src: address(26),
        dst: address(30),
        src_port: word(34),
        packet_id: u32::from(word(42)) << 16 | u32::from(word(44)),
    };
    let place = SttPlace { total: word(38), offset: word(40), ce: headers[15] & 3 == 3 };
    Some((key, place, payload))
}
