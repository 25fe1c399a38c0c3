//! Network namespaces: create, open, delete, list; run code and programs inside.
//!
//! A named namespace is a file in `/run/netns` that the namespace is bind-mounted on, as `ip netns`
//! does it. `/run/netns` itself is a *shared* mount. Otherwise a process in another mount namespace
//! would keep its own copy of the mount, and a deleted namespace would live on there.
//!
//! A namespace belongs to a thread, not to a process. [`Netns::run_in`] therefore starts a thread
//! that ends with the closure, so that no other code runs in the wrong namespace by accident.
//! Sockets stay in the namespace in which they were opened, wherever they are used.
//!
//! Two file systems do not follow the thread. `/sys` shows the namespace in which it was *mounted*,
//! so `/sys/class/net` must not be used for another namespace ([`crate::Steering`] mounts its own).
//! `/proc/net` shows the namespace of the process' first thread. `/proc/sys/net` does follow the
//! thread; see [`Netns::sysctl`].

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::SigSet;
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

use crate::{Error, Monitor, Netlink, Result, Steering};

/// The directory of named namespaces.
const DIRECTORY: &str = "/run/netns";
/// The longest file name.
const NAME_MAX_BYTES: usize = 255;
/// The namespace of the calling thread (not `/proc/self`, which is the process' first thread).
const CURRENT: &str = "/proc/thread-self/ns/net";

/// A network namespace, held open: it lives at least as long as this value, its name, or a process
/// inside.
///
/// Cloning is cheap and refers to the same namespace.
#[derive(Clone, Debug)]
pub struct Netns {
    handle: Arc<OwnedFd>,
    name: Option<String>,
}

