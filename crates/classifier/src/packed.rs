//! [`PackedConditions`]: the conditions of a list in one block of memory.
//!
//! ```text
//! heads   for each condition, in order:
//!              32 bits              16 bits                16 bits
//!         +----------------+---------------------+---------------------+
//!         |    priority    |   offset of record  |   index of mask     |
//!         +----------------+---------------------+---------------------+
//! masks   for each mask:
//!         +----------------+---------------------+---------------------+
//!         |   conditions   | offset of the first |  offset of "common" |
//!         +----------------+---------------------+---------------------+
//! records in any order:
//!         a bit for each word of a key; for each word set, mask and value
//! ```
//!
//! A record is a condition, or the bits that all conditions with one mask have in common. The
//! common bits often suffice to skip them all: an IP packet fails every rule on ARP for the same
//! reason. Offsets count from the first record, so that most of a block stays unchanged when a
//! condition is added.

use crate::prefix::{Comparison, Word, compare};
use crate::sparse_mask::{ones, present};
use flow::{FlowKey, FlowMask, Match, WORDS};
use std::sync::Arc;

/// The most conditions in a block. Each has at most two records, whose offsets are 16-bit numbers.
pub(crate) const MAX_PACKED: usize = u16::MAX as usize / (2 * (1 + 2 * WORDS));

/// The fewest conditions with one mask for which the lookup tests their common bits first.
const MIN_COMMON: u64 = 4;

#[derive(Clone, Default)]
pub(crate) struct PackedConditions {
    block: Arc<[u64]>,
    conditions: usize,
    masks: usize,
}

/// A condition. Conditions that one key matches are ordered by their masks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Condition<'a> {
    present: u64,
    /// Mask and value of each word.
    words: &'a [[u64; 2]],
}

impl<'a> Condition<'a> {
    /// The record at the beginning of `words`.
    #[inline]
    fn first(words: &'a [u64]) -> Option<Self> {
        let (&present, words) = words.split_first()?;
        Some(Self { present, words: words.as_chunks().0 })
    }

    /// The record without the words after it.
    fn trimmed(self) -> Self {
        let count = self.present.count_ones() as usize;
        Self { words: self.words.get(..count).unwrap_or_default(), ..self }
    }

    #[inline]
    fn words(self) -> impl Iterator<Item = Word> + Clone {
        let words = ones(self.present).zip(self.words);
        words.map(|(at, &[mask, value])| Word { at, mask, value })
    }

    fn has_mask_of(self, other: Self) -> bool {
        let masks = |condition: Self| condition.words().map(|word| word.mask);
        self.present == other.present && masks(self).eq(masks(other))
    }

    /// True when the bits read so far prove that `key` does not match.
    #[inline]
    fn is_excluded(self, key: &FlowKey, read: &FlowMask) -> bool {
        self.words().any(|word| {
            (key.words()[word.at] ^ word.value) & word.mask & read.words()[word.at] != 0
        })
    }

    /// Adds all bits of the condition's mask.
    #[inline]
    pub(crate) fn add_to(self, read: &mut FlowMask) {
        for word in self.words() {
            read.words_mut()[word.at] |= word.mask;
        }
    }

    pub(crate) fn to_match(self) -> Match {
        let (mut key, mut mask) = (FlowKey::default(), FlowMask::default());
        for word in self.words() {
            key.words_mut()[word.at] = word.value;
            mask.words_mut()[word.at] = word.mask;
        }
        Match::new(&key, mask)
    }
}

/// A record outside a block.
pub(crate) struct Record(Vec<u64>);

impl Record {
    pub(crate) fn of(condition: &Match) -> Self {
        let present = present(condition.mask());
        let (mask, key) = (condition.mask().words(), condition.key().words());
        let words = ones(present).flat_map(|at| [mask[at], key[at]]);
        Self(std::iter::once(present).chain(words).collect())
    }

    pub(crate) fn condition(&self) -> Condition<'_> {
        Condition::first(&self.0).unwrap_or(Condition { present: 0, words: &[] })
    }
}

/// The head of a condition.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) priority: u32,
    record: u16,
    mask: u16,
}

impl Head {
    fn pack(self) -> u64 {
        u64::from(self.priority) << 32 | u64::from(self.record) << 16 | u64::from(self.mask)
    }

