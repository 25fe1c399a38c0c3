//! Addresses of links.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Ifindex, Netlink};
use crate::Result;

/// Duplicate address detection (RFC 4862 section 5.4), which takes a second or two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dad {
    /// Probe first, as the standard demands.
    Run,
    /// Skip it: the address is usable after some microseconds, when the kernel has installed it in
    /// the background. From then on [`Netlink::route_get`] reports the address as local.
    Skip,
}

/// An address of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The link.
    pub index: Ifindex,
    /// The address and its prefix length.
    pub prefix: IpNet,
    /// It is usable: duplicate address detection has finished and found no duplicate.
    pub ready: bool,
}

impl Netlink {
    /// Adds an address to a link. `dad` applies to IPv6 only.
    ///
    /// # Errors
    /// [`crate::Error::is_exists`] when the link already has the address.
    pub fn add_address(&self, index: Ifindex, prefix: IpNet, dad: Dad) -> Result<()> {
        let mut message = address_message(index, prefix);
        if dad == Dad::Skip && prefix.addr().is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        let what = format!("add address {prefix} to link {index}");
        self.change(&what, RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Deletes an address from a link.
    pub fn delete_address(&self, index: Ifindex, prefix: IpNet) -> Result<()> {
        let what = format!("delete address {prefix} from link {index}");
        let message = RouteNetlinkMessage::DelAddress(address_message(index, prefix));
        self.change(&what, message, 0)
    }

    /// All addresses of the namespace, or of one link.
    pub fn addresses(&self, index: Option<Ifindex>) -> Result<Vec<Address>> {
        let mut request = AddressMessage::default();
        request.header.index = index.map_or(0, |index| index.0);
        let answers = self.dump("list addresses", RouteNetlinkMessage::GetAddress(request))?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewAddress(message) => Address::from_message(&message),
                _ => None,
            })
            // Kernels before 4.20 ignore the index in the request.
            .filter(|address| index.is_none_or(|index| index == address.index))
            .collect())
    }
}

impl Address {
    /// `None` for a family other than IP.
    pub(super) fn from_message(message: &AddressMessage) -> Option<Self> {
        let (mut address, mut local) = (None, None);
        let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Address(ip) => address = Some(*ip),
                AddressAttribute::Local(ip) => local = Some(*ip),
                AddressAttribute::Flags(all) => flags = *all,
                _ => {}
            }
        }
        Some(Self {
            index: Ifindex(message.header.index),
            // On a point-to-point link, IFA_ADDRESS is the peer's address.
            prefix: IpNet::new(local.or(address)?, message.header.prefix_len).ok()?,
            ready: !flags.contains(AddressFlags::Dadfailed)
                && (!flags.contains(AddressFlags::Tentative)
                    || flags.contains(AddressFlags::Optimistic)),
        })
    }
}

pub(super) fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn address_message(index: Ifindex, prefix: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family_of(prefix.addr());
    message.header.prefix_len = prefix.prefix_len();
    message.header.index = index.0;
    message.attributes =
        vec![AddressAttribute::Local(prefix.addr()), AddressAttribute::Address(prefix.addr())];
    message
}
