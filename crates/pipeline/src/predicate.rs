//! [`Predicate`]: the part of a flow's match that would need too many classifier rules. It is
//! evaluated for each packet that matches the rest, and every bit read is recorded.

use crate::recorder::Recorder;
use flow::{Field, Subfield, low_bits};

/// A condition on a flow key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Predicate {
    /// All parts hold; true without parts.
    All(Box<[Predicate]>),
    /// At least one part holds; false without parts.
    Any(Box<[Predicate]>),
    /// The bits of `field` that are 1 in `mask` equal those of `value`.
    Masked {
        /// The field.
        field: Field,
        /// The value; 0 outside the mask.
        value: u128,
        /// The mask.
        mask: u128,
    },
    /// The value is one of these.
    OneOf {
        /// The bits compared.
        bits: Subfield,
        /// The values, in ascending order without duplicates.
        values: Box<[u128]>,
    },
    /// The value is in one of these ranges.
    InRanges {
        /// The bits compared.
        bits: Subfield,
        /// First and last value of each range, in ascending order; ranges neither overlap nor
        /// touch.
        ranges: Box<[(u128, u128)]>,
    },
    /// The inner condition does not hold.
    Not(Box<Predicate>),
}

/// The number of bits read at a time. Evaluation stops as soon as the result is known; bits that
/// are not read stay out of the mask, so that the megaflow serves more packets.
const CHUNK_WIDTH: u8 = 8;

impl Predicate {
    /// True when the condition holds. Reads the highest bits first, and stops when the result is
    /// known.
    pub fn holds(&self, key: &mut impl Recorder) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(key)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(key)),
            Self::Masked { field, value, mask } => {
                chunks(*mask).all(|chunk| key.read(*field, chunk) == value & chunk)
            }
            Self::OneOf { bits, values } => read_until_known(key, *bits, |low, high| {
                let after = values.partition_point(|&value| value <= high);
                match after.checked_sub(1).and_then(|index| values.get(index)) {
                    Some(&value) if value >= low => (low == high).then_some(true),
                    _ => Some(false),
                }
            }),
            Self::InRanges { bits, ranges } => read_until_known(key, *bits, |low, high| {
                let after = ranges.partition_point(|&(first, _)| first <= high);
                match after.checked_sub(1).and_then(|index| ranges.get(index)) {
                    Some(&(first, last)) if last >= low => {
                        (first <= low && high <= last).then_some(true)
                    }
                    _ => Some(false),
                }
            }),
            Self::Not(inner) => !inner.holds(key),
        }
    }
}

/// Splits a mask into chunks of [`CHUNK_WIDTH`] bits, the highest first.
fn chunks(mut mask: u128) -> impl Iterator<Item = u128> {
    std::iter::from_fn(move || {
        let top = mask.checked_ilog2()?;
        let below = (top + 1).saturating_sub(u32::from(CHUNK_WIDTH));
        let chunk = mask & u128::MAX << below;
        mask ^= chunk;
        Some(chunk)
    })
}

