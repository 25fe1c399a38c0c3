//! [`FlowKey`]: the fields of a packet; [`FlowMask`]: the bits of a key that matter; [`Match`]: a
//! condition on keys.

use crate::field::{Field, PACKET_WORDS, Subfield, TRACKED_WORDS, WORDS};
use std::fmt;

macro_rules! word_array {
    ($(#[doc = $doc:literal])+ $name:ident) => {
        $(#[doc = $doc])+
        #[derive(Clone, PartialEq, Eq, Hash)]
        #[repr(C)]
        pub struct $name([u64; WORDS]);

        impl Default for $name {
            fn default() -> Self {
                Self([0; WORDS])
            }
        }

        impl $name {
            /// The words, in the order of [`STAGES`](crate::STAGES).
            #[inline]
            pub const fn words(&self) -> &[u64; WORDS] {
                &self.0
            }

            /// The words, for writing.
            #[inline]
            pub const fn words_mut(&mut self) -> &mut [u64; WORDS] {
                &mut self.0
            }

            /// The value of a field, right-aligned.
            #[inline]
            pub fn get(&self, field: Field) -> u128 {
                let word = field.word();
                if field.width() == 128 {
                    u128::from(self.0[word]) << 64 | u128::from(self.0[word + 1])
                } else {
                    u128::from(self.0[word] >> field.shift()) & field.all_ones()
                }
            }

            /// Writes a field. Bits of `value` beyond the width of the field are ignored.
            #[inline]
            pub fn set(&mut self, field: Field, value: u128) {
                let word = field.word();
                if field.width() == 128 {
                    self.0[word] = (value >> 64) as u64;
                    self.0[word + 1] = value as u64;
                } else {
                    let ones = field.all_ones() as u64;
                    let kept = self.0[word] & !(ones << field.shift());
                    self.0[word] = kept | (value as u64 & ones) << field.shift();
                }
            }

            /// The value of some bits of a field, right-aligned.
            #[inline]
            pub fn get_bits(&self, bits: Subfield) -> u128 {
                self.get(bits.field()) >> bits.first() & crate::field::low_bits(bits.width())
            }

            /// Writes some bits of a field. Bits of `value` beyond their number are ignored.
            #[inline]
            pub fn set_bits(&mut self, bits: Subfield, value: u128) {
                let mask = bits.field_mask();
                let kept = self.get(bits.field()) & !mask;
                self.set(bits.field(), kept | value << bits.first() & mask);
            }
        }
    };
}

word_array! {
    /// The fields of a packet that a decision may depend on, and the registers of the pipeline. A
    /// field that the packet lacks is 0.
    ///
    /// A translation reads keys only through a recorder, which adds each bit read to a
    /// [`FlowMask`].
    FlowKey
}

word_array! {
    /// A mask of key bits: a one for every bit that matters.
    FlowMask
}

impl FlowMask {
    /// Every bit of every field.
    pub fn exact() -> Self {
        let mut mask = Self::default();
        Field::ALL.iter().for_each(|&field| mask.add(field));
        mask
    }

    /// Adds all bits of a field.
    #[inline]
    pub fn add(&mut self, field: Field) {
        self.set(field, u128::MAX);
    }

    /// Adds some bits of a field: the ones in `bits`, right-aligned.
    #[inline]
    pub fn add_bits(&mut self, field: Field, bits: u128) {
        let have = self.get(field);
        self.set(field, have | bits);
    }

    /// Adds every bit of `other`.
    #[inline]
    pub fn union(&mut self, other: &Self) {
        for (have, more) in self.0.iter_mut().zip(&other.0) {
            *have |= more;
        }
    }

    /// True when the mask has every bit of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(have, need)| need & !have == 0)
    }

    /// The bits of `other` that the mask lacks.
    pub fn missing_bits(&self, other: &Self) -> Self {
        let mut missing = other.clone();
        missing.0.iter_mut().zip(&self.0).for_each(|(need, have)| *need &= !have);
        missing
    }

    /// True when the two keys agree on every bit of the mask.
    #[inline]
    pub fn agree(&self, a: &FlowKey, b: &FlowKey) -> bool {
        self.0.iter().zip(a.0.iter().zip(&b.0)).all(|(mask, (a, b))| (a ^ b) & mask == 0)
    }

    /// The key with every bit outside the mask cleared.
    pub fn apply(&self, key: &FlowKey) -> FlowKey {
        let mut masked = key.clone();
        masked.0.iter_mut().zip(&self.0).for_each(|(word, mask)| *word &= mask);
        masked
    }

    /// Only the bits of fields that a packet carries in its first pass. The registers of the
    /// pipeline are 0 in every packet that arrives, so a megaflow need not compare them.
    pub fn of_packet(&self) -> Self {
        let mut mask = self.clone();
        let [before, after] = PACKET_WORDS;
        mask.0[before.end..after.start].fill(0);
        mask.set(Field::PktMark, 0);
        mask
    }

    /// Only the bits of fields that a packet carries in a later pass: those of the first pass, and
    /// those that the datapath fills in after connection tracking.
    pub fn of_recirculated(&self) -> Self {
        let mut mask = self.of_packet();
        mask.0[TRACKED_WORDS].copy_from_slice(&self.0[TRACKED_WORDS]);
        mask
    }

    /// The fields that have a bit in the mask, each with its bits.
    pub fn fields(&self) -> impl Iterator<Item = (Field, u128)> + '_ {
        Field::ALL.iter().map(|&f| (f, self.get(f))).filter(|&(_, bits)| bits != 0)
    }
}

