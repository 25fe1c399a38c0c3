//! The prefixes of all rules, field by field, and what a lookup has learned from them.

use crate::prefix::{PREFIX_FIELDS, prefix_len, prefix_mask};
use crate::trie::{Found, Trie};
use flow::{FlowKey, FlowMask, Match, low_bits};
use std::ops::Range;
use std::sync::Arc;

/// A mask takes a prefix of a field.
#[derive(Clone, Copy)]
pub(crate) struct Track {
    /// Which of [`PREFIX_FIELDS`].
    field: u8,
    /// Bits, 1 to 128.
    len: u8,
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

/// What is known of one field of the key.
#[derive(Clone, Copy, Default)]
struct Known {
    found: Option<Found>,
    /// So many of its first bits are among those read, because of this field's trie.
    shown: u8,
    /// Bit `n - 1`: these bits show that no rule has the first `n` bits as a prefix.
    excluded: u128,
}

/// Asks each trie at most once in a lookup, and only when a rule depends on it.
pub(crate) struct Tracker<'a> {
    tries: &'a Tries,
    key: &'a FlowKey,
    known: [Known; PREFIX_FIELDS.len()],
}

impl<'a> Tracker<'a> {
    pub(crate) fn new(tries: &'a Tries, key: &'a FlowKey) -> Self {
        Self { tries, key, known: Default::default() }
    }

    /// True when bits that were read already show that no rule has these prefixes.
    #[inline]
    pub(crate) fn has_excluded(&self, tracks: &[Track]) -> bool {
        tracks.iter().any(|t| self.known[usize::from(t.field)].excluded >> (t.len - 1) & 1 == 1)
    }

    /// True when no rule has one of these prefixes. `read` gets the bits that show it.
    #[inline]
    pub(crate) fn excludes(&mut self, tracks: &[Track], read: &mut FlowMask) -> bool {
        tracks.iter().any(|&track| self.excludes_one(track, read))
    }

    fn excludes_one(&mut self, track: Track, read: &mut FlowMask) -> bool {
        let at = usize::from(track.field);
        let known = &mut self.known[at];
        let found = match (known.found, &self.tries.0[at]) {
            (Some(found), _) => found,
            (None, Some(trie)) => {
                *known.found.insert(trie.find(left_aligned(self.key, track.field)))
            }
            (None, None) => return false,
        };
        if found.lengths >> (track.len - 1) & 1 == 1 {
            return false;
        }
        let needed = track.len.min(found.deciding);
        if needed > known.shown {
            known.shown = needed;
            let up_to = if needed == found.deciding { 128 } else { needed };
            known.excluded = low_bits(up_to) & !found.lengths;
            let field = PREFIX_FIELDS[at];
            read.add_bits(field, prefix_mask(needed, field.width()));
        }
        true
    }
}