/// Reads bits, the highest first, until all values that match the bits read give the same answer.
/// `answer` gets the lowest and the highest of these values.
fn read_until_known(
    key: &mut impl Recorder,
    bits: Subfield,
    answer: impl Fn(u128, u128) -> Option<bool>,
) -> bool {
    let (mut value, mut unknown) = (0, bits.width());
    while unknown > 0 {
        let width = unknown.min(CHUNK_WIDTH);
        unknown -= width;
        if let Some(chunk) = Subfield::new(bits.field(), bits.first() + unknown, width) {
            value |= key.read_bits(chunk) << unknown;
        }
        if let Some(answer) = answer(value, value | low_bits(unknown)) {
            return answer;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::PlainRecorder;
    use flow::{FlowKey, FlowMask};
    use proptest::prelude::*;

    fn evaluated(predicate: &Predicate, key: &FlowKey) -> (bool, FlowMask) {
        let mut read = FlowMask::default();
        let holds = predicate.holds(&mut PlainRecorder { key, read: &mut read });
        (holds, read)
    }

    #[test]
    fn evaluation_stops_when_the_answer_is_known() {
        let bits = Subfield::whole(Field::Ip4Src);
        let ten = 0x0a00_0000;
        let masked =
            Predicate::Masked { field: Field::Ip4Src, value: ten | 1, mask: u32::MAX.into() };
        let one_of = Predicate::OneOf { bits, values: [ten | 1, ten | 2].into() };
        let ranges = Predicate::InRanges { bits, ranges: [(ten, ten | 0xffff)].into() };
        for (predicate, address, holds, read) in [
            (&masked, 0x0b00_0001, false, 0xff00_0000),
            (&masked, ten | 1, true, 0xffff_ffff),
            (&one_of, 0x0a01_0001, false, 0xffff_0000),
            (&one_of, ten | 2, true, 0xffff_ffff),
            (&one_of, ten | 3, false, 0xffff_ffff),
            (&ranges, ten | 7, true, 0xffff_0000),
            (&ranges, 0x0900_0000, false, 0xff00_0000),
        ] {
            let mut key = FlowKey::default();
            key.set(Field::Ip4Src, address);
            let (found, mask) = evaluated(predicate, &key);
            assert_eq!(
                (found, mask.get(Field::Ip4Src)),
                (holds, read),
                "{predicate:?} {address:#x}"
            );
        }
    }

    /// Predicates on few values of few bits, so that both results occur.
    fn predicate() -> impl Strategy<Value = Predicate> {
        let bits = Subfield::new(Field::Ip4Src, 3, 20).unwrap();
        let value = || prop_oneof![0u128..16, 0xff0u128..0x1010, Just(0xf_ffff)];
        let leaf = prop_oneof![
            (value(), value()).prop_map(|(value, mask)| Predicate::Masked {
                field: Field::Ip4Src,
                value: value & mask,
                mask,
            }),
            prop::collection::btree_set(value(), 0..5).prop_map(move |values| Predicate::OneOf {
                bits,
                values: values.into_iter().collect(),
            }),
            prop::collection::btree_set(value(), 4).prop_map(move |ends| {
                let ends: Vec<_> = ends.into_iter().collect();
                let ranges = ends.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
                Predicate::InRanges { bits, ranges }
            }),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            let parts = || prop::collection::vec(inner.clone(), 0..3);
            prop_oneof![
                parts().prop_map(|parts| Predicate::All(parts.into())),
                parts().prop_map(|parts| Predicate::Any(parts.into())),
                inner.clone().prop_map(|part| Predicate::Not(Box::new(part))),
            ]
        })
    }

    /// A naive evaluation, as the oracle.
    fn naive(predicate: &Predicate, key: &FlowKey) -> bool {
        match predicate {
            Predicate::All(parts) => parts.iter().all(|part| naive(part, key)),
            Predicate::Any(parts) => parts.iter().any(|part| naive(part, key)),
            Predicate::Masked { field, value, mask } => key.get(*field) & mask == *value,
            Predicate::OneOf { bits, values } => values.contains(&key.get_bits(*bits)),
            Predicate::InRanges { bits, ranges } => {
                let value = key.get_bits(*bits);
                ranges.iter().any(|&(first, last)| (first..=last).contains(&value))
            }
            Predicate::Not(inner) => !naive(inner, key),
        }
    }

    proptest! {
        #[test]
        fn unread_bits_do_not_change_the_answer(
            predicate in predicate(),
            address in prop_oneof![0u32..256, 0x7f00u32..0x8100, any::<u32>()],
            flips in any::<u32>(),
        ) {
            let mut key = FlowKey::default();
            key.set(Field::Ip4Src, address.into());
            let (holds, read) = evaluated(&predicate, &key);
            prop_assert_eq!(holds, naive(&predicate, &key));
            let unread = u128::from(flips) & !read.get(Field::Ip4Src);
            key.set(Field::Ip4Src, u128::from(address) ^ unread);
            prop_assert_eq!(holds, naive(&predicate, &key));
        }
    }
}
