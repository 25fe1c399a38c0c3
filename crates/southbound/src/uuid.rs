//! UUIDs of rows.

use std::fmt;
use std::str::FromStr;

/// The UUID of a database row (RFC 9562), as a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Uuid(pub u128);

/// The text is not a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a UUID: expected 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12")]
pub struct UuidError;

impl Uuid {
    /// The first 32 bits, which OVN's tools show as the short name of a row and use as the cookie
    /// of a flow.
    pub const fn first_bits(self) -> u32 {
        (self.0 >> 96) as u32
    }
}

impl FromStr for Uuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Self, UuidError> {
        let bytes = text.as_bytes();
        if bytes.len() != 36 {
            return Err(UuidError);
        }
        let mut value = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            if matches!(at, 8 | 13 | 18 | 23) {
                if byte != b'-' {
                    return Err(UuidError);
                }
                continue;
            }
            let digit = char::from(byte).to_digit(16).ok_or(UuidError)?;
            value = value << 4 | u128::from(digit);
        }
        Ok(Self(value))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let (a, rest) = digits.split_at(8);
        let (b, rest) = rest.split_at(4);
        let (c, rest) = rest.split_at(4);
        let (d, e) = rest.split_at(4);
        write!(f, "{a}-{b}-{c}-{d}-{e}")
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
