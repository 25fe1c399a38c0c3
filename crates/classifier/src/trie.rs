//! A trie of the prefixes that rules have in one field. For a value it tells which of the value's
//! prefixes exist, and how many bits prove that no longer one does.
//!
//! A node covers six bits of the value. Prefixes that end within them are bits of a word, numbered
//! like a binary heap: 1 is the empty prefix, and `2 * n` and `2 * n + 1` are the prefixes one bit
//! longer than `n`. Longer prefixes are in one of 64 children; a child with a single prefix is that
//! prefix, whatever its length. Values are left-aligned. A clone shares its nodes with the
//! original. A change copies the nodes on the path to the prefix, at most 22.

use std::sync::Arc;

/// Bits that a node covers.
const STRIDE: u8 = 6;

/// For each value of six bits, the heap numbers of its prefixes of fewer bits.
const PREFIXES_OF: [u64; 64] = {
    let mut table = [0; 64];
    let mut bits = 0;
    while bits < 64 {
        let mut number = (64 | bits) >> 1;
        while number > 0 {
            table[bits] |= 1 << number;
            number >>= 1;
        }
        bits += 1;
    }
    table
};

/// For each heap number, the numbers of the prefixes that begin with it, itself included.
const BEGIN_WITH: [u64; 64] = {
    let mut table = [0; 64];
    let mut number = 63;
    while number > 0 {
        table[number] |= 1 << number;
        if number < 32 {
            table[number] |= table[2 * number] | table[2 * number + 1];
        }
        number -= 1;
    }
    table
};

/// The prefixes of a value that a trie has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct PrefixMatches {
    /// Bit `n - 1` is set when a rule has the first `n` bits of the value as a prefix.
    pub(crate) lengths: u128,
    /// The number of leading bits of the value that prove that no longer prefix of it exists.
    pub(crate) deciding: u8,
}

#[derive(Clone, Default)]
pub(crate) struct Trie {
    root: Node,
}

#[derive(Clone, Default)]
struct Node {
    /// The heap numbers of the prefixes that end in this node, a bit for each, and the number of
    /// occurrences of each.
    ending: u64,
    counts: Vec<u32>,
    /// The children that exist, of 64, a bit for each.
    present: u64,
    children: Vec<Child>,
}

#[derive(Clone)]
enum Child {
    One(Prefix),
    More(Arc<Node>),
}

#[derive(Clone, Copy)]
struct Prefix {
    /// The upper and the lower half of the value: `u64` words are aligned to 8 bytes, a `u128` to
    /// 16.
    value: [u64; 2],
    len: u8,
    count: u32,
}

impl Prefix {
    const fn new(value: u128, len: u8, count: u32) -> Self {
        Self { value: [(value >> 64) as u64, value as u64], len, count }
    }

    const fn value(&self) -> u128 {
        (self.value[0] as u128) << 64 | self.value[1] as u128
    }
}

/// The number of ones below bit `at`: the index of that bit's entry in a packed list.
#[inline]
const fn place(bits: u64, at: usize) -> usize {
    (bits & ((1 << at) - 1)).count_ones() as usize
}

/// The six bits of `value` from `depth` on.
#[inline]
const fn chunk(value: u128, depth: u8) -> usize {
    ((value << depth) >> (128 - STRIDE)) as usize
}

/// The heap number of the first `len` bits, fewer than six, of a chunk.
#[inline]
const fn heap_number(chunk: usize, len: u8) -> usize {
    (64 | chunk) >> (STRIDE - len)
}

impl Trie {
    /// Adds the first `len` bits of `value`, 1 to 128; the other bits are 0.
    pub(crate) fn insert(&mut self, value: u128, len: u8) {
        self.root.insert(0, Prefix::new(value, len, 1));
    }

    /// Removes one occurrence of a prefix that was added.
    pub(crate) fn remove(&mut self, value: u128, len: u8) {
        self.root.remove(0, value, len);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.root.ending == 0 && self.root.present == 0
    }

