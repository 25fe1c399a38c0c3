//! [`Epoll`] waits for many descriptors; [`Waker`] ends the wait from another thread.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::{Error, Result};

/// The result of one [`Epoll::wait`], reusable.
#[derive(Debug)]
pub struct EpollEvents {
    events: [EpollEvent; Self::MAX],
    len: usize,
}

impl EpollEvents {
    /// The maximum number of descriptors that one wait reports; others follow with the next wait.
    pub const MAX: usize = 64;

    /// An empty result.
    pub fn new() -> Self {
        Self { events: [EpollEvent::empty(); Self::MAX], len: 0 }
    }

    /// True when the last wait found no descriptor ready.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The tokens of the descriptors that the last wait found ready.
    pub fn tokens(&self) -> impl Iterator<Item = u64> {
        self.events[..self.len].iter().map(EpollEvent::data)
    }
}

impl Default for EpollEvents {
    fn default() -> Self {
        Self::new()
    }
}

/// A level-triggered epoll set: a descriptor that is not read to the end is reported again.
#[derive(Debug)]
pub struct Epoll {
    epoll: nix::sys::epoll::Epoll,
}

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has too many open descriptors.
    pub fn new() -> Result<Self> {
        nix::sys::epoll::Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map(|epoll| Self { epoll })
            .map_err(|e| Error::os("create an epoll set", e))
    }

    /// Adds `fd` under the number `token`, to be reported when it is readable, in error or closed
    /// by its peer. It leaves the set when it is closed.
    ///
    /// # Errors
    /// [`Error::Os`]: EEXIST when it is already in the set, EPERM when it cannot be polled.
    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<()> {
        self.epoll
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))
            .map_err(|e| Error::os("add to an epoll set", e))
    }

    /// Waits until a descriptor is ready or `timeout` has passed (rounded up to milliseconds;
    /// `None` waits forever), and fills `events`. A signal ends the wait early with no events.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel refuses.
    pub fn wait(&self, events: &mut EpollEvents, timeout: Option<Duration>) -> Result<()> {
        let timeout = timeout.map_or(EpollTimeout::NONE, |timeout| {
            let ms = timeout.as_nanos().div_ceil(1_000_000);
            EpollTimeout::try_from(ms.min(i32::MAX as u128) as i32).unwrap_or(EpollTimeout::MAX)
        });
        events.len = 0;
        match self.epoll.wait(&mut events.events, timeout) {
            Ok(len) => {
                events.len = len.min(EpollEvents::MAX);
                Ok(())
            }
            Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::os("wait for an epoll set", errno)),
        }
    }
}

/// A descriptor that another thread makes readable.
#[derive(Debug)]
pub struct Waker {
    event: EventFd,
}

impl Waker {
    /// A waker, not yet readable. Add it to an [`Epoll`].
    ///
    /// # Errors
    /// [`Error::Os`] when the process has too many open descriptors.
    pub fn new() -> Result<Self> {
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map(|event| Self { event })
            .map_err(|e| Error::os("create an eventfd", e))
    }

    /// Makes it readable. Waking twice has the effect of waking once.
    pub fn wake(&self) {
        // Fails only when the counter is at its maximum, and then it is readable already.
        let _ = self.event.write(1);
    }

    /// Makes it unreadable again; true when it was readable.
    pub fn clear(&self) -> bool {
        self.event.read().is_ok()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_reports_the_token_when_woken_from_another_thread() {
        let (epoll, waker, mut events) =
            (Epoll::new().unwrap(), Waker::new().unwrap(), EpollEvents::new());
        epoll.add(&waker, u64::MAX - 3).unwrap();
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.tokens().count(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            epoll.wait(&mut events, Some(Duration::from_secs(5))).unwrap();
        });
        assert_eq!(events.tokens().collect::<Vec<_>>(), [u64::MAX - 3]);
        assert!(waker.clear() && !waker.clear());
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.tokens().count(), 0);
    }

    #[test]
    fn descriptor_leaves_the_set_when_it_is_closed() {
        let (epoll, waker, mut events) =
            (Epoll::new().unwrap(), Waker::new().unwrap(), EpollEvents::new());
        epoll.add(&waker, 1).unwrap();
        waker.wake();
        epoll.wait(&mut events, Some(Duration::from_micros(1))).unwrap();
        assert_eq!(events.tokens().collect::<Vec<_>>(), [1]);
        drop(waker);
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.tokens().count(), 0);
    }
}