impl Netns {
    /// Creates the namespace `name` and brings its loopback device up.
    ///
    /// # Errors
    /// [`Error::is_exists`] when the name is taken, [`Error::is_permission`] without CAP_SYS_ADMIN,
    /// [`Error::Invalid`] for a name that cannot be a file name.
    pub fn create(name: &str) -> Result<Self> {
        let path = path_of(name)?;
        prepare_directory()?;
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(&path)
            .map_err(|error| Error::os(format!("create namespace {name}"), error))?;
        let made = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|errno| Error::os(format!("create namespace {name}"), errno))?;
            mount(Some(CURRENT), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .map_err(|errno| Error::os(format!("mount namespace {name}"), errno))?;
            let netlink = Netlink::open()?;
            netlink.set_up(netlink.index_of("lo")?)
        })
        .and_then(|()| Self::open(name));
        if made.is_err() {
            // Report the first error. Removing fails only if there is nothing to remove.
            let _ = Self::remove(name);
        }
        made
    }

    /// Opens the existing namespace `name`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when it does not exist, [`Error::Malformed`] when the file is not a
    /// namespace.
    pub fn open(name: &str) -> Result<Self> {
        let handle = open_handle(&path_of(name)?, || format!("open namespace {name}"))?;
        Ok(Self { handle, name: Some(name.to_owned()) })
    }

    /// Opens the namespace that is mounted at `path`.
    ///
    /// # Errors
    /// As [`Netns::open`].
    pub fn open_path(path: &Path) -> Result<Self> {
        let handle = open_handle(path, || format!("open namespace {}", path.display()))?;
        Ok(Self { handle, name: None })
    }

    /// The namespace of the calling thread.
    pub fn current() -> Result<Self> {
        let handle = open_handle(Path::new(CURRENT), || "open the current namespace".to_owned())?;
        Ok(Self { handle, name: None })
    }

    /// The cookie of the calling thread's namespace, unique until reboot (SO_NETNS_COOKIE, Linux
    /// 5.14).
    pub fn current_cookie() -> Result<u64> {
        const SO_NETNS_COOKIE: libc::c_int = 71;
        let what = "read the cookie of the current namespace";
        let socket = crate::sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)
            .map_err(|error| Error::os(what, error))?;
        crate::sys::option(socket.as_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE)
            .map_err(|error| Error::os(what, error))
    }

    /// Removes the name. The namespace and its devices end when its last process, socket and handle
    /// are gone. The kernel does that in the background: the peer of a veth disappears a little
    /// later.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when it does not exist.
    pub fn remove(name: &str) -> Result<()> {
        let path = path_of(name)?;
        match umount2(&path, MntFlags::MNT_DETACH) {
            // EINVAL: a plain file, left by a creation that failed half-way.
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(errno) => return Err(Error::os(format!("unmount namespace {name}"), errno)),
        }
        fs::remove_file(&path).map_err(|error| Error::os(format!("remove namespace {name}"), error))
    }

    /// The names of all named namespaces, sorted.
    pub fn list() -> Result<Vec<String>> {
        let entries = match fs::read_dir(DIRECTORY) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::os(format!("list {DIRECTORY}"), error)),
        };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Checks that this process may create namespaces, by creating one.
    ///
    /// # Errors
    /// The kernel refuses, usually with [`Error::is_permission`].
    pub fn probe() -> Result<()> {
        on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|errno| Error::os("create a network namespace", errno))
        })
    }

    /// The name, for a namespace that was created or opened by name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// A number that is equal for two open handles exactly when they refer to the same namespace.
    pub fn id(&self) -> Result<u64> {
        let file = self.handle.try_clone().map(File::from);
        let metadata = file.and_then(|file| file.metadata());
        metadata
            .map(|metadata| metadata.ino())
            .map_err(|error| Error::os(format!("identify namespace {self}"), error))
    }

    /// Moves the calling thread, and nothing else, into this namespace for good. Use it for threads
    /// that stay in one namespace; use [`Netns::run_in`] for everything else.
    pub fn enter_thread(&self) -> Result<()> {
        setns(&self.handle, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::os(format!("enter namespace {self}"), errno))
    }

    /// Runs `work` inside this namespace on a new thread, and waits for its result.
    ///
    /// A child process with a parent-death signal gets it when that thread ends, which is as soon
    /// as `work` returns. Start such children with [`Netns::command`].
    ///
    /// # Errors
    /// The namespace cannot be entered; then `work` has not run.
    ///
    /// # Panics
    /// With the panic of `work`.
    pub fn run_in<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R> {
        on_thread(|| {
            self.enter_thread()?;
            Ok(work())
        })
    }

    /// Makes the child start inside this namespace, with no signal blocked.
    ///
    /// Only the network namespace changes; `/sys` stays. Signals are unblocked because a child
    /// inherits the mask, and would ignore SIGTERM after [`crate::signal::Signals::take`].
    #[must_use = "the command has yet to be spawned"]
    pub fn command(&self, mut command: Command) -> Command {
        let handle = Arc::clone(&self.handle);
        let enter = move || {
            SigSet::empty().thread_set_mask()?;
            setns(&handle, CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
        };
        // SAFETY: between fork and exec the closure makes two system calls. It neither allocates
        // nor takes a lock, also on failure: an `io::Error` made from an errno is a plain value.
        // The descriptor stays open because the closure shares its ownership.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// A netlink handle for this namespace, usable from any thread.
    pub fn netlink(&self) -> Result<Netlink> {
        self.run_in(Netlink::open)?
    }

    /// A monitor of changes in this namespace, usable from any thread.
    pub fn monitor(&self) -> Result<Monitor> {
        self.run_in(Monitor::open)?
    }

    /// Sets the sysctl `key`, its parts joined by `/` as under `/proc/sys`
    /// (`net/ipv4/tcp_congestion_control`).
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = sysctl_path(key)?;
        self.run_in(|| fs::write(&path, value))?
            .map_err(|error| Error::os(format!("set {key} to {value} in namespace {self}"), error))
    }

    /// Sets receive packet steering (RPS) of all receive queues of `link` to `cpus`; an empty set
    /// switches it off.
    ///
    /// # Errors
    /// The link does not exist, or the kernel has no RPS.
    pub fn steer_packets(&self, link: &str, cpus: &crate::CpuMask) -> Result<()> {
        self.run_in(|| {
            let link = Netlink::open()?.link(link)?;
            let queues = Steering::read(&link)?.rx.len();
            (0..queues).try_for_each(|queue| Steering::set_rps(&link, queue, cpus))
        })?
    }

    /// The value of the sysctl `key`, without the trailing newline.
    pub fn read_sysctl(&self, key: &str) -> Result<String> {
        let path = sysctl_path(key)?;
        self.run_in(|| fs::read_to_string(&path))?
            .map(|text| text.trim_end().to_owned())
            .map_err(|error| Error::os(format!("read {key} in namespace {self}"), error))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl std::fmt::Display for Netns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name().unwrap_or("(unnamed)"))
    }
}

/// A namespace that is removed when this value is dropped. Dereferences to its [`Netns`].
#[derive(Debug)]
pub struct OwnedNetns {
    netns: Netns,
    name: String,
}

