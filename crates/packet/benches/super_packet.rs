//! The cost of segmenting and coalescing a 64 KB super-packet, compared with a copy of the same
//! bytes.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use packet::{
    Checksum, Gso, GsoKind, Offload, PacketBuf, SegmentChecksum, Segmenter, coalesce_ranges,
};
use wire::Protocol;
use wire::checksum::pseudo_v4;

const OUTER: usize = 8;
const SIZE: u16 = 1398;
const PAYLOAD: usize = 64_000;

/// A TCP super-packet with timestamps over IPv4, and an outer prefix such as that of VXLAN.
fn super_packet() -> PacketBuf {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(((52 + PAYLOAD) as u16).to_be_bytes());
    frame.extend([0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x9c, 0x40, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 2, 0x80, 0x10, 1, 0xf5]);
    let l4_len = (32 + PAYLOAD) as u16;
    let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    frame.extend(pseudo_v4(src, dst, Protocol::TCP, l4_len).fold().to_be_bytes());
    frame.extend([0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    frame.extend((0..PAYLOAD).map(|i| (i * 31) as u8));
    let mut packet = PacketBuf::from_bytes(&frame);
    packet.offload = Offload {
        checksum: Checksum::Partial { start: 34, offset: 16 },
        gso: Some(Gso { kind: GsoKind::TcpV4, size: SIZE, ecn: false }),
    };
    packet.push_front(OUTER).expect("the usual headroom").fill(0);
    packet
}

fn benches(c: &mut Criterion) {
    let packet = super_packet();
    let mut segmenter = Segmenter::new();
    for (name, mode) in
        [("complete", SegmentChecksum::Complete), ("partial", SegmentChecksum::Partial)]
    {
        c.bench_function(&format!("segment/{name}"), |b| {
            b.iter(|| segmenter.segment(black_box(&packet), OUTER, mode, |_| {}).map(|s| s.len()));
        });
    }

    let segments = segmenter.segment(&packet, OUTER, SegmentChecksum::Complete, |_| {});
    let frames: Vec<Vec<u8>> =
        segments.expect("it is well formed").map(|(h, p)| [h, p].concat()).collect();
    let bytes = frames.concat();
    let mut ranges = Vec::new();
    let mut at = 0;
    for frame in &frames {
        ranges.push(at + OUTER..at + frame.len());
        at += frame.len();
    }
    for (name, verified) in [("vouched", true), ("verifying", false)] {
        c.bench_function(&format!("coalesce/{name}"), |b| {
            b.iter_batched_ref(
                || PacketBuf::from_bytes(&bytes),
                |train| assert_eq!(coalesce_ranges(train, &ranges, verified), ranges.len()),
                BatchSize::LargeInput,
            );
        });
    }

    let mut copy = vec![0; bytes.len()];
    c.bench_function("memcpy", |b| {
        b.iter(|| black_box(&mut copy).copy_from_slice(black_box(&bytes)))
    });
}

criterion_group!(super_packet_benches, benches);
criterion_main!(super_packet_benches);
