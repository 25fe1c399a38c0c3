//! Property test: after a sweep, the cached actions equal those of a fresh translation, for any
//! sequence of earlier steps.

use crate::{Rig, program, udp};
use datapath::DumpCursor;
use flow::PortNo;
use packet::PacketBuf;
use pipeline::{LearnEvent, LearnedTables, Program, translate};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use switch::{Config, Limits};

static PROGRAMS: LazyLock<Vec<Program>> = LazyLock::new(|| {
    let flows = [
        "actions=normal",
        "priority=5,udp,tp_dst=0 actions=drop\npriority=1 actions=normal",
        "priority=5,udp,tp_src=2 actions=output:4\npriority=1 actions=normal",
        "priority=5,in_port=2,udp,tp_dst=0/2 actions=resubmit(,1)\npriority=1 actions=normal\n\
         table=1,priority=3,dl_src=02:00:00:00:00:01 actions=output:1,normal\ntable=1 actions=normal",
        "priority=1 actions=output:3",
    ];
    flows.into_iter().map(program).collect()
});

/// A received packet.
#[derive(Clone, Debug)]
struct Sent {
    worker: u16,
    port: u32,
    macs: (u8, u8),
    ports: (u16, u16),
}

#[derive(Clone, Debug)]
enum Step {
    /// Packets that hit the cache, or whose upcalls are handled as one batch.
    Batch(Vec<Sent>),
    /// A batch with another step between its translation and the installation of its megaflows.
    Race(Vec<Sent>, Box<Step>),
    Publish(usize),
    Sweep,
    Revalidate,
    Withdraw,
    Wait(u64),
}

fn packets() -> impl Strategy<Value = Vec<Sent>> {
    let sent = (0..2u16, 1..5u32, (1..5u8, 1..5u8), (0..3u16, 0..3u16));
    let sent = sent.prop_map(|(worker, port, macs, ports)| Sent { worker, port, macs, ports });
    prop::collection::vec(sent, 1..8)
}

fn step() -> impl Strategy<Value = Step> {
    let change = prop_oneof![
        2 => (0..5usize).prop_map(Step::Publish),
        1 => Just(Step::Sweep),
        2 => Just(Step::Revalidate),
        1 => Just(Step::Withdraw),
        1 => (0..20_000u64).prop_map(Step::Wait),
    ];
    let other = prop_oneof![
        (0..5usize).prop_map(Step::Publish),
        Just(Step::Sweep),
        Just(Step::Revalidate),
        Just(Step::Withdraw),
        packets().prop_map(Step::Batch),
    ];
    prop_oneof![
        4 => packets().prop_map(Step::Batch),
        2 => (packets(), other).prop_map(|(packets, other)| Step::Race(packets, Box::new(other))),
        3 => change,
    ]
}

fn receive(rig: &Rig, packets: &[Sent]) {
    for sent in packets {
        rig.fake.receive(sent.worker, sent.port, &udp(sent.macs.0, sent.macs.1, sent.ports));
    }
}

fn run(rig: &Rig, current: &mut usize, step: Step) {
    match step {
        Step::Batch(packets) => {
            receive(rig, &packets);
            rig.answer();
        }
        Step::Race(packets, other) => {
            // The upcalls of `other` are handled before the megaflows of `packets` are recorded.
            let mut upcalls = Vec::new();
            if let Step::Batch(first) = &*other {
                receive(rig, first);
                upcalls = rig.fake.take_upcalls();
            }
            receive(rig, &packets);
            if let Step::Publish(number) = *other {
                *current = number;
            }
            let (engine, now) = (Arc::clone(&rig.engine), rig.now());
            *rig.fake.at_clock.lock().unwrap() = Some(Box::new(move || match *other {
                Step::Publish(number) => drop(engine.publish(PROGRAMS[number].clone())),
                Step::Sweep => engine.sweep(now).unwrap(),
                Step::Batch(_) => engine.handle(&mut upcalls, now).unwrap(),
                Step::Withdraw => engine.withdraw_unconfirmed().unwrap(),
                _ => engine.revalidate().unwrap(),
            }));
            rig.answer();
            let left = rig.fake.at_clock.lock().unwrap().take();
            if let Some(hook) = left {
                hook();
            }
        }
        Step::Publish(number) => {
            *current = number;
            rig.engine.publish(PROGRAMS[number].clone());
        }
        Step::Sweep => rig.sweep(),
        Step::Revalidate => rig.engine.revalidate().unwrap(),
        Step::Withdraw => rig.engine.withdraw_unconfirmed().unwrap(),
        Step::Wait(ms) => rig.wait(ms),
    }
    rig.fake.take_sent();
}