    #[inline]
    const fn unpack(word: u64) -> Self {
        Self { priority: (word >> 32) as u32, record: (word >> 16) as u16, mask: word as u16 }
    }
}

/// The results of tests of the first 64 masks in one lookup, a bit for each.
#[derive(Default)]
pub(crate) struct SkippedMasks {
    /// The bits read so far prove that no condition with this mask matches.
    excluded: u64,
    /// Tested since bits were last read.
    tried: u64,
}

impl SkippedMasks {
    /// Allows another test of each mask, because more bits have been read.
    #[inline]
    pub(crate) const fn retry(&mut self) {
        self.tried = 0;
    }
}

impl PackedConditions {
    /// The heads of all conditions, in order.
    #[inline]
    pub(crate) fn heads(&self) -> impl Iterator<Item = Head> + Clone {
        self.block.iter().take(self.conditions).map(|&word| Head::unpack(word))
    }

    /// The conditions, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Condition<'_>> + Clone {
        self.heads().filter_map(|head| self.record(head.record)).map(Condition::trimmed)
    }

    /// The record at an offset from a head or a mask, where there always is one.
    #[inline]
    fn record(&self, at: u16) -> Option<Condition<'_>> {
        let at = self.conditions + self.masks + usize::from(at);
        self.block.get(at..).and_then(Condition::first)
    }

    /// The condition with this head, if `key` matches it. Otherwise `read` then contains bits that
    /// prove that it does not; [`compare`] adds them.
    #[inline]
    pub(crate) fn find_match(
        &self,
        head: Head,
        key: &FlowKey,
        read: &mut FlowMask,
        skipped: &mut SkippedMasks,
    ) -> Option<Condition<'_>> {
        let bit = 1u64.checked_shl(head.mask.into()).unwrap_or(0);
        if skipped.excluded & bit != 0 {
            return None;
        }
        if skipped.tried & bit == 0 {
            skipped.tried |= bit;
            let mask = *self.block.get(self.conditions + usize::from(head.mask))?;
            if mask >> 32 >= MIN_COMMON && self.record(mask as u16)?.is_excluded(key, read) {
                skipped.excluded |= bit;
                return None;
            }
        }
        let condition = self.record(head.record)?;
        match compare(key, condition.words(), read) {
            Comparison::Match => return Some(condition),
            Comparison::Known => {}
            Comparison::Read => skipped.retry(),
        }
        None
    }

    /// Inserts a condition at an index.
    pub(crate) fn insert(&mut self, at: usize, priority: u32, condition: Condition<'_>) {
        let mut parts = Parts::of(self);
        parts.insert(at, priority, condition);
        *self = parts.pack();
    }

    /// Removes the condition at an index.
    pub(crate) fn remove(&mut self, at: usize) {
        let mut parts = Parts::of(&Self::default());
        let left = self.heads().zip(self.iter()).enumerate().filter(|(place, _)| *place != at);
        for (place, (_, (head, condition))) in left.enumerate() {
            parts.insert(place, head.priority, condition);
        }
        *self = parts.pack();
    }
}

/// The parts of a block, for a change.
struct Parts {
    heads: Vec<u64>,
    masks: Vec<u64>,
    records: Vec<u64>,
}

impl Parts {
    fn of(packed: &PackedConditions) -> Self {
        let (heads, rest) = packed.block.split_at(packed.conditions);
        let (masks, records) = rest.split_at(packed.masks);
        let copy = |words: &[u64], room| {
            let mut copy = Vec::with_capacity(words.len() + room);
            copy.extend_from_slice(words);
            copy
        };
        Self { heads: copy(heads, 1), masks: copy(masks, 1), records: copy(records, 32) }
    }

    fn add_record(&mut self, condition: Condition<'_>) -> usize {
        let at = self.records.len();
        self.records.push(condition.present);
        self.records.extend(condition.words.as_flattened());
        at
    }

