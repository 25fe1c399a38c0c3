//! Random orders, and pseudo-random numbers that are the same in every run.

use std::hash::{BuildHasher, RandomState};

/// The Fisher-Yates shuffle. The standard library's hash keys are random enough for an order.
pub(crate) fn shuffle<T>(items: &mut [T]) {
    for last in (1..items.len()).rev() {
        let random = RandomState::new().hash_one(last) % (last as u64 + 1);
        items.swap(last, random as usize);
    }
}

/// A pseudo-random function of `number` (the finalizer of SplitMix64). Every run sends the same
/// frames, and their order favours no cache or hash function.
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
        // Six orders: the chance that one is missing after 600 shuffles is 6 * (5/6)^600.
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
