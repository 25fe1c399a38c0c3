//! Packet classification by rules with priorities and arbitrary masks. A lookup returns the best
//! rule for a key, and reports the bits of the key on which its result depends.
//!
//! # Purpose
//!
//! Every table of the pipeline is a [`Classifier`]: given a key, it finds the best rule that
//! matches. To translate a packet, the switch looks up dozens of tables. It installs the result in
//! the datapath as a megaflow, a cached decision. A megaflow serves every packet that agrees with
//! the first one on the reported bits. The reported bits are therefore as important as the rule:
//!
//! * **A missing bit is a security hole**: packets get the actions of other packets. A key that
//!   agrees with the key looked up on all reported bits must have the same result.
//! * **A surplus bit costs time and memory**: packets that differ only in this bit need separate
//!   megaflows, and the first packet of each takes the slow path. For example, a table without
//!   rules on TCP ports must not cause one megaflow for each port.
//!
//! # Algorithm
//!
//! *Few rules*, up to 96, are a list, best first. Most tables have so few. To exclude a rule that
//! does not match, the lookup reports one field that differs from the key. Of an address or port it
//! reports only the shortest prefix that differs. If a bit that was reported earlier already
//! differs, the rule adds no bit. All conditions are in one block of memory. The lookup skips rules
//! with the same mask together when the bits that they have in common differ from the key.
//!
//! *Many rules* are a tuple space: all rules with the same mask are in one hash table, a
//! *subtable*, whose key is the words under the mask. A plain tuple-space search hashes the key
//! once for each subtable and reports all bits of all masks. Five techniques reduce that:
//!
//! * **Filters.** A filter is for one thing that several masks have in common: a word under the
//!   same mask, or a prefix field. One lookup in a filter tells which of 64 subtables have a rule
//!   that agrees with the key there. Only subtables that pass all filters are searched.
//! * **Order.** Subtables are sorted by their best rule. Once a rule is found, subtables without a
//!   better rule are not searched and add no bits.
//! * **Stages.** A subtable is searched in four stages, [`flow::STAGES`]: port and registers,
//!   layer 2, layer 3, layer 4. If no rule agrees with the key after a stage, the search ends
//!   there, and the later stages add no bits.
//! * **Prefixes.** A trie for each address and port field holds the prefixes of all rules. It tells
//!   which prefix lengths can match, and how many bits of the address prove it. For example, if the
//!   nearest host rule is in 10.200.0.0/16, packets to 10.1.2.3 and 10.1.2.4 share a megaflow.
//! * **Small subtables.** The lookup compares the conditions of a small subtable one by one, and
//!   excludes the subtable by one field.
//!
//! The lookup chooses the bits to report last. By then it knows which subtables could have had a
//! better rule. It prefers bits that are reported anyway, then those of the earliest stage.
//!
//! The lookup reports whole fields, and prefixes of addresses and ports, although one differing bit
//! would suffice. With single bits, many packets would produce a mask of their own. Each mask adds
//! a probe to the datapath's lookups.
//!
//! # Rank
//!
//! Of the rules that match, the one with the greatest [`Rank`] wins. Two rules with the same
//! condition must differ in rank. If two rules with different masks have the same rank, a fixed
//! order of the masks decides. So the result does not depend on the order of insertion.
//!
//! # Concurrent change
//!
//! A [`Classifier`] is a persistent data structure (copy on write). A clone shares all memory with
//! the original, so cloning is cheap. A change copies only the parts that it changes: a page of
//! about 80 entries, the list of pages of one subtable, some nodes of tries. A classifier has no
//! locks. A writer clones the classifier, changes the clone and publishes it, for example behind a
//! mutex. Readers can use the old classifier as long as they need it. With `T: Send + Sync`, a
//! classifier is `Send + Sync` too.
//!
//! # Complexity
//!
//! | operation | time is proportional to |
//! |---|---|
//! | lookup, at worst | the number of masks; the number of rules hardly matters |
//! | insertion, removal | the number of rules with the same condition |
//! | removal of a mask's best rule, in addition | the number of pages of that mask's subtable |
//! | occasionally, an insertion or removal | all rules of up to 64 masks, to rebuild a filter |
//!
//! Hashes are keyed with a secret of the process, so that nobody can craft packets that collide.
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

/// A tuple space with fewer rules becomes a list again. This is well below [`LIST_MAX_RULES`].
/// Otherwise adding and removing one rule in turn would convert the classifier each time.
const SPACE_MIN_RULES: usize = 48;

/// A set of rules. A clone shares all memory with the original, and a change copies only the parts
/// that it changes. So readers can use one clone while a writer changes another.
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

    /// True if both share all memory, so that they have the same rules. If false, they may still
    /// have the same rules.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Rules::Few(a), Rules::Few(b)) => a.is_shared_with(b),
            (Rules::Many(a), Rules::Many(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
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

    /// The best rule that matches `key`, is better than `better_than`, and that `accept` accepts.
    /// The lookup calls `accept` with one matching rule after the other, best first, until it
    /// returns true.
    ///
    /// The lookup adds to `read` every bit of the key on which its result depends. `accept` does
    /// the same for its own decision. A key that agrees on the bits in `read` has the same result.
    /// Of two ways to exclude a rule, the lookup prefers one whose bits are in `read` already.
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
