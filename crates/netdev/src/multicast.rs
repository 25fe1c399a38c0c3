//! Multicast groups as the underlay of a VXLAN segment (RFC 7348 section 4.2).
//!
//! [`UdpUnderlay::join`] receives the datagrams of a group. [`TxPool::set_multicast_uplink`]
//! selects the interface that the pool sends them on.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use libc::c_int;

use crate::sys::{self, SockAddr};
use crate::udp::{TxPool, UdpOptions, UdpUnderlay, rx_socket};
use crate::{Error, Ifindex, Result};

impl UdpUnderlay {
    /// Joins the multicast group `group` on the interface `uplink` of this thread's namespace.
    /// Receives the datagrams to that address and port; [`UdpOptions::device`] is overridden with
    /// the uplink. Dropping the socket leaves the group.
    ///
    /// *Every* socket that joined a group receives its datagrams. So one socket serves all threads.
    /// The sockets of [`UdpUnderlay::bind_group`], one per thread, receive unicast datagrams.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `group` is not a multicast address. [`Error::Os`]: EADDRINUSE when a
    /// socket is bound to the port on all addresses (for instance by a kernel tunnel device),
    /// ENODEV when the interface does not exist.
    pub fn join(group: SocketAddr, uplink: Ifindex, options: UdpOptions) -> Result<Self> {
        let what = || format!("join multicast group {group} on interface {uplink}");
        if !group.ip().is_multicast() {
            return Err(Error::invalid(what(), "not a multicast address"));
        }
        let os = |e| Error::os(what(), e);
        let options = UdpOptions { device: Some(uplink), ..options };
        let fd = rx_socket(group, options).map_err(os)?;
        let socket = fd.as_fd();
        match group.ip() {
            IpAddr::V4(address) => {
                let membership = membership_v4(address, uplink);
                sys::set_option(socket, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, membership)
            }
            IpAddr::V6(address) => {
                let membership = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: address.octets() },
                    ipv6mr_interface: uplink.0,
                };
                sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, membership)
            }
        }
        .map_err(os)?;
        // Bound to the group's address, the socket gets no datagrams to other groups or to this
        // host's own addresses.
        sys::bind(socket, &SockAddr::from(group)).map_err(os)?;
        Ok(Self::from_bound(fd))
    }
}

impl TxPool {
    /// Sends multicast datagrams on the interface `uplink` from now on, without looping them back
    /// to this host. [`crate::udp::TxUdpBatch::ttl`] limits their scope; by default no router
    /// forwards them.
    ///
    /// # Errors
    /// [`Error::Os`]: ENODEV (IPv6) or EADDRNOTAVAIL (IPv4) when the interface does not exist.
    pub fn set_multicast_uplink(&self, uplink: Ifindex) -> Result<()> {
        let interface = membership_v4(Ipv4Addr::UNSPECIFIED, uplink);
        let set = |socket: BorrowedFd<'_>| {
            if self.is_ipv4() {
                sys::set_option(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, interface)?;
                sys::set_option(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 0 as c_int)
            } else {
                sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, uplink.0)?;
                sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 0 as c_int)
            }
        };
        self.sockets()
            .try_for_each(set)
            .map_err(|e| Error::os(format!("send multicast by interface {uplink}"), e))
    }
}

fn membership_v4(group: Ipv4Addr, uplink: Ifindex) -> libc::ip_mreqn {
    libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group.octets()) },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: uplink.0 as c_int,
    }
}
