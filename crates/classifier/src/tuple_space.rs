//! Tuple-space search for many rules: a subtable for each mask, in blocks of 64, and an index from
//! masks to subtables.

use crate::Rank;
use crate::block::{Block, Order, Progress};
use crate::filter::SLOTS;
use crate::hash::{Sum, factor};
use crate::sparse_mask::SparseMask;
use crate::subtable::{Bucket, Subtable};
use crate::table::{Entry, Table};
use crate::tracker::{PrefixTracker, Tries, field_prefixes};
use flow::{FlowKey, FlowMask, Match, WORDS};
use std::cmp::Reverse;
use std::sync::Arc;

/// The slot of a mask's subtable. Slots are numbered across all blocks.
#[derive(Clone)]
struct SlotEntry {
    hash: u64,
    slot: usize,
}

impl Entry for SlotEntry {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn rank(&self) -> Rank {
        Rank { priority: 0, id: 0 }
    }
}

#[derive(Clone)]
pub(crate) struct TupleSpace<T> {
    blocks: Vec<Arc<Block<T>>>,
    slots: Table<SlotEntry>,
    /// Slots that removed masks have freed.
    vacant: Vec<usize>,
    tries: Tries,
    len: usize,
}

impl<T> Default for TupleSpace<T> {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            slots: Table::default(),
            vacant: Vec::new(),
            tries: Tries::default(),
            len: 0,
        }
    }
}

fn shape_hash(shape: &SparseMask) -> u64 {
    let mut sum = Sum::default();
    shape.words().for_each(|(at, mask)| sum.add(factor(at), mask));
    sum.hash()
}

/// Up to this many blocks, a lookup keeps its state on the stack.
const STACK_BLOCKS: usize = 1;

impl<T> TupleSpace<T> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Match, Rank, &T)> {
        self.blocks.iter().flat_map(|block| block.subtables()).flat_map(Subtable::iter)
    }

    fn subtable(&self, slot: usize) -> Option<&Subtable<T>> {
        self.blocks.get(slot / SLOTS)?.subtable(slot % SLOTS)
    }

    fn slot(&self, shape: &SparseMask) -> Option<usize> {
        let is_equal = |entry: &SlotEntry| {
            self.subtable(entry.slot).is_some_and(|table| table.shape() == shape)
        };
        self.slots.find(shape_hash(shape), is_equal).map(|entry| entry.slot)
    }

    pub(crate) fn get(&self, condition: &Match, rank: Rank) -> Option<&T> {
        let shape = SparseMask::of(condition.mask());
        self.subtable(self.slot(&shape)?)?.get(&shape.values(condition.key()), rank)
    }

    /// Subtables are searched until none can have a better rule than the best one found. Only then
    /// is `accept` called with that rule. If it refuses, the search continues for the next best.
    ///
    /// At the end, `explain` adds the bits which prove that no other subtable has a better rule.
    pub(crate) fn lookup(
        &self,
        key: &FlowKey,
        better_than: Option<Rank>,
        read: &mut FlowMask,
        mut accept: impl FnMut(&T, &mut FlowMask) -> bool,
    ) -> Option<(Rank, &T)> {
        let mut tracker = PrefixTracker::new(&self.tries, key);
        let (mut few, mut many) = ([Progress::default(); STACK_BLOCKS], Vec::new());
        let progress = match few.get_mut(..self.blocks.len()) {
            Some(few) => few,
            None => {
                many.resize(self.blocks.len(), Progress::default());
                &mut *many
            }
        };
        for (block, progress) in self.blocks.iter().zip(&mut *progress) {
            block.begin(key, better_than, &mut tracker, progress);
        }
        let mut pending = Pending::default();
        let result = loop {
            let mut best = pending.best();
            for (block, progress) in self.blocks.iter().zip(&mut *progress) {
                while let Some(head) = block.next(progress, best.map(|(order, _)| order)) {
                    if let Some(bucket) = head.subtable.find(key) {
                        pending.add(Candidate::new(&head.subtable, bucket, 0, better_than));
                        best = pending.best();
                    }
                }
            }
            let Some(candidate) = best.and_then(|(_, at)| pending.take(at)) else { break None };
            candidate.subtable.add_to(read);
            if accept(&candidate.rule.1, read) {
                break Some(candidate);
            }
            pending.add(candidate.next(better_than));
        };
        let order = result.as_ref().map(Candidate::order);
        for (block, progress) in self.blocks.iter().zip(&*progress) {
            block.explain(progress, order, better_than, (key, &mut tracker, read));
        }
        result.map(|candidate| (candidate.rule.0, &candidate.rule.1))
    }
}

