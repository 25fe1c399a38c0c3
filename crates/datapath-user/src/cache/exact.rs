//! The exact-match cache: maps the hash of a flow key to the megaflow that served it last.

use super::store::Slot;

/// The number of sets of four entries. The array takes 1 MiB; more concurrent microflows are rare.
const SETS_LOG2: u32 = 15;

/// An entry: the tag in the upper half, the slot number in the lower. It stores no key, so it is
/// only a hint: the caller compares the mask and values of the megaflow in the slot with the
/// packet's key.
type TaggedSlot = u64;

/// An empty entry. Used as a hint it is harmless, because hints are verified.
const EMPTY: TaggedSlot = 0;

/// The bits of the hash that form the tag.
const TAG: u64 = 0xffff_ffff;

/// A set is within one cache line.
#[derive(Clone)]
#[repr(align(32))]
struct CacheSet([TaggedSlot; 4]);

/// A set-associative cache. A new entry replaces the last of its set, and each hit moves an entry
/// up by one. So the packets of a port scan evict one another and not the entries in use.
pub(super) struct ExactCache {
    sets: Vec<CacheSet>,
}

impl ExactCache {
    /// Makes an empty cache.
    pub(super) fn new() -> Self {
        Self { sets: vec![CacheSet([EMPTY; 4]); 1 << SETS_LOG2] }
    }

    /// The upper bits of the hash select the set, the lower bits are the tag.
    #[inline]
    fn set(&mut self, hash: u64) -> Option<&mut [TaggedSlot; 4]> {
        self.sets.get_mut((hash >> (u64::BITS - SETS_LOG2)) as usize).map(|set| &mut set.0)
    }

    /// The slot with that hash for which `is` returns true.
    #[inline]
    pub(super) fn find(&mut self, hash: u64, is: impl Fn(Slot) -> bool) -> Option<Slot> {
        let set = self.set(hash)?;
        let at = set.iter().position(|&kept| kept >> 32 == hash & TAG && is(Slot(kept as u32)))?;
        let slot = Slot(set[at] as u32);
        if at > 0 {
            set.swap(at - 1, at);
        }
        Some(slot)
    }

    /// Enters the result of a search.
    #[inline]
    pub(super) fn note(&mut self, hash: u64, slot: Slot) {
        if let Some(set) = self.set(hash) {
            let at = set.iter().position(|&kept| kept == EMPTY).unwrap_or(set.len() - 1);
            set[at] = (hash & TAG) << 32 | u64::from(slot.0);
        }
    }

    /// Size of the array in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.sets.capacity() * size_of::<CacheSet>()
    }
}
