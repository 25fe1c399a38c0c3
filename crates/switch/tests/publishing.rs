//! Publication of a new program.

use crate::guests::{add, switch};
use crate::{Rig, bridge, program, udp};
use pipeline::{CaptureDirection, Program};
use std::time::Duration;
use switch::{Config, Limits};

const DNS: (u16, u16) = (1000, 53);
const WEB: (u16, u16) = (1000, 80);

#[test]
fn new_acl_applies_to_cached_megaflows_within_one_sweep() {
    let mut loader = switch();
    let rig = Rig::new(loader.program(), &Config::default());
    assert_eq!(rig.send(1, &udp(1, 2, DNS)), (vec![2], true));
    assert_eq!(rig.send(1, &udp(1, 2, WEB)), (vec![2], false));
    let acl = add(&mut loader, (CaptureDirection::Egress, 0), 9, "udp.dst == 53", "drop;");
    assert_eq!(rig.engine.publish(loader.program()), 2);
    rig.send(1, &udp(1, 2, WEB));
    rig.sweep();
    assert_eq!(rig.send(1, &udp(1, 2, DNS)), (vec![], true));
    assert_eq!(rig.send(1, &udp(1, 2, WEB)), (vec![2], true));
    loader.remove_flow(acl);
    rig.engine.publish(loader.program());
    rig.sweep();
    // The megaflow that was cached before is still correct.
    assert_eq!(rig.send(1, &udp(1, 2, DNS)), (vec![2], false));
    let stats = rig.engine.stats();
    assert_eq!((stats.generation, stats.megaflows), (3, 2));
}

/// Programs of two generations. The second one drops DNS.
fn generations() -> (Program, Program) {
    let mut bridge = bridge("priority=5,udp,tp_dst=53 actions=2\npriority=1,udp actions=2");
    let first = bridge.program().clone();
    bridge.apply("priority=5,udp,tp_dst=53 actions=drop", "2", 0).unwrap();
    (first, bridge.program().clone())
}

#[test]
fn packets_of_unaffected_megaflows_cause_no_upcall_when_a_program_is_published() {
    let (first, second) = generations();
    let rig = Rig::new(first, &Config::default());
    rig.send(1, &udp(1, 2, DNS));
    rig.send(1, &udp(1, 2, WEB));
    rig.engine.publish(second);
    assert_eq!(rig.send(1, &udp(1, 2, WEB)), (vec![2], false));
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.send(1, &udp(1, 2, WEB)), (vec![2], false));
    assert_eq!(rig.send(1, &udp(1, 2, DNS)), (vec![], false));
    let stats = rig.engine.stats();
    assert_eq!((stats.upcalls, stats.deleted, stats.put, stats.revalidated), (2, 0, 3, 2));
}

#[test]
fn flows_of_a_row_are_those_of_the_current_program() {
    let (first, second) = generations();
    let rig = Rig::new(first, &Config::default());
    rig.send(1, &udp(1, 2, DNS));
    let actions = || {
        let (rows, next) = rig.engine.flows(Default::default(), 10).unwrap();
        assert_eq!((rows.len(), next), (1, None));
        let row = &rows[0];
        let decided = rig.engine.decided_by(row.megaflow.id).unwrap();
        assert!(decided.iter().zip(&row.flows).all(|(a, b)| std::sync::Arc::ptr_eq(a, b)));
        (row.generation, row.flows.iter().map(|flow| flow.text.actions.to_string()).collect())
    };
    let text = |text: &str| vec![text.to_owned()];
    assert_eq!(actions(), (1, text("output:2")));
    rig.engine.publish(second);
    rig.engine.revalidate().unwrap();
    assert_eq!(actions(), (2, text("drop")));
}

#[test]
fn age_and_idle_time_are_reported() {
    let rig = Rig::new(program("actions=2"), &Config::default());
    rig.send(1, &udp(1, 2, WEB));
    rig.wait(3000);
    let reported = || {
        let (rows, _) = rig.engine.flows(Default::default(), 10).unwrap();
        (rows[0].age.as_millis(), rows[0].idle.as_millis())
    };
    assert_eq!(reported(), (3000, 3000));
    rig.send(1, &udp(1, 2, WEB));
    rig.wait(1500);
    assert_eq!(reported(), (4500, 1500));
}

#[test]
fn megaflow_is_deleted_when_the_new_program_reads_more() {
    let rig = Rig::new(program("actions=2"), &Config::default());
    rig.send(1, &udp(1, 2, WEB));
    rig.engine.publish(program("priority=5,udp,tp_dst=53 actions=3\npriority=1 actions=2"));
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.fake.megaflows(), []);
    assert_eq!(rig.send(1, &udp(1, 2, DNS)), (vec![3], true));
    assert_eq!(rig.send(1, &udp(1, 2, WEB)), (vec![2], true));
}

#[test]
fn megaflows_that_cannot_be_revalidated_in_time_are_deleted() {
    let limits = Limits { revalidate: Duration::ZERO, ..Limits::default() };
    let (first, second) = generations();
    let rig = Rig::new(first, &Config { limits, ..Config::default() });
    for port in 0..100 {
        rig.send(1, &udp(1, 2, (1000, port)));
    }
    assert!(rig.engine.stats().megaflows > 1);
    rig.engine.publish(second);
    rig.engine.revalidate().unwrap();
    assert_eq!((rig.fake.megaflows(), rig.engine.stats().megaflows), (vec![], 0));
    assert_eq!(rig.engine.stats().revalidated, 0);
}
