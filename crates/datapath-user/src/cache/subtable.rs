//! All megaflows with one mask.

use super::index::Index;
use flow::{FlowKey, FlowMask};

/// A word of a key of which a mask lets some bits through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) bits: u64,
    /// Less than [`flow::WORDS`].
    pub(super) word: usize,
}

impl Lane {
    /// Those of a mask.
    pub(super) fn all(mask: &FlowMask) -> Box<[Self]> {
        let words = mask.words().iter().enumerate().filter(|&(_, &bits)| bits != 0);
        words.map(|(word, &bits)| Self { bits, word }).collect()
    }

    /// What `key` has there.
    #[inline]
    pub(super) const fn of(&self, key: &FlowKey) -> u64 {
        key.words()[self.word] & self.bits
    }
}

/// See the module. The megaflows themselves are in the chunks of the store.
pub(super) struct Subtable {
    pub(super) lanes: Box<[Lane]>,
    /// By the hash of what the lanes let through.
    pub(super) index: Index,
    /// The chunks that are not full.
    pub(super) open: Vec<u32>,
    /// How many megaflows.
    pub(super) len: usize,
    /// How many searches found one here, the older ones halved with every [`maintain`](super::Cache::maintain).
    pub(super) hits: u64,
}

impl Subtable {
    pub(super) fn new(mask: &FlowMask) -> Self {
        Self { lanes: Lane::all(mask), index: Index::default(), open: Vec::new(), len: 0, hits: 0 }
    }

    /// The mask.
    pub(super) fn mask(&self) -> FlowMask {
        let mut mask = FlowMask::default();
        for lane in &self.lanes {
            mask.words_mut()[lane.word] = lane.bits;
        }
        mask
    }

    /// Bytes that the subtable has allocated.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.lanes)
            + self.index.memory_bytes()
            + self.open.capacity() * size_of::<u32>()
    }
}
