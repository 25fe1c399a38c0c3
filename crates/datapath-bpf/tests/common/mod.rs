//! Helpers that the tests share.

pub mod abi;
pub mod action_lists;
pub mod agree;
pub mod cut;
pub mod decap;
pub mod encode;
pub mod frames;
pub mod lab;
pub mod lookup;
pub mod outer;
pub mod reference;
pub mod switch;
pub mod tunnels;

use libbpf_rs::{Object, Program};
use std::os::fd::AsFd;
use testkit::vm::{SharedVm, SharedVmGuard};

/// The kernel's ids of an object's programs.
pub fn program_ids(object: &Object) -> Vec<u32> {
    let id = |program: Program<'_>| Program::id_from_fd(program.as_fd()).expect("it is loaded");
    object.progs().map(id).collect()
}

/// The machine with Debian's kernel, in which `/bin/program` is this program. It can create veth
/// pairs and attach programs to them. All tests share it, one after another.
pub fn debian() -> SharedVmGuard<'static> {
    static MACHINE: SharedVm = SharedVm::new();
    let program = std::env::current_exe().expect("this program has a path");
    MACHINE.lock(&program, &["veth", "sch_ingress", "cls_bpf"])
}
