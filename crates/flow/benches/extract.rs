//! The cost of extracting a flow key, compared with a copy of a key.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{addresses, key, tcp_frame};
use criterion::{Criterion, criterion_group, criterion_main};
use etherparse::PacketBuilder;
use flow::{OuterIp, PortNo, TunnelInfo, TunnelType, extract};
use packet::PacketBuf;
use std::hint::black_box;
use std::time::Duration;
use wire::Protocol;

fn ipv6_frame() -> PacketBuf {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 64);
    builder.tcp(1, 2, 3, 4).write(&mut frame, &[0; 64]).unwrap();
    PacketBuf::from_bytes(&frame)
}

fn keys(c: &mut Criterion) {
    let mut group = c.benchmark_group("extract");
    let (source, destination) = addresses(false);
    let outer = OuterIp {
        source,
        destination,
        protocol: Protocol::UDP,
        traffic_class: 0,
        ttl: 64,
        dont_fragment: true,
    };
    let tunnel = TunnelInfo::new(TunnelType::Geneve, &outer, &key(TunnelType::Geneve));
    for (name, packet, tunnel) in [
        ("TCP over IPv4", tcp_frame(64), None),
        ("TCP over IPv4 from a Geneve tunnel", tcp_frame(64), Some(&tunnel)),
        ("TCP over IPv6", ipv6_frame(), None),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| extract(black_box(&packet), PortNo(1), black_box(tunnel)));
        });
    }
    let key = extract(&tcp_frame(64), PortNo(1), None).unwrap();
    group.bench_function("copy of a key", |b| b.iter(|| black_box(&key).clone()));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(30);
    targets = keys
}
criterion_main!(benches);
