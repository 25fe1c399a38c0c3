//! What packets teach, and what becomes of it.

use crate::guests::{add, switch};
use crate::{Rig, program, udp};
use flow::{DatapathKey, PortKey, PortNo};
use pipeline::{
    Direction, FdbKey, FdbPort, LearnEvent, LearnLimits, PortUsage, StateQuery, TableLimit,
};
use std::time::Duration;
use switch::Config;
use wire::MacAddr;

const HERE: (u16, u16) = (1000, 2000);

fn learning() -> Rig {
    Rig::new(program("actions=normal"), &Config::default())
}

fn station(last: u8) -> FdbKey {
    FdbKey { datapath: DatapathKey(0), vlan: 0, mac: MacAddr([2, 0, 0, 0, 0, last]) }
}

fn place(rig: &Rig, last: u8) -> Option<u32> {
    let fdb = rig.engine.fdb();
    fdb.iter().find(|(key, _)| *key == station(last)).map(|(_, place)| match place {
        FdbPort::Port(port) => port.0,
        FdbPort::Logical(port) => panic!("{port:?} in a bridge"),
    })
}

#[test]
fn next_packet_of_the_batch_knows_what_the_one_before_has_taught() {
    let rig = learning();
    assert_eq!(rig.fake.receive(0, 1, &udp(1, 2, HERE)), None);
    assert_eq!(rig.fake.receive(0, 2, &udp(2, 1, HERE)), None);
    assert_eq!(rig.answer(), [2, 3, 4, 1]);
    assert_eq!((place(&rig, 1), place(&rig, 2)), (Some(1), Some(2)));
    assert_eq!(rig.engine.stats().lessons, 2);
}

#[test]
fn cached_flooding_ends_when_the_receiver_is_learned() {
    let rig = learning();
    assert_eq!(rig.send(1, &udp(1, 2, HERE)), (vec![2, 3, 4], true));
    assert_eq!(rig.send(1, &udp(1, 2, HERE)), (vec![2, 3, 4], false));
    assert_eq!(rig.send(2, &udp(2, 1, HERE)), (vec![1], true));
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.send(1, &udp(1, 2, HERE)), (vec![2], false));
    assert_eq!(rig.send(2, &udp(2, 1, HERE)), (vec![1], false));
    // Only the first was out of date: the second was translated with what it had taught.
    assert_eq!(rig.engine.stats().revalidated, 1);
}

#[test]
fn nothing_is_translated_again_when_nothing_is_out_of_date() {
    let rig = learning();
    rig.send(1, &udp(1, 2, HERE));
    rig.sweep();
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.engine.stats().revalidated, 0);
}

#[test]
fn station_that_moves_is_followed_there_and_back() {
    let rig = learning();
    rig.send(1, &udp(1, 2, HERE));
    rig.send(2, &udp(2, 1, HERE));
    rig.engine.revalidate().unwrap();
    for (port, other) in [(3, 2), (2, 3), (3, 2)] {
        let (sent, up) = rig.send(port, &udp(2, 1, HERE));
        assert_eq!((sent, up), (vec![1], true), "what it sends from {port} has to teach");
        rig.engine.revalidate().unwrap();
        assert_eq!(place(&rig, 2), Some(port));
        assert_eq!(rig.send(1, &udp(1, 2, HERE)).0, [port], "and no more to {other}");
    }
}

#[test]
fn packet_in_between_that_moves_a_station_is_heeded_in_the_same_batch() {
    let rig = learning();
    for port in [1, 2, 1] {
        assert_eq!(rig.fake.receive(0, port, &udp(1, 9, HERE)), None);
    }
    assert_eq!(rig.answer(), [2, 3, 4, 1, 3, 4, 2, 3, 4]);
    assert_eq!(place(&rig, 1), Some(1));
    rig.engine.revalidate().unwrap();
    // It has to teach when it comes again.
    assert!(rig.send(2, &udp(1, 9, HERE)).1);
    assert_eq!(place(&rig, 1), Some(2));
}

#[test]
fn station_is_known_as_long_as_it_sends_and_not_because_it_is_sent_to() {
    let max_age = Duration::from_secs(60);
    let config =
        Config { learn: LearnLimits { max_age, ..LearnLimits::default() }, ..Config::default() };
    let rig = Rig::new(program("actions=normal"), &config);
    rig.send(2, &udp(2, 9, HERE));
    for _ in 0..20 {
        rig.wait(5000);
        rig.send(1, &udp(1, 2, HERE));
        rig.sweep();
    }
    assert_eq!((place(&rig, 1), place(&rig, 2)), (Some(1), None));
    assert_eq!(rig.send(1, &udp(1, 2, HERE)), (vec![2, 3, 4], false));
    rig.wait(61_000);
    rig.sweep();
    assert_eq!(place(&rig, 1), None);
}

