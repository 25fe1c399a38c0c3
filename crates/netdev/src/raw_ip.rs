//! [`RawIp`]: packets of one IP protocol, such as GRE, to and from this host.
//!
//! While such a socket exists the kernel does not answer packets of its protocol with "protocol unreachable" (IPv4) or
//! "unrecognized next header" (IPv6), not even when a filter keeps them all from the socket: [`RawIp::reserve`].
//!
//! # GRO
//! The kernel's GRO merges TCP segments inside GRE like any others, and a raw socket then receives one packet that no
//! wire carried, with an unfinished inner checksum and without a word about either. A [`crate::af_packet::PacketSocket`]
//! with [`crate::filter::Filter::protocol_to`] receives the same packet *with* its offload state (which then fits the inner
//! frame once the outer headers are pulled off). Where GRO may be on, receive there and let the raw socket reserve
//! the protocol and send.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use packet::PacketBuf;

use crate::batch::Messages;
use crate::filter::Filter;
use crate::io_error::{IoError, IoResult};
use crate::sys::{self, BatchEntry, Control, Received, SockAddr};
use crate::{Error, Result};

/// IP protocol number of GRE (RFC 2784).
pub const PROTOCOL_GRE: u8 = 47;

/// What is known about a received packet besides its bytes, which begin behind the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRx {
    /// The sender.
    pub source: IpAddr,
    /// DSCP and ECN of the IP header.
    pub tos: u8,
    /// Bytes of payload.
    pub len: usize,
}

impl RawRx {
    /// A place for [`RawIp::recv_batch`] to write to.
    pub const EMPTY: Self = Self { source: IpAddr::V4(Ipv4Addr::UNSPECIFIED), tos: 0, len: 0 };
}

/// Where packets go, and with what in the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawTx {
    /// The remote end point.
    pub dst: IpAddr,
    /// DSCP and ECN.
    pub tos: u8,
    /// TTL or hop limit; `None` for the host's default.
    pub ttl: Option<u8>,
}

/// A raw socket; see the module. All calls work from any thread.
#[derive(Debug)]
pub struct RawIp {
    fd: OwnedFd,
    v4: bool,
    malformed: AtomicU32,
}

impl RawIp {
    /// Binds a socket for the IP protocol `protocol` to the address `local` in this thread's network namespace, with room for
    /// `rx_queue_bytes` of received packets. "Don't fragment" is set on what it sends.
    ///
    /// # Errors
    /// [`Error::Os`]: EPERM without CAP_NET_RAW, EADDRNOTAVAIL when the address is not this host's.
    pub fn bind(local: IpAddr, protocol: u8, rx_queue_bytes: u32) -> Result<Self> {
        Self::open(local, protocol, rx_queue_bytes, None)
    }

    /// [`RawIp::bind`], but the socket receives nothing: it sends, and keeps the kernel from answering.
    ///
    /// # Errors
    /// As [`RawIp::bind`].
    pub fn reserve(local: IpAddr, protocol: u8) -> Result<Self> {
        Self::open(local, protocol, 4096, Some(&Filter::nothing()))
    }

