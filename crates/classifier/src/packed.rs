//! [`Packed`]: the conditions of a list in one block of memory.
//!
//! ```text
//! heads   for each condition, in order:
//!              32 bits              16 bits                16 bits
//!         +----------------+---------------------+---------------------+
//!         |    priority    |      its record     |  number of its mask |
//!         +----------------+---------------------+---------------------+
//! masks   for each mask:
//!         +----------------+---------------------+---------------------+
//!         |   conditions   | record of the first |  record of "alike"  |
//!         +----------------+---------------------+---------------------+
//! records in any order:
//!         which words of a key as bits; for each of them mask and value
//! ```
//!
//! A record is a condition, or what all conditions with one mask have alike. Often that is enough to pass them all over: to an IP
//! packet, one rule about ARP is like another. Places count from the first record, so that most of a block stays as it is
//! when a condition is added.

use crate::condition::{places, present};
use crate::prefix::{Comparison, Word, compare};
use flow::{FlowKey, FlowMask, Match, WORDS};
use std::sync::Arc;

/// The most conditions of a block: each with two records, whose places are numbers of 16 bits.
pub(crate) const PACKED_MOST: usize = u16::MAX as usize / (2 * (1 + 2 * WORDS));

/// So many conditions with one mask are worth a look at what they have alike.
const MANY: u64 = 4;

#[derive(Clone, Default)]
pub(crate) struct Packed {
    block: Arc<[u64]>,
    conditions: usize,
    masks: usize,
}

/// A condition; the order is that of the masks among conditions that one key meets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Condition<'a> {
    present: u64,
    /// Mask and value of each.
    words: &'a [[u64; 2]],
}

impl<'a> Condition<'a> {
    /// The record at the beginning of some words.
    #[inline]
    fn first(words: &'a [u64]) -> Option<Self> {
        let (&present, words) = words.split_first()?;
        Some(Self { present, words: words.as_chunks().0 })
    }

    /// Without what is behind it.
    fn alone(self) -> Self {
        let count = self.present.count_ones() as usize;
        Self { words: self.words.get(..count).unwrap_or_default(), ..self }
    }

    #[inline]
    fn words(self) -> impl Iterator<Item = Word> + Clone {
        let words = places(self.present).zip(self.words);
        words.map(|(at, &[mask, value])| Word { at, mask, value })
    }

    fn has_mask_of(self, other: Self) -> bool {
        let masks = |condition: Self| condition.words().map(|word| word.mask);
        self.present == other.present && masks(self).eq(masks(other))
    }

    /// True when what is read already shows that `key` does not meet the condition.
    #[inline]
    fn is_excluded(self, key: &FlowKey, read: &FlowMask) -> bool {
        self.words().any(|word| {
            (key.words()[word.at] ^ word.value) & word.mask & read.words()[word.at] != 0
        })
    }

    /// Adds all bits that the condition looks at.
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

/// A record of its own.
pub(crate) struct Record(Vec<u64>);

impl Record {
    pub(crate) fn of(condition: &Match) -> Self {
        let present = present(condition.mask());
        let (mask, key) = (condition.mask().words(), condition.key().words());
        let words = places(present).flat_map(|at| [mask[at], key[at]]);
        Self(std::iter::once(present).chain(words).collect())
    }

    pub(crate) fn condition(&self) -> Condition<'_> {
        Condition::first(&self.0).unwrap_or(Condition { present: 0, words: &[] })
    }
}

/// The first word of a condition.
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

/// What a lookup has found out about whole masks: bits for the first 64 of them.
#[derive(Default)]
pub(crate) struct Passed {
    /// What is read shows that no condition with this mask is met.
    excluded: u64,
    /// Looked at since something was last read.
    tried: u64,
}

impl Passed {
    /// More has been read: it may exclude more.
    #[inline]
    pub(crate) const fn look_again(&mut self) {
        self.tried = 0;
    }
}

impl Packed {
    /// The heads of all conditions in order.
    #[inline]
    pub(crate) fn heads(&self) -> impl Iterator<Item = Head> + Clone {
        self.block.iter().take(self.conditions).map(|&word| Head::unpack(word))
    }

