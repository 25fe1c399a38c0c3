//! [`LearnedTable`]: learned entries of one kind, with a limit for each port that they are learned
//! from.
//!
//! Guests choose what is learned by choosing what they send. Three rules keep one port from filling
//! the table:
//!
//! - Each port has a limit of its own.
//! - A port may hold at most as many entries as are still free: dynamic thresholds (Choudhury and
//!   Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). However
//!   many ports flood at once, room is left for the others.
//! - A known entry stays. New entries do not evict it, and a port that has reached its limit cannot
//!   move it.
//!
//! # Refused moves
//!
//! When a MAC address really moves to a port that has reached its limit, packets keep going to its
//! old port for a while. There are three ways to handle such a move:
//!
//! - Accept it, because the table does not grow. A port above its limit could then attract the
//!   traffic of any other guest.
//! - Forget the old entry. The traffic would be flooded and would reach the moved station. But a
//!   port at its limit could make the switch forget every entry and so see all unicast traffic.
//! - Refuse it. Only the guest at that port suffers, and only for a time. Refused packets do not
//!   refresh the old entry, so it ages out. The switch retries the event once there is capacity
//!   ([`LearnedTable::capacity_for`]).
//!
//! The table refuses the move. A MAC binding (a router's neighbour entry) would then never age out,
//! because each use of it by a router refreshes it. A refused event therefore marks the binding as
//! *contested*. The caller must not refresh a contested binding, so it ages out and is resolved
//! again.

use super::Map;
use crate::state::IngressPort;
use std::hash::Hash;
use std::time::Instant;

/// How many entries of one kind may be learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableLimit {
    /// The limit of all ports together.
    pub total: usize,
    /// The limit of one port.
    pub per_port: usize,
}

/// The entries that were learned from one port, and the refused events.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PortUsage {
    /// Entries in the table.
    pub known: usize,
    /// Events refused for lack of capacity since the port's first entry in the table.
    pub refused: u64,
}

/// The reason why an event is not learned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LearnRefusal {
    /// A configured entry has the same key.
    Configured,
    /// The port has reached its limit.
    PortFull,
    /// The table is full, or its free entries are reserved for ports that have fewer.
    TableFull,
}

/// A value in the table.
#[derive(Clone, Copy, Debug)]
pub struct LearnedEntry<V> {
    pub value: V,
    /// The port that it was learned from, and when it was last learned or used. `None` for a
    /// configured entry, which never ages out.
    learned_from: Option<(IngressPort, Instant)>,
    /// An event of another port about this key was refused.
    pub is_contested: bool,
}

impl<V> LearnedEntry<V> {
    /// When it was last learned or used; `None` for a configured entry.
    pub fn last_used(&self) -> Option<Instant> {
        Some(self.learned_from?.1)
    }

    fn ingress(&self) -> Option<IngressPort> {
        Some(self.learned_from?.0)
    }
}

/// Learned and configured entries of one kind.
#[derive(Debug)]
pub struct LearnedTable<K, V> {
    limit: TableLimit,
    entries: Map<K, LearnedEntry<V>>,
    /// Ports that at least one entry was learned from.
    ports: Map<IngressPort, PortUsage>,
}

impl<K: Copy + Eq + Hash, V: Copy + PartialEq> LearnedTable<K, V> {
    /// An empty table.
    pub fn new(limit: TableLimit) -> Self {
        Self { limit, entries: Map::default(), ports: Map::default() }
    }

    pub fn get(&self, key: &K) -> Option<&LearnedEntry<V>> {
        self.entries.get(key)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, V)> {
        self.entries.iter().map(|(key, entry)| (key, entry.value))
    }

    /// The ports that entries were learned from, with their counts.
    pub fn usage_by_port(&self) -> impl Iterator<Item = (IngressPort, PortUsage)> {
        self.ports.iter().map(|(port, usage)| (*port, *usage))
    }

    /// Learns an entry from a port if the limits allow it. True when the value is new.
    pub fn learn(
        &mut self,
        key: K,
        value: V,
        ingress: IngressPort,
        now: Instant,
    ) -> Result<bool, LearnRefusal> {
        match self.capacity_for(&key, ingress) {
            Ok(_) => Ok(self.insert(key, value, Some((ingress, now)))),
            Err(refusal) => {
                if refusal != LearnRefusal::Configured
                    && let Some(port) = self.ports.get_mut(&ingress)
                {
                    port.refused += 1;
                }
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.is_contested = true;
                }
                Err(refusal)
            }
        }
    }

    /// How many entries the port may add now if it starts with this key; at least 1. It is 1 for a
    /// key that was already learned from the port.
    pub fn capacity_for(&self, key: &K, ingress: IngressPort) -> Result<usize, LearnRefusal> {
        let old = self.entries.get(key).map(LearnedEntry::ingress);
        match old {
            Some(None) => return Err(LearnRefusal::Configured),
            Some(Some(before)) if before == ingress => return Ok(1),
            _ => {}
        }
        let port_entries = self.ports.get(&ingress).map_or(0, |port| port.known);
        let port_capacity = self.limit.per_port.saturating_sub(port_entries);
        if port_capacity == 0 {
            return Err(LearnRefusal::PortFull);
        }
        if old.is_some() {
            // The table does not grow when an entry moves to another port.
            return Ok(port_capacity);
        }
        // Each added entry raises the port's count by one and lowers the free count by one. So the
        // port may add half of the difference of the two.
        let free = self.limit.total.saturating_sub(self.entries.len());
        match free.saturating_sub(port_entries).div_ceil(2) {
            0 => Err(LearnRefusal::TableFull),
            capacity => Ok(capacity.min(port_capacity)),
        }
    }

    /// Stores a configured entry. True when the value is new.
    pub fn configure(&mut self, key: K, value: V) -> bool {
        self.insert(key, value, None)
    }

    fn insert(&mut self, key: K, value: V, learned_from: Option<(IngressPort, Instant)>) -> bool {
        if let Some((ingress, _)) = learned_from {
            self.ports.entry(ingress).or_default().known += 1;
        }
        let old =
            self.entries.insert(key, LearnedEntry { value, learned_from, is_contested: false });
        if let Some(old) = &old {
            self.uncount(old);
        }
        old.is_none_or(|old| old.value != value)
    }

    /// Removes one entry. False when there is none.
    pub fn forget(&mut self, key: &K) -> bool {
        let old = self.entries.remove(key);
        if let Some(old) = &old {
            self.uncount(old);
        }
        old.is_some()
    }

    /// Subtracts a removed entry from the usage of the port that it was learned from.
    fn uncount(&mut self, removed: &LearnedEntry<V>) {
        if let Some(ingress) = removed.ingress()
            && let Some(usage) = self.ports.get_mut(&ingress)
        {
            usage.known -= 1;
            if usage.known == 0 {
                self.ports.remove(&ingress);
            }
        }
    }

    /// Notes that an entry is in use, which restarts its ageing. The caller decides whether a
    /// contested entry may be refreshed.
    pub fn refresh(&mut self, key: &K, now: Instant) {
        if let Some(LearnedEntry { learned_from: Some((_, last_used)), .. }) =
            self.entries.get_mut(key)
        {
            *last_used = now.max(*last_used);
        }
    }

    /// The keys of learned entries for whose value and last use `is_old` is true.
    pub fn aged_out(&self, is_old: impl Fn(&V, Instant) -> bool) -> impl Iterator<Item = &K> {
        let entries = self.entries.iter();
        let old = entries.filter(move |(_, entry)| {
            entry.last_used().is_some_and(|last_used| is_old(&entry.value, last_used))
        });
        old.map(|(key, _)| key)
    }
}
