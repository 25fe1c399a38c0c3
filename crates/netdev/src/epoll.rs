//! [`Epoll`]: waits for many descriptors at once; [`Waker`]: ends the wait from another thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::{Error, Result};

/// What to wait for. Errors and hang-ups are always reported, as readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// There is something to read.
    Read,
    /// There is room to write.
    Write,
    /// Either.
    ReadWrite,
}

/// A descriptor that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The number it was added with.
    pub token: u64,
    /// Reading will not wait: there is data, an error or the end.
    pub readable: bool,
    /// Writing will not wait.
    pub writable: bool,
}

/// Room for what one [`Epoll::wait`] finds, to be used again and again.
#[derive(Debug)]
pub struct Events {
    events: [EpollEvent; Self::MAX],
    len: usize,
}

impl Events {
    /// The most descriptors that one wait reports; further ones come with the next.
    pub const MAX: usize = 64;

    /// Room, empty.
    pub fn new() -> Self {
        Self { events: [EpollEvent::empty(); Self::MAX], len: 0 }
    }

    /// What the last wait found.
    pub fn iter(&self) -> impl Iterator<Item = Ready> {
        const READABLE: EpollFlags = EpollFlags::EPOLLIN
            .union(EpollFlags::EPOLLERR)
            .union(EpollFlags::EPOLLHUP)
            .union(EpollFlags::EPOLLRDHUP);
        self.events[..self.len].iter().map(|event| Ready {
            token: event.data(),
            readable: event.events().intersects(READABLE),
            writable: event.events().contains(EpollFlags::EPOLLOUT),
        })
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::new()
    }
}

/// A set of descriptors to wait for, each known by a number; level-triggered: what is not read to the end is reported again.
#[derive(Debug)]
pub struct Epoll {
    epoll: nix::sys::epoll::Epoll,
}

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has too many descriptors.
    pub fn new() -> Result<Self> {
        nix::sys::epoll::Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map(|epoll| Self { epoll })
            .map_err(|e| Error::os("create an epoll set", e))
    }

    /// Adds `fd` under the number `token`. It leaves the set when it is closed.
    ///
    /// # Errors
    /// [`Error::Os`]: EEXIST when it is in the set, EPERM when it cannot be waited for.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        self.epoll
            .add(fd, EpollEvent::new(flags(interest), token))
            .map_err(|e| Error::os("add to an epoll set", e))
    }

    /// Changes what to wait for on `fd`.
    ///
    /// # Errors
    /// [`Error::Os`]: ENOENT when it is not in the set.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        self.epoll
            .modify(fd, &mut EpollEvent::new(flags(interest), token))
            .map_err(|e| Error::os("change an epoll set", e))
    }

    /// Removes `fd`.
    ///
    /// # Errors
    /// [`Error::Os`]: ENOENT when it is not in the set.
    pub fn remove(&self, fd: impl AsFd) -> Result<()> {
        self.epoll.delete(fd).map_err(|e| Error::os("remove from an epoll set", e))
    }

    /// Waits until a descriptor is ready or `timeout` (rounded up to milliseconds; `None`: forever) is over; `events` then tells which.
    /// A signal ends the wait early, with no events.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel refuses.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> Result<()> {
        let timeout = timeout.map_or(EpollTimeout::NONE, |timeout| {
            let ms = timeout.as_nanos().div_ceil(1_000_000);
            EpollTimeout::try_from(ms.min(i32::MAX as u128) as i32).unwrap_or(EpollTimeout::MAX)
        });
        events.len = 0;
        match self.epoll.wait(&mut events.events, timeout) {
            Ok(len) => {
                events.len = len.min(Events::MAX);
                Ok(())
            }
            Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::os("wait for an epoll set", errno)),
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

fn flags(interest: Interest) -> EpollFlags {
    match interest {
        Interest::Read => EpollFlags::EPOLLIN,
        Interest::Write => EpollFlags::EPOLLOUT,
        Interest::ReadWrite => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
    }
}

/// A descriptor that another thread makes readable.
#[derive(Debug)]
pub struct Waker {
    event: EventFd,
}

impl Waker {
    /// A waker, not yet readable. Add it to an [`Epoll`] with [`Interest::Read`].
    ///
    /// # Errors
    /// [`Error::Os`] when the process has too many descriptors.
    pub fn new() -> Result<Self> {
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map(|event| Self { event })
            .map_err(|e| Error::os("create an eventfd", e))
    }

    /// Makes it readable. Waking twice is waking once.
    pub fn wake(&self) {
        // Fails only when the counter is at its limit, which is readable already.
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

impl From<Waker> for OwnedFd {
    fn from(waker: Waker) -> Self {
        waker.event.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_reports_the_token_when_woken_from_another_thread() {
        let (epoll, waker, mut events) =
            (Epoll::new().unwrap(), Waker::new().unwrap(), Events::new());
        epoll.add(&waker, u64::MAX - 3, Interest::Read).unwrap();
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.iter().count(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            epoll.wait(&mut events, Some(Duration::from_secs(5))).unwrap();
        });
        let expected = Ready { token: u64::MAX - 3, readable: true, writable: false };
        assert_eq!(events.iter().collect::<Vec<_>>(), [expected]);
        assert!(waker.clear() && !waker.clear());
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.iter().count(), 0);
    }

    #[test]
    fn interest_is_what_is_waited_for_until_removed() {
        let (epoll, waker, mut events) =
            (Epoll::new().unwrap(), Waker::new().unwrap(), Events::new());
        epoll.add(&waker, 1, Interest::Read).unwrap();
        epoll.modify(&waker, 2, Interest::ReadWrite).unwrap();
        epoll.wait(&mut events, Some(Duration::from_micros(1))).unwrap();
        let expected = Ready { token: 2, readable: false, writable: true };
        assert_eq!(events.iter().collect::<Vec<_>>(), [expected]);
        epoll.remove(&waker).unwrap();
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.iter().count(), 0);
        assert!(epoll.remove(&waker).unwrap_err().is_not_found());
    }
}
