//! Calls to libbpf that libbpf-rs has no safe function for: running programs, links, pins by file
//! descriptor, and batch reads of maps.
#![allow(unsafe_code)]

use libbpf_rs::libbpf_sys::{self, BPF_LINK_TYPE_TCX, BPF_TCX_INGRESS};
use libbpf_rs::{MapCore, MapHandle};
use nix::sys::mman::{self, MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Converts a return value of libbpf: a negative errno is an error.
fn result(returned: i32) -> io::Result<i32> {
    if returned < 0 { Err(io::Error::from_raw_os_error(-returned)) } else { Ok(returned) }
}

/// Runs a program of type "syscall" with `context` as its argument, and returns its result.
pub(crate) fn run(program: BorrowedFd<'_>, context: &mut [u8]) -> io::Result<i32> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ctx_in: if context.is_empty() { ptr::null() } else { context.as_ptr().cast() },
        ctx_size_in: context.len() as u32,
        ..Default::default()
    };
    // SAFETY: the descriptor is open, and the options point to a context that outlives the call.
    result(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    Ok(options.retval.cast_signed())
}

/// The first eight bytes of an array map with the flag `BPF_F_MMAPABLE`, mapped to memory that this
/// process shares with the programs.
#[derive(Debug)]
pub(crate) struct SharedWord(NonNull<AtomicU64>);

impl SharedWord {
    const LEN: NonZeroUsize = NonZeroUsize::new(size_of::<AtomicU64>()).unwrap();

    pub(crate) fn of(map: &MapHandle) -> io::Result<Self> {
        let (access, shared) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
        // SAFETY: the kernel chooses the address, so no other memory is replaced.
        let at = unsafe { mman::mmap(None, Self::LEN, access, shared, map.as_fd(), 0) };
        Ok(Self(at.map_err(io::Error::from)?.cast()))
    }

    pub(crate) fn store(&self, value: u64) {
        // SAFETY: the mapping begins at a page, so it is aligned, and it exists as long as `self`.
        // Programs access the word with whole loads and atomic operations only.
        unsafe { self.0.as_ref() }.store(value, Ordering::Relaxed);
    }
}

impl Drop for SharedWord {
    fn drop(&mut self) {
        // SAFETY: `of` has mapped it, and no reference to it is left.
        let _ = unsafe { mman::munmap(self.0.cast(), Self::LEN.get()) };
    }
}

// SAFETY: the memory belongs to the process and is accessed by atomic operations only.
unsafe impl Send for SharedWord {}
// SAFETY: as above.
unsafe impl Sync for SharedWord {}

/// Reads at most `most` entries of an array map from `first` on, each of [`entry_len`] bytes.
pub(crate) fn read(map: &MapHandle, first: u32, most: u32) -> io::Result<Vec<u8>> {
    let count = most.min(map.max_entries().saturating_sub(first)) as usize;
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut batch = Batch::new(map, count)?;
    // The kernel continues after the key that it is given.
    let (found, _) = batch.look_up(map, first.checked_sub(1))?;
    batch.values.truncate(batch.value_len * found);
    Ok(batch.values)
}

/// Reads all entries of a hash map: keys, and values of [`entry_len`] bytes. An entry that is added
/// meanwhile may be missing.
pub(crate) fn read_hash(map: &MapHandle) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // The kernel returns whole buckets, which never have this many entries.
    let mut batch = Batch::new(map, map.max_entries().min(HASH_BATCH) as usize)?;
    let (mut entries, mut position) = (Vec::new(), None);
    loop {
        let (found, next) = batch.look_up(map, position)?;
        let keys = batch.keys.chunks_exact(batch.key_len);
        let found = keys.zip(batch.values.chunks_exact(batch.value_len)).take(found);
        entries.extend(found.map(|(key, value)| (key.into(), value.into())));
        if next.is_none() {
            return Ok(entries);
        }
        position = next;
    }
}

