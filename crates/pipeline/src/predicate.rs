//! What is left of a flow's match when it is too large to be written as rules of a classifier: a condition that is
//! evaluated, bit by recorded bit, for the packets that reach the flow.

use crate::recorder::Recorder;
use flow::{Field, Subfield};

/// A condition on a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Predicate {
    /// All of them; true when there are none.
    All(Box<[Predicate]>),
    /// At least one of them; false when there are none.
    Any(Box<[Predicate]>),
    /// The bits of `field` that are one in `mask` are as in `value`.
    Masked {
        /// The field.
        field: Field,
        /// 0 outside the mask.
        value: u128,
        /// Which bits.
        mask: u128,
    },
    /// The value is one of these.
    OneOf {
        /// Which bits.
        bits: Subfield,
        /// In ascending order, each once.
        values: Box<[u128]>,
    },
    /// The value lies in one of these ranges.
    InRanges {
        /// Which bits.
        bits: Subfield,
        /// First and last value, in ascending order and apart from each other.
        ranges: Box<[(u128, u128)]>,
    },
    /// It does not hold.
    Not(Box<Predicate>),
}

impl Predicate {
    /// True when the packet meets the condition. What is read to find out is recorded.
    pub fn holds(&self, key: &mut impl Recorder) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(key)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(key)),
            Self::Masked { field, value, mask } => key.read(*field, *mask) == *value,
            Self::OneOf { bits, values } => values.binary_search(&key.read_bits(*bits)).is_ok(),
            Self::InRanges { bits, ranges } => {
                let value = key.read_bits(*bits);
                let after = ranges.partition_point(|&(first, _)| first <= value);
                after.checked_sub(1).is_some_and(|at| value <= ranges[at].1)
            }
            Self::Not(inner) => !inner.holds(key),
        }
    }
}
