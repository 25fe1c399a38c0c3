//! Compares the table with a list that is searched from front to back. The packets are UDP only,
//! whose state machine is simple: the subject is the table, its limits, its timers and the choice
//! of NAT.

use std::net::{IpAddr, Ipv4Addr};

use conntrack::{
    Commit, Config, CtDrop, Cursor, Limits, Masked, Nat, NatKind, NatSpec, PortChoice, Seed, State,
    Table, Tuple, Zone,
};
use flow::PortNo;
use testkit::random::{Random, environment};
use wire::Protocol;

use crate::saved::Saved;
use crate::support::{Ends, frame, headers, ip, ip_of, udp};

const UNREPLIED_MS: u64 = 30_000;
const STREAM_MS: u64 = 120_000;

/// A connection of the list.
#[derive(Clone, Debug)]
struct Entry {
    zone: Zone,
    original: Tuple,
    reply: Tuple,
    opener: PortNo,
    deadline_ms: u64,
    stream_after_ms: u64,
    seen_reply: bool,
    mark: u32,
    label: u128,
}

struct SideBySide {
    table: Table,
    saved: Saved,
    list: Vec<Entry>,
    now_ms: u64,
    limits: Limits,
}

impl SideBySide {
    fn new(random: &mut Random) -> Self {
        let limits = Limits {
            connections: random.pick(&[1, 20, 60, 1000]),
            per_zone: random.pick(&[10, 30, u32::MAX]),
            per_port: random.pick(&[10, 30, u32::MAX]),
            ..Limits::default()
        };
        let now_ms = random.pick(&[0, 999, 10_000_000_000]);
        let seed = Seed([0, 1, 2, 3].map(|_| random.word()));
        let mut table = Table::new(Config { limits, ..Config::default() }, seed, now_ms);
        let saved = Saved::default();
        table.save_in(Box::new(saved.clone()));
        Self { table, saved, list: Vec::new(), now_ms, limits }
    }

    fn alive(&self) -> impl Iterator<Item = &Entry> {
        self.list.iter().filter(|entry| entry.deadline_ms > self.now_ms)
    }

    fn find(&self, zone: Zone, tuple: &Tuple) -> Option<(usize, bool)> {
        let is_alive = |entry: &Entry| entry.deadline_ms > self.now_ms && entry.zone == zone;
        self.list.iter().enumerate().filter(|(_, entry)| is_alive(entry)).find_map(|(at, entry)| {
            (entry.original == *tuple)
                .then_some((at, false))
                .or((entry.reply == *tuple).then_some((at, true)))
        })
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(40) {
            0 => self.now_ms += random.pick(&[1, 900, 5_000, 31_000, 130_000, 3_000_000]),
            1..4 => self.now_ms += random.below(1500) as u64,
            4 => self.expire(random),
            5 => self.flush(random),
            6 => self.set_limits(random),
            _ => self.packet(random),
        }
    }

    fn expire(&mut self, random: &mut Random) {
        let max = random.pick(&[1, 5, 10_000]);
        let looked_at = self.table.expire(self.now_ms, max);
        assert!(looked_at <= max);
        if looked_at < max {
            // All due timers were handled, and a timer is at most a second late.
            let late = |c: &conntrack::Connection| c.deadline_ms + 1000 < self.now_ms;
            assert_eq!(self.table.iter().find(late), None, "an expired connection remains");
        }
    }

    fn flush(&mut self, random: &mut Random) {
        let zone = zone(random);
        let port = PortNo(random.below(3) as u32);
        let mut cursor = Some(Cursor::default());
        while let Some(at) = cursor {
            let max = 1 + random.below(300) as u32;
            cursor = self.table.flush(at, max, |c| c.zone == zone && c.opener == port);
        }
        self.list.retain(|entry| (entry.zone, entry.opener) != (zone, port));
    }

    fn set_limits(&mut self, random: &mut Random) {
        self.limits.per_zone = random.pick(&[0, 5, 10, 50, u32::MAX]);
        self.limits.per_port = random.pick(&[10, 30, u32::MAX]);
        self.table.set_config(Config { limits: self.limits, ..Config::default() });
    }

