//! Seeded hashes of the words of a flow key.

use super::subtable::MaskWord;
use flow::{FlowKey, PACKET_WORDS, TRACKED_WORDS, WORDS};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

/// The secret of a cache's hashes. A sender who does not know it cannot choose packets that
/// collide.
///
/// Words are taken in pairs, a random number is added to each word, and the products of the pairs
/// are summed: the NH hash, almost universal with 2^-64 (Black et al., "UMAC: Fast and Secure
/// Message Authentication", 1999, section 4). The two halves of the sum are then multiplied.
/// Otherwise consecutive addresses would hash to an arithmetic progression, which spreads badly
/// over a hash table under some secrets.
pub(super) struct HashSecret {
    pairs: [[u64; 2]; WORDS.div_ceil(2)],
    /// The secret for the last word, if the number of words is odd: (number added, factor).
    single: (u64, u64),
    fold: [u64; 2],
}

impl HashSecret {
    /// Makes a random secret.
    pub(super) fn new() -> Self {
        let (one, other) = (RandomState::new(), RandomState::new());
        Self {
            pairs: std::array::from_fn(|at| [one.hash_one(at), other.hash_one(at)]),
            single: (one.hash_one(WORDS), other.hash_one(WORDS)),
            fold: [one.hash_one(WORDS + 1), other.hash_one(WORDS + 1)],
        }
    }

    /// The hash of a packet's whole key in its first pass: without the registers and the fields of
    /// connection tracking, which are 0.
    #[inline]
    pub(super) fn of_packet(&self, key: &FlowKey) -> u64 {
        self.of_words(key, PACKET_WORDS)
    }

    /// The hash of a packet's whole key in a later pass: without the registers.
    pub(super) fn of_recirculated(&self, key: &FlowKey) -> u64 {
        let [before, after] = PACKET_WORDS;
        self.of_words(key, [before, TRACKED_WORDS, after])
    }

    #[inline]
    fn of_words<const N: usize>(&self, key: &FlowKey, ranges: [Range<usize>; N]) -> u64 {
        let mut sum = 0;
        for range in ranges {
            // No two ranges share a pair of secrets.
            let secrets = &self.pairs[range.start / 2..];
            let (pairs, rest) = key.words()[range].as_chunks();
            for (&pair, secret) in pairs.iter().zip(secrets) {
                sum = add(sum, pair, secret);
            }
            if let &[last] = rest {
                sum = self.add_single(sum, last);
            }
        }
        self.fold(sum)
    }

    /// The hash of those bits of a key that a mask, given as its words, selects.
    #[inline]
    pub(super) fn of_mask_words(&self, mask_words: &[MaskWord], key: &FlowKey) -> u64 {
        let mut sum = 0;
        let (pairs, rest) = mask_words.as_chunks();
        for ([a, b], secret) in pairs.iter().zip(&self.pairs) {
            sum = add(sum, [a.of(key), b.of(key)], secret);
        }
        if let [last] = rest {
            sum = self.add_single(sum, last.of(key));
        }
        self.fold(sum)
    }

    #[inline]
    const fn add_single(&self, sum: u128, word: u64) -> u128 {
        let product = word.wrapping_add(self.single.0) as u128 * self.single.1 as u128;
        sum.wrapping_add(product)
    }

    #[inline]
    const fn fold(&self, sum: u128) -> u64 {
        let [high, low] = [(sum >> 64) as u64 ^ self.fold[0], sum as u64 ^ self.fold[1]];
        let product = high as u128 * low as u128;
        (product >> 64) as u64 ^ product as u64
    }
}

/// Adds the product of a pair of words to a sum.
#[inline]
const fn add(sum: u128, [a, b]: [u64; 2], [c, d]: &[u64; 2]) -> u128 {
    sum.wrapping_add(a.wrapping_add(*c) as u128 * b.wrapping_add(*d) as u128)
}

#[cfg(test)]
mod tests {
    use super::super::index::Index;
    use super::super::store::Slot;
    use super::*;
    use flow::{Field, FlowMask};
    use std::cell::Cell;
    use std::collections::HashSet;

    #[test]
    fn every_bit_of_a_packet_changes_the_hash_when_it_is_flipped() {
        let secret = HashSecret::new();
        let key = FlowKey::default();
        let hash = secret.of_packet(&key);
        for &field in Field::ALL.iter().filter(|field| !field.is_register()) {
            for bit in 0..field.width() {
                let mut other = key.clone();
                other.set(field, 1 << bit);
                assert_ne!(secret.of_packet(&other), hash, "{field} {bit}");
            }
        }
    }

