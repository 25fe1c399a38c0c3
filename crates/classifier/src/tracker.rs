//! The prefixes of all rules, field by field, and the results of one lookup in them.

use crate::prefix::{PREFIX_FIELDS, prefix_len, prefix_mask};
use crate::trie::{PrefixMatches, Trie};
use flow::{Field, FlowKey, FlowMask, Match, low_bits};
use std::ops::Range;
use std::sync::Arc;

/// A prefix of a field that a mask selects.
#[derive(Clone, Copy)]
pub(crate) struct FieldPrefix {
    /// The index in [`PREFIX_FIELDS`].
    pub(crate) field: u8,
    /// Bits, 1 to 128.
    pub(crate) len: u8,
}

impl FieldPrefix {
    pub(crate) const fn field(self) -> Field {
        PREFIX_FIELDS[self.field as usize]
    }
}

/// The prefixes that `mask` selects of fields in `words`.
pub(crate) fn field_prefixes(mask: &FlowMask, words: Range<usize>) -> Box<[FieldPrefix]> {
    let fields = (0..).zip(PREFIX_FIELDS).filter(|(_, field)| words.contains(&field.word()));
    let prefix = fields.filter_map(|(at, field)| {
        Some(FieldPrefix { field: at, len: prefix_len(mask.get(field), field.width())? })
    });
    prefix.collect()
}

/// The prefixes of all conditions for each of [`PREFIX_FIELDS`].
#[derive(Clone, Default)]
pub(crate) struct Tries([Option<Arc<Trie>>; PREFIX_FIELDS.len()]);

/// The value of a field, left-aligned.
fn left_aligned(key: &FlowKey, field: u8) -> u128 {
    let field = PREFIX_FIELDS[usize::from(field)];
    key.get(field) << (128 - field.width())
}

impl Tries {
    /// Adds the prefixes of a condition.
    pub(crate) fn insert(&mut self, field_prefixes: &[FieldPrefix], condition: &Match) {
        for prefix in field_prefixes {
            let trie = Arc::make_mut(self.0[usize::from(prefix.field)].get_or_insert_default());
            trie.insert(left_aligned(condition.key(), prefix.field), prefix.len);
        }
    }

    /// Removes the prefixes of a condition that was added.
    pub(crate) fn remove(&mut self, field_prefixes: &[FieldPrefix], condition: &Match) {
        for prefix in field_prefixes {
            let slot = &mut self.0[usize::from(prefix.field)];
            let Some(trie) = slot else { continue };
            let trie = Arc::make_mut(trie);
            trie.remove(left_aligned(condition.key(), prefix.field), prefix.len);
            if trie.is_empty() {
                *slot = None;
            }
        }
    }
}

/// Searches each trie at most once in a lookup, and only when a rule depends on it.
pub(crate) struct PrefixTracker<'a> {
    tries: &'a Tries,
    key: &'a FlowKey,
    found: [Option<PrefixMatches>; PREFIX_FIELDS.len()],
}

impl<'a> PrefixTracker<'a> {
    pub(crate) fn new(tries: &'a Tries, key: &'a FlowKey) -> Self {
        Self { tries, key, found: [None; PREFIX_FIELDS.len()] }
    }

    /// The prefixes of the field's value that rules have.
    #[inline]
    pub(crate) fn found(&mut self, field: u8) -> PrefixMatches {
        let at = usize::from(field);
        *self.found[at].get_or_insert_with(|| match &self.tries.0[at] {
            Some(trie) => trie.find(left_aligned(self.key, field)),
            None => PrefixMatches::default(),
        })
    }

    /// Bit `n - 1` is set when the bits in `read` prove that no rule has the first `n` bits of the
    /// field as a prefix.
    pub(crate) fn excluded_by(&mut self, field: u8, read: &FlowMask) -> u128 {
        let known = read.get(PREFIX_FIELDS[usize::from(field)]);
        if known == 0 {
            return 0;
        }
        let found = self.found(field);
        let known = known << (128 - PREFIX_FIELDS[usize::from(field)].width());
        let known = known.leading_ones() as u8;
        !found.lengths & low_bits(if known >= found.deciding { 128 } else { known })
    }

    /// Adds the bits which prove that no rule has such a prefix. The caller knows that none has.
    pub(crate) fn read(&mut self, prefix: FieldPrefix, read: &mut FlowMask) {
        let needed = prefix.len.min(self.found(prefix.field).deciding);
        read.add_bits(prefix.field(), prefix_mask(needed, prefix.field().width()));
    }

    /// True when no rule has one of these prefixes; then adds to `read` the bits that prove it.
    pub(crate) fn excludes(&mut self, field_prefixes: &[FieldPrefix], read: &mut FlowMask) -> bool {
        let is_absent =
            |prefix: &&FieldPrefix| self.found(prefix.field).lengths >> (prefix.len - 1) & 1 == 0;
        let Some(&absent) = field_prefixes.iter().find(is_absent) else { return false };
        self.read(absent, read);
        true
    }

    /// True when the bits in `read` prove that no rule has one of these prefixes.
    pub(crate) fn has_excluded(&mut self, field_prefixes: &[FieldPrefix], read: &FlowMask) -> bool {
        field_prefixes.iter().any(|t| self.excluded_by(t.field, read) >> (t.len - 1) & 1 == 1)
    }
}
