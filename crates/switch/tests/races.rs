//! Races between the translation of a packet and the installation of its megaflow, made
//! deterministic.

use crate::{Rig, program, udp};
use std::sync::Arc;
use switch::Config;

const PORTS: (u16, u16) = (1000, 2000);

/// Runs `then` after the next packets are translated and before their megaflows are recorded.
fn between(rig: &Rig, then: impl FnOnce(&switch::Engine) + Send + 'static) {
    let engine = Arc::clone(&rig.engine);
    *rig.fake.at_clock.lock().unwrap() = Some(Box::new(move || then(&engine)));
}

#[test]
fn stale_translation_is_not_put_when_a_newer_program_was_published() {
    let rig = Rig::new(program("actions=output:2"), &Config::default());
    let now = rig.now();
    between(&rig, move |engine| {
        engine.publish(program("actions=output:3"));
        engine.sweep(now).unwrap();
    });
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![2], true));
    assert_eq!(rig.engine.stats().outdated, 1);
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![3], true));
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![3], false));
}

#[test]
fn stale_translation_is_not_put_when_a_newer_one_is_recorded() {
    let rig = Rig::with_workers(2, program("actions=output:2"), &Config::default());
    rig.send_at(0, 1, &udp(1, 2, PORTS));
    between(&rig, |engine| {
        engine.publish(program("actions=output:3"));
        engine.revalidate().unwrap();
    });
    // The upcall comes from the other worker, and its answer is late.
    assert_eq!(rig.send_at(1, 1, &udp(1, 2, PORTS)), (vec![2], true));
    assert_eq!(rig.engine.stats().outdated, 1);
    for worker in [0, 1] {
        assert_eq!(rig.send_at(worker, 1, &udp(1, 2, PORTS)), (vec![3], false));
    }
}

#[test]
fn new_translation_is_not_put_before_the_old_one_is_revalidated() {
    let rig = Rig::with_workers(2, program("actions=output:2"), &Config::default());
    rig.send_at(0, 1, &udp(1, 2, PORTS));
    rig.engine.publish(program("actions=output:3"));
    // If it were installed at the second worker only, the first one would keep the old actions
    // unnoticed.
    assert_eq!(rig.send_at(1, 1, &udp(1, 2, PORTS)), (vec![3], true));
    assert_eq!(rig.send_at(1, 1, &udp(1, 2, PORTS)), (vec![3], true));
    rig.engine.revalidate().unwrap();
    for worker in [0, 1] {
        assert_eq!(rig.send_at(worker, 1, &udp(1, 2, PORTS)), (vec![3], false));
    }
}

#[test]
fn megaflow_is_revalidated_when_a_station_is_learned_before_its_put() {
    let rig = Rig::new(program("actions=normal"), &Config::default());
    rig.fake.receive(0, 2, &udp(2, 1, PORTS));
    let mut other = rig.fake.take_upcalls();
    let now = rig.now();
    between(&rig, move |engine| engine.handle(&mut other, now).unwrap());
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)).0, [1, 2, 3, 4]);
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)).0, [2, 3, 4]);
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![2], false));
}

#[test]
fn megaflow_put_during_a_sweep_has_not_vanished() {
    let rig = Rig::new(program("actions=output:2"), &Config::default());
    rig.fake.receive(0, 1, &udp(1, 2, PORTS));
    let mut upcalls = rig.fake.take_upcalls();
    let now = rig.now();
    // The sweep has read the usages and not yet checked the records.
    between(&rig, move |engine| engine.handle(&mut upcalls, now).unwrap());
    rig.sweep();
    assert_eq!(rig.engine.stats().vanished, 0);
    rig.sweep();
    assert_eq!((rig.engine.stats().megaflows, rig.fake.megaflows().len()), (1, 1));
}
