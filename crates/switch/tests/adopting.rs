//! What another process has left, decided anew.

use crate::{Rig, program, udp};
use datapath::provider::{Datapath, DumpCursor};
use flow::Match;
use pipeline::FdbPort;
use switch::Config;

const DNS: (u16, u16) = (1000, 53);
const WEB: (u16, u16) = (1000, 80);
const NO_DNS: &str = "priority=5,udp,tp_dst=53 actions=drop\npriority=1,udp actions=2";

/// The conditions of all megaflows, in the order of `packets`, of a switch that has seen them and
/// is gone.
fn left(flows: &str, packets: &[(u32, Vec<u8>)]) -> Vec<Match> {
    let rig = Rig::new(program(flows), &Config::default());
    let mut conditions: Vec<Match> = Vec::new();
    for (port, frame) in packets {
        rig.send(*port, frame);
        let (megaflows, _) = rig.fake.dump(DumpCursor::default(), 1000).unwrap();
        let conditions_now = megaflows.into_iter().map(|(megaflow, _)| megaflow.condition);
        conditions.extend(conditions_now.filter(|it| !conditions.contains(it)).collect::<Vec<_>>());
    }
    conditions
}

fn adopt(flows: &str, conditions: &[Match]) -> (Rig, usize) {
    let rig = Rig::new(program(flows), &Config::default());
    let adopted = rig.engine.adopt(conditions.iter().cloned(), rig.now()).unwrap();
    (rig, adopted)
}

#[test]
fn packets_do_not_come_up_when_their_megaflows_are_adopted() {
    let packets = [(1, udp(1, 2, DNS)), (1, udp(1, 2, WEB))];
    let conditions = left(NO_DNS, &packets);
    let (rig, adopted) = adopt(NO_DNS, &conditions);
    assert_eq!((conditions.len(), adopted), (2, 2));
    assert_eq!(rig.send(1, &packets[0].1), (vec![], false));
    assert_eq!(rig.send(1, &packets[1].1), (vec![2], false));
    rig.sweep();
    assert_eq!(rig.send(1, &packets[1].1), (vec![2], false), "it is on record");
    assert_eq!((rig.engine.stats().megaflows, rig.engine.stats().strangers), (2, 0));
}

#[test]
fn program_of_now_decides_what_is_adopted() {
    let allowed = "priority=5,udp,tp_dst=53 actions=2\npriority=1,udp actions=2";
    let conditions = left(allowed, &[(1, udp(1, 2, DNS)), (1, udp(1, 2, WEB))]);
    let (rig, adopted) = adopt(NO_DNS, &conditions);
    assert_eq!(adopted, 2);
    assert_eq!(rig.send(1, &udp(1, 2, DNS)), (vec![], false));
    assert_eq!(rig.send(1, &udp(1, 2, WEB)), (vec![2], false));
}

#[test]
fn megaflow_is_not_adopted_when_the_program_of_now_tells_its_packets_apart() {
    let conditions = left("priority=1,udp actions=2", &[(1, udp(1, 2, WEB))]);
    assert_eq!(conditions.len(), 1);
    let (rig, adopted) = adopt(NO_DNS, &conditions);
    assert_eq!(adopted, 0);
    assert_eq!(rig.send(1, &udp(1, 2, DNS)), (vec![], true));
    assert_eq!(rig.send(1, &udp(1, 2, WEB)), (vec![2], true));
}

#[test]
fn stations_are_learned_of_all_megaflows_before_any_is_put() {
    let packets = [(1, udp(1, 2, WEB)), (2, udp(2, 1, WEB))];
    let conditions = left("actions=normal", &packets);
    let (rig, adopted) = adopt("actions=normal", &conditions);
    assert_eq!(rig.engine.fdb().len(), 2);
    assert_eq!((conditions.len(), adopted), (2, 2));
    // Not to everybody, although the first packet of all was.
    assert_eq!(rig.send(1, &udp(1, 2, WEB)), (vec![2], false));
    assert_eq!(rig.send(2, &udp(2, 1, WEB)), (vec![1], false));
}

#[test]
fn station_is_where_it_was_last_when_it_had_moved() {
    let packets = [(1, udp(1, 2, WEB)), (3, udp(1, 2, WEB))];
    let conditions = left("actions=normal", &packets);
    let (rig, adopted) = adopt("actions=normal", &conditions);
    assert_eq!((conditions.len(), adopted), (2, 1));
    let places: Vec<_> = rig.engine.fdb().into_iter().map(|(_, place)| place).collect();
    assert_eq!(places, [FdbPort::Port(flow::PortNo(3))]);
    assert!(rig.send(1, &udp(1, 2, WEB)).1, "what it sends from there has to teach");
}

#[test]
fn nothing_is_learned_of_what_the_old_program_had_not_read() {
    let conditions = left("actions=output:2", &[(1, udp(1, 2, WEB))]);
    let (rig, adopted) = adopt("actions=normal", &conditions);
    assert_eq!((conditions.len(), adopted, rig.engine.fdb().len()), (1, 0, 0));
}
