//! Of up to 64 subtables at once: which can have a rule for a key, and how few bits exclude the others.
//!
//! A subtable has a number, its *slot*, and a set of subtables is a word with a bit for each slot. A filter is about something that
//! several masks look at alike: a prefix field, or the same bits of a word. For what a key has there it gives the set of subtables
//! with a rule that agrees. The sets of all filters, intersected, leave the few subtables that are worth a look.
//!
//! A filter never excludes a subtable that has a rule for the key. It may let one pass that has none: the subtable itself
//! says so then.

use crate::condition::Shape;
use crate::hash::Lane;
use crate::tracker::{Track, Tracker, tracks};
use flow::{FlowKey, FlowMask, STAGES};
use std::sync::Arc;

/// Subtables of which each filter has a bit.
pub(crate) const SLOTS: usize = 64;

/// A table of values has so many places for each condition of the largest subtable, so that few are found by mistake, ...
const PLACES_PER_CONDITION: usize = 4;
/// ... but no more than this: it is copied when it changes beside a clone, and shall fit a processor's cache.
const PLACES_MOST: usize = 1 << 13;

/// What the first filters say of a key, kept for the end of the lookup.
#[derive(Clone, Copy)]
pub(crate) struct Said([u64; SLOTS]);

impl Default for Said {
    fn default() -> Self {
        Self([0; SLOTS])
    }
}

/// The filters of a block of subtables, ordered by stage.
#[derive(Clone, Default)]
pub(crate) struct Filters(Vec<Filter>);

#[derive(Clone)]
struct Filter {
    stage: usize,
    /// The subtables that it is about.
    members: u64,
    by: By,
}

#[derive(Clone)]
enum By {
    Prefix(Lengths),
    Value(Values),
}

/// Which subtables have which length of one prefix field; the lengths that a key can match, a [`Tracker`] knows.
#[derive(Clone)]
struct Lengths {
    field: u8,
    /// Bit `n - 1`: some subtable has length `n`. Which, is at `n - 1` of the list.
    present: u128,
    members: Vec<u64>,
}

/// Which subtables have which value in a word; values are told apart by a few bits of their hash.
#[derive(Clone)]
struct Values {
    lane: Lane,
    /// A power of two.
    places: Arc<[u64]>,
}

impl Lengths {
    /// The subtables with one of these lengths.
    #[inline]
    fn with(&self, lengths: u128) -> u64 {
        let (mut lengths, mut found) = (lengths & self.present, 0);
        while lengths != 0 {
            found |= self.members.get(lengths.trailing_zeros() as usize).copied().unwrap_or(0);
            lengths &= lengths - 1;
        }
        found
    }

    fn set(&mut self, track: Track, slot: usize) {
        let at = usize::from(track.len) - 1;
        if self.members.len() <= at {
            self.members.resize(at + 1, 0);
        }
        self.members[at] |= 1 << slot;
        self.present |= 1 << at;
    }

    fn clear(&mut self, slot: usize) {
        for (at, members) in self.members.iter_mut().enumerate() {
            *members &= !(1 << slot);
            if *members == 0 {
                self.present &= !(1 << at);
            }
        }
    }
}

impl Values {
    /// The place of a value. Only time depends on it, so half of the factor is enough.
    #[inline]
    fn place(&self, value: u64) -> usize {
        let product = value.wrapping_mul(self.lane.factor as u64 | 1);
        (product >> (64 - PLACES_MOST.ilog2())) as usize & (self.places.len() - 1)
    }

    /// The members that may have what `key` has.
    #[inline]
    fn with(&self, key: &FlowKey) -> u64 {
        self.places[self.place(self.lane.of(key))]
    }

    const fn is_known(&self, read: &FlowMask) -> bool {
        self.lane.mask & !read.words()[self.lane.at] == 0
    }

    fn add(&mut self, slot: usize, shape: &Shape, values: &[u64]) {
        let place = self.place(shape.word(values, self.lane.at) & self.lane.mask);
        if self.places[place] >> slot & 1 == 0 {
            Arc::make_mut(&mut self.places)[place] |= 1 << slot;
        }
    }

    fn clear(&mut self, slot: usize) {
        Arc::make_mut(&mut self.places).iter_mut().for_each(|place| *place &= !(1 << slot));
    }
}

impl Filter {
    /// The members that the key does not exclude, and others.
    #[inline]
    fn with(&self, key: &FlowKey, tracker: &mut Tracker<'_>) -> u64 {
        match &self.by {
            By::Prefix(lengths) => lengths.with(tracker.found(lengths.field).lengths),
            By::Value(values) => values.with(key),
        }
    }

    /// The members that the bits read so far exclude; of those not in `with`, the key excludes all.
    fn excluded_by(&self, with: u64, tracker: &mut Tracker<'_>, read: &FlowMask) -> u64 {
        match &self.by {
            By::Prefix(lengths) => lengths.with(tracker.excluded_by(lengths.field, read)),
            By::Value(values) if values.is_known(read) => self.members & !with,
            By::Value(_) => 0,
        }
    }

    /// Adds to `read` the bits that show that the members `excluded` are.
    fn read(&self, excluded: u64, tracker: &mut Tracker<'_>, read: &mut FlowMask) {
        match &self.by {
            By::Prefix(lengths) => {
                let longest = lengths.members.iter().rposition(|with| with & excluded != 0);
                if let Some(at) = longest {
                    tracker.read(Track { field: lengths.field, len: at as u8 + 1 }, read);
                }
            }
            By::Value(values) => values.lane.add_to(read),
        }
    }
}

