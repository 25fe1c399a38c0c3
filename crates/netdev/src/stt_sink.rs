//! [`SttSink`]: keeps the host's TCP from answering STT.
//!
//! STT segments look like TCP to port 7471, for which this host has no connection: its TCP would
//! answer each with a reset. The sink is a listening TCP socket on that port whose filter drops
//! everything. The kernel looks up a socket and applies its filter before it sends a reset. So the
//! segments end there silently, after packet sockets have received their copies. The sink needs no
//! firewall rules, reserves the port, and vanishes with the process.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::filter::SocketFilter;
use crate::sys::{self, SockAddr};
use crate::{Error, Result};

/// Drops TCP segments to one address and port silently, until this value is dropped.
#[derive(Debug)]
pub struct SttSink {
    _fd: OwnedFd,
}

impl SttSink {
    /// Drops all TCP segments to `local` in this thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Os`]: EADDRINUSE when the port is in use, EADDRNOTAVAIL when the address is not
    /// local.
    pub fn bind(local: SocketAddr) -> Result<Self> {
        let os = |e| Error::os(format!("reserve TCP {local} for STT"), e);
        let fd = sys::socket(sys::family(local.ip()), libc::SOCK_STREAM, 0).map_err(os)?;
        if local.is_ipv6() {
            let (level, name): (_, libc::c_int) = (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
            sys::set_option(fd.as_fd(), level, name, 1 as libc::c_int).map_err(os)?;
        }
        // The filter is attached before bind, so that the kernel never finds the socket without it.
        SocketFilter::nothing().attach(&fd)?;
        sys::bind(fd.as_fd(), &SockAddr::from(local)).map_err(os)?;
        // SAFETY: no pointers.
        if unsafe { libc::listen(fd.as_raw_fd(), 1) } < 0 {
            return Err(os(std::io::Error::last_os_error()));
        }
        Ok(Self { _fd: fd })
    }
}
