//! All rules with one mask: a hash table of conditions, searched stage by stage.

use crate::Rank;
use crate::hash::{MaskedWord, Sum};
use crate::prefix::{Comparison, Word, compare};
use crate::sparse_mask::SparseMask;
use crate::table::{Entry, Table};
use crate::tracker::{FieldPrefix, PrefixTracker, field_prefixes};
use flow::{FlowKey, FlowMask, Match, STAGES, WORDS};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Up to this many conditions are compared one by one to explain why none matches: a comparison
/// shows which single field differs.
const MAX_COMPARED: usize = 4;

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

    /// Removes one of several rules.
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

/// How many conditions have the same values in the words up to the end of a stage. Only the hash of
/// the values is kept, since the last stage compares the words themselves.
#[derive(Clone)]
struct StageHash {
    hash: u64,
    count: NonZeroU32,
}

impl Entry for StageHash {
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
    /// The number of words of the mask in this stage.
    words: usize,
    prefixes: Box<[FieldPrefix]>,
    /// The values of the conditions up to this stage. Empty for the last stage, and while
    /// conditions are compared one by one.
    hashes: Table<StageHash>,
}

#[derive(Clone)]
pub(crate) struct Subtable<T> {
    shape: SparseMask,
    masked: Box<[MaskedWord]>,
    stages: Box<[Stage]>,
    /// The prefixes of all stages.
    prefixes: Box<[FieldPrefix]>,
    buckets: Table<Arc<Bucket<T>>>,
}

impl<T> Subtable<T> {
    pub(crate) fn new(shape: SparseMask) -> Self {
        let mask = shape.mask();
        let masked: Box<[MaskedWord]> =
            shape.words().map(|(at, mask)| MaskedWord::new(at, mask)).collect();
        let mut stages = Vec::new();
        let mut from = 0;
        for words in STAGES {
            let end = masked.iter().take_while(|word| word.at < words.end).count();
            if end > from {
                let prefixes = field_prefixes(&mask, words);
                stages.push(Stage { words: end - from, prefixes, hashes: Table::default() });
                from = end;
            }
        }
        let prefixes = field_prefixes(&mask, 0..WORDS);
        Self { shape, masked, stages: stages.into(), prefixes, buckets: Table::default() }
    }

    pub(crate) const fn shape(&self) -> &SparseMask {
        &self.shape
    }

    pub(crate) const fn prefixes(&self) -> &[FieldPrefix] {
        &self.prefixes
    }

    /// The rank of the best rule; `None` without rules.
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
        self.masked.iter().zip(values).for_each(|(word, &value)| sum.add(word.factor, value));
        sum.hash()
    }

    /// The values of each condition, one for each word of the mask.
    pub(crate) fn values(&self) -> impl Iterator<Item = &[u64]> {
        self.buckets.iter().map(|bucket| &*bucket.values)
    }

    /// The rules whose condition matches `key`.
    #[inline]
    pub(crate) fn find(&self, key: &FlowKey) -> Option<&Bucket<T>> {
        let mut sum = Sum::default();
        self.masked.iter().for_each(|word| sum.add(word.factor, word.of(key)));
        let hash = sum.hash();
        if !self.buckets.may_have(hash) {
            return None;
        }
        let bucket = self.buckets.find(hash, |bucket| {
            let mut words = self.masked.iter().zip(&bucket.values);
            bucket.hash == hash && words.all(|(word, &value)| word.of(key) == value)
        });
        bucket.map(|bucket| &**bucket)
    }

    /// Whether the bits in `read` prove the result of [`find`](Self::find). If conditions are
    /// compared one by one, the answer may be false although the bits suffice;
    /// [`explain`](Self::explain) then compares them.
    pub(crate) fn is_known(
        &self,
        key: &FlowKey,
        tracker: &mut PrefixTracker<'_>,
        read: &FlowMask,
    ) -> bool {
        if tracker.has_excluded(&self.prefixes, read) {
            return true;
        }
        let (mut sum, mut masked) = (Sum::default(), self.masked.iter());
        for stage in &self.stages {
            for word in masked.by_ref().take(stage.words) {
                if word.mask & !read.words()[word.at] != 0 {
                    return false;
                }
                sum.add(word.factor, word.of(key));
            }
            if !self.has_few_conditions() && masked.len() > 0 && !stage.hashes.may_have(sum.hash())
            {
                return true;
            }
        }
        true
    }

    /// Adds to `read` the bits that prove the result of [`find`](Self::find): bits that exclude
    /// every condition, or else all bits of the mask.
    pub(crate) fn explain(
        &self,
        key: &FlowKey,
        tracker: &mut PrefixTracker<'_>,
        read: &mut FlowMask,
    ) {
        if self.is_known(key, tracker, read) {
            return;
        }
        if self.has_few_conditions() {
            return self.compare(key, read);
        }
        let (mut sum, mut masked) = (Sum::default(), self.masked.iter());
        for stage in &self.stages {
            if tracker.excludes(&stage.prefixes, read) {
                return;
            }
            for word in masked.by_ref().take(stage.words) {
                sum.add(word.factor, word.of(key));
                word.add_to(read);
            }
            if masked.len() > 0 && !stage.hashes.may_have(sum.hash()) {
                return;
            }
        }
    }

    /// Like [`explain`](Self::explain), one condition at a time.
    fn compare(&self, key: &FlowKey, read: &mut FlowMask) {
        let matches = self.buckets.iter().any(|bucket| {
            let words = self.masked.iter().zip(&bucket.values);
            let words = words.map(|(word, &value)| Word { at: word.at, mask: word.mask, value });
            compare(key, words, read) == Comparison::Match
        });
        if matches {
            self.add_to(read);
        }
    }

    /// Adds all bits of the mask.
    pub(crate) fn add_to(&self, read: &mut FlowMask) {
        self.masked.iter().for_each(|word| word.add_to(read));
    }

    /// True when conditions are compared one by one, not by hash, to explain why none matches.
    pub(crate) const fn has_few_conditions(&self) -> bool {
        self.buckets.len() <= MAX_COMPARED
    }

    /// The number of different conditions.
    pub(crate) const fn conditions(&self) -> usize {
        self.buckets.len()
    }
}

