//! All rules with one mask: a hash table of conditions, looked up stage by stage.

use crate::Rank;
use crate::condition::Shape;
use crate::hash::{Lane, Sum};
use crate::prefix::{Comparison, Word, compare};
use crate::table::{Entry, Table};
use crate::tracker::{Track, Tracker, tracks};
use flow::{FlowKey, FlowMask, Match, STAGES, WORDS};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Up to so many conditions are compared one by one when it is to be said why none is met: that shows which single field differs.
const COMPARED: usize = 4;

/// The rules with one condition, best first.
#[derive(Clone)]
pub(crate) struct Bucket<T> {
    hash: u64,
    values: Box<[u64]>,
    first: (Rank, T),
    rest: Vec<(Rank, T)>,
}

impl<T> Bucket<T> {
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&(Rank, T)> {
        at.checked_sub(1).map_or(Some(&self.first), |at| self.rest.get(at))
    }

    fn rules(&self) -> impl Iterator<Item = &(Rank, T)> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    fn find(&self, rank: Rank) -> Option<&T> {
        if self.first.0 == rank {
            return Some(&self.first.1);
        }
        let at = self.rest.binary_search_by(|rule| rank.cmp(&rule.0)).ok()?;
        self.rest.get(at).map(|rule| &rule.1)
    }

    fn insert(&mut self, rank: Rank, value: T) -> Option<T> {
        if rank == self.first.0 {
            return Some(std::mem::replace(&mut self.first.1, value));
        }
        let mut rule = (rank, value);
        if rank > self.first.0 {
            std::mem::swap(&mut rule, &mut self.first);
        }
        match self.rest.binary_search_by(|other| rule.0.cmp(&other.0)) {
            Ok(at) => Some(std::mem::replace(&mut self.rest[at].1, rule.1)),
            Err(at) => {
                self.rest.insert(at, rule);
                None
            }
        }
    }

    /// Takes out one of several rules.
    fn remove(&mut self, rank: Rank) -> Option<T> {
        if rank == self.first.0 {
            let next = self.rest.remove(0);
            return Some(std::mem::replace(&mut self.first, next).1);
        }
        let at = self.rest.binary_search_by(|rule| rank.cmp(&rule.0)).ok()?;
        Some(self.rest.remove(at).1)
    }
}

impl<T> Entry for Arc<Bucket<T>> {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn rank(&self) -> Rank {
        self.first.0
    }
}

/// How many conditions agree in the words up to the end of a stage, for one value of those: only the hash is kept, since
/// the last stage compares the words themselves.
#[derive(Clone)]
struct Start {
    hash: u64,
    count: NonZeroU32,
}

impl Entry for Start {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn rank(&self) -> Rank {
        Rank { priority: 0, id: 0 }
    }
}

/// One of the stages in which the mask has words.
#[derive(Clone)]
struct Stage {
    /// How many of the lanes.
    words: usize,
    tracks: Box<[Track]>,
    /// What the conditions have in these words. Nothing for the last stage, and nothing while conditions are compared one by one.
    starts: Table<Start>,
}

#[derive(Clone)]
pub(crate) struct Subtable<T> {
    shape: Shape,
    lanes: Box<[Lane]>,
    stages: Box<[Stage]>,
    /// Those of all stages.
    tracks: Box<[Track]>,
    buckets: Table<Arc<Bucket<T>>>,
}

impl<T> Subtable<T> {
    pub(crate) fn new(shape: Shape) -> Self {
        let mask = shape.mask();
        let lanes: Box<[Lane]> = shape.words().map(|(at, mask)| Lane::new(at, mask)).collect();
        let mut stages = Vec::new();
        let mut from = 0;
        for words in STAGES {
            let end = lanes.iter().take_while(|lane| lane.at < words.end).count();
            if end > from {
                let tracks = tracks(&mask, words);
                stages.push(Stage { words: end - from, tracks, starts: Table::default() });
                from = end;
            }
        }
        let tracks = tracks(&mask, 0..WORDS);
        Self { shape, lanes, stages: stages.into(), tracks, buckets: Table::default() }
    }

