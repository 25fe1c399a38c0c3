//! The exact-match cache: which megaflow served a packet with that hash.

use super::store::Slot;

/// Sets of two entries: 1 MiB, of which only what is used is touched. More microflows than that at a time are rare.
const SETS_LOG2: u32 = 16;

/// A guess: a tag in the upper half, the number of a slot in the lower. No key is kept: whether the megaflow in the slot serves a
/// packet, its own mask and values say. That is why 0 will do for an entry that nothing was noted in.
type Entry = u64;

#[inline]
const fn entry(hash: u64, slot: Slot) -> Entry {
    hash << 32 | slot.0 as Entry
}

/// The first entry of a set is one that was hit again, the second is new. So packets that come only once, such as those of a port
/// scan, throw each other out, and not what is in use.
pub(super) struct ExactCache {
    sets: Vec<[Entry; 2]>,
}

impl ExactCache {
    /// An empty one.
    pub(super) fn new() -> Self {
        Self { sets: vec![[0; 2]; 1 << SETS_LOG2] }
    }

    /// The upper bits choose the set, the lower ones are the tag.
    #[inline]
    fn set(&mut self, hash: u64) -> Option<&mut [Entry; 2]> {
        self.sets.get_mut((hash >> (u64::BITS - SETS_LOG2)) as usize)
    }

    /// The slot with that hash for which `is` holds.
    #[inline]
    pub(super) fn find(&mut self, hash: u64, is: impl Fn(Slot) -> bool) -> Option<Slot> {
        let set = self.set(hash)?;
        let hit = |kept: Entry| {
            let slot = Slot(kept as u32);
            (kept == entry(hash, slot) && is(slot)).then_some(slot)
        };
        if let Some(slot) = hit(set[0]) {
            return Some(slot);
        }
        let slot = hit(set[1])?;
        set.swap(0, 1);
        Some(slot)
    }

    /// Notes what a search has found.
    #[inline]
    pub(super) fn note(&mut self, hash: u64, slot: Slot) {
        if let Some(set) = self.set(hash) {
            set[1] = entry(hash, slot);
        }
    }

    /// Bytes of the array.
    pub(super) fn memory_bytes(&self) -> usize {
        self.sets.capacity() * size_of::<[Entry; 2]>()
    }
}
