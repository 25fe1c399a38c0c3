//! Fields that are compared by prefix, and the fewest bits that prove that a key does not match a
//! condition.

use flow::{Field, FlowKey, FlowMask, WORDS, low_bits};

/// Fields whose values are allotted in prefixes: addresses and ports. A lookup reports prefixes of
/// these fields, and the whole of all other fields.
pub(crate) const PREFIX_FIELDS: [Field; PREFIX_FIELD_COUNT] = {
    let mut fields = [Field::InPort; PREFIX_FIELD_COUNT];
    let (mut at, mut count) = (0, 0);
    while at < Field::ALL.len() {
        if Field::ALL[at].is_in_prefixes() {
            fields[count] = Field::ALL[at];
            count += 1;
        }
        at += 1;
    }
    fields
};

const PREFIX_FIELD_COUNT: usize = {
    let (mut at, mut count) = (0, 0);
    while at < Field::ALL.len() {
        count += Field::ALL[at].is_in_prefixes() as usize;
        at += 1;
    }
    count
};

/// The length of the prefix that `mask` selects in a field of `width` bits. `None` when it selects
/// no bits, or bits that are not a prefix.
pub(crate) const fn prefix_len(mask: u128, width: u8) -> Option<u8> {
    let aligned = mask << (128 - width);
    let len = aligned.leading_ones() as u8;
    if len > 0 && aligned.count_ones() == len as u32 { Some(len) } else { None }
}

/// The first `len` bits of a field of `width` bits, right-aligned.
pub(crate) const fn prefix_mask(len: u8, width: u8) -> u128 {
    low_bits(width) & !low_bits(width - len)
}

/// The bits of one field in one word.
#[derive(Clone, Copy)]
struct Part {
    bits: u64,
    by_prefix: bool,
    /// The word before this one holds the upper half of the field.
    lower_half: bool,
}

const NO_PART: Part = Part { bits: 0, by_prefix: false, lower_half: false };

/// The most fields in one word of a key.
const MAX_PARTS: usize = {
    let mut fields = [0; WORDS];
    let (mut at, mut most) = (0, 0);
    while at < Field::ALL.len() {
        let field = Field::ALL[at];
        let last = field.word() + (field.width() == 128) as usize;
        let mut word = field.word();
        while word <= last {
            fields[word] += 1;
            most = if fields[word] > most { fields[word] } else { most };
            word += 1;
        }
        at += 1;
    }
    most
};

const PARTS: [[Part; MAX_PARTS]; WORDS] = parts();

const fn parts() -> [[Part; MAX_PARTS]; WORDS] {
    let mut parts = [[NO_PART; MAX_PARTS]; WORDS];
    let mut used = [0; WORDS];
    let mut at = 0;
    while at < Field::ALL.len() {
        let field = Field::ALL[at];
        let (word, by_prefix) = (field.word(), field.is_in_prefixes());
        let wide = field.width() == 128;
        let bits = if wide { u64::MAX } else { (field.all_ones() as u64) << field.shift() };
        parts[word][used[word]] = Part { bits, by_prefix, lower_half: false };
        used[word] += 1;
        if wide {
            parts[word + 1][used[word + 1]] = Part { bits, by_prefix, lower_half: true };
            used[word + 1] += 1;
        }
        at += 1;
    }
    parts
}

/// One word of a condition: which word, the bits that matter, and their values (0 elsewhere).
#[derive(Clone, Copy)]
pub(crate) struct Word {
    pub(crate) at: usize,
    pub(crate) mask: u64,
    pub(crate) value: u64,
}

/// The result of comparing a key with a condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comparison {
    /// The key matches.
    Match,
    /// The key does not match, and bits read before prove it.
    Known,
    /// The key does not match; the bits that prove it have been added.
    Read,
}

/// Compares `key` with the condition that consists of `words`. When the key does not match, `read`
/// then contains bits that prove it: those of one field, or of a prefix of it. The comparison adds
/// none when `read` proves it already, or when the key matches.
///
/// One differing bit would prove it as well. But keys that fail the same conditions would then
/// report many different combinations of bits, and each combination costs the datapath a lookup. A
/// field has few prefixes.
#[inline]
pub(crate) fn compare(
    key: &FlowKey,
    words: impl Iterator<Item = Word> + Clone,
    read: &mut FlowMask,
) -> Comparison {
    let mut all = 0;
    for word in words.clone() {
        let differ = (key.words()[word.at] ^ word.value) & word.mask;
        if differ & read.words()[word.at] != 0 {
            return Comparison::Known;
        }
        all |= differ;
    }
    if all == 0 {
        return Comparison::Match;
    }
    prove(key, words, read);
    Comparison::Read
}

