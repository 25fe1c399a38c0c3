//! Traffic between guests, made by this crate: no other program is needed, and nothing leaves the machine.

pub mod ping;
pub mod tcp;
