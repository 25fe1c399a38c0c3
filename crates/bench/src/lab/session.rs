//! The session that may build labs on this machine. It locks out other sessions, changes settings
//! of the whole machine and restores them, and removes the namespaces and directories that a killed
//! session left behind.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use netdev::Netns;
use netdev::capability::{self, Capability};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::names::owner;
use super::scratch;
use crate::{Error, Result, Stop};

/// The lock file. It also stores the original packet backlog, so that the next session can restore
/// it after this one was killed.
const LOCK: &str = "/run/weft-lab.lock";
/// The limit of the packet backlog. With the default of 1000, veth pairs drop frames of bursts.
const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";
const LAB_BACKLOG: &str = "10000";
/// How long orphaned processes may take to end after SIGTERM.
const ORPHAN_GRACE: Duration = Duration::from_secs(3);
/// The capabilities that a lab needs.
const CAPABILITIES: [Capability; 3] =
    [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW, Capability::CAP_SYS_ADMIN];

/// The permission to build labs. Dropping it restores the machine's settings.
#[derive(Debug)]
pub struct Session {
    lock: File,
    original_backlog: Option<String>,
    stop: Stop,
}

impl Session {
    /// Checks privileges, waits up to `patience` for another session to end, removes the namespaces
    /// and directories that killed sessions left behind, and raises the machine's packet backlog.
    ///
    /// # Errors
    /// [`Error::Missing`] without the privileges, or when another session keeps the lock.
    pub fn open(patience: Duration, stop: &Stop) -> Result<Self> {
        check_privileges()?;
        let mut lock = lock(patience, stop)?;
        remove_stale(stop)?;
        let original_backlog = raise_backlog(&mut lock)?;
        Ok(Self { lock, original_backlog, stop: stop.clone() })
    }

    /// The flag that every wait of this session polls.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(original) = self.original_backlog.take() {
            match fs::write(BACKLOG, original) {
                Ok(()) => drop(self.lock.set_len(0)),
                Err(error) => tracing::warn!(%error, "{BACKLOG} was not put back"),
            }
        }
    }
}

/// # Errors
/// [`Error::Missing`] when this process cannot create namespaces and devices.
pub fn check_privileges() -> Result<()> {
    let how = "run the command as root, for example with sudo";
    if let Some(name) = capability::missing(&CAPABILITIES) {
        return Err(Error::Missing {
            what: format!("building hosts and guests in namespaces needs the privilege {name}"),
            how: how.into(),
        });
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err(Error::Missing {
            what: "the guests' TAP devices need /dev/net/tun, which is not there".into(),
            how: "load it with `modprobe tun`, or give the container that device".into(),
        });
    }
    Netns::probe().map_err(|error| match error.is_permission() {
        true => Error::Missing {
            what: "this process may not create network namespaces".into(),
            how: format!("{how}, outside of an unprivileged container"),
        },
        false => error.into(),
    })
}

fn lock(patience: Duration, stop: &Stop) -> Result<File> {
    let failed = |e| Error::io(format!("lock {LOCK}"))(e);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(LOCK)
        .map_err(failed)?;
    let taken = stop.wait_for("the end of another session", patience, || match file.try_lock() {
        Ok(()) => Ok(Some(())),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    });
    match taken {
        Ok(()) => Ok(file),
        Err(Error::Deadline { .. }) => Err(Error::Missing {
            what: "another demo or study is running on this machine".into(),
            how: format!("wait until it has ended (it holds {LOCK})"),
        }),
        Err(other) => Err(other),
    }
}

/// Raises the packet backlog and returns the original value. The lock file stores it too, in case
/// this session is killed. `None` where the setting does not exist (in a network namespace).
fn raise_backlog(lock: &mut File) -> Result<Option<String>> {
    let failed = |e| Error::io(format!("remember the packet backlog in {LOCK}"))(e);
    let Ok(current) = fs::read_to_string(BACKLOG) else { return Ok(None) };
    let mut saved = String::new();
    lock.read_to_string(&mut saved).map_err(failed)?;
    let original = if saved.trim().parse::<u32>().is_ok() { saved } else { current };
    lock.set_len(0).map_err(failed)?;
    lock.rewind().map_err(failed)?;
    lock.write_all(original.trim().as_bytes()).map_err(failed)?;
    fs::write(BACKLOG, LAB_BACKLOG).map_err(Error::io(format!("write {BACKLOG}")))?;
    Ok(Some(original.trim().to_owned()))
}

/// Removes the namespaces and directories of dead sessions, and ends the processes in those
/// namespaces.
///
/// # Errors
/// The names cannot be listed, or [`Error::Interrupted`]. A failed removal is only logged.
pub fn remove_stale(stop: &Stop) -> Result<()> {
    let alive = |pid: u32| Path::new("/proc").join(pid.to_string()).exists();
    let names = Netns::list()?;
    let stale: Vec<_> =
        names.iter().filter(|name| owner(name).is_some_and(|pid| !alive(pid))).collect();
    let ids: Vec<u64> =
        stale.iter().filter_map(|name| Netns::open(name).and_then(|ns| ns.id()).ok()).collect();
    end_processes_in(&ids, stop)?;
    for name in stale {
        tracing::info!(name, "removing a namespace left by a killed session");
        if let Err(error) = Netns::remove(name)
            && !error.is_not_found()
        {
            tracing::warn!(%error, "namespace left behind");
        }
    }
    remove_stale_directories(alive);
    Ok(())
}

/// Removes the directories of dead sessions.
fn remove_stale_directories(alive: impl Fn(u32) -> bool) {
    let Ok(entries) = fs::read_dir(scratch::PARENT) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let stale = name.to_str().and_then(owner).is_some_and(|pid| !alive(pid));
        if stale && let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::warn!(%error, path = %entry.path().display(), "directory left behind");
        }
    }
}

/// Ends the processes in the namespaces `ids`: with SIGTERM, and with SIGKILL after 3 s.
fn end_processes_in(ids: &[u64], stop: &Stop) -> Result<()> {
    let end = Instant::now() + ORPHAN_GRACE;
    let mut signal = Signal::SIGTERM;
    loop {
        let pids = processes_in(ids);
        if pids.is_empty() {
            return Ok(());
        }
        for pid in pids {
            let _ = kill(Pid::from_raw(pid), signal);
        }
        if signal == Signal::SIGKILL {
            return Ok(());
        }
        // Gives a daemon time to remove its devices before the next signal.
        stop.sleep(Duration::from_millis(300))?;
        if Instant::now() >= end {
            signal = Signal::SIGKILL;
        }
    }
}

/// The processes whose main thread is in one of the namespaces `ids`.
fn processes_in(ids: &[u64]) -> Vec<i32> {
    if ids.is_empty() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|ns| ids.contains(&ns.ino()))
        })
        .collect()
}
