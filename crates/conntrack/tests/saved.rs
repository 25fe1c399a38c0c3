//! Tests of connections that are saved, and restored in another table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use conntrack::{
    Commit, Config, CtDrop, Limits, Masked, Nat, NatSpec, Record, RestoreError, Seed, State, Store,
    Table, Timeout, Zone,
};
use flow::PortNo;
use testkit::random::Random;
use wire::Protocol;

use crate::support::{ACK, Ends, FIN, SYN, TcpSegment, headers, ip, udp};

/// A store in memory.
#[derive(Clone, Default, Debug)]
pub struct Saved(Arc<Mutex<BTreeMap<u32, Record>>>);

impl Store for Saved {
    fn write(&mut self, place: u32, record: &Record) {
        // Encodes and decodes the record, as a file would.
        let record = Record::from_words(*record.words()).expect("the checksum is right");
        self.0.lock().unwrap().insert(place, record);
    }

    fn clear(&mut self, place: u32) {
        let removed = self.0.lock().unwrap().remove(&place);
        assert!(removed.is_some(), "only saved connections are cleared");
    }
}

impl Saved {
    fn records(&self) -> Vec<Record> {
        self.0.lock().unwrap().values().copied().collect()
    }

    /// A table that is restored from all records. The port number of each opener is increased by 1.
    fn restored(&self) -> Table {
        let mut table = Table::new(Config::default(), Seed([5, 6, 7, 8]), 77);
        for record in self.records() {
            let opener = PortNo(record.opener().0 + 1);
            table.restore(77, &record, 0, opener).expect("the record can be restored");
        }
        table
    }

    /// The saved properties of a table that is restored from the records, as text.
    pub fn lasting(&self) -> BTreeSet<String> {
        let table = self.restored();
        let openers = table.iter().map(|c| c.opener.0 - 1);
        table.iter().zip(openers).map(|(c, opener)| lasting(&c, PortNo(opener))).collect()
    }

    /// The same properties of the original table. Only connections that have seen a reply are
    /// saved.
    pub fn expected(table: &Table) -> BTreeSet<String> {
        let replied = table.iter().filter(|connection| connection.seen_reply);
        replied.map(|connection| lasting(&connection, connection.opener)).collect()
    }
}

fn lasting(c: &conntrack::Connection, opener: PortNo) -> String {
    format!(
        "{:?}",
        (
            (c.zone, c.original, c.reply, c.state, opener),
            (c.seen_reply, c.assured, c.source_nat, c.destination_nat, c.mark, c.label),
        )
    )
}

const ZONE: Zone = Zone(9);

fn ends() -> Ends {
    Ends { src: "10.0.0.1".parse().unwrap(), dst: "10.0.0.2".parse().unwrap() }
}

/// A segment with a window of 1000 bytes. The replies are to 10.0.0.9, the address of source NAT.
fn segment(reply: bool, flags: u8, seq: u32, ack: u32, payload_len: usize) -> conntrack::Headers {
    let ports = if reply { [80, 5000] } else { [5000, 80] };
    let translated = Ends { src: ends().dst, dst: "10.0.0.9".parse().unwrap() };
    let ends = if reply { translated } else { ends() };
    let segment =
        TcpSegment { ports, seq, ack, flags, window: 1000, payload_len, ..TcpSegment::default() };
    headers(&ip(ends, Protocol::TCP, segment.bytes(), 1))
}

/// A table with one connection with source NAT, after `steps` segments of its handshake, and its
/// store.
fn opened(steps: usize) -> (Table, Saved) {
    let (mut table, saved) = (Table::new(Config::default(), Seed([1; 4]), 0), Saved::default());
    table.save_in(Box::new(saved.clone()));
    let commit = Commit {
        mark: Some(Masked { value: 7, mask: u32::MAX }),
        label: Some(Masked { value: 1 << 100 | 3, mask: u128::MAX }),
        nat: Some(NatSpec::source("10.0.0.9".parse().unwrap())),
        ..Commit::default()
    };
    let handshake = [(false, SYN, 0, 0), (true, SYN | ACK, 0, 1), (false, ACK, 1, 1)];
    for (reply, flags, seq, ack) in handshake.into_iter().take(steps) {
        let packet = segment(reply, flags, seq, ack, 0);
        let tracked = table.track(0, ZONE, &packet, Nat::Apply);
        assert!(!tracked.state.contains(State::INV));
        table.commit(0, &tracked, &packet, PortNo(3), &commit).unwrap();
    }
    (table, saved)
}

#[test]
fn connection_is_saved_when_it_has_seen_a_reply() {
    for steps in 0..=3 {
        let (table, saved) = opened(steps);
        assert_eq!(saved.records().len(), usize::from(steps >= 2), "{steps}");
        assert_eq!(saved.lasting(), Saved::expected(&table), "{steps}");
    }
}

