//! [`Subfield`]: some bits of a field.

use super::{Field, low_bits};
use std::fmt;

/// A range of bits of a field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Subfield {
    field: Field,
    first: u8,
    width: u8,
}

impl Subfield {
    /// The bits `first` (0 is the lowest) to `first + width - 1` of `field`. `None` when the field
    /// has fewer bits, or when `width` is 0.
    pub const fn new(field: Field, first: u8, width: u8) -> Option<Self> {
        if width == 0 || first as u16 + width as u16 > field.width() as u16 {
            None
        } else {
            Some(Self { field, first, width })
        }
    }

    /// All bits of a field.
    pub const fn whole(field: Field) -> Self {
        Self { field, first: 0, width: field.width() }
    }

    /// One bit of a field; `None` when the field has fewer bits.
    pub const fn bit(field: Field, bit: u8) -> Option<Self> {
        Self::new(field, bit, 1)
    }

    /// The field.
    #[inline]
    pub const fn field(self) -> Field {
        self.field
    }

    /// The lowest bit.
    #[inline]
    pub const fn first(self) -> u8 {
        self.first
    }

    /// The number of bits.
    #[inline]
    pub const fn width(self) -> u8 {
        self.width
    }

    /// True for the whole field.
    pub const fn is_whole(self) -> bool {
        self.width == self.field.width()
    }

    /// A mask of the bits, in their place in the field.
    #[inline]
    pub const fn field_mask(self) -> u128 {
        low_bits(self.width) << self.first
    }
}

impl From<Field> for Subfield {
    fn from(field: Field) -> Self {
        Self::whole(field)
    }
}

/// Prints `name`, `name[bit]` or `name[first..last]`.
impl fmt::Display for Subfield {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field.name())?;
        match (self.is_whole(), self.width) {
            (true, _) => Ok(()),
            (false, 1) => write!(f, "[{}]", self.first),
            (false, width) => write!(f, "[{}..{}]", self.first, self.first + width - 1),
        }
    }
}
