//! UUIDs of rows, transactions, clusters and servers.
//!
//! Crate `uuid` also accepts forms that OVSDB (RFC 7047) does not have: braces, a URN, no hyphens.
//! Refusing those takes as much code as parsing the only valid form.

use std::fmt;
use std::str::FromStr;

/// A UUID (RFC 9562), in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Uuid(pub [u8; 16]);

/// The text is not a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a UUID: expected 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12")]
pub struct UuidError;

impl Uuid {
    /// The UUID of 128 zero bits: "no row", "no transaction".
    pub const NIL: Self = Self([0; 16]);
    /// The greatest UUID.
    pub const MAX: Self = Self([0xff; 16]);

    /// True if all bits are zero.
    pub fn is_nil(self) -> bool {
        self == Self::NIL
    }

    /// The first 32 bits, which OVS's tools show as the short name of a row.
    pub const fn first_bits(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }

    /// Parses the 36 bytes of a UUID's text.
    ///
    /// # Errors
    /// [`UuidError`] if the bytes are anything else.
    pub fn from_text(text: &[u8]) -> Result<Self, UuidError> {
        if text.len() != 36 {
            return Err(UuidError);
        }
        let mut bytes = [0; 16];
        let mut digits = 0;
        for (at, &byte) in text.iter().enumerate() {
            if matches!(at, 8 | 13 | 18 | 23) {
                if byte != b'-' {
                    return Err(UuidError);
                }
                continue;
            }
            let digit = char::from(byte).to_digit(16).ok_or(UuidError)?;
            let slot = bytes.get_mut(digits / 2).ok_or(UuidError)?;
            *slot = *slot << 4 | digit as u8;
            digits += 1;
        }
        Ok(Self(bytes))
    }
}

impl FromStr for Uuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Self, UuidError> {
        Self::from_text(text.as_bytes())
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_is_printed_as_it_was_parsed() {
        let text = "e21d3124-b9ce-4fa5-9424-05b58e72a7bc";
        let uuid: Uuid = text.parse().unwrap();
        assert_eq!(uuid.to_string(), text);
        assert_eq!(uuid.first_bits(), 0xe21d_3124);
    }

    #[test]
    fn text_is_refused_when_it_is_not_a_uuid() {
        for text in [
            "",
            "e21d3124-b9ce-4fa5-9424-05b58e72a7b",
            "e21d3124-b9ce-4fa5-9424-05b58e72a7bcc",
            "e21d3124-b9ce-4fa5-9424-05b58e72a7bg",
            "e21d3124b-9ce-4fa5-9424-05b58e72a7bc",
            "e21d3124-b9ce-4fa5-9424+05b58e72a7bc",
            "e21d3124b9ce4fa5942405b58e72a7bc",
            "e21d3124-b9ce-4fa5-9424-05b58e72a7é",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(UuidError), "{text}");
        }
    }
}
