//! [`Table`]: what was learnt of one kind, and who has how much of it.
//!
//! Packets teach, so whoever sends packets chooses what is learnt. What keeps one port from taking it all:
//!
//! - A port has a limit of its own.
//! - It may have as many as are still free besides (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
//!   switches", 1998): however many ports flood together, there is room left for the others.
//! - What is known stays. It is neither pushed out by what is new, nor moved by a port that has its share already.
//!
//! # A move that is refused
//!
//! Who has really moved to a port that has its share is not found there. There were three ways:
//!
//! - To heed the move, as the table grows no larger by it. A port beyond its share could then draw what is meant for others without
//!   any limit.
//! - To forget the old place. What is meant for the station would be flooded, and reach it; but a port beyond its share could make
//!   the switch forget all that others have taught, as often as they teach it, and see what is meant for them.
//! - To refuse. Nobody suffers but who is at that port, and not for ever: packets that were refused do not confirm the old place, so
//!   that it is forgotten when it is old, and their lesson is tried again once there is room ([`Table::admit`]).
//!
//! The last is what happens. A binding could outlive that: it is confirmed by those who use it, who cannot know. So it counts no more
//! as in use once it has been *contested*, by a lesson that was refused; when it is old it is forgotten and asked for anew.

use super::Map;
use crate::state::LearntAt;
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

/// What is known of a key.
#[derive(Clone, Copy, Debug)]
pub struct Known<V> {
    pub value: V,
    /// Who has taught it, and when it was learnt last; `None`: configured, never forgotten.
    taught: Option<(LearntAt, Instant)>,
    /// Somebody says otherwise, and was refused.
    pub is_contested: bool,
}

impl<V> Known<V> {
    /// When it was learnt last; `None` when it is configured.
    pub fn last(&self) -> Option<Instant> {
        Some(self.taught?.1)
    }

    fn teacher(&self) -> Option<LearntAt> {
        Some(self.taught?.0)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Table<K, V> {
    share: Share,
    known: Map<K, Known<V>>,
    /// Those that have taught something.
    ports: Map<LearntAt, Taught>,
}

impl<K: Copy + Eq + Hash, V: Copy + PartialEq> Table<K, V> {
    /// An empty one.
    pub fn new(share: Share) -> Self {
        Self { share, known: Map::default(), ports: Map::default() }
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

    /// The ports that have taught something.
    pub fn ports(&self) -> impl Iterator<Item = (LearntAt, Taught)> {
        self.ports.iter().map(|(port, taught)| (*port, *taught))
    }

    /// Learns from a port, if the limits allow it; true when that is news.
    pub fn learn(
        &mut self,
        key: K,
        value: V,
        teacher: LearntAt,
        now: Instant,
    ) -> Result<bool, Refusal> {
        match self.admit(&key, teacher) {
            Ok(_) => Ok(self.store(key, value, Some((teacher, now)))),
            Err(refusal) => {
                if refusal != Refusal::Configured
                    && let Some(port) = self.ports.get_mut(&teacher)
                {
                    port.refused += 1;
                }
                if let Some(known) = self.known.get_mut(&key) {
                    known.is_contested = true;
                }
                Err(refusal)
            }
        }
    }

    /// How many things of that kind a port may teach now, at least one; of a key that it has taught, that one.
    pub fn admit(&self, key: &K, teacher: LearntAt) -> Result<usize, Refusal> {
        let old = self.known.get(key).map(Known::teacher);
        match old {
            Some(None) => return Err(Refusal::Configured),
            Some(Some(before)) if before == teacher => return Ok(1),
            _ => {}
        }
        let of_port = self.ports.get(&teacher).map_or(0, |port| port.known);
        let share = self.share.per_port.saturating_sub(of_port);
        if share == 0 {
            return Err(Refusal::PortFull);
        }
        if old.is_some() {
            // What moves takes no more room than before.
            return Ok(share);
        }
        // With each one more of the port there is one less free.
        let free = self.share.total.saturating_sub(self.known.len());
        match free.saturating_sub(of_port).div_ceil(2) {
            0 => Err(Refusal::TableFull),
            room => Ok(room.min(share)),
        }
    }

    /// Stores what is configured; true when that is news.
    pub fn configure(&mut self, key: K, value: V) -> bool {
        self.store(key, value, None)
    }

    fn store(&mut self, key: K, value: V, taught: Option<(LearntAt, Instant)>) -> bool {
        if let Some((teacher, _)) = taught {
            self.ports.entry(teacher).or_default().known += 1;
        }
        let old = self.known.insert(key, Known { value, taught, is_contested: false });
        if let Some(old) = &old {
            self.leave(old);
        }
        old.is_none_or(|old| old.value != value)
    }

    /// Forgets one entry; false when there is none.
    pub fn forget(&mut self, key: &K) -> bool {
        let old = self.known.remove(key);
        if let Some(old) = &old {
            self.leave(old);
        }
        old.is_some()
    }

    /// An entry is not there any more.
    fn leave(&mut self, old: &Known<V>) {
        if let Some(teacher) = old.teacher()
            && let Some(taught) = self.ports.get_mut(&teacher)
        {
            taught.known -= 1;
            if taught.known == 0 {
                self.ports.remove(&teacher);
            }
        }
    }

    /// Notes that an entry is in use.
    pub fn refresh(&mut self, key: &K, now: Instant) {
        if let Some(Known { taught: Some((_, last)), .. }) = self.known.get_mut(key) {
            *last = now.max(*last);
        }
    }

    /// The entries for whose last time `is_old` is true.
    pub fn old(&self, is_old: impl Fn(Instant) -> bool) -> impl Iterator<Item = &K> {
        let old = self.known.iter().filter(move |(_, known)| known.last().is_some_and(&is_old));
        old.map(|(key, _)| key)
    }
}
