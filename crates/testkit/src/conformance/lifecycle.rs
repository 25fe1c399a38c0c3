//! Tests that megaflows, upcalls and ports can be added and removed.

use super::compare::{self, Seen};
use super::forwarding::Bench;
use super::lab::{Lab, Limits, PATIENCE, port_config, port_stats};
use super::reference::{Outcome, Reference};
use super::{PORTS, Provider, conforms};
use crate::frames::{self, FrameKinds};
use crate::host::wait_until;
use crate::random::Random;
use datapath::DatapathError;
use datapath::config::MAX_PORT;
use datapath::megaflow::Megaflow;
use datapath::upcall::UpcallLimits;
use flow::{Action, DropReason, Field, Match, PortNo};
use packet::PacketBuf;
use std::collections::BTreeMap;

const FROM: PortNo = PORTS[0];
const TO: PortNo = PORTS[1];
const OTHER: PortNo = PORTS[2];

/// A megaflow that matches all packets received on `FROM`.
fn megaflow(actions: &[Action]) -> Megaflow {
    let mut condition = Match::any();
    assert!(condition.require(Field::InPort, FROM.0.into(), Field::InPort.all_ones()));
    Megaflow::new(condition, actions.into())
}

fn frames_from(random: &mut Random, count: usize) -> Vec<(PortNo, PacketBuf)> {
    let kinds = FrameKinds { supers: true, snap: true, malformed: false, max_payload: 1500 };
    (0..count).map(|_| (FROM, frames::frame(random, kinds))).collect()
}

/// A megaflow takes effect when it is installed. A replacement keeps its counters. After its
/// deletion it executes no packet. A megaflow above the limit is not installed, and its packets
/// cause upcalls.
///
/// # Panics
/// When the provider does not conform.
pub fn puts_and_deletes_take_effect(provider: Provider<'_>) {
    let (mut bench, mut random, mut seen) = (Bench::new(provider), Random::new(1), Seen::default());
    for to in [TO, OTHER, TO] {
        let megaflow = megaflow(&[Action::Output(to)]);
        match bench.reference.megaflows.first_mut() {
            Some((had, _)) => *had = megaflow.clone(),
            None => bench.reference.megaflows.push((megaflow.clone(), (0, 0))),
        }
        bench.put(vec![megaflow]);
        let sent = frames_from(&mut random, 30);
        assert_eq!(conforms(bench.pass(&sent, &mut seen)).len(), 0);
    }
    // The second deletion names one megaflow twice, which does not exist.
    conforms(bench.clear());
    let gone = megaflow(&[]).id;
    assert_eq!(bench.lab.datapath.delete(vec![gone, gone]), Ok(Vec::new()));
    let sent = frames_from(&mut random, 30);
    let misses = conforms(bench.pass(&sent, &mut seen));
    assert_eq!(misses.len(), sent.len());
    // A frame that is in flight during the deletion is executed or causes an upcall. After the
    // deletion no frame is executed.
    for _ in 0..20 {
        deleted_under_traffic(&mut bench, &mut random);
    }
}

fn deleted_under_traffic(bench: &mut Bench, random: &mut Random) {
    let megaflow = megaflow(&[Action::Output(TO)]);
    bench.put(vec![megaflow.clone()]);
    let sent = frames_from(random, 20);
    for (port, packet) in &sent {
        bench.lab.send(*port, packet);
    }
    let counted = bench.lab.datapath.delete(vec![megaflow.id]).expect("the provider runs");
    let executed: u64 = counted.iter().map(|(_, usage)| usage.packets).sum();
    let executed = usize::try_from(executed).expect("a small number");
    let left = bench.lab.collect(&BTreeMap::from([(TO, executed)]));
    assert_eq!(left[&TO].len(), executed, "frames left after their megaflow was deleted");
    assert_eq!(bench.lab.upcalls(sent.len() - executed).len(), sent.len() - executed);
}

/// A megaflow of an earlier epoch executes packets until it is withdrawn. A confirmed one is not
/// withdrawn. A withdrawn one still exists, and putting it again makes it valid again.
///
/// # Panics
/// When the provider does not conform.
pub fn withdrawn_megaflows_execute_nothing(provider: Provider<'_>) {
    let (mut bench, mut random, mut seen) = (Bench::new(provider), Random::new(4), Seen::default());
    let first = megaflow(&[Action::Output(TO)]);
    bench.reference.megaflows.push((first.clone(), (0, 0)));
    bench.put(vec![first.clone()]);
    let mut is_executed = |bench: &mut Bench, random: &mut Random| {
        let sent = frames_from(random, 20);
        assert_eq!(conforms(bench.pass(&sent, &mut seen)).len(), 0);
    };
    let raises_upcalls = |bench: &mut Bench, random: &mut Random| {
        let sent = frames_from(random, 20);
        sent.iter().for_each(|(port, packet)| bench.lab.send(*port, packet));
        assert_eq!(bench.lab.upcalls(sent.len()).len(), sent.len());
        conforms(compare::frames(&[], bench.lab.collect(&BTreeMap::new())));
    };
    let runs = "the provider runs";
    is_executed(&mut bench, &mut random);
    bench.lab.datapath.begin_epoch().expect(runs);
    is_executed(&mut bench, &mut random);
    let gone = megaflow(&[]).id;
    bench.lab.datapath.confirm(vec![first.id, gone]).expect(runs);
    bench.lab.datapath.withdraw_unconfirmed().expect(runs);
    is_executed(&mut bench, &mut random);
    bench.lab.datapath.begin_epoch().expect(runs);
    bench.lab.datapath.withdraw_unconfirmed().expect(runs);
    raises_upcalls(&mut bench, &mut random);
    bench.lab.datapath.confirm(vec![first.id]).expect(runs);
    raises_upcalls(&mut bench, &mut random);
    assert_eq!(bench.lab.datapath.get(vec![first.id]), Ok(vec![first]), "it still exists");
    let second = megaflow(&[Action::Output(OTHER)]);
    bench.reference.megaflows[0].0 = second.clone();
    bench.put(vec![second]);
    is_executed(&mut bench, &mut random);
    bench.lab.datapath.begin_epoch().expect(runs);
    bench.lab.datapath.withdraw_unconfirmed().expect(runs);
    conforms(bench.clear());
}

