//! [`Pins`]: the programs and maps that outlive the process, pinned in the BPF file system
//! (docs/adr/0012).
//!
//! ```text
//! /sys/fs/bpf/weft/COOKIE/          one directory for each network namespace
//!     namespace                     devmap with its loopback; emptied when the namespace goes
//!     links/IFINDEX                 the tcx link of a program at a device
//!     clsact/IFINDEX/               weft added clsact to this device
//!     sets/N/MAP, PROGRAM           all programs and maps that one process loaded
//!     sets/N/state                  layout hash and number of megaflows, pinned last
//! ```

use crate::layout::LAYOUT;
use crate::object::LoadedObject;
use crate::sys;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use netdev::{Ifindex, Netns, NetnsLock, bpf_fs};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The directory of a network namespace. Its owner also holds the exclusive `NamespaceClaim`.
#[derive(Debug)]
pub struct Pins {
    /// The directory, by the path that users know.
    shown: PathBuf,
    /// The same directory, by a path through `root`.
    path: PathBuf,
    root: Arc<OpenFolder>,
    /// Keeps a process in another namespace from removing this directory as stale.
    lock: File,
}

/// An open directory, and a path to it that needs no privilege: `/proc/self/fd/N`. It may have been
/// opened through `/proc/1/root`, which needs CAP_SYS_PTRACE.
#[derive(Debug)]
struct OpenFolder {
    path: PathBuf,
    _folder: File,
}

impl OpenFolder {
    fn open(path: &Path) -> io::Result<Self> {
        let folder = File::open(path)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        Ok(Self { path, _folder: folder })
    }
}

/// The exclusive right to run a kernel datapath in this thread's network namespace. There can be
/// only one, because it adopts all veth pairs that it finds.
#[derive(Debug)]
pub(crate) struct NamespaceClaim {
    _claim: NetnsLock,
}

impl NamespaceClaim {
    /// # Errors
    /// [`PinError::Taken`].
    pub(crate) fn claim() -> Result<Self, PinError> {
        let end = Instant::now() + ENDING;
        loop {
            if let Some(claim) = NetnsLock::take(CLAIM)? {
                return Ok(Self { _claim: claim });
            }
            if Instant::now() >= end {
                return Err(PinError::Taken(NetnsLock::holder(CLAIM)));
            }
            thread::sleep(ENDING / 20);
        }
    }
}

