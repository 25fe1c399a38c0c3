//! The table's contract, case by case.

use std::net::{IpAddr, Ipv4Addr};

use conntrack::{
    Commit, Config, ConnRef, Connection, CtDrop, Headers, Invalid, Limits, Masked, Nat, NatKind,
    NatSpec, Seed, State, Table, Timeout, Tracked, Tuple, Zone,
};
use flow::PortNo;
use packet::PacketBuf;
use testkit::frames::{self, FrameKinds};
use testkit::random::Random;
use wire::Protocol;

use crate::support::{ACK, Ends, FIN, RST, SYN, TcpSegment, frame, headers, ip, ip_of, udp};

const ZONE: Zone = Zone(7);
const PORT: PortNo = PortNo(3);

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

fn ends() -> Ends {
    Ends { src: address(1), dst: address(2) }
}

fn table_with(limits: Limits) -> Table {
    Table::new(Config { limits, ..Config::default() }, Seed([1, 2, 3, 4]), 0)
}

fn table() -> Table {
    table_with(Limits::default())
}

fn datagram(ends: Ends, ports: [u16; 2]) -> Headers {
    headers(&ip(ends, Protocol::UDP, udp(ports, 10), 1))
}

fn segment(reply: bool, flags: u8, seq: u32, ack: u32) -> Headers {
    let ports = if reply { [80, 5000] } else { [5000, 80] };
    let ends = if reply { ends().reversed() } else { ends() };
    let segment = TcpSegment { ports, seq, ack, flags, window: 1000, ..TcpSegment::default() };
    headers(&ip(ends, Protocol::TCP, segment.bytes(), 1))
}

/// Tracks a packet, and commits its connection if it is new.
fn forward(table: &mut Table, now_ms: u64, headers: &Headers, commit: &Commit) -> Tracked {
    let tracked = table.track(now_ms, ZONE, headers, Nat::Apply);
    if !tracked.state.contains(State::NEW) {
        return tracked;
    }
    table.commit(now_ms, &tracked, headers, PORT, commit).unwrap()
}

fn only(table: &Table) -> Connection {
    assert_eq!(table.len(), 1);
    table.iter().next().unwrap()
}

#[test]
fn connection_lives_as_long_as_its_state_says() {
    let mut config = Config::default();
    for (at, &timeout) in Timeout::ALL.iter().enumerate() {
        config.timeouts.set(timeout, 1000 + at as u32);
    }
    let mut table = Table::new(config.clone(), Seed([1, 2, 3, 4]), 0);
    let steps = [
        (false, SYN, 0, 0, Timeout::TcpSynSent),
        (true, SYN | ACK, 0, 1, Timeout::TcpSynRecv),
        (false, ACK, 1, 1, Timeout::TcpEstablished),
        (false, FIN | ACK, 1, 1, Timeout::TcpUnacknowledged),
        (true, ACK, 1, 2, Timeout::TcpCloseWait),
        (true, FIN | ACK, 1, 2, Timeout::TcpUnacknowledged),
        (false, ACK, 2, 2, Timeout::TcpTimeWait),
    ];
    // Unacknowledged data only replaces a timeout that is longer than its own, which is 1 s here.
    config.timeouts.set(Timeout::TcpUnacknowledged, 1);
    table.set_config(config.clone());
    for (at, (reply, flags, seq, ack, timeout)) in steps.into_iter().enumerate() {
        let now_ms = 100 * at as u64;
        forward(&mut table, now_ms, &segment(reply, flags, seq, ack), &Commit::default());
        let left_ms = only(&table).deadline_ms - now_ms;
        assert_eq!(left_ms, u64::from(config.timeouts.seconds(timeout)) * 1000, "step {at}");
    }
}

