//! [`RawIp`]: sends packets of one IP protocol, such as GRE, and reserves the protocol.
//!
//! While such a socket exists, the kernel does not answer packets of its protocol with "protocol
//! unreachable" (IPv4) or "unrecognized next header" (IPv6), although the socket's filter drops
//! all.
//!
//! # Receiving
//! The kernel's GRO merges TCP segments inside GRE. A raw socket would receive the merged packet
//! with a partial inner checksum, and without any metadata about either. Receive with a
//! [`crate::af_packet::PacketSocket`] and [`SocketFilter::protocol_to`] instead: it delivers the
//! same packet *with* its offload state, which applies to the inner frame once the outer headers
//! are removed.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use libc::c_int;

use crate::batch::MessageBatch;
use crate::filter::SocketFilter;
use crate::io_error::{IoError, IoResult};
use crate::sys::{self, SockAddr};
use crate::{Error, Result};

/// IP protocol number of GRE (RFC 2784).
pub const PROTOCOL_GRE: u8 = 47;

/// The destination and IP header fields of packets to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawTx {
    /// The remote end point.
    pub dst: IpAddr,
    /// DSCP and ECN.
    pub tos: u8,
    /// TTL or hop limit; `None` for the host's default.
    pub ttl: Option<u8>,
}

/// A raw socket for sending. All calls work from any thread.
#[derive(Debug)]
pub struct RawIp {
    fd: OwnedFd,
}

impl RawIp {
    /// Opens a socket that sends packets of the IP protocol `protocol` from the local address
    /// `local` of this thread's network namespace, and reserves the protocol. "Don't fragment" is
    /// set. The path MTU that the kernel has learned is ignored, because anybody can forge it.
    ///
    /// # Errors
    /// [`Error::Os`]: EPERM without CAP_NET_RAW, EADDRNOTAVAIL when the address is not local.
    pub fn open(local: IpAddr, protocol: u8) -> Result<Self> {
        let what = || format!("open a raw socket for IP protocol {protocol} on {local}");
        let os = |e| Error::os(what(), e);
        let fd = sys::socket(sys::family(local), libc::SOCK_RAW, protocol.into()).map_err(os)?;
        let set =
            |level, name, value: c_int| sys::set_option(fd.as_fd(), level, name, value).map_err(os);
        // The receive queue keeps its default size: packets that arrived before the filter stay in
        // it, and Linux 6.10 and later would send ICMP errors if they filled it.
        SocketFilter::nothing().attach(&fd)?;
        if local.is_ipv4() {
            set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        } else {
            set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        }
        sys::bind(fd.as_fd(), &SockAddr::from(SocketAddr::new(local, 0))).map_err(os)?;
        Ok(Self { fd })
    }

    /// Sends one packet: an IP header made by the kernel, then the bytes of `pieces`. Returns the
    /// number of bytes sent.
    ///
    /// # Errors
    /// [`IoError::TooBig`] when it exceeds the MTU of the device, [`IoError::Full`],
    /// [`IoError::Unreachable`].
    pub fn send(&self, to: &RawTx, pieces: &[IoSlice<'_>]) -> IoResult<usize> {
        let dst = SockAddr::from(SocketAddr::new(to.dst, 0));
        let control = sys::header_control(to.dst.is_ipv4(), to.tos, to.ttl);
        sys::sendmsg(self.fd.as_fd(), pieces, Some(&dst), Some(&control))
            .map_err(IoError::from_errno)
    }

    /// Sends several packets to one destination with one system call. Returns how many were sent:
    /// fewer than all when one after the first is refused.
    ///
    /// # Errors
    /// As [`RawIp::send`], for the first packet.
    pub fn send_batch(&self, to: &RawTx, packets: &MessageBatch<'_>) -> IoResult<usize> {
        let dst = SockAddr::from(SocketAddr::new(to.dst, 0));
        let control = sys::header_control(to.dst.is_ipv4(), to.tos, to.ttl);
        sys::sendmmsg(self.fd.as_fd(), packets, Some(&dst), Some(&control))
            .map_err(IoError::from_errno)
    }
}