#[test]
fn restored_connection_continues_in_both_directions_when_either_end_sends_first() {
    for reply_first in [false, true] {
        let mut table = opened(3).1.restored();
        // Sequence numbers far from those of the handshake: data has been sent since.
        let both = [(false, 5_000_000, 9_000_000), (true, 9_000_000, 5_000_000)];
        let order = if reply_first { [both[1], both[0]] } else { both };
        for (reply, seq, ack) in order {
            let packet = segment(reply, ACK, seq, ack, 100);
            let tracked = table.track(100, ZONE, &packet, Nat::Apply);
            let reply_bits = if reply { State::RPL | State::DNAT } else { State::SNAT };
            assert_eq!(tracked.state, State::TRK | State::EST | reply_bits);
            assert_eq!((tracked.mark, tracked.label), (7, 1 << 100 | 3));
        }
        // After both ends have sent, the windows are known again.
        let out_of_window = segment(false, ACK, 7_000_000, 9_000_100, 0);
        assert!(table.track(100, ZONE, &out_of_window, Nat::Apply).state.contains(State::INV));
        let fin = segment(true, FIN | ACK, 9_000_100, 5_000_100, 0);
        assert!(table.track(100, ZONE, &fin, Nat::Apply).state.contains(State::EST));
        let closing = table.iter().next().unwrap();
        assert_eq!(closing.state, conntrack::ProtocolState::Tcp(conntrack::TcpState::FinWait));
    }
}

#[test]
fn record_is_cleared_when_its_connection_is_removed() {
    let (mut table, saved) = opened(3);
    let connection = table.iter().next().unwrap();
    assert!(table.remove_connection(connection.reference));
    assert_eq!(saved.records(), []);
}

#[test]
fn connection_is_not_restored_when_something_speaks_against_it() {
    let record = opened(3).1.records()[0];
    let table = |limits| Table::new(Config { limits, ..Config::default() }, Seed([1; 4]), 0);
    let restore = |table: &mut Table, absent_ms| table.restore(0, &record, absent_ms, PortNo(3));
    let established_ms = u64::from(Timeout::TcpEstablished.default_s()) * 1000;
    let mut unlimited = table(Limits::default());
    assert_eq!(restore(&mut unlimited, established_ms), Err(RestoreError::Expired));
    assert_eq!(restore(&mut unlimited, established_ms - 1), Ok(()));
    assert_eq!(restore(&mut unlimited, 0), Err(RestoreError::Refused(CtDrop::Clash)));
    assert_eq!(unlimited.len(), 1);
    let none = Limits { per_zone: 0, ..Limits::default() };
    let refused = Err(RestoreError::Refused(CtDrop::ZoneLimit));
    assert_eq!(restore(&mut table(none), 0), refused);
}

/// A record with random bits restores no impossible connection, and causes no panic.
#[test]
fn record_is_refused_when_a_bit_has_changed() {
    let mut random = Random::new(1);
    let record = opened(3).1.records()[0];
    for bit in 0..Record::WORDS * 64 {
        let mut words = *record.words();
        words[bit / 64] ^= 1 << (bit % 64);
        assert_eq!(Record::from_words(words), None, "bit {bit}");
    }
    let new_table = || Table::new(Config::default(), Seed([1; 4]), 0);
    // Creating a table is slow, because its memory is initialized. Many records therefore share one
    // table, at times that are further apart than any timeout.
    let mut table = new_table();
    for number in 0..20_000_u64 {
        let now_ms = (number % 1000) << 30;
        if now_ms == 0 {
            table = new_table();
        }
        let mut words = *record.words();
        for _ in 0..1 + random.below(3) {
            let (bit, word) = (1 << random.below(64), random.word());
            words[random.below(15)] ^= random.pick(&[bit, word]);
        }
        words[15] = conntrack::checksum(&words[..15]);
        let record = Record::from_words(words).expect("the checksum is right");
        let restored = table.restore(now_ms, &record, 0, PortNo(1));
        for packet in [segment(false, ACK, 1, 1, 0), segment(true, ACK, 1, 1, 0)] {
            table.track(now_ms, ZONE, &packet, Nat::Apply);
        }
        let datagram = headers(&ip(ends(), Protocol::UDP, udp([5000, 80], 4), 1));
        table.track(now_ms, ZONE, &datagram, Nat::Apply);
        assert!(table.len() <= u32::from(restored.is_ok()));
        while table.expire(now_ms + (1 << 29), 8) == 8 {}
        assert!(table.is_empty());
    }
}
