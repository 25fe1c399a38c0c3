//! Random orders, and numbers that only look random.

use std::hash::{BuildHasher, RandomState};

/// Fisher and Yates' shuffle. The standard library's hash keys are all the randomness that an order needs.
pub(crate) fn shuffle<T>(items: &mut [T]) {
    for last in (1..items.len()).rev() {
        let random = RandomState::new().hash_one(last) % (last as u64 + 1);
        items.swap(last, random as usize);
    }
}

/// A number that looks random, another for every `number` (the finaliser of SplitMix64): the same frames in every run, and
/// neither a cache nor a hash has it easier than with random ones.
pub fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffle_reaches_every_order() {
        // Six orders: that one of them is missing after 600 shuffles has a chance of 6 * (5/6)^600.
        let orders: std::collections::HashSet<_> = (0..600)
            .map(|_| {
                let mut items = [1, 2, 3];
                shuffle(&mut items);
                items
            })
            .collect();
        assert_eq!(orders.len(), 6);
    }
}
