//! [`Table`]: what was learnt of one kind, and who has how much of it.
//!
//! Packets teach, so whoever sends packets chooses what is learnt. What keeps one port from taking it all:
//!
//! - A port has a limit of its own.
//! - It may have as many as are still free besides (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
//!   switches", 1998): however many ports flood together, there is room left for the others.
//! - What is known stays. It is neither pushed out by what is new, nor moved to a port that has its share already.

use super::Map;
use crate::state::StationPlace;
use flow::DatapathKey;
use std::hash::Hash;
use std::time::Instant;

/// How much may be learnt of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Of all ports together.
    pub total: usize,
    /// Of one port.
    pub per_port: usize,
}

/// Where something was learnt: at a port of a datapath.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LearntAt {
    /// The logical datapath; 0 for a bridge programmed in the syntax of ovs-ofctl.
    pub datapath: DatapathKey,
    /// The port.
    pub port: StationPlace,
}

/// What a port has taught.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Taught {
    /// How much of it is known.
    pub known: usize,
    /// Lessons refused for want of room, as long as anything is known.
    pub refused: u64,
}

/// Why something is not learnt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// What is configured says otherwise.
    Configured,
    /// The port has as much as one port may have.
    PortFull,
    /// There is no room, or so little that it is left to ports that have less.
    TableFull,
}

/// A value, and when it was learnt last.
#[derive(Clone, Copy, Debug)]
pub struct Known<V> {
    pub value: V,
    /// `None`: configured, never forgotten.
    pub last: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub struct Table<K, V> {
    share: Share,
    known: Map<K, Known<V>>,
    /// Those of which something was learnt.
    ports: Map<LearntAt, Taught>,
    learnt_at: fn(&K, &V) -> LearntAt,
}

impl<K: Copy + Eq + Hash, V: Copy + PartialEq> Table<K, V> {
    /// An empty one; `learnt_at` says at which port an entry is.
    pub fn new(share: Share, learnt_at: fn(&K, &V) -> LearntAt) -> Self {
        Self { share, known: Map::default(), ports: Map::default(), learnt_at }
    }

    pub fn get(&self, key: &K) -> Option<&Known<V>> {
        self.known.get(key)
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, V)> {
        self.known.iter().map(|(key, known)| (key, known.value))
    }

    /// The ports at which something was learnt.
    pub fn ports(&self) -> impl Iterator<Item = (LearntAt, Taught)> {
        self.ports.iter().map(|(port, taught)| (*port, *taught))
    }

    /// Learns, if the limits allow it; true when that is news.
    pub fn learn(&mut self, key: K, value: V, now: Instant) -> Result<bool, Refusal> {
        match self.admit(&key, &value) {
            Ok(()) => Ok(self.store(key, Known { value, last: Some(now) })),
            Err(refusal) => {
                let port = self.ports.get_mut(&(self.learnt_at)(&key, &value));
                if let (Some(port), false) = (port, refusal == Refusal::Configured) {
                    port.refused += 1;
                }
                Err(refusal)
            }
        }
    }

    fn admit(&self, key: &K, value: &V) -> Result<(), Refusal> {
        let port = (self.learnt_at)(key, value);
        let old = self.known.get(key);
        match old {
            Some(Known { last: None, .. }) => return Err(Refusal::Configured),
            Some(old) if (self.learnt_at)(key, &old.value) == port => return Ok(()),
            _ => {}
        }
        let of_port = self.ports.get(&port).map_or(0, |port| port.known);
        if of_port >= self.share.per_port {
            return Err(Refusal::PortFull);
        }
        // What moves takes no more room than before.
        let free = self.share.total.saturating_sub(self.known.len());
        if old.is_none() && of_port >= free { Err(Refusal::TableFull) } else { Ok(()) }
    }

    /// Stores what is admitted, or configured; true when that is news.
    pub fn store(&mut self, key: K, known: Known<V>) -> bool {
        if known.last.is_some() {
            self.ports.entry((self.learnt_at)(&key, &known.value)).or_default().known += 1;
        }
        let old = self.known.insert(key, known);
        if let Some(old) = &old {
            self.leave(&key, old);
        }
        old.is_none_or(|old| old.value != known.value)
    }

    /// Forgets one entry; false when there is none.
    pub fn forget(&mut self, key: &K) -> bool {
        let old = self.known.remove(key);
        if let Some(old) = &old {
            self.leave(key, old);
        }
        old.is_some()
    }

    /// An entry is not there any more.
    fn leave(&mut self, key: &K, old: &Known<V>) {
        let port = (self.learnt_at)(key, &old.value);
        if let (Some(_), Some(taught)) = (old.last, self.ports.get_mut(&port)) {
            taught.known -= 1;
            if taught.known == 0 {
                self.ports.remove(&port);
            }
        }
    }

    /// Notes that an entry is in use.
    pub fn refresh(&mut self, key: &K, now: Instant) {
        if let Some(Known { last: Some(last), .. }) = self.known.get_mut(key) {
            *last = now.max(*last);
        }
    }

    /// The entries for whose last time `is_old` is true.
    pub fn old(&self, is_old: impl Fn(Instant) -> bool) -> impl Iterator<Item = &K> {
        let old = self.known.iter().filter(move |(_, known)| known.last.is_some_and(&is_old));
        old.map(|(key, _)| key)
    }
}
