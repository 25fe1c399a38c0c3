//! Addresses of links, and prefixes.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Ifindex, Netlink};
use crate::Result;

/// An IP address and the number of its leading bits that name the network: `10.1.0.7/24`, `fd00::7/64`.
///
/// Bits behind the prefix are kept: the same type serves for an interface's address and for a route's destination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpPrefix {
    address: IpAddr,
    len: u8,
}

impl IpPrefix {
    /// `None` when `len` exceeds the bits of the address (32 or 128).
    pub fn new(address: impl Into<IpAddr>, len: u8) -> Option<Self> {
        let address = address.into();
        (len <= bits_of(address)).then_some(Self { address, len })
    }

    /// The prefix that holds just this address (/32 or /128).
    pub fn host(address: impl Into<IpAddr>) -> Self {
        let address = address.into();
        Self { address, len: bits_of(address) }
    }

    /// The address, with the bits behind the prefix.
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// The number of leading bits, 0 to 32 or 0 to 128.
    #[allow(clippy::len_without_is_empty, reason = "the field's word for it")]
    pub const fn len(self) -> u8 {
        self.len
    }

    /// The first address of the network: the bits behind the prefix are zero.
    pub fn network(self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.len)).unwrap_or(0);
                IpAddr::V4((address.to_bits() & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.len)).unwrap_or(0);
                IpAddr::V6((address.to_bits() & mask).into())
            }
        }
    }

    /// True when `address` is of the same family and its leading bits are those of this prefix.
    pub fn contains(self, address: IpAddr) -> bool {
        Self::new(address, self.len).is_some_and(|other| other.network() == self.network())
            && address.is_ipv4() == self.address.is_ipv4()
    }
}

fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl fmt::Debug for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is not a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an IP prefix: expected an address, '/' and a length, such as 10.1.0.7/24 or fd00::7/64"
)]
pub struct IpPrefixError;

impl FromStr for IpPrefix {
    type Err = IpPrefixError;

    fn from_str(text: &str) -> Result<Self, IpPrefixError> {
        let (address, len) = text.split_once('/').ok_or(IpPrefixError)?;
        let address: IpAddr = address.parse().map_err(|_| IpPrefixError)?;
        if len.is_empty() || !len.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(IpPrefixError);
        }
        let len = len.parse().map_err(|_| IpPrefixError)?;
        Self::new(address, len).ok_or(IpPrefixError)
    }
}

/// Duplicate address detection (RFC 4862 section 5.4): whether a new IPv6 address is unusable for a second or two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dad {
    /// Probe first, as the standard demands.
    Run,
    /// Usable some microseconds later: even so the kernel installs the address in the background, once the link is up.
    /// From then on [`Netlink::route_get`] to the address says that it is local.
    Skip,
}

/// An address of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The link that has it.
    pub index: Ifindex,
    /// The address, and the prefix that is on the link.
    pub prefix: IpPrefix,
    /// It can be used: duplicate address detection is over and found no duplicate.
    pub ready: bool,
}

impl Netlink {
    /// Gives a link an address. `dad` is for IPv6 only.
    ///
    /// # Errors
    /// [`crate::Error::is_exists`] when the link has the address.
    pub fn add_address(&self, index: Ifindex, prefix: IpPrefix, dad: Dad) -> Result<()> {
        let mut message = address_message(index, prefix);
        if dad == Dad::Skip && prefix.address().is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        let what = format!("add address {prefix} to link {index}");
        self.change(&what, RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Takes an address from a link.
    pub fn delete_address(&self, index: Ifindex, prefix: IpPrefix) -> Result<()> {
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
            // Kernels before 4.20 do not filter.
            .filter(|address| index.is_none_or(|index| index == address.index))
            .collect())
    }
}

impl Address {
    /// `None` for a family that is not IP.
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
            // On a point-to-point link, ADDRESS is the peer's.
            prefix: IpPrefix::new(local.or(address)?, message.header.prefix_len)?,
            ready: !flags.contains(AddressFlags::Dadfailed)
                && (!flags.contains(AddressFlags::Tentative)
                    || flags.contains(AddressFlags::Optimistic)),
        })
    }
}

pub(super) fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn address_message(index: Ifindex, prefix: IpPrefix) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family_of(prefix.address());
    message.header.prefix_len = prefix.len();
    message.header.index = index.0;
    message.attributes = vec![
        AddressAttribute::Local(prefix.address()),
        AddressAttribute::Address(prefix.address()),
    ];
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_round_trips_through_text() {
        for text in ["10.1.0.7/24", "0.0.0.0/0", "fd00::7/64", "::/0", "1.2.3.4/32"] {
            assert_eq!(text.parse::<IpPrefix>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn prefix_is_refused_when_malformed() {
        for text in
            ["", "10.0.0.1", "10.0.0.1/33", "::1/129", "10.0.0/8", "10.0.0.1/+8", "::/", "/8"]
        {
            assert_eq!(text.parse::<IpPrefix>(), Err(IpPrefixError), "{text:?}");
        }
    }

    #[test]
    fn network_has_zeros_behind_the_prefix() {
        for (text, network) in [
            ("10.1.2.3/8", "10.0.0.0"),
            ("10.1.2.3/0", "0.0.0.0"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("fd00:1::7/32", "fd00:1::"),
            ("fd00::7/0", "::"),
            ("fd00::7/128", "fd00::7"),
        ] {
            let prefix: IpPrefix = text.parse().unwrap();
            assert_eq!(prefix.network(), network.parse::<IpAddr>().unwrap(), "{text}");
        }
    }

    #[test]
    fn prefix_contains_only_its_own_family_and_network() {
        let prefix: IpPrefix = "10.1.0.7/24".parse().unwrap();
        assert!(prefix.contains("10.1.0.200".parse().unwrap()));
        assert!(!prefix.contains("10.1.1.7".parse().unwrap()));
        let any: IpPrefix = "0.0.0.0/0".parse().unwrap();
        assert!(!any.contains("::1".parse().unwrap()));
    }
}
