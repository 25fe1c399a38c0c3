//! [`TooBigSocket`]: receives ICMP "packet too big" from the underlay.
//!
//! The kernel lowers its path MTU after every such message about UDP and raw IPv4, even a forged
//! one. Tunnel sockets therefore ignore the kernel's path MTU, and the caller decides which
//! messages to trust. The kernel does not learn from messages about GRE over IPv6 or STT at all.

use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use wire::TooBig;

use crate::io_error::{IoError, IoResult};
use crate::sys::{self, ControlMessages, SockAddr};
use crate::{Error, Ifindex, Result};

/// The option of a raw socket that filters ICMP types: a set bit blocks the type (raw(7), RFC 3542
/// section 3.2).
const ICMP_FILTER: c_int = 1;
const ICMPV6_FILTER: c_int = 1;
const SO_BINDTOIFINDEX: c_int = 62;

const UNREACHABLE_V4: u32 = 3;
const PACKET_TOO_BIG_V6: usize = 2;

/// The maximum number of messages that one [`TooBigSocket::recv`] reads.
const MAX_MESSAGES: u32 = 64;
/// Bytes read of a message. An ICMP error has at most 576 bytes (RFC 1812 section 4.3.2.3), one of
/// ICMPv6 1280. More is read because the checksum covers the whole message.
const MAX_MESSAGE_LEN: usize = 2048;
const RX_QUEUE_BYTES: c_int = 256 << 10;

/// A raw socket for ICMP "packet too big". All calls work from any thread.
#[derive(Debug)]
pub struct TooBigSocket {
    fd: OwnedFd,
    is_v4: bool,
    ignored: AtomicU32,
}

impl TooBigSocket {
    /// Opens a socket for messages to the address `local` of this thread's network namespace,
    /// optionally only those received on `device`.
    ///
    /// # Errors
    /// [`Error::Os`]: EPERM without CAP_NET_RAW, EADDRNOTAVAIL when the address is not local.
    pub fn open(local: IpAddr, device: Option<Ifindex>) -> Result<Self> {
        let os = |e| Error::os(format!("listen to ICMP for {local}"), e);
        let is_v4 = local.is_ipv4();
        let protocol = if is_v4 { libc::IPPROTO_ICMP } else { libc::IPPROTO_ICMPV6 };
        let fd = sys::socket(sys::family(local), libc::SOCK_RAW, protocol).map_err(os)?;
        let socket = fd.as_fd();
        // An unbound raw socket receives for all addresses, so the type filter comes first.
        if is_v4 {
            let others: u32 = !(1 << UNREACHABLE_V4);
            sys::set_option(socket, libc::SOL_RAW, ICMP_FILTER, others).map_err(os)?;
        } else {
            let mut others = [u32::MAX; 8];
            others[PACKET_TOO_BIG_V6 / 32] ^= 1 << (PACKET_TOO_BIG_V6 % 32);
            sys::set_option(socket, libc::SOL_ICMPV6, ICMPV6_FILTER, others).map_err(os)?;
        }
        if let Some(device) = device {
            sys::set_option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX, device.0).map_err(os)?;
        }
        sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, RX_QUEUE_BYTES).map_err(os)?;
        sys::bind(socket, &SockAddr::from(SocketAddr::new(local, 0))).map_err(os)?;
        Ok(Self { fd, is_v4, ignored: AtomicU32::new(0) })
    }

    /// The next message; `None` when there is none. Believe it only about packets that this host
    /// sends; see [`TooBig`]. Other messages of the same type, and malformed ones, are skipped and
    /// counted ([`TooBigSocket::ignored`]).
    ///
    /// # Errors
    /// [`IoError::Os`] when the kernel refuses.
    pub fn recv(&self) -> IoResult<Option<TooBig>> {
        Ok(self.recv_from()?.map(|(message, _)| message))
    }

    /// Like [`TooBigSocket::recv`], with the address of the router that sent the message.
    ///
    /// # Errors
    /// [`IoError::Os`] when the kernel refuses.
    pub fn recv_from(&self) -> IoResult<Option<(TooBig, IpAddr)>> {
        let mut bytes = [0; MAX_MESSAGE_LEN];
        for _ in 0..MAX_MESSAGES {
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            let mut from = SockAddr::EMPTY;
            let received =
                sys::recvmsg(self.fd.as_fd(), parts, Some(&mut from), &mut ControlMessages::new())
                    .map_err(IoError::from_errno)?;
            let Some(received) = received else { return Ok(None) };
            let message = bytes.get(..received.len).unwrap_or(&bytes);
            let read =
                if self.is_v4 { TooBig::parse_v4(message) } else { TooBig::parse_v6(message) };
            match (read, from.ip()) {
                (Ok(too_big), Some(router)) => return Ok(Some((too_big, router.ip()))),
                _ => self.ignored.fetch_add(1, Ordering::Relaxed),
            };
        }
        Ok(None)
    }

    /// The number of skipped messages, modulo 2^32.
    pub fn ignored(&self) -> u32 {
        self.ignored.load(Ordering::Relaxed)
    }
}

impl AsFd for TooBigSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
