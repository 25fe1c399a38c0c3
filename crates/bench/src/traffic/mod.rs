//! Traffic between guests, made by this crate: no other program is needed, and nothing leaves the machine.

pub mod between;
pub mod blast;
pub mod connections;
pub mod frames;
pub mod load;
pub mod ping;
pub mod sink;