    /// Tracks a packet of one of few tuples, and sometimes commits it.
    fn packet(&mut self, random: &mut Random) {
        let zone = zone(random);
        let (ends, ports) = match self.list.get(random.below(self.list.len() + 3)) {
            Some(entry) => {
                let tuple = if random.once_in(2) { entry.original } else { entry.reply };
                let (src, dst) = tuple.ports();
                (Ends { src: tuple.src(), dst: tuple.dst() }, [src, dst])
            }
            None => {
                let address = |n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n));
                let ends = Ends {
                    src: address(random.below(4) as u8),
                    dst: address(random.below(4) as u8),
                };
                (ends, [0, 1].map(|_| 1024 + random.below(4) as u16))
            }
        };
        let bytes = ip(ends, Protocol::UDP, udp(ports, 4), 1);
        let tuple = Tuple::new(ends.src, ends.dst, Protocol::UDP, ports[0], ports[1]).unwrap();
        let headers = headers(&bytes);
        let tracked = self.table.track(self.now_ms, zone, &headers, Nat::Apply);
        let found = self.find(zone, &tuple);
        let state = self.expect_tracked(found);
        assert_eq!(tracked.state.without(State::SNAT | State::DNAT), state, "{tuple}");
        if let Some((at, _)) = found {
            let entry = &self.list[at];
            assert_eq!((tracked.mark, tracked.label), (entry.mark, entry.label));
            assert_eq!(tracked.original, Some(entry.original));
        }
        self.check_translation(&bytes, &tracked, found);
        if !state.contains(State::NEW) || random.once_in(4) {
            return;
        }
        let opener = PortNo(random.below(3) as u32);
        let commit = Commit {
            mark: Some(Masked { value: random.word() as u32, mask: u32::MAX }),
            nat: nat_spec(random),
            ..Commit::default()
        };
        let committed = self.table.commit(self.now_ms, &tracked, &headers, opener, &commit);
        match found {
            Some((at, _)) => {
                let committed = committed.expect("existing connections stay");
                self.list[at].mark = committed.mark;
                assert_eq!(committed.mark, commit.mark.unwrap().value);
            }
            None => self.check_new(zone, tuple, opener, &commit, committed),
        }
    }

    /// The expected state of a packet. Refreshes its entry in the list.
    fn expect_tracked(&mut self, found: Option<(usize, bool)>) -> State {
        let Some((at, is_reply)) = found else { return State::TRK | State::NEW };
        let entry = &mut self.list[at];
        let is_stream = entry.seen_reply && self.now_ms > entry.stream_after_ms;
        let timeout = if is_stream { STREAM_MS } else { UNREPLIED_MS };
        entry.deadline_ms = self.now_ms + timeout;
        let state = match (is_reply, entry.seen_reply) {
            (true, _) => State::EST | State::RPL,
            (false, true) => State::EST,
            (false, false) => State::NEW,
        };
        entry.seen_reply |= is_reply;
        State::TRK | state
    }

    /// Checks that the tuple of the translated packet is the reverse of the other direction's
    /// tuple.
    fn check_translation(
        &self,
        bytes: &[u8],
        tracked: &conntrack::Tracked,
        found: Option<(usize, bool)>,
    ) {
        let Some((at, is_reply)) = found.filter(|_| tracked.state.contains(State::EST)) else {
            return;
        };
        let entry = &self.list[at];
        let mut frame = frame(bytes);
        if let Some(translation) = tracked.translation {
            translation.apply(&mut frame).unwrap();
        }
        let seen = headers(ip_of(&frame)).tuple().unwrap();
        let other = if is_reply { entry.original } else { entry.reply };
        assert_eq!(seen.reversed().unwrap(), other);
    }

    fn check_new(
        &mut self,
        zone: Zone,
        original: Tuple,
        opener: PortNo,
        commit: &Commit,
        committed: Result<conntrack::Tracked, CtDrop>,
    ) {
        // Expired entries of the table count until `expire`, so the list gives only a lower bound
        // of the counts.
        let per_zone = self.alive().filter(|entry| entry.zone == zone).count() as u32;
        let per_port = self.alive().filter(|entry| entry.opener == opener).count() as u32;
        let zone_limit = self.limits.per_zone;
        match committed {
            Ok(tracked) => {
                assert!((self.alive().count() as u32) < self.limits.connections);
                assert!(per_zone < zone_limit && per_port < self.limits.per_port);
                let reference = tracked.connection.unwrap();
                let connection = self.table.connection(reference.id).unwrap();
                check_nat(&original, &connection.reply, commit.nat.as_ref());
                assert_eq!(self.find(zone, &connection.reply), None, "the replies are in use");
                self.list.push(Entry {
                    zone,
                    original,
                    reply: connection.reply,
                    opener,
                    deadline_ms: self.now_ms + UNREPLIED_MS,
                    stream_after_ms: self.now_ms + 2000,
                    seen_reply: false,
                    mark: tracked.mark,
                    label: tracked.label,
                });
            }
            Err(CtDrop::TableFull) => assert!(self.table.len() >= self.limits.connections),
            Err(CtDrop::ZoneLimit) => {
                assert!(self.table.zone_usage(zone).connections >= zone_limit);
            }
            Err(CtDrop::PortLimit) => {
                assert!(self.table.port_usage(opener).connections >= self.limits.per_port);
            }
            Err(CtDrop::Clash) => {
                let reply = original.reversed().unwrap();
                assert!(commit.nat.is_none() && self.find(zone, &reply).is_some());
            }
            Err(CtDrop::NatExhausted) => {
                let ports = commit.nat.as_ref().unwrap().ports.as_ref().expect("few ports");
                assert!(ports.len() < 10, "a large range is never exhausted here");
            }
        }
    }

    /// Checks that counters and contents of the table are those of the list.
    fn check_all(&mut self) {
        while self.table.expire(self.now_ms, 7) == 7 {}
        let now_ms = self.now_ms;
        self.list.retain(|entry| entry.deadline_ms > now_ms);
        let all: Vec<_> = self.table.iter().collect();
        assert_eq!(self.table.len() as usize, all.len());
        let shown: Vec<_> = all.iter().filter(|c| c.deadline_ms > now_ms).collect();
        assert_eq!(shown.len(), self.list.len());
        for entry in &self.list {
            let connection = shown.iter().find(|c| {
                (c.zone, c.original, c.reply) == (entry.zone, entry.original, entry.reply)
            });
            let connection = connection.expect("the table has it");
            assert_eq!(connection.deadline_ms, entry.deadline_ms);
            assert_eq!((connection.mark, connection.label), (entry.mark, entry.label));
            assert_eq!(connection.seen_reply, entry.seen_reply);
        }
        for zone in 0..4 {
            let count = all.iter().filter(|c| c.zone == Zone(zone)).count();
            assert_eq!(self.table.zone_usage(Zone(zone)).connections as usize, count);
        }
        for port in 0..3 {
            let count = all.iter().filter(|c| c.opener == PortNo(port)).count();
            assert_eq!(self.table.port_usage(PortNo(port)).connections as usize, count);
        }
        assert_eq!(self.saved.lasting(), Saved::expected(&self.table));
        let stats = self.table.stats();
        let removed = stats.expired + stats.flushed + stats.replaced;
        assert_eq!(stats.committed - removed, u64::from(self.table.len()));
    }
}

