//! The cost of a lookup, and of a change while readers hold the previous state, compared with a
//! linear list and a plain hash table of whole keys.
//!
//! Each lookup figure is the mean over several thousand different keys, looked up one after
//! another.

#[path = "../tests/common/mod.rs"]
mod common;

use classifier::{Classifier, Rank};
use common::{Numbers, Oracle, bits, prefix};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use flow::{Field, FlowKey, FlowMask, Match};
use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

const RULES: usize = 100_000;
const MASKS: usize = 64;
const KEYS: usize = 4_096;

type Rules = Vec<(Match, Rank, u64)>;

/// The matches of the rules.
#[derive(Clone, Copy)]
enum Kind {
    /// Any fields, without partial masks; every subtable must be searched.
    Whole,
    /// Access control: prefixes of two addresses, ports, protocols.
    Prefixes,
    /// A mixture of both.
    Mixed,
}

#[derive(Clone, Copy)]
enum Priorities {
    /// All subtables have rules of the same priorities.
    Random,
    /// More specific rules have higher priorities.
    Length,
}

const WHOLE: [Field; 8] = [
    Field::InPort,
    Field::Metadata,
    Field::EthSrc,
    Field::EthDst,
    Field::EthType,
    Field::VlanTci,
    Field::IpProto,
    Field::TpDst,
];

/// Realistic values: few protocols, more ports, many addresses.
fn value(field: Field, numbers: &mut Numbers) -> u128 {
    let number = match field {
        Field::EthType => [0x800, 0x86dd, 0x806][numbers.below(3) as usize],
        Field::IpProto => [6, 17, 1][numbers.below(3) as usize],
        Field::InPort | Field::VlanTci => numbers.below(200),
        Field::Metadata => numbers.below(1_000),
        Field::TpSrc | Field::TpDst => numbers.below(2_000),
        Field::Ip4Src | Field::Ip4Dst => numbers.below(1 << 25) << 5 & 0x3fff_ffff | 0x0a00_0000,
        _ => numbers.below(20_000),
    };
    number.into()
}

fn key(numbers: &mut Numbers) -> FlowKey {
    let mut key = FlowKey::default();
    for field in WHOLE.into_iter().chain([Field::Ip4Src, Field::Ip4Dst, Field::TpSrc]) {
        key.set(field, value(field, numbers));
    }
    key
}

fn mask(kind: Kind, at: usize, numbers: &mut Numbers) -> FlowMask {
    let mut mask = FlowMask::default();
    if matches!(kind, Kind::Whole) || matches!(kind, Kind::Mixed) && at.is_multiple_of(2) {
        // Always an address, so that there are enough different conditions.
        mask.add([Field::EthSrc, Field::EthDst][at / 2 % 2]);
        WHOLE.iter().filter(|_| numbers.below(3) == 0).for_each(|&field| mask.add(field));
    } else {
        let mut add = |field, len: u64| mask.add_bits(field, prefix(field, len as u8));
        add(Field::Ip4Src, if at % 4 < 2 { 0 } else { 8 + numbers.below(25) });
        add(Field::Ip4Dst, 12 + numbers.below(21));
        add(Field::EthType, 16);
        add(Field::IpProto, 8 * numbers.below(2));
        add(Field::TpDst, 16 * numbers.below(2));
    }
    mask
}

fn rules(kind: Kind, priorities: Priorities) -> Rules {
    let mut numbers = Numbers(1);
    let mut masks: Vec<FlowMask> = Vec::new();
    while masks.len() < MASKS {
        let mask = mask(kind, masks.len(), &mut numbers);
        if !masks.contains(&mask) {
            masks.push(mask);
        }
    }
    let rule = |id: usize| {
        let mask = &masks[id % MASKS];
        let priority = match priorities {
            Priorities::Random => numbers.below(1 << 16) as u32,
            Priorities::Length => bits(mask),
        };
        (Match::new(&key(&mut numbers), mask.clone()), Rank { priority, id: id as u64 }, id as u64)
    };
    (0..RULES).map(rule).collect()
}

fn build(rules: &Rules) -> Classifier<u64> {
    let mut classifier = Classifier::default();
    for (condition, rank, value) in rules {
        classifier.insert(condition, *rank, *value);
    }
    classifier
}

/// Keys that match a rule, and keys with values from the same sets, most of which match no rule or
/// one with a short mask.
fn keys(rules: &Rules) -> [(&'static str, Vec<FlowKey>); 2] {
    let mut numbers = Numbers(2);
    let hits = (0..KEYS).map(|_| {
        let condition = &rules[numbers.below(rules.len() as u64) as usize].0;
        let mut key = key(&mut numbers);
        let words = condition.key().words().iter().zip(condition.mask().words());
        for (word, (value, mask)) in key.words_mut().iter_mut().zip(words) {
            *word = *word & !mask | value;
        }
        key
    });
    let hits = hits.collect();
    [("keys of rules", hits), ("other keys", (0..KEYS).map(|_| key(&mut numbers)).collect())]
}

fn find(classifier: &Classifier<u64>, key: &FlowKey) -> (Option<u64>, FlowMask) {
    let mut read = FlowMask::default();
    let found = classifier.lookup(key, None, &mut read, |_, _| true).map(|(_, value)| *value);
    (found, read)
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0) * 4_096
}

