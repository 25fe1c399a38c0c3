//! The self-check finds planted faults within a few sweeps, and no others.

use crate::{Rig, program, udp};
use datapath::megaflow::Megaflow;
use flow::{Action, Field, FlowMask, Match, PortNo};
use std::time::Duration;
use switch::{Config, Limits, SwitchStats};

const PORTS: (u16, u16) = (1000, 2000);
const FLOWS: &str = "udp,tp_dst=2000,actions=output:2\nudp,tp_dst=2001,actions=drop\n";

/// A flow that makes a megaflow for each source port.
const ONE_PER_FLOW: &str = "udp,actions=move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15],output:2\n";

/// A switch with two megaflows in both workers.
fn rig() -> Rig {
    let rig = Rig::with_workers(2, program(FLOWS), &Config::default());
    for worker in [0, 1] {
        rig.send_at(worker, 1, &udp(1, 2, PORTS));
        rig.send_at(worker, 1, &udp(1, 2, (1000, 2001)));
    }
    rig
}

/// Changes the copy that worker 1 has of the megaflow that forwards.
fn plant(rig: &Rig, change: impl Fn(&Megaflow) -> Megaflow) {
    let megaflows = rig.fake.megaflows();
    let forwards = |megaflow: &&Megaflow| *megaflow.actions == [Action::Output(PortNo(2))];
    let megaflow = megaflows.iter().map(|(megaflow, _)| megaflow).find(forwards).unwrap();
    let mut cache = rig.fake.caches[1].lock().unwrap();
    cache.delete(megaflow.id).expect("worker 1 has it");
    cache.put(&change(megaflow)).unwrap();
}

/// The counters after enough sweeps for one check of each megaflow in each worker.
fn swept(rig: &Rig) -> SwitchStats {
    (0..4).for_each(|_| rig.sweep());
    rig.engine.stats()
}

#[test]
fn right_megaflows_stay() {
    let rig = rig();
    let stats = swept(&rig);
    assert_eq!((stats.self_check_faults, stats.megaflows), (0, 2));
    assert!(stats.self_checks >= 4, "{stats:?}");
}

#[test]
fn megaflow_is_deleted_when_its_mask_lacks_a_bit() {
    let rig = rig();
    plant(&rig, |megaflow| {
        // As if the translation had not recorded the lowest bit of the port.
        let mut mask = megaflow.condition.mask().clone();
        mask.set(Field::TpDst, 0xfffe);
        let condition = Match::new(megaflow.condition.key(), mask);
        Megaflow { condition, ..megaflow.clone() }
    });
    assert_eq!(swept(&rig).self_check_faults, 1);
    for worker in [0, 1] {
        assert_eq!(rig.send_at(worker, 1, &udp(1, 2, PORTS)).0, [2]);
        assert_eq!(rig.send_at(worker, 1, &udp(1, 2, (1000, 2001))).0, []);
    }
    assert_eq!(swept(&rig).self_check_faults, 1);
}

#[test]
fn megaflow_is_deleted_when_the_program_has_other_actions() {
    let rig = rig();
    let other = [Action::Output(PortNo(3))];
    plant(&rig, |megaflow| Megaflow { actions: other.clone().into(), ..megaflow.clone() });
    assert_eq!(rig.send_at(1, 1, &udp(1, 2, PORTS)), (vec![3], false));
    assert_eq!(swept(&rig).self_check_faults, 1);
    assert_eq!(rig.send_at(1, 1, &udp(1, 2, PORTS)), (vec![2], true));
}

/// A round takes half a minute, whatever the number of megaflows.
#[test]
fn all_megaflows_are_checked_in_half_a_minute() {
    const MEGAFLOWS: u16 = 1000;
    let revalidate = Duration::from_secs(10);
    let limits = Limits { revalidate, ..Limits::default() };
    let rig = Rig::new(program(ONE_PER_FLOW), &Config { limits, ..Config::default() });
    for port in 0..MEGAFLOWS {
        rig.send(1, &udp(1, 2, (port, 2000)));
    }
    (0..3).for_each(|_| rig.sweep());
    let stats = rig.engine.stats();
    assert_eq!((stats.megaflows, stats.self_checks), (MEGAFLOWS.into(), MEGAFLOWS.into()));
}

#[test]
fn check_ends_within_a_page_when_its_time_is_over_and_goes_on_there() {
    let limits = Limits { revalidate: Duration::from_secs(1), ..Limits::default() };
    let rig = Rig::new(program(ONE_PER_FLOW), &Config { limits, ..Config::default() });
    for port in 0..3 {
        rig.send(1, &udp(1, 2, (port, 2000)));
    }
    {
        let (megaflow, _) = rig.fake.megaflows().pop().expect("there are three");
        let wrong = Megaflow { actions: [Action::Output(PortNo(3))].into(), ..megaflow };
        let mut cache = rig.fake.caches[0].lock().unwrap();
        cache.delete(wrong.id).expect("the worker has it");
        cache.put(&wrong).unwrap();
    }
    // A check may take 10 ms.
    *rig.fake.dump_time.lock().unwrap() = Duration::from_millis(11);
    for checked in 1..=3 {
        rig.sweep();
        assert_eq!(rig.engine.stats().self_checks, checked);
    }
    assert_eq!(rig.engine.stats().self_check_faults, 1);
}

#[test]
fn sweep_goes_on_when_the_first_worker_has_no_megaflows() {
    let limits = Limits { revalidate: Duration::from_secs(10), ..Limits::default() };
    let rig = Rig::with_workers(2, program(ONE_PER_FLOW), &Config { limits, ..Config::default() });
    for port in 0..300 {
        rig.send_at(1, 1, &udp(1, 2, (port, 2000)));
    }
    rig.sweep();
    assert!(rig.engine.stats().self_checks > 0);
}

#[test]
fn stale_megaflow_is_left_to_the_revalidator() {
    let rig = rig();
    rig.engine.publish(program("actions=output:4"));
    let stats = swept(&rig);
    assert_eq!(stats.self_check_faults, 0);
    assert_eq!(rig.send(1, &udp(1, 2, PORTS)).0, [4]);
}

#[test]
fn lacking_bits_are_those_of_the_other_mask() {
    let (mut has, mut needs) = (FlowMask::default(), FlowMask::default());
    has.set(Field::TpDst, 0xfff0);
    needs.set(Field::TpDst, 0x0f0f);
    assert_eq!(has.missing_bits(&needs).get(Field::TpDst), 0x000f);
}
