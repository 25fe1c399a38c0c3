//! Filters for up to 64 subtables at once. They tell which subtables can have a rule for a key, and
//! which few bits exclude the others.
//!
//! A subtable has a number, its *slot*, and a set of subtables is a word with a bit for each slot.
//! A filter belongs to a prefix field, or to bits of one word, that several masks have in common.
//! It maps the key's value in this field or these bits to the set of subtables with a rule that
//! agrees. The intersection of the sets of all filters leaves the few subtables that must be
//! searched.
//!
//! A filter never excludes a subtable that has a rule for the key. It may let a subtable pass that
//! has none; the search of the subtable then finds nothing.

use crate::hash::MaskedWord;
use crate::prefix::PREFIX_FIELDS;
use crate::sparse_mask::SparseMask;
use crate::tracker::{FieldPrefix, PrefixTracker, field_prefixes};
use flow::{FlowKey, FlowMask, STAGES};
use std::sync::Arc;

/// Subtables in a block: each filter has a bit for each of them.
pub(crate) const SLOTS: usize = 64;

/// Places in a table of values for each condition of the largest subtable, so that few lookups hit
/// by accident.
const PLACES_PER_CONDITION: usize = 4;
/// The most places in a table of values. A change copies the table when a clone shares it, and the
/// table must fit into a processor's cache.
const MAX_PLACES: usize = 1 << 13;

/// The subtables that each of the first filters excludes for a key, kept for the end of the lookup.
#[derive(Clone, Copy)]
pub(crate) struct FilterResults([u64; SLOTS]);

impl Default for FilterResults {
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
    /// The subtables that the filter applies to.
    members: u64,
    kind: FilterKind,
}

#[derive(Clone)]
enum FilterKind {
    Prefix(Lengths),
    Value(Values),
}

/// A filter on one prefix field: the subtables for each prefix length. A [`PrefixTracker`] finds
/// the lengths that a key can match.
#[derive(Clone)]
struct Lengths {
    field: u8,
    /// Bit `n - 1` is set when a subtable has length `n`; `members[n - 1]` is the set of these
    /// subtables.
    present: u128,
    members: Vec<u64>,
}

/// A filter on one masked word: the subtables for each value. A few bits of the hash of the value
/// select the place.
#[derive(Clone)]
struct Values {
    word: MaskedWord,
    /// The subtables for each place. The length is a power of two.
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

    fn set(&mut self, prefix: FieldPrefix, slot: usize) {
        let at = usize::from(prefix.len) - 1;
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
    /// The place of a value. A collision costs time only, so half of the hash factor is enough.
    #[inline]
    fn place(&self, value: u64) -> usize {
        let product = value.wrapping_mul(self.word.factor as u64 | 1);
        (product >> (64 - MAX_PLACES.ilog2())) as usize & (self.places.len() - 1)
    }

    /// The members that may have the value of `key`.
    #[inline]
    fn with(&self, key: &FlowKey) -> u64 {
        self.places[self.place(self.word.of(key))]
    }

    const fn is_known(&self, read: &FlowMask) -> bool {
        self.word.mask & !read.words()[self.word.at] == 0
    }

    fn add(&mut self, slot: usize, shape: &SparseMask, values: &[u64]) {
        let place = self.place(shape.word(values, self.word.at) & self.word.mask);
        if self.places[place] >> slot & 1 == 0 {
            Arc::make_mut(&mut self.places)[place] |= 1 << slot;
        }
    }

    fn clear(&mut self, slot: usize) {
        Arc::make_mut(&mut self.places).iter_mut().for_each(|place| *place &= !(1 << slot));
    }
}

impl Filter {
    /// The members that the key does not exclude; other bits are unspecified.
    #[inline]
    fn with(&self, key: &FlowKey, tracker: &mut PrefixTracker<'_>) -> u64 {
        match &self.kind {
            FilterKind::Prefix(lengths) => lengths.with(tracker.found(lengths.field).lengths),
            FilterKind::Value(values) => values.with(key),
        }
    }

    /// False when the bits in `read` cannot exclude a member.
    fn knows_some(&self, read: &FlowMask) -> bool {
        match &self.kind {
            FilterKind::Prefix(lengths) => read.get(PREFIX_FIELDS[usize::from(lengths.field)]) != 0,
            FilterKind::Value(values) => values.is_known(read),
        }
    }

    /// The members that the bits read so far exclude. The key excludes all members that are not in
    /// `with`.
    fn excluded_by(&self, with: u64, tracker: &mut PrefixTracker<'_>, read: &FlowMask) -> u64 {
        match &self.kind {
            FilterKind::Prefix(lengths) => lengths.with(tracker.excluded_by(lengths.field, read)),
            FilterKind::Value(values) if values.is_known(read) => self.members & !with,
            FilterKind::Value(_) => 0,
        }
    }

    /// Adds to `read` the bits which prove that the members in `excluded` are excluded.
    fn read(&self, excluded: u64, tracker: &mut PrefixTracker<'_>, read: &mut FlowMask) {
        match &self.kind {
            FilterKind::Prefix(lengths) => {
                let longest = lengths.members.iter().rposition(|with| with & excluded != 0);
                if let Some(at) = longest {
                    tracker.read(FieldPrefix { field: lengths.field, len: at as u8 + 1 }, read);
                }
            }
            FilterKind::Value(values) => values.word.add_to(read),
        }
    }
}

impl Filters {
    /// The subtables of `left` that no filter excludes.
    #[inline]
    pub(crate) fn candidates(
        &self,
        mut left: u64,
        answers: &mut FilterResults,
        key: &FlowKey,
        tracker: &mut PrefixTracker<'_>,
    ) -> u64 {
        for (at, filter) in self.0.iter().enumerate() {
            if left & filter.members != 0 {
                let with = filter.with(key, tracker) | !filter.members;
                left &= with;
                if let Some(answer) = answers.0.get_mut(at) {
                    *answer = !with;
                }
            }
        }
        left
    }