/// A condition on keys: the key agrees with `key` on all bits of `mask`. Bits of `key` outside the
/// mask are 0, so that equal conditions compare equal.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Match {
    key: FlowKey,
    mask: FlowMask,
}

impl Match {
    /// The condition that every key matches.
    pub fn any() -> Self {
        Self::default()
    }

    /// The condition to agree with `key` on the bits of `mask`.
    pub fn new(key: &FlowKey, mask: FlowMask) -> Self {
        Self { key: mask.apply(key), mask }
    }

    /// Adds a requirement: the bits of `field` in `mask` are as in `value`. Returns `false`, and
    /// changes nothing, when that contradicts the condition: no key could match both.
    #[must_use]
    pub fn require(&mut self, field: Field, value: u128, mask: u128) -> bool {
        let both = self.mask.get(field) & mask;
        if (self.key.get(field) ^ value) & both != 0 {
            return false;
        }
        let have = self.key.get(field);
        self.key.set(field, have | value & mask);
        self.mask.add_bits(field, mask);
        true
    }

    /// Adds another condition. Returns `false`, and leaves the condition unspecified, when no key
    /// can match both.
    #[must_use]
    pub fn and(&mut self, other: &Self) -> bool {
        for word in 0..WORDS {
            let both = self.mask.0[word] & other.mask.0[word];
            if (self.key.0[word] ^ other.key.0[word]) & both != 0 {
                return false;
            }
            self.mask.0[word] |= other.mask.0[word];
            self.key.0[word] |= other.key.0[word];
        }
        true
    }

    /// True if no key can match both conditions.
    pub fn excludes(&self, other: &Self) -> bool {
        let differ = |word: usize| {
            (self.key.0[word] ^ other.key.0[word]) & self.mask.0[word] & other.mask.0[word] != 0
        };
        (0..WORDS).any(differ)
    }

    /// True when `key` matches.
    #[inline]
    pub fn matches(&self, key: &FlowKey) -> bool {
        self.mask.agree(&self.key, key)
    }

    /// The values, 0 outside the mask.
    pub const fn key(&self) -> &FlowKey {
        &self.key
    }

    /// The bits that matter.
    pub const fn mask(&self) -> &FlowMask {
        &self.mask
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = Field::ALL.iter().map(|&f| (f, self.get(f))).filter(|&(_, value)| value != 0);
        write_fields(f, set.map(|(field, value)| (field, value, field.all_ones())))
    }
}

impl fmt::Debug for FlowMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_fields(f, self.fields().map(|(field, bits)| (field, bits, field.all_ones())))
    }
}

impl fmt::Debug for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_fields(f, self.mask.fields().map(|(field, bits)| (field, self.key.get(field), bits)))
    }
}

fn write_fields(
    f: &mut fmt::Formatter<'_>,
    fields: impl Iterator<Item = (Field, u128, u128)>,
) -> fmt::Result {
    let mut list = f.debug_set();
    for (field, value, mask) in fields {
        if mask == field.all_ones() {
            list.entry(&format_args!("{field}={value:#x}"));
        } else {
            list.entry(&format_args!("{field}={value:#x}/{mask:#x}"));
        }
    }
    list.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_changes_one_field_only() {
        for &field in Field::ALL {
            let mut key = FlowKey(FlowMask::exact().0);
            key.set(field, 0);
            assert_eq!(key.get(field), 0);
            for &other in Field::ALL.iter().filter(|&&other| other != field) {
                assert_eq!(key.get(other), other.all_ones(), "{field} {other}");
            }
            key.set(field, u128::MAX);
            assert_eq!(key.0, FlowMask::exact().0, "{field}");
        }
    }

    #[test]
    fn wide_registers_alias_the_narrow_ones() {
        let mut key = FlowKey::default();
        key.set(Field::Xxreg1, 0x0001_0002_0003_0004_0005_0006_0007_0008);
        assert_eq!(key.get(Field::Reg4), 0x0001_0002);
        assert_eq!(key.get(Field::Xreg3), 0x0005_0006_0007_0008);
        key.set_bits(Subfield::new(Field::Reg7, 4, 8).unwrap(), 0xfff);
        assert_eq!(key.get(Field::Xreg3), 0x0005_0006_0007_0ff8);
        assert_eq!(key.get_bits(Subfield::new(Field::Xxreg1, 60, 8).unwrap()), 0x40);
    }

    #[test]
    fn contradicting_requirements_are_refused() {
        let mut m = Match::any();
        assert!(m.require(Field::TpDst, 80, 0xffff));
        assert!(!m.clone().require(Field::TpDst, 81, 0xffff));
        assert!(m.clone().require(Field::TpDst, 0x1150, 0x00ff));
        let mut other = Match::any();
        assert!(other.require(Field::IpProto, 6, 0xff));
        assert!(m.and(&other));
        assert!(other.require(Field::TpDst, 81, 1));
        assert!(!m.and(&other));
    }

    #[test]
    fn packet_mask_has_no_register() {
        let mask = FlowMask::exact().of_packet();
        assert!(mask.fields().all(|(f, bits)| !f.is_register() && bits == f.all_ones()));
        assert!(FlowMask::exact().covers(&mask) && !mask.covers(&FlowMask::exact()));
    }
}
