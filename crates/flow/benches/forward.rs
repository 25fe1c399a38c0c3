//! The header work of the user datapath for one guest frame on its way to the underlay: checksum,
//! flow key, encapsulation, and segmentation.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{key, spec, table};
use criterion::{Criterion, criterion_group, criterion_main};
use flow::{EndpointId, EndpointTable, OuterHeaders, PortNo, TunnelType, extract};
use packet::{Checksum, Gso, GsoKind, Offload, PacketBuf, SegmentChecksum, Segmenter};
use std::hint::black_box;
use std::time::Duration;
use wire::Protocol;
use wire::checksum::pseudo_v4;

const MSS: u16 = 1398;

/// A TCP segment over IPv4 with a partial checksum.
fn frame(payload: usize) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(((40 + payload) as u16).to_be_bytes());
    frame.extend([0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x9c, 0x40, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0xf5]);
    let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let pseudo = pseudo_v4(source, destination, Protocol::TCP, (20 + payload) as u16).fold();
    frame.extend(pseudo.to_be_bytes());
    frame.extend([0, 0]);
    frame.resize(frame.len() + payload, 7);
    frame
}

/// Processes one frame from the guest's device to the datagrams of a VXLAN tunnel; returns their
/// payload.
#[inline(never)]
fn forward(
    packet: &mut PacketBuf,
    offload: Offload,
    endpoints: &mut EndpointTable,
    id: EndpointId,
    segmenter: &mut Segmenter,
) -> usize {
    packet.offload = offload;
    packet::complete_misplaced_checksum(packet).expect("a checksum of TCP");
    black_box(extract(packet, PortNo(1), None).expect("a whole frame"));
    let outer = endpoints
        .encap_with(id, &key(TunnelType::Vxlan), packet, OuterHeaders::BehindSocket)
        .expect("room for the outer header");
    let segments = segmenter
        .segment(packet, outer.outer_len, SegmentChecksum::Complete, |_| {})
        .expect("a well-formed frame");
    segments.map(|(_, payload)| payload.len()).sum()
}

fn guest_to_underlay(c: &mut Criterion) {
    let mut group = c.benchmark_group("guest to VXLAN");
    let gso = Gso { kind: GsoKind::TcpV4, size: MSS, ecn: false };
    for (name, payload, gso) in [
        ("short frame", 10, None),
        ("super-packet of two segments", 2 * usize::from(MSS), Some(gso)),
    ] {
        let bytes = frame(payload);
        let offload = Offload { checksum: Checksum::Partial { start: 34, offset: 16 }, gso };
        let (mut endpoints, id) = table(&spec(TunnelType::Vxlan), false);
        let mut segmenter = Segmenter::new();
        let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, bytes.len());
        group.bench_function(name, |b| {
            b.iter(|| {
                packet.reset(PacketBuf::HEADROOM);
                packet.append(&bytes);
                forward(&mut packet, offload, &mut endpoints, id, &mut segmenter)
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(30);
    targets = guest_to_underlay
}
criterion_main!(benches);