    /// Removes from `left`, which contains no candidates, the subtables that the bits in `read`
    /// exclude. This also uses filters that the lookup did not consult because others had already
    /// excluded their members. Otherwise two keys that agree on `read` could end with different
    /// masks.
    pub(crate) fn drop_known(
        &self,
        mut left: u64,
        answers: &FilterResults,
        key: &FlowKey,
        (tracker, read): (&mut PrefixTracker<'_>, &FlowMask),
    ) -> u64 {
        for (filter, excluded) in self.0.iter().zip(&answers.0) {
            if left & filter.members != 0 && filter.knows_some(read) {
                let excluded = match excluded {
                    0 => filter.members & !filter.with(key, tracker),
                    &excluded => excluded,
                };
                left &= !(filter.excluded_by(!excluded, tracker, read) & excluded);
            }
        }
        left
    }

    /// Adds to `read` the bits that exclude the subtables in `left`, which contains no candidates,
    /// stage by stage. The caller has already removed the subtables that known bits exclude.
    ///
    /// Returns the subtables that only filters beyond the recorded answers exclude. A filter that
    /// was not consulted counts as excluding none.
    pub(crate) fn explain(
        &self,
        mut left: u64,
        answers: &FilterResults,
        (tracker, read): (&mut PrefixTracker<'_>, &mut FlowMask),
    ) -> u64 {
        for (filter, excluded) in self.0.iter().zip(&answers.0) {
            if left & excluded != 0 {
                filter.read(left & excluded, tracker, read);
                left &= !excluded;
            }
        }
        left
    }

    /// Adds a subtable without conditions.
    pub(crate) fn add_subtable(&mut self, slot: usize, shape: &SparseMask) {
        let mut rest = shape.mask();
        for prefix in field_prefixes(&shape.mask(), 0..flow::WORDS) {
            rest.set(prefix.field(), 0);
            let stage = STAGES.iter().position(|words| words.contains(&prefix.field().word()));
            let (field, present, members) = (prefix.field, 0, Vec::new());
            let is_it = |kind: &FilterKind| match kind {
                FilterKind::Prefix(lengths) => lengths.field == field,
                FilterKind::Value(_) => false,
            };
            let new = || FilterKind::Prefix(Lengths { field, present, members });
            if let FilterKind::Prefix(lengths) = self.filter(stage.unwrap_or(0), slot, is_it, new) {
                lengths.set(prefix, slot);
            }
        }
        for (stage, words) in STAGES.into_iter().enumerate() {
            let masked = words.map(|at| MaskedWord::new(at, rest.words()[at]));
            for word in masked.filter(|word| word.mask != 0) {
                let is_it = |kind: &FilterKind| match kind {
                    FilterKind::Value(values) => values.word == word,
                    FilterKind::Prefix(_) => false,
                };
                let new = || FilterKind::Value(Values { word, places: Arc::new([0]) });
                self.filter(stage, slot, is_it, new);
            }
        }
    }

    /// The filter for which `is_it` holds, or a new one; `slot` becomes a member.
    fn filter(
        &mut self,
        stage: usize,
        slot: usize,
        is_it: impl Fn(&FilterKind) -> bool,
        new: impl FnOnce() -> FilterKind,
    ) -> &mut FilterKind {
        let at = self.0.iter().position(|filter| is_it(&filter.kind)).unwrap_or_else(|| {
            let kind = new();
            let is_before = |other: &Filter| {
                (other.stage, matches!(other.kind, FilterKind::Value(_)))
                    <= (stage, matches!(kind, FilterKind::Value(_)))
            };
            let at = self.0.partition_point(is_before);
            self.0.insert(at, Filter { stage, members: 0, kind });
            at
        });
        let filter = &mut self.0[at];
        filter.members |= 1 << slot;
        &mut filter.kind
    }

    /// The tables of values that `slot` is a member of.
    fn values_of(&mut self, slot: usize) -> impl Iterator<Item = (u64, &mut Values)> {
        self.0.iter_mut().filter_map(move |filter| match &mut filter.kind {
            FilterKind::Value(values) if filter.members >> slot & 1 == 1 => {
                Some((filter.members, values))
            }
            _ => None,
        })
    }

    /// Adds the newest of the `conditions` of a subtable. A table that has become too small is
    /// rebuilt: `all` calls its argument with slot, mask and values of each condition of a set of
    /// subtables.
    pub(crate) fn add(
        &mut self,
        slot: usize,
        (shape, values, conditions): (&SparseMask, &[u64], usize),
        all: impl Fn(u64, &mut dyn FnMut(usize, &SparseMask, &[u64])),
    ) {
        let needed = (conditions * PLACES_PER_CONDITION).min(MAX_PLACES);
        for (members, table) in self.values_of(slot) {
            if table.places.len() < needed {
                let places = (2 * needed).next_power_of_two().min(MAX_PLACES);
                table.places = std::iter::repeat_n(0, places).collect();
                all(members, &mut |slot, shape, values| table.add(slot, shape, values));
            }
            table.add(slot, shape, values);
        }
    }

    /// Replaces the conditions of a subtable by those that `all` calls its argument with.
    pub(crate) fn refresh(
        &mut self,
        slot: usize,
        all: impl Fn(u64, &mut dyn FnMut(usize, &SparseMask, &[u64])),
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
                match &mut filter.kind {
                    FilterKind::Prefix(lengths) => lengths.clear(slot),
                    FilterKind::Value(values) => values.clear(slot),
                }
            }
        }
        self.0.retain(|filter| filter.members != 0);
    }
}