#[test]
fn packet_is_invalid_when_it_cannot_be_tracked() {
    let mut table = table();
    let whole = ip(ends(), Protocol::UDP, udp([1, 2], 24), 1);
    let mut fragment = whole.clone();
    fragment[6] = 0x20;
    let mut short = whole.clone();
    short[3] = 24;
    let neighbour = "fe80::1".parse().unwrap();
    let solicitation = ip(
        Ends { src: neighbour, dst: neighbour },
        Protocol::ICMPV6,
        crate::support::icmp(135, 0, [0; 4], &[0; 16]),
        1,
    );
    for (packet, reason) in [
        (headers(&fragment), Invalid::Fragment),
        (headers(&short), Invalid::Malformed),
        (headers(&solicitation), Invalid::Untrackable),
        (headers(&whole).with_wrong_checksum(), Invalid::Checksum),
        (segment(false, SYN | FIN, 0, 0), Invalid::TcpFlags),
        (segment(true, SYN | ACK, 0, 1), Invalid::NotFirst),
        (segment(false, RST, 0, 0), Invalid::NotFirst),
    ] {
        let before = table.stats().invalid(reason);
        let tracked = table.track(0, ZONE, &packet, Nat::Apply);
        assert_eq!((tracked.state, tracked.invalid), (State::TRK | State::INV, Some(reason)));
        assert_eq!(table.stats().invalid(reason), before + 1);
        // A commit of an invalid packet does nothing.
        assert_eq!(table.commit(0, &tracked, &packet, PORT, &Commit::default()), Ok(tracked));
    }
    assert!(table.is_empty());
}

#[test]
fn connection_is_not_picked_up_when_configured_so() {
    let middle = segment(false, ACK, 100, 200);
    assert_eq!(table().track(0, ZONE, &middle, Nat::Apply).state, State::TRK | State::NEW);
    let config = Config { pick_up: false, ..Config::default() };
    let mut strict = Table::new(config, Seed([1, 2, 3, 4]), 0);
    let tracked = strict.track(0, ZONE, &middle, Nat::Apply);
    assert_eq!(tracked.invalid, Some(Invalid::NotFirst));
}

#[test]
fn segment_outside_the_window_passes_only_when_liberal() {
    for liberal_tcp in [false, true] {
        let config = Config { liberal_tcp, ..Config::default() };
        let mut table = Table::new(config, Seed([1, 2, 3, 4]), 0);
        for (reply, flags, seq, ack) in
            [(false, SYN, 0, 0), (true, SYN | ACK, 0, 1), (false, ACK, 1, 1)]
        {
            forward(&mut table, 0, &segment(reply, flags, seq, ack), &Commit::default());
        }
        let outside = segment(false, ACK, 1_000_000, 1);
        let state = table.track(0, ZONE, &outside, Nat::Apply).state;
        assert_eq!(state.contains(State::INV), !liberal_tcp);
        assert_eq!(state.contains(State::EST), liberal_tcp);
    }
}

#[test]
fn generation_changes_when_later_packets_can_notice() {
    let mut table = table();
    let mut generations = Vec::new();
    for (reply, flags, seq, ack) in [
        (false, SYN, 0, 0),
        (true, SYN | ACK, 0, 1),
        (false, ACK, 1, 1),
        // Established, and assured: nothing changes from here on.
        (true, ACK, 1, 1),
        (false, ACK, 1, 1),
    ] {
        let tracked = forward(&mut table, 0, &segment(reply, flags, seq, ack), &Commit::default());
        generations.push(tracked.connection.unwrap().generation);
    }
    let [a, b, c, d, e] = generations[..] else { panic!("five packets") };
    assert!(a < b && b < c && c == d && d == e);
    let data = segment(false, ACK, 1, 1);
    let tracked = forward(&mut table, 0, &data, &Commit::default());
    let reference = tracked.connection.unwrap();
    assert!(is_unchanged(&table, reference));
    let mark = Commit { mark: Some(Masked { value: 5, mask: 0xff }), ..Commit::default() };
    let marked = table.commit(0, &tracked, &data, PORT, &mark).unwrap();
    let changed = marked.connection.unwrap().generation;
    assert!(changed > e && !is_unchanged(&table, reference));
    let current = table.current(&tracked);
    assert_eq!((current.mark, current.connection.unwrap().generation), (5, changed));
    // The same value again is no change.
    let again = table.commit(0, &marked, &data, PORT, &mark).unwrap();
    assert_eq!(again.connection.unwrap().generation, changed);
    assert!(table.remove_connection(reference) && !table.remove_connection(reference));
    assert_eq!(table.current(&current).connection, None);
    // A new connection that reuses the slot is a different one.
    let next = forward(&mut table, 0, &datagram(ends(), [1, 2]), &Commit::default());
    assert_eq!(next.connection.unwrap().id, reference.id);
    assert!(!is_unchanged(&table, reference) && !table.remove_connection(reference));
}