/// Adds the bits of the first field that differs.
fn prove(key: &FlowKey, words: impl Iterator<Item = Word>, read: &mut FlowMask) {
    let mut before: Option<Word> = None;
    for word in words {
        let differ = (key.words()[word.at] ^ word.value) & word.mask;
        if differ == 0 {
            before = Some(word);
            continue;
        }
        let first = 63 - differ.leading_zeros();
        let part = PARTS[word.at].iter().find(|part| part.bits >> first & 1 == 1);
        // The bit belongs to no field: report the whole word of the condition.
        let part = part.copied().unwrap_or(Part { bits: u64::MAX, ..NO_PART });
        let bits = if part.by_prefix { part.bits & u64::MAX << first } else { part.bits };
        let read = read.words_mut();
        read[word.at] |= word.mask & bits;
        if part.by_prefix
            && part.lower_half
            && let Some(upper) = before
            && upper.at + 1 == word.at
        {
            read[upper.at] |= upper.mask;
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_length_and_mask_are_inverse() {
        for (mask, width, len) in [
            (0xffff_ff00, 32, Some(24)),
            (0xffff_ffff, 32, Some(32)),
            (u128::MAX, 128, Some(128)),
            (0x8000, 16, Some(1)),
            (0, 32, None),
            (0x00ff_ff00, 32, None),
            (0xff00_ff00, 32, None),
        ] {
            assert_eq!(prefix_len(mask, width), len, "{mask:#x}");
            assert!(len.is_none_or(|len| prefix_mask(len, width) == mask), "{mask:#x}");
        }
    }

    /// The columns are condition, key, bits read before, and bits that the proof adds. Each is a
    /// list of field, value and mask.
    #[test]
    fn proof_is_one_field_or_a_prefix_of_it() {
        use Field::{EthDst, EthType, Ip4Dst, Ip6Dst, TpDst};
        let v6 = 0x2001_0db8_0000_0000_0000_0000_0000_0001;
        let arp = (EthType, 0x806, 0xffff);
        let http = (TpDst, 80, 0xffff);
        type Bits<'a> = &'a [(Field, u128, u128)];
        let table: [(Bits<'_>, Bits<'_>, Bits<'_>, Bits<'_>); 8] = [
            (&[arp], &[arp], &[], &[]),
            (&[arp], &[(EthType, 0x800, 0)], &[], &[(EthType, 0, 0xffff)]),
            // The first field that differs is enough.
            (&[arp, http], &[], &[], &[(EthType, 0, 0xffff)]),
            // A field that was read before costs nothing.
            (&[arp, http], &[], &[(TpDst, 0, 0x40)], &[]),
            (&[(EthDst, 5, 0xff)], &[(EthDst, 4, 0)], &[], &[(EthDst, 0, 0xff)]),
            (
                &[(Ip4Dst, 0x0a00_0001, !0)],
                &[(Ip4Dst, 0x0b00_0000, 0)],
                &[],
                &[(Ip4Dst, 0, 0xff00_0000)],
            ),
            (&[(Ip6Dst, v6, !0)], &[(Ip6Dst, v6 ^ 1 << 126, 0)], &[], &[(Ip6Dst, 0, 3 << 126)]),
            (&[(Ip6Dst, v6, !0)], &[(Ip6Dst, v6 ^ 4, 0)], &[], &[(Ip6Dst, 0, !3)]),
        ];
        for (condition, packet, before, added) in table {
            let mut rule = flow::Match::any();
            assert!(condition.iter().all(|&(f, value, mask)| rule.require(f, value, mask)));
            let (mut key, mut read) = (FlowKey::default(), FlowMask::default());
            packet.iter().for_each(|&(f, value, _)| key.set(f, value));
            before.iter().for_each(|&(f, _, bits)| read.add_bits(f, bits));
            let mut expected = read.clone();
            added.iter().for_each(|&(f, _, bits)| expected.add_bits(f, bits));

            let words = (0..WORDS).map(|at| Word {
                at,
                mask: rule.mask().words()[at],
                value: rule.key().words()[at],
            });
            let comparison = match (rule.matches(&key), added) {
                (true, _) => Comparison::Match,
                (false, []) => Comparison::Known,
                _ => Comparison::Read,
            };
            assert_eq!(compare(&key, words, &mut read), comparison, "{rule:?} {key:?}");
            assert_eq!(read, expected, "{rule:?} {key:?}");
        }
    }
}
