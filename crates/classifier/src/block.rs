//! Up to 64 subtables that share filters, ordered by the best rule of each.

use crate::Rank;
use crate::filter::{FilterResults, Filters, SLOTS};
use crate::sparse_mask::SparseMask;
use crate::subtable::Subtable;
use crate::tracker::PrefixTracker;
use flow::{FlowKey, FlowMask, Match};
use std::cmp::Reverse;
use std::sync::Arc;

/// The order of search; greater comes first. Of two matching rules with the same rank, the masks
/// decide. Their order is fixed, so that the result does not depend on the order of insertion.
pub(crate) type Order<'a> = (Rank, Reverse<&'a SparseMask>);

#[derive(Clone)]
pub(crate) struct Head<T> {
    best: Rank,
    slot: usize,
    /// The slots of the subtables before this one, a bit for each.
    before: u64,
    /// Removed conditions that the filters may still contain.
    removed: usize,
    pub(crate) subtable: Arc<Subtable<T>>,
}

impl<T> Head<T> {
    /// The order of the best rule.
    #[inline]
    pub(crate) fn order(&self) -> Order<'_> {
        (self.best, Reverse(self.subtable.shape()))
    }
}

#[derive(Clone)]
pub(crate) struct Block<T> {
    /// Best first.
    heads: Vec<Head<T>>,
    /// The index in `heads` for each slot.
    places: [u8; SLOTS],
    /// The occupied slots, and the slots of subtables with so few conditions that they are compared
    /// one by one. A bit for each slot.
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

/// The progress of one lookup in one block.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Slots that the filters do not exclude.
    candidates: u64,
    /// The indices in `heads` of candidates that have not been searched, a bit for each.
    waiting: u64,
    answers: FilterResults,
}

/// The indices of the bits that are one, ascending.
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

    /// The slots of the leading heads for which `is_before` holds.
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
        tracker: &mut PrefixTracker<'_>,
        progress: &mut Progress,
    ) {
        let wanted = better_than.map_or(self.used, |limit| self.before(|head| head.best > limit));
        let candidates = self.filters.candidates(wanted, &mut progress.answers, key, tracker);
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

    /// Adds to `read` the bits which prove that no rule of this block is better than the result, or
    /// than `better_than` when there is no result.
    pub(crate) fn explain(
        &self,
        progress: &Progress,
        result: Option<Order<'_>>,
        better_than: Option<Rank>,
        (key, tracker, read): (&FlowKey, &mut PrefixTracker<'_>, &mut FlowMask),
    ) {
        let searched = match result {
            Some(result) => self.before(|head| head.order() > result),
            None => better_than.map_or(self.used, |limit| self.before(|head| head.best > limit)),
        };
        let excluded = searched & !progress.candidates;
        let answers = &progress.answers;
        let mut left = self.filters.drop_known(excluded, answers, key, (tracker, read));
        let small = left & self.small;
        left &= !small;
        for slot in ones(left) {
            if self.at_slot(slot).is_some_and(|head| head.subtable.is_known(key, tracker, read)) {
                left &= !(1 << slot);
            }
        }
        left = self.filters.explain(left, answers, (tracker, read));
        for slot in ones(small | left | searched & progress.candidates) {
            if let Some(head) = self.at_slot(slot) {
                head.subtable.explain(key, tracker, read);
            }
        }
    }

    /// Calls `each` with slot, mask and values of every condition of some subtables.
    fn conditions(heads: &[Head<T>], slots: u64, each: &mut dyn FnMut(usize, &SparseMask, &[u64])) {
        for head in heads.iter().filter(|head| slots >> head.slot & 1 == 1) {
            let subtable = &head.subtable;
            subtable.values().for_each(|values| each(head.slot, subtable.shape(), values));
        }
    }

    pub(crate) fn add_subtable(&mut self, slot: usize, shape: SparseMask, best: Rank) {
        self.filters.add_subtable(slot, &shape);
        self.used |= 1 << slot;
        let subtable = Arc::new(Subtable::new(shape));
        self.heads.push(Head { best, slot, before: 0, removed: 0, subtable });
        self.put_in_order(self.heads.len() - 1);
    }

    /// Restores the order after the head at one index has changed.
    fn put_in_order(&mut self, at: usize) {
        let order = self.heads[at].order();
        let better = self.heads[..at].partition_point(|head| head.order() > order);
        let worse = self.heads[at + 1..].partition_point(|head| head.order() > order);
        if better < at {
            self.heads[better..=at].rotate_right(1);
        } else if worse > 0 {
            self.heads[at..=at + worse].rotate_left(1);
        }
        self.reindex();
    }

    /// Updates `places` and `before` after heads have moved.
    fn reindex(&mut self) {
        let mut before = 0;
        for (place, head) in (0..).zip(&mut self.heads) {
            self.places[head.slot] = place;
            head.before = before;
            before |= 1 << head.slot;
        }
    }

    fn set_small(&mut self, slot: usize, is_small: bool) {
        self.small = self.small & !(1 << slot) | u64::from(is_small) << slot;
    }
}

impl<T: Clone> Block<T> {
    /// Adds a rule to the subtable in `slot`, or replaces one. Returns the replaced value, and
    /// whether the condition is new.
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
            self.set_small(slot, is_small);
            let heads = &self.heads;
            let new = (heads[at].subtable.shape(), &*values, conditions);
            self.filters.add(slot, new, |slots, each| Self::conditions(heads, slots, each));
        }
        if is_better {
            self.put_in_order(at);
        }
        Some((old, conditions > before))
    }

    /// Removes a rule. Returns its value, and whether its condition was removed with it.
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
            self.reindex();
        } else if conditions < before {
            head.removed += 1;
            if head.removed > conditions.max(SLOTS) {
                head.removed = 0;
                let heads = &self.heads;
                self.filters.refresh(slot, |slots, each| Self::conditions(heads, slots, each));
            }
            self.set_small(slot, is_small);
        }
        if is_worse && conditions > 0 {
            self.put_in_order(at);
        }
        Some((old, conditions < before))
    }
}
