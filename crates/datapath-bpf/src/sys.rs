//! What libbpf-rs has no safe function for: programs and links by their descriptors, which outlive the object that they were
//! loaded from, and many entries of a map for each CPU at once.
#![allow(unsafe_code)]

use libbpf_rs::libbpf_sys::{self, BPF_TCX_INGRESS};
use libbpf_rs::{MapCore, MapHandle};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// What libbpf returns: at least 0, or an error.
fn result(returned: i32) -> io::Result<i32> {
    if returned < 0 { Err(io::Error::from_raw_os_error(-returned)) } else { Ok(returned) }
}

/// Runs a program of type "syscall" on `context`; what it returns.
pub(crate) fn run(program: BorrowedFd<'_>, context: &mut [u8]) -> io::Result<i32> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ctx_in: if context.is_empty() { ptr::null() } else { context.as_ptr().cast() },
        ctx_size_in: context.len() as u32,
        ..Default::default()
    };
    // SAFETY: the descriptor is open, and the options point to a context that lives until the call has returned.
    result(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    Ok(options.retval.cast_signed())
}

/// The bytes of the entries from `first` on of an array, at most `most` of them, each in [`entry_len`] bytes.
pub(crate) fn read(map: &MapHandle, first: u32, most: u32) -> io::Result<Vec<u8>> {
    let size = entry_len(map)?;
    let mut count = most.min(map.max_entries().saturating_sub(first));
    let mut values = vec![0_u8; size * count as usize];
    if count == 0 {
        return Ok(values);
    }
    let (mut keys, mut next) = (vec![0_u32; count as usize], 0_u32);
    // It goes on behind this one.
    let mut before = first.wrapping_sub(1);
    let before = if first == 0 { ptr::null_mut() } else { (&raw mut before).cast::<c_void>() };
    // SAFETY: the descriptor is open; `keys` and `values` have room for `count` entries, whose sizes the kernel knows as they are
    // computed here, and everything lives until the call has returned.
    let read = result(unsafe {
        libbpf_sys::bpf_map_lookup_batch(
            map.as_fd().as_raw_fd(),
            before,
            (&raw mut next).cast(),
            keys.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            &raw mut count,
            ptr::null(),
        )
    });
    match read {
        // Behind the last.
        Err(error) if error.raw_os_error() != Some(ENOENT) => return Err(error),
        _ => {}
    }
    values.truncate(size * count as usize);
    Ok(values)
}

const ENOENT: i32 = 2;

/// Bytes of what is read of an entry: its value, or in an array for each CPU as many as there are CPUs.
pub(crate) fn entry_len(map: &MapHandle) -> io::Result<usize> {
    if !map.map_type().is_percpu() {
        return Ok(map.value_size() as usize);
    }
    let cpus = libbpf_rs::num_possible_cpus().map_err(io::Error::other)?;
    Ok(map.value_size().next_multiple_of(8) as usize * cpus)
}

/// Attaches a program to the tc ingress of a device, by tcx. It is detached when the descriptor is closed and nobody has pinned
/// the link.
pub(crate) fn attach_tcx(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open, and no options are given.
    let link = result(unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            ifindex.cast_signed(),
            BPF_TCX_INGRESS,
            ptr::null(),
        )
    })?;
    // SAFETY: the call has just opened it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}
