//! Links, addresses, routes and neighbours over rtnetlink (rtnetlink(7)).
//!
//! Outside of this module and `request.rs` nothing uses the `netlink-*` crates: what they decode is
//! offered as this crate's own types.
//!
//! Only tests call `set_down`, `delete_route` and `delete_neighbour`: those of the monitor and of
//! the daemon's reaction to such changes, which other programs make.

mod address;
mod classifier;
mod encapsulation;
mod link;
mod monitor;
mod neighbour;
mod route;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::request::Requester;
use crate::{Error, Result};

pub use address::{Address, Dad};
pub use encapsulation::{GeneveSpec, GreSpec, VlanSpec};
pub use link::{
    Ifindex, Link, LinkKind, LinkSpec, LinkStats, LowerLink, SizeLimits, TunQueues, VxlanSpec,
    XdpMode, check_link_name,
};
pub use monitor::{Monitor, NetlinkEvent};
pub use neighbour::{Neighbour, NeighbourState};
pub use route::{Route, RoutePath};

/// A handle for the links, addresses, routes and neighbours of the network namespace in which it
/// was opened.
#[derive(Debug)]
pub struct Netlink {
    requester: Requester,
}

impl Netlink {
    /// Opens a handle for the namespace of the calling thread; [`crate::Netns::netlink`] opens one
    /// for another namespace.
    pub fn open() -> Result<Self> {
        Requester::open(NETLINK_ROUTE).map(|requester| Self { requester })
    }

    /// Sends a request that changes something. `what` names operation and object in the error.
    fn change(&self, what: &str, message: RouteNetlinkMessage, flags: u16) -> Result<()> {
        self.requester.request(what, message, flags).map(|_| ())
    }

    /// Requests one object.
    fn query(&self, what: &str, message: RouteNetlinkMessage) -> Result<RouteNetlinkMessage> {
        let answers = self.requester.request(what, message, 0)?;
        answers.into_iter().next().ok_or_else(|| {
            Error::malformed(what.to_owned(), "an acknowledgement without the object")
        })
    }

    /// Lists all objects of a kind.
    fn dump(&self, what: &str, message: RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>> {
        self.requester.dump(what, message)
    }
}
