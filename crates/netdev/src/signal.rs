//! [`Signals`]: SIGTERM, SIGINT and SIGHUP as readable events, for the event loop of a daemon.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{self, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::{Error, Result};

/// A signal to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: stop.
    Terminate,
    /// SIGINT: stop (Ctrl-C).
    Interrupt,
    /// SIGHUP: reload the configuration; also sent when the terminal closes.
    Hangup,
}

/// The blocked signals of this process, readable through signalfd(2).
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Blocks SIGTERM, SIGINT and SIGHUP and makes them readable. Call it before any thread starts:
    /// threads inherit the mask, and the kernel delivers a signal to any thread that does not block
    /// it. Child processes inherit it too, unless started with [`crate::Netns::command`]. Dropping
    /// the value does not unblock the signals.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has too many descriptors.
    pub fn take() -> Result<Self> {
        let set = SigSet::from_iter([signal::SIGTERM, signal::SIGINT, signal::SIGHUP]);
        set.thread_block().map_err(|e| Error::os("block signals", e))?;
        SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .map(|fd| Self { fd })
            .map_err(|e| Error::os("create a signalfd", e))
    }

    /// The next signal; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel refuses.
    pub fn read(&self) -> Result<Option<Signal>> {
        let info = self.fd.read_signal().map_err(|e| Error::os("read a signal", e))?;
        Ok(info.and_then(|info| match info.ssi_signo as i32 {
            libc::SIGTERM => Some(Signal::Terminate),
            libc::SIGINT => Some(Signal::Interrupt),
            libc::SIGHUP => Some(Signal::Hangup),
            _ => None,
        }))
    }
}

/// Blocks all signals in the calling thread, for a thread that starts before [`Signals::take`]: the
/// kernel then delivers them to another thread.
///
/// # Errors
/// [`Error::Os`] when the kernel refuses.
pub fn block_in_this_thread() -> Result<()> {
    SigSet::all().thread_block().map_err(|e| Error::os("block signals", e))
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_instead_of_acting_when_taken() {
        let signals = Signals::take().unwrap();
        assert_eq!(signals.read().unwrap(), None);
        for (raised, read) in [
            (signal::SIGTERM, Signal::Terminate),
            (signal::SIGINT, Signal::Interrupt),
            (signal::SIGHUP, Signal::Hangup),
        ] {
            // raise(3) signals this thread only, and this thread has blocked the signal.
            signal::raise(raised).unwrap();
            assert_eq!(signals.read().unwrap(), Some(read));
        }
        assert_eq!(signals.read().unwrap(), None);
    }
}
