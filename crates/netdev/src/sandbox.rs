//! [`Sandbox`]: restricts this process to the privileges that it still needs.
//!
//! A process that parses packets of hostile guests must not give them control of the host if they
//! exploit a bug. So it restricts itself in four ways, none of which can be undone:
//!
//! 1. No new privileges (`PR_SET_NO_NEW_PRIVS`): programs that it starts gain nothing from file
//!    capabilities or the set-user-ID bit.
//! 2. Landlock: it writes and removes files only in named places, and starts no program. Without
//!    this, a process of root could gain everything through files such as
//!    `/proc/sys/kernel/core_pattern`, which need no capability.
//! 3. Capabilities: only the named ones stay.
//! 4. Seccomp: only the system calls of a table work ([`SystemCalls`]).

mod files;
mod system_calls;

pub use files::{FileAccess, FileLimit};
pub use system_calls::SystemCalls;

use crate::capability::{self, Capability};
use crate::{Error, Result};
use nix::sys::prctl;
use std::fs;

/// The privileges that stay.
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    /// Capabilities; those that the process does not have are ignored.
    pub capabilities: Vec<Capability>,
    /// Files and directories that it may change.
    pub files: Vec<FileAccess>,
    /// System calls.
    pub system_calls: SystemCalls,
}

/// Which restrictions of [`Sandbox::enter`] the kernel supports. It always restricts capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entered {
    /// The restriction of changes to files.
    pub files: FileLimit,
    /// The kernel filters system calls.
    pub has_filter: bool,
}

impl Sandbox {
    /// Restricts this process for good: this thread, and the threads that it starts later.
    ///
    /// The filter of system calls also applies to threads that run already. They have to restrict
    /// their capabilities and files on their own, by [`Sandbox::enter_thread`].
    ///
    /// A kernel without Landlock or seccomp filters is no error, see [`Entered`].
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel refuses a restriction; earlier ones remain.
    pub fn enter(&self) -> Result<Entered> {
        let files = self.enter_thread()?;
        let has_filter = self.system_calls.filter_all_threads()?;
        Ok(Entered { files, has_filter })
    }

    /// Restricts capabilities and files of this thread, and of the threads that it starts later.
    ///
    /// # Errors
    /// As [`Sandbox::enter`].
    pub fn enter_thread(&self) -> Result<FileLimit> {
        prctl::set_no_new_privs()
            .map_err(|errno| Error::os("set that no program gains privileges", errno))?;
        let files = files::limit(&self.files)?;
        capability::keep_only(&self.capabilities)?;
        Ok(files)
    }
}

/// The privileges of a thread, as the kernel reports them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Privileges {
    /// The permitted capabilities, as names such as `CAP_NET_RAW`, in the order of their numbers.
    pub capabilities: Vec<String>,
    /// Programs that the thread starts gain no privileges.
    pub no_new_privs: bool,
    /// The kernel filters its system calls.
    pub has_filter: bool,
}

impl Privileges {
    /// Reads the privileges of the calling thread.
    ///
    /// # Errors
    /// [`Error::Os`] when `/proc` is not mounted, [`Error::Malformed`] when a value is missing.
    pub fn of_this_thread() -> Result<Self> {
        const PATH: &str = "/proc/thread-self/status";
        let what = || format!("read {PATH}");
        let status = fs::read_to_string(PATH).map_err(|error| Error::os(what(), error))?;
        Self::parse(&status).ok_or_else(|| Error::malformed(what(), "a value is missing"))
    }

    /// Parses the text of `/proc/PID/status`.
    pub fn parse(status: &str) -> Option<Self> {
        let value = |name: &str| {
            let mut lines = status.lines();
            lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
        };
        let permitted = u64::from_str_radix(value("CapPrm")?, 16).ok()?;
        let mut capabilities: Vec<Capability> =
            caps::all().into_iter().filter(|one| permitted & one.bitmask() != 0).collect();
        capabilities.sort_unstable_by_key(|one| one.index());
        Some(Self {
            capabilities: capabilities.iter().map(ToString::to_string).collect(),
            no_new_privs: value("NoNewPrivs")? == "1",
            // A kernel without seccomp has no such line. Mode 2 is a filter.
            has_filter: value("Seccomp") == Some("2"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_are_read_from_the_text_of_the_kernel() {
        let text = "Name:\tweft\nCapPrm:\t0000000000003000\nNoNewPrivs:\t1\nSeccomp:\t2\n\
                    Seccomp_filters:\t2\n";
        let read = Privileges::parse(text).unwrap();
        assert_eq!(read.capabilities, ["CAP_NET_ADMIN", "CAP_NET_RAW"]);
        assert!(read.no_new_privs && read.has_filter);
        let read = Privileges::parse("CapPrm:\t0\nNoNewPrivs:\t0\n").unwrap();
        assert_eq!(read, Privileges::default());
        assert_eq!(Privileges::parse("CapPrm:\tx\nNoNewPrivs:\t0\n"), None);
        assert!(Privileges::of_this_thread().is_ok());
    }
}