    #[test]
    fn tracked_bits_change_the_hash_of_a_later_pass() {
        let secret = HashSecret::new();
        let key = FlowKey::default();
        let hash = secret.of_recirculated(&key);
        let tracked =
            [Field::CtState, Field::CtMark, Field::CtLabel, Field::CtZone, Field::RecircId];
        for field in tracked.into_iter().chain([Field::TpDst, Field::InPort]) {
            for bit in 0..field.width() {
                let mut other = key.clone();
                other.set(field, 1 << bit);
                assert_ne!(secret.of_recirculated(&other), hash, "{field} {bit}");
            }
        }
    }

    #[test]
    fn bits_outside_a_mask_are_not_hashed() {
        let secret = HashSecret::new();
        let mut mask = FlowMask::default();
        mask.add_bits(Field::Ip4Dst, 0xffff_ff00);
        mask.add(Field::TpDst);
        mask.add(Field::InPort);
        let mask_words = MaskWord::all(&mask);
        let mut key = FlowKey::default();
        let hash = secret.of_mask_words(&mask_words, &key);
        key.set(Field::Ip4Dst, 0xff);
        key.set(Field::EthDst, 1);
        assert_eq!(secret.of_mask_words(&mask_words, &key), hash);
        for field in [Field::InPort, Field::Ip4Dst, Field::TpDst] {
            let mut other = key.clone();
            other.set(field, 0x1234);
            assert_ne!(secret.of_mask_words(&mask_words, &other), hash, "{field}");
        }
    }

    #[test]
    fn hashes_are_spread_when_addresses_follow_each_other() {
        for _ in 0..100 {
            let (secret, mut key) = (HashSecret::new(), FlowKey::default());
            let mut counts = [0_u8; 4_096];
            for address in 0..1_000_u128 {
                key.set(Field::Ip4Dst, address);
                key.set(Field::EthDst, address);
                counts[(secret.of_packet(&key) >> 52) as usize] += 1;
            }
            // About eight buckets with three or more hashes are expected.
            assert!(counts.iter().filter(|&&count| count > 2).count() < 40);
        }
    }

    #[test]
    fn hash_differs_when_another_cache_computes_it() {
        let key = FlowKey::default();
        assert_ne!(HashSecret::new().of_packet(&key), HashSecret::new().of_packet(&key));
    }

    /// Keys that all have the same hash under a known secret: the first word of a pair cancels the
    /// number that is added to it, so the product is 0 whatever the second word is.
    fn colliding(secret: &HashSecret, mask_words: &[MaskWord], count: u64) -> Vec<FlowKey> {
        let [first, second] = mask_words else { panic!("{mask_words:?}") };
        let key = |number| {
            let mut key = FlowKey::default();
            key.words_mut()[first.word] = secret.pairs[0][0].wrapping_neg();
            key.words_mut()[second.word] = number;
            key
        };
        (0..count).map(key).collect()
    }

    #[test]
    fn keys_that_collide_under_one_secret_are_spread_when_the_cache_has_another() {
        const COUNT: u64 = 1_000;
        let mut mask = FlowMask::default();
        mask.add(Field::Ip6Src);
        let (mask_words, known) = (MaskWord::all(&mask), HashSecret::new());
        let keys = colliding(&known, &mask_words, COUNT);
        // Comparisons for looking up all keys, and how many different hashes they have.
        let cost = |secret: &HashSecret| {
            let mut index = Index::default();
            let hashes = keys.iter().map(|key| secret.of_mask_words(&mask_words, key));
            let hashes: Vec<u64> = hashes.collect();
            for (number, &hash) in hashes.iter().enumerate() {
                index.insert(hash, Slot(number as u32));
            }
            let compared = Cell::new(0_u64);
            for &hash in &hashes {
                let differs = |_| {
                    compared.set(compared.get() + 1);
                    false
                };
                assert_eq!(index.find(hash, differs), None);
            }
            let places: HashSet<u64> = hashes.iter().map(|hash| hash >> 32 & 1023).collect();
            (compared.get(), places.len())
        };
        assert_eq!(cost(&known), (COUNT * COUNT, 1), "the attack works with the secret");
        for _ in 0..100 {
            let (compared, places) = cost(&HashSecret::new());
            // Each key is compared with itself; about 640 of 1024 places are used.
            assert!(compared <= COUNT + 10 && places > 550, "{compared} in {places} places");
        }
    }
}
