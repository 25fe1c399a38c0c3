//! Packet classification: rules with priorities and arbitrary masks. A lookup also reports which
//! bits of the key its result depended on.
//!
//! # Purpose
//!
//! Every table of the pipeline is a [`Classifier`]: given a key, it finds the best rule that
//! matches. A translation looks up dozens of tables. Its result is installed in the datapath as a
//! megaflow, which serves every packet that agrees with the first one on the bits that the lookups
//! depended on. The bits are therefore as much a result as the rule:
//!
//! * **A missing bit is a security hole**: packets get the actions of other packets. Every key that
//!   agrees with the key looked up on the bits in `read` must have the same result, whatever its
//!   other bits are.
//! * **A surplus bit costs**: each packet that differs in it takes the slow path and an entry of
//!   the datapath's cache. A table without a rule on port 443 should not need one megaflow for each
//!   port.
//!
//! # Algorithm
//!
//! *Few rules* (up to 96: most tables of most switches) are a list, best first. A rule that does
//! not match is excluded by one field that differs, or by the shortest prefix of the field that
//! does. It costs no bit when a bit read earlier differs already. All conditions are in one block
//! of memory. Rules with the same mask are skipped together when their common bits differ from the
//! key.
//!
//! *Many rules* are a tuple space: all rules with the same mask are in one hash table, a
//! *subtable*, whose key is the words under the mask. A plain tuple-space search hashes the key
//! once for each subtable and reads all bits of all masks. Five techniques reduce that:
//!
//! * **Filters.** What several masks have in common (a word under a mask, a prefix field) is looked
//!   up once. The answer tells, for 64 subtables at a time, which have a rule that agrees. Only
//!   subtables that pass all filters are searched.
//! * **Order.** Subtables are sorted by their best rule. Once a rule is found, subtables without a
//!   better rule are not searched and add no bits.
//! * **Stages.** A subtable is searched by [`flow::STAGES`]: port and registers, layer 2, layer 3,
//!   layer 4. When no rule agrees with the key on the first stages, their bits exclude the
//!   subtable.
//! * **Prefixes.** A trie for each address and port field holds the prefixes of all rules. It tells
//!   which prefix lengths can match, and how many bits of the address prove it. When the nearest
//!   host rule is in 10.200.0.0/16, packets to 10.1.2.3 and 10.1.2.4 share a megaflow.
//! * **Small subtables.** A subtable with few conditions is compared like a list, and excluded by
//!   one field.
//!
//! The bits to report are chosen last, when it is known which subtables could have had a better
//! rule: first bits that are read in any case, then stage by stage.
//!
//! Fields are reported whole, and addresses and ports by prefix, although one differing bit would
//! do. With single bits of many fields, each packet could produce a mask of its own, and the
//! datapath pays for every mask.
//!
//! # Rank
//!
//! Of the rules that match, the one with the greatest [`Rank`] wins. Rules with the same condition
//! differ in rank. When two rules with different masks have the same rank, a fixed order of the
//! masks decides, so that the result does not depend on the order of insertion.
//!
//! # Concurrent change
//!
//! A [`Classifier`] is a persistent value. [`Clone`] takes a few nanoseconds and shares everything.
//! A change copies what it touches: a page of some hundred entries, the list of pages of one
//! subtable, some nodes of tries. There are no locks here: a writer clones, changes, and publishes
//! the result, behind a mutex for instance. Readers keep the unchanged state that they took for as
//! long as they need it. With `T: Send + Sync`, a classifier is `Send + Sync` too.
//!
//! # Complexity
//!
//! A lookup takes time proportional to the number of masks at worst; the number of rules hardly
//! matters. An insertion or removal takes time proportional to the number of rules with the same
//! condition, which it moves. When the best rule of a mask is removed, it also takes time
//! proportional to a hundredth of that mask's rules. Occasionally a change rebuilds a filter from
//! all rules of up to 64 masks. Hashes are keyed with a secret of the process, so that packets
//! cannot be crafted to collide.
#![forbid(unsafe_code)]

mod block;
mod filter;
mod hash;
mod list;
mod packed;
mod prefix;
mod sparse_mask;
mod subtable;
mod table;
mod tracker;
mod trie;
mod tuple_space;

