//! Helpers that the tests share.

pub mod abi;
pub mod action_lists;
pub mod agree;
pub mod encode;
pub mod frames;
pub mod lab;
pub mod lookup;
pub mod reference;
pub mod switch;
pub mod tunnels;

use libbpf_rs::{Object, Program};
use std::os::fd::AsFd;

/// The kernel's ids of an object's programs.
pub fn program_ids(object: &Object) -> Vec<u32> {
    let id = |program: Program<'_>| Program::id_from_fd(program.as_fd()).expect("it is loaded");
    object.progs().map(id).collect()
}
