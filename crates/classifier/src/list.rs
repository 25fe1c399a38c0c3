//! Few rules: a list, best first.

use crate::Rank;
use crate::condition::Condition;
use flow::{FlowKey, FlowMask, Match};
use std::cmp::Reverse;
use std::sync::Arc;

/// One of few rules.
#[derive(Clone)]
struct Rule<T> {
    rank: Rank,
    condition: Condition,
    value: T,
}

/// Rules in one block of memory, compared one after another. A change makes a new list.
pub(crate) struct List<T>(Arc<[Rule<T>]>);

impl<T> Clone for List<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> List<T> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Match, Rank, &T)> {
        self.0.iter().map(|rule| (rule.condition.to_match(), rule.rank, &rule.value))
    }

    fn find(&self, condition: &Condition, rank: Rank) -> Result<usize, usize> {
        self.0.binary_search_by(|rule| {
            (Reverse(rule.rank), &rule.condition).cmp(&(Reverse(rank), condition))
        })
    }

    pub(crate) fn get(&self, condition: &Match, rank: Rank) -> Option<&T> {
        let at = self.find(&Condition::of(condition), rank).ok()?;
        self.0.get(at).map(|rule| &rule.value)
    }

    #[inline]
    pub(crate) fn lookup(
        &self,
        key: &FlowKey,
        better_than: Option<Rank>,
        read: &mut FlowMask,
        mut accept: impl FnMut(&T, &mut FlowMask) -> bool,
    ) -> Option<(Rank, &T)> {
        for rule in &*self.0 {
            if better_than.is_some_and(|limit| rule.rank <= limit) {
                return None;
            }
            if rule.condition.excludes(key, read) {
                continue;
            }
            rule.condition.add_to(read);
            if accept(&rule.value, read) {
                return Some((rule.rank, &rule.value));
            }
        }
        None
    }
}

impl<T: Clone> List<T> {
    pub(crate) fn insert(&mut self, condition: &Match, rank: Rank, value: T) -> Option<T> {
        let condition = Condition::of(condition);
        match self.find(&condition, rank) {
            Ok(at) => {
                let rule = Arc::make_mut(&mut self.0).get_mut(at)?;
                Some(std::mem::replace(&mut rule.value, value))
            }
            Err(at) => {
                let (better, worse) = self.0.split_at(at);
                let rule = std::iter::once(Rule { rank, condition, value });
                self.0 = better.iter().cloned().chain(rule).chain(worse.iter().cloned()).collect();
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, condition: &Match, rank: Rank) -> Option<T> {
        let at = self.find(&Condition::of(condition), rank).ok()?;
        let (better, rest) = self.0.split_at(at);
        let (rule, worse) = rest.split_first()?;
        let value = rule.value.clone();
        self.0 = better.iter().chain(worse).cloned().collect();
        Some(value)
    }
}