/// Buffers for the entries that one call reads.
struct Batch {
    key_len: usize,
    value_len: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Batch {
    fn new(map: &MapHandle, count: usize) -> io::Result<Self> {
        let (key_len, value_len) = (map.key_size() as usize, entry_len(map)?);
        let (keys, values) = (vec![0; key_len * count], vec![0; value_len * count]);
        Ok(Self { key_len, value_len, keys, values })
    }

    /// Reads the entries that follow the position `after` from `map`, the map that this batch was
    /// created for. `None` is the beginning. Returns their number, and the position of the last one
    /// unless that was the end of the map. Positions of array maps are keys, and those of hash maps
    /// numbers of buckets.
    fn look_up(&mut self, map: &MapHandle, after: Option<u32>) -> io::Result<(usize, Option<u32>)> {
        let mut count = (self.keys.len() / self.key_len) as u32;
        let (mut before, mut next) = (after.unwrap_or_default(), 0_u32);
        let before = after.map_or(ptr::null_mut(), |_| (&raw mut before).cast::<c_void>());
        // SAFETY: the descriptor is open; `keys` and `values` have room for `count` entries of the
        // sizes that the kernel uses, and everything outlives the call.
        let read = result(unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                before,
                (&raw mut next).cast(),
                self.keys.as_mut_ptr().cast(),
                self.values.as_mut_ptr().cast(),
                &raw mut count,
                ptr::null(),
            )
        });
        match read {
            Ok(_) => Ok((count as usize, Some(next))),
            // ENOENT: the end of the map was reached.
            Err(error) if error.raw_os_error() == Some(ENOENT) => Ok((count as usize, None)),
            Err(error) => Err(error),
        }
    }
}

/// Entries of a hash map that are read in one call.
const HASH_BATCH: u32 = 4096;
const ENOENT: i32 = 2;

/// Bytes that a read returns for one entry: its value, in per-CPU maps once for each possible CPU.
pub(crate) fn entry_len(map: &MapHandle) -> io::Result<usize> {
    if !map.map_type().is_percpu() {
        return Ok(map.value_size() as usize);
    }
    let cpus = libbpf_rs::num_possible_cpus().map_err(io::Error::other)?;
    Ok(map.value_size().next_multiple_of(8) as usize * cpus)
}

/// Attaches a program to the tc ingress hook of a device by tcx. It is detached when the descriptor
/// is closed, unless the link is pinned.
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

/// Atomically replaces the program of a link.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open, and no options are given.
    result(unsafe {
        libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), ptr::null())
    })?;
    Ok(())
}

/// A program at the tc ingress hook of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AttachedProgram {
    /// Program id.
    pub(crate) program: u32,
    /// Link id; 0 if it is attached without a link.
    pub(crate) link: u32,
}

/// The kernel's limit of programs at one hook (`BPF_MPROG_MAX`).
const MAX_ATTACHED: usize = 64;

/// The tcx programs at a device of this thread's network namespace, in the order of execution.
/// Empty if the kernel does not support tcx.
///
/// # Errors
/// The device does not exist.
pub(crate) fn attached_programs(ifindex: u32) -> io::Result<Vec<AttachedProgram>> {
    let (mut programs, mut links) = ([0_u32; MAX_ATTACHED], [0_u32; MAX_ATTACHED]);
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        prog_ids: programs.as_mut_ptr(),
        link_ids: links.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = MAX_ATTACHED as u32;
    // SAFETY: the options point to two arrays of `count` numbers, and everything outlives the call.
    let queried = result(unsafe {
        libbpf_sys::bpf_prog_query_opts(ifindex.cast_signed(), BPF_TCX_INGRESS, &raw mut options)
    });
    match queried {
        Err(error) if error.raw_os_error() == Some(EINVAL) => return Ok(Vec::new()),
        queried => queried?,
    };
    // SAFETY: every bit pattern is a valid number.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    let both = programs.into_iter().zip(links).take(count);
    Ok(both.map(|(program, link)| AttachedProgram { program, link }).collect())
}

const EINVAL: i32 = 22;

/// The id of a link.
pub(crate) fn link_id(link: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(link_info(link)?.id)
}

/// Detaches the program of a link, whoever owns it.
pub(crate) fn detach_link(id: u32) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    let link = result(unsafe { libbpf_sys::bpf_link_get_fd_by_id(id) })?;
    // SAFETY: the call has just opened it, and nothing else owns it.
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    // SAFETY: the descriptor is open.
    result(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) })?;
    Ok(())
}

fn link_info(link: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_link_info> {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut len = size_of::<libbpf_sys::bpf_link_info>() as u32;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes to `info`, which
    // consists of numbers.
    result(unsafe {
        libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut len)
    })?;
    Ok(info)
}

/// The device of a tcx link; `None` if the device is gone.
///
/// # Errors
/// The link is of another type.
pub(crate) fn device_of(link: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let info = link_info(link)?;
    if info.type_ != BPF_LINK_TYPE_TCX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: links of this type have this member, and every bit pattern is a valid number.
    let device = unsafe { info.__bindgen_anon_1.tcx.ifindex };
    Ok((device != 0).then_some(device))
}