/// Whether a connection has not changed since `reference`.
fn is_unchanged(table: &Table, reference: ConnRef) -> bool {
    table.connection(reference.id).is_some_and(|connection| connection.reference == reference)
}

/// A TCP connection whose handshake is complete, and the result of its last segment.
fn established(table: &mut Table, now_ms: u64) -> Tracked {
    let handshake = [(false, SYN, 0, 0), (true, SYN | ACK, 0, 1), (false, ACK, 1, 1)];
    for (reply, flags, seq, ack) in handshake {
        forward(table, now_ms, &segment(reply, flags, seq, ack), &Commit::default());
    }
    forward(table, now_ms, &segment(false, ACK, 1, 1), &Commit::default())
}

#[test]
fn packet_is_steady_when_later_ones_change_nothing() {
    let mut table = table();
    assert!(established(&mut table, 0).is_steady);
    let fin = forward(&mut table, 0, &segment(false, FIN | ACK, 1, 1), &Commit::default());
    assert!(!fin.is_steady && !fin.proposes);
    let late = forward(&mut table, 0, &segment(true, ACK, 1, 2), &Commit::default());
    assert!(!late.is_steady, "the connection ends");

    let (there, back) = (datagram(ends(), [1, 2]), datagram(ends().reversed(), [2, 1]));
    let mut at = |now_ms, headers| forward(&mut table, now_ms, headers, &Commit::default());
    assert!(!at(0, &there).is_steady && !at(10, &back).is_steady && !at(20, &there).is_steady);
    // After two seconds the connection is a stream. The first packet of the stream changes the
    // connection.
    assert!(!at(2100, &there).is_steady && at(2101, &there).is_steady && at(2102, &back).is_steady);
}

#[test]
fn proposals_become_rare_when_nothing_is_fused() {
    let mut table = table();
    let connection = established(&mut table, 1000).connection.unwrap();
    let proposals = |table: &mut Table, from_ms, to_ms| {
        let mut count = [0; 2];
        for now_ms in from_ms..to_ms {
            for reply in [false, true] {
                let packet = segment(reply, ACK, 1, 1);
                let tracked = forward(table, now_ms, &packet, &Commit::default());
                count[usize::from(reply)] += u32::from(tracked.proposes);
            }
        }
        count
    };
    assert_eq!(proposals(&mut table, 1000, 1003), [0, 0], "the connection may be a short one");
    let first = proposals(&mut table, 1003, 2000);
    assert!(first.iter().all(|count| (2..=4).contains(count)), "{first:?}");
    let later = proposals(&mut table, 60_000, 120_000);
    assert!(later.iter().all(|count| (2..=9).contains(count)), "{later:?}");
    // After a fusion, proposals begin anew.
    let keys = table.fuse(&[connection]).unwrap();
    table.end_fusion(keys[0]);
    assert_eq!(proposals(&mut table, 120_001, 120_002), [1, 1]);
}

#[test]
fn reset_ends_a_fused_connection_whatever_its_number() {
    for (far, end) in [(5_000_000, 5_000_000), (3_000_000_000, 3_000_000_000)] {
        let mut table = table();
        let connection = established(&mut table, 0).connection.unwrap();
        let keys = table.fuse(&[connection]).unwrap();
        let reset = segment(false, RST | ACK, far, end);
        assert_eq!(forward(&mut table, 1000, &reset, &Commit::default()).invalid, None);
        assert_eq!(table.outdated(), &*keys);
        // The datapath reports packets from before the reset late; they do not prolong the
        // connection.
        table.prolong(1500, keys[0]);
        while table.expire(12_000, 100) == 100 {}
        assert!(table.is_empty(), "a reset connection lives for ten seconds");
    }
}

