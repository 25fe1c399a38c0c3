//! [`Pins`]: what stays in the kernel when the process is gone, by its names in the BPF file system (docs/adr/0012).
//!
//! ```text
//! /sys/fs/bpf/weft/COOKIE/          of one network namespace
//!     namespace                     whether it is there: a map of its loopback, out of which the kernel takes a device that goes
//!     links/IFINDEX                 a program at a device, by tcx
//!     clsact/IFINDEX/               this device has got its queueing discipline from us
//!     sets/N/MAP, PROGRAM           all that belongs to the programs that were loaded by one process
//!     sets/N/state                  what every version can read of it; the last that is pinned
//! ```

use crate::layout::LAYOUT;
use crate::object::LoadedObject;
use crate::sys;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use netdev::{Ifindex, Netns, NetnsLock, bpf_fs};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// The folder of one network namespace, by whoever has its [`Namespace`].
#[derive(Debug)]
pub struct Pins {
    folder: PathBuf,
    /// So that a process which starts in another namespace does not take it for one that nobody has any more.
    lock: File,
}

/// This thread's network namespace, whose kernel datapath is this process's affair alone: there can be one, which takes over every pair
/// that it finds.
#[derive(Debug)]
pub(crate) struct Namespace {
    _claim: NetnsLock,
}

impl Namespace {
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

/// What is to outlive a process cannot be had, or what has cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// Another process, of this number if it is to be seen from here, has the kernel datapath of this network namespace.
    #[error("another weft{} forwards in the kernel for this network namespace", .0.map(|number| format!(" (process {number})")).unwrap_or_default())]
    Taken(Option<u32>),
    /// The kernel refuses something.
    #[error(transparent)]
    Device(#[from] netdev::Error),
    /// The file system refuses something.
    #[error("what is pinned at {}: {error}", .folder.display())]
    Refused {
        /// Where.
        folder: PathBuf,
        /// Why.
        error: io::Error,
    },
}

const FOLDER: &str = "weft";
const STATE: &str = "state";
const NAMESPACE: &str = "namespace";
/// The number of this device is the same in all network namespaces.
const LOOPBACK: u32 = 1;
/// The key of the only entry of a map.
const FIRST: [u8; 4] = [0; 4];
const CLAIM: &str = "weft-kernel-datapath";
/// How long a process may take to end that has said so already.
const ENDING: Duration = Duration::from_millis(500);
/// For how long a process that starts elsewhere may have a folder, to see whether its network namespace is gone.
const LOOKED_AT: Duration = Duration::from_millis(500);

impl Pins {
    /// Takes the folder of this thread's network namespace, in the BPF file system that is meant by `path`, which is mounted if need be.
    ///
    /// # Errors
    /// [`PinError`].
    pub fn open(path: &Path) -> Result<Self, PinError> {
        Self::at(&bpf_fs::open(path)?)
    }

    /// The same in this file system.
    pub(crate) fn at(path: &Path) -> Result<Self, PinError> {
        let root = path.join(FOLDER);
        let folder = root.join(Netns::current_cookie()?.to_string());
        let refused_at =
            |folder: &Path, error| PinError::Refused { folder: folder.to_owned(), error };
        let refused = |error| refused_at(&folder, error);
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
            // Whoever had it may have removed it before.
            let is_there = |meta: fs::Metadata| {
                lock.metadata()
                    .is_ok_and(|ours| (ours.dev(), ours.ino()) == (meta.dev(), meta.ino()))
            };
            if fs::metadata(&folder).is_ok_and(is_there) {
                remove_dead(&root, &folder);
                let pins = Self { folder, lock };
                pins.note_namespace().map_err(|error| refused_at(&pins.folder, error))?;
                return Ok(pins);
            }
        }
    }

    /// Whether something is pinned for this thread's network namespace, at the same place; without making anything.
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