/// The names of programs that were read, by id. Only a process with CAP_SYS_ADMIN may read the name
/// of a program that it has no descriptor of, and a switch may give that up at its start. The
/// kernel does not reuse an id before it has used all others.
static NAMES: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());

/// Reads the names of all loaded programs, so that [`program_name`] finds them without a privilege.
/// Without CAP_SYS_ADMIN, reads none.
pub(crate) fn remember_all_programs() {
    let mut id = 0;
    loop {
        let mut next = 0;
        // SAFETY: the kernel writes the next id to `next`.
        if result(unsafe { libbpf_sys::bpf_prog_get_next_id(id, &raw mut next) }).is_err() {
            return;
        }
        id = next;
        // The program may have been unloaded meanwhile.
        let _ = program_name(id);
    }
}

/// Reads the name of a program, so that [`program_name`] finds it. Needs no privilege.
pub(crate) fn remember_program(program: BorrowedFd<'_>) -> io::Result<String> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes to `info`. It
    // writes nothing else, because all pointers in `info` are null.
    result(unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len)
    })?;
    // A `c_char` is signed on some architectures only.
    let name = info.name.iter().flat_map(|byte| byte.to_ne_bytes()).take_while(|&byte| byte != 0);
    let name = String::from_utf8_lossy(&name.collect::<Vec<u8>>()).into_owned();
    names().insert(info.id, name.clone());
    Ok(name)
}

fn names() -> MutexGuard<'static, BTreeMap<u32, String>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a loaded program, as the kernel keeps it: at most 15 bytes.
///
/// # Errors
/// There is no such program; or the process lacks CAP_SYS_ADMIN and has not read the name before.
pub(crate) fn program_name(id: u32) -> io::Result<String> {
    if let Some(name) = names().get(&id) {
        return Ok(name.clone());
    }
    // SAFETY: no pointers are passed.
    let program = result(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })?;
    // SAFETY: the call has just opened it, and nothing else owns it.
    remember_program(unsafe { OwnedFd::from_raw_fd(program) }.as_fd())
}

/// Adds the clsact qdisc to a device. Returns false if it has one.
pub(crate) fn create_clsact(ifindex: u32) -> io::Result<bool> {
    let mut hook = libbpf_sys::bpf_tc_hook {
        sz: size_of::<libbpf_sys::bpf_tc_hook>() as _,
        ifindex: ifindex.cast_signed(),
        attach_point: libbpf_sys::BPF_TC_INGRESS,
        ..Default::default()
    };
    // SAFETY: `hook` outlives the call.
    match result(unsafe { libbpf_sys::bpf_tc_hook_create(&raw mut hook) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Pins a program, map or link in the BPF file system.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the descriptor is open, and the path is NUL-terminated.
    result(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) })?;
    Ok(())
}

/// Opens a pinned object.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the path is NUL-terminated.
    let object = result(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })?;
    // SAFETY: the call has just opened it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(object) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::MapType;
    use std::collections::BTreeMap;

    #[test]
    fn each_entry_of_a_hash_map_is_read_once_when_there_are_several_batches() {
        testkit::require_root!();
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let most = 3 * HASH_BATCH;
        let create = |kind| MapHandle::create(kind, Some("test"), 4, 8, most, &options).unwrap();
        for (kind, cpus) in
            [(MapType::Hash, 1), (MapType::PercpuHash, libbpf_rs::num_possible_cpus().unwrap())]
        {
            let map = create(kind);
            assert_eq!(read_hash(&map).unwrap(), []);
            for key in 0..2 * HASH_BATCH + 7 {
                let (key, value) = (key.to_ne_bytes(), u64::from(key).to_ne_bytes().to_vec());
                match kind {
                    MapType::Hash => map.update(&key, &value, libbpf_rs::MapFlags::ANY),
                    _ => map.update_percpu(&key, &vec![value; cpus], libbpf_rs::MapFlags::ANY),
                }
                .unwrap();
            }
            let read = read_hash(&map).unwrap();
            let count = read.len();
            let entries: BTreeMap<_, _> = read.into_iter().collect();
            assert_eq!([count, entries.len()], [2 * HASH_BATCH as usize + 7; 2]);
            for (key, value) in entries {
                let key = u32::from_ne_bytes(key.try_into().unwrap());
                assert_eq!(value, u64::from(key).to_ne_bytes().repeat(cpus));
            }
        }
    }
}