/// All packets that the test can generate.
fn universe() -> impl Iterator<Item = (u32, Vec<u8>)> {
    let macs = (1..5).flat_map(|from| (1..5).map(move |to| (from, to)));
    let ports = (0..3).flat_map(|from| (0..3).map(move |to| (from, to)));
    let frames = macs.flat_map(move |(from, to)| ports.clone().map(move |p| udp(from, to, p)));
    (1..5).flat_map(move |port| frames.clone().map(move |frame| (port, frame)))
}

/// Checks that all cached megaflows are correct for all packets that they match, and that none of
/// these packets would be learned from.
fn check(rig: &Rig, program: &Program) -> Result<(), TestCaseError> {
    let mut learned = LearnedTables::default();
    rig.engine.fdb().into_iter().for_each(|(key, place)| {
        learned.configure(LearnEvent::Fdb(key, place));
    });
    for (megaflow, _) in &rig.fake.megaflows() {
        prop_assert!(rig.engine.decided_by(megaflow.id).is_some());
    }
    let megaflows = rig.fake.megaflows_in_force();
    for (port, frame) in universe() {
        let packet = PacketBuf::from_bytes(&frame);
        let key = flow::extract(&packet, PortNo(port), None).unwrap();
        let mut serving = megaflows.iter().filter(|m| m.condition.matches(&key)).peekable();
        if serving.peek().is_none() {
            continue;
        }
        let now = translate(program, &key, &learned, &mut ());
        for megaflow in serving {
            prop_assert_eq!(&*megaflow.actions, &*now.actions, "{:?}", key);
            prop_assert_eq!(&now.learn_events, &[]);
        }
    }
    Ok(())
}

/// Checks that no megaflow of an earlier program serves packets.
fn check_generations(rig: &Rig) -> Result<(), TestCaseError> {
    let workers = (0..2).map(|worker| DumpCursor { worker, ..DumpCursor::default() });
    let rows = workers.flat_map(|from| rig.engine.flows(from, usize::MAX).unwrap().0);
    let of: HashMap<_, _> = rows.map(|row| (row.megaflow.id, row.generation)).collect();
    let current = rig.engine.stats().generation;
    for megaflow in rig.fake.megaflows_in_force() {
        prop_assert_eq!(of.get(&megaflow.id), Some(&current), "{}", megaflow.id);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn cached_actions_equal_a_fresh_translation_after_a_sweep(
        masks_per_port in 0..4usize,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let limits = Limits { masks_per_port, megaflows: 64, ..Limits::default() };
        let mut current = 0;
        let rig = Rig::with_workers(
            2,
            PROGRAMS[current].clone(),
            &Config { limits, ..Config::default() },
        );
        for step in steps {
            let checks = matches!(step, Step::Sweep | Step::Revalidate);
            let is_withdrawn = matches!(step, Step::Withdraw);
            run(&rig, &mut current, step);
            if is_withdrawn {
                check_generations(&rig)?;
            }
            if checks {
                check(&rig, &PROGRAMS[current])?;
            }
        }
        rig.sweep();
        check(&rig, &PROGRAMS[current])?;
        prop_assert_eq!(rig.engine.stats().self_check_faults, 0);
    }

    #[test]
    fn no_upcall_occurs_when_the_new_program_gives_the_same_actions(
        number in 0..5usize,
        batches in prop::collection::vec(packets(), 1..20),
    ) {
        let rig = Rig::with_workers(2, PROGRAMS[number].clone(), &Config::default());
        for packets in &batches {
            receive(&rig, packets);
            rig.answer();
        }
        rig.engine.revalidate().unwrap();
        let before = rig.engine.stats();
        rig.engine.publish(PROGRAMS[number].clone());
        rig.engine.revalidate().unwrap();
        let after = rig.engine.stats();
        prop_assert_eq!((after.deleted, after.put), (before.deleted, before.put));
        prop_assert_eq!(after.carried_over, before.megaflows);
        prop_assert_eq!(after.revalidated, before.revalidated);
    }
}
