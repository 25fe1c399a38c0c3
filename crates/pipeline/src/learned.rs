//! [`LearnedTables`]: what a switch learns from packets, with limits and ageing. That is MAC
//! bindings of IP addresses, forwarding database (FDB) entries, the backends that load balancers
//! have chosen for clients, and the next hops through which connections were opened.

mod table;

pub use table::{LearnRefusal, PortUsage, TableLimit};

use crate::recirc::{RecircTable, SuspendedState};
use crate::state::{
    Affinity, AffinityKey, FdbKey, FdbPort, Generation, IngressPort, LearnEvent, LearnedState,
    MacBindingKey, NextHopKey, StateQuery,
};
use flow::{RecircId, Recirculation};
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::LearnedTable;
use wire::MacAddr;

type Map<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;

/// The number of generation counters. A counter advances when the answer to a query changes, and
/// megaflows that depend on that answer are then translated again. Queries share counters by hash,
/// so that a query whose answer is "unknown" has a counter too. Sharing costs only some needless
/// translations.
///
/// There are as many as FDB entries by default, and they take 512 KiB. Suppose that a megaflow
/// depends on two answers, and that 5,000 other entries are learned between two revalidations. Then
/// the chance of a needless translation is 1 - (1 - 1 / 65,536)^10,000, or 1 in 7. With 4,096
/// counters it would be 9 in 10.
const GENERATIONS: usize = 65_536;

/// The limits on learned state. When a limit is reached, known entries stay. New ones are refused,
/// and the refusals are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnLimits {
    /// MAC bindings, over all routers.
    pub mac_bindings: TableLimit,
    /// Forwarding database entries, over all logical switches.
    pub fdb: TableLimit,
    /// A MAC binding or FDB entry that is neither learned again nor used for this long ages out.
    pub max_age: Duration,
    /// Clients of load balancers with source-address affinity.
    pub affinities: TableLimit,
    /// Next hops of connections: each connection that was opened through one of several routers has
    /// an entry, so that its replies take the same router.
    pub next_hops: TableLimit,
}

/// The entry of a next hop ages out when no packet of its connection has used it for this long.
const NEXT_HOP_AGE: Duration = Duration::from_secs(20);

impl Default for LearnLimits {
    fn default() -> Self {
        let limit = TableLimit { total: 65_536, per_port: 8192 };
        // All clients may be behind one port of a gateway, so its limit is half of the table. A
        // port can also never have more entries than are free.
        let client_limit = TableLimit { total: 65_536, per_port: 32_768 };
        Self {
            mac_bindings: limit,
            fdb: limit,
            max_age: Duration::from_secs(300),
            affinities: client_limit,
            next_hops: client_limit,
        }
    }
}

/// How many learn events were refused, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LearnRefusals {
    /// [`LearnRefusal::Configured`].
    pub configured: u64,
    /// [`LearnRefusal::PortFull`].
    pub port_full: u64,
    /// [`LearnRefusal::TableFull`].
    pub table_full: u64,
}

impl LearnRefusals {
    const fn count(&mut self, refusal: LearnRefusal) {
        match refusal {
            LearnRefusal::Configured => self.configured += 1,
            LearnRefusal::PortFull => self.port_full += 1,
            LearnRefusal::TableFull => self.table_full += 1,
        }
    }
}

/// The learned state of a switch, and the saved states in which packets continue after they have
/// passed the connection tracker.
#[derive(Debug)]
pub struct LearnedTables {
    limits: LearnLimits,
    mac_bindings: LearnedTable<MacBindingKey, MacAddr>,
    fdb: LearnedTable<FdbKey, FdbPort>,
    affinities: LearnedTable<AffinityKey, Affinity>,
    next_hops: LearnedTable<NextHopKey, MacAddr>,
    generations: Box<[Generation]>,
    hash: ahash::RandomState,
    refusals: LearnRefusals,
    recirculations: RecircTable,
}

impl Default for LearnedTables {
    fn default() -> Self {
        Self::new(LearnLimits::default())
    }
}

impl LearnedTables {
    /// Empty tables.
    pub fn new(limits: LearnLimits) -> Self {
        Self {
            limits,
            mac_bindings: LearnedTable::new(limits.mac_bindings),
            fdb: LearnedTable::new(limits.fdb),
            affinities: LearnedTable::new(limits.affinities),
            next_hops: LearnedTable::new(limits.next_hops),
            generations: vec![Generation::default(); GENERATIONS].into(),
            hash: ahash::RandomState::new(),
            refusals: LearnRefusals::default(),
            recirculations: RecircTable::default(),
        }
    }

