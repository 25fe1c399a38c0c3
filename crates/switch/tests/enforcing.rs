//! Putting a program in force: megaflows that the revalidator has not confirmed serve no packet.

use crate::guests::{add, switch};
use crate::{Rig, program, udp};
use pipeline::Direction;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
    assert_eq!(rig.fake.charged.load(Ordering::Relaxed), 1, "its port is charged for one packet");
}

#[test]
fn withdrawn_megaflow_serves_no_packet_when_no_time_is_left_to_translate_it() {
    let limits = Limits { revalidate: Duration::ZERO, ..Limits::default() };
    let rig = Rig::new(program("actions=output:2"), &Config { limits, ..Config::default() });
    rig.send(1, &udp(1, 2, PORTS));
    enforce_at_once(&rig, "actions=drop");
    rig.engine.revalidate().unwrap();
    // The megaflow waits for a later revalidation, which may install it again.
    assert_eq!((rig.fake.megaflows().len(), rig.fake.megaflows_in_force().len()), (1, 0));
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)), (vec![], true));
}

/// A switch with a megaflow for web traffic and one for DNS. They match on the protocol and the
/// port, because of an access control list.
fn web_and_dns() -> (lflow::Loader, Rig) {
    let mut loader = switch();
    add(&mut loader, (Direction::Egress, 0), 9, "udp.dst == 7", "drop;");
    let rig = Rig::new(loader.program(), &Config::default());
    for port in [80, 53] {
        assert_eq!(rig.send(1, &udp(1, 2, (1000, port))), (vec![2], true));
    }
    (loader, rig)
}

fn reaches(rig: &Rig, port: u16) -> (Vec<u32>, bool) {
    rig.send(1, &udp(1, 2, (1000, port)))
}

/// Adds a flow that no packet of either megaflow matches.
fn add_other_station(loader: &mut lflow::Loader) {
    let other = "eth.dst == 02:00:00:00:00:09";
    add(loader, (Direction::Ingress, 0), 50, other, "drop;");
}

#[test]
fn megaflows_are_carried_over_without_a_translation_when_nothing_changes_for_them() {
    let (mut loader, rig) = web_and_dns();
    add_other_station(&mut loader);
    let generation = rig.engine.publish(loader.program());
    rig.engine.revalidate().unwrap();
    rig.engine.enforce(generation).unwrap();
    for port in [80, 53] {
        assert_eq!(reaches(&rig, port), (vec![2], false));
    }
    let stats = rig.engine.stats();
    assert_eq!((stats.carried_over, stats.revalidated), (2, 0));
    // Rows of another generation would be out of date.
    let (rows, _) = rig.engine.flows(Default::default(), 10).unwrap();
    assert!(rows.iter().all(|row| row.generation == generation), "{rows:?}");
}

#[test]
fn only_megaflows_that_a_new_entry_may_concern_change() {
    let (mut loader, rig) = web_and_dns();
    add(&mut loader, (Direction::Egress, 0), 9, "udp.dst == 53", "drop;");
    let generation = rig.engine.publish(loader.program());
    rig.engine.revalidate().unwrap();
    rig.engine.enforce(generation).unwrap();
    // Its mask has too few bits of the port.
    assert_eq!(reaches(&rig, 53), (vec![], true));
    assert_eq!(reaches(&rig, 80), (vec![2], false));
    assert_eq!((rig.engine.stats().put, rig.engine.stats().deleted), (3, 1));
}

#[test]
fn unconfirmed_megaflows_are_deleted_when_the_revalidator_is_late() {
    let (mut loader, rig) = web_and_dns();
    add(&mut loader, (Direction::Egress, 0), 9, "udp.dst == 53", "drop;");
    let generation = rig.engine.publish(loader.program());
    // No revalidation runs.
    rig.engine.enforce(generation).unwrap();
    assert_eq!(rig.fake.megaflows(), []);
    assert_eq!(reaches(&rig, 53), (vec![], true));
}

#[test]
fn carried_megaflow_is_put_again_when_all_are_withdrawn() {
    let (mut loader, rig) = web_and_dns();
    add_other_station(&mut loader);
    rig.engine.publish(loader.program());
    rig.engine.withdraw_unconfirmed().unwrap();
    assert_eq!(rig.fake.megaflows_in_force(), []);
    rig.engine.revalidate().unwrap();
    for port in [80, 53] {
        assert_eq!(reaches(&rig, port), (vec![2], false));
    }
    rig.sweep();
    assert_eq!((rig.engine.stats().vanished, rig.engine.stats().strangers), (0, 0));
}
