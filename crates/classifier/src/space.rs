//! Many rules: a subtable for each mask, in the order of the best rule of each.

use crate::Rank;
use crate::condition::Shape;
use crate::hash::{Sum, factor};
use crate::subtable::{Bucket, Subtable};
use crate::tracker::{Tracker, Tries};
use flow::{FlowKey, FlowMask, Match};
use std::cmp::Reverse;
use std::sync::Arc;

/// Greater comes first. Of two rules with the same rank that match one key, the masks decide: they differ, and so the
/// result does not depend on what was inserted first.
type Order<'a> = (Rank, Reverse<&'a Shape>);

#[derive(Clone)]
struct Head<T> {
    best: Rank,
    shape_hash: u64,
    subtable: Arc<Subtable<T>>,
}

impl<T> Head<T> {
    /// That of the best rule.
    fn order(&self) -> Order<'_> {
        (self.best, Reverse(self.subtable.shape()))
    }
}

#[derive(Clone)]
pub(crate) struct Space<T> {
    heads: Vec<Head<T>>,
    tries: Tries,
    len: usize,
}

impl<T> Default for Space<T> {
    fn default() -> Self {
        Self { heads: Vec::new(), tries: Tries::default(), len: 0 }
    }
}

fn shape_hash(shape: &Shape) -> u64 {
    let mut sum = Sum::default();
    shape.words().for_each(|(at, mask)| sum.add(factor(at), mask));
    sum.hash()
}

impl<T> Space<T> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Match, Rank, &T)> {
        self.heads.iter().flat_map(|head| head.subtable.iter())
    }

    fn position(&self, shape: &Shape) -> Option<usize> {
        let hash = shape_hash(shape);
        self.heads.iter().position(|head| head.shape_hash == hash && head.subtable.shape() == shape)
    }

    pub(crate) fn get(&self, condition: &Match, rank: Rank) -> Option<&T> {
        let shape = Shape::of(condition.mask());
        let head = self.heads.get(self.position(&shape)?)?;
        head.subtable.get(&shape.values(condition.key()), rank)
    }

    /// Subtables are searched until none can have a better rule than the best one found. Only then is `accept` asked
    /// about that, and if it refuses, the search goes on for the next best.
    pub(crate) fn lookup(
        &self,
        key: &FlowKey,
        better_than: Option<Rank>,
        read: &mut FlowMask,
        mut accept: impl FnMut(&T, &mut FlowMask) -> bool,
    ) -> Option<(Rank, &T)> {
        let mut tracker = Tracker::new(&self.tries, key);
        let mut pending = Pending::default();
        let mut heads = self.heads.iter();
        let mut next = heads.next();
        loop {
            let best = pending.best();
            let mut found = None;
            while let Some(head) = next
                && found.is_none()
                && better_than.is_none_or(|limit| head.best > limit)
                && best.is_none_or(|(order, _)| head.order() > order)
            {
                next = heads.next();
                found = head.subtable.find(key, &mut tracker, read).map(|bucket| (head, bucket));
            }
            if let Some((head, bucket)) = found {
                let shape = head.subtable.shape();
                pending.add(Candidate::new(shape, bucket, 0, better_than));
                continue;
            }
            let (_, at) = best?;
            let candidate = pending.take(at)?;
            let (rank, value) = candidate.rule;
            if accept(value, read) {
                return Some((*rank, value));
            }
            pending.add(candidate.next(better_than));
        }
    }
}

impl<T: Clone> Space<T> {
    pub(crate) fn insert(&mut self, condition: &Match, rank: Rank, value: T) -> Option<T> {
        let shape = Shape::of(condition.mask());
        let values = shape.values(condition.key());
        let at = self.position(&shape).unwrap_or_else(|| {
            let shape_hash = shape_hash(&shape);
            let subtable = Arc::new(Subtable::new(shape));
            self.heads.push(Head { best: rank, shape_hash, subtable });
            self.heads.len() - 1
        });
        let head = self.heads.get_mut(at)?;
        let subtable = Arc::make_mut(&mut head.subtable);
        let before = subtable.conditions();
        let old = subtable.insert(values, rank, value);
        if subtable.conditions() > before {
            self.tries.insert(subtable.tracks(), condition);
        }
        head.best = head.best.max(rank);
        self.len += usize::from(old.is_none());
        self.put_in_order(at);
        old
    }

    pub(crate) fn remove(&mut self, condition: &Match, rank: Rank) -> Option<T> {
        let shape = Shape::of(condition.mask());
        let at = self.position(&shape)?;
        let head = self.heads.get_mut(at)?;
        let values = shape.values(condition.key());
        head.subtable.get(&values, rank)?;
        let subtable = Arc::make_mut(&mut head.subtable);
        let before = subtable.conditions();
        let old = subtable.remove(&values, rank)?;
        if subtable.conditions() < before {
            self.tries.remove(subtable.tracks(), condition);
        }
        self.len -= 1;
        if rank == head.best {
            match subtable.best() {
                Some(best) => {
                    head.best = best;
                    self.put_in_order(at);
                }
                None => {
                    self.heads.remove(at);
                }
            }
        }
        Some(old)
    }

    /// Moves the one head that may be out of order.
    fn put_in_order(&mut self, at: usize) {
        let order = self.heads[at].order();
        let better = self.heads[..at].partition_point(|head| head.order() > order);
        let worse = self.heads[at + 1..].partition_point(|head| head.order() > order);
        if better < at {
            self.heads[better..=at].rotate_right(1);
        } else if worse > 0 {
            self.heads[at..=at + worse].rotate_left(1);
        }
    }
}

/// A rule that matches and has not been refused; those after it in its bucket match too.
struct Candidate<'a, T> {
    rule: &'a (Rank, T),
    shape: &'a Shape,
    bucket: &'a Bucket<T>,
    at: usize,
}

impl<'a, T> Candidate<'a, T> {
    /// The rule `at` of a bucket, if there is one and it is good enough.
    fn new(
        shape: &'a Shape,
        bucket: &'a Bucket<T>,
        at: usize,
        better_than: Option<Rank>,
    ) -> Option<Self> {
        let rule = bucket.get(at)?;
        better_than.is_none_or(|limit| rule.0 > limit).then_some(Self { rule, shape, bucket, at })
    }

    fn next(self, better_than: Option<Rank>) -> Option<Self> {
        Self::new(self.shape, self.bucket, self.at + 1, better_than)
    }

    fn order(&self) -> Order<'a> {
        (self.rule.0, Reverse(self.shape))
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