impl Filters {
    /// Those of `left` that no filter excludes.
    #[inline]
    pub(crate) fn candidates(
        &self,
        mut left: u64,
        said: &mut Said,
        key: &FlowKey,
        tracker: &mut Tracker<'_>,
    ) -> u64 {
        for (at, filter) in self.0.iter().enumerate() {
            if left & filter.members != 0 {
                let with = filter.with(key, tracker) | !filter.members;
                left &= with;
                if let Some(said) = said.0.get_mut(at) {
                    *said = !with;
                }
            }
        }
        left
    }

    /// Adds to `read` what excludes the subtables `left`, which are no candidates: what is read already before all else, and
    /// then stage by stage. Leaves those to the caller that are in `small` too and not excluded yet, and returns them.
    ///
    /// A filter that was not asked says that it excludes none, and one beyond those whose answers are kept too: what is left
    /// in the end is returned as well.
    pub(crate) fn explain(
        &self,
        mut left: u64,
        small: u64,
        said: &Said,
        (tracker, read): (&mut Tracker<'_>, &mut FlowMask),
    ) -> u64 {
        let asked = || self.0.iter().zip(&said.0);
        for (filter, excluded) in asked() {
            if left & excluded != 0 {
                left &= !(filter.excluded_by(!excluded, tracker, read) & excluded);
            }
        }
        let (mut left, returned) = (left & !small, left & small);
        for (filter, excluded) in asked() {
            if left & excluded != 0 {
                filter.read(left & excluded, tracker, read);
                left &= !excluded;
            }
        }
        returned | left
    }

    /// Adds a subtable that has no conditions yet.
    pub(crate) fn add_subtable(&mut self, slot: usize, shape: &Shape) {
        let mut rest = shape.mask();
        for track in tracks(&shape.mask(), 0..flow::WORDS) {
            rest.set(track.field(), 0);
            let stage = STAGES.iter().position(|words| words.contains(&track.field().word()));
            let (field, present, members) = (track.field, 0, Vec::new());
            let is_it = |by: &By| matches!(by, By::Prefix(lengths) if lengths.field == field);
            let new = || By::Prefix(Lengths { field, present, members });
            if let By::Prefix(lengths) = self.filter(stage.unwrap_or(0), slot, is_it, new) {
                lengths.set(track, slot);
            }
        }
        for (stage, words) in STAGES.into_iter().enumerate() {
            let lanes = words.map(|at| Lane::new(at, rest.words()[at]));
            for lane in lanes.filter(|lane| lane.mask != 0) {
                let is_it = |by: &By| matches!(by, By::Value(values) if values.lane == lane);
                let new = || By::Value(Values { lane, places: Arc::new([0]) });
                self.filter(stage, slot, is_it, new);
            }
        }
    }

    /// The filter that is meant, or a new one; `slot` becomes a member.
    fn filter(
        &mut self,
        stage: usize,
        slot: usize,
        is_it: impl Fn(&By) -> bool,
        new: impl FnOnce() -> By,
    ) -> &mut By {
        let at = self.0.iter().position(|filter| is_it(&filter.by)).unwrap_or_else(|| {
            let by = new();
            let is_before = |other: &Filter| {
                (other.stage, matches!(other.by, By::Value(_)))
                    <= (stage, matches!(by, By::Value(_)))
            };
            let at = self.0.partition_point(is_before);
            self.0.insert(at, Filter { stage, members: 0, by });
            at
        });
        let filter = &mut self.0[at];
        filter.members |= 1 << slot;
        &mut filter.by
    }

    /// The tables of values that have `slot`.
    fn values_of(&mut self, slot: usize) -> impl Iterator<Item = (u64, &mut Values)> {
        self.0.iter_mut().filter_map(move |filter| match &mut filter.by {
            By::Value(values) if filter.members >> slot & 1 == 1 => Some((filter.members, values)),
            _ => None,
        })
    }

    /// Adds a condition to a subtable, its last of `conditions`. A table may then be too small: it is made anew with what `all`
    /// calls its argument with, for a set of subtables: slot, mask and values of each condition.
    pub(crate) fn add(
        &mut self,
        slot: usize,
        (shape, values, conditions): (&Shape, &[u64], usize),
        all: impl Fn(u64, &mut dyn FnMut(usize, &Shape, &[u64])),
    ) {
        let needed = (conditions * PLACES_PER_CONDITION).min(PLACES_MOST);
        for (members, table) in self.values_of(slot) {
            if table.places.len() < needed {
                let places = (2 * needed).next_power_of_two().min(PLACES_MOST);
                table.places = std::iter::repeat_n(0, places).collect();
                all(members, &mut |slot, shape, values| table.add(slot, shape, values));
            }
            table.add(slot, shape, values);
        }
    }

    /// Forgets all conditions of a subtable and adds those that `all` calls its argument with.
    pub(crate) fn refresh(
        &mut self,
        slot: usize,
        all: impl Fn(u64, &mut dyn FnMut(usize, &Shape, &[u64])),
    ) {
        for (_, table) in self.values_of(slot) {
            table.clear(slot);
            all(1 << slot, &mut |slot, shape, values| table.add(slot, shape, values));
        }
    }

    pub(crate) fn remove_subtable(&mut self, slot: usize) {
        for filter in &mut self.0 {
            if filter.members >> slot & 1 == 1 {
                filter.members ^= 1 << slot;
                match &mut filter.by {
                    By::Prefix(lengths) => lengths.clear(slot),
                    By::Value(values) => values.clear(slot),
                }
            }
        }
        self.0.retain(|filter| filter.members != 0);
    }
}