use flow::{FlowKey, FlowMask, Match};
use list::RuleList;
use std::fmt;
use std::sync::Arc;
use tuple_space::TupleSpace;

/// Orders rules. Of two rules that match, the one with the higher priority wins; with equal
/// priorities, the one with the lower number. The result therefore does not depend on the order of
/// insertion.
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

/// The most rules that are kept as a list.
const LIST_MAX_RULES: usize = 96;

/// A tuple space with fewer rules becomes a list again. Well below [`LIST_MAX_RULES`], so that a
/// rule that comes and goes does not convert the classifier each time.
const SPACE_MIN_RULES: usize = 48;

/// A set of rules. A clone shares all memory with the original; a change copies what it touches.
/// Readers look up in a clone while a writer makes the next state.
pub struct Classifier<T>(Rules<T>);

enum Rules<T> {
    Few(RuleList<T>),
    Many(Arc<TupleSpace<T>>),
}

impl<T> Clone for Classifier<T> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Rules::Few(list) => Rules::Few(list.clone()),
            Rules::Many(space) => Rules::Many(Arc::clone(space)),
        })
    }
}

impl<T> Default for Classifier<T> {
    fn default() -> Self {
        Self(Rules::Few(RuleList::default()))
    }
}

impl<T: fmt::Debug> fmt::Debug for Classifier<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T> Classifier<T> {
    /// The number of rules.
    pub fn len(&self) -> usize {
        match &self.0 {
            Rules::Few(list) => list.len(),
            Rules::Many(space) => space.len(),
        }
    }

    /// True when there are no rules.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every rule, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Match, Rank, &T)> {
        let (few, many) = match &self.0 {
            Rules::Few(list) => (Some(list.iter()), None),
            Rules::Many(space) => (None, Some(space.iter())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    /// The value of the rule with this condition and rank.
    pub fn get(&self, condition: &Match, rank: Rank) -> Option<&T> {
        match &self.0 {
            Rules::Few(list) => list.get(condition, rank),
            Rules::Many(space) => space.get(condition, rank),
        }
    }

    /// The best rule that matches `key`, is better than `better_than`, and that `accept` takes.
    /// `accept` is called with matching rules, best first, and with no rule worse than the one it
    /// takes.
    ///
    /// Every bit of the key that the result depends on is added to `read`, or reported by `accept`
    /// itself: a key that agrees on those bits has the same result. Bits that are in `read` already
    /// count as known: of two ways to exclude a rule, the lookup prefers the one that adds no bit.
    #[inline]
    pub fn lookup(
        &self,
        key: &FlowKey,
        better_than: Option<Rank>,
        read: &mut FlowMask,
        accept: impl FnMut(&T, &mut FlowMask) -> bool,
    ) -> Option<(Rank, &T)> {
        match &self.0 {
            Rules::Few(list) => list.lookup(key, better_than, read, accept),
            Rules::Many(space) => space.lookup(key, better_than, read, accept),
        }
    }
}

impl<T: Clone> Classifier<T> {
    /// Adds a rule. Replaces the rule with the same condition and rank, if there is one, and
    /// returns its value.
    pub fn insert(&mut self, condition: &Match, rank: Rank, value: T) -> Option<T> {
        match &mut self.0 {
            Rules::Few(list) => {
                let old = list.insert(condition, rank, value);
                if list.len() > LIST_MAX_RULES {
                    let mut space = TupleSpace::default();
                    for (condition, rank, value) in list.iter() {
                        space.insert(&condition, rank, value.clone());
                    }
                    self.0 = Rules::Many(Arc::new(space));
                }
                old
            }
            Rules::Many(space) => Arc::make_mut(space).insert(condition, rank, value),
        }
    }

    /// Removes a rule and returns its value.
    pub fn remove(&mut self, condition: &Match, rank: Rank) -> Option<T> {
        match &mut self.0 {
            Rules::Few(list) => list.remove(condition, rank),
            Rules::Many(space) => {
                space.get(condition, rank)?;
                let old = Arc::make_mut(space).remove(condition, rank);
                if space.len() < SPACE_MIN_RULES {
                    let mut list = RuleList::default();
                    for (condition, rank, value) in space.iter() {
                        list.insert(&condition, rank, value.clone());
                    }
                    self.0 = Rules::Few(list);
                }
                old
            }
        }
    }
}