    fn open(local: IpAddr, protocol: u8, queue: u32, filter: Option<&Filter>) -> Result<Self> {
        let what = || format!("open a raw socket for IP protocol {protocol} on {local}");
        let os = |e| Error::os(what(), e);
        let fd = sys::socket(sys::family(local), libc::SOCK_RAW, protocol.into()).map_err(os)?;
        let set =
            |level, name, value: c_int| sys::set_option(fd.as_fd(), level, name, value).map_err(os);
        if let Some(filter) = filter {
            filter.attach(&fd)?;
        }
        if local.is_ipv4() {
            // TOS and source are in the IP header, which comes along.
            set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        } else {
            set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        }
        sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, queue).map_err(os)?;
        // An unbound socket receives from the start: until now for all addresses of the host.
        sys::bind(fd.as_fd(), &SockAddr::from(SocketAddr::new(local, 0))).map_err(os)?;
        Ok(Self { fd, v4: local.is_ipv4(), malformed: AtomicU32::new(0) })
    }

    /// Reads up to 64 packets by one system call, one into each of `packets`, behind the usual headroom and without their IP
    /// header; returns how many, and what is known of each in `about`. One that did not fit its packet or makes no
    /// sense is counted ([`RawIp::malformed`]) and left empty (`len` 0).
    ///
    /// # Errors
    /// [`IoError::Os`] when the kernel refuses.
    pub fn recv_batch(&self, packets: &mut [PacketBuf], about: &mut [RawRx]) -> IoResult<usize> {
        let count = packets.len().min(about.len());
        sys::recvmmsg(self.fd.as_fd(), &mut packets[..count], |entry: BatchEntry<'_, 0>| {
            let BatchEntry { index, packet, received, from, control, .. } = entry;
            let parsed = if self.v4 {
                parse_v4(packet, &received)
            } else {
                parse_v6(packet, &received, from, control)
            };
            about[index] = parsed.unwrap_or_else(|| {
                self.malformed.fetch_add(1, Ordering::Relaxed);
                packet.set_len(0);
                RawRx::EMPTY
            });
        })
        .map_err(IoError::from_errno)
    }

    /// Sends one packet, the bytes of `pieces` in order behind an IP header made by the kernel; returns the bytes sent.
    ///
    /// # Errors
    /// [`IoError::TooBig`] when it exceeds the path MTU, [`IoError::Full`], [`IoError::Unreachable`].
    pub fn send(&self, to: &RawTx, pieces: &[IoSlice<'_>]) -> IoResult<usize> {
        let dst = SockAddr::from(SocketAddr::new(to.dst, 0));
        let control = sys::header_control(to.dst.is_ipv4(), to.tos, to.ttl);
        sys::sendmsg(self.fd.as_fd(), pieces, Some(&dst), Some(&control))
            .map_err(IoError::from_errno)
    }

    /// Sends several packets to one destination by one system call; returns how many were sent, which is fewer than all
    /// when one after the first is refused.
    ///
    /// # Errors
    /// As [`RawIp::send`], for the first packet.
    pub fn send_batch(&self, to: &RawTx, packets: &Messages<'_>) -> IoResult<usize> {
        let dst = SockAddr::from(SocketAddr::new(to.dst, 0));
        let control = sys::header_control(to.dst.is_ipv4(), to.tos, to.ttl);
        sys::sendmmsg(self.fd.as_fd(), packets, Some(&dst), Some(&control))
            .map_err(IoError::from_errno)
    }

    /// Packets that [`RawIp::recv_batch`] lost, modulo 2^32.
    pub fn malformed(&self) -> u32 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// Packets that the kernel dropped because the receive queue was full, modulo 2^32.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel refuses.
    pub fn dropped(&self) -> Result<u32> {
        sys::dropped(self.fd.as_fd()).map_err(|e| Error::os("read the counters of a raw socket", e))
    }
}

impl AsFd for RawIp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An IPv4 packet: its header, of variable length, is in front of the payload.
fn parse_v4(packet: &mut PacketBuf, received: &Received) -> Option<RawRx> {
    if received.flags & libc::MSG_TRUNC != 0 {
        return None;
    }
    packet.set_len(received.len);
    let header: &[u8; 20] = packet.head().first_chunk()?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    let source = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
    let tos = header[1];
    if header[0] >> 4 != 4 || header_len < 20 || header_len > received.len {
        return None;
    }
    packet.pull_front(header_len);
    Some(RawRx { source: source.into(), tos, len: packet.len() })
}

/// An IPv6 packet: only its payload is there.
fn parse_v6(
    packet: &mut PacketBuf,
    received: &Received,
    from: &SockAddr,
    control: &Control,
) -> Option<RawRx> {
    if received.flags & libc::MSG_TRUNC != 0 {
        return None;
    }
    packet.set_len(received.len);
    let tos = control
        .iter()
        .find(|&(level, kind, _)| (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_TCLASS))
        .and_then(|(_, _, data)| sys::control_int(data))
        .unwrap_or(0);
    Some(RawRx { source: from.ip()?.ip(), tos: tos as u8, len: received.len })
}
