//! Putting a program in force: megaflows that the revalidator has not confirmed serve no packet.

use crate::{Rig, program, udp};
use std::sync::Arc;
use std::time::Duration;
use switch::{Config, Limits};

const PORTS: (u16, u16) = (1000, 2000);

/// Publishes a program and puts it in force before the revalidator has checked any megaflow.
fn enforce_at_once(rig: &Rig, flows: &str) {
    rig.engine.publish(program(flows));
    rig.engine.withdraw_unconfirmed().unwrap();
}

#[test]
fn megaflow_is_not_executed_when_its_program_is_withdrawn() {
    let rig = Rig::with_workers(2, program("actions=output:2"), &Config::default());
    for worker in [0, 1] {
        rig.send_at(worker, 1, &udp(1, 2, PORTS));
        assert_eq!(rig.send_at(worker, 1, &udp(1, 2, PORTS)), (vec![2], false));
    }
    enforce_at_once(&rig, "actions=output:3");
    // The first packet replaces the megaflow in all workers, so that its copies stay the same.
    assert_eq!(rig.send_at(1, 1, &udp(1, 2, PORTS)), (vec![3], true));
    for worker in [0, 1] {
        assert_eq!(rig.send_at(worker, 1, &udp(1, 2, PORTS)), (vec![3], false));
    }
    rig.engine.revalidate().unwrap();
    rig.sweep();
    for worker in [0, 1] {
        assert_eq!(rig.send_at(worker, 1, &udp(1, 2, PORTS)), (vec![3], false));
    }
    assert_eq!(rig.engine.stats().vanished, 0, "records and datapath agree");
}

#[test]
fn confirmed_megaflows_raise_no_upcall_when_the_program_comes_into_force() {
    let rig = Rig::with_workers(2, program("actions=output:2"), &Config::default());
    for worker in [0, 1] {
        rig.send_at(worker, 1, &udp(1, 2, PORTS));
    }
    // The same meaning, then another one.
    for (flows, to) in [("actions=output:2", 2), ("actions=output:3", 3)] {
        let generation = rig.engine.publish(program(flows));
        rig.engine.revalidate().unwrap();
        rig.engine.enforce(generation).unwrap();
        for worker in [0, 1] {
            assert_eq!(rig.send_at(worker, 1, &udp(1, 2, PORTS)), (vec![to], false), "{flows}");
        }
    }
}

#[test]
fn withdrawn_megaflow_is_put_again_when_the_revalidator_finds_it_right() {
    let rig = Rig::new(program("actions=output:2"), &Config::default());
    rig.send(1, &udp(1, 2, PORTS));
    enforce_at_once(&rig, "actions=output:2");
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![2], false));
}

#[test]
fn packet_is_translated_again_when_its_program_is_withdrawn_meanwhile() {
    let rig = Rig::new(program("actions=output:2"), &Config::default());
    let engine = Arc::clone(&rig.engine);
    // Between the translation and the answer.
    *rig.fake.at_clock.lock().unwrap() = Some(Box::new(move || {
        let generation = engine.publish(program("actions=output:3"));
        engine.revalidate().unwrap();
        engine.enforce(generation).unwrap();
    }));
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![3], true));
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![3], false));
    assert_eq!(rig.engine.stats().upcalls, 1, "it counts once");
}

#[test]
fn megaflow_of_a_withdrawn_program_is_deleted_when_no_time_is_left_to_translate_it() {
    let limits = Limits { revalidate: Duration::ZERO, ..Limits::default() };
    let rig = Rig::new(program("actions=output:2"), &Config { limits, ..Config::default() });
    rig.send(1, &udp(1, 2, PORTS));
    enforce_at_once(&rig, "actions=drop");
    rig.engine.revalidate().unwrap();
    assert!(rig.fake.megaflows().is_empty());
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![], true));
}
