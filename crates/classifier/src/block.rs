//! Up to 64 subtables with filters that all of them share, in the order of the best rule of each.

use crate::Rank;
use crate::condition::Shape;
use crate::filter::{Filters, SLOTS, Said};
use crate::subtable::Subtable;
use crate::tracker::Tracker;
use flow::{FlowKey, FlowMask, Match};
use std::cmp::Reverse;
use std::sync::Arc;

/// Greater comes first. Of two rules with the same rank that match one key, the masks decide: they differ, and so the
/// result does not depend on what was inserted first.
pub(crate) type Order<'a> = (Rank, Reverse<&'a Shape>);

#[derive(Clone)]
pub(crate) struct Head<T> {
    best: Rank,
    slot: usize,
    /// The slots of the heads before this one.
    before: u64,
    /// Conditions that are gone, and may still be in the filters.
    gone: usize,
    pub(crate) subtable: Arc<Subtable<T>>,
}

impl<T> Head<T> {
    /// That of the best rule.
    #[inline]
    pub(crate) fn order(&self) -> Order<'_> {
        (self.best, Reverse(self.subtable.shape()))
    }
}

#[derive(Clone)]
pub(crate) struct Block<T> {
    /// The best first.
    heads: Vec<Head<T>>,
    /// For each slot, the place of its head.
    places: [u8; SLOTS],
    /// The slots that are taken, and those with so few conditions that they are compared one by one.
    used: u64,
    small: u64,
    filters: Filters,
}

impl<T> Default for Block<T> {
    fn default() -> Self {
        Self {
            heads: Vec::new(),
            places: [0; SLOTS],
            used: 0,
            small: 0,
            filters: Filters::default(),
        }
    }
}

/// How far a lookup is with a block.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Slots that the filters do not exclude.
    candidates: u64,
    /// Places of those that have not been searched.
    waiting: u64,
    said: Said,
}

/// The numbers of the ones in a word, ascending.
#[inline]
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (at < SLOTS).then_some(at)
    })
}

impl<T> Block<T> {
    pub(crate) fn subtables(&self) -> impl Iterator<Item = &Subtable<T>> {
        self.heads.iter().map(|head| &*head.subtable)
    }

    pub(crate) fn subtable(&self, slot: usize) -> Option<&Subtable<T>> {
        self.at_slot(slot).map(|head| &*head.subtable)
    }

    #[inline]
    fn at_slot(&self, slot: usize) -> Option<&Head<T>> {
        self.heads.get(usize::from(self.places[slot])).filter(|head| head.slot == slot)
    }

    /// The slots of the heads that come before those for which `is_before` is false.
    #[inline]
    fn before(&self, is_before: impl Fn(&Head<T>) -> bool) -> u64 {
        let first = self.heads.partition_point(is_before);
        self.heads.get(first).map_or(self.used, |head| head.before)
    }

    /// Begins a lookup for rules that are better than `better_than`.
    #[inline]
    pub(crate) fn begin(
        &self,
        key: &FlowKey,
        better_than: Option<Rank>,
        tracker: &mut Tracker<'_>,
        progress: &mut Progress,
    ) {
        let wanted = better_than.map_or(self.used, |limit| self.before(|head| head.best > limit));
        let candidates = self.filters.candidates(wanted, &mut progress.said, key, tracker);
        progress.candidates = candidates;
        progress.waiting = ones(candidates).fold(0, |all, slot| all | 1 << self.places[slot]);
    }

    /// The next subtable to search, while there is one that may have a rule better than `best`.
    #[inline]
    pub(crate) fn next(
        &self,
        progress: &mut Progress,
        best: Option<Order<'_>>,
    ) -> Option<&Head<T>> {
        let head = self.heads.get(progress.waiting.trailing_zeros() as usize)?;
        if best.is_some_and(|best| head.order() <= best) {
            return None;
        }
        progress.waiting &= progress.waiting - 1;
        Some(head)
    }

