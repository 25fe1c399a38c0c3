//! The exact-match cache: which megaflow served a packet with that hash.

use super::store::Slot;

/// Sets of four entries: 1 MiB. More microflows than that at a time are rare.
const SETS_LOG2: u32 = 15;

/// A guess: a tag in the upper half, the number of a slot in the lower. No key is kept: whether the megaflow in the slot serves a
/// packet, its own mask and values say.
type Entry = u64;

/// Nothing was noted yet. As a guess it does no harm, either.
const EMPTY: Entry = 0;

/// The bits of a hash that are the tag.
const TAG: u64 = 0xffff_ffff;

/// Within one cache line.
#[derive(Clone)]
#[repr(align(32))]
struct Set([Entry; 4]);

/// What is found is put in the last place of a full set, and moves up by one each time that it is hit. So packets that come only
/// once, such as those of a port scan, throw each other out, and not what is in use.
pub(super) struct ExactCache {
    sets: Vec<Set>,
}

impl ExactCache {
    /// An empty one.
    pub(super) fn new() -> Self {
        Self { sets: vec![Set([EMPTY; 4]); 1 << SETS_LOG2] }
    }

    /// The upper bits choose the set, the lower ones are the tag.
    #[inline]
    fn set(&mut self, hash: u64) -> Option<&mut [Entry; 4]> {
        self.sets.get_mut((hash >> (u64::BITS - SETS_LOG2)) as usize).map(|set| &mut set.0)
    }

    /// The slot with that hash for which `is` holds.
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

    /// Notes what a search has found.
    #[inline]
    pub(super) fn note(&mut self, hash: u64, slot: Slot) {
        if let Some(set) = self.set(hash) {
            let at = set.iter().position(|&kept| kept == EMPTY).unwrap_or(set.len() - 1);
            set[at] = (hash & TAG) << 32 | u64::from(slot.0);
        }
    }

    /// Bytes of the array.
    pub(super) fn memory_bytes(&self) -> usize {
        self.sets.capacity() * size_of::<Set>()
    }
}