    /// The prefixes of `value`.
    #[inline]
    pub(crate) fn find(&self, value: u128) -> PrefixMatches {
        let (mut node, mut depth, mut lengths) = (&self.root, 0, 0);
        loop {
            let chunk = chunk(value, depth);
            let mut covering = node.ending & PREFIXES_OF[chunk];
            while covering != 0 {
                let len = covering.ilog2().ilog2() as u8;
                // `len` is 0 only below the root: the root has no empty prefix.
                lengths |= 1u128 << (depth + len - 1);
                covering ^= 1 << covering.ilog2();
            }
            let is_present = node.present >> chunk & 1 == 1;
            let child =
                if is_present { node.children.get(place(node.present, chunk)) } else { None };
            match child {
                Some(Child::More(next)) => {
                    node = next;
                    depth += STRIDE;
                }
                Some(Child::One(prefix)) => {
                    let common = (prefix.value() ^ value).leading_zeros() as u8;
                    return if common >= prefix.len {
                        lengths |= 1 << (prefix.len - 1);
                        PrefixMatches { lengths, deciding: prefix.len }
                    } else {
                        PrefixMatches { lengths, deciding: common + 1 }
                    };
                }
                None => return PrefixMatches { lengths, deciding: depth + node.deciding(chunk) },
            }
        }
    }
}

impl Node {
    /// If there is no child for `chunk`: the number of its leading bits that prove that the node
    /// contains no longer prefix.
    fn deciding(&self, chunk: usize) -> u8 {
        for len in (0..STRIDE).rev() {
            let number = heap_number(chunk, len);
            let width = 1 << (STRIDE - len);
            let children = (u64::MAX >> (64 - width)) << (chunk & !(width - 1));
            if self.ending & BEGIN_WITH[number] & !(1 << number) | self.present & children != 0 {
                return len + 1;
            }
            if self.ending >> number & 1 == 1 {
                return len;
            }
        }
        0
    }

    fn insert(&mut self, depth: u8, prefix: Prefix) {
        let (value, len) = (prefix.value(), prefix.len);
        let chunk = chunk(value, depth);
        if len - depth < STRIDE {
            let number = heap_number(chunk, len - depth);
            let at = place(self.ending, number);
            if self.ending >> number & 1 == 0 {
                self.ending |= 1 << number;
                self.counts.insert(at, 0);
            }
            self.counts[at] += prefix.count;
            return;
        }
        let at = place(self.present, chunk);
        if self.present >> chunk & 1 == 0 {
            self.present |= 1 << chunk;
            self.children.insert(at, Child::One(prefix));
            return;
        }
        match &mut self.children[at] {
            Child::One(old) if old.len == len && old.value() == value => old.count += prefix.count,
            Child::More(next) => Arc::make_mut(next).insert(depth + STRIDE, prefix),
            child @ &mut Child::One(old) => {
                let mut node = Self::default();
                node.insert(depth + STRIDE, old);
                node.insert(depth + STRIDE, prefix);
                *child = Child::More(Arc::new(node));
            }
        }
    }

    fn remove(&mut self, depth: u8, value: u128, len: u8) {
        let chunk = chunk(value, depth);
        if len - depth < STRIDE {
            let number = heap_number(chunk, len - depth);
            let at = place(self.ending, number);
            self.counts[at] -= 1;
            if self.counts[at] == 0 {
                self.ending ^= 1 << number;
                self.counts.remove(at);
            }
            return;
        }
        let at = place(self.present, chunk);
        let left = match &mut self.children[at] {
            Child::One(prefix) if prefix.count == 1 => None,
            Child::One(prefix) => Some(Child::One(Prefix { count: prefix.count - 1, ..*prefix })),
            Child::More(next) => {
                let next = Arc::make_mut(next);
                next.remove(depth + STRIDE, value, len);
                match next.only(depth + STRIDE, value) {
                    Some(prefix) => Some(Child::One(prefix)),
                    None => return,
                }
            }
        };
        match left {
            Some(child) => self.children[at] = child,
            None => {
                self.present ^= 1 << chunk;
                self.children.remove(at);
            }
        }
    }

