//! Rules are inserted, replaced and removed while other threads look up.

mod common;

use classifier::{Classifier, Rank};
use common::{Numbers, condition, key};
use flow::{Field, FlowMask, Match};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const RULES: u64 = 500;
const GENERATIONS: u64 = 300;

/// Rules with several masks; each exists in every generation.
fn rule(n: u64) -> (Match, Rank) {
    let rank = Rank { priority: (n % 7) as u32, id: n };
    let number = (Field::Reg0, n.into(), u128::MAX);
    let condition = match n % 3 {
        0 => condition(&[number]),
        1 => condition(&[number, (Field::EthType, 0x800, 0xffff)]),
        _ => condition(&[number, (Field::Ip4Dst, (n << 8).into(), 0xffff_ff00)]),
    };
    (condition, rank)
}

/// Every state that a reader sees was published: all of its rules belong to one generation, none is
/// missing, and a later read never sees an earlier state.
#[test]
fn readers_see_whole_states_when_a_writer_publishes_clones() {
    let mut first = Classifier::default();
    for n in 0..RULES {
        let (condition, rank) = rule(n);
        first.insert(&condition, rank, 0u64);
    }
    let published = Mutex::new(first);
    let take = || published.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (done, lookups) = (AtomicBool::new(false), AtomicU64::new(0));

    let read = |seed| {
        let (mut numbers, mut last) = (Numbers(seed), 0);
        while !done.load(Ordering::Relaxed) {
            let state = take();
            let generation = state.get(&rule(0).0, rule(0).1).copied();
            let generation = generation.expect("rule 0 is always there");
            assert!(generation >= last, "{generation} after {last}");
            last = generation;
            for _ in 0..50 {
                let n = numbers.below(RULES);
                let address = (Field::Ip4Dst, (n << 8 | 1).into());
                let key = key(&[(Field::Reg0, n.into()), (Field::EthType, 0x800), address]);
                let found = state.lookup(&key, None, &mut FlowMask::default(), |_, _| true);
                assert_eq!(found, Some((rule(n).1, &generation)));
            }
            // A rule that comes and goes is present whole or not at all.
            let extra = state.iter().filter(|(_, rank, _)| rank.id >= RULES).count();
            assert_eq!(extra, if generation % 2 == 1 { 40 } else { 0 });
            assert_eq!(state.len() as u64, RULES + extra as u64);
            lookups.fetch_add(50, Ordering::Relaxed);
        }
    };
    let write = || {
        for generation in 1..=GENERATIONS {
            let mut next = take();
            for n in 0..RULES {
                let (condition, rank) = rule(n);
                assert_eq!(next.insert(&condition, rank, generation), Some(generation - 1));
            }
            for n in RULES..RULES + 40 {
                let condition = condition(&[(Field::Reg1, n.into(), u128::MAX)]);
                let rank = Rank { priority: 9, id: n };
                if generation % 2 == 1 {
                    assert_eq!(next.insert(&condition, rank, generation), None);
                } else {
                    assert_eq!(next.remove(&condition, rank), Some(generation - 1));
                }
            }
            *published.lock().unwrap_or_else(PoisonError::into_inner) = next;
        }
        // On a busy machine the readers may not have run yet.
        let turns = (0..10_000).take_while(|_| lookups.load(Ordering::Relaxed) < 1_000);
        turns.for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        done.store(true, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| read(1));
        scope.spawn(|| read(2));
        scope.spawn(write);
    });
    assert!(lookups.load(Ordering::Relaxed) >= 1_000);
}
