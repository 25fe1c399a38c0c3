//! [`Monitor`]: reports changes in a namespace as they happen.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};

use super::{Address, Ifindex, Link, Neighbour, Route};
use crate::request::{RECEIVE_BYTES, decode, messages, open_socket, receive};
use crate::{Error, Result};

/// Multicast groups of linux/rtnetlink.h: links, neighbours, addresses and routes of IPv4 and IPv6.
const GROUPS: [u32; 6] = [1, 3, 5, 7, 9, 11];
/// The size of the receive queue, enough when some hundreds of links change at once.
const QUEUE_BYTES: usize = 1 << 20;
/// Datagrams read by one [`Monitor::drain`], so that the caller can serve other descriptors.
const DRAIN_MAX: usize = 1024;

/// A change.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NetlinkEvent {
    /// A link was created, or one of its properties changed.
    LinkChanged(Box<Link>),
    /// A link was deleted or moved to another namespace.
    LinkRemoved {
        /// Its interface index.
        index: Ifindex,
        /// Its name.
        name: String,
    },
    /// A neighbour was added, or its state or address changed.
    NeighbourChanged(Neighbour),
    /// A neighbour was deleted.
    NeighbourRemoved(Neighbour),
    /// A link got an address, or an address became ready.
    AddressChanged(Address),
    /// A link lost an address.
    AddressRemoved(Address),
    /// A unicast route was added or changed.
    RouteChanged(Route),
    /// A unicast route was deleted. The kernel does *not* report IPv4 routes that vanish because
    /// their link went down; it reports the link.
    RouteRemoved(Route),
    /// Events were lost: read the state again.
    Lost,
}

/// A subscription to the changes of the namespace in which it was opened.
///
/// Wait for its descriptor to become readable, then [`Monitor::drain`] it. Open it *before* reading
/// the state that the events keep current; otherwise changes in between are missed.
pub struct Monitor {
    socket: Socket,
    buffer: Vec<u8>,
    /// Events were lost, and others are still in the queue. Until it is empty, the kernel reports
    /// no further loss (`NETLINK_S_CONGESTED` in `net/netlink/af_netlink.c`).
    is_congested: bool,
}

impl Monitor {
    /// Subscribes in the namespace of the calling thread; [`crate::Netns::monitor`] subscribes in
    /// another namespace.
    pub fn open() -> Result<Self> {
        let what = "open a monitor of network changes";
        let socket = open_socket(NETLINK_ROUTE, &GROUPS)?;
        socket.set_non_blocking(true).map_err(|error| Error::os(what, error))?;
        // With CAP_NET_ADMIN the size may exceed net.core.rmem_max.
        if setsockopt(&socket, sockopt::RcvBufForce, &QUEUE_BYTES).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &QUEUE_BYTES)
                .map_err(|errno| Error::os(what, errno))?;
        }
        Ok(Self { socket, buffer: vec![0; RECEIVE_BYTES], is_congested: false })
    }

    /// The changes since the last call, oldest first. Never blocks.
    ///
    /// At most 1024 datagrams are read at once; the descriptor stays readable while there are more.
    ///
    /// # Errors
    /// The socket failed. A loss of events is not an error: it is reported as
    /// [`NetlinkEvent::Lost`], once more when the queue is empty.
    pub fn drain(&mut self) -> Result<Vec<NetlinkEvent>> {
        let mut events = NetlinkEvents::default();
        for _ in 0..DRAIN_MAX {
            match receive(&self.socket, &mut self.buffer) {
                Ok(datagram) => events.take(datagram),
                Err(Errno::EAGAIN) => {
                    if std::mem::take(&mut self.is_congested) {
                        events.lose();
                    }
                    break;
                }
                Err(Errno::ENOBUFS | Errno::EMSGSIZE) => {
                    self.is_congested = true;
                    events.lose();
                }
                Err(errno) => return Err(Error::os("read network changes", errno)),
            }
        }
        Ok(events.0)
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Monitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor").field("fd", &self.socket.as_raw_fd()).finish_non_exhaustive()
    }
}

/// The events of one [`Monitor::drain`].
#[derive(Default)]
struct NetlinkEvents(Vec<NetlinkEvent>);

impl NetlinkEvents {
    fn take(&mut self, datagram: &[u8]) {
        for bytes in messages(datagram) {
            match bytes.map_err(str::to_owned).and_then(decode) {
                Ok(NetlinkPayload::InnerMessage(message)) => self.0.extend(event_of(message)),
                Ok(NetlinkPayload::Overrun(_)) => self.lose(),
                Ok(_) => {}
                // A message that cannot be decoded may have been an important change.
                Err(reason) => {
                    messages::log!(NETWORK_CHANGE_UNREADABLE, reason, "unreadable network change");
                    self.lose();
                }
            }
        }
    }

    /// Reports consecutive losses once.
    fn lose(&mut self) {
        if self.0.last() != Some(&NetlinkEvent::Lost) {
            self.0.push(NetlinkEvent::Lost);
        }
    }
}

fn event_of(message: RouteNetlinkMessage) -> Option<NetlinkEvent> {
    match message {
        RouteNetlinkMessage::NewLink(message) => is_link(&message)
            .then(|| NetlinkEvent::LinkChanged(Box::new(Link::from_message(message)))),
        RouteNetlinkMessage::DelLink(message) => is_link(&message).then(|| {
            let link = Link::from_message(message);
            NetlinkEvent::LinkRemoved { index: link.index, name: link.name }
        }),
        RouteNetlinkMessage::NewNeighbour(message) => {
            Neighbour::from_message(&message).map(NetlinkEvent::NeighbourChanged)
        }
        RouteNetlinkMessage::DelNeighbour(message) => {
            Neighbour::from_message(&message).map(NetlinkEvent::NeighbourRemoved)
        }
        RouteNetlinkMessage::NewAddress(message) => {
            Address::from_message(&message).map(NetlinkEvent::AddressChanged)
        }
        RouteNetlinkMessage::DelAddress(message) => {
            Address::from_message(&message).map(NetlinkEvent::AddressRemoved)
        }
        RouteNetlinkMessage::NewRoute(message) => {
            Route::from_message(&message).map(NetlinkEvent::RouteChanged)
        }
        RouteNetlinkMessage::DelRoute(message) => {
            Route::from_message(&message).map(NetlinkEvent::RouteRemoved)
        }
        _ => None,
    }
}

/// A bridge reports its ports with link messages of its own family, in which "deleted" means "no
/// longer a port".
fn is_link(message: &LinkMessage) -> bool {
    message.header.interface_family == AddressFamily::Unspec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_not_removed_when_it_only_leaves_a_bridge() {
        let mut message = LinkMessage::default();
        message.header.index = 4;
        message.header.interface_family = AddressFamily::Bridge;
        assert_eq!(event_of(RouteNetlinkMessage::DelLink(message.clone())), None);
        message.header.interface_family = AddressFamily::Unspec;
        let removed = NetlinkEvent::LinkRemoved { index: Ifindex(4), name: String::new() };
        assert_eq!(event_of(RouteNetlinkMessage::DelLink(message)), Some(removed));
    }

    #[test]
    fn loss_is_reported_once_when_datagrams_are_unreadable() {
        let mut events = NetlinkEvents::default();
        events.take(&[0xa5; 40]);
        events.take(&[0; 3]);
        assert_eq!(events.0, [NetlinkEvent::Lost]);
    }
}
