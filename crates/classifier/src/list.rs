//! A few rules, kept as a list, best first.
//!
//! A lookup compares against one block of memory and touches nothing else until it finds a rule. A
//! change builds a new list.

use crate::packed::{Condition, MAX_PACKED, PackedConditions, Record, SkippedMasks};
use crate::{LIST_MAX_RULES, Rank};
use flow::{FlowKey, FlowMask, Match};
use std::cmp::Ordering;
use std::sync::Arc;

// A list briefly exceeds the limit by one rule before it becomes a tuple space.
const _: () = assert!(LIST_MAX_RULES < MAX_PACKED);

pub(crate) struct RuleList<T> {
    conditions: PackedConditions,
    /// The rules, in the order of `conditions`.
    rules: Arc<[(Rank, T)]>,
}

impl<T> Clone for RuleList<T> {
    fn clone(&self) -> Self {
        Self { conditions: self.conditions.clone(), rules: Arc::clone(&self.rules) }
    }
}

impl<T> Default for RuleList<T> {
    fn default() -> Self {
        Self { conditions: PackedConditions::default(), rules: Arc::default() }
    }
}

impl<T> RuleList<T> {
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    pub(crate) fn is_shared_with(&self, other: &Self) -> bool {
        // A change of a condition always replaces the rules, too.
        Arc::ptr_eq(&self.rules, &other.rules)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Match, Rank, &T)> {
        let all = self.conditions.iter().zip(&*self.rules);
        all.map(|(condition, (rank, value))| (condition.to_match(), *rank, value))
    }

    /// The index of a rule, or `Err` with the index at which it would be inserted.
    fn find(&self, condition: Condition<'_>, rank: Rank) -> Result<usize, usize> {
        let first = self.rules.partition_point(|rule| rule.0 > rank);
        let same_rank = self.rules.iter().skip(first).take_while(|rule| rule.0 == rank);
        for (at, other) in (first..).zip(self.conditions.iter().skip(first).take(same_rank.count()))
        {
            match other.cmp(&condition) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(at),
                Ordering::Greater => return Err(at),
            }
        }
        Err(self.rules.partition_point(|rule| rule.0 >= rank))
    }

    pub(crate) fn get(&self, condition: &Match, rank: Rank) -> Option<&T> {
        let at = self.find(Record::of(condition).condition(), rank).ok()?;
        self.rules.get(at).map(|rule| &rule.1)
    }

    #[inline]
    pub(crate) fn lookup(
        &self,
        key: &FlowKey,
        better_than: Option<Rank>,
        read: &mut FlowMask,
        mut accept: impl FnMut(&T, &mut FlowMask) -> bool,
    ) -> Option<(Rank, &T)> {
        let mut skipped = SkippedMasks::default();
        for (at, head) in self.conditions.heads().enumerate() {
            if let Some(limit) = better_than
                && head.priority <= limit.priority
                && self.rules.get(at).is_none_or(|rule| rule.0 <= limit)
            {
                return None;
            }
            let Some(condition) = self.conditions.find_match(head, key, read, &mut skipped) else {
                continue;
            };
            condition.add_to(read);
            let (rank, value) = self.rules.get(at)?;
            if accept(value, read) {
                return Some((*rank, value));
            }
            skipped.retry();
        }
        None
    }
}

impl<T: Clone> RuleList<T> {
    pub(crate) fn insert(&mut self, condition: &Match, rank: Rank, value: T) -> Option<T> {
        let record = Record::of(condition);
        let condition = record.condition();
        match self.find(condition, rank) {
            Ok(at) => {
                let rule = Arc::make_mut(&mut self.rules).get_mut(at)?;
                Some(std::mem::replace(&mut rule.1, value))
            }
            Err(at) => {
                self.conditions.insert(at, rank.priority, condition);
                let (better, worse) = self.rules.split_at(at);
                let new = std::iter::once((rank, value));
                self.rules =
                    better.iter().cloned().chain(new).chain(worse.iter().cloned()).collect();
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, condition: &Match, rank: Rank) -> Option<T> {
        let at = self.find(Record::of(condition).condition(), rank).ok()?;
        let (better, rest) = self.rules.split_at(at);
        let (rule, worse) = rest.split_first()?;
        let value = rule.1.clone();
        self.rules = better.iter().chain(worse).cloned().collect();
        self.conditions.remove(at);
        Some(value)
    }
}
