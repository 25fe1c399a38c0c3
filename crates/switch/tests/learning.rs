//! Learning from packets, and the effect of learnt state on cached megaflows.

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
fn packet_uses_what_an_earlier_packet_of_its_batch_taught() {
    let rig = learning();
    assert_eq!(rig.fake.receive(0, 1, &udp(1, 2, HERE)), None);
    assert_eq!(rig.fake.receive(0, 2, &udp(2, 1, HERE)), None);
    assert_eq!(rig.answer(), [2, 3, 4, 1]);
    assert_eq!((place(&rig, 1), place(&rig, 2)), (Some(1), Some(2)));
    assert_eq!(rig.engine.stats().learn_accepted, 2);
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
    // Only the first megaflow was stale. The second one was translated with the learnt address.
    assert_eq!(rig.engine.stats().revalidated, 1);
}

#[test]
fn no_megaflow_is_revalidated_when_none_is_stale() {
    let rig = learning();
    rig.send(1, &udp(1, 2, HERE));
    rig.sweep();
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.engine.stats().revalidated, 0);
}

#[test]
fn moving_station_is_learned_at_each_new_port() {
    let rig = learning();
    rig.send(1, &udp(1, 2, HERE));
    rig.send(2, &udp(2, 1, HERE));
    rig.engine.revalidate().unwrap();
    for (port, other) in [(3, 2), (2, 3), (3, 2)] {
        let (sent, up) = rig.send(port, &udp(2, 1, HERE));
        assert_eq!(
            (sent, up),
            (vec![1], true),
            "the first packet from port {port} must cause an upcall"
        );
        rig.engine.revalidate().unwrap();
        assert_eq!(place(&rig, 2), Some(port));
        assert_eq!(rig.send(1, &udp(1, 2, HERE)).0, [port], "not to port {other}");
    }
}

#[test]
fn moves_of_a_station_within_one_batch_are_learned_in_order() {
    let rig = learning();
    for port in [1, 2, 1] {
        assert_eq!(rig.fake.receive(0, port, &udp(1, 9, HERE)), None);
    }
    assert_eq!(rig.answer(), [2, 3, 4, 1, 3, 4, 2, 3, 4]);
    assert_eq!(place(&rig, 1), Some(1));
    rig.engine.revalidate().unwrap();
    // The next packet from port 2 must cause an upcall, which moves the station again.
    assert!(rig.send(2, &udp(1, 9, HERE)).1);
    assert_eq!(place(&rig, 1), Some(2));
}

#[test]
fn station_ages_out_unless_it_sends() {
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
fn packets_to_a_forgotten_station_are_flooded() {
    let rig = learning();
    rig.send(2, &udp(2, 1, HERE));
    assert_eq!(rig.send(1, &udp(1, 2, HERE)).0, [2]);
    rig.engine.forget(&StateQuery::Fdb(station(2)));
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.send(1, &udp(1, 2, HERE)), (vec![2, 3, 4], false));
}

#[test]
fn configure_replaces_earlier_configured_stations() {
    let rig = learning();
    let at = |last, port| LearnEvent::Fdb(station(last), FdbPort::Port(PortNo(port)));
    rig.engine.configure(vec![at(7, 3), at(8, 4)]);
    rig.send(1, &udp(7, 8, HERE));
    assert_eq!((place(&rig, 7), place(&rig, 8)), (Some(3), Some(4)));
    assert_eq!(rig.engine.stats().learn_refused_configured, 1);
    assert_eq!(rig.send(2, &udp(2, 7, HERE)).0, [3]);
    rig.engine.configure(vec![at(8, 4), at(9, 4)]);
    assert_eq!((place(&rig, 7), place(&rig, 8), place(&rig, 9)), (None, Some(4), Some(4)));
    rig.sweep();
    assert_eq!(rig.send(2, &udp(2, 7, HERE)).0, [1, 3, 4]);
}