    pub(crate) const fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) const fn tracks(&self) -> &[Track] {
        &self.tracks
    }

    /// The best rule's rank; `None` when there are no rules.
    pub(crate) fn best(&self) -> Option<Rank> {
        self.buckets.best()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Match, Rank, &T)> {
        self.buckets.iter().flat_map(|bucket| {
            let condition = self.shape.condition(&bucket.values);
            bucket.rules().map(move |(rank, value)| (condition.clone(), *rank, value))
        })
    }

    pub(crate) fn get(&self, values: &[u64], rank: Rank) -> Option<&T> {
        let bucket = self.buckets.find(self.hash(values), |bucket| *bucket.values == *values)?;
        bucket.find(rank)
    }

    fn hash(&self, values: &[u64]) -> u64 {
        let mut sum = Sum::default();
        self.lanes.iter().zip(values).for_each(|(lane, &value)| sum.add(lane.factor, value));
        sum.hash()
    }

    /// What each condition has in the words of the mask.
    pub(crate) fn values(&self) -> impl Iterator<Item = &[u64]> {
        self.buckets.iter().map(|bucket| &*bucket.values)
    }

    /// The rules whose condition `key` meets.
    #[inline]
    pub(crate) fn find(&self, key: &FlowKey) -> Option<&Bucket<T>> {
        let mut sum = Sum::default();
        self.lanes.iter().for_each(|lane| sum.add(lane.factor, lane.of(key)));
        let hash = sum.hash();
        if !self.buckets.may_have(hash) {
            return None;
        }
        let bucket = self.buckets.find(hash, |bucket| {
            let mut words = self.lanes.iter().zip(&bucket.values);
            bucket.hash == hash && words.all(|(lane, &value)| lane.of(key) == value)
        });
        bucket.map(|bucket| &**bucket)
    }

    /// Adds to `read` what shows that [`find`](Self::find) finds what it does: bits that exclude all conditions, or all of the
    /// mask.
    pub(crate) fn explain(&self, key: &FlowKey, tracker: &mut Tracker<'_>, read: &mut FlowMask) {
        let is_known = |lanes: &[Lane], read: &FlowMask| {
            lanes.iter().all(|lane| lane.mask & !read.words()[lane.at] == 0)
        };
        if is_known(&self.lanes, read) || tracker.has_excluded(&self.tracks, read) {
            return;
        }
        if self.has_few_conditions() {
            return self.compare(key, read);
        }
        let (mut sum, mut lanes) = (Sum::default(), self.lanes.iter());
        for stage in &self.stages {
            if tracker.excludes(&stage.tracks, read) {
                return;
            }
            for lane in lanes.by_ref().take(stage.words) {
                sum.add(lane.factor, lane.of(key));
                lane.add_to(read);
            }
            if lanes.len() > 0 && !stage.starts.may_have(sum.hash()) {
                return;
            }
        }
    }

    /// As [`explain`](Self::explain), condition by condition.
    fn compare(&self, key: &FlowKey, read: &mut FlowMask) {
        let is_met = self.buckets.iter().any(|bucket| {
            let words = self.lanes.iter().zip(&bucket.values);
            let words = words.map(|(lane, &value)| Word { at: lane.at, mask: lane.mask, value });
            compare(key, words, read) == Comparison::Met
        });
        if is_met {
            self.add_to(read);
        }
    }

    /// Adds all bits of the mask.
    pub(crate) fn add_to(&self, read: &mut FlowMask) {
        self.lanes.iter().for_each(|lane| lane.add_to(read));
    }

    /// True when conditions are compared one by one to say why none is met, rather than by hash.
    pub(crate) const fn has_few_conditions(&self) -> bool {
        self.buckets.len() <= COMPARED
    }

    /// How many different conditions there are.
    pub(crate) const fn conditions(&self) -> usize {
        self.buckets.len()
    }
}

impl<T: Clone> Subtable<T> {
    /// Adds a rule, or replaces the one with this rank.
    pub(crate) fn insert(&mut self, values: Box<[u64]>, rank: Rank, value: T) -> Option<T> {
        let hash = self.hash(&values);
        let is_meant = |bucket: &Arc<Bucket<T>>| bucket.values == values;
        if self.buckets.find(hash, is_meant).is_some() {
            let insert = |bucket: &mut Arc<Bucket<T>>| Arc::make_mut(bucket).insert(rank, value);
            return self.buckets.update(hash, is_meant, insert).flatten();
        }
        if self.buckets.len() > COMPARED {
            self.add_starts(&values);
        }
        let bucket = Bucket { hash, values, first: (rank, value), rest: Vec::new() };
        self.buckets.insert(Arc::new(bucket));
        if self.buckets.len() == COMPARED + 1 {
            let all: Vec<_> = self.buckets.iter().cloned().collect();
            all.iter().for_each(|bucket| self.add_starts(&bucket.values));
        }
        None
    }

    /// Takes a rule out.
    pub(crate) fn remove(&mut self, values: &[u64], rank: Rank) -> Option<T> {
        let hash = self.hash(values);
        let is_meant = |bucket: &Arc<Bucket<T>>| *bucket.values == *values;
        let bucket = self.buckets.find(hash, is_meant)?;
        bucket.find(rank)?;
        if !bucket.rest.is_empty() {
            let remove = |bucket: &mut Arc<Bucket<T>>| Arc::make_mut(bucket).remove(rank);
            return self.buckets.update(hash, is_meant, remove).flatten();
        }
        let bucket = self.buckets.remove(hash, is_meant)?;
        match self.buckets.len() {
            COMPARED => self.stages.iter_mut().for_each(|stage| stage.starts = Table::default()),
            len if len > COMPARED => self.remove_starts(values),
            _ => {}
        }
        Some(Arc::try_unwrap(bucket).map_or_else(|b| b.first.1.clone(), |b| b.first.1))
    }

    /// Each stage that keeps starts, with the hash that a condition has there.
    fn starts<'a>(
        &'a mut self,
        values: &'a [u64],
    ) -> impl Iterator<Item = (u64, &'a mut Table<Start>)> {
        let (mut sum, mut words) = (Sum::default(), self.lanes.iter().zip(values));
        let stages = self.stages.split_last_mut().map(|(_, stages)| stages).unwrap_or_default();
        stages.iter_mut().map(move |stage| {
            let words = words.by_ref().take(stage.words);
            words.for_each(|(lane, &value)| sum.add(lane.factor, value));
            (sum.hash(), &mut stage.starts)
        })
    }

    fn add_starts(&mut self, values: &[u64]) {
        for (hash, starts) in self.starts(values) {
            let more = |start: &mut Start| start.count = start.count.saturating_add(1);
            if starts.update(hash, |start| start.hash == hash, more).is_none() {
                starts.insert(Start { hash, count: NonZeroU32::MIN });
            }
        }
    }

    fn remove_starts(&mut self, values: &[u64]) {
        for (hash, starts) in self.starts(values) {
            let is_meant = |start: &Start| start.hash == hash;
            let fewer = |start: &mut Start| {
                let left = NonZeroU32::new(start.count.get() - 1);
                start.count = left.unwrap_or(start.count);
                left.is_none()
            };
            if starts.update(hash, is_meant, fewer) == Some(true) {
                starts.remove(hash, is_meant);
            }
        }
    }
}