/// Nanoseconds per key: the fastest and the median of many passes over all keys. A pass is short,
/// so that on a busy machine the fastest pass is uninterrupted.
fn passes(keys: &[FlowKey], find: impl Fn(&FlowKey)) -> (u128, u128) {
    let pass = || {
        let begin = Instant::now();
        keys.iter().for_each(|key| find(black_box(key)));
        begin.elapsed().as_nanos() / keys.len() as u128
    };
    let mut all: Vec<_> = (0..300).map(|_| pass()).collect();
    all.sort_unstable();
    (all[0], all[all.len() / 2])
}

fn large(c: &mut Criterion) {
    for (kind_name, kind) in
        [("whole fields", Kind::Whole), ("prefixes", Kind::Prefixes), ("mixed", Kind::Mixed)]
    {
        for (order, priorities) in
            [("random priorities", Priorities::Random), ("by length", Priorities::Length)]
        {
            let rules = rules(kind, priorities);
            let before = resident_bytes();
            let classifier = build(&rules);
            let bytes = resident_bytes().saturating_sub(before);
            let mut group = c.benchmark_group(format!("{kind_name}, {order}"));
            println!("{} bytes per rule", bytes / classifier.len() as u64);
            for (name, keys) in keys(&rules) {
                let found = keys.iter().filter(|key| find(&classifier, key).0.is_some()).count();
                let read: u32 = keys.iter().map(|key| bits(&find(&classifier, key).1)).sum();
                let (least, median) = passes(&keys, |key| {
                    black_box(find(&classifier, key));
                });
                println!("{name}: {found} of {KEYS} hit, {} bits read", read / KEYS as u32);
                println!("{name}: {least} ns the fastest pass, {median} ns the median one");
                let mut next = keys.iter().cycle();
                group.bench_function(name, |b| {
                    b.iter(|| next.next().map(|key| find(&classifier, black_box(key))));
                });
            }
        }
    }
}

fn beside(c: &mut Criterion) {
    let rules = rules(Kind::Mixed, Priorities::Random);
    let mut oracle = Oracle::default();
    rules
        .iter()
        .take(RULES / 10)
        .for_each(|(m, rank, v)| assert!(oracle.insert(m, *rank, *v).is_none()));
    let [(_, keys), _] = keys(&rules);
    // The hash table treats the mask of each rule as exact.
    let map: HashMap<_, _> = rules.iter().map(|(m, _, value)| (m.key().clone(), *value)).collect();
    let exact: Vec<_> = map.keys().take(KEYS).cloned().collect();
    let mut group = c.benchmark_group("beside");
    let mut next = keys.iter().cycle();
    group.bench_function("linear list, 10,000 rules", |b| {
        b.iter(|| {
            let mut read = FlowMask::default();
            next.next().and_then(|key| oracle.lookup(black_box(key), None, &mut read, |_, _| true))
        });
    });
    let mut next = exact.iter().cycle();
    group.bench_function(format!("hash table of {} whole keys", map.len()), |b| {
        b.iter(|| next.next().and_then(|key| map.get(black_box(key))));
    });
}

fn small(c: &mut Criterion) {
    let mut group = c.benchmark_group("small");
    let rank = |id| Rank { priority: 1, id };
    let mut classifier = Classifier::default();
    classifier.insert(&Match::any(), Rank { priority: 0, id: 0 }, 0);
    let key = common::key(&[(Field::EthType, 0x800), (Field::Ip4Dst, 0x0a00_0005)]);
    let mut read = FlowMask::default();
    for rules in 0..16 {
        if [0, 4, 15].contains(&rules) {
            group.bench_function(format!("{} rules, the last hits", rules + 1), |b| {
                b.iter(|| {
                    let found = classifier.lookup(black_box(&key), None, &mut read, |_, _| true);
                    found.map(|(_, value)| *value)
                });
            });
        }
        let host = [(Field::EthType, 0x800, 0xffff), (Field::Ip4Dst, 0x0b00_0000, 0xffff_ffff)];
        classifier.insert(&common::condition(&host), rank(rules), rules);
    }
}

fn change(c: &mut Criterion) {
    let rules = rules(Kind::Mixed, Priorities::Random);
    let mut group = c.benchmark_group("change");
    group.sample_size(10);
    group.bench_function("insert all", |b| b.iter_with_large_drop(|| build(&rules)));
    let full = build(&rules);
    group.bench_function("remove all", |b| {
        b.iter_batched_ref(
            || build(&rules),
            |classifier| {
                rules.iter().for_each(|(condition, rank, _)| {
                    classifier.remove(condition, *rank);
                });
            },
            BatchSize::PerIteration,
        );
    });
    let mut one_mask = Classifier::default();
    for n in 0..RULES as u64 {
        let condition = common::condition(&[(Field::EthDst, n.into(), u128::MAX)]);
        one_mask.insert(&condition, Rank { priority: n as u32, id: 0 }, n);
    }
    for (name, full) in [("64 masks", full), ("one mask", one_mask)] {
        let mut numbers = Numbers(3);
        let all: Vec<_> = full.iter().map(|(m, rank, v)| (m, rank, *v)).collect();
        group.bench_function(format!("{name}: remove and insert, each beside a clone"), |b| {
            b.iter(|| {
                let (condition, rank, value) = &all[numbers.below(all.len() as u64) as usize];
                let mut less = full.clone();
                less.remove(condition, *rank);
                let mut again = less.clone();
                again.insert(condition, *rank, *value);
                (less, again)
            });
        });
    }
}

fn config() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
        .without_plots()
}

criterion_group! {
    name = benches;
    config = config();
    targets = large, beside, small, change
}
criterion_main!(benches);
