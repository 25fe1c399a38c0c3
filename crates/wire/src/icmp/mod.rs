//! ICMP for IPv4 and IPv6, and IPv6 neighbour discovery.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+---------------+-------------------------------+
//! |     Type      |     Code      |           Checksum            |
//! +---------------+---------------+-------------------------------+
//! |              four bytes that depend on the type               |
//! +---------------------------------------------------------------+
//! |    data; in errors the beginning of the packet that caused it |
//! +---------------------------------------------------------------+
//! ```
//!
//! The packet quoted in an error may be truncated: read it with `Ipv4Packet::new_header` or
//! `Ipv6Packet::new_header`.

pub mod nd;
pub mod too_big;
pub mod v4;
pub mod v6;

pub use nd::{NdOption, NdOptions, NdRepr};
pub use too_big::{Quoted, TooBig};
pub use v4::{Icmpv4Packet, Icmpv4Repr};
pub use v6::{Icmpv6Packet, Icmpv6Repr};

/// Bytes of the header: type, code, checksum and the four bytes that depend on the type.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum.
pub const CHECKSUM_OFFSET: usize = 2;

/// Generates the accessors that the ICMP and ICMPv6 views share.
macro_rules! icmp_accessors {
    ($name:ident, $layer:expr) => {
        impl<T: AsRef<[u8]>> $name<T> {
            fn check(&self) -> Result<(), ParseError> {
                require($layer, HEADER_LEN, self.bytes().len())
            }

            /// Type of the message.
            pub fn kind(&self) -> u8 {
                self.bytes()[0]
            }

            /// Code within the type.
            pub fn code(&self) -> u8 {
                self.bytes()[1]
            }

            /// The checksum field.
            pub fn checksum(&self) -> u16 {
                u16_at(self.bytes(), CHECKSUM_OFFSET)
            }

            /// The four bytes that depend on the type.
            pub fn rest(&self) -> [u8; 4] {
                array(self.bytes(), 4)
            }
        }

        impl<'a, T: AsRef<[u8]> + ?Sized> $name<&'a T> {
            /// The bytes after the eight bytes of the header.
            pub fn data(&self) -> &'a [u8] {
                &self.buffer.as_ref()[HEADER_LEN..]
            }
        }
    };
}
pub(crate) use icmp_accessors;

/// Encodes an echo's identifier and sequence number as the last four bytes of the header.
const fn echo_rest(ident: u16, seq: u16) -> [u8; 4] {
    ((ident as u32) << 16 | seq as u32).to_be_bytes()
}

/// Decodes the identifier and sequence number of an echo.
const fn echo_fields([a, b, c, d]: [u8; 4]) -> (u16, u16) {
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}
