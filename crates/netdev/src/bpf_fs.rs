//! The BPF file system: where programs, links and maps stay in the kernel when the process is gone that made them.

use crate::{Error, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where it is by convention.
pub const USUAL: &str = "/sys/fs/bpf";
/// The same, as the first process sees it. A mount of our own, as `ip netns exec` makes one, would go with us.
const LASTING: &str = "/proc/1/root/sys/fs/bpf";
const MOUNTS_OF_FIRST: &str = "/proc/1/ns/mnt";

/// The way to the BPF file system that is meant by `path`; mounts it where none is mounted yet. By [`USUAL`] the one is meant that the
/// first process has there, whatever this process sees; in a container that may not look there, the one that is here.
///
/// # Errors
/// There is none, and it cannot be mounted.
pub fn open(path: &Path) -> Result<PathBuf> {
    if path != Path::new(USUAL) {
        mount_at(path)?;
        return Ok(path.to_owned());
    }
    if !is_first_seen() {
        mount_at(Path::new(USUAL))?;
    } else if !is_there(Path::new(LASTING)) {
        // On a thread of its own, which alone goes there.
        let mounted = std::thread::spawn(|| {
            let what = || format!("mount the BPF file system at {USUAL}");
            let first = File::open(MOUNTS_OF_FIRST).map_err(|error| Error::os(what(), error))?;
            unshare(CloneFlags::CLONE_FS)
                .and_then(|()| setns(&first, CloneFlags::CLONE_NEWNS))
                .map_err(|errno| Error::os(what(), errno))?;
            mount_at(Path::new(USUAL))
        });
        let panicked = |_| Err(Error::invalid("mount the BPF file system", "a thread panicked"));
        mounted.join().unwrap_or_else(panicked)?;
    }
    Ok(usual())
}

/// The way to the [`USUAL`] one, mounted or not.
pub fn usual() -> PathBuf {
    let device = |path: &str| fs::metadata(path).map(|found| found.dev()).ok();
    let is_same = device(USUAL).is_some() && device(USUAL) == device(LASTING);
    PathBuf::from(if is_same || !is_first_seen() { USUAL } else { LASTING })
}

/// False where another process's mounts are none of ours to see.
fn is_first_seen() -> bool {
    fs::metadata("/proc/1/root/").is_ok() && File::open(MOUNTS_OF_FIRST).is_ok()
}

/// True when a BPF file system is mounted there.
pub fn is_there(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

fn mount_at(path: &Path) -> Result<()> {
    let what = || format!("mount the BPF file system at {}", path.display());
    let place = File::open(path).map_err(|error| Error::os(what(), error))?;
    // Two processes that both find none would mount two, and the upper would hide what is pinned in the lower.
    place.lock().map_err(|error| Error::os(what(), error))?;
    if is_there(path) {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("bpf"), path, Some("bpf"), flags, Some("mode=0700"))
        .map_err(|errno| Error::os(what(), errno))
}