    /// Adds to `read` what shows that no rule here is better than the result, or than `better_than` when there is none.
    pub(crate) fn explain(
        &self,
        progress: &Progress,
        result: Option<Order<'_>>,
        better_than: Option<Rank>,
        (key, tracker, read): (&FlowKey, &mut Tracker<'_>, &mut FlowMask),
    ) {
        let looked_at = match result {
            Some(result) => self.before(|head| head.order() > result),
            None => better_than.map_or(self.used, |limit| self.before(|head| head.best > limit)),
        };
        let excluded = looked_at & !progress.candidates;
        let left = self.filters.explain(excluded, self.small, &progress.said, (tracker, read));
        for slot in ones(left | looked_at & progress.candidates) {
            if let Some(head) = self.at_slot(slot) {
                head.subtable.explain(key, tracker, read);
            }
        }
    }

    /// Calls `each` with slot, mask and values of every condition of some subtables.
    fn conditions(heads: &[Head<T>], slots: u64, each: &mut dyn FnMut(usize, &Shape, &[u64])) {
        for head in heads.iter().filter(|head| slots >> head.slot & 1 == 1) {
            let subtable = &head.subtable;
            subtable.values().for_each(|values| each(head.slot, subtable.shape(), values));
        }
    }

    pub(crate) fn add_subtable(&mut self, slot: usize, shape: Shape, best: Rank) {
        self.filters.add_subtable(slot, &shape);
        self.used |= 1 << slot;
        let subtable = Arc::new(Subtable::new(shape));
        self.heads.push(Head { best, slot, before: 0, gone: 0, subtable });
        self.put_in_order(self.heads.len() - 1);
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
        self.number();
    }

    /// Notes the places of heads that have moved.
    fn number(&mut self) {
        let mut before = 0;
        for (place, head) in (0..).zip(&mut self.heads) {
            self.places[head.slot] = place;
            head.before = before;
            before |= 1 << head.slot;
        }
    }

    fn note_size(&mut self, slot: usize, is_small: bool) {
        self.small = self.small & !(1 << slot) | u64::from(is_small) << slot;
    }
}

impl<T: Clone> Block<T> {
    /// Adds a rule to the subtable `slot`, or replaces one. What it was, and whether its condition is new.
    pub(crate) fn insert(
        &mut self,
        slot: usize,
        condition: &Match,
        rank: Rank,
        value: T,
    ) -> Option<(Option<T>, bool)> {
        let at = usize::from(self.places[slot]);
        let head = self.heads.get_mut(at)?;
        let subtable = Arc::make_mut(&mut head.subtable);
        let values = subtable.shape().values(condition.key());
        let before = subtable.conditions();
        let old = subtable.insert(values.clone(), rank, value);
        let conditions = subtable.conditions();
        let is_better = rank > head.best;
        head.best = head.best.max(rank);
        if conditions > before {
            let is_small = subtable.has_few_conditions();
            self.note_size(slot, is_small);
            let heads = &self.heads;
            let new = (heads[at].subtable.shape(), &*values, conditions);
            self.filters.add(slot, new, |slots, each| Self::conditions(heads, slots, each));
        }
        if is_better {
            self.put_in_order(at);
        }
        Some((old, conditions > before))
    }

    /// Takes out a rule. What it was, and whether its condition is gone.
    pub(crate) fn remove(
        &mut self,
        slot: usize,
        condition: &Match,
        rank: Rank,
    ) -> Option<(T, bool)> {
        let at = usize::from(self.places[slot]);
        let head = self.heads.get_mut(at)?;
        let subtable = Arc::make_mut(&mut head.subtable);
        let values = subtable.shape().values(condition.key());
        let before = subtable.conditions();
        let old = subtable.remove(&values, rank)?;
        let conditions = subtable.conditions();
        let is_small = subtable.has_few_conditions();
        let best = if rank == head.best { subtable.best() } else { Some(head.best) };
        let is_worse = best != Some(head.best);
        head.best = best.unwrap_or(head.best);
        if conditions == 0 {
            self.filters.remove_subtable(slot);
            self.heads.remove(at);
            self.used &= !(1 << slot);
            self.small &= !(1 << slot);
            self.number();
        } else if conditions < before {
            head.gone += 1;
            if head.gone > conditions.max(SLOTS) {
                head.gone = 0;
                let heads = &self.heads;
                self.filters.refresh(slot, |slots, each| Self::conditions(heads, slots, each));
            }
            self.note_size(slot, is_small);
        }
        if is_worse && conditions > 0 {
            self.put_in_order(at);
        }
        Some((old, conditions < before))
    }
}