/// Each port has a bounded upcall queue. When it is full, further packets are counted as drops.
/// Packets of other ports still cause upcalls.
///
/// # Panics
/// When the provider does not conform.
pub fn upcall_queues_are_bounded(provider: Provider<'_>) {
    const LIMIT: usize = 16;
    let upcalls = UpcallLimits { packets: LIMIT, ..UpcallLimits::default() };
    let mut lab = Lab::new(provider, Limits { upcalls, ..Limits::default() });
    let mut random = Random::new(2);
    let frames = frames_from(&mut random, 50);
    let before = lab.snapshot();
    let mut outcome = Outcome::default();
    let mut reference = Reference::new(&provider.endpoints());
    for (at, (port, packet)) in frames.iter().enumerate() {
        lab.send(*port, packet);
        if at < LIMIT {
            reference.receive(*port, None, packet, &mut outcome);
        } else {
            outcome.drops.entry(*port).or_default().add(DropReason::UpcallQueueFull, 1);
        }
    }
    lab.send(OTHER, &frames[0].1);
    reference.receive(OTHER, None, &frames[0].1, &mut outcome);
    lab.wait_received(&before, &BTreeMap::from([(FROM, frames.len() as u64), (OTHER, 1)]));
    let upcalls = lab.upcalls(LIMIT + 1);
    conforms(compare::upcalls(&outcome, &upcalls));
    let turn = upcalls.iter().position(|upcall| upcall.port == OTHER);
    assert!(turn.is_some_and(|turn| turn < 2), "one port waits behind the other's packets");
    conforms(compare::dropped(&outcome, &before, &lab.snapshot()));
    conforms(compare::frames(&[], lab.collect(&BTreeMap::new())));
}

/// A removed port neither sends nor receives, and its device is closed; an added port works. Port
/// numbers are unique.
///
/// # Panics
/// When the provider does not conform.
pub fn ports_come_and_go(provider: Provider<'_>) {
    let (mut bench, mut random, mut seen) = (Bench::new(provider), Random::new(3), Seen::default());
    let megaflow = megaflow(&[Action::Output(TO), Action::Output(OTHER)]);
    bench.reference.megaflows.push((megaflow.clone(), (0, 0)));
    bench.put(vec![megaflow]);
    let again = bench.lab.datapath.add_port(port_config(TO));
    assert_eq!(again, Err(DatapathError::PortTaken(TO)));
    let beyond = PortNo(MAX_PORT.0 + 1);
    let added = bench.lab.datapath.add_port(port_config(beyond));
    assert_eq!(added, Err(DatapathError::PortNumber(beyond)));
    for there in [true, false, true] {
        if !there {
            bench.lab.datapath.remove_port(TO).expect("the provider runs");
            bench.lab.datapath.remove_port(TO).expect("no such port is no error");
            bench.reference.ports.remove(&TO);
            assert!(port_stats(&bench.lab.snapshot(), TO).is_none());
        } else if bench.reference.ports.insert(TO) {
            let add = || bench.lab.datapath.add_port(port_config(TO));
            let added = bench.lab.netns().run_in(add).expect("a thread can enter the namespace");
            added.expect("the number is free");
            let is_up =
                || port_stats(&bench.lab.snapshot(), TO).is_some_and(|port| port.state == "up");
            wait_until(PATIENCE, "the new port is up", is_up);
        }
        let sent = frames_from(&mut random, 20);
        assert_eq!(conforms(bench.pass(&sent, &mut seen)).len(), 0);
        if !there {
            // The port has no open socket, so the frames are not received and cause no upcalls.
            for (_, packet) in &sent {
                bench.lab.send(TO, packet);
            }
            bench.lab.snapshot();
            assert_eq!(bench.lab.upcalls(0).len(), 0);
        }
    }
    bench.lab.datapath.stop();
    let stopped = || bench.lab.datapath.snapshot().is_err();
    wait_until(PATIENCE, "it has stopped", stopped);
    assert!(!bench.lab.datapath.upcalls(1, PATIENCE, &mut Vec::new()));
}
