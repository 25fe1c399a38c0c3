//! What libbpf-rs has no safe function for: programs and links by their descriptors, which outlive the object that they were
//! loaded from, and many entries of a map for each CPU at once.
#![allow(unsafe_code)]

use libbpf_rs::libbpf_sys::{self, BPF_LINK_TYPE_TCX, BPF_TCX_INGRESS};
use libbpf_rs::{MapCore, MapHandle};
use std::ffi::{CString, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
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

/// Has a link execute another program from now on; no packet passes without one.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open, and no options are given.
    result(unsafe {
        libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), ptr::null())
    })?;
    Ok(())
}

/// A program at the tc ingress of a device, by tcx.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AttachedProgram {
    /// The number of the program.
    pub(crate) program: u32,
    /// That of its link; 0 when it is attached without one.
    pub(crate) link: u32,
}

/// More programs than these at one device are not looked at; the kernel takes 64.
const MAX_ATTACHED: usize = 64;

/// Those at a device of this thread's network namespace, in the order in which they are executed. None where the kernel does not know
/// tcx.
///
/// # Errors
/// There is no such device.
pub(crate) fn attached_programs(ifindex: u32) -> io::Result<Vec<AttachedProgram>> {
    let (mut programs, mut links) = ([0_u32; MAX_ATTACHED], [0_u32; MAX_ATTACHED]);
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        prog_ids: programs.as_mut_ptr(),
        link_ids: links.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = MAX_ATTACHED as u32;
    // SAFETY: the options point to two arrays of `count` numbers, and all live until the call has returned.
    let queried = result(unsafe {
        libbpf_sys::bpf_prog_query_opts(ifindex.cast_signed(), BPF_TCX_INGRESS, &raw mut options)
    });
    match queried {
        Err(error) if error.raw_os_error() == Some(EINVAL) => return Ok(Vec::new()),
        queried => queried?,
    };
    // SAFETY: any bits are a number.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    let both = programs.into_iter().zip(links).take(count);
    Ok(both.map(|(program, link)| AttachedProgram { program, link }).collect())
}

const EINVAL: i32 = 22;

/// The number of a link.
pub(crate) fn link_id(link: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(link_info(link)?.id)
}

/// Detaches the program of a link, whoever has it.
pub(crate) fn detach_link(id: u32) -> io::Result<()> {
    // SAFETY: no pointers.
    let link = result(unsafe { libbpf_sys::bpf_link_get_fd_by_id(id) })?;
    // SAFETY: the call has just opened it, and nobody else knows it.
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    // SAFETY: the descriptor is open.
    result(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) })?;
    Ok(())
}

fn link_info(link: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_link_info> {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut len = size_of::<libbpf_sys::bpf_link_info>() as u32;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes to `info`, all of which is numbers.
    result(unsafe {
        libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut len)
    })?;
    Ok(info)
}

/// The device at whose tc ingress a link has a program, by tcx; `None` when it is gone.
///
/// # Errors
/// It is a link of another kind.
pub(crate) fn device_of(link: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let info = link_info(link)?;
    if info.type_ != BPF_LINK_TYPE_TCX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a link of this type has this member, and any bits are a number.
    let device = unsafe { info.__bindgen_anon_1.tcx.ifindex };
    Ok((device != 0).then_some(device))
}

/// The name of a loaded program, as far as the kernel keeps it: 15 bytes.
pub(crate) fn program_name(id: u32) -> io::Result<String> {
    // SAFETY: no pointers.
    let program = result(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })?;
    // SAFETY: the call has just opened it, and nobody else knows it.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes to `info`, all of which is numbers; it asks for no
    // other memory, because `info` has no pointer.
    result(unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len)
    })?;
    let name = info.name.iter().map(|&byte| byte.cast_unsigned()).take_while(|&byte| byte != 0);
    Ok(String::from_utf8_lossy(&name.collect::<Vec<u8>>()).into_owned())
}

/// Gives the queueing discipline clsact to a device; true when it had none.
pub(crate) fn create_clsact(ifindex: u32) -> io::Result<bool> {
    let mut hook = libbpf_sys::bpf_tc_hook {
        sz: size_of::<libbpf_sys::bpf_tc_hook>() as _,
        ifindex: ifindex.cast_signed(),
        attach_point: libbpf_sys::BPF_TC_INGRESS,
        ..Default::default()
    };
    // SAFETY: `hook` lives until the call has returned.
    match result(unsafe { libbpf_sys::bpf_tc_hook_create(&raw mut hook) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Gives a program, map or link a name in the BPF file system.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the descriptor is open, and the path ends with a zero.
    result(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) })?;
    Ok(())
}

/// Opens what has this name in the BPF file system.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the path ends with a zero.
    let object = result(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })?;
    // SAFETY: the call has just opened it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(object) })
}
