//! The processor and the congestion control of the client or the server of a load.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use netdev::cpu::pin_current_thread;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};

use crate::Result;

/// How long a connection may take to be established.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// The processor and the congestion control of a client or a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// The processor to which all threads are pinned; `None` leaves them to the scheduler.
    pub cpu: Option<usize>,
    /// The TCP congestion control; `None` is the host's default.
    pub congestion_control: Option<&'static str>,
}

impl Placement {
    /// Pins the calling thread.
    pub(super) fn pin(self) -> Result<()> {
        Ok(self.cpu.map_or(Ok(()), pin_current_thread)?)
    }

    /// Connects to `server`.
    ///
    /// The congestion control is set *before* the handshake: if the host's default is BBR, a
    /// connection starts with pacing by timers, and keeps it after a later change.
    ///
    /// # Errors
    /// Those of `connect(2)`, or a timeout after [`CONNECT_LIMIT`].
    pub(super) fn connect(self, server: SocketAddr) -> io::Result<TcpStream> {
        let family = if server.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let stream =
            TcpStream::from(socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?);
        self.choose_congestion_control(&stream)?;
        // The send timeout also limits connect(2).
        stream.set_write_timeout(Some(CONNECT_LIMIT))?;
        match connect(stream.as_raw_fd(), &SockaddrStorage::from(server)) {
            Err(Errno::EINPROGRESS) => return Err(Errno::ETIMEDOUT.into()),
            other => other?,
        }
        stream.set_write_timeout(None)?;
        Ok(stream)
    }

    /// Sets the congestion control. Accepted connections inherit the setting of their listener.
    ///
    /// # Errors
    /// This kernel does not have the algorithm.
    pub(super) fn choose_congestion_control(self, socket: &impl AsFd) -> io::Result<()> {
        let Some(name) = self.congestion_control else { return Ok(()) };
        setsockopt(socket, sockopt::TcpCongestion, &name.into()).map_err(|errno| {
            let kind = io::Error::from(errno).kind();
            io::Error::new(kind, format!("choose {name} as congestion control: {errno}"))
        })
    }
}
