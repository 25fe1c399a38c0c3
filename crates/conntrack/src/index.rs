//! [`Index`]: finds connections by tuple.
//!
//! It is a hash table with chains through the entries. Its size never changes: neither insertion
//! nor removal ever has to rehash, and there are no tombstones. The operating system provides the
//! memory of buckets when they are first used.

use ahash::RandomState;

use crate::entry::NONE;
use crate::slab::Slab;
use crate::{Direction, Tuple};

/// Buckets per tuple of a full table. More buckets would hardly shorten the chains.
const BUCKETS_PER_TUPLE: usize = 2;

/// A slot of the slab, and a direction of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub slot: u32,
    pub direction: Direction,
}

impl Found {
    #[inline]
    const fn from_link(link: u32) -> Self {
        Self { slot: link >> 1, direction: Direction::from_bit(link) }
    }

    #[inline]
    const fn link(self) -> u32 {
        self.slot << 1 | self.direction.index() as u32
    }
}

#[derive(Debug)]
pub(crate) struct Index {
    /// The first link of each chain plus 1; 0 for an empty chain.
    heads: Vec<u32>,
    hasher: RandomState,
}

impl Index {
    /// An index for `connections` connections, with keys hashed by `hasher`.
    pub fn new(connections: u32, hasher: RandomState) -> Self {
        let buckets = (connections as usize * 2 * BUCKETS_PER_TUPLE).next_power_of_two();
        Self { heads: vec![0; buckets.max(2)], hasher }
    }

    #[inline]
    fn bucket(&self, key: &Tuple) -> usize {
        // The number of buckets is a power of two.
        self.hasher.hash_one(key) as usize & (self.heads.len() - 1)
    }

    /// Hashes any value with the seed of the index.
    pub fn hash(&self, value: impl std::hash::Hash) -> u64 {
        self.hasher.hash_one(value)
    }

    #[inline]
    pub fn find(&self, slab: &Slab, key: &Tuple) -> Option<Found> {
        let mut link = self.heads[self.bucket(key)].wrapping_sub(1);
        while link != NONE {
            let found = Found::from_link(link);
            let entry = slab.get(found.slot)?;
            if entry.keys[found.direction.index()] == *key {
                return Some(found);
            }
            link = entry.chain[found.direction.index()];
        }
        None
    }

    /// Adds one direction of an entry.
    pub fn insert(&mut self, slab: &mut Slab, slot: u32, direction: Direction) {
        let Some(entry) = slab.get_mut(slot) else { return };
        let bucket = self.bucket(&entry.keys[direction.index()]);
        entry.chain[direction.index()] = self.heads[bucket].wrapping_sub(1);
        self.heads[bucket] = Found { slot, direction }.link() + 1;
    }

    /// Removes one direction of an entry.
    pub fn remove(&mut self, slab: &mut Slab, slot: u32, direction: Direction) {
        let Some(entry) = slab.get(slot) else { return };
        let bucket = self.bucket(&entry.keys[direction.index()]);
        let after = entry.chain[direction.index()];
        let own = Found { slot, direction }.link();
        let mut link = self.heads[bucket].wrapping_sub(1);
        if link == own {
            self.heads[bucket] = after.wrapping_add(1);
            return;
        }
        while link != NONE {
            let at = Found::from_link(link);
            let Some(entry) = slab.get_mut(at.slot) else { return };
            let next = &mut entry.chain[at.direction.index()];
            if *next == own {
                *next = after;
                return;
            }
            link = *next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Zone;
    use crate::entry::Entry;
    use wire::Protocol;

    /// The number of comparisons to find `key`.
    fn comparisons(index: &Index, slab: &Slab, key: &Tuple) -> u32 {
        let mut link = index.heads[index.bucket(key)].wrapping_sub(1);
        for count in 1.. {
            let found = Found::from_link(link);
            let entry = slab.get(found.slot).expect("the key is there");
            if entry.keys[found.direction.index()] == *key {
                return count;
            }
            link = entry.chain[found.direction.index()];
        }
        unreachable!("chains end")
    }

    #[test]
    fn chains_are_short_when_the_table_is_full() {
        const CONNECTIONS: u32 = 50_000;
        let mut index = Index::new(CONNECTIONS, RandomState::with_seeds(1, 2, 3, 4));
        let mut slab = Slab::default();
        let mut keys = Vec::new();
        for number in 0..CONNECTIONS {
            // Addresses that an attacker may choose: consecutive numbers.
            let client = std::net::Ipv4Addr::from_bits(number).into();
            let server = std::net::Ipv4Addr::new(10, 0, 0, 1).into();
            let tuple = Tuple::new(client, server, Protocol::TCP, 5000, 80).unwrap();
            let original = tuple.in_zone(Zone(1));
            let reply = original.reversed().unwrap();
            let slot = slab.insert(Entry { generation: 1, keys: [original, reply], ..Entry::FREE });
            index.insert(&mut slab, slot, Direction::Original);
            index.insert(&mut slab, slot, Direction::Reply);
            keys.extend([original, reply]);
        }
        let counts: Vec<_> = keys.iter().map(|key| comparisons(&index, &slab, key)).collect();
        let mean = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        // 100,000 tuples in 262,144 buckets: 1 + 0.38 / 2.
        assert!((1.15..1.25).contains(&mean), "{mean}");
        assert!(counts.iter().max() < Some(&12), "{:?}", counts.iter().max());
    }

    #[test]
    fn entry_takes_less_memory_than_promised() {
        // In addition, the index takes 16 bytes, and the slab allocates entries in advance.
        assert!(size_of::<Entry>() <= 216, "{}", size_of::<Entry>());
    }
}
