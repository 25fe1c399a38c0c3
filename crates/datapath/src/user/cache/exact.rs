//! The exact-match cache: which megaflow served a packet with that hash.

use super::store::Slot;

/// Sets of two entries.
const SETS_LOG2: u32 = 12;

/// A guess. No key is kept: whether the megaflow in the slot serves a packet, its own mask and values say.
#[derive(Clone, Copy)]
struct Entry {
    tag: u32,
    slot: Slot,
}

const EMPTY: Entry = Entry { tag: 0, slot: Slot::NONE };

/// The first entry of a set is one that was hit again, the second is new. So packets that come only once, such as those of a port
/// scan, throw each other out, and not what is in use.
pub(super) struct ExactCache {
    sets: Box<[[Entry; 2]]>,
}

impl ExactCache {
    /// An empty one.
    pub(super) fn new() -> Self {
        Self { sets: vec![[EMPTY; 2]; 1 << SETS_LOG2].into_boxed_slice() }
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
        let hits = |entry: Entry| entry.tag == hash as u32 && is(entry.slot);
        if hits(set[0]) {
            return Some(set[0].slot);
        }
        if hits(set[1]) {
            set.swap(0, 1);
            return Some(set[0].slot);
        }
        None
    }

    /// Notes what a search has found.
    #[inline]
    pub(super) fn note(&mut self, hash: u64, slot: Slot) {
        if let Some(set) = self.set(hash) {
            set[1] = Entry { tag: hash as u32, slot };
        }
    }

    /// Bytes of the array.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }
}