/// Pinned objects are unavailable or cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// Another process runs a kernel datapath in this namespace; its process id, if it is visible.
    #[error(
        "another weft{} runs the kernel datapath of this network namespace: stop it first",
        pid_text(.0)
    )]
    Taken(Option<u32>),
    /// A network device operation failed.
    #[error(transparent)]
    Device(#[from] netdev::Error),
    /// The BPF file system reported an error.
    #[error("cannot access pinned BPF objects in {}: {error}", .folder.display())]
    Refused {
        /// The directory.
        folder: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

/// A process id for an error message; nothing if it is not known.
fn pid_text(pid: &Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

const FOLDER: &str = "weft";
const STATE: &str = "state";
const NAMESPACE: &str = "namespace";
/// The loopback device has this ifindex in every network namespace.
const LOOPBACK: u32 = 1;
/// The only key of a map with one entry.
const FIRST: [u8; 4] = [0; 4];
const CLAIM: &str = "weft-kernel-datapath";
/// How long to wait for a process that is already stopping.
const ENDING: Duration = Duration::from_millis(500);
/// How long to wait for the lock of a directory, which a process that starts in another namespace
/// holds while it checks whether the directory is stale.
const LOOKED_AT: Duration = Duration::from_millis(500);

impl Pins {
    /// Opens the directory of this thread's network namespace. `path` is the mount point of the BPF
    /// file system, which is mounted if necessary.
    ///
    /// # Errors
    /// [`PinError`].
    pub fn open(path: &Path) -> Result<Self, PinError> {
        Self::at(&bpf_fs::open(path)?)
    }

    /// As [`Pins::open`], in a BPF file system that is mounted at `path`.
    pub(crate) fn at(path: &Path) -> Result<Self, PinError> {
        let name = Path::new(FOLDER).join(Netns::current_cookie()?.to_string());
        let shown = path.join(&name);
        let refused = |error| PinError::Refused { folder: shown.clone(), error };
        let root = Arc::new(OpenFolder::open(path).map_err(refused)?);
        let folder = root.path.join(&name);
        let end = Instant::now() + LOOKED_AT;
        loop {
            fs::create_dir_all(&folder).map_err(refused)?;
            let lock = match lock(&folder) {
                Ok(Some(lock)) => lock,
                Ok(None) if Instant::now() < end => {
                    thread::sleep(LOOKED_AT / 20);
                    continue;
                }
                Ok(None) => return Err(refused(io::ErrorKind::ResourceBusy.into())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(refused(error)),
            };
            // The previous holder of the lock may have removed the directory.
            let is_there = |meta: fs::Metadata| {
                lock.metadata()
                    .is_ok_and(|ours| (ours.dev(), ours.ino()) == (meta.dev(), meta.ino()))
            };
            if fs::metadata(&folder).is_ok_and(is_there) {
                remove_dead(&root.path.join(FOLDER), &folder);
                let pins = Self { shown: shown.clone(), path: folder, root, lock };
                pins.note_namespace().map_err(refused)?;
                return Ok(pins);
            }
        }
    }

    /// As [`Pins::open`], but `None` if nothing is pinned for this namespace. Creates nothing.
    ///
    /// # Errors
    /// [`PinError`].
    pub fn find(path: &Path) -> Result<Option<Self>, PinError> {
        let is_usual = path == Path::new(bpf_fs::DEFAULT_PATH);
        let path = if is_usual { bpf_fs::default_path() } else { path.to_owned() };
        let folder = path.join(FOLDER).join(Netns::current_cookie()?.to_string());
        if !bpf_fs::is_mounted(&path) || !folder.is_dir() {
            return Ok(None);
        }
        Self::at(&path).map(Some)
    }

    /// Creates the devmap by which processes in other namespaces detect that this one is gone.
    fn note_namespace(&self) -> io::Result<()> {
        let path = self.path.join(NAMESPACE);
        if MapHandle::from_pinned_path(&path).is_ok() {
            return Ok(());
        }
        let map = new_map(MapType::Devmap, "weft_namespace", 4)?;
        map.update(&FIRST, &LOOPBACK.to_ne_bytes(), MapFlags::ANY).map_err(io::Error::other)?;
        Self::replace_pin(map.as_fd(), &path)
    }

    /// The directory.
    pub fn folder(&self) -> &Path {
        &self.shown
    }

    /// Converts a path in the directory to the one that users know.
    pub(crate) fn shown(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.path).map_or(path.to_owned(), |inside| self.shown.join(inside))
    }

    /// Paths to the BPF file system and to the directory in it. They are valid in this process
    /// only, and as long as `self` exists.
    pub(crate) fn open_folders(&self) -> [&Path; 2] {
        [&self.root.path, &self.path]
    }

    /// True when the pins are known to stay when the process exits, see
    /// [`bpf_fs::outlives_process`].
    pub(crate) fn outlive_process(&self) -> bool {
        bpf_fs::outlives_process(&self.root.path)
    }

    /// The path of a device's tcx link.
    pub(crate) fn link(&self, ifindex: u32) -> PathBuf {
        self.path.join("links").join(ifindex.to_string())
    }

    /// The devices with a pinned tcx link. Links of deleted devices are left out.
    pub(crate) fn linked(&self) -> Vec<Ifindex> {
        let links = numbered(&self.path.join("links"));
        let device = |link: &Path| sys::device_of(sys::pinned(link).ok()?.as_fd()).ok().flatten();
        links.iter().filter_map(|(_, link)| device(link).map(Ifindex)).collect()
    }

    /// Pins an object, and replaces a stale pin of that name.
    pub(crate) fn replace_pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        sys::pin(object, path)
    }

    /// Records that weft added the clsact qdisc to a device.
    pub(crate) fn note_clsact(&self, ifindex: u32) -> io::Result<()> {
        fs::create_dir_all(self.clsact(ifindex))
    }

    /// Removes that record. Returns false if there was none.
    pub(crate) fn forget_clsact(&self, ifindex: u32) -> bool {
        fs::remove_dir(self.clsact(ifindex)).is_ok()
    }

    fn clsact(&self, ifindex: u32) -> PathBuf {
        self.path.join("clsact").join(ifindex.to_string())
    }

    /// Removes the pinned links of all devices except `keep`, which detaches their programs.
    /// Returns their number; an error for one does not prevent the removal of the others.
    pub(crate) fn remove_links(&self, keep: &[u32]) -> io::Result<usize> {
        let others = numbered(&self.path.join("links"));
        let others: Vec<_> =
            others.into_iter().filter(|(index, _)| !keep.contains(index)).collect();
        let removed = others.iter().map(|(_, path)| fs::remove_file(path));
        removed.fold(Ok(()), io::Result::and).map(|()| others.len())
    }

    /// Sets of previous processes, the oldest first.
    pub(crate) fn sets(&self) -> Vec<PathBuf> {
        numbered(&self.path.join("sets")).into_iter().map(|(_, path)| path).collect()
    }

    /// Pins programs that have just been loaded, and their maps.
    pub(crate) fn add_set(&self, loaded: &LoadedObject) -> io::Result<PinSet> {
        let sets = self.path.join("sets");
        let number = numbered(&sets).last().map_or(0, |(number, _)| number + 1);
        let folder = sets.join(number.to_string());
        fs::create_dir_all(&folder)?;
        // From here on, an error drops `set`, which removes it.
        let mut set = PinSet { folder, state: None, _root: Arc::clone(&self.root) };
        for (name, object) in loaded.all() {
            // Names in the BPF file system may not contain a dot.
            sys::pin(object, &set.folder.join(name.replace('.', "_")))?;
        }
        let state = new_map(MapType::Array, "weft_state", 16)?;
        write_state(&state, &PinSetState { layout: LAYOUT, megaflows: 0 })?;
        sys::pin(state.as_fd(), &set.folder.join(STATE))?;
        set.state = Some(Mutex::new((state, 0)));
        Ok(set)
    }

    /// Removes everything, which detaches the programs. Also removes the directory, unless an error
    /// occurs.
    pub(crate) fn remove_all(&self) -> io::Result<()> {
        remove_all(&self.path)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        remove_empty(&self.path);
        // The lock is released last.
        let _ = self.lock.unlock();
    }
}

/// Removes the directory of a namespace, and the one above, if they are empty.
fn remove_empty(folder: &Path) {
    let inner = ["links", "clsact", "sets"].map(|inner| folder.join(inner));
    inner.iter().for_each(|inner| drop(fs::remove_dir(inner)));
    if inner.iter().any(|inner| inner.exists()) {
        return;
    }
    let _ = fs::remove_file(folder.join(NAMESPACE));
    if fs::remove_dir(folder).is_ok()
        && let Some(root) = folder.parent()
    {
        let _ = fs::remove_dir(root);
    }
}

fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = File::open(folder)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes the pins of network namespaces that are gone.
fn remove_dead(root: &Path, ours: &Path) {
    for (_, folder) in numbered(root).into_iter().filter(|(_, folder)| folder != ours) {
        let Ok(Some(_lock)) = lock(&folder) else { continue };
        if is_dead(&folder) {
            messages::log!(
                OLD_PINS_REMOVED,
                cookie = folder.file_name().and_then(|name| name.to_str()),
                "removing pins of a network namespace that is gone"
            );
            if let Err(error) = remove_all(&folder) {
                messages::log!(OLD_PINS_LEFT, "{error}");
            }
        }
    }
}

/// Whether a network namespace is gone; false if that cannot be determined.
fn is_dead(folder: &Path) -> bool {
    MapHandle::from_pinned_path(folder.join(NAMESPACE))
        .is_ok_and(|map| map.lookup(&FIRST, MapFlags::ANY).is_ok_and(|device| device.is_none()))
}

/// Removes all pins of a network namespace.
fn remove_all(folder: &Path) -> io::Result<()> {
    let inner = |name: &str| numbered(&folder.join(name)).into_iter().map(|(_, path)| path);
    inner("links").try_for_each(fs::remove_file)?;
    inner("sets").try_for_each(|set| remove_folder(&set))?;
    inner("clsact").try_for_each(fs::remove_dir)?;
    remove_empty(folder);
    Ok(())
}

/// The numbered entries of a directory in order; none if the directory does not exist.
fn numbered(folder: &Path) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse().ok();
    let mut found: Vec<_> =
        entries.filter_map(|entry| Some((number(&entry.path())?, entry.path()))).collect();
    found.sort_unstable();
    found
}

/// Removes a directory that contains no directories.
fn remove_folder(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(folder)
}

/// The pins of one process. Dropping this removes them.
#[derive(Debug)]
pub(crate) struct PinSet {
    folder: PathBuf,
    /// The state map, and the number of megaflows in it.
    state: Option<Mutex<(MapHandle, u64)>>,
    /// Keeps the path valid.
    _root: Arc<OpenFolder>,
}

impl PinSet {
    /// Updates the number of megaflows.
    pub(crate) fn note(&self, megaflows: u64) -> io::Result<()> {
        let Some(state) = &self.state else { return Ok(()) };
        let mut state = state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (map, written) = &mut *state;
        if *written != megaflows {
            write_state(map, &PinSetState { layout: LAYOUT, megaflows })?;
            *written = megaflows;
        }
        Ok(())
    }
}

impl Drop for PinSet {
    fn drop(&mut self) {
        if let Err(error) = remove_folder(&self.folder) {
            messages::log!(PIN_FOLDER_LEFT, set = %self.folder.display(), "{error}");
        }
    }
}

/// Removes the set of a previous process.
pub(crate) fn remove_set(folder: &Path) -> io::Result<()> {
    remove_folder(folder)
}

/// The part of a set that every version of weft can read: two 64-bit words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PinSetState {
    /// Layout hash of the other maps, see [`LAYOUT`].
    pub(crate) layout: u64,
    pub(crate) megaflows: u64,
}

