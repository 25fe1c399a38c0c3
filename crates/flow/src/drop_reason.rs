//! Drop reasons, and a counter for each of them.

use wire::{ParseError, ParseErrorKind};

/// Generates the enum from the list in `drop_reasons.in`: number, variant, name and meaning of each
/// reason.
///
/// The list is a separate file because the kernel datapath's build script also reads it, to
/// generate the C constants of the BPF programs.
macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $number:literal $variant:ident $name:literal,)+) => {
        /// The reason why a packet was not delivered. Numbers are stable and never reused, so that
        /// counters of different versions can be compared.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant = $number,)+
        }

        impl DropReason {
            /// Every reason, by number.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name in counters and output: lower case, words joined by `_`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The meaning, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

include!("drop_reasons.in");

impl DropReason {
    /// The reason for a frame that has no flow key ([`extract`](crate::extract())).
    pub const fn of_invalid_frame(error: ParseError) -> Self {
        match error.kind {
            ParseErrorKind::TooDeep => Self::TagsTooDeep,
            _ => Self::Malformed,
        }
    }
}

/// A counter for every reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

impl DropCounters {
    /// Counts `packets` under `reason`.
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// Moves up to `packets` from one reason to another.
    pub fn rename(&mut self, from: DropReason, to: DropReason, packets: u64) {
        let moved = packets.min(self.count(from));
        self.0[from as usize] -= moved;
        self.add(to, moved);
    }

    /// The packets counted under `reason`.
    pub fn count(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// The reasons with a nonzero count.
    pub fn nonzero(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&r| (r, self.count(r))).filter(|&(_, n)| n != 0)
    }

    /// The number of packets under all reasons.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_by_their_place() {
        for (place, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason as usize, place, "{}", reason.name());
        }
    }

    #[test]
    fn names_are_distinct_and_meanings_are_sentences() {
        let mut names: Vec<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
        assert!(DropReason::ALL.iter().all(|r| r.meaning().ends_with('.')));
    }
}
