//! The prefixes of all rules, field by field, and what a lookup has learned from them.

use crate::prefix::{PREFIX_FIELDS, prefix_len, prefix_mask};
use crate::trie::{Found, Trie};
use flow::{Field, FlowKey, FlowMask, Match, low_bits};
use std::ops::Range;
use std::sync::Arc;

/// A mask takes a prefix of a field.
#[derive(Clone, Copy)]
pub(crate) struct Track {
    /// Which of [`PREFIX_FIELDS`].
    pub(crate) field: u8,
    /// Bits, 1 to 128.
    pub(crate) len: u8,
}

impl Track {
    pub(crate) const fn field(self) -> Field {
        PREFIX_FIELDS[self.field as usize]
    }
}

/// The prefixes that `mask` takes of fields in `words`.
pub(crate) fn tracks(mask: &FlowMask, words: Range<usize>) -> Box<[Track]> {
    let fields = (0..).zip(PREFIX_FIELDS).filter(|(_, field)| words.contains(&field.word()));
    let track = fields.filter_map(|(at, field)| {
        Some(Track { field: at, len: prefix_len(mask.get(field), field.width())? })
    });
    track.collect()
}

/// For each of [`PREFIX_FIELDS`] the prefixes that conditions have, if any.
#[derive(Clone, Default)]
pub(crate) struct Tries([Option<Arc<Trie>>; PREFIX_FIELDS.len()]);

/// The value of a field, left aligned.
fn left_aligned(key: &FlowKey, field: u8) -> u128 {
    let field = PREFIX_FIELDS[usize::from(field)];
    key.get(field) << (128 - field.width())
}

impl Tries {
    /// Notes the prefixes of a condition.
    pub(crate) fn insert(&mut self, tracks: &[Track], condition: &Match) {
        for track in tracks {
            let trie = Arc::make_mut(self.0[usize::from(track.field)].get_or_insert_default());
            trie.insert(left_aligned(condition.key(), track.field), track.len);
        }
    }

    /// Forgets the prefixes of a condition that was inserted.
    pub(crate) fn remove(&mut self, tracks: &[Track], condition: &Match) {
        for track in tracks {
            let slot = &mut self.0[usize::from(track.field)];
            let Some(trie) = slot else { continue };
            let trie = Arc::make_mut(trie);
            trie.remove(left_aligned(condition.key(), track.field), track.len);
            if trie.is_empty() {
                *slot = None;
            }
        }
    }
}

/// Asks each trie at most once in a lookup, and only when a rule depends on it.
pub(crate) struct Tracker<'a> {
    tries: &'a Tries,
    key: &'a FlowKey,
    found: [Option<Found>; PREFIX_FIELDS.len()],
}

impl<'a> Tracker<'a> {
    pub(crate) fn new(tries: &'a Tries, key: &'a FlowKey) -> Self {
        Self { tries, key, found: [None; PREFIX_FIELDS.len()] }
    }

    /// What the rules have of this field's value.
    #[inline]
    pub(crate) fn found(&mut self, field: u8) -> Found {
        let at = usize::from(field);
        *self.found[at].get_or_insert_with(|| match &self.tries.0[at] {
            Some(trie) => trie.find(left_aligned(self.key, field)),
            None => Found::default(),
        })
    }

    /// Bit `n - 1`: the bits that are in `read` show that no rule has the first `n` bits of the field as a prefix.
    pub(crate) fn excluded_by(&mut self, field: u8, read: &FlowMask) -> u128 {
        let found = self.found(field);
        let known = read.get(PREFIX_FIELDS[usize::from(field)]);
        let known = known << (128 - PREFIX_FIELDS[usize::from(field)].width());
        let known = known.leading_ones() as u8;
        !found.lengths & low_bits(if known >= found.deciding { 128 } else { known })
    }

    /// Adds the bits that show that no rule has such a prefix; none has.
    pub(crate) fn read(&mut self, track: Track, read: &mut FlowMask) {
        let needed = track.len.min(self.found(track.field).deciding);
        read.add_bits(track.field(), prefix_mask(needed, track.field().width()));
    }

    /// True when no rule has one of these prefixes. `read` gets the bits that show it.
    pub(crate) fn excludes(&mut self, tracks: &[Track], read: &mut FlowMask) -> bool {
        let is_absent =
            |track: &&Track| self.found(track.field).lengths >> (track.len - 1) & 1 == 0;
        let Some(&absent) = tracks.iter().find(is_absent) else { return false };
        self.read(absent, read);
        true
    }

    /// True when the bits that are in `read` show that no rule has one of these prefixes.
    pub(crate) fn has_excluded(&mut self, tracks: &[Track], read: &FlowMask) -> bool {
        tracks.iter().any(|t| self.excluded_by(t.field, read) >> (t.len - 1) & 1 == 1)
    }
}
