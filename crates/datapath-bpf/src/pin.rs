//! [`Pins`]: what stays in the kernel when the process is gone, by its names in the BPF file system (docs/adr/0012).
//!
//! ```text
//! /sys/fs/bpf/weft/COOKIE/          of one network namespace; its process has it locked
//!     links/IFINDEX                 a program at a device, by tcx
//!     clsact/IFINDEX/               this device has got its queueing discipline from us
//!     sets/N/MAP, PROGRAM           all that belongs to the programs that were loaded by one process
//!     sets/N/state                  what every version can read of it; the last that is pinned
//! ```

use crate::layout::LAYOUT;
use crate::pieces::Pieces;
use crate::sys;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use netdev::{Ifindex, Netns, bpf_fs};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// The folder of one network namespace. As long as a process has it, no other can: it is locked.
#[derive(Debug)]
pub struct Pins {
    folder: PathBuf,
    lock: File,
}

/// Nothing can be pinned.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// Another process has what is pinned for this network namespace.
    #[error("another weft forwards in the kernel for this network namespace: it holds {}", .0.display())]
    Taken(PathBuf),
    /// The kernel refuses something.
    #[error("nothing can be pinned: {0}")]
    Device(#[from] netdev::Error),
    /// The file system refuses something.
    #[error("nothing can be pinned at {}: {error}", .folder.display())]
    Refused {
        /// Where.
        folder: PathBuf,
        /// Why.
        error: io::Error,
    },
}

const FOLDER: &str = "weft";
const STATE: &str = "state";
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
        let refused = |error| PinError::Refused { folder: folder.clone(), error };
        let end = Instant::now() + LOOKED_AT;
        loop {
            fs::create_dir_all(&folder).map_err(refused)?;
            let lock = match lock(&folder) {
                Ok(Some(lock)) => lock,
                Ok(None) if Instant::now() < end => {
                    thread::sleep(LOOKED_AT / 20);
                    continue;
                }
                Ok(None) => return Err(PinError::Taken(folder)),
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
                return Ok(Self { folder, lock });
            }
        }
    }

    /// Whether something is pinned for this thread's network namespace, at the same place; without making anything.
    ///
    /// # Errors
    /// [`PinError`].
    pub fn find(path: &Path) -> Result<Option<Self>, PinError> {
        let is_usual = path == Path::new(bpf_fs::USUAL);
        let path = if is_usual { bpf_fs::usual() } else { path.to_owned() };
        let folder = path.join(FOLDER).join(Netns::current_cookie()?.to_string());
        if !bpf_fs::is_there(&path) || !folder.is_dir() {
            return Ok(None);
        }
        Self::at(&path).map(Some)
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
    pub(crate) fn add_set(&self, pieces: &Pieces) -> io::Result<Set> {
        let sets = self.folder.join("sets");
        let number = numbered(&sets).last().map_or(0, |(number, _)| number + 1);
        let folder = sets.join(number.to_string());
        fs::create_dir_all(&folder)?;
        // From here on, what goes wrong removes it.
        let mut set = Set { folder, state: None };
        for (name, object) in pieces.all() {
            // The file system takes no dot.
            sys::pin(object, &set.folder.join(name.replace('.', "_")))?;
        }
        let state = new_state()?;
        write_state(&state, &State { layout: LAYOUT, megaflows: 0 })?;
        sys::pin(state.as_fd(), &set.folder.join(STATE))?;
        set.state = Some(Mutex::new((state, 0)));
        Ok(set)
    }

    /// Removes everything: programs are detached. Nothing is left of the folder, unless the kernel refuses something.
    pub(crate) fn remove_all(&self) -> io::Result<()> {
        self.remove_links(&[])?;
        self.sets().iter().try_for_each(|set| remove_folder(set))?;
        for (_, clsact) in numbered(&self.folder.join("clsact")) {
            fs::remove_dir(clsact)?;
        }
        self.remove_if_empty();
        Ok(())
    }

    /// Removes the folder if there is nothing in it.
    pub(crate) fn remove_if_empty(&self) {
        remove_empty(&self.folder);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.remove_if_empty();
        // Unlocked last.
        let _ = self.lock.unlock();
    }
}

/// Removes the folder of a namespace, and that of all, if there is nothing in them.
fn remove_empty(folder: &Path) {
    for inner in ["links", "clsact", "sets"] {
        let _ = fs::remove_dir(folder.join(inner));
    }
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

/// Removes what is pinned of network namespaces that are gone: there are links, and none has a device any more.
fn remove_dead(root: &Path, ours: &Path) {
    for (_, folder) in numbered(root).into_iter().filter(|(_, folder)| folder != ours) {
        let Ok(Some(_lock)) = lock(&folder) else { continue };
        let links = numbered(&folder.join("links"));
        let is_dead = |(_, link): &(u32, PathBuf)| {
            sys::pinned(link)
                .is_ok_and(|link| sys::device_of(link.as_fd()).is_ok_and(|d| d.is_none()))
        };
        if !links.is_empty() && links.iter().all(is_dead) {
            tracing::info!(folder = %folder.display(), "removes what is pinned of a network namespace that is gone");
            let inner = links.iter().try_for_each(|(_, link)| fs::remove_file(link));
            let sets = numbered(&folder.join("sets"));
            let removed =
                inner.and_then(|()| sets.iter().try_for_each(|(_, set)| remove_folder(set)));
            if let Err(error) = removed {
                tracing::debug!("{error}");
            }
            for (_, clsact) in numbered(&folder.join("clsact")) {
                let _ = fs::remove_dir(clsact);
            }
            remove_empty(&folder);
        }
    }
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

fn new_state() -> io::Result<MapHandle> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(MapType::Array, Some("weft_state"), 4, 16, 1, &options)
        .map_err(io::Error::other)
}

fn write_state(map: &MapHandle, state: &State) -> io::Result<()> {
    let bytes = [state.layout.to_ne_bytes(), state.megaflows.to_ne_bytes()].concat();
    map.update(&0_u32.to_ne_bytes(), &bytes, MapFlags::ANY).map_err(io::Error::other)
}

/// What a set says about itself; `None` when it does not, because whoever made it was interrupted.
pub(crate) fn read_state(set: &Path) -> Option<State> {
    let map = MapHandle::from_pinned_path(set.join(STATE)).ok()?;
    let bytes = map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok()??;
    let &[layout, megaflows] = bytes.as_chunks().0 else { return None };
    Some(State { layout: u64::from_ne_bytes(layout), megaflows: u64::from_ne_bytes(megaflows) })
}