#[test]
fn change_of_a_fused_connection_is_reported_once() {
    let commit = Commit::default();
    let mut table = table();
    let connection = established(&mut table, 0).connection.unwrap();
    let keys = table.fuse(&[connection]).unwrap();
    assert!(table.outdated().is_empty() && table.fuse(&[connection]).is_some());
    // The ends have exchanged megabytes meanwhile. The table has not seen the acknowledged data.
    let far = segment(true, ACK, 9_000_000, 5_000_000);
    assert!(forward(&mut table, 1, &far, &commit).is_steady, "the table does not know the window");
    assert!(table.outdated().is_empty());
    let fin = segment(false, FIN | ACK, 5_000_000, 9_000_000);
    assert!(forward(&mut table, 2, &fin, &commit).state.contains(State::EST));
    assert_eq!(table.take_outdated(), *keys);
    forward(&mut table, 3, &segment(true, FIN | ACK, 9_000_000, 5_000_001), &commit);
    assert!(table.outdated().is_empty(), "the change is already reported");
    assert_eq!(table.fuse(&[connection]), None);
    table.end_fusion(keys[0]);
    let ack = segment(false, ACK, 5_000_001, 9_000_001);
    assert!(forward(&mut table, 4, &ack, &commit).state.contains(State::EST));
}

#[test]
fn segments_are_valid_after_fusion_when_earlier_ones_arrive_late() {
    let commit = Commit::default();
    let mut table = table();
    let connection = established(&mut table, 0).connection.unwrap();
    let keys = table.fuse(&[connection]).unwrap();
    table.end_fusion(keys[0]);
    // While these segments waited for the table, the datapath forwarded megabytes in both
    // directions.
    for late in [segment(false, ACK, 1000, 1000), segment(true, ACK, 1000, 1000)] {
        assert!(forward(&mut table, 1, &late, &commit).state.contains(State::EST));
    }
    let fin = segment(false, FIN | ACK, 5_000_000, 9_000_000);
    assert_eq!(forward(&mut table, 2, &fin, &commit).invalid, None);
    let answer = segment(true, ACK, 9_000_000, 5_000_001);
    assert_eq!(forward(&mut table, 3, &answer, &commit).invalid, None);
}

#[test]
fn fused_connection_is_reported_when_it_is_removed() {
    let mut table = table();
    let connection = established(&mut table, 0).connection.unwrap();
    let keys = table.fuse(&[connection]).unwrap();
    let end_ms = 432_000_000;
    table.prolong(5000, keys[0]);
    assert_eq!(table.expire(end_ms + 4000, 100), 1, "the entry is examined");
    assert!(table.len() == 1 && table.outdated().is_empty(), "it was used five seconds later");
    while table.expire(end_ms + 7000, 100) == 100 {}
    assert_eq!((table.len(), table.take_outdated()), (0, keys.to_vec()));
    // The keys do not refer to a new connection that reuses the slot.
    let next = established(&mut table, end_ms + 8000);
    assert_eq!(next.connection.unwrap().id, keys[0].id());
    table.prolong(end_ms + 10_000, keys[0]);
    table.end_fusion(keys[0]);
    assert!(is_unchanged(&table, next.connection.unwrap()) && table.outdated().is_empty());
}

#[test]
fn connection_is_over_when_its_time_is_over() {
    let mut table = table();
    let packet = datagram(ends(), [1, 2]);
    let first = forward(&mut table, 0, &packet, &Commit::default());
    assert_eq!(table.expire(29_999, 10), 0);
    assert!(table.track(29_999, ZONE, &packet, Nat::Apply).connection.is_some());
    // 30 seconds after the last packet, no lookup finds the connection, although it is not removed
    // yet.
    let tuple = packet.tuple().unwrap();
    assert!(table.look_up(59_998, ZONE, &tuple).is_some());
    assert!(table.look_up(59_999, ZONE, &tuple).is_none() && table.len() == 1);
    assert_eq!(table.track(59_999, ZONE, &packet, Nat::Apply).connection, None);
    assert!(table.is_empty() && !is_unchanged(&table, first.connection.unwrap()));
    assert_eq!(table.stats().expired, 1);
}

#[test]
fn connection_is_removed_soon_when_a_reset_shortens_its_time() {
    let mut table = table();
    for (reply, flags, seq, ack) in
        [(false, SYN, 0, 0), (true, SYN | ACK, 0, 1), (false, ACK, 1, 1), (true, RST, 1, 1)]
    {
        forward(&mut table, 0, &segment(reply, flags, seq, ack), &Commit::default());
    }
    assert_eq!(only(&table).deadline_ms, 10_000);
    table.expire(9_999, 10);
    assert_eq!(table.len(), 1);
    table.expire(11_000, 10);
    assert!(table.is_empty(), "it counts against the limits until it is removed");
}