    /// Has it be known afterwards whether this network namespace is gone.
    fn note_namespace(&self) -> io::Result<()> {
        let path = self.folder.join(NAMESPACE);
        if MapHandle::from_pinned_path(&path).is_ok() {
            return Ok(());
        }
        let map = new_map(MapType::Devmap, "weft_namespace", 4)?;
        map.update(&FIRST, &LOOPBACK.to_ne_bytes(), MapFlags::ANY).map_err(io::Error::other)?;
        Self::pin_anew(map.as_fd(), &path)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The name of the link of a device.
    pub(crate) fn link(&self, ifindex: u32) -> PathBuf {
        self.folder.join("links").join(ifindex.to_string())
    }

    /// The devices whose links are pinned; one that is gone has none any more.
    pub(crate) fn linked(&self) -> Vec<Ifindex> {
        let links = numbered(&self.folder.join("links"));
        let device = |link: &Path| sys::device_of(sys::pinned(link).ok()?.as_fd()).ok().flatten();
        links.iter().filter_map(|(_, link)| device(link).map(Ifindex)).collect()
    }

    /// Names it, in the place of something that is of no use any more.
    pub(crate) fn pin_anew(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        sys::pin(object, path)
    }

    /// A device has got its queueing discipline clsact from us.
    pub(crate) fn note_clsact(&self, ifindex: u32) -> io::Result<()> {
        fs::create_dir_all(self.clsact(ifindex))
    }

    /// It has it no more, or will not in a moment; false when it was not ours.
    pub(crate) fn forget_clsact(&self, ifindex: u32) -> bool {
        fs::remove_dir(self.clsact(ifindex)).is_ok()
    }

    fn clsact(&self, ifindex: u32) -> PathBuf {
        self.folder.join("clsact").join(ifindex.to_string())
    }

    /// Removes the links of all devices but these: their programs are detached. How many there were. One that cannot be removed does not
    /// keep the others.
    pub(crate) fn remove_links(&self, keep: &[u32]) -> io::Result<usize> {
        let others = numbered(&self.folder.join("links"));
        let others: Vec<_> =
            others.into_iter().filter(|(index, _)| !keep.contains(index)).collect();
        let removed = others.iter().map(|(_, path)| fs::remove_file(path));
        removed.fold(Ok(()), io::Result::and).map(|()| others.len())
    }

    /// Those of processes that are gone, the oldest first.
    pub(crate) fn sets(&self) -> Vec<PathBuf> {
        numbered(&self.folder.join("sets")).into_iter().map(|(_, path)| path).collect()
    }

    /// Pins freshly loaded programs and their maps.
    pub(crate) fn add_set(&self, loaded: &LoadedObject) -> io::Result<Set> {
        let sets = self.folder.join("sets");
        let number = numbered(&sets).last().map_or(0, |(number, _)| number + 1);
        let folder = sets.join(number.to_string());
        fs::create_dir_all(&folder)?;
        // From here on, what goes wrong removes it.
        let mut set = Set { folder, state: None };
        for (name, object) in loaded.all() {
            // The file system takes no dot.
            sys::pin(object, &set.folder.join(name.replace('.', "_")))?;
        }
        let state = new_map(MapType::Array, "weft_state", 16)?;
        write_state(&state, &State { layout: LAYOUT, megaflows: 0 })?;
        sys::pin(state.as_fd(), &set.folder.join(STATE))?;
        set.state = Some(Mutex::new((state, 0)));
        Ok(set)
    }

    /// Removes everything: programs are detached. Nothing is left of the folder, unless the kernel refuses something.
    pub(crate) fn remove_all(&self) -> io::Result<()> {
        remove_all(&self.folder)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        remove_empty(&self.folder);
        // Unlocked last.
        let _ = self.lock.unlock();
    }
}

/// Removes the folder of a namespace, and that of all, if there is nothing in them.
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

/// Removes what is pinned of network namespaces that are gone.
fn remove_dead(root: &Path, ours: &Path) {
    for (_, folder) in numbered(root).into_iter().filter(|(_, folder)| folder != ours) {
        let Ok(Some(_lock)) = lock(&folder) else { continue };
        if is_dead(&folder) {
            tracing::info!(folder = %folder.display(), "removes what is pinned of a network namespace that is gone");
            if let Err(error) = remove_all(&folder) {
                tracing::debug!("{error}");
            }
        }
    }
}

/// Whether a network namespace is gone; false as well where that is not to be known.
fn is_dead(folder: &Path) -> bool {
    MapHandle::from_pinned_path(folder.join(NAMESPACE))
        .is_ok_and(|map| map.lookup(&FIRST, MapFlags::ANY).is_ok_and(|device| device.is_none()))
}

/// Removes all that is pinned of a network namespace.
fn remove_all(folder: &Path) -> io::Result<()> {
    let inner = |name: &str| numbered(&folder.join(name)).into_iter().map(|(_, path)| path);
    inner("links").try_for_each(fs::remove_file)?;
    inner("sets").try_for_each(|set| remove_folder(&set))?;
    inner("clsact").try_for_each(fs::remove_dir)?;
    remove_empty(folder);
    Ok(())
}

/// What is in a folder under a number, in their order; nothing when it is not there.
fn numbered(folder: &Path) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse().ok();
    let mut found: Vec<_> =
        entries.filter_map(|entry| Some((number(&entry.path())?, entry.path()))).collect();
    found.sort_unstable();
    found
}

