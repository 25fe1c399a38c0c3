//! A multicast group as the underlay of a VXLAN segment (RFC 7348 section 4.2): [`UdpUnderlay::join`] receives what is sent to the
//! group, [`TxPool::set_multicast_uplink`] says by which interface the pool reaches groups.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use libc::c_int;

use crate::sys::{self, SockAddr};
use crate::udp::{TxPool, UdpOptions, UdpUnderlay, rx_socket};
use crate::{Error, Ifindex, Result};

impl UdpUnderlay {
    /// Joins the multicast group `group` on the interface `uplink` of this thread's network namespace, and receives the
    /// datagrams to the group's address and the port in `group` that arrive there; [`UdpOptions::device`] is the uplink, whatever
    /// it says. The group is left when the socket is dropped.
    ///
    /// What is sent to a group is received by *every* socket that has joined it: there is one for all threads, beside those
    /// of [`UdpUnderlay::bind_group`] for what is sent to this host alone.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `group` is no multicast address; [`Error::Os`]: EADDRINUSE when the port is taken for all
    /// addresses (by a kernel tunnel device, for instance), ENODEV when there is no such interface.
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
        // To the group's own address: what is sent to others, or to this host, is not for this socket.
        sys::bind(socket, &SockAddr::from(group)).map_err(os)?;
        Ok(Self::from_bound(fd))
    }
}

impl TxPool {
    /// Sends what goes to multicast groups by the interface `uplink` from now on, and never back to this host. How far it goes
    /// is said by [`crate::udp::TxTrain::ttl`]; without one, no router passes it on.
    ///
    /// # Errors
    /// [`Error::Os`]: ENODEV (IPv6) or EADDRNOTAVAIL (IPv4) when there is no such interface.
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