#[test]
fn expiry_looks_at_no_more_connections_than_allowed() {
    let mut table = table();
    for port in 0..1000 {
        forward(&mut table, 0, &datagram(ends(), [port, 2]), &Commit::default());
    }
    // Much later: the ring of timers has wrapped around several times.
    let now_ms = 10_000_000;
    let mut calls = 0;
    while !table.is_empty() {
        assert_eq!(table.expire(now_ms, 100), 100);
        calls += 1;
    }
    assert_eq!((calls, table.expire(now_ms, 100)), (10, 0));
    assert_eq!(table.zone_usage(ZONE).connections, 0);
    assert_eq!(table.port_usage(PORT).connections, 0);
}

#[test]
fn new_connection_is_refused_when_a_limit_is_reached() {
    let cases = [
        (Limits { connections: 2, ..Limits::default() }, CtDrop::TableFull),
        (Limits { per_zone: 2, ..Limits::default() }, CtDrop::ZoneLimit),
        (Limits { per_port: 2, ..Limits::default() }, CtDrop::PortLimit),
    ];
    for (limits, expected) in cases {
        let mut table = table_with(limits);
        for port in 0..2 {
            forward(&mut table, 0, &datagram(ends(), [port, 2]), &Commit::default());
        }
        let third = datagram(ends(), [9, 2]);
        let tracked = table.track(0, ZONE, &third, Nat::Apply);
        let refused = table.commit(0, &tracked, &third, PORT, &Commit::default());
        assert_eq!((refused, table.len()), (Err(expected), 2));
        assert_eq!(table.stats().refused(expected), 1);
        // Existing connections continue.
        let first = table.track(0, ZONE, &datagram(ends(), [0, 2]), Nat::Apply);
        assert!(first.connection.is_some());
        // The limit of the whole table cannot be changed.
        let limits = Limits { connections: 10, per_zone: 10, per_port: 10, ..limits };
        table.set_config(Config { limits, ..Config::default() });
        let again = table.commit(0, &tracked, &third, PORT, &Commit::default());
        assert_eq!(again.is_ok(), expected != CtDrop::TableFull);
    }
}

#[test]
fn flood_of_syns_leaves_places_to_others_when_timeouts_are_adaptive() {
    let limits = Limits { per_port: 1000, ..Limits::default() };
    let syn = |host: u32| {
        let ends = Ends { src: Ipv4Addr::from(0x0a00_0000 + host).into(), dst: address(2) };
        let segment = TcpSegment { ports: [5000, 80], flags: SYN, ..TcpSegment::default() };
        headers(&ip(ends, Protocol::TCP, segment.bytes(), 1))
    };
    let mut refused = [0, 0];
    for adaptive in [false, true] {
        let config = Config { limits, adaptive, ..Config::default() };
        let mut table = Table::new(config, Seed([1, 2, 3, 4]), 0);
        // An established connection before the flood, and 150 SYNs a second for five minutes: each
        // is sent twice, as a sender would to keep its place.
        for (reply, flags, seq, ack) in
            [(false, SYN, 0, 0), (true, SYN | ACK, 0, 1), (false, ACK, 1, 1)]
        {
            forward(&mut table, 0, &segment(reply, flags, seq, ack), &Commit::default());
        }
        for tick in 0..3000 {
            let now_ms = 100 * tick;
            for packet in (15 * tick as u32..).take(15).map(|host| syn(1000 + host)) {
                let tracked = table.track(now_ms, ZONE, &packet, Nat::Apply);
                let committed = table.commit(now_ms, &tracked, &packet, PORT, &Commit::default());
                refused[usize::from(adaptive)] += u32::from(committed.is_err());
                table.track(now_ms, ZONE, &packet, Nat::Apply);
            }
            table.expire(now_ms, u32::MAX);
            assert!(table.port_usage(PORT).connections <= limits.per_port);
        }
        let later = table.track(300_000, ZONE, &segment(true, ACK, 1, 1), Nat::Apply);
        assert!(later.state.contains(State::EST), "the established connection stays");
    }
    // Some are refused until the first connections, which got long timeouts in an empty table, have
    // expired.
    assert!(refused[1] < 1000, "{refused:?}");
    assert!(refused[0] > 30_000, "{refused:?}");
}

