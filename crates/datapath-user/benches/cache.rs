//! The cost of the megaflow cache per packet, and of switching a small packet with it.
//!
//! Each lookup gets a newly made key, as received frames do. "a key alone" measures only making the
//! keys.
//! that takes.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use datapath::Cursor;
use datapath::megaflow::Megaflow;
use datapath_user::cache::{Cache, CacheLimits};
use flow::{
    Action, ActionOutput, DropReason, Encapsulated, EndpointTable, Field, FlowKey, FlowMask, Match,
    PortNo, execute, extract,
};
use packet::PacketBuf;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const MEGAFLOWS: u64 = 100_000;

/// Sets the fields of a key that only megaflow `number` matches.
fn set_key(key: &mut FlowKey, number: u64) {
    key.set(Field::InPort, (number % 100).into());
    key.set(Field::Ip4Dst, number.into());
    key.set(Field::EthDst, number.into());
}

fn base_key() -> FlowKey {
    let mut key = FlowKey::default();
    for (field, value) in [
        (Field::EthType, 0x800),
        (Field::EthSrc, 0x0200_0000_0001),
        (Field::Ip4Src, 0x0a00_0001),
        (Field::IpProto, 17),
        (Field::IpTtl, 64),
        (Field::TpSrc, 4_000),
        (Field::TpDst, 4_789),
    ] {
        key.set(field, value);
    }
    key
}

/// Megaflows whose masks have seven words, with `masks` different masks.
fn megaflows(masks: u64) -> Vec<Megaflow> {
    let mut base = FlowMask::default();
    for field in [
        Field::InPort,
        Field::EthDst,
        Field::EthType,
        Field::EthSrc,
        Field::VlanTci,
        Field::Ip4Dst,
        Field::IpProto,
        Field::IpFrag,
        Field::TpDst,
    ] {
        base.add(field);
    }
    let lists: [Arc<[Action]>; 50] =
        std::array::from_fn(|port| [Action::Output(PortNo(port as u32 + 1))].into());
    let mut key = base_key();
    let megaflow = |number: u64| {
        set_key(&mut key, number);
        let mut mask = base.clone();
        mask.add_bits(Field::TpSrc, (number % masks).into());
        Megaflow::new(Match::new(&key, mask), lists[(number % 50) as usize].clone())
    };
    (0..MEGAFLOWS).map(megaflow).collect()
}

fn filled(megaflows: &[Megaflow]) -> Cache {
    let mut cache = Cache::new(CacheLimits::default());
    for megaflow in megaflows {
        cache.put(megaflow).expect("there is room");
    }
    cache
}

/// Pseudo-random numbers, so that the processor cannot predict the next megaflow.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % MEGAFLOWS
    }
}

fn lookups(c: &mut Criterion) {
    let mut group = c.benchmark_group("look up");
    let (mut key, mut numbers) = (base_key(), Numbers(1));
    group.bench_function("a key alone", |b| {
        b.iter(|| {
            set_key(&mut key, numbers.next());
            black_box(&key);
        });
    });
    for masks in [1, 8, 64] {
        let mut cache = filled(&megaflows(masks));
        println!("{} bytes per megaflow", cache.memory_bytes() as u64 / MEGAFLOWS);
        if masks == 1 {
            for flows in [1, 1_000, MEGAFLOWS] {
                group.bench_function(format!("exact, {flows} flows"), |b| {
                    b.iter(|| {
                        set_key(&mut key, numbers.next() % flows);
                        cache.look_up(black_box(&key), 60, 1).map(|hit| hit.id)
                    });
                });
            }
        }
        // The source address is in no mask. It differs in every packet, so that no packet is in the
        // exact-match cache.
        for flows in [1_000, MEGAFLOWS] {
            group.bench_function(format!("{masks} masks, {flows} megaflows hit"), |b| {
                let mut packet = 0;
                b.iter(|| {
                    packet += 1;
                    set_key(&mut key, numbers.next() % flows);
                    key.set(Field::Ip4Src, packet);
                    cache.look_up(black_box(&key), 60, 1).map(|hit| hit.id)
                });
            });
        }
        println!("{:?}", cache.stats());
    }
    group.finish();
}

fn changes(c: &mut Criterion) {
    let mut group = c.benchmark_group("change");
    group.throughput(Throughput::Elements(MEGAFLOWS)).sample_size(10);
    let megaflows = megaflows(8);
    group.bench_function("put 100,000", |b| {
        b.iter_batched(|| (), |()| filled(&megaflows), BatchSize::PerIteration);
    });
    group.bench_function("delete 100,000", |b| {
        let delete = |mut cache: Cache| {
            assert!(megaflows.iter().all(|megaflow| cache.delete(megaflow.id).is_some()));
            cache
        };
        b.iter_batched(|| filled(&megaflows), delete, BatchSize::PerIteration);
    });
    let cache = filled(&megaflows);
    group.bench_function("usage of 100,000", |b| {
        let mut out = Vec::new();
        b.iter(|| {
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                out.clear();
                next = cache.usage(from, 1_000, &mut out);
                black_box(&out);
            }
        });
    });
    group.finish();
}

/// Discards all frames.
struct Nowhere(u64);

impl ActionOutput for Nowhere {
    fn port(&mut self, port: PortNo, _: &mut PacketBuf) -> Result<(), DropReason> {
        self.0 += u64::from(port.0);
        Ok(())
    }

    fn underlay(&mut self, _: &Encapsulated, _: &mut PacketBuf) -> Result<(), DropReason> {
        Ok(())
    }

    fn dropped(&mut self, _: DropReason, _: &PacketBuf) {}
}

/// A UDP packet over IPv4. Its frame has 64 bytes, including the frame check sequence, which is not
/// in the buffer.
fn udp_frame() -> PacketBuf {
    let mut frame = [0; 60];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14..34].copy_from_slice(&[
        0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0x66, 0xbd, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    frame[34..42].copy_from_slice(&[0x10, 0, 0x12, 0xb5, 0, 26, 0, 0]);
    PacketBuf::from_bytes(&frame)
}

fn switching(c: &mut Criterion) {
    let mut group = c.benchmark_group("switching a frame of 64 bytes");
    let mut packet = udp_frame();
    let key = extract(&packet, PortNo(1), None).expect("the frame is well-formed");
    let mut mask = FlowMask::default();
    for field in [Field::InPort, Field::EthDst, Field::EthType, Field::EthSrc, Field::Ip4Dst] {
        mask.add(field);
    }
    let mut cache = Cache::new(CacheLimits::default());
    let actions = Arc::new([Action::Output(PortNo(2))]);
    cache.put(&Megaflow::new(Match::new(&key, mask), actions)).expect("there is room");
    let mut endpoints = EndpointTable::new(49_152, 64);
    let mut output = Nowhere(0);
    group.bench_function("extract", |b| {
        b.iter(|| extract(black_box(&packet), PortNo(1), None));
    });
    group.bench_function("extract, look up, execute", |b| {
        b.iter(|| {
            let Ok(key) = extract(black_box(&packet), PortNo(1), None) else { return };
            if let Some(hit) = cache.look_up(&key, 60, 1) {
                execute(hit.actions, &mut packet, &mut endpoints, &mut output);
            }
        });
    });
    assert!(output.0 > 0 && cache.stats().search_hits == 1);
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(30);
    targets = lookups, changes, switching
}
criterion_main!(benches);