#[test]
fn forgotten_station_is_flooded_to() {
    let rig = learning();
    rig.send(2, &udp(2, 1, HERE));
    assert_eq!(rig.send(1, &udp(1, 2, HERE)).0, [2]);
    rig.engine.forget(&StateQuery::Fdb(station(2)));
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.send(1, &udp(1, 2, HERE)), (vec![2, 3, 4], false));
}

#[test]
fn configured_stations_are_those_of_the_last_time() {
    let rig = learning();
    let at = |last, port| LearnEvent::Fdb(station(last), FdbPort::Port(PortNo(port)));
    rig.engine.configure(vec![at(7, 3), at(8, 4)]);
    rig.send(1, &udp(7, 8, HERE));
    assert_eq!((place(&rig, 7), place(&rig, 8)), (Some(3), Some(4)));
    assert_eq!(rig.engine.stats().lessons_configured, 1);
    assert_eq!(rig.send(2, &udp(2, 7, HERE)).0, [3]);
    rig.engine.configure(vec![at(8, 4), at(9, 4)]);
    assert_eq!((place(&rig, 7), place(&rig, 8), place(&rig, 9)), (None, Some(4), Some(4)));
    rig.sweep();
    assert_eq!(rig.send(2, &udp(2, 7, HERE)).0, [1, 3, 4]);
}

#[test]
fn lessons_are_refused_beyond_the_limit_and_packets_are_answered() {
    let fdb = TableLimit { total: 4, per_port: 1 };
    let config =
        Config { learn: LearnLimits { fdb, ..LearnLimits::default() }, ..Config::default() };
    let rig = Rig::new(program("actions=normal"), &config);
    rig.send(1, &udp(1, 9, HERE));
    assert_eq!(rig.send(1, &udp(2, 1, HERE)).0, [0_u32; 0], "not back to where it came from");
    assert_eq!(rig.send(1, &udp(3, 9, HERE)), (vec![2, 3, 4], true));
    assert_eq!(rig.send(1, &udp(3, 9, HERE)), (vec![2, 3, 4], false));
    let stats = rig.engine.stats();
    assert_eq!((stats.learned, stats.lessons, stats.lessons_port_full), (1, 1, 2));
    let [(port, taught)] = rig.engine.ports_of_stations()[..] else { panic!("one port") };
    assert_eq!(port.port, FdbPort::Port(PortNo(1)));
    assert_eq!(taught, PortUsage { known: 1, refused: 2 });
    // Another port's stations are learned, and those that are known are not moved to the port that
    // floods.
    assert_eq!(rig.send(2, &udp(4, 1, HERE)), (vec![1], true));
    assert_eq!(rig.send(1, &udp(4, 1, HERE)).0, [0_u32; 0]);
    assert_eq!((place(&rig, 1), place(&rig, 4)), (Some(1), Some(2)));
}

/// Of each port so many stations are learned; they are forgotten after a minute.
fn limited(per_port: usize) -> Rig {
    let fdb = TableLimit { total: 4 * per_port, per_port };
    let max_age = Duration::from_secs(60);
    let learn = LearnLimits { fdb, max_age, ..LearnLimits::default() };
    Rig::new(program("actions=normal"), &Config { learn, ..Config::default() })
}

#[test]
fn move_that_is_refused_does_not_keep_the_old_place_and_is_heeded_once_there_is_room() {
    let rig = limited(1);
    rig.send(1, &udp(1, 9, HERE));
    rig.send(2, &udp(2, 9, HERE));
    rig.sweep();
    let pass = |senders: &[u8]| {
        rig.wait(5000);
        senders.iter().for_each(|from| drop(rig.send(2, &udp(*from, 9, HERE))));
        rig.sweep();
    };
    (0..12).for_each(|_| pass(&[1, 2]));
    assert_eq!((place(&rig, 1), place(&rig, 2)), (Some(1), Some(2)), "the port is full");
    assert_eq!(rig.send(3, &udp(3, 1, HERE)).0, [1]);
    pass(&[1, 2]);
    assert_eq!((place(&rig, 1), place(&rig, 2)), (None, Some(2)), "not seen there for long");
    assert_eq!(rig.send(3, &udp(3, 1, HERE)).0, [1, 2, 4], "it is flooded to");
    let before = rig.engine.stats();
    (0..12).for_each(|_| pass(&[1]));
    assert_eq!((place(&rig, 1), place(&rig, 2)), (None, Some(2)));
    // Nothing is tried again in vain: only what was idle has gone, of the second station and the
    // third.
    let after = rig.engine.stats();
    assert_eq!((after.deleted - before.deleted, after.idle - before.idle), (2, 2));
    pass(&[1]);
    assert_eq!(place(&rig, 2), None, "there is room");
    pass(&[1]);
    assert_eq!(place(&rig, 1), Some(2));
    assert_eq!(rig.send(3, &udp(3, 1, HERE)).0, [2]);
}