    /// The conditions in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Condition<'_>> + Clone {
        self.heads().filter_map(|head| self.record(head.record)).map(Condition::alone)
    }

    /// The record at a place that a head or a mask names. It is there.
    #[inline]
    fn record(&self, at: u16) -> Option<Condition<'_>> {
        let at = self.conditions + self.masks + usize::from(at);
        self.block.get(at..).and_then(Condition::first)
    }

    /// The condition with this head if `key` meets it; else `read` has bits that show that it does not, see [`compare`].
    #[inline]
    pub(crate) fn met(
        &self,
        head: Head,
        key: &FlowKey,
        read: &mut FlowMask,
        passed: &mut Passed,
    ) -> Option<Condition<'_>> {
        let bit = 1u64.checked_shl(head.mask.into()).unwrap_or(0);
        if passed.excluded & bit != 0 {
            return None;
        }
        if passed.tried & bit == 0 {
            passed.tried |= bit;
            let mask = *self.block.get(self.conditions + usize::from(head.mask))?;
            if mask >> 32 >= MANY && self.record(mask as u16)?.is_excluded(key, read) {
                passed.excluded |= bit;
                return None;
            }
        }
        let condition = self.record(head.record)?;
        match compare(key, condition.words(), read) {
            Comparison::Met => return Some(condition),
            Comparison::Known => {}
            Comparison::Read => passed.look_again(),
        }
        None
    }

    /// Adds a condition, at a place among the others.
    pub(crate) fn insert(&mut self, at: usize, priority: u32, condition: Condition<'_>) {
        let mut parts = Parts::of(self);
        parts.insert(at, priority, condition);
        *self = parts.pack();
    }

    /// Takes out the condition at a place.
    pub(crate) fn remove(&mut self, at: usize) {
        let mut parts = Parts::of(&Self::default());
        let left = self.heads().zip(self.iter()).enumerate().filter(|(place, _)| *place != at);
        for (place, (_, (head, condition))) in left.enumerate() {
            parts.insert(place, head.priority, condition);
        }
        *self = parts.pack();
    }
}

/// A block taken apart.
struct Parts {
    heads: Vec<u64>,
    masks: Vec<u64>,
    records: Vec<u64>,
}

impl Parts {
    fn of(packed: &Packed) -> Self {
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
            // One condition is like itself.
            let alike = self.add_record(condition);
            self.masks.push((record as u64) << 16 | alike as u64);
            self.masks.len() - 1
        });
        self.masks[number] += 1 << 32;
        let alike = usize::from(self.masks[number] as u16) + 1;
        let alike = self.records[alike..].as_chunks_mut::<2>().0;
        for ([mask, value], [_, other]) in alike.iter_mut().zip(condition.words) {
            *mask &= !(*value ^ other);
            *value &= *mask;
        }
        let head = Head { priority, record: record as u16, mask: number as u16 };
        self.heads.insert(at, head.pack());
    }

    fn pack(mut self) -> Packed {
        let (conditions, masks) = (self.heads.len(), self.masks.len());
        self.heads.append(&mut self.masks);
        self.heads.append(&mut self.records);
        Packed { block: self.heads.into(), conditions, masks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::Field;

    fn packed(conditions: &[Match], first_priority: u32) -> Packed {
        let mut packed = Packed::default();
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

    fn matches(packed: &Packed) -> Vec<Match> {
        packed.iter().map(Condition::to_match).collect()
    }

    #[test]
    fn conditions_are_as_they_were_put_in() {
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
    fn as_many_conditions_as_are_allowed_are_all_there() {
        let exact = |n: u64| {
            let mut mask = FlowMask::exact();
            mask.words_mut().iter_mut().for_each(|word| *word = !n);
            let mut key = FlowKey::default();
            key.words_mut().fill(n << 32);
            Match::new(&key, mask)
        };
        let all: Vec<_> = (0..PACKED_MOST as u64).map(exact).collect();
        assert_eq!(matches(&packed(&all, 1)), all);
    }

    /// Rules about ARP, and an IP packet: once the type has been read, the other rules are not looked at.
    #[test]
    fn conditions_with_one_mask_are_passed_over_together() {
        let asks = |address| condition(&[(Field::EthType, 0x806), (Field::ArpTpa, address)]);
        let all: Vec<_> = (0..MANY).map(|address| asks(address.into())).collect();
        let packed = packed(&all, 1);
        let mut key = FlowKey::default();
        key.set(Field::EthType, 0x800);
        let (mut read, mut passed) = (FlowMask::default(), Passed::default());
        let mut excluded = Vec::new();
        for head in packed.heads() {
            assert!(packed.met(head, &key, &mut read, &mut passed).is_none());
            excluded.push(passed.excluded);
        }
        assert_eq!(excluded, [0, 1, 1, 1]);
        let mut expected = FlowMask::default();
        expected.add(Field::EthType);
        assert_eq!(read, expected);
    }
}
