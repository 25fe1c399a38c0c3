//! The oracle, a linear list that is slow and obviously right, and small helpers for rules.
#![allow(dead_code, reason = "each test and the benchmark use a part")]

use classifier::Rank;
use flow::{Field, FlowKey, FlowMask, Match, low_bits};

/// All rules in a list, best first.
#[derive(Clone, Debug)]
pub struct Oracle<T> {
    rules: Vec<(Match, Rank, T)>,
}

impl<T> Default for Oracle<T> {
    fn default() -> Self {
        Self { rules: Vec::new() }
    }
}

impl<T: Clone> Oracle<T> {
    pub fn insert(&mut self, condition: &Match, rank: Rank, value: T) -> Option<T> {
        let old = self.remove(condition, rank);
        let at = self.rules.partition_point(|rule| rule.1 >= rank);
        self.rules.insert(at, (condition.clone(), rank, value));
        old
    }

    pub fn remove(&mut self, condition: &Match, rank: Rank) -> Option<T> {
        let at = self.rules.iter().position(|rule| rule.0 == *condition && rule.1 == rank)?;
        Some(self.rules.remove(at).2)
    }

    pub fn rules(&self) -> &[(Match, Rank, T)] {
        &self.rules
    }

    /// The result, and the bits of all rules that were compared to find it.
    pub fn lookup(
        &self,
        key: &FlowKey,
        better_than: Option<Rank>,
        read: &mut FlowMask,
        mut accept: impl FnMut(&T, &mut FlowMask) -> bool,
    ) -> Option<(Rank, &T)> {
        for (condition, rank, value) in &self.rules {
            if better_than.is_some_and(|limit| *rank <= limit) {
                return None;
            }
            read.union(condition.mask());
            if condition.matches(key) && accept(value, read) {
                return Some((*rank, value));
            }
        }
        None
    }
}

/// The condition that each field has a value under a mask.
pub fn condition(parts: &[(Field, u128, u128)]) -> Match {
    let mut condition = Match::any();
    for &(field, value, mask) in parts {
        assert!(condition.require(field, value, mask));
    }
    condition
}

/// A key with some fields set.
pub fn key(parts: &[(Field, u128)]) -> FlowKey {
    let mut key = FlowKey::default();
    parts.iter().for_each(|&(field, value)| key.set(field, value));
    key
}

/// The mask of the first `len` bits of a field.
pub fn prefix(field: Field, len: u8) -> u128 {
    field.all_ones() & !low_bits(field.width() - len)
}

/// How many bits there are in a mask.
pub fn bits(mask: &FlowMask) -> u32 {
    mask.words().iter().map(|word| word.count_ones()).sum()
}

/// A small generator of numbers, for rule sets too large for a property test's input.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