#[test]
fn learning_stops_at_the_port_limit_and_packets_are_still_forwarded() {
    let fdb = TableLimit { total: 4, per_port: 1 };
    let config =
        Config { learn: LearnLimits { fdb, ..LearnLimits::default() }, ..Config::default() };
    let rig = Rig::new(program("actions=normal"), &config);
    rig.send(1, &udp(1, 9, HERE));
    assert_eq!(rig.send(1, &udp(2, 1, HERE)).0, [0_u32; 0], "not back to its ingress port");
    assert_eq!(rig.send(1, &udp(3, 9, HERE)), (vec![2, 3, 4], true));
    assert_eq!(rig.send(1, &udp(3, 9, HERE)), (vec![2, 3, 4], false));
    let stats = rig.engine.stats();
    assert_eq!((stats.learned, stats.learn_accepted, stats.learn_refused_port_full), (1, 1, 2));
    let [(port, usage)] = rig.engine.ports_of_stations()[..] else { panic!("one port") };
    assert_eq!(port.port, FdbPort::Port(PortNo(1)));
    assert_eq!(usage, PortUsage { known: 1, refused: 2 });
    // Stations of another port are learned. They are not moved to the port that is at its limit.
    assert_eq!(rig.send(2, &udp(4, 1, HERE)), (vec![1], true));
    assert_eq!(rig.send(1, &udp(4, 1, HERE)).0, [0_u32; 0]);
    assert_eq!((place(&rig, 1), place(&rig, 4)), (Some(1), Some(2)));
}

/// A switch that learns at most `per_port` stations for each port, and forgets them after a minute.
fn limited(per_port: usize) -> Rig {
    let fdb = TableLimit { total: 4 * per_port, per_port };
    let max_age = Duration::from_secs(60);
    let learn = LearnLimits { fdb, max_age, ..LearnLimits::default() };
    Rig::new(program("actions=normal"), &Config { learn, ..Config::default() })
}

#[test]
fn refused_move_ages_out_the_old_entry_and_is_learned_once_there_is_room() {
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
    assert_eq!((place(&rig, 1), place(&rig, 2)), (None, Some(2)), "the old entry has aged out");
    assert_eq!(rig.send(3, &udp(3, 1, HERE)).0, [1, 2, 4], "unknown unicast is flooded");
    let before = rig.engine.stats();
    (0..12).for_each(|_| pass(&[1]));
    assert_eq!((place(&rig, 1), place(&rig, 2)), (None, Some(2)));
    // No retry happened: only the idle megaflows of stations 2 and 3 were deleted.
    let after = rig.engine.stats();
    assert_eq!((after.deleted - before.deleted, after.idle - before.idle), (2, 2));
    pass(&[1]);
    assert_eq!(place(&rig, 2), None, "the entry has aged out");
    pass(&[1]);
    assert_eq!(place(&rig, 1), Some(2));
    assert_eq!(rig.send(3, &udp(3, 1, HERE)).0, [2]);
}

#[test]
fn refused_stations_that_send_are_learned_when_room_appears() {
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
    assert_eq!(see(11..21), 0, "only a sweep retries refused stations");
    rig.sweep();
    assert_eq!(see(11..21), 2, "one upcall for each station that is learned");
    let known = (11..21).filter(|last| place(&rig, *last) == Some(1)).count();
    assert_eq!((known, place(&rig, 3), rig.engine.fdb().len()), (2, Some(1), 3));
    rig.sweep();
    assert_eq!(see(11..21), 0);
}

