//! What the tests of the programs share.
#![allow(dead_code, reason = "each test uses a part")]

pub mod action_lists;
pub mod agree;
pub mod encode;
pub mod frames;
pub mod lab;
pub mod lookup;
pub mod reference;
pub mod switch;
pub mod tunnels;