impl<T: Clone> TupleSpace<T> {
    fn add_subtable(&mut self, shape: SparseMask, rank: Rank) -> usize {
        let hash = shape_hash(&shape);
        let slot = self.vacant.pop().unwrap_or(self.slots.len());
        if slot / SLOTS == self.blocks.len() {
            self.blocks.push(Arc::default());
        }
        Arc::make_mut(&mut self.blocks[slot / SLOTS]).add_subtable(slot % SLOTS, shape, rank);
        self.slots.insert(SlotEntry { hash, slot });
        slot
    }

    pub(crate) fn insert(&mut self, condition: &Match, rank: Rank, value: T) -> Option<T> {
        let shape = SparseMask::of(condition.mask());
        let slot = self.slot(&shape).unwrap_or_else(|| self.add_subtable(shape, rank));
        let block = Arc::make_mut(self.blocks.get_mut(slot / SLOTS)?);
        let (old, is_new) = block.insert(slot % SLOTS, condition, rank, value)?;
        if is_new && let Some(subtable) = block.subtable(slot % SLOTS) {
            self.tries.insert(subtable.prefixes(), condition);
        }
        self.len += usize::from(old.is_none());
        old
    }

    pub(crate) fn remove(&mut self, condition: &Match, rank: Rank) -> Option<T> {
        let shape = SparseMask::of(condition.mask());
        let slot = self.slot(&shape)?;
        self.subtable(slot)?.get(&shape.values(condition.key()), rank)?;
        let block = Arc::make_mut(self.blocks.get_mut(slot / SLOTS)?);
        let (old, is_gone) = block.remove(slot % SLOTS, condition, rank)?;
        self.len -= 1;
        if is_gone {
            self.tries.remove(&field_prefixes(condition.mask(), 0..WORDS), condition);
        }
        if block.subtable(slot % SLOTS).is_none() {
            self.slots.remove(shape_hash(&shape), |entry| entry.slot == slot);
            self.vacant.push(slot);
        }
        Some(old)
    }
}

/// A rule that matches and has not been refused. The rules after it in its bucket match too.
struct Candidate<'a, T> {
    rule: &'a (Rank, T),
    subtable: &'a Subtable<T>,
    bucket: &'a Bucket<T>,
    at: usize,
}

impl<'a, T> Candidate<'a, T> {
    /// Rule number `at` of a bucket, if it exists and is better than `better_than`.
    fn new(
        subtable: &'a Subtable<T>,
        bucket: &'a Bucket<T>,
        at: usize,
        better_than: Option<Rank>,
    ) -> Option<Self> {
        let rule = bucket.get(at)?;
        better_than.is_none_or(|limit| rule.0 > limit).then_some(Self {
            rule,
            subtable,
            bucket,
            at,
        })
    }

    fn next(self, better_than: Option<Rank>) -> Option<Self> {
        Self::new(self.subtable, self.bucket, self.at + 1, better_than)
    }

    fn order(&self) -> Order<'a> {
        (self.rule.0, Reverse(self.subtable.shape()))
    }
}

/// The best candidate of each bucket found. The first four are kept on the stack.
struct Pending<'a, T> {
    few: [Option<Candidate<'a, T>>; 4],
    more: Vec<Candidate<'a, T>>,
}

impl<T> Default for Pending<'_, T> {
    fn default() -> Self {
        Self { few: [const { None }; 4], more: Vec::new() }
    }
}

impl<'a, T> Pending<'a, T> {
    /// The order and the index of the best candidate.
    fn best(&self) -> Option<(Order<'a>, usize)> {
        let few = self.few.iter().map(Option::as_ref);
        let all = few.chain(self.more.iter().map(Some)).enumerate();
        all.filter_map(|(at, candidate)| Some((candidate?.order(), at))).max()
    }

    fn take(&mut self, at: usize) -> Option<Candidate<'a, T>> {
        match self.few.get_mut(at) {
            Some(place) => place.take(),
            None => Some(self.more.swap_remove(at - self.few.len())),
        }
    }

    fn add(&mut self, candidate: Option<Candidate<'a, T>>) {
        let Some(candidate) = candidate else { return };
        match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(candidate),
            None => self.more.push(candidate),
        }
    }
}
