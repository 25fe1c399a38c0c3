//! A hash table of slots.

use super::store::Slot;
use hashbrown::HashTable;

/// A slot and half of its hash. Because of the hash, growing does not read the megaflows, and a
/// lookup seldom reads one that does not match.
#[derive(Clone, Copy)]
struct IndexEntry {
    tag: u32,
    slot: Slot,
}

const fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// `hashbrown` uses the uppermost bits of a hash as well as the lowest, so the kept half serves as
/// both.
const fn spread(tag: u32) -> u64 {
    (tag as u64) << 32 | tag as u64
}

/// A hash table of slots. It does not know the megaflows in them; the caller compares them.
#[derive(Default)]
pub(super) struct Index(HashTable<IndexEntry>);

impl Index {
    /// The slot with that hash for which `is` returns true.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl Fn(Slot) -> bool) -> Option<Slot> {
        let tag = tag(hash);
        let found = self.0.find(spread(tag), |entry| entry.tag == tag && is(entry.slot));
        found.map(|entry| entry.slot)
    }

    /// Adds a slot.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot) {
        let tag = tag(hash);
        self.0.insert_unique(spread(tag), IndexEntry { tag, slot }, |entry| spread(entry.tag));
    }

    /// Removes a slot. A table that has become far too large shrinks, because there is one table
    /// for each mask.
    pub(super) fn remove(&mut self, hash: u64, slot: Slot) {
        if let Ok(found) = self.0.find_entry(spread(tag(hash)), |entry| entry.slot == slot) {
            found.remove();
        }
        let len = self.0.len();
        if len < self.0.capacity() / 8 {
            self.0.shrink_to(2 * len, |entry| spread(entry.tag));
        }
    }

    /// Size of the table in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.0.allocation_size()
    }
}
