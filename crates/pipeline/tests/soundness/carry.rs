//! Megaflows that remain valid in a new program, on random changes of random programs.
//!
//! A decision that [`ProgramDiff`] carries over must be that of the new program, for every packet
//! of the megaflow.

use super::execute::execute_actions;
use super::{MAX_PASSES, SIBLINGS, program, sibling, zones_of};
use flow::{Field, FlowKey, FlowMask, Match, PACKET_WORDS, PortNo};
use pipeline::{LearnedTables, Program, ProgramDiff, Translation, retranslate, translate};
use std::sync::Arc;
use testkit::random::{Random, environment};

/// Packets for each change.
const PACKETS: u64 = 48;

/// The coverage of the test cases.
#[derive(Default)]
struct Coverage {
    megaflows: u64,
    carried: u64,
    /// Of these, the megaflows for which the proof needed their own match.
    by_match: u64,
    /// Megaflows that were not carried over, although the translation is the same.
    missed: u64,
    recirculated: u64,
}

#[test]
fn carried_megaflow_is_what_the_new_program_makes() {
    let cases = environment("WEFT_CASES", 20_000);
    let first = environment("WEFT_SEED", 1);
    let mut seen = Coverage::default();
    for seed in first..first + cases.div_ceil(PACKETS) {
        check_change(seed, &mut seen);
    }
    let share = |part: u64| part as f64 / seen.megaflows as f64;
    eprintln!(
        "of {} megaflows, {:.3} carried over, {:.3} by their match, {:.3} missed",
        seen.megaflows,
        share(seen.carried),
        share(seen.by_match),
        share(seen.missed)
    );
    assert!(share(seen.carried) > 0.2, "few are carried over: {}", share(seen.carried));
    assert!(share(seen.by_match) > 0.002, "few by their match: {}", share(seen.by_match));
    assert!(seen.carried + seen.missed < seen.megaflows, "no decision has changed");
    assert!(seen.recirculated > 0, "none is a later pass");
}

fn check_change(seed: u64, seen: &mut Coverage) {
    let logical = seed.is_multiple_of(2);
    let mut random = Random::new(seed);
    let (mut old, learned) = program::program(&mut random, logical);
    if seed % 4 < 2 {
        program::simplify(&mut old);
    }
    let new = program::changed(&mut random, &old, logical);
    let mut diff = ProgramDiff::new(&old, &new);
    for _ in 0..PACKETS {
        let mut waiting = vec![program::packet(&mut random, logical)];
        let mut passes = Vec::new();
        while let Some(key) = waiting.pop() {
            let translation = translate(&old, &key, &learned, &mut ());
            check(&mut diff, (&new, &learned), (&key, &translation), &mut random, seen)
                .unwrap_or_else(|fault| panic!("WEFT_SEED={seed}: {fault}"));
            let (_, next) = execute_actions(&translation.actions, &key);
            for (mut pass, zone) in next.into_iter().zip(zones_of(&translation.actions)) {
                let [metadata, _] = PACKET_WORDS;
                pass.words_mut()[metadata.clone()].copy_from_slice(&key.words()[metadata]);
                pass.set(Field::CtState, 0x21);
                pass.set(Field::CtZone, zone.into());
                waiting.push(pass);
            }
            // The translations keep the saved states alive.
            passes.push(translation);
            if passes.len() > MAX_PASSES {
                break;
            }
        }
    }
}

fn check(
    diff: &mut ProgramDiff<'_>,
    (new, learned): (&Program, &LearnedTables),
    (key, translation): (&FlowKey, &Translation<'_>),
    random: &mut Random,
    seen: &mut Coverage,
) -> Result<(), String> {
    if translation.is_transient {
        return Ok(());
    }
    seen.megaflows += 1;
    let condition = Match::new(key, translation.mask.clone());
    let flows: Vec<_> = translation.flows.iter().map(|flow| Arc::clone(flow)).collect();
    let port = PortNo(key.get(Field::InPort) as u32);
    let carried = diff.carry(&flows, &translation.reads);
    let carried = carried.filter(|_| !diff.changed_ports().contains(&port));
    let by_match = carried.as_ref().is_some_and(|carried| !carried.conflicts.is_empty());
    let excludes = |conflict: &Match| condition.excludes(conflict);
    let Some(carried) = carried.filter(|it| it.conflicts.iter().all(excludes)) else {
        let known: FlowMask = translation.mask.clone();
        let again = retranslate(new, key, known, learned, &mut ());
        seen.missed +=
            u64::from(again.actions == translation.actions && translation.mask.covers(&again.mask));
        return Ok(());
    };
    seen.carried += 1;
    seen.by_match += u64::from(by_match);
    seen.recirculated += u64::from(key.get(Field::RecircId) != 0);
    for number in 0..=SIBLINGS {
        let packet = if number == 0 { key.clone() } else { sibling(key, translation, random) };
        let other = translate(new, &packet, learned, &mut ());
        let same = other.actions == translation.actions
            && other.dependencies == translation.dependencies
            && other.learn_events == translation.learn_events
            && other.ingress == translation.ingress
            && other.reads == translation.reads
            && other.flows.len() == carried.flows.len()
            && other.flows.iter().zip(&carried.flows).all(|(a, b)| Arc::ptr_eq(a, b));
        if !same {
            return Err(format!(
                "mask {}\n {key}\n  -> {}\n {packet}\n  -> {}\n{:?}\n{:?}",
                translation.mask,
                flow::ShowActions(&translation.actions),
                flow::ShowActions(&other.actions),
                carried.flows,
                other.flows,
            ));
        }
    }
    Ok(())
}
