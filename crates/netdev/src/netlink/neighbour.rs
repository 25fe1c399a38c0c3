//! Neighbours (ARP and ND tables), and the forwarding entries of VXLAN devices, which the kernel keeps likewise.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
    NeighbourState as KernelState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use wire::MacAddr;

use super::address::family_of;
use super::{Ifindex, Netlink};
use crate::{Error, Result};

/// What the kernel knows about a neighbour (RFC 4861 section 7.3.2, also for ARP).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NeighbourState {
    /// Created, nothing asked yet.
    None,
    /// Asked, no answer yet.
    Incomplete,
    /// Confirmed a short time ago.
    Reachable,
    /// Not confirmed for a while; used until proven wrong.
    Stale,
    /// Stale and in use; about to be asked.
    Delay,
    /// Being asked whether it is still there.
    Probe,
    /// It did not answer.
    Failed,
    /// Needs no resolution (multicast, point-to-point).
    Noarp,
    /// Set by an administrator; never asked.
    Permanent,
}

impl NeighbourState {
    /// True while packets are sent to the recorded address.
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
    /// Its link-layer address, if one is recorded. Whether it may be used is said by [`Neighbour::usable_mac`].
    pub mac: Option<MacAddr>,
    /// What the kernel knows about it.
    pub state: NeighbourState,
}

impl Neighbour {
    /// The address to send to, while the kernel itself would use it.
    pub fn usable_mac(&self) -> Option<MacAddr> {
        self.mac.filter(|_| self.state.is_usable())
    }

    /// `None` for a family that is not IP (bridge and VXLAN entries come in the same messages).
    pub(super) fn from_message(message: &NeighbourMessage) -> Option<Self> {
        let facts = Facts::of(message);
        let ip = facts.ip?;
        (message.header.family == family_of(ip)).then_some(Self {
            index: Ifindex(message.header.ifindex),
            ip,
            mac: facts.mac,
            state: state_of(message.header.state),
        })
    }
}

/// A forwarding entry of a VXLAN device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VxlanEntry {
    /// Frames to this address; zero stands for every address without an entry of its own, and for broadcast and
    /// multicast.
    pub mac: MacAddr,
    /// The end point that they are sent to.
    pub remote: IpAddr,
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

    /// Records the address of a neighbour for good, in place of what the kernel knows.
    pub fn set_neighbour(&self, index: Ifindex, ip: IpAddr, mac: MacAddr) -> Result<()> {
        let mut message = neighbour_message(index, ip);
        message.header.state = KernelState::Permanent;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        let what = format!("set neighbour {ip} on link {index} to {mac}");
        let request = RouteNetlinkMessage::NewNeighbour(message);
        self.change(&what, request, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Forgets a neighbour.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when the table has no entry.
    pub fn delete_neighbour(&self, index: Ifindex, ip: IpAddr) -> Result<()> {
        let what = format!("delete neighbour {ip} on link {index}");
        let request = RouteNetlinkMessage::DelNeighbour(neighbour_message(index, ip));
        self.change(&what, request, 0)
    }

    /// Asks the kernel to find out a neighbour's address, as if a packet were to be sent to it, and to confirm one that
    /// is stale. Returns at once; the result shows in [`Netlink::neighbour`] and as an event of a
    /// [`Monitor`](crate::Monitor).
    pub fn use_neighbour(&self, index: Ifindex, ip: IpAddr) -> Result<()> {
        let mut message = neighbour_message(index, ip);
        message.header.flags = NeighbourFlags::Use;
        let what = format!("resolve neighbour {ip} on link {index}");
        self.change(&what, RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE)
    }

    /// Adds a forwarding entry to a VXLAN device. Zero and group addresses may have several, and frames go to all of
    /// them; for any other address the new one takes the place of the old one.
    pub fn add_vxlan_entry(&self, vxlan: Ifindex, entry: VxlanEntry) -> Result<()> {
        let VxlanEntry { mac, remote } = entry;
        let many = mac.is_multicast() || mac == MacAddr::ZERO;
        let how = if many { NLM_F_APPEND } else { NLM_F_REPLACE };
        let what = format!("forward {mac} to {remote} on link {vxlan}");
        let request = RouteNetlinkMessage::NewNeighbour(vxlan_message(vxlan, entry));
        self.change(&what, request, NLM_F_CREATE | how)
    }

    /// Deletes a forwarding entry of a VXLAN device.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when there is none.
    pub fn delete_vxlan_entry(&self, vxlan: Ifindex, entry: VxlanEntry) -> Result<()> {
        let what = format!("no longer forward {} to {} on {vxlan}", entry.mac, entry.remote);
        self.change(&what, RouteNetlinkMessage::DelNeighbour(vxlan_message(vxlan, entry)), 0)
    }

    /// The forwarding entries of a VXLAN device.
    pub fn vxlan_entries(&self, vxlan: Ifindex) -> Result<Vec<VxlanEntry>> {
        let mut request = NeighbourMessage::default();
        request.header.family = AddressFamily::Bridge;
        request.attributes.push(NeighbourAttribute::IfIndex(vxlan.0));
        let what = format!("list forwarding entries of link {vxlan}");
        let answers = self.dump(&what, RouteNetlinkMessage::GetNeighbour(request))?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewNeighbour(message) if message.header.ifindex == vxlan.0 => {
                    let facts = Facts::of(&message);
                    Some(VxlanEntry { mac: facts.mac?, remote: facts.ip? })
                }
                _ => None,
            })
            .collect())
    }
}

/// The attributes of a neighbour message that matter here.
#[derive(Default)]
struct Facts {
    ip: Option<IpAddr>,
    mac: Option<MacAddr>,
}

impl Facts {
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

/// Forwarding entries have the family of bridges, so their addresses come as bare bytes.
fn ip_of(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(address) => Some((*address).into()),
        NeighbourAddress::Inet6(address) => Some((*address).into()),
        NeighbourAddress::Other(bytes) => <[u8; 4]>::try_from(bytes.as_slice())
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from))
            .ok(),
        _ => None,
    }
}

/// A state is one bit; a combination, which no kernel sends, counts as not yet known.
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

fn vxlan_message(vxlan: Ifindex, entry: VxlanEntry) -> NeighbourMessage {
    let mut message = neighbour_message(vxlan, entry.remote);
    message.header.family = AddressFamily::Bridge;
    message.header.flags = NeighbourFlags::Own;
    // Never aged and never asked.
    let state = u16::from(KernelState::Noarp) | u16::from(KernelState::Permanent);
    message.header.state = KernelState::from(state);
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(entry.mac.0.to_vec()));
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

    #[test]
    fn forwarding_entry_is_no_neighbour_when_it_has_an_ip_address() {
        let entry = VxlanEntry { mac: MacAddr::ZERO, remote: [10, 0, 0, 1].into() };
        assert_eq!(Neighbour::from_message(&vxlan_message(Ifindex(2), entry)), None);
    }
}