/// Removes a folder without folders in it.
fn remove_folder(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(folder)
}

/// What is pinned of one process; its names go with this.
#[derive(Debug)]
pub(crate) struct Set {
    folder: PathBuf,
    /// And the number of megaflows that it says.
    state: Option<Mutex<(MapHandle, u64)>>,
}

impl Set {
    /// Writes down how many megaflows there are.
    pub(crate) fn note(&self, megaflows: u64) -> io::Result<()> {
        let Some(state) = &self.state else { return Ok(()) };
        let mut state = state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (map, said) = &mut *state;
        if *said != megaflows {
            write_state(map, &State { layout: LAYOUT, megaflows })?;
            *said = megaflows;
        }
        Ok(())
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        if let Err(error) = remove_folder(&self.folder) {
            tracing::debug!(set = %self.folder.display(), "{error}");
        }
    }
}

/// Removes a set of a process that is gone.
pub(crate) fn remove_set(folder: &Path) -> io::Result<()> {
    remove_folder(folder)
}

/// What all versions of weft write and read in the same way: two words of 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct State {
    /// Of the other maps; see [`LAYOUT`].
    pub(crate) layout: u64,
    pub(crate) megaflows: u64,
}

/// A map of one entry.
fn new_map(kind: MapType, name: &str, value_len: u32) -> io::Result<MapHandle> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(kind, Some(name), 4, value_len, 1, &options).map_err(io::Error::other)
}

fn write_state(map: &MapHandle, state: &State) -> io::Result<()> {
    let bytes = [state.layout.to_ne_bytes(), state.megaflows.to_ne_bytes()].concat();
    map.update(&FIRST, &bytes, MapFlags::ANY).map_err(io::Error::other)
}

/// What a set says about itself; `None` when it does not, because whoever made it was interrupted.
pub(crate) fn read_state(set: &Path) -> Option<State> {
    let map = MapHandle::from_pinned_path(set.join(STATE)).ok()?;
    let bytes = map.lookup(&FIRST, MapFlags::ANY).ok()??;
    let &[layout, megaflows] = bytes.as_chunks().0 else { return None };
    Some(State { layout: u64::from_ne_bytes(layout), megaflows: u64::from_ne_bytes(megaflows) })
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
    fn what_is_pinned_goes_with_its_namespace_when_no_link_says_that_it_is_gone() {
        testkit::require_root!();
        let bpf_fs = BpfFs::new("dead");
        let loaded = load(MapSizes::new(16, 16), &EntropySeed::random()).expect("programs");
        let (host, other) = (TestHost::new("dead"), TestHost::new("next"));
        let folder = host.run(|| {
            let pins = Pins::at(&bpf_fs.0).unwrap();
            // As a process does that is killed where programs are filters.
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
