//! The fields of a [`FlowKey`](crate::FlowKey): names, prerequisites, and the place of each in the
//! key.
//!
//! A key is an array of 64-bit words in host byte order. A field lies within one word; one of 128
//! bits takes two, the upper half first. Words are ordered by *stage*: what is known without
//! reading the frame, then layers 2, 3 and 4. A staged lookup reads one stage after another and
//! stops at the first that excludes a match.
//!
//! The row of a field in `field/table.rs` holds all its properties.

#[cfg(test)]
mod glossary;
mod prerequisite;
mod spec;
mod subfield;
mod table;
#[cfg(test)]
mod tests;

pub use prerequisite::{FrameKind, Requirement};
pub use spec::{
    Access, FieldSpec, KernelMember, KernelShape, KernelWord, Notation, OfctlName, OfctlSyntax,
    OvnKind, OvnSymbol, OxmHeader,
};
pub use subfield::Subfield;
pub use table::{FOREIGN_FIELDS, Field, Prerequisite};

use std::fmt;
use std::ops::Range;

/// Where the kernel datapath's key holds each word of a flow key.
pub const KERNEL_WORDS: [KernelWord; WORDS] = {
    let mut words = [KernelWord::Register; WORDS];
    let mut row = 0;
    while row < Field::ALL.len() {
        let Position { word, width, .. } = table::POSITIONS[row];
        let word = word as usize;
        match table::KERNEL[row] {
            // `pkt_mark` shares its word with `in_port`; the kernel's key has the shape there.
            KernelWord::Register => {}
            KernelWord::Held { member, index, shape } if width == 128 => {
                words[word] = KernelWord::Held { member, index, shape };
                words[word + 1] = KernelWord::Held { member, index: index + 1, shape };
            }
            place => words[word] = place,
        }
        row += 1;
    }
    words
};

/// `eth_type` of an IEEE 802.3 frame without SNAP header, which has a length and no EtherType.
pub const ETH_TYPE_NONE: u16 = 0x05ff;
/// The bit of `vlan_tci` and `vlan_inner_tci` that marks a tag as present; it replaces DEI.
pub const TAG_PRESENT: u16 = 0x1000;
/// `ip_frag` of the first fragment of a packet. It is 0 for a packet that is not a fragment.
pub const FRAG_FIRST: u8 = 1;
/// `ip_frag` of the other fragments.
pub const FRAG_LATER: u8 = 3;

/// 64-bit words in a key.
pub const WORDS: usize = 42;

/// The words of each stage of a lookup: port, tunnel and registers, then layers 2, 3 and 4.
pub const STAGES: [Range<usize>; 4] = [0..25, 25..28, 28..37, 37..WORDS];

/// The words that [`extract`](crate::extract()) fills in; the pipeline writes the others, which are
/// 0 when a frame arrives.
pub const PACKET_WORDS: [Range<usize>; 2] = [0..12, 25..WORDS];

/// The words of connection tracking and recirculation. They are 0 in the first pass of a packet.
/// The datapath fills them in when the packet has passed the connection tracker.
pub const TRACKED_WORDS: Range<usize> = 21..25;

/// The place of a field in the key.
#[derive(Clone, Copy)]
struct Position {
    word: u8,
    shift: u8,
    width: u8,
}

impl Field {
    #[inline]
    const fn position(self) -> Position {
        table::POSITIONS[self as usize]
    }

    /// The field's row of the table.
    pub fn spec(self) -> &'static FieldSpec {
        &table::SPECS[self as usize]
    }

    /// The name in weft's output.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// The field with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        table::SPECS.iter().find(|spec| spec.name == name).map(|spec| spec.field)
    }

    /// Bits of the field, 2 to 128.
    pub const fn width(self) -> u8 {
        self.position().width
    }

    /// All bits of the field, right-aligned.
    pub const fn all_ones(self) -> u128 {
        low_bits(self.width())
    }

    /// The word that holds the field, or the upper half of a field of 128 bits.
    #[inline]
    pub const fn word(self) -> usize {
        self.position().word as usize
    }

    /// Bits to the right of the field in its word.
    #[inline]
    pub const fn shift(self) -> u8 {
        self.position().shift
    }

    /// How values of the field are written.
    pub fn notation(self) -> Notation {
        self.spec().notation
    }

    /// True for a field whose values are allotted in prefixes: addresses and ports.
    pub const fn is_in_prefixes(self) -> bool {
        table::IN_PREFIXES[self as usize]
    }

    /// True for a field that only the pipeline writes and no packet carries: registers,
    /// `metadata`, marks, connection state. They are 0 when a frame arrives.
    pub const fn is_register(self) -> bool {
        matches!(self.word(), 12..25) || matches!(self, Self::PktMark)
    }

    /// True for a field of the frame's headers.
    pub const fn is_header(self) -> bool {
        self.word() >= STAGES[1].start
    }

    /// Register `number`, 0 to 15.
    pub const fn reg(number: u8) -> Option<Self> {
        if number < 16 { Some(Self::ALL[Self::Reg0 as usize + number as usize]) } else { None }
    }

    /// The registers `2 * number` and `2 * number + 1` together, 0 to 7.
    #[cfg(test)]
    const fn xreg(number: u8) -> Option<Self> {
        if number < 8 { Some(Self::ALIASES[number as usize]) } else { None }
    }

    /// The registers `4 * number` to `4 * number + 3` together, 0 to 3.
    pub const fn xxreg(number: u8) -> Option<Self> {
        if number < 4 { Some(Self::ALIASES[8 + number as usize]) } else { None }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The lowest `width` bits, 0 to 128.
#[inline]
pub const fn low_bits(width: u8) -> u128 {
    if width >= 128 { u128::MAX } else { (1 << width) - 1 }
}
