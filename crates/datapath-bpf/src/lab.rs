//! Support for test labs in which two hosts share one machine, and for fuzz targets.

mod parser;

pub use crate::previous::{PINNED_ENTRY_LEN, pinned_condition};
pub use parser::{ParserVerdict, TestParser};

use crate::sys;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{TC_EGRESS, TcHook};
use netdev::Ifindex;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

/// The skeleton contains `unsafe` for memory that it shares with the kernel, and ignores lints.
#[allow(unsafe_code, warnings, missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/lab_unclone.skel.rs"));
}

/// Lengths of packets that a test run of the kernel takes here, in bytes.
const PARSED_LEAST: usize = 64;
const PARSED_MOST: usize = 2048;

/// Makes packets that leave a device look to the receiver as if they came from a network card: not
/// as clones of what the sender's socket keeps until it is acknowledged. Without this,
/// decapsulation between namespaces has to copy the headers of each packet, which it never has to
/// between two machines.
///
/// The device is one of this thread's network namespace. The program stays until the device is
/// deleted.
///
/// # Errors
/// There is no such device, the process lacks a privilege, or the device has this program already.
pub fn unclone_on_egress(device: Ifindex) -> io::Result<()> {
    let mut object = MaybeUninit::uninit();
    let open = generated::LabUncloneSkelBuilder::default().open(&mut object);
    let loaded = open.and_then(OpenSkel::load).map_err(io::Error::other)?;
    sys::create_clsact(device.0)?;
    let mut hook = TcHook::new(loaded.progs.weft_lab_unclone.as_fd());
    hook.ifindex(device.0.cast_signed()).attach_point(TC_EGRESS);
    hook.priority(1).handle(1);
    hook.attach().map(drop).map_err(io::Error::other)
}
