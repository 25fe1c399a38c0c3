//! Code that all header views share: constructors over borrowed or owned bytes, and big-endian
//! access.

/// Defines a view type with its constructors. The type's own `impl` supplies `check`, which
/// validates the bytes for `new_checked`.
macro_rules! view {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name<T> {
            buffer: T,
        }

        impl<T: AsRef<[u8]>> $name<T> {
            /// A view of unvalidated bytes, for writing a header. Accessors panic when `buffer` is
            /// shorter than the field they read. For received bytes use `new_checked`.
            pub const fn new_unchecked(buffer: T) -> Self {
                Self { buffer }
            }

            /// A view of bytes that hold a whole header with consistent lengths. No accessor can
            /// panic until a setter changes a length field.
            ///
            /// # Errors
            /// A [`ParseError`] that names the missing or inconsistent part.
            #[inline]
            pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
                let packet = Self { buffer };
                packet.check()?;
                Ok(packet)
            }

            /// Returns the underlying bytes.
            pub fn into_inner(self) -> T {
                self.buffer
            }

            #[inline]
            fn bytes(&self) -> &[u8] {
                self.buffer.as_ref()
            }
        }
    };
}
pub(crate) use view;

use crate::{Layer, ParseError};

/// `Ok` when at least `needed` bytes of the header are present.
#[inline]
pub(crate) const fn require(layer: Layer, needed: usize, have: usize) -> Result<(), ParseError> {
    if have < needed { Err(ParseError::truncated(layer, needed, have)) } else { Ok(()) }
}

#[inline]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

#[inline]
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

#[inline]
pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    put(bytes, at, value.to_be_bytes());
}

#[inline]
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, value.to_be_bytes());
}