#[test]
fn options_change_when_the_table_has_connections() {
    let mut table = table();
    forward(&mut table, 0, &datagram(ends(), [1, 2]), &Commit::default());
    let mut config = table.config().clone();
    config.limits = Limits { connections: 1, per_zone: 1, ..Limits::default() };
    config.timeouts.set(Timeout::Udp, 5);
    table.set_config(config);
    assert_eq!(table.config().limits.connections, Limits::default().connections);
    let second = datagram(ends(), [3, 2]);
    let tracked = table.track(0, ZONE, &second, Nat::Apply);
    let refused = table.commit(0, &tracked, &second, PORT, &Commit::default());
    assert_eq!(refused, Err(CtDrop::ZoneLimit));
    forward(&mut table, 1000, &datagram(ends(), [1, 2]), &Commit::default());
    assert_eq!(only(&table).deadline_ms, 6000);
}

#[test]
fn nat_is_exhausted_when_every_port_is_taken() {
    let mut table = table();
    let mut spec = NatSpec::source(address(99));
    spec.ports = Some(2000..=2003);
    let commit = Commit { nat: Some(spec), ..Commit::default() };
    let mut ports = Vec::new();
    for port in 0..4 {
        let packet = datagram(ends(), [5000 + port, 53]);
        let tracked = forward(&mut table, 0, &packet, &commit);
        ports.push(tracked.translation.unwrap().src_port.unwrap());
    }
    ports.sort_unstable();
    assert_eq!(ports, [2000, 2001, 2002, 2003]);
    let fifth = datagram(ends(), [6000, 53]);
    let tracked = table.track(0, ZONE, &fifth, Nat::Apply);
    let refused = table.commit(0, &tracked, &fifth, PORT, &commit);
    assert_eq!(refused, Err(CtDrop::NatExhausted));
    // For another destination, all ports are free again.
    let elsewhere = datagram(Ends { dst: address(3), ..ends() }, [6000, 53]);
    let tracked = table.track(0, ZONE, &elsewhere, Nat::Apply);
    assert!(table.commit(0, &tracked, &elsewhere, PORT, &commit).is_ok());
}

#[test]
fn other_addresses_are_used_when_the_ports_of_one_are_taken() {
    let mut table = table();
    let range = address(90)..=address(92);
    let spec = NatSpec::new(NatKind::Source, Some(range), Some(2000..=2001));
    let commit = Commit { nat: Some(spec), ..Commit::default() };
    let mut used = Vec::new();
    for port in 0..6 {
        let tracked = forward(&mut table, 0, &datagram(ends(), [5000 + port, 53]), &commit);
        let translation = tracked.translation.unwrap();
        used.push((translation.src.unwrap(), translation.src_port.unwrap()));
    }
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 6);
}

#[test]
fn connection_is_reversed_when_its_commit_is_forced() {
    let mut table = table();
    forward(&mut table, 0, &datagram(ends(), [1, 2]), &Commit::default());
    let reply = datagram(ends().reversed(), [2, 1]);
    let tracked = table.track(0, ZONE, &reply, Nat::Apply);
    let unforced = table.commit(0, &tracked, &reply, PORT, &Commit::default()).unwrap();
    assert_eq!(unforced.state, State::TRK | State::EST | State::RPL);
    let force = Commit { force: true, ..Commit::default() };
    let forced = table.commit(0, &tracked, &reply, PORT, &force).unwrap();
    assert_eq!(forced.state, State::TRK | State::NEW);
    assert_eq!(only(&table).original, reply.tuple().unwrap());
}

