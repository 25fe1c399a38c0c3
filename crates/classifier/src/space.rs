//! Many rules: a subtable for each mask, in blocks, and a table to find that of a mask.

use crate::Rank;
use crate::block::{Block, Order, Progress};
use crate::condition::Shape;
use crate::filter::SLOTS;
use crate::hash::{Sum, factor};
use crate::subtable::{Bucket, Subtable};
use crate::table::{Entry, Table};
use crate::tracker::{Tracker, Tries, tracks};
use flow::{FlowKey, FlowMask, Match, WORDS};
use std::cmp::Reverse;
use std::sync::Arc;

/// Where the subtable of a mask is: slots are numbered through all blocks.
#[derive(Clone)]
struct Place {
    hash: u64,
    slot: usize,
}

impl Entry for Place {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn rank(&self) -> Rank {
        Rank { priority: 0, id: 0 }
    }
}

#[derive(Clone)]
pub(crate) struct Space<T> {
    blocks: Vec<Arc<Block<T>>>,
    places: Table<Place>,
    /// Slots of masks that are gone.
    vacant: Vec<usize>,
    tries: Tries,
    len: usize,
}

impl<T> Default for Space<T> {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            places: Table::default(),
            vacant: Vec::new(),
            tries: Tries::default(),
            len: 0,
        }
    }
}

fn shape_hash(shape: &Shape) -> u64 {
    let mut sum = Sum::default();
    shape.words().for_each(|(at, mask)| sum.add(factor(at), mask));
    sum.hash()
}

/// The state of a lookup in each of so many blocks needs no memory of its own.
const BLOCKS_FEW: usize = 1;

impl<T> Space<T> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Match, Rank, &T)> {
        self.blocks.iter().flat_map(|block| block.subtables()).flat_map(Subtable::iter)
    }

    fn subtable(&self, slot: usize) -> Option<&Subtable<T>> {
        self.blocks.get(slot / SLOTS)?.subtable(slot % SLOTS)
    }

    fn slot(&self, shape: &Shape) -> Option<usize> {
        let is_meant =
            |place: &Place| self.subtable(place.slot).is_some_and(|table| table.shape() == shape);
        self.places.find(shape_hash(shape), is_meant).map(|place| place.slot)
    }

    pub(crate) fn get(&self, condition: &Match, rank: Rank) -> Option<&T> {
        let shape = Shape::of(condition.mask());
        self.subtable(self.slot(&shape)?)?.get(&shape.values(condition.key()), rank)
    }

    /// Subtables are searched until none can have a better rule than the best one found. Only then is `accept` asked
    /// about that, and if it refuses, the search goes on for the next best. At the end it is clear of which subtables it has to
    /// be said why they have no better rule.
    pub(crate) fn lookup(
        &self,
        key: &FlowKey,
        better_than: Option<Rank>,
        read: &mut FlowMask,
        mut accept: impl FnMut(&T, &mut FlowMask) -> bool,
    ) -> Option<(Rank, &T)> {
        let mut tracker = Tracker::new(&self.tries, key);
        let (mut few, mut many) = ([Progress::default(); BLOCKS_FEW], Vec::new());
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

impl<T: Clone> Space<T> {
    fn add_subtable(&mut self, shape: Shape, rank: Rank) -> usize {
        let hash = shape_hash(&shape);
        let slot = self.vacant.pop().unwrap_or(self.places.len());
        if slot / SLOTS == self.blocks.len() {
            self.blocks.push(Arc::default());
        }
        Arc::make_mut(&mut self.blocks[slot / SLOTS]).add_subtable(slot % SLOTS, shape, rank);
        self.places.insert(Place { hash, slot });
        slot
    }

    pub(crate) fn insert(&mut self, condition: &Match, rank: Rank, value: T) -> Option<T> {
        let shape = Shape::of(condition.mask());
        let slot = self.slot(&shape).unwrap_or_else(|| self.add_subtable(shape, rank));
        let block = Arc::make_mut(self.blocks.get_mut(slot / SLOTS)?);
        let (old, is_new) = block.insert(slot % SLOTS, condition, rank, value)?;
        if is_new && let Some(subtable) = block.subtable(slot % SLOTS) {
            self.tries.insert(subtable.tracks(), condition);
        }
        self.len += usize::from(old.is_none());
        old
    }

    pub(crate) fn remove(&mut self, condition: &Match, rank: Rank) -> Option<T> {
        let shape = Shape::of(condition.mask());
        let slot = self.slot(&shape)?;
        self.subtable(slot)?.get(&shape.values(condition.key()), rank)?;
        let block = Arc::make_mut(self.blocks.get_mut(slot / SLOTS)?);
        let (old, is_gone) = block.remove(slot % SLOTS, condition, rank)?;
        self.len -= 1;
        if is_gone {
            self.tries.remove(&tracks(condition.mask(), 0..WORDS), condition);
        }
        if block.subtable(slot % SLOTS).is_none() {
            self.places.remove(shape_hash(&shape), |place| place.slot == slot);
            self.vacant.push(slot);
        }
        Some(old)
    }
}

/// A rule that matches and has not been refused; those after it in its bucket match too.
struct Candidate<'a, T> {
    rule: &'a (Rank, T),
    subtable: &'a Subtable<T>,
    bucket: &'a Bucket<T>,
    at: usize,
}

impl<'a, T> Candidate<'a, T> {
    /// The rule `at` of a bucket, if there is one and it is good enough.
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

/// The best candidate of each bucket found. Few are the rule, and need no memory of their own.
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
    /// The best one's order and place.
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
