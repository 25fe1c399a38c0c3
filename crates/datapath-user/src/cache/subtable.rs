//! The megaflows with one mask.

use super::index::Index;
use flow::{FlowKey, FlowMask};

/// One word of a key, and the bits of it that a mask selects.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaskWord {
    pub(super) bits: u64,
    /// The number of the word, less than [`flow::WORDS`].
    pub(super) word: usize,
}

impl MaskWord {
    /// The words of a mask that are not 0.
    pub(super) fn all(mask: &FlowMask) -> Box<[Self]> {
        let words = mask.words().iter().enumerate().filter(|&(_, &bits)| bits != 0);
        words.map(|(word, &bits)| Self { bits, word }).collect()
    }

    /// The masked word of `key`.
    #[inline]
    pub(super) const fn of(&self, key: &FlowKey) -> u64 {
        key.words()[self.word] & self.bits
    }
}

/// The index of the megaflows with one mask. The megaflows themselves are in the chunks of the
/// store.
pub(super) struct Subtable {
    pub(super) mask_words: Box<[MaskWord]>,
    /// Slots by the hash of the masked words.
    pub(super) index: Index,
    /// Chunks with free positions.
    pub(super) open: Vec<u32>,
    /// The number of megaflows.
    pub(super) len: usize,
    /// The number of searches that found a megaflow here. [`maintain`](super::Cache::maintain)
    /// halves it, so that old hits count less.
    pub(super) hits: u64,
}

impl Subtable {
    pub(super) fn new(mask: &FlowMask) -> Self {
        Self {
            mask_words: MaskWord::all(mask),
            index: Index::default(),
            open: Vec::new(),
            len: 0,
            hits: 0,
        }
    }

    /// The mask.
    pub(super) fn mask(&self) -> FlowMask {
        let mut mask = FlowMask::default();
        for mask_word in &self.mask_words {
            mask.words_mut()[mask_word.word] = mask_word.bits;
        }
        mask
    }

    /// Bytes allocated by the subtable.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.mask_words)
            + self.index.memory_bytes()
            + self.open.capacity() * size_of::<u32>()
    }
}