fn zone(random: &mut Random) -> Zone {
    Zone(random.below(3) as u16)
}

fn nat_spec(random: &mut Random) -> Option<NatSpec> {
    let kind = match random.below(4) {
        0 => return None,
        1 => NatKind::Destination,
        _ => NatKind::Source,
    };
    let address = |n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n));
    let addresses = match random.below(4) {
        0 => None,
        1 => Some(address(1)..=address(3)),
        _ => Some(address(9)..=address(9)),
    };
    let ports = random.pick(&[None, Some((80, 80)), Some((2000, 2003)), Some((3000, 9000))]);
    let mut spec = NatSpec::new(kind, addresses, ports.map(|(first, last)| first..=last));
    spec.choice = random.pick(&[PortChoice::Hash, PortChoice::Random]);
    spec.persistent = random.once_in(2);
    Some(spec)
}

/// Checks that the chosen address and port are in their ranges.
fn check_nat(original: &Tuple, reply: &Tuple, spec: Option<&NatSpec>) {
    let translated = reply.reversed().unwrap();
    let Some(spec) = spec else {
        assert_eq!(translated, *original);
        return;
    };
    let (address, port, own_address, other, own_other) = match spec.kind {
        NatKind::Source => (
            translated.src(),
            translated.ports().0,
            original.src(),
            translated.dst(),
            original.dst(),
        ),
        NatKind::Destination => (
            translated.dst(),
            translated.ports().1,
            original.dst(),
            translated.src(),
            original.src(),
        ),
    };
    assert_eq!(other, own_other);
    match &spec.addresses {
        Some(addresses) => assert!(addresses.contains(&address), "{address}"),
        None => assert_eq!(address, own_address),
    }
    if let Some(ports) = &spec.ports {
        assert!(ports.contains(&port), "{port} is not in {ports:?}");
    }
}

#[test]
fn table_agrees_with_a_list_when_random() {
    let cases = environment("WEFT_CT_CASES", 300);
    for case in 0..cases {
        let mut random = Random::new(case);
        let mut both = SideBySide::new(&mut random);
        for _ in 0..random.pick(&[20, 200, 1000]) {
            both.step(&mut random);
        }
        both.check_all();
    }
}
