//! Rules with priorities and arbitrary masks, and the lookup that says which bits of the key it depended on.
//!
//! # What it is for
//!
//! Every table of the pipeline is a [`Classifier`]: given a key, find the best rule that matches. A translation asks some
//! dozens of them, and what comes out is installed in the datapath as a megaflow, for every packet that agrees with this one
//! on the bits that the lookups depended on. So the bits are a result as much as the rule is:
//!
//! * **A bit too few is a security hole**: packets get the actions of others. Every key that agrees with the one looked up on
//!   the bits in `read` must have the same result, whatever its other bits are.
//! * **A bit too many costs**: each packet that differs in it takes the slow path and a place in the datapath's cache. That no
//!   rule is about port 443 should not take a megaflow for every port.
//!
//! # How it works
//!
//! *Few rules* (up to 96: most tables of most switches) are a list, best first. A rule that does not match is excluded by one
//! field that differs, or the shortest prefix of it that does; if a bit that was read already differs, by nothing. All
//! conditions are in one block of memory, and rules with one mask are passed over
//! together by what they have alike.
//!
//! *Many rules* are a tuple space: all rules with the same mask are in one hash table, a *subtable*, whose key is the words that
//! the mask looks at. A lookup would hash the key once for each subtable, and read all bits of all masks. Five
//! things make it look at less:
//!
//! * **Filters.** What several masks have in common (a word under a mask, a prefix field) is looked up once, and says of 64
//!   subtables at a time which have a rule that agrees. Only those that all filters leave are searched.
//! * **Order.** Subtables are sorted by their best rule. Once a rule is found, those that have no better one are not
//!   looked at, and add no bits.
//! * **Stages.** A subtable is searched by [`flow::STAGES`]: port and registers, layer 2, layer 3, layer 4. When no rule of it agrees
//!   with the key on the first stages, their bits exclude it.
//! * **Prefixes.** For addresses and ports a tree per field holds the prefixes of all rules. It says which lengths can match, and
//!   how many bits of the address show it: a packet to 10.1.2.3 need not be told from one to 10.1.2.4 when
//!   the next rule about a host is in 10.200.0.0/16.
//! * **Few conditions** in a subtable are compared as those of a list are, and excluded by one field.
//!
//! Which bits show the result is decided at the end, when it is known which subtables could have had a better rule: bits that are
//! read anyway first, then stage by stage.
//!
//! Fields are reported whole, and addresses and ports by prefix, though one differing bit would do: from many fields
//! with arbitrary bits each packet could make a mask of its own, and the datapath pays for every mask it has.
//!
//! # Rank
//!
//! Of the rules that match, the one with the greatest [`Rank`] wins. Rules with the same condition are told apart by
//! their rank. Should two rules with different masks have the same rank, the result is still independent of the order
//! of insertion: an order of the masks decides.
//!
//! # Change while others look up
//!
//! A [`Classifier`] is a value. [`Clone`] takes a few nanoseconds and shares everything; a change copies what it touches: a
//! page of some hundred entries, the list of pages of one subtable, some nodes of trees. So there are no locks here: a
//! writer clones, changes, and publishes the result, say behind a mutex; readers keep the state that they took, whole and unchanged, as
//! long as they need it. With `T: Send + Sync`, a classifier is too.
//!
//! # Bounds
//!
//! A lookup takes time in proportion to the number of masks, at worst; the number of rules hardly matters. An
//! insertion or removal takes time in proportion to the number of rules with the same condition (to move them), and, when the best
//! rule of a mask goes, to a hundredth of the mask's rules. Now and then it makes a filter anew, from all rules of up to 64 masks.
//! Hashes are keyed
//! with a secret of the process, so that packets cannot be made to collide.
#![forbid(unsafe_code)]

mod block;
mod condition;
mod filter;
mod hash;
mod list;
mod packed;
mod prefix;
mod space;
mod subtable;
mod table;
mod tracker;
mod trie;

use flow::{FlowKey, FlowMask, Match};
use list::List;
use space::Space;
use std::fmt;
use std::sync::Arc;

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

/// Up to so many rules are a list.
const LIST_MOST: usize = 96;

/// A tuple space with fewer rules becomes a list again; not so many that one rule more or less does it.
const SPACE_LEAST: usize = 48;

/// A set of rules. A clone shares everything with the original until one of them changes, and then all that did not
/// change: readers look up in a clone while the next state is made.
pub struct Classifier<T>(Rules<T>);

enum Rules<T> {
    Few(List<T>),
    Many(Arc<Space<T>>),
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
        Self(Rules::Few(List::default()))
    }
}

impl<T: fmt::Debug> fmt::Debug for Classifier<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T> Classifier<T> {
    /// How many rules there are.
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

    /// The best rule that matches `key`, that is better than `better_than`, and that `accept` takes. `accept` is asked about
    /// rules that match, best first, and about none that is worse than the one it takes.
    ///
    /// Every bit of the key that the result depends on is added to `read`, or is one that `accept` reports itself: a key that
    /// agrees with this one on those bits has the same result. Bits that are in `read` already count as known: of two ways to
    /// exclude a rule, the lookup takes the one that adds none.
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
    /// Adds a rule. The rule with the same condition and rank, if there is one, is replaced and its value returned.
    pub fn insert(&mut self, condition: &Match, rank: Rank, value: T) -> Option<T> {
        match &mut self.0 {
            Rules::Few(list) => {
                let old = list.insert(condition, rank, value);
                if list.len() > LIST_MOST {
                    let mut space = Space::default();
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

    /// Takes a rule out and returns its value.
    pub fn remove(&mut self, condition: &Match, rank: Rank) -> Option<T> {
        match &mut self.0 {
            Rules::Few(list) => list.remove(condition, rank),
            Rules::Many(space) => {
                space.get(condition, rank)?;
                let old = Arc::make_mut(space).remove(condition, rank);
                if space.len() < SPACE_LEAST {
                    let mut list = List::default();
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
