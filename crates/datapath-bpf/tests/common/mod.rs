//! What the tests of the programs share.
#![allow(dead_code, reason = "each test uses a part")]

pub mod agree;
pub mod frames;
pub mod lookup;