#[test]
fn refused_stations_are_learned_while_they_send_as_many_as_there_is_room_for() {
    let rig = limited(3);
    let see = |macs: std::ops::Range<u8>| {
        macs.map(|from| rig.send(1, &udp(from, 9, HERE))).filter(|(_, up)| *up).count()
    };
    assert_eq!((see(1..4), see(11..21), see(11..21)), (3, 10, 0));
    rig.sweep();
    assert_eq!(see(11..21), 0, "there is no room");
    rig.engine.forget(&StateQuery::Fdb(station(1)));
    rig.engine.forget(&StateQuery::Fdb(station(2)));
    rig.engine.revalidate().unwrap();
    assert_eq!(see(11..21), 0, "a sweep comes soon enough");
    rig.sweep();
    assert_eq!(see(11..21), 2, "those that are learned");
    let known = (11..21).filter(|last| place(&rig, *last) == Some(1)).count();
    assert_eq!((known, place(&rig, 3), rig.engine.fdb().len()), (2, Some(1), 3));
    rig.sweep();
    assert_eq!(see(11..21), 0);
}

#[test]
fn station_that_takes_the_room_first_leaves_the_others_refused_and_cached() {
    let rig = limited(1);
    rig.send(1, &udp(1, 9, HERE));
    rig.send(1, &udp(2, 9, HERE));
    rig.engine.forget(&StateQuery::Fdb(station(1)));
    rig.sweep();
    rig.send(1, &udp(3, 9, HERE));
    for up in [true, false, false] {
        assert_eq!(rig.send(1, &udp(2, 9, HERE)), (vec![2, 3, 4], up));
        rig.sweep();
    }
    assert_eq!((place(&rig, 2), place(&rig, 3)), (None, Some(1)));
}

#[test]
fn port_that_has_taught_its_share_of_bindings_leaves_the_others_theirs() {
    let mut loader = switch();
    let teach = "outport = \"vm2\"; put_arp(outport, ip4.src, eth.src); output;";
    add(&mut loader, (Direction::Ingress, 0), 90, "ip4", teach);
    let mac_bindings = TableLimit { total: 100, per_port: 2 };
    let learn = LearnLimits { mac_bindings, ..LearnLimits::default() };
    let rig = Rig::new(loader.program(), &Config { learn, ..Config::default() });
    (1..6).for_each(|from| drop(rig.send(1, &udp(from, 9, HERE))));
    (6..8).for_each(|from| drop(rig.send(2, &udp(from, 9, HERE))));
    let bound = rig.engine.bindings();
    assert!(bound.iter().all(|(key, _)| key.port == PortKey::new(2).unwrap()));
    assert_eq!(bound.len(), 4);
    let mut taught = rig.engine.ports_of_bindings();
    taught.sort_unstable_by_key(|(at, _)| *at);
    let guest = |number| FdbPort::Logical(PortKey::new(number).unwrap());
    let expected = [(guest(1), 2, 3), (guest(2), 2, 0)];
    let taught = taught.into_iter().map(|(at, taught)| (at.port, taught.known, taught.refused));
    assert!(taught.eq(expected));
}

#[test]
fn what_a_lesson_leads_to_is_learned_from_the_same_packet() {
    let mut loader = switch();
    for (table, priority, condition, actions) in [
        (0, 90, "1", "reg0[0] = lookup_fdb(inport, eth.src); next;"),
        (1, 9, "reg0[0] == 0", "put_fdb(inport, eth.src); next;"),
        (1, 0, "1", "reg0[1] = lookup_arp(inport, ip4.src, eth.src); next;"),
        (2, 9, "reg0[0] == 1 && reg0[1] == 0", "put_arp(inport, ip4.src, eth.src); next;"),
        (2, 0, "1", "next;"),
        (3, 0, "1", "outport = \"vm2\"; output;"),
    ] {
        add(&mut loader, (Direction::Ingress, table), priority, condition, actions);
    }
    let rig = Rig::new(loader.program(), &Config::default());
    assert_eq!(rig.send(1, &udp(1, 2, HERE)), (vec![2], true));
    assert_eq!((rig.engine.fdb().len(), rig.engine.bindings().len()), (1, 1));
    // What is cached rests on both.
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.engine.stats().revalidated, 0);
    assert_eq!(rig.send(1, &udp(1, 2, HERE)), (vec![2], false));
}

#[test]
fn workers_share_a_megaflow_when_only_one_of_them_got_the_station_it_names() {
    // Whoever sends, it is station 3 that is learned: the source is not in the condition.
    let program = program("actions=mod_dl_src:02:00:00:00:00:03,normal");
    let rig = Rig::with_workers(2, program, &Config::default());
    rig.send_at(0, 1, &udp(3, 2, HERE));
    assert!(!rig.send_at(0, 1, &udp(3, 2, HERE)).1);
    assert!(rig.send_at(1, 1, &udp(4, 2, HERE)).1);
    assert!(!rig.send_at(1, 1, &udp(4, 2, HERE)).1, "what has come up once is cached");
    assert_eq!(rig.engine.stats().outdated, 0);
}
