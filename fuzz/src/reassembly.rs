//! Targets: reassembly of STT segments and IP fragments.

use flow::strip_stt_segment;
use packet::reassembly::{FragmentContext, FragmentProgress, HOLD_MS};
use packet::stt::{SttLimits, SttProgress, SttReassembler};
use packet::{Checksum, IpReassembler, PacketBuf, refragment};

use crate::lists;

/// The limits are small, so that inputs reach them.
const LIMITS: SttLimits = SttLimits { max_bytes: 100_000, max_frames: 3, timeout_ms: 20 };

/// Reassembles a list of Ethernet frames with STT segments. Returns the number of complete STT
/// frames.
pub fn list(bytes: &[u8]) -> usize {
    let mut reassembler = SttReassembler::new(LIMITS);
    let mut complete = 0;
    for (now_ms, frame) in (0..).zip(lists::read(bytes)) {
        let mut packet = PacketBuf::from_bytes(frame);
        // Mutated segments rarely have a correct checksum, so it is not verified.
        packet.offload.checksum = Checksum::Verified;
        let Ok(segment) = strip_stt_segment(&mut packet) else { continue };
        let progress = reassembler.push(segment.key, segment.place, &mut packet, now_ms);
        if let Ok(SttProgress::Complete { .. }) = progress {
            assert_eq!(packet.len(), usize::from(segment.place.total));
            complete += 1;
        }
        assert!(reassembler.bytes() <= LIMITS.max_bytes);
        assert!(reassembler.frames() <= LIMITS.max_frames);
    }
    reassembler.expire(u64::MAX);
    assert_eq!((reassembler.bytes(), reassembler.frames()), (0, 0));
    complete
}

/// Reassembles a list of Ethernet frames with IP fragments, and fragments each datagram again.
/// Returns the number of datagrams.
pub fn fragments(bytes: &[u8]) -> usize {
    const CONTEXT: FragmentContext = FragmentContext { source: 1, zone: 1 };
    let mut reassembler = IpReassembler::default();
    let mut complete = 0;
    for (now_ms, frame) in (0..).zip(lists::read(bytes)) {
        let mut packet = PacketBuf::from_bytes(frame);
        if reassembler.push(CONTEXT, &mut packet, now_ms) != Ok(FragmentProgress::Complete) {
            continue;
        }
        complete += 1;
        let mtu = packet.refragment.map(|how| usize::from(how.mtu)).expect("it was reassembled");
        let mut again = IpReassembler::default();
        let mut last = None;
        let cut = refragment(&packet, |fragment| {
            let at = fragment.located().expect("a fragment of a valid datagram is valid");
            assert!(at.l3_end - at.l3 <= mtu);
            let mut fragment = fragment.clone();
            last = Some((again.push(CONTEXT, &mut fragment, 0), fragment.to_vec()));
        });
        cut.expect("a datagram can be cut as it was");
        let expected = (Ok(FragmentProgress::Complete), packet.to_vec());
        assert_eq!(last, Some(expected));
    }
    reassembler.expire(u64::MAX - HOLD_MS);
    drop(reassembler.take_dropped());
    assert!(reassembler.is_idle());
    complete
}
