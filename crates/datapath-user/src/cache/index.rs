//! From hashes to slots.

use super::store::Slot;
use hashbrown::HashTable;

/// Half of the hash is kept with the slot: so growing touches nothing but the table, and what is in a slot is hardly ever looked
/// at in vain.
#[derive(Clone, Copy)]
struct Entry {
    tag: u32,
    slot: Slot,
}

const fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// The table uses the upper bits beside the lower ones.
const fn spread(tag: u32) -> u64 {
    (tag as u64) << 32 | tag as u64
}

/// A hash table of slots. What the slots hold, only the caller knows.
#[derive(Default)]
pub(super) struct Index(HashTable<Entry>);

impl Index {
    /// The slot with that hash for which `is` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl Fn(Slot) -> bool) -> Option<Slot> {
        let tag = tag(hash);
        let found = self.0.find(spread(tag), |entry| entry.tag == tag && is(entry.slot));
        found.map(|entry| entry.slot)
    }

    /// Adds a slot.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot) {
        let tag = tag(hash);
        self.0.insert_unique(spread(tag), Entry { tag, slot }, |entry| spread(entry.tag));
    }

    /// Takes a slot out. A table that has become far too large shrinks: there is one for every mask, and they need not all stay as
    /// large as they once were.
    pub(super) fn remove(&mut self, hash: u64, slot: Slot) {
        if let Ok(found) = self.0.find_entry(spread(tag(hash)), |entry| entry.slot == slot) {
            found.remove();
        }
        let len = self.0.len();
        if len < self.0.capacity() / 8 {
            self.0.shrink_to(2 * len, |entry| spread(entry.tag));
        }
    }

    /// Bytes of the table.
    pub(super) fn memory_bytes(&self) -> usize {
        self.0.allocation_size()
    }
}
