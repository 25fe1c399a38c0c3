//! Rules with priorities and arbitrary masks, and the lookup that says which bits of the key it depended on.
#![forbid(unsafe_code)]

use flow::{FlowKey, FlowMask, Match};

/// Orders rules: of two rules that both match, the one with the higher priority wins, and of two with the same priority
/// the one with the lower number. So the result does not depend on the order of insertion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rank {
    /// Higher wins.
    pub priority: u32,
    /// Lower wins; unique among the rules with one condition and priority.
    pub id: u64,
}

impl Ord for Rank {
    /// Greater is better.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.priority.cmp(&other.priority).then(other.id.cmp(&self.id))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A set of rules. A clone shares everything with the original until one of them changes, and then all that did not
/// change: readers look up in a clone while the next state is made.
#[derive(Clone, Debug)]
pub struct Classifier<T> {
    rules: std::sync::Arc<Vec<(Match, Rank, T)>>,
}

impl<T> Default for Classifier<T> {
    fn default() -> Self {
        Self { rules: std::sync::Arc::default() }
    }
}

impl<T: Clone> Classifier<T> {
    /// Adds a rule. The rule with the same condition and rank, if there is one, is replaced and its value returned.
    pub fn insert(&mut self, condition: &Match, rank: Rank, value: T) -> Option<T> {
        let old = self.remove(condition, rank);
        let rules = std::sync::Arc::make_mut(&mut self.rules);
        rules.push((condition.clone(), rank, value));
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.1));
        old
    }

    /// Takes a rule out and returns its value.
    pub fn remove(&mut self, condition: &Match, rank: Rank) -> Option<T> {
        let rules = std::sync::Arc::make_mut(&mut self.rules);
        let at = rules.iter().position(|rule| rule.0 == *condition && rule.1 == rank)?;
        Some(rules.remove(at).2)
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// True when there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Every rule, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Match, Rank, &T)> {
        self.rules.iter().map(|(m, r, v)| (m.clone(), *r, v))
    }

    /// The best rule that matches `key`, that is better than `better_than`, and that `accept` takes. `accept` is asked about
    /// rules that match, best first.
    ///
    /// Every bit of the key that the result depends on is added to `read`, or is one that `accept` reports itself: a key that
    /// agrees with this one on those bits has the same result.
    pub fn lookup(
        &self,
        key: &FlowKey,
        better_than: Option<Rank>,
        read: &mut FlowMask,
        mut accept: impl FnMut(&T, &mut FlowMask) -> bool,
    ) -> Option<(Rank, &T)> {
        for (condition, rank, value) in self.rules.iter() {
            if better_than.is_some_and(|limit| *rank <= limit) {
                return None;
            }
            read.union(condition.mask());
            if condition.matches(key) && accept(value, read) {
                return Some((*rank, value));
            }
        }
        None
    }
}
