//! Where a side of a load runs, and which sockets it has.

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

/// Where traffic is made, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// The processor on which all threads of a side stay; `None` leaves that to the kernel.
    pub cpu: Option<usize>,
    /// The congestion control of TCP; `None` is the host's.
    pub congestion_control: Option<&'static str>,
}

impl Placement {
    /// Keeps the calling thread on the processor.
    pub(super) fn pin(self) -> Result<()> {
        Ok(self.cpu.map_or(Ok(()), pin_current_thread)?)
    }

    /// A connection to `server`.
    ///
    /// Its congestion control is chosen *before* it is established: where the host's is BBR, every connection begins paced by
    /// timers and stays so, whatever is chosen for it later.
    ///
    /// # Errors
    /// Those of `connect(2)`, and that it is not established within [`CONNECT_LIMIT`].
    pub(super) fn connect(self, server: SocketAddr) -> io::Result<TcpStream> {
        let family = if server.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let stream =
            TcpStream::from(socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?);
        self.choose_congestion_control(&stream)?;
        // Bounds connect(2), too.
        stream.set_write_timeout(Some(CONNECT_LIMIT))?;
        match connect(stream.as_raw_fd(), &SockaddrStorage::from(server)) {
            Err(Errno::EINPROGRESS) => return Err(Errno::ETIMEDOUT.into()),
            other => other?,
        }
        stream.set_write_timeout(None)?;
        Ok(stream)
    }

    /// Of a listener, accepted connections take it over.
    ///
    /// # Errors
    /// This kernel has none of the name.
    pub(super) fn choose_congestion_control(self, socket: &impl AsFd) -> io::Result<()> {
        let Some(name) = self.congestion_control else { return Ok(()) };
        setsockopt(socket, sockopt::TcpCongestion, &name.into()).map_err(|errno| {
            let kind = io::Error::from(errno).kind();
            io::Error::new(kind, format!("choose {name} as congestion control: {errno}"))
        })
    }
}