/// Creates a map with one entry.
fn new_map(kind: MapType, name: &str, value_len: u32) -> io::Result<MapHandle> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(kind, Some(name), 4, value_len, 1, &options).map_err(io::Error::other)
}

fn write_state(map: &MapHandle, state: &PinSetState) -> io::Result<()> {
    let bytes = [state.layout.to_ne_bytes(), state.megaflows.to_ne_bytes()].concat();
    map.update(&FIRST, &bytes, MapFlags::ANY).map_err(io::Error::other)
}

/// The state of a set; `None` if the process died before it had pinned everything.
pub(crate) fn read_state(set: &Path) -> Option<PinSetState> {
    let map = MapHandle::from_pinned_path(set.join(STATE)).ok()?;
    let bytes = map.lookup(&FIRST, MapFlags::ANY).ok()??;
    let &[layout, megaflows] = bytes.as_chunks().0 else { return None };
    Some(PinSetState {
        layout: u64::from_ne_bytes(layout),
        megaflows: u64::from_ne_bytes(megaflows),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{MapSizes, load};
    use flow::EntropySeed;
    use std::process::Command;
    use testkit::host::{TestHost, wait_until};

    /// A BPF file system.
    struct BpfFs(PathBuf);

    impl BpfFs {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            bpf_fs::open(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for BpfFs {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
            let _ = fs::remove_dir(&self.0);
        }
    }

    #[test]
    fn pins_are_removed_with_their_namespace_when_there_are_no_links() {
        testkit::require_root!();
        let bpf_fs = BpfFs::new("dead");
        let loaded = load(MapSizes::new(16, 16), &EntropySeed::random()).expect("programs");
        let (host, other) = (TestHost::new("dead"), TestHost::new("next"));
        let folder = host.run(|| {
            let pins = Pins::at(&bpf_fs.0).unwrap();
            // As a killed process leaves clsact filters.
            std::mem::forget(pins.add_set(&loaded).unwrap());
            pins.note_clsact(7).unwrap();
            pins.folder().to_owned()
        });
        let start_elsewhere = || other.run(|| drop(Pins::at(&bpf_fs.0).unwrap()));
        start_elsewhere();
        assert!(folder.join("sets/0/state").exists(), "the namespace is there");
        drop(host);
        wait_until(Duration::from_secs(10), "it is removed", || {
            start_elsewhere();
            !folder.exists()
        });
        assert!(!bpf_fs.0.join(FOLDER).exists(), "nothing is left");
    }
}