    /// The prefix in this node, if it is the only one. `value` has the bits on the path to the
    /// node.
    fn only(&self, depth: u8, value: u128) -> Option<Prefix> {
        match (&*self.counts, &*self.children) {
            (&[], &[Child::One(prefix)]) => Some(prefix),
            (&[count], &[]) => {
                let number = self.ending.ilog2();
                let len = number.ilog2() as u8;
                let path = value & !(u128::MAX >> depth);
                let bits = u128::from(number ^ 1 << len).checked_shl(128 - u32::from(len));
                let bits = bits.unwrap_or(0) >> depth;
                Some(Prefix::new(path | bits, depth + len, count))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::prefix_mask;
    use proptest::prelude::*;

    fn cut(value: u128, len: u8) -> u128 {
        value & prefix_mask(len, 128)
    }

    fn naive(prefixes: &[(u128, u8)], value: u128) -> u128 {
        let covering = prefixes.iter().filter(|&&(prefix, len)| cut(value, len) == prefix);
        covering.fold(0, |lengths, &(_, len)| lengths | 1 << (len - 1))
    }

    fn trie(prefixes: &[(u128, u8)]) -> Trie {
        let mut trie = Trie::default();
        prefixes.iter().for_each(|&(value, len)| trie.insert(value, len));
        trie
    }

    fn v4(a: u8, b: u8, c: u8, d: u8) -> u128 {
        u128::from(u32::from_be_bytes([a, b, c, d])) << 96
    }

    #[test]
    fn deciding_bits_are_few_when_no_prefix_is_near() {
        let mut prefixes = vec![(v4(10, 0, 0, 0), 8)];
        prefixes.extend((0..100).map(|n| (v4(10, 200, 7, n), 32)));
        let trie = trie(&prefixes);
        let found = |value| (trie.find(value).lengths, trie.find(value).deciding);
        assert_eq!(found(v4(11, 0, 0, 1)), (0, 8));
        assert_eq!(found(v4(192, 0, 0, 1)), (0, 1));
        assert_eq!(found(v4(10, 1, 0, 1)), (1 << 7, 9));
        assert_eq!(found(v4(10, 200, 7, 200)), (1 << 7, 25));
        assert_eq!(found(v4(10, 200, 7, 50)), (1 << 7 | 1 << 31, 32));
        assert_eq!(Trie::default().find(v4(1, 2, 3, 4)), PrefixMatches::default());
    }

    /// Values that share many bits, and lengths around node boundaries.
    fn prefix() -> impl Strategy<Value = (u128, u8)> {
        let value = (0..4u128, 0..128u32, 0..4u128).prop_map(|(a, shift, b)| a << 126 ^ b << shift);
        let len = prop_oneof![1..=128u8, Just(6), Just(12), Just(126), Just(128)];
        (value, len).prop_map(|(value, len)| (cut(value, len), len))
    }

    proptest! {
        #[test]
        fn trie_agrees_with_a_linear_list(
            prefixes in prop::collection::vec(prefix(), 0..40),
            keep in 0..40usize,
            values in prop::collection::vec((prefix(), any::<u128>()), 20),
        ) {
            let mut trie = trie(&prefixes);
            let (kept, gone) = prefixes.split_at(keep.min(prefixes.len()));
            let before = trie.clone();
            gone.iter().for_each(|&(value, len)| trie.remove(value, len));
            prop_assert_eq!(trie.is_empty(), kept.is_empty());
            for (trie, prefixes) in [(&before, &*prefixes), (&trie, kept)] {
                for &((value, _), noise) in &values {
                    let found = trie.find(value);
                    prop_assert_eq!(found.lengths, naive(prefixes, value));
                    // No longer prefix matches, whatever the bits after the deciding ones are.
                    let beyond = !cut(u128::MAX, found.deciding);
                    let other = cut(value, found.deciding) | noise & beyond;
                    let longer = u128::MAX.checked_shl(found.deciding.into()).unwrap_or(0);
                    prop_assert_eq!(naive(prefixes, other) & longer, 0);
                    // One deciding bit less would not prove it.
                    if let Some(last) = found.deciding.checked_sub(1) {
                        let near = cut(value, last);
                        prop_assert!(prefixes.iter().any(|p| cut(p.0, last) == near && p.1 > last));
                    }
                }
            }
        }

        #[test]
        fn trie_is_empty_when_all_prefixes_are_removed(
            prefixes in prop::collection::vec(prefix(), 1..40),
        ) {
            let mut trie = trie(&prefixes);
            prefixes.iter().for_each(|&(value, len)| trie.remove(value, len));
            prop_assert!(trie.is_empty());
            prop_assert!(trie.root.children.is_empty() && trie.root.counts.is_empty());
        }
    }
}