    /// Adds a configured entry. It is never refused, never ages out, and counts against no limit.
    pub fn configure(&mut self, event: LearnEvent) {
        let is_new = match event {
            LearnEvent::MacBinding(key, mac) => self.mac_bindings.configure(key, mac),
            LearnEvent::Fdb(key, port) => self.fdb.configure(key, port),
            LearnEvent::Affinity(key, affinity) => self.affinities.configure(key, affinity),
            LearnEvent::NextHop(key, mac) => self.next_hops.configure(key, mac),
        };
        if is_new {
            self.advance(&event.query());
        }
    }

    /// Learns from a packet that came in by `ingress`.
    ///
    /// # Errors
    /// The event conflicts with a configured entry, or exceeds a limit. The refusal is counted.
    pub fn learn(
        &mut self,
        event: LearnEvent,
        ingress: IngressPort,
        now: Instant,
    ) -> Result<(), LearnRefusal> {
        let learned = match event {
            LearnEvent::MacBinding(key, mac) => self.mac_bindings.learn(key, mac, ingress, now),
            LearnEvent::Fdb(key, port) => self.fdb.learn(key, port, ingress, now),
            LearnEvent::Affinity(key, affinity) => {
                self.affinities.learn(key, affinity, ingress, now)
            }
            LearnEvent::NextHop(key, mac) => self.next_hops.learn(key, mac, ingress, now),
        };
        match learned {
            Ok(true) => self.advance(&event.query()),
            Ok(false) => {}
            Err(refusal) => {
                self.refusals.count(refusal);
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// How many events of this kind, this one included, would be accepted from the port now.
    ///
    /// # Errors
    /// The event would be refused. Nothing is counted.
    pub fn capacity_for(
        &self,
        event: &LearnEvent,
        ingress: IngressPort,
    ) -> Result<usize, LearnRefusal> {
        match event {
            LearnEvent::MacBinding(key, _) => self.mac_bindings.capacity_for(key, ingress),
            LearnEvent::Fdb(key, _) => self.fdb.capacity_for(key, ingress),
            LearnEvent::Affinity(key, _) => self.affinities.capacity_for(key, ingress),
            LearnEvent::NextHop(key, _) => self.next_hops.capacity_for(key, ingress),
        }
    }

    /// Notes that an entry is in use. The switch calls this for the queries of megaflows that
    /// packets have hit: packets of a station that has not moved raise no learn event, but must
    /// keep its entry from ageing out.
    ///
    /// A MAC binding is not refreshed if a port has claimed another MAC address and was refused. It
    /// ages out, and the router asks again.
    pub fn refresh(&mut self, query: &StateQuery, now: Instant) {
        match query {
            StateQuery::MacBinding(key) => {
                if self.mac_bindings.get(key).is_some_and(|entry| !entry.is_contested) {
                    self.mac_bindings.refresh(key, now);
                }
            }
            StateQuery::Fdb(key) => self.fdb.refresh(key, now),
            StateQuery::Affinity(key) => self.affinities.refresh(key, now),
            StateQuery::NextHop(key) => self.next_hops.refresh(key, now),
        }
    }

    /// When an entry was last learned or used; `None` for an unknown or configured entry.
    pub fn last_used(&self, query: &StateQuery) -> Option<Instant> {
        match query {
            StateQuery::MacBinding(key) => self.mac_bindings.get(key)?.last_used(),
            StateQuery::Fdb(key) => self.fdb.get(key)?.last_used(),
            StateQuery::Affinity(key) => self.affinities.get(key)?.last_used(),
            StateQuery::NextHop(key) => self.next_hops.get(key)?.last_used(),
        }
    }

    /// Removes every entry that was neither learned again nor used within its maximum age.
    pub fn expire(&mut self, now: Instant) {
        let max_age = self.limits.max_age;
        let is_older = |last_used, age| now.saturating_duration_since(last_used) > age;
        let bindings = self.mac_bindings.aged_out(|_, used| is_older(used, max_age));
        let fdb = self.fdb.aged_out(|_, used| is_older(used, max_age));
        let affinities = self.affinities.aged_out(|affinity, used| {
            is_older(used, Duration::from_secs(affinity.timeout_s.into()))
        });
        let next_hops = self.next_hops.aged_out(|_, used| is_older(used, NEXT_HOP_AGE));
        let expired: Vec<StateQuery> = (bindings.copied().map(StateQuery::MacBinding))
            .chain(fdb.copied().map(StateQuery::Fdb))
            .chain(affinities.copied().map(StateQuery::Affinity))
            .chain(next_hops.copied().map(StateQuery::NextHop))
            .collect();
        expired.iter().for_each(|query| self.forget(query));
    }

    /// Removes one entry.
    pub fn forget(&mut self, query: &StateQuery) {
        let was_known = match query {
            StateQuery::MacBinding(key) => self.mac_bindings.forget(key),
            StateQuery::Fdb(key) => self.fdb.forget(key),
            StateQuery::Affinity(key) => self.affinities.forget(key),
            StateQuery::NextHop(key) => self.next_hops.forget(key),
        };
        if was_known {
            self.advance(query);
        }
    }

    /// How many learn events were refused.
    pub const fn refusals(&self) -> LearnRefusals {
        self.refusals
    }

    /// The number of entries of all kinds.
    pub fn len(&self) -> usize {
        self.mac_bindings.len() + self.fdb.len() + self.affinities.len() + self.next_hops.len()
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ports that MAC bindings were learned from, with their entries and refusals.
    pub fn mac_binding_usage(&self) -> impl Iterator<Item = (IngressPort, PortUsage)> {
        self.mac_bindings.usage_by_port()
    }

    /// The ports that FDB entries were learned from, with their entries and refusals.
    pub fn fdb_usage(&self) -> impl Iterator<Item = (IngressPort, PortUsage)> {
        self.fdb.usage_by_port()
    }

    /// The ports that affinities were learned from, with their entries and refusals.
    pub fn affinity_usage(&self) -> impl Iterator<Item = (IngressPort, PortUsage)> {
        self.affinities.usage_by_port()
    }

    /// The ports that next hops were learned from, with their entries and refusals.
    pub fn next_hop_usage(&self) -> impl Iterator<Item = (IngressPort, PortUsage)> {
        self.next_hops.usage_by_port()
    }

    /// True if the answer to a query is still that of `generation`. It may be false although the
    /// answer is the same, because queries share generation counters.
    pub fn is_current(&self, query: &StateQuery, generation: Generation) -> bool {
        self.generations[self.generation_index(query)] == generation
    }

    /// Every MAC binding, in no particular order.
    pub fn mac_bindings(&self) -> impl Iterator<Item = (&MacBindingKey, MacAddr)> {
        self.mac_bindings.iter()
    }

    /// Every forwarding database entry, in no particular order.
    pub fn fdb(&self) -> impl Iterator<Item = (&FdbKey, FdbPort)> {
        self.fdb.iter()
    }

    /// Every affinity, in no particular order.
    pub fn affinities(&self) -> impl Iterator<Item = (&AffinityKey, Affinity)> {
        self.affinities.iter()
    }

    /// Every next hop, in no particular order.
    pub fn next_hops(&self) -> impl Iterator<Item = (&NextHopKey, MacAddr)> {
        self.next_hops.iter()
    }

    fn advance(&mut self, query: &StateQuery) {
        let index = self.generation_index(query);
        self.generations[index].0 += 1;
    }

    fn generation_index(&self, query: &impl Hash) -> usize {
        self.hash.hash_one(query) as usize % GENERATIONS
    }
}

impl LearnedState for LearnedTables {
    fn mac_binding(&self, key: &MacBindingKey) -> (Option<MacAddr>, Generation) {
        let mac = self.mac_bindings.get(key).map(|entry| entry.value);
        (mac, self.generations[self.generation_index(&StateQuery::MacBinding(*key))])
    }

    fn fdb_port(&self, key: &FdbKey) -> (Option<FdbPort>, Generation) {
        let port = self.fdb.get(key).map(|entry| entry.value);
        (port, self.generations[self.generation_index(&StateQuery::Fdb(*key))])
    }

    fn affinity(&self, key: &AffinityKey) -> (Option<Affinity>, Generation) {
        let affinity = self.affinities.get(key).map(|entry| entry.value);
        (affinity, self.generations[self.generation_index(&StateQuery::Affinity(*key))])
    }

    fn next_hop(&self, key: &NextHopKey) -> (Option<MacAddr>, Generation) {
        let mac = self.next_hops.get(key).map(|entry| entry.value);
        (mac, self.generations[self.generation_index(&StateQuery::NextHop(*key))])
    }

    fn suspend(&self, state: SuspendedState) -> Option<Recirculation> {
        self.recirculations.suspend(state)
    }

    fn suspended(&self, id: RecircId) -> Option<Arc<SuspendedState>> {
        self.recirculations.state(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{DatapathKey, PortKey, PortNo};

    fn fdb_key(last: u8) -> FdbKey {
        FdbKey { datapath: DatapathKey(0), vlan: 0, mac: MacAddr([2, 0, 0, 0, 0, last]) }
    }

    fn behind(number: u32) -> FdbPort {
        FdbPort::Port(PortNo(number))
    }

    fn ingress(port: u32) -> IngressPort {
        IngressPort { datapath: DatapathKey(0), port: behind(port) }
    }

    /// Learns that a MAC address is behind a port.
    fn learn(
        learned: &mut LearnedTables,
        key: FdbKey,
        port: u32,
        now: Instant,
    ) -> Result<(), LearnRefusal> {
        learned.learn(LearnEvent::Fdb(key, behind(port)), ingress(port), now)
    }

    #[test]
    fn generation_changes_when_the_answer_does_and_only_then() {
        let (mut learned, now) = (LearnedTables::default(), Instant::now());
        let (none, before) = learned.fdb_port(&fdb_key(1));
        assert_eq!(learn(&mut learned, fdb_key(1), 3, now), Ok(()));
        let (found, after) = learned.fdb_port(&fdb_key(1));
        assert_eq!((none, found), (None, Some(behind(3))));
        assert_ne!(before, after);
        assert!(!learned.is_current(&StateQuery::Fdb(fdb_key(1)), before));
        learn(&mut learned, fdb_key(1), 3, now + Duration::from_secs(1)).unwrap();
        assert!(learned.is_current(&StateQuery::Fdb(fdb_key(1)), after));
        learn(&mut learned, fdb_key(1), 4, now).unwrap();
        assert!(!learned.is_current(&StateQuery::Fdb(fdb_key(1)), after));
    }

    #[test]
    fn most_other_answers_stay_current_when_thousands_of_entries_are_learned() {
        let mut learned = LearnedTables::default();
        let key = |number: u32| {
            let [a, b, c, d] = number.to_be_bytes();
            FdbKey { mac: MacAddr([2, 0, a, b, c, d]), ..fdb_key(0) }
        };
        let others = || (0..10_000).map(|number| StateQuery::Fdb(key(1 << 20 | number)));
        for number in 0..5000 {
            learn(&mut learned, key(number), 1, Instant::now()).unwrap();
        }
        let changed = others().filter(|query| !learned.is_current(query, Generation(0))).count();
        assert!((100..1000).contains(&changed), "{changed} of 10,000 share a generation");
    }

    #[test]
    fn entry_ages_out_when_it_is_not_learned_again() {
        let (mut learned, now) = (LearnedTables::default(), Instant::now());
        learn(&mut learned, fdb_key(1), 3, now).unwrap();
        learned.configure(LearnEvent::Fdb(fdb_key(2), behind(4)));
        let later = now + LearnLimits::default().max_age;
        learned.expire(later);
        assert_eq!(learned.fdb().count(), 2);
        let generation = learned.fdb_port(&fdb_key(1)).1;
        learned.expire(later + Duration::from_millis(1));
        assert_eq!(learned.fdb_port(&fdb_key(1)).0, None);
        assert_ne!(learned.fdb_port(&fdb_key(1)).1, generation);
        assert_eq!(learned.fdb_port(&fdb_key(2)).0, Some(behind(4)));
    }

    #[test]
    fn entry_is_kept_while_it_is_in_use() {
        let (mut learned, now) = (LearnedTables::default(), Instant::now());
        let max_age = LearnLimits::default().max_age;
        learn(&mut learned, fdb_key(1), 3, now).unwrap();
        let (_, generation) = learned.fdb_port(&fdb_key(1));
        learned.refresh(&StateQuery::Fdb(fdb_key(1)), now + max_age);
        learned.refresh(&StateQuery::Fdb(fdb_key(2)), now + max_age);
        assert_eq!(learned.last_used(&StateQuery::Fdb(fdb_key(1))), Some(now + max_age));
        assert_eq!(learned.last_used(&StateQuery::Fdb(fdb_key(2))), None);
        learned.expire(now + max_age * 2);
        assert_eq!(learned.fdb_port(&fdb_key(1)), (Some(behind(3)), generation));
        learned.expire(now + max_age * 3);
        assert_eq!(learned.fdb().count(), 0);
    }

    /// Tables with a limit on forwarding database entries.
    fn with_fdb_limit(total: usize, per_port: usize) -> LearnedTables {
        let fdb = TableLimit { total, per_port };
        LearnedTables::new(LearnLimits { fdb, ..LearnLimits::default() })
    }

    /// Learns `count` MAC addresses behind a port. Returns how many were accepted, and why the
    /// first of the others was refused.
    fn flood(
        learned: &mut LearnedTables,
        port: u32,
        first: u8,
        count: u8,
    ) -> (usize, Option<LearnRefusal>) {
        let macs = (first..).take(count.into());
        let results: Vec<_> =
            macs.map(|n| learn(learned, fdb_key(n), port, Instant::now())).collect();
        let refusal = results.iter().find_map(|result| result.err());
        (results.into_iter().filter(Result::is_ok).count(), refusal)
    }

    #[test]
    fn port_that_floods_neither_evicts_others_nor_takes_their_capacity() {
        let mut learned = with_fdb_limit(100, 10);
        assert_eq!(flood(&mut learned, 1, 0, 3), (3, None));
        assert_eq!(flood(&mut learned, 2, 10, 50), (10, Some(LearnRefusal::PortFull)));
        let known: Vec<_> = (0..3).map(|n| learned.fdb_port(&fdb_key(n)).0).collect();
        assert_eq!(known, [Some(behind(1)); 3]);
        assert_eq!(flood(&mut learned, 1, 100, 7), (7, None));
        let refused = LearnRefusals { port_full: 40, ..LearnRefusals::default() };
        assert_eq!((learned.len(), learned.refusals()), (20, refused));
        let usage = |number| learned.fdb_usage().find(|(p, _)| p.port == behind(number));
        assert_eq!(usage(2).unwrap().1, PortUsage { known: 10, refused: 40 });
        assert_eq!(usage(1).unwrap().1, PortUsage { known: 10, refused: 0 });
    }

    #[test]
    fn ports_that_flood_together_leave_capacity_for_another() {
        let mut learned = with_fdb_limit(64, 64);
        for (port, learned_count) in [(1, 32), (2, 16), (3, 8), (4, 4)] {
            let first = port as u8 * 50;
            assert_eq!(
                flood(&mut learned, port, first, 40),
                (learned_count, Some(LearnRefusal::TableFull))
            );
        }
        assert_eq!(flood(&mut learned, 5, 0, 2), (2, None));
        assert_eq!(learned.refusals().table_full, 8 + 24 + 32 + 36);
    }

    #[test]
    fn entry_moves_only_to_a_port_below_its_limit() {
        let mut learned = with_fdb_limit(4, 2);
        assert_eq!(flood(&mut learned, 1, 1, 1), (1, None));
        assert_eq!(flood(&mut learned, 2, 2, 1), (1, None));
        assert_eq!(flood(&mut learned, 2, 1, 1), (1, None), "a move needs no free entry");
        assert_eq!(flood(&mut learned, 1, 3, 1), (1, None), "the move freed capacity of port 1");
        assert_eq!(
            flood(&mut learned, 2, 3, 1),
            (0, Some(LearnRefusal::PortFull)),
            "a refused move changes nothing"
        );
        let ports = [1, 2, 3].map(|n| learned.fdb_port(&fdb_key(n)).0);
        assert_eq!(ports, [Some(behind(2)), Some(behind(2)), Some(behind(1))]);
        learned.forget(&StateQuery::Fdb(fdb_key(2)));
        assert_eq!(flood(&mut learned, 2, 3, 1), (1, None));
        assert!(learned.fdb_usage().all(|(port, _)| port.port == behind(2)));
    }

    #[test]
    fn configured_entry_is_never_overwritten_and_counts_against_no_port() {
        let mut learned = with_fdb_limit(8, 1);
        learned.configure(LearnEvent::Fdb(fdb_key(1), behind(1)));
        assert_eq!(flood(&mut learned, 1, 1, 1), (0, Some(LearnRefusal::Configured)));
        assert_eq!(flood(&mut learned, 1, 2, 1), (1, None));
        learned.configure(LearnEvent::Fdb(fdb_key(2), behind(1)));
        assert_eq!(learned.fdb_usage().count(), 0);
        assert_eq!(flood(&mut learned, 1, 3, 1), (1, None));
        assert_eq!(learned.refusals(), LearnRefusals { configured: 1, ..LearnRefusals::default() });
    }

    #[test]
    fn capacity_is_what_a_port_can_add_until_it_is_refused() {
        let mut learned = with_fdb_limit(20, 6);
        let event = |n, at| LearnEvent::Fdb(fdb_key(n), behind(at));
        for (port, first, capacity) in [(1, 0, 6), (2, 50, 6), (3, 100, 4), (4, 150, 2)] {
            let answer = learned.capacity_for(&event(200, port), ingress(port));
            assert_eq!(answer, Ok(capacity), "of port {port}");
            assert_eq!(flood(&mut learned, port, first, 8).0, capacity, "of port {port}");
        }
        let refusal = |n, port| learned.capacity_for(&event(n, port), ingress(port)).err();
        assert_eq!(refusal(200, 1), Some(LearnRefusal::PortFull));
        assert_eq!(refusal(200, 3), Some(LearnRefusal::TableFull));
        assert_eq!(
            learned.capacity_for(&event(0, 1), ingress(1)),
            Ok(1),
            "already learned from this port"
        );
        assert_eq!(learned.capacity_for(&event(0, 3), ingress(3)), Ok(2), "the entry moves");
    }

    fn with_binding_limit(mac_bindings: TableLimit) -> LearnedTables {
        LearnedTables::new(LearnLimits { mac_bindings, ..LearnLimits::default() })
    }

    fn binding_key(datapath: u32, last: u8) -> MacBindingKey {
        let (datapath, port) = (DatapathKey(datapath), PortKey::FLOOD);
        MacBindingKey { datapath, port, ip: [192, 0, 2, last].into() }
    }

    #[test]
    fn bindings_count_against_the_ingress_port_not_the_router_port() {
        let mut learned = with_binding_limit(TableLimit { total: 100, per_port: 2 });
        let now = Instant::now();
        let mut learn = |key, port| {
            learned.learn(LearnEvent::MacBinding(key, MacAddr::BROADCAST), ingress(port), now)
        };
        assert_eq!(learn(binding_key(1, 1), 1), Ok(()));
        assert_eq!(learn(binding_key(2, 1), 1), Ok(()));
        assert_eq!(learn(binding_key(1, 2), 1), Err(LearnRefusal::PortFull));
        assert_eq!(learn(binding_key(1, 2), 2), Ok(()), "behind the same router port");
        let usage: std::collections::BTreeMap<_, _> = learned.mac_binding_usage().collect();
        assert_eq!(usage[&ingress(1)], PortUsage { known: 2, refused: 1 });
        assert_eq!(usage[&ingress(2)], PortUsage { known: 1, refused: 0 });
        learned.configure(LearnEvent::MacBinding(binding_key(2, 2), MacAddr::ZERO));
        let event = LearnEvent::MacBinding(binding_key(2, 2), MacAddr::BROADCAST);
        assert_eq!(learned.learn(event, ingress(3), now), Err(LearnRefusal::Configured));
        assert_eq!(learned.mac_binding(&binding_key(2, 2)).0, Some(MacAddr::ZERO));
    }

    #[test]
    fn contested_binding_ages_out_although_it_is_in_use() {
        let mut learned = with_binding_limit(TableLimit { total: 100, per_port: 1 });
        let (now, max_age) = (Instant::now(), LearnLimits::default().max_age);
        let macs = [1, 2].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
        for last in [1, 2] {
            let event = LearnEvent::MacBinding(binding_key(1, last), macs[0]);
            learned.learn(event, ingress(last.into()), now).unwrap();
        }
        let moved = LearnEvent::MacBinding(binding_key(1, 1), macs[1]);
        assert_eq!(learned.learn(moved, ingress(2), now), Err(LearnRefusal::PortFull));
        let later = now + max_age + Duration::from_millis(1);
        for last in [1, 2] {
            learned.refresh(&StateQuery::MacBinding(binding_key(1, last)), later);
        }
        assert_eq!(learned.mac_binding(&binding_key(1, 1)).0, Some(macs[0]));
        learned.expire(later);
        let known = [1, 2].map(|last| learned.mac_binding(&binding_key(1, last)).0);
        assert_eq!(known, [None, Some(macs[0])]);
        // Resolved again, and learned from a port below its limit.
        learned.learn(moved, ingress(3), later).unwrap();
        learned.refresh(&StateQuery::MacBinding(binding_key(1, 1)), later + max_age);
        assert_eq!(
            learned.last_used(&StateQuery::MacBinding(binding_key(1, 1))),
            Some(later + max_age)
        );
    }
}
