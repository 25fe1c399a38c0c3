//! Adoption of megaflows that a previous process left in the datapath.

use crate::{Rig, program, udp};
use datapath::provider::{Datapath, DumpCursor};
use flow::Match;
use pipeline::FdbPort;
use switch::Config;

const DNS: (u16, u16) = (1000, 53);
const WEB: (u16, u16) = (1000, 80);
const NO_DNS: &str = "priority=5,udp,tp_dst=53 actions=drop\npriority=1,udp actions=2";

/// The matches of all megaflows that a previous switch cached for `packets`, in that order.
fn left_behind(flows: &str, packets: &[(u32, Vec<u8>)]) -> Vec<Match> {
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
fn packets_cause_no_upcall_when_their_megaflows_are_adopted() {
    let packets = [(1, udp(1, 2, DNS)), (1, udp(1, 2, WEB))];
    let conditions = left_behind(NO_DNS, &packets);
    let (rig, adopted) = adopt(NO_DNS, &conditions);
    assert_eq!((conditions.len(), adopted), (2, 2));
    assert_eq!(rig.send(1, &packets[0].1), (vec![], false));
    assert_eq!(rig.send(1, &packets[1].1), (vec![2], false));
    rig.sweep();
    assert_eq!(
        rig.send(1, &packets[1].1),
        (vec![2], false),
        "the engine has a record of the megaflow"
    );
    assert_eq!((rig.engine.stats().megaflows, rig.engine.stats().strangers), (2, 0));
}

#[test]
fn adopted_megaflows_get_the_actions_of_the_current_program() {
    let allowed = "priority=5,udp,tp_dst=53 actions=2\npriority=1,udp actions=2";
    let conditions = left_behind(allowed, &[(1, udp(1, 2, DNS)), (1, udp(1, 2, WEB))]);
    let (rig, adopted) = adopt(NO_DNS, &conditions);
    assert_eq!(adopted, 2);
    assert_eq!(rig.send(1, &udp(1, 2, DNS)), (vec![], false));
    assert_eq!(rig.send(1, &udp(1, 2, WEB)), (vec![2], false));
}

#[test]
fn megaflow_is_not_adopted_when_the_current_program_distinguishes_its_packets() {
    let conditions = left_behind("priority=1,udp actions=2", &[(1, udp(1, 2, WEB))]);
    assert_eq!(conditions.len(), 1);
    let (rig, adopted) = adopt(NO_DNS, &conditions);
    assert_eq!(adopted, 0);
    assert_eq!(rig.send(1, &udp(1, 2, DNS)), (vec![], true));
    assert_eq!(rig.send(1, &udp(1, 2, WEB)), (vec![2], true));
}

#[test]
fn mac_addresses_are_learned_from_all_megaflows_before_any_is_put() {
    let packets = [(1, udp(1, 2, WEB)), (2, udp(2, 1, WEB))];
    let conditions = left_behind("actions=normal", &packets);
    let (rig, adopted) = adopt("actions=normal", &conditions);
    assert_eq!(rig.engine.fdb().len(), 2);
    assert_eq!((conditions.len(), adopted), (2, 2));
    // These packets are not flooded, although the first one was.
    assert_eq!(rig.send(1, &udp(1, 2, WEB)), (vec![2], false));
    assert_eq!(rig.send(2, &udp(2, 1, WEB)), (vec![1], false));
}

#[test]
fn moved_station_is_learned_at_its_last_port() {
    let packets = [(1, udp(1, 2, WEB)), (3, udp(1, 2, WEB))];
    let conditions = left_behind("actions=normal", &packets);
    let (rig, adopted) = adopt("actions=normal", &conditions);
    assert_eq!((conditions.len(), adopted), (2, 1));
    let ports: Vec<_> = rig.engine.fdb().into_iter().map(|(_, port)| port).collect();
    assert_eq!(ports, [FdbPort::Port(flow::PortNo(3))]);
    assert!(rig.send(1, &udp(1, 2, WEB)).1, "a packet from the old port must cause an upcall");
}

#[test]
fn nothing_is_learned_from_fields_that_the_old_program_did_not_read() {
    let conditions = left_behind("actions=output:2", &[(1, udp(1, 2, WEB))]);
    let (rig, adopted) = adopt("actions=normal", &conditions);
    assert_eq!((conditions.len(), adopted, rig.engine.fdb().len()), (1, 0, 0));
}
