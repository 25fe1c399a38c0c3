//! Support for test labs in which two hosts share one machine.

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

/// Un-clones packets that leave a device, so that the receiver gets them as from a network card.
/// Otherwise they are clones of packets that the sender's socket keeps until they are acknowledged.
/// Decapsulation then has to copy the headers of each packet, which it never has to between two
/// machines.
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
