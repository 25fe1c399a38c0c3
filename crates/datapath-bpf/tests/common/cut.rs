//! [`Cutter`]: runs a program on packets that are too short for a test run.

use super::switch::{RunResult, run};
use generated::{TestCutSkel, TestCutSkelBuilder};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, OpenObject};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

#[allow(unsafe_code, warnings, clippy::all, clippy::undocumented_unsafe_blocks)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/test_cut.skel.rs"));
}

/// The kernel refuses test runs of shorter packets (ETH_ZLEN).
const LEAST: usize = 64;

/// A program that cuts a packet and runs another one on the rest.
pub struct Cutter<'obj> {
    skel: TestCutSkel<'obj>,
}

impl<'obj> Cutter<'obj> {
    pub fn load(object: &'obj mut MaybeUninit<OpenObject>, next: BorrowedFd<'_>) -> Self {
        let open = TestCutSkelBuilder::default().open(object).expect("the object is whole");
        let skel = open.load().expect("the verifier takes the program");
        let (first, next) = (0_u32.to_ne_bytes(), next.as_raw_fd().to_ne_bytes());
        skel.maps.test_next.update(&first, &next, MapFlags::ANY).expect("of the same type");
        Self { skel }
    }

    /// Runs the other program on a packet of any length.
    pub fn run(&mut self, packet: &[u8]) -> RunResult {
        let variables = self.skel.maps.bss_data.as_deref_mut().expect("the program has variables");
        variables.frame_len = packet.len() as u32;
        let mut padded = packet.to_vec();
        padded.resize(packet.len().max(LEAST), 0xa5);
        let ran = run(&self.skel.progs.test_cut, &padded, None);
        assert_ne!(ran.verdict.cast_signed(), -1, "the program runs on {packet:02x?}");
        ran
    }
}
