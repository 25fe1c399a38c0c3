//! Headers, as bytes and as values.
//!
//! Every header is two types. `XPacket<T: AsRef<[u8]>>` is a view over bytes: `new_checked` verifies that the
//! header is whole and its lengths consistent, after which no accessor can fail or panic. `XRepr` is the compact,
//! always valid form: `XRepr::parse(&packet)` rejects what the standard forbids, `repr.emit(&mut packet)` writes every
//! byte of the header. Byte order lives in the views; reprs are in host order.
//!
//! No I/O, no clock, no `unsafe`, and no panic on any bytes.
#![forbid(unsafe_code)]

mod addr;
mod error;

pub use addr::{MacAddr, VlanId, Vni};
pub use error::{Layer, ParseError, ParseErrorKind};
