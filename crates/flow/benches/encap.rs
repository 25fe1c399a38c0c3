//! The cost of encapsulation per packet, compared with a copy of the same bytes.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{key, spec, table, tcp_frame};
use criterion::{Criterion, criterion_group, criterion_main};
use flow::{InnerFlow, OuterHeaders, TunnelType};
use std::hint::black_box;
use std::time::Duration;

fn encap(c: &mut Criterion) {
    for tunnel in [TunnelType::Vxlan, TunnelType::Geneve, TunnelType::Gre, TunnelType::Stt] {
        let mut group = c.benchmark_group(tunnel.name());
        let (mut endpoints, id) = table(&spec(tunnel), false);
        let key = key(tunnel);
        let mut packet = tcp_frame(64);
        let inner = InnerFlow { hash: 0x1234_5678, traffic_class: Some(0), ttl: Some(64) };
        let template = endpoints.get(id).unwrap().template().as_bytes().to_vec();

        group.bench_function("emit the template", |b| {
            b.iter(|| {
                let inner = (black_box(inner), OuterHeaders::All);
                let outer =
                    endpoints.emit(black_box(id), black_box(&key), &mut packet, inner).unwrap();
                outer.undo(&mut packet);
            });
        });
        group.bench_function("encap: hash of the inner flow, and the template", |b| {
            b.iter(|| {
                let outer = endpoints.encap(black_box(id), black_box(&key), &mut packet).unwrap();
                outer.undo(&mut packet);
            });
        });
        let mut buffer = vec![0_u8; template.len()];
        group.bench_function("memcpy of the template", |b| {
            b.iter(|| black_box(&mut buffer).copy_from_slice(black_box(&template)));
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(30);
    targets = encap
}
criterion_main!(benches);
