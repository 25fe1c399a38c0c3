//! Benchmarks: loading a large program, changing it, and translating packets through it.

mod large;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use flow::{Field, FlowKey, PortKey};
use pipeline::{LogicalPort, PortLocation, PortSecurity, Program, translate};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    const PAGE: u64 = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE
}

fn load(criterion: &mut Criterion) {
    let flows = large::flows();
    let mut loader = large::topology();
    let before = resident_bytes();
    let start = Instant::now();
    for flow in &flows {
        loader.add_flow(flow).unwrap_or_else(|error| panic!("{error}"));
    }
    let took = start.elapsed();
    let each = (resident_bytes() - before) / flows.len() as u64;
    println!("{} flows loaded in {took:?}, {each} bytes resident for each", flows.len());
    drop(loader);
    let mut group = criterion.benchmark_group("program");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    group.bench_function(format!("load {} flows", flows.len()), |bencher| {
        bencher.iter_batched(
            large::topology,
            |mut loader| {
                flows.iter().for_each(|flow| drop(black_box(loader.add_flow(flow))));
                loader
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// Removes a port and adds it again with its flows, while the old program is still in use.
fn change(criterion: &mut Criterion) {
    let mut loader = large::load();
    let (switch, guest) = (500, 3);
    let (datapath, key) = (large::switch_key(switch), PortKey::new(4).unwrap_or(PortKey::FLOOD));
    // Duplicates of flows that are loaded already.
    let flows = large::guest_flows(switch, guest);
    criterion.bench_function("program/add and remove a port with its flows", |bencher| {
        bencher.iter(|| {
            let before = loader.program();
            loader.remove_port(datapath, key);
            let location = PortLocation::Local(large::guest_port(switch, guest));
            let security = PortSecurity::default();
            let name = large::guest_name(switch, guest);
            loader.set_port(datapath, key, LogicalPort { name, location, security });
            let ids: Vec<_> = flows.iter().filter_map(|flow| loader.add_flow(flow).ok()).collect();
            let between = loader.program();
            for id in ids {
                loader.remove_flow(id);
            }
            (before, between, loader.program())
        });
    });
}

fn mac(text: &str) -> u128 {
    text.split(':').fold(0, |bits, byte| bits << 8 | u128::from_str_radix(byte, 16).unwrap_or(0))
}

fn packet(from: (u32, u32), to: (u32, u32)) -> FlowKey {
    let mut key = FlowKey::default();
    let target =
        if from.0 == to.0 { large::guest_mac(to.0, to.1) } else { large::router_mac(from.0) };
    let ip = |at: (u32, u32)| {
        let address: std::net::Ipv4Addr =
            large::guest_ip4(at.0, at.1).parse().unwrap_or(std::net::Ipv4Addr::UNSPECIFIED);
        u128::from(address.to_bits())
    };
    for (field, value) in [
        (Field::InPort, large::guest_port(from.0, from.1).0.into()),
        (Field::EthSrc, mac(&large::guest_mac(from.0, from.1))),
        (Field::EthDst, mac(&target)),
        (Field::EthType, 0x0800),
        (Field::Ip4Src, ip(from)),
        (Field::Ip4Dst, ip(to)),
        (Field::IpProto, 6),
        (Field::IpTtl, 64),
        (Field::TpSrc, 40000),
        (Field::TpDst, 80),
    ] {
        key.set(field, value);
    }
    key
}

fn bench_translate(criterion: &mut Criterion, name: &str, program: &Program, packets: &[FlowKey]) {
    let stages = translate(program, &packets[0], &(), &mut ()).flows.len();
    let mut next = packets.iter().cycle();
    criterion.bench_function(&format!("translate/{name}, {stages} stages"), |bencher| {
        bencher.iter(|| {
            let key = next.next().unwrap_or(&packets[0]);
            black_box(translate(program, black_box(key), &(), &mut ()))
        });
    });
}

fn translation(criterion: &mut Criterion) {
    let program = large::load().program();
    // Spread over all switches, so that little of the program is in the CPU cache.
    let switches = (0..large::SWITCHES).map(|switch| switch * 389 % large::SWITCHES);
    let within: Vec<_> = switches.clone().map(|s| packet((s, 1), (s, 7))).collect();
    let across: Vec<_> = switches
        .filter_map(|s| {
            let there = s + large::ROUTERS;
            (there < large::SWITCHES).then(|| packet((s, 1), (there, 7)))
        })
        .collect();
    bench_translate(criterion, "within a switch", &program, &within);
    bench_translate(criterion, "across a router", &program, &across);
}

criterion_group!(benches, load, change, translation);
criterion_main!(benches);