/// A client reaches itself through a load balancer, as in OVN: destination NAT in one zone, source
/// NAT to the virtual address in another.
#[test]
fn hairpin_comes_back_to_the_client() {
    let (mut table, vip) = (table(), address(100));
    let client = address(1);
    let request = ip(Ends { src: client, dst: vip }, Protocol::UDP, udp([5000, 53], 4), 1);
    let dnat = Commit { nat: Some(NatSpec::destination(client, Some(5353))), ..Commit::default() };
    let snat = Commit { nat: Some(NatSpec::source(vip)), ..Commit::default() };
    let half_way = pass(&mut table, Zone(1), &request, &dnat);
    let arrived = pass(&mut table, Zone(2), &half_way, &snat);
    let seen = headers(&arrived).tuple().unwrap();
    assert_eq!((seen.src(), seen.dst(), seen.ports()), (vip, client, (5000, 5353)));
    let answer = ip(Ends { src: client, dst: vip }, Protocol::UDP, udp([5353, 5000], 4), 1);
    let half_way = pass(&mut table, Zone(2), &answer, &snat);
    let back = pass(&mut table, Zone(1), &half_way, &dnat);
    let seen = headers(&back).tuple().unwrap();
    assert_eq!((seen.src(), seen.dst(), seen.ports()), (vip, client, (53, 5000)));
}

fn pass(table: &mut Table, zone: Zone, packet: &[u8], commit: &Commit) -> Vec<u8> {
    let (mut frame, headers) = (frame(packet), headers(packet));
    let mut tracked = table.track(0, zone, &headers, Nat::Apply);
    if tracked.state.contains(State::NEW) {
        tracked = table.commit(0, &tracked, &headers, PORT, commit).unwrap();
    }
    tracked.translation.unwrap().apply(&mut frame).unwrap();
    ip_of(&frame).to_vec()
}

#[test]
fn range_of_another_family_is_never_chosen() {
    let mut table = table();
    let range = "fd00::1".parse().unwrap();
    let commit = Commit { nat: Some(NatSpec::source(range)), ..Commit::default() };
    let packet = datagram(ends(), [1, 2]);
    let tracked = table.track(0, ZONE, &packet, Nat::Apply);
    let refused = table.commit(0, &tracked, &packet, PORT, &commit);
    assert_eq!(refused, Err(CtDrop::NatExhausted));
}

#[test]
fn mapped_address_is_another_address() {
    let (v4, port) = (Ipv4Addr::new(10, 0, 0, 1), 80);
    let mapped = IpAddr::from(v4.to_ipv6_mapped());
    let tuple = |address| Tuple::new(address, address, Protocol::TCP, port, port).unwrap();
    assert_ne!(tuple(v4.into()), tuple(mapped));
    assert_eq!(Tuple::new(v4.into(), mapped, Protocol::TCP, port, port), None);
}

/// Parses random bytes, and tracks the packets in random order.
#[test]
fn nothing_panics_when_packets_are_random() {
    let mut random = Random::new(1);
    let mut table = table_with(Limits { connections: 200, ..Limits::default() });
    let kinds = FrameKinds { supers: true, snap: true, malformed: true, max_payload: 200 };
    let mut tracked_packets = 0;
    for now_ms in 0..60_000 {
        let mut packet = frames::frame(&mut random, kinds);
        if random.once_in(3) {
            packet = scrambled(&mut random, &packet);
        }
        let Some(headers) = Headers::parse(&packet) else { continue };
        let tracked = table.track(now_ms, ZONE, &headers, Nat::Apply);
        let nat = random.once_in(2).then(|| NatSpec::new(NatKind::Source, None, None));
        let commit = Commit { nat, force: random.once_in(5), ..Commit::default() };
        let done = table.commit(now_ms, &tracked, &headers, PORT, &commit).unwrap_or(tracked);
        if let Some(translation) = done.translation {
            _ = translation.apply(&mut packet);
        }
        tracked_packets += u64::from(!done.state.contains(State::INV));
        table.expire(now_ms, 2);
    }
    assert!(tracked_packets > 10_000, "{tracked_packets}");
}

fn scrambled(random: &mut Random, packet: &PacketBuf) -> PacketBuf {
    let mut bytes = packet.to_vec();
    for _ in 0..random.below(8) {
        let at = 14 + random.below(bytes.len().min(100) - 14);
        bytes[at] = random.word() as u8;
    }
    bytes.truncate(14 + random.below(bytes.len() - 13));
    PacketBuf::from_bytes(&bytes)
}
