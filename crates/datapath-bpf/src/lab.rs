//! What a lab in one machine needs to be like two machines.

use crate::sys;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{TC_EGRESS, TcHook};
use netdev::Ifindex;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

/// What is generated has `unsafe` for the memory that it shares with the kernel, and does not care for lints.
#[allow(unsafe_code, warnings, missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/lab_unclone.skel.rs"));
}

/// Has a device of this thread's network namespace send packets that share no head with their sender's socket, as those do not that
/// come from a network card: for as long as there is the device. A tunnel's end that takes outer headers off has to give a shared packet
/// a head of its own first, which two machines never ask of it.
///
/// # Errors
/// There is no such device, no right to do so, or it does so already.
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