#[test]
fn refused_station_stays_cached_when_another_takes_the_free_entry() {
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
fn bindings_are_limited_per_port() {
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
    let mut usage = rig.engine.ports_of_bindings();
    usage.sort_unstable_by_key(|(at, _)| *at);
    let guest = |number| FdbPort::Logical(PortKey::new(number).unwrap());
    let expected = [(guest(1), 2, 3), (guest(2), 2, 0)];
    let usage = usage.into_iter().map(|(at, usage)| (at.port, usage.known, usage.refused));
    assert!(usage.eq(expected));
}

/// Guest 1 sends to addresses behind the port vm2, and guest 2 answers ARP requests.
fn routed() -> Rig {
    let mut loader = switch();
    for (table, priority, condition, actions) in [
        (0, 90, "ip4", "outport = \"vm2\"; get_arp(outport, ip4.dst); next;"),
        (0, 90, "arp.op == 2", "put_arp(inport, arp.spa, arp.sha);"),
        (1, 9, "eth.dst == 00:00:00:00:00:00", "arp { arp.op = 1; output; };"),
        (1, 0, "1", "output;"),
    ] {
        add(&mut loader, (Direction::Ingress, table), priority, condition, actions);
    }
    Rig::new(loader.program(), &Config::default())
}

/// The ARP reply of the station with this number.
fn arp_reply(from: u8) -> Vec<u8> {
    let mac = [2, 0, 0, 0, 0, from];
    let head = [&[2, 0, 0, 0, 0, 1], &mac[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    [&head[..], &mac, &[10, 0, 0, from], &[2, 0, 0, 0, 0, 1], &[10, 0, 0, 1]].concat()
}

fn held(rig: &Rig) -> (u64, u64, u64) {
    let stats = rig.engine.stats();
    (stats.held, stats.held_sent, stats.held_lost)
}

#[test]
fn packet_is_sent_when_the_address_of_its_next_hop_is_learned() {
    let rig = routed();
    // Each packet causes a request. They have different ports, and different megaflows.
    assert_eq!(rig.send(1, &udp(1, 7, HERE)).0, [2]);
    assert_eq!(rig.send(1, &udp(1, 8, HERE)).0, [2]);
    assert_eq!(held(&rig), (2, 0, 0));
    // The reply itself is not forwarded, but one packet has waited for it.
    assert_eq!(rig.send(2, &arp_reply(7)).0, [2]);
    assert_eq!(held(&rig), (2, 1, 0));
    assert_eq!(rig.send(2, &arp_reply(7)).0, [0_u32; 0]);
    assert_eq!(rig.engine.bindings().len(), 1);
}

#[test]
fn held_packets_are_limited_in_number_and_time() {
    let rig = routed();
    let frames = |to: u8| (0..6).map(move |_| udp(1, to, HERE));
    // A batch, so that no megaflow serves the later packets.
    frames(7).for_each(|frame| assert_eq!(rig.fake.receive(0, 1, &frame), None));
    assert_eq!(rig.answer(), [2; 6]);
    assert_eq!(held(&rig), (6, 0, 2));
    assert_eq!(rig.send(2, &arp_reply(7)).0, [2; 4]);
    assert_eq!(held(&rig), (6, 4, 2));
    rig.send(1, &udp(1, 8, HERE));
    rig.wait(3_001);
    rig.send(1, &udp(1, 9, HERE));
    assert_eq!(held(&rig), (8, 4, 3));
    assert_eq!(rig.send(2, &arp_reply(8)).0, [0_u32; 0]);
    assert_eq!(rig.send(2, &arp_reply(9)).0, [2]);
}

#[test]
fn events_that_follow_from_an_event_are_learned_from_the_same_packet() {
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
    // The cached megaflow depends on both entries.
    rig.engine.revalidate().unwrap();
    assert_eq!(rig.engine.stats().revalidated, 0);
    assert_eq!(rig.send(1, &udp(1, 2, HERE)), (vec![2], false));
}

#[test]
fn workers_share_a_megaflow_when_only_one_reported_its_station() {
    // The flow sets the source address to station 3, so the match does not contain the source.
    let program = program("actions=mod_dl_src:02:00:00:00:00:03,normal");
    let rig = Rig::with_workers(2, program, &Config::default());
    rig.send_at(0, 1, &udp(3, 2, HERE));
    assert!(!rig.send_at(0, 1, &udp(3, 2, HERE)).1);
    assert!(rig.send_at(1, 1, &udp(4, 2, HERE)).1);
    assert!(!rig.send_at(1, 1, &udp(4, 2, HERE)).1, "the first upcall cached the megaflow");
    assert_eq!(rig.engine.stats().outdated, 0);
}
