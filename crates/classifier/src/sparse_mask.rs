//! [`SparseMask`]: a mask that stores only its words that are not 0, and the values of a condition
//! under it.

use flow::{FlowKey, FlowMask, Match, WORDS};

// `present` has one bit for each word of a mask.
const _: () = assert!(WORDS <= 64);

/// The indices of the bits that are one in `present`, ascending.
#[inline]
pub(crate) fn ones(mut present: u64) -> impl Iterator<Item = usize> + Clone {
    std::iter::from_fn(move || {
        let at = present.trailing_zeros() as usize;
        present &= present.wrapping_sub(1);
        (at < WORDS).then_some(at)
    })
}

pub(crate) fn present(mask: &FlowMask) -> u64 {
    mask.words().iter().rev().fold(0, |present, &word| present << 1 | u64::from(word != 0))
}

/// A mask. The order is arbitrary but fixed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SparseMask {
    present: u64,
    masks: Box<[u64]>,
}

impl SparseMask {
    pub(crate) fn of(mask: &FlowMask) -> Self {
        let present = present(mask);
        Self { present, masks: ones(present).map(|at| mask.words()[at]).collect() }
    }

    /// The words that are not 0: index and mask.
    pub(crate) fn words(&self) -> impl Iterator<Item = (usize, u64)> {
        ones(self.present).zip(self.masks.iter().copied())
    }

    pub(crate) fn mask(&self) -> FlowMask {
        let mut mask = FlowMask::default();
        self.words().for_each(|(at, word)| mask.words_mut()[at] = word);
        mask
    }

    /// The bits of `key` under the mask, one value for each word.
    pub(crate) fn values(&self, key: &FlowKey) -> Box<[u64]> {
        self.words().map(|(at, mask)| key.words()[at] & mask).collect()
    }

    /// The value of word `at` among `values`.
    #[inline]
    pub(crate) fn word(&self, values: &[u64], at: usize) -> u64 {
        let before = (self.present & ((1 << at) - 1)).count_ones() as usize;
        values.get(before).copied().unwrap_or(0)
    }

    /// The condition that a key has `values` under this mask.
    pub(crate) fn condition(&self, values: &[u64]) -> Match {
        let mut key = FlowKey::default();
        self.words().zip(values).for_each(|((at, _), &value)| key.words_mut()[at] = value);
        Match::new(&key, self.mask())
    }
}
