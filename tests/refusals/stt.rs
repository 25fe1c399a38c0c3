//! Tests invalid STT segments.

use super::target::{FORBIDDEN, Target};
use crate::common::frames::{contains, note};
use crate::common::outer::{Outer, SttSegment, TCP, stt_header};
use crate::common::{PATIENCE, Setup, VNI};
use testkit::host::wait_until;
use testkit::require_root;

pub const STT_PORT: u16 = 7471;

/// The STT context ID with this VNI and these logical ports.
fn context(vni: u32, ingress: u16, egress: u16) -> u64 {
    u64::from(vni) | u64::from(egress) << 24 | u64::from(ingress) << 40
}

fn stt_frame(outer: &Outer, id: u32, context: u64, inner: &[u8]) -> Vec<u8> {
    let payload = [&stt_header(context)[..], inner].concat();
    let total = payload.len() as u16;
    SttSegment { id, total, offset: 0, flags: SttSegment::FLAGS }.frame(outer, STT_PORT, &payload)
}

/// An STT packet without logical ports, so that the daemon forwards it by MAC address.
pub fn stt(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    stt_frame(outer, 7, context(VNI, 0, 0), inner)
}

#[test]
fn stt_frames_are_dropped_when_they_are_invalid() {
    require_root!();
    for family in [4, 6] {
        let mut target =
            Target::new(Setup::new("stt").family(family).options("logical_ports = false"));
        let (outer, forbidden) = (target.outer, target.forbidden());
        let contexts = [context(VNI + 1, 0, 0), 1 << 63 | u64::from(VNI)];
        let contexts = contexts.map(|context| stt_frame(&outer, 1, context, &forbidden));
        target.refuses(stt, "another context", Some("unknown_datapath"), &contexts);

        let payload = [&stt_header(context(VNI, 0, 0))[..], &forbidden].concat();
        let total = payload.len() as u16;
        let whole = SttSegment { id: 2, total, offset: 0, flags: SttSegment::FLAGS };
        // STT has no resets and connections. With real TCP, the host's network stack would process
        // these segments.
        let flags = [0x02, 0x12, 0x11, 0x14]
            .map(|flags| SttSegment { flags, ..whole }.frame(&outer, STT_PORT, &payload));
        target.refuses(stt, "real TCP", Some("stt_frame"), &flags);
        let lengths = [
            SttSegment { total: total - 1, ..whole }.frame(&outer, STT_PORT, &payload),
            SttSegment { offset: total, ..whole }.frame(&outer, STT_PORT, &payload),
            SttSegment { total: 17, ..whole }.frame(&outer, STT_PORT, &payload[..17]),
            whole.frame(&outer, STT_PORT, &[]),
        ];
        target.refuses(stt, "impossible lengths", Some("stt_frame"), &lengths);
        let mut segment = whole.segment(&outer, STT_PORT, &payload);
        segment[16] ^= 1;
        let checksum = outer.packet(TCP, &segment);
        target.refuses(stt, "a wrong outer checksum", Some("outer_checksum"), &[checksum]);
        let elsewhere = whole.frame(&outer, STT_PORT + 1, &payload);
        target.refuses(stt, "another port", None, &[elsewhere]);
        let version = [&[1][..], &payload[1..]].concat();
        let version = whole.frame(&outer, STT_PORT, &version);
        target.refuses(stt, "another version", Some("malformed_tunnel"), &[version]);
        let short = [18, 31].map(|len| {
            let total = len as u16;
            SttSegment { total, ..whole }.frame(&outer, STT_PORT, &payload[..len])
        });
        target.refuses(stt, "a cut inner Ethernet header", Some("malformed_tunnel"), &short);
        target.refuses_in_any_tunnel(stt);
        target.finish();
    }
}

#[test]
fn stt_segments_are_dropped_when_they_overlap_or_disagree() {
    require_root!();
    let mut target = Target::new(Setup::new("stt").options("logical_ports = false"));
    let outer = target.outer;
    let payload = [&stt_header(context(VNI, 0, 0))[..], &target.forbidden()].concat();
    let total = payload.len() as u16;
    let piece = |id, total, range: std::ops::Range<usize>| {
        let offset = range.start as u16;
        let segment = SttSegment { id, total, offset, flags: SttSegment::FLAGS };
        segment.frame(&outer, STT_PORT, &payload[range])
    };
    // The first segment of each frame waits for the others; the daemon counts the later segments.
    target.wire.send(&piece(10, total, 0..30));
    let overlaps = [piece(10, total, 0..30), piece(10, total, 29..40), piece(10, total, 10..20)];
    target.refuses(stt, "segments that overlap", Some("stt_overlap"), &overlaps);
    target.wire.send(&piece(11, total, 0..30));
    let other = [piece(11, total + 1, 30..40)];
    target.refuses(stt, "two lengths of one frame", Some("stt_frame"), &other);
    // Segments that arrive in another order are still reassembled.
    let inner = note(target.near(), target.far(), "in pieces");
    let whole = [&stt_header(context(VNI, 0, 0))[..], &inner].concat();
    let part = |range: std::ops::Range<usize>| {
        let (total, offset) = (whole.len() as u16, range.start as u16);
        let segment = SttSegment { id: 12, total, offset, flags: SttSegment::FLAGS };
        segment.frame(&outer, STT_PORT, &whole[range])
    };
    target.wire.send(&part(40..whole.len()));
    target.wire.send(&part(0..20));
    target.delivers(stt, "pieces in disorder", &part(20..40), &inner);
    target.finish();
}

#[test]
fn stt_memory_stays_bounded_when_frames_are_never_completed() {
    require_root!();
    /// The daemon keeps at most 4 MiB of incomplete frames: 64 frames of the maximum length.
    const KEPT: usize = 64;
    const SENT: usize = 200;
    let mut target = Target::new(Setup::new("stt").options("logical_ports = false"));
    let payload = [&stt_header(context(VNI, 0, 0))[..], &target.forbidden()].concat();
    let first = |id| {
        let segment = SttSegment { id, total: 65_535, offset: 0, flags: SttSegment::FLAGS };
        segment.frame(&target.outer, STT_PORT, &payload)
    };
    let flood: Vec<_> = (100..).map(first).take(SENT).collect();
    let seen = target.seen(stt, &flood);
    assert!(!seen.iter().any(|frame| contains(frame, FORBIDDEN)));
    wait_until(PATIENCE, "evicted frames are counted", || {
        target.dropped().get("stt_memory").is_some_and(|&count| count as usize >= SENT - KEPT)
    });
    let evicted = target.dropped()["stt_memory"] as usize;
    assert_eq!(target.dropped().len(), 1, "{:?}", target.dropped());
    assert!(evicted <= SENT - KEPT + 1, "{evicted} evicted: 64 frames fit");
    target.finish();
}
