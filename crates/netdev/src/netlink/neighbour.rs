//! Neighbours: the ARP and ND tables.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
    NeighbourState as KernelState,
};
use wire::MacAddr;

use super::address::family_of;
use super::{Ifindex, Netlink};
use crate::{Error, Result};

/// The state of a neighbour entry (RFC 4861 section 7.3.2, also for ARP).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NeighbourState {
    /// Created, not yet resolved.
    None,
    /// Solicited, no answer yet.
    Incomplete,
    /// Confirmed recently.
    Reachable,
    /// Not confirmed for a while; still used.
    Stale,
    /// Stale and in use; about to be probed.
    Delay,
    /// Being probed.
    Probe,
    /// It did not answer.
    Failed,
    /// Needs no resolution (multicast, point-to-point).
    Noarp,
    /// Set by an administrator; never probed.
    Permanent,
}

impl NeighbourState {
    /// True while the kernel sends packets to the recorded address.
    pub const fn is_usable(self) -> bool {
        !matches!(self, Self::None | Self::Incomplete | Self::Failed)
    }
}

/// An entry of the neighbour table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// The link it is on.
    pub index: Ifindex,
    /// Its IP address.
    pub ip: IpAddr,
    /// Its link-layer address, if known. [`Neighbour::usable_mac`] tells whether it may be used.
    pub mac: Option<MacAddr>,
    /// Its state.
    pub state: NeighbourState,
}

impl Neighbour {
    /// The link-layer address, while the kernel itself would use it.
    pub fn usable_mac(&self) -> Option<MacAddr> {
        self.mac.filter(|_| self.state.is_usable())
    }

    /// `None` for a family other than IP: bridge entries come in the same messages.
    pub(super) fn from_message(message: &NeighbourMessage) -> Option<Self> {
        let facts = NeighbourAttributes::of(message);
        let ip = facts.ip?;
        (message.header.family == family_of(ip)).then_some(Self {
            index: Ifindex(message.header.ifindex),
            ip,
            mac: facts.mac,
            state: state_of(message.header.state),
        })
    }
}

impl Netlink {
    /// All neighbours of the namespace, or of one link.
    pub fn neighbours(&self, index: Option<Ifindex>) -> Result<Vec<Neighbour>> {
        let mut request = NeighbourMessage::default();
        request.attributes.extend(index.map(|index| NeighbourAttribute::IfIndex(index.0)));
        let answers = self.dump("list neighbours", RouteNetlinkMessage::GetNeighbour(request))?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewNeighbour(message) => Neighbour::from_message(&message),
                _ => None,
            })
            .filter(|neighbour| index.is_none_or(|index| index == neighbour.index))
            .collect())
    }

    /// The neighbour `ip` of a link, or `None` when the table has no entry.
    pub fn neighbour(&self, index: Ifindex, ip: IpAddr) -> Result<Option<Neighbour>> {
        let what = format!("look up neighbour {ip} on link {index}");
        let request = RouteNetlinkMessage::GetNeighbour(neighbour_message(index, ip));
        match self.query(&what, request) {
            Ok(RouteNetlinkMessage::NewNeighbour(message)) => Ok(Neighbour::from_message(&message)),
            Ok(_) => Err(Error::malformed(what, "not a neighbour")),
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds or replaces a permanent neighbour entry.
    pub fn set_neighbour(&self, index: Ifindex, ip: IpAddr, mac: MacAddr) -> Result<()> {
        let mut message = neighbour_message(index, ip);
        message.header.state = KernelState::Permanent;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        let what = format!("set neighbour {ip} on link {index} to {mac}");
        let request = RouteNetlinkMessage::NewNeighbour(message);
        self.change(&what, request, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Deletes a neighbour entry.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when the table has no such entry.
    pub fn delete_neighbour(&self, index: Ifindex, ip: IpAddr) -> Result<()> {
        let what = format!("delete neighbour {ip} on link {index}");
        let request = RouteNetlinkMessage::DelNeighbour(neighbour_message(index, ip));
        self.change(&what, request, 0)
    }

    /// Asks the kernel to resolve a neighbour, as if it had a packet to send, and to confirm a
    /// stale entry. Returns at once. The result appears in [`Netlink::neighbour`] and as an event
    /// of a [`Monitor`](crate::Monitor).
    pub fn use_neighbour(&self, index: Ifindex, ip: IpAddr) -> Result<()> {
        let mut message = neighbour_message(index, ip);
        message.header.flags = NeighbourFlags::Use;
        let what = format!("resolve neighbour {ip} on link {index}");
        self.change(&what, RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE)
    }
}

/// The attributes of a neighbour message that [`Neighbour`] needs.
#[derive(Default)]
struct NeighbourAttributes {
    ip: Option<IpAddr>,
    mac: Option<MacAddr>,
}

impl NeighbourAttributes {
    fn of(message: &NeighbourMessage) -> Self {
        let mut facts = Self::default();
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::Destination(address) => facts.ip = ip_of(address),
                NeighbourAttribute::LinkLayerAddress(bytes) => {
                    facts.mac = bytes.as_slice().try_into().ok().map(MacAddr);
                }
                _ => {}
            }
        }
        facts
    }
}

fn ip_of(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(address) => Some((*address).into()),
        NeighbourAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

/// A state is one bit; a combination, which no kernel sends, is treated as unresolved.
fn state_of(state: KernelState) -> NeighbourState {
    match state {
        KernelState::Incomplete => NeighbourState::Incomplete,
        KernelState::Reachable => NeighbourState::Reachable,
        KernelState::Stale => NeighbourState::Stale,
        KernelState::Delay => NeighbourState::Delay,
        KernelState::Probe => NeighbourState::Probe,
        KernelState::Failed => NeighbourState::Failed,
        KernelState::Noarp => NeighbourState::Noarp,
        KernelState::Permanent => NeighbourState::Permanent,
        _ => NeighbourState::None,
    }
}

fn neighbour_message(index: Ifindex, ip: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family_of(ip);
    message.header.ifindex = index.0;
    message.attributes.push(NeighbourAttribute::Destination(ip.into()));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_is_not_usable_when_the_kernel_would_not_use_it() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let neighbour = |state| Neighbour {
            index: Ifindex(2),
            ip: [10, 0, 0, 1].into(),
            mac: Some(mac),
            state,
        };
        assert_eq!(neighbour(NeighbourState::Failed).usable_mac(), None);
        assert_eq!(neighbour(NeighbourState::Incomplete).usable_mac(), None);
        assert_eq!(neighbour(NeighbourState::Stale).usable_mac(), Some(mac));
        assert_eq!(neighbour(NeighbourState::Permanent).usable_mac(), Some(mac));
    }
}
