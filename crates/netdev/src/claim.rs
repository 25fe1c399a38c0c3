//! [`Claim`]: what one process of a network namespace may be at a time.

use crate::{Error, Result};
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, socket,
};
use std::os::fd::{AsRawFd, OwnedFd};

/// This process has claimed something in the network namespace of the thread that took it, and nobody else can until this is dropped
/// or the process ends, however it does.
///
/// It is a socket with an abstract name: these are of a network namespace, need no file system, and go with their process.
#[derive(Debug)]
pub struct Claim {
    _socket: OwnedFd,
}

impl Claim {
    /// Claims `name`, of at most 107 bytes; `None` when another process has it.
    ///
    /// # Errors
    /// [`Error::Os`] when the process may open no more files, or the name is too long.
    pub fn take(name: &str) -> Result<Option<Self>> {
        let refused = |errno| Error::os(format!("claim {name} in this network namespace"), errno);
        let address = address(name).map_err(refused)?;
        let socket = open().map_err(refused)?;
        match bind(socket.as_raw_fd(), &address) {
            Ok(()) => {}
            Err(Errno::EADDRINUSE) => return Ok(None),
            Err(errno) => return Err(refused(errno)),
        }
        // Who listens can be asked who they are.
        Backlog::new(ASKED).and_then(|backlog| listen(&socket, backlog)).map_err(refused)?;
        Ok(Some(Self { _socket: socket }))
    }

    /// The number of the process that has claimed `name`, if it is to be seen from here. One that has been asked too often does not
    /// tell any more.
    pub fn holder(name: &str) -> Option<u32> {
        let socket = open().ok()?;
        connect(socket.as_raw_fd(), &address(name).ok()?).ok()?;
        let holder = getsockopt(&socket, PeerCredentials).ok()?;
        u32::try_from(holder.pid()).ok().filter(|number| *number != 0)
    }
}

/// How often a holder can be asked who it is: nobody accepts.
const ASKED: i32 = 128;

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
    fn claim_is_refused_when_somebody_in_the_same_namespace_has_it() {
        let name = format!("weft-test-{}", std::process::id());
        let take = || Claim::take(&name).unwrap();
        assert_eq!(Claim::holder(&name), None);
        let ours = take().expect("nobody has it");
        assert!(take().is_none());
        assert_eq!(Claim::holder(&name), Some(std::process::id()));
        drop(ours);
        assert!(take().is_some(), "it is free again");
    }

    #[test]
    fn claim_is_free_when_it_was_taken_in_another_namespace() {
        testkit::require_root!();
        let host = TestHost::new("claim");
        let name = format!("weft-test-ns-{}", std::process::id());
        let take = || Claim::take(&name).unwrap();
        let _here = take().expect("nobody has it");
        let there = host.run(take);
        assert!(there.is_some() && host.run(take).is_none());
    }
}
