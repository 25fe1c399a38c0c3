//! What comes between a translation and its megaflow, made to happen.

use crate::{Rig, program, udp};
use std::sync::Arc;
use switch::Config;

const PORTS: (u16, u16) = (1000, 2000);

/// `then` happens when the next packets are translated, and their megaflows are not yet on record.
fn between(rig: &Rig, then: impl FnOnce(&switch::Engine) + Send + 'static) {
    let engine = Arc::clone(&rig.engine);
    *rig.fake.at_clock.lock().unwrap() = Some(Box::new(move || then(&engine)));
}

#[test]
fn old_translation_that_is_put_after_the_sweep_is_found_by_the_next() {
    let rig = Rig::new(program("actions=output:2"), &Config::default());
    let now = rig.now();
    between(&rig, move |engine| {
        engine.publish(program("actions=output:3"));
        engine.sweep(now).unwrap();
    });
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![2], true));
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![2], false));
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![3], false));
}

#[test]
fn old_translation_is_not_put_when_the_new_one_is_there() {
    let rig = Rig::with_workers(2, program("actions=output:2"), &Config::default());
    rig.send_at(0, 1, &udp(1, 2, PORTS));
    between(&rig, |engine| {
        engine.publish(program("actions=output:3"));
        engine.revalidate().unwrap();
    });
    // It comes up from the other worker, and its answer is late.
    assert_eq!(rig.send_at(1, 1, &udp(1, 2, PORTS)), (vec![2], true));
    assert_eq!(rig.engine.stats().outdated, 1);
    for worker in [0, 1] {
        assert_eq!(rig.send_at(worker, 1, &udp(1, 2, PORTS)), (vec![3], false));
    }
}

#[test]
fn new_translation_waits_for_the_revalidation_of_the_old_one() {
    let rig = Rig::with_workers(2, program("actions=output:2"), &Config::default());
    rig.send_at(0, 1, &udp(1, 2, PORTS));
    rig.engine.publish(program("actions=output:3"));
    // Were it put at the second worker alone, the first would keep the old one, and nobody would
    // know.
    assert_eq!(rig.send_at(1, 1, &udp(1, 2, PORTS)), (vec![3], true));
    assert_eq!(rig.send_at(1, 1, &udp(1, 2, PORTS)), (vec![3], true));
    rig.engine.revalidate().unwrap();
    for worker in [0, 1] {
        assert_eq!(rig.send_at(worker, 1, &udp(1, 2, PORTS)), (vec![3], false));
    }
}

#[test]
fn what_is_learned_in_between_is_found() {
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
    // The sweep has the usages by now, and not yet gone through the records.
    between(&rig, move |engine| engine.handle(&mut upcalls, now).unwrap());
    rig.sweep();
    assert_eq!(rig.engine.stats().vanished, 0);
    rig.sweep();
    assert_eq!((rig.engine.stats().megaflows, rig.fake.megaflows().len()), (1, 1));
}
