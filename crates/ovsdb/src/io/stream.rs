//! [`Stream`]: a socket to a remote. Its functions do not block.

use super::TlsFiles;
use crate::remote::Remote;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrLike, SockaddrStorage, UnixAddr, connect, socket,
};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

#[cfg(feature = "tls")]
use super::tls::TlsStream;

/// A socket to a remote, with or without TLS.
#[derive(Debug)]
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Begins to connect.
    pub fn connect(remote: &Remote, tls: Option<&TlsFiles>) -> io::Result<Self> {
        match remote {
            Remote::Unix(path) => {
                let fd = begin(AddressFamily::Unix, &UnixAddr::new(path)?)?;
                Ok(Self::Unix(fd.into()))
            }
            Remote::Tcp(address) => tcp(*address).map(Self::Tcp),
            #[cfg(feature = "tls")]
            Remote::Ssl(address) => {
                let Some(files) = tls else {
                    return Err(io::Error::other(
                        "an ssl: remote needs a private key and certificates",
                    ));
                };
                // The files are read for each connection, so that renewed certificates are used.
                let stream = TlsStream::new(tcp(*address)?, *address, files);
                Ok(Self::Tls(Box::new(stream.map_err(io::Error::other)?)))
            }
            #[cfg(not(feature = "tls"))]
            Remote::Ssl(_) => {
                let _ = tls;
                Err(io::Error::other("an ssl: remote needs the feature `tls`"))
            }
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.tcp().as_fd(),
        }
    }

    /// The poll events to wait for. `is_connected`: [`advance`](Self::advance) has returned true.
    /// `has_more`: a message waits to be sent.
    pub fn interest(&self, is_connected: bool, has_more: bool) -> PollFlags {
        let mut flags = PollFlags::POLLIN;
        let wants_write = match self {
            // A connection may be established before `advance` is called.
            Self::Unix(_) | Self::Tcp(_) => !is_connected,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.wants_write(),
        };
        flags.set(PollFlags::POLLOUT, (is_connected && has_more) || wants_write);
        flags
    }

    /// Continues to connect. True if the connection is established.
    pub fn advance(&mut self) -> io::Result<bool> {
        let error = match self {
            Self::Unix(stream) => stream.take_error(),
            Self::Tcp(stream) => stream.take_error(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.tcp().take_error(),
        };
        if let Some(error) = error? {
            return Err(error);
        }
        if !is_writable(self.fd())? {
            return Ok(false);
        }
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.advance(),
            _ => Ok(true),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(_) | Self::Tcp(_) => Ok(()),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
        }
    }
}

fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let stream = TcpStream::from(begin(family, &SockaddrStorage::from(address))?);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Creates a socket that does not block, and begins to connect it.
fn begin(family: AddressFamily, address: &dyn SockaddrLike) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(family, SockType::Stream, flags, None)?;
    match connect(fd.as_raw_fd(), address) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(fd),
        Err(error) => Err(error.into()),
    }
}

/// Whether a socket without an error that was connecting is connected.
fn is_writable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO)?;
    let flags = fds.first().and_then(PollFd::revents).unwrap_or(PollFlags::empty());
    // With an error, the next read or write reports it.
    Ok(flags.intersects(PollFlags::POLLOUT | PollFlags::POLLERR | PollFlags::POLLHUP))
}