    fn insert(&mut self, at: usize, priority: u32, condition: Condition<'_>) {
        let record = self.add_record(condition);
        let is_it = |mask: &u64| {
            let first = self.records.get(usize::from((mask >> 16) as u16)..);
            first.and_then(Condition::first).is_some_and(|first| first.has_mask_of(condition))
        };
        let number = self.masks.iter().position(is_it).unwrap_or_else(|| {
            // A single condition has all its bits in common.
            let common = self.add_record(condition);
            self.masks.push((record as u64) << 16 | common as u64);
            self.masks.len() - 1
        });
        self.masks[number] += 1 << 32;
        let common = usize::from(self.masks[number] as u16) + 1;
        let common = self.records[common..].as_chunks_mut::<2>().0;
        for ([mask, value], [_, other]) in common.iter_mut().zip(condition.words) {
            *mask &= !(*value ^ other);
            *value &= *mask;
        }
        let head = Head { priority, record: record as u16, mask: number as u16 };
        self.heads.insert(at, head.pack());
    }

    fn pack(mut self) -> PackedConditions {
        let (conditions, masks) = (self.heads.len(), self.masks.len());
        self.heads.append(&mut self.masks);
        self.heads.append(&mut self.records);
        PackedConditions { block: self.heads.into(), conditions, masks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::Field;

    fn packed(conditions: &[Match], first_priority: u32) -> PackedConditions {
        let mut packed = PackedConditions::default();
        for (at, condition) in conditions.iter().enumerate() {
            let priority = first_priority + at as u32;
            packed.insert(at, priority, Record::of(condition).condition());
        }
        packed
    }

    fn condition(parts: &[(Field, u128)]) -> Match {
        let mut condition = Match::any();
        assert!(parts.iter().all(|&(field, value)| condition.require(field, value, u128::MAX)));
        condition
    }

    fn matches(packed: &PackedConditions) -> Vec<Match> {
        packed.iter().map(Condition::to_match).collect()
    }

    #[test]
    fn conditions_are_returned_as_inserted() {
        let mut conditions = vec![
            condition(&[(Field::EthDst, 1), (Field::TpDst, 80)]),
            condition(&[]),
            condition(&[(Field::EthDst, 2), (Field::TpDst, 81)]),
            condition(&[(Field::Ip6Dst, u128::MAX)]),
            Match::new(&FlowKey::default(), FlowMask::exact()),
        ];
        let first = conditions[0].clone();
        let mut packed = packed(&conditions, 7);
        assert_eq!(matches(&packed), conditions);
        assert!(packed.heads().map(|head| head.priority).eq(7..12));
        assert_eq!(packed.masks, 4, "the first and the third have one mask");
        for at in [4, 1, 0] {
            packed.remove(at);
            conditions.remove(at);
            assert_eq!(matches(&packed), conditions);
        }
        packed.insert(1, u32::MAX, Record::of(&first).condition());
        let priorities: Vec<u32> = packed.heads().map(|head| head.priority).collect();
        assert_eq!((priorities, packed.masks), (vec![9, u32::MAX, 10], 2));
        assert_eq!(matches(&packed)[1], first);
    }

    #[test]
    fn block_holds_the_maximum_of_conditions() {
        let exact = |n: u64| {
            let mut mask = FlowMask::exact();
            mask.words_mut().iter_mut().for_each(|word| *word = !n);
            let mut key = FlowKey::default();
            key.words_mut().fill(n << 32);
            Match::new(&key, mask)
        };
        let all: Vec<_> = (0..MAX_PACKED as u64).map(exact).collect();
        assert_eq!(matches(&packed(&all, 1)), all);
    }

    /// Rules on ARP and an IP packet: once the EtherType has been read, the other rules are
    /// skipped.
    #[test]
    fn conditions_with_one_mask_are_skipped_together() {
        let asks = |address| condition(&[(Field::EthType, 0x806), (Field::ArpTpa, address)]);
        let all: Vec<_> = (0..MIN_COMMON).map(|address| asks(address.into())).collect();
        let packed = packed(&all, 1);
        let mut key = FlowKey::default();
        key.set(Field::EthType, 0x800);
        let (mut read, mut skipped) = (FlowMask::default(), SkippedMasks::default());
        let mut excluded = Vec::new();
        for head in packed.heads() {
            assert!(packed.find_match(head, &key, &mut read, &mut skipped).is_none());
            excluded.push(skipped.excluded);
        }
        assert_eq!(excluded, [0, 1, 1, 1]);
        let mut expected = FlowMask::default();
        expected.add(Field::EthType);
        assert_eq!(read, expected);
    }
}