impl OwnedNetns {
    /// Creates the namespace `name`; see [`Netns::create`].
    pub fn create(name: &str) -> Result<Self> {
        Ok(Self { netns: Netns::create(name)?, name: name.to_owned() })
    }
}

impl Deref for OwnedNetns {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.netns
    }
}

impl Drop for OwnedNetns {
    fn drop(&mut self) {
        if let Err(error) = Netns::remove(&self.name)
            && !error.is_not_found()
        {
            messages::log!(NAMESPACE_LEFT, %error, "cannot remove a namespace");
        }
    }
}

/// Runs `work` on a new thread, and propagates a panic.
pub(crate) fn on_thread<R: Send>(work: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    thread::scope(|scope| {
        thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, work)
            .map_err(|error| Error::os("start a thread for a namespace", error))?
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn open_handle(path: &Path, what: impl Fn() -> String) -> Result<Arc<OwnedFd>> {
    let file = File::open(path).map_err(|error| Error::os(what(), error))?;
    let file_system = fstatfs(&file).map_err(|errno| Error::os(what(), errno))?;
    // A creation that is under way, or was interrupted, leaves a plain file: entering it would fail
    // without a clear error.
    if file_system.filesystem_type() != NSFS_MAGIC {
        return Err(Error::malformed(what(), "no namespace is mounted there"));
    }
    Ok(Arc::new(file.into()))
}

fn path_of(name: &str) -> Result<PathBuf> {
    let is_file_name = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
    if !is_file_name || name.len() > NAME_MAX_BYTES {
        return Err(Error::invalid(
            format!("use {name:?} as a namespace name"),
            "expected a file name of 1 to 255 bytes",
        ));
    }
    Ok(Path::new(DIRECTORY).join(name))
}

fn sysctl_path(key: &str) -> Result<PathBuf> {
    let relative = Path::new(key);
    if key.is_empty() || !relative.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(Error::invalid(
            format!("use {key:?} as a sysctl"),
            "expected parts joined by '/', such as net/ipv4/ip_forward",
        ));
    }
    Ok(Path::new("/proc/sys").join(relative))
}

/// Creates the directory `/run/netns` and makes it a shared mount.
fn prepare_directory() -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(DIRECTORY)
        .map_err(|error| Error::os(format!("create {DIRECTORY}"), error))?;
    let directory =
        File::open(DIRECTORY).map_err(|error| Error::os(format!("open {DIRECTORY}"), error))?;
    // Without the lock, two processes could both mount, and the upper mount would hide the names in
    // the lower one. The lock is on the inode of the directory, which is the same for both mounts.
    let _lock = Flock::lock(directory, FlockArg::LockExclusive)
        .map_err(|(_, errno)| Error::os(format!("lock {DIRECTORY}"), errno))?;
    match make_shared() {
        // EINVAL: not a mount point yet.
        Err(Errno::EINVAL) => {
            let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(DIRECTORY), DIRECTORY, None::<&str>, bind, None::<&str>)
                .and_then(|()| make_shared())
        }
        done => done,
    }
    .map_err(|errno| Error::os(format!("make {DIRECTORY} a shared mount"), errno))
}

fn make_shared() -> nix::Result<()> {
    let shared = MsFlags::MS_SHARED | MsFlags::MS_REC;
    mount(None::<&str>, DIRECTORY, None::<&str>, shared, None::<&str>)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_refused_when_they_are_no_file_names() {
        for name in ["", ".", "..", "a/b", "a\0b", &"x".repeat(256)] {
            assert!(matches!(path_of(name), Err(Error::Invalid { .. })), "{name:?}");
        }
        assert_eq!(path_of("blue").unwrap(), Path::new("/run/netns/blue"));
    }

    #[test]
    fn sysctls_are_refused_when_they_leave_their_directory() {
        for key in ["", "../kernel/x", "/etc/passwd", "net/../../x"] {
            assert!(matches!(sysctl_path(key), Err(Error::Invalid { .. })), "{key:?}");
        }
    }

    #[test]
    fn cookie_is_the_same_when_asked_for_on_another_thread() {
        let other = thread::spawn(Netns::current_cookie).join().unwrap().unwrap();
        assert_eq!(Netns::current_cookie().unwrap(), other);
        assert_ne!(other, 0);
    }

    #[test]
    fn current_namespace_is_the_same_when_opened_twice() {
        let (first, second) = (Netns::current().unwrap(), Netns::current().unwrap());
        assert_eq!(first.id().unwrap(), second.id().unwrap());
        assert_eq!(first.name(), None);
    }
}