impl<T: Clone> Subtable<T> {
    /// Adds a rule, or replaces the one with this rank.
    pub(crate) fn insert(&mut self, values: Box<[u64]>, rank: Rank, value: T) -> Option<T> {
        let hash = self.hash(&values);
        let is_equal = |bucket: &Arc<Bucket<T>>| bucket.values == values;
        if self.buckets.find(hash, is_equal).is_some() {
            let insert = |bucket: &mut Arc<Bucket<T>>| Arc::make_mut(bucket).insert(rank, value);
            return self.buckets.update(hash, is_equal, insert).flatten();
        }
        if self.buckets.len() > MAX_COMPARED {
            self.add_stage_hashes(&values);
        }
        let bucket = Bucket { hash, values, first: (rank, value), rest: Vec::new() };
        self.buckets.insert(Arc::new(bucket));
        if self.buckets.len() == MAX_COMPARED + 1 {
            let all: Vec<_> = self.buckets.iter().cloned().collect();
            all.iter().for_each(|bucket| self.add_stage_hashes(&bucket.values));
        }
        None
    }

    /// Removes a rule.
    pub(crate) fn remove(&mut self, values: &[u64], rank: Rank) -> Option<T> {
        let hash = self.hash(values);
        let is_equal = |bucket: &Arc<Bucket<T>>| *bucket.values == *values;
        let bucket = self.buckets.find(hash, is_equal)?;
        bucket.find(rank)?;
        if !bucket.rest.is_empty() {
            let remove = |bucket: &mut Arc<Bucket<T>>| Arc::make_mut(bucket).remove(rank);
            return self.buckets.update(hash, is_equal, remove).flatten();
        }
        let bucket = self.buckets.remove(hash, is_equal)?;
        match self.buckets.len() {
            MAX_COMPARED => {
                self.stages.iter_mut().for_each(|stage| stage.hashes = Table::default())
            }
            len if len > MAX_COMPARED => self.remove_stage_hashes(values),
            _ => {}
        }
        Some(Arc::try_unwrap(bucket).map_or_else(|b| b.first.1.clone(), |b| b.first.1))
    }

    /// The hash of a condition at the end of each stage but the last, with the table of such
    /// hashes.
    fn stage_hashes<'a>(
        &'a mut self,
        values: &'a [u64],
    ) -> impl Iterator<Item = (u64, &'a mut Table<StageHash>)> {
        let (mut sum, mut words) = (Sum::default(), self.masked.iter().zip(values));
        let stages = self.stages.split_last_mut().map(|(_, stages)| stages).unwrap_or_default();
        stages.iter_mut().map(move |stage| {
            let words = words.by_ref().take(stage.words);
            words.for_each(|(word, &value)| sum.add(word.factor, value));
            (sum.hash(), &mut stage.hashes)
        })
    }

    fn add_stage_hashes(&mut self, values: &[u64]) {
        for (hash, stage_hashes) in self.stage_hashes(values) {
            let more = |entry: &mut StageHash| entry.count = entry.count.saturating_add(1);
            if stage_hashes.update(hash, |entry| entry.hash == hash, more).is_none() {
                stage_hashes.insert(StageHash { hash, count: NonZeroU32::MIN });
            }
        }
    }

    fn remove_stage_hashes(&mut self, values: &[u64]) {
        for (hash, stage_hashes) in self.stage_hashes(values) {
            let is_equal = |entry: &StageHash| entry.hash == hash;
            let fewer = |entry: &mut StageHash| {
                let left = NonZeroU32::new(entry.count.get() - 1);
                entry.count = left.unwrap_or(entry.count);
                left.is_none()
            };
            if stage_hashes.update(hash, is_equal, fewer) == Some(true) {
                stage_hashes.remove(hash, is_equal);
            }
        }
    }
}
