//! The BPF file system, where pinned programs, links and maps outlive the process that loaded them.

use crate::{Error, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The conventional mount point.
pub const DEFAULT_PATH: &str = "/sys/fs/bpf";
/// The same directory in the mount namespace of process 1. `ip netns exec` creates a mount
/// namespace of its own, in which a mount would vanish with the process.
const PATH_OF_INIT: &str = "/proc/1/root/sys/fs/bpf";
const MOUNTS_OF_INIT: &str = "/proc/1/ns/mnt";

/// Returns a path to the BPF file system at `path`, and mounts it if it is not mounted yet.
/// [`DEFAULT_PATH`] stands for the one in the mount namespace of process 1; in a container that may
/// not access that, for the one of this process.
///
/// # Errors
/// It is not mounted, and cannot be mounted.
pub fn open(path: &Path) -> Result<PathBuf> {
    if path != Path::new(DEFAULT_PATH) {
        mount_at(path)?;
        return Ok(path.to_owned());
    }
    if !may_access_init() {
        mount_at(Path::new(DEFAULT_PATH))?;
    } else if !is_mounted(Path::new(PATH_OF_INIT)) {
        // Mounts on a new thread, because entering a mount namespace affects the whole thread.
        let mounted = std::thread::spawn(|| {
            let what = || format!("mount the BPF file system at {DEFAULT_PATH}");
            let first = File::open(MOUNTS_OF_INIT).map_err(|error| Error::os(what(), error))?;
            unshare(CloneFlags::CLONE_FS)
                .and_then(|()| setns(&first, CloneFlags::CLONE_NEWNS))
                .map_err(|errno| Error::os(what(), errno))?;
            mount_at(Path::new(DEFAULT_PATH))
        });
        let panicked = |_| Err(Error::invalid("mount the BPF file system", "a thread panicked"));
        mounted.join().unwrap_or_else(panicked)?;
    }
    Ok(default_path())
}

/// The path to the default BPF file system, mounted or not.
pub fn default_path() -> PathBuf {
    let device = |path: &str| fs::metadata(path).map(|found| found.dev()).ok();
    let is_same = device(DEFAULT_PATH).is_some() && device(DEFAULT_PATH) == device(PATH_OF_INIT);
    PathBuf::from(if is_same || !may_access_init() { DEFAULT_PATH } else { PATH_OF_INIT })
}

/// True when this process may access the mount namespace of process 1.
fn may_access_init() -> bool {
    fs::metadata("/proc/1/root/").is_ok() && File::open(MOUNTS_OF_INIT).is_ok()
}

/// True when a BPF file system is mounted at `path`.
pub fn is_mounted(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

/// True when objects that this process pins at `path` certainly outlive it: process 1 has the same
/// BPF file system mounted.
///
/// `ip netns exec` and `unshare` make mount namespaces that can end with the process. A BPF file
/// system that is mounted nowhere else then ends, with everything that is pinned in it.
pub fn outlives_process(path: &Path) -> bool {
    if std::process::id() == 1 {
        return false;
    }
    let Ok(device) = fs::metadata(path).map(|found| found.dev()) else { return false };
    let device = format!("{}:{}", major(device), minor(device));
    // Readable even without access to the mount namespace itself (proc_pid_mountinfo(5)).
    let mounts = fs::read_to_string("/proc/1/mountinfo").unwrap_or_default();
    mounts.lines().any(|mount| mount.split(' ').nth(2) == Some(device.as_str()))
}

fn mount_at(path: &Path) -> Result<()> {
    let what = || format!("mount the BPF file system at {}", path.display());
    let place = File::open(path).map_err(|error| Error::os(what(), error))?;
    // Without the lock, two processes could both mount, and the upper mount would hide the objects
    // pinned in the lower one.
    place.lock().map_err(|error| Error::os(what(), error))?;
    if is_mounted(path) {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("bpf"), path, Some("bpf"), flags, Some("mode=0700"))
        .map_err(|errno| Error::os(what(), errno))
}
