//! A keyed hash of words of a key. The process chooses the secret when it starts.

use flow::{FlowKey, FlowMask, WORDS};
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// A random factor for every word of a key.
///
/// The hash of a set of words is the upper half of the sum of each word times its factor:
/// multilinear hashing, strongly universal (Lemire and Kaser, "Strongly universal string hashing is
/// fast", 2014). A sender who does not know the factors cannot craft keys that collide. Because the
/// hash is a sum, the hash of the first stages is an intermediate result of the hash of all.
static FACTORS: LazyLock<[u128; WORDS]> = LazyLock::new(|| {
    let (high, low) = (RandomState::new(), RandomState::new());
    std::array::from_fn(|at| u128::from(high.hash_one(at)) << 64 | u128::from(low.hash_one(at)))
});

/// The factor of word `at` of a key.
pub(crate) fn factor(at: usize) -> u128 {
    FACTORS[at]
}

/// The hash of the words added so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum(u128);

impl Sum {
    #[inline]
    pub(crate) fn add(&mut self, factor: u128, word: u64) {
        self.0 = self.0.wrapping_add(factor.wrapping_mul(u128::from(word)));
    }

    #[inline]
    pub(crate) const fn hash(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

/// A word of a key under a mask, with the hash factor of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct MaskedWord {
    pub(crate) mask: u64,
    pub(crate) at: usize,
    pub(crate) factor: u128,
}

impl MaskedWord {
    pub(crate) fn new(at: usize, mask: u64) -> Self {
        Self { mask, at, factor: factor(at) }
    }

    /// The bits of `key` under the mask.
    #[inline]
    pub(crate) const fn of(&self, key: &FlowKey) -> u64 {
        key.words()[self.at] & self.mask
    }

    #[inline]
    pub(crate) const fn add_to(&self, read: &mut FlowMask) {
        read.words_mut()[self.at] |= self.mask;
    }
}
