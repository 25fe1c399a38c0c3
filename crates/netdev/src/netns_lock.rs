//! [`NetnsLock`]: a named lock that one process in a network namespace can hold.

use crate::{Error, Result};
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, socket,
};
use std::os::fd::{AsRawFd, OwnedFd};

/// A named lock in the network namespace of the thread that took it. It is held until this value is
/// dropped or the process ends, however it ends.
///
/// It is a Unix socket with an abstract name. Abstract names belong to a network namespace, need no
/// file system, and vanish with their process.
#[derive(Debug)]
pub struct NetnsLock {
    _socket: OwnedFd,
}

impl NetnsLock {
    /// Takes the lock `name`, of at most 107 bytes; `None` when another process holds it.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has too many open files, or the name is too long.
    pub fn take(name: &str) -> Result<Option<Self>> {
        let refused = |errno| Error::os(format!("lock {name} in this network namespace"), errno);
        let address = address(name).map_err(refused)?;
        let socket = open().map_err(refused)?;
        match bind(socket.as_raw_fd(), &address) {
            Ok(()) => {}
            Err(Errno::EADDRINUSE) => return Ok(None),
            Err(errno) => return Err(refused(errno)),
        }
        // Connecting to a listening socket reveals the process ID of its owner.
        Backlog::new(QUERIES).and_then(|backlog| listen(&socket, backlog)).map_err(refused)?;
        Ok(Some(Self { _socket: socket }))
    }

    /// The process that holds the lock `name`, if its PID is visible in this PID namespace. `None`
    /// also after 128 queries, because the holder accepts no connection.
    pub fn holder(name: &str) -> Option<u32> {
        let socket = open().ok()?;
        connect(socket.as_raw_fd(), &address(name).ok()?).ok()?;
        let holder = getsockopt(&socket, PeerCredentials).ok()?;
        u32::try_from(holder.pid()).ok().filter(|number| *number != 0)
    }
}

/// How often the holder of a lock can be queried: its listen backlog.
const QUERIES: i32 = 128;

fn address(name: &str) -> nix::Result<UnixAddr> {
    UnixAddr::new_abstract(name.as_bytes())
}

fn open() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::host::TestHost;

    #[test]
    fn lock_is_refused_when_a_process_in_the_same_namespace_holds_it() {
        let name = format!("weft-test-{}", std::process::id());
        let take = || NetnsLock::take(&name).unwrap();
        assert_eq!(NetnsLock::holder(&name), None);
        let ours = take().expect("the lock is free");
        assert!(take().is_none());
        assert_eq!(NetnsLock::holder(&name), Some(std::process::id()));
        drop(ours);
        assert!(take().is_some(), "it is free again");
    }

    #[test]
    fn lock_is_free_when_it_is_held_in_another_namespace() {
        testkit::require_root!();
        let host = TestHost::new("lock");
        let name = format!("weft-test-ns-{}", std::process::id());
        let take = || NetnsLock::take(&name).unwrap();
        let _here = take().expect("the lock is free");
        let there = host.run(take);
        assert!(there.is_some() && host.run(take).is_none());
    }
}
