//! [`Prefix`]: an IP network.

use crate::interface_address::{bad_prefix_len, prefix_len_of};
use ipnet::IpNet;
use lflow::{Constant, Format};
use std::fmt;
use std::net::IpAddr;

/// An IP network such as `10.0.0.0/24`. Its host bits are zero. With the full prefix length it is
/// one address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Prefix(IpNet);

/// The network that an interface address belongs to.
impl From<IpNet> for Prefix {
    fn from(net: IpNet) -> Self {
        Self(net.trunc())
    }
}

/// One address alone: a /32 or a /128.
impl From<IpAddr> for Prefix {
    fn from(addr: IpAddr) -> Self {
        Self(addr.into())
    }
}

impl Prefix {
    /// The first address.
    pub fn addr(self) -> IpAddr {
        self.0.addr()
    }

    /// The prefix length in bits.
    pub fn prefix_len(self) -> u8 {
        self.0.prefix_len()
    }

    /// True when it is one address.
    pub fn is_single(self) -> bool {
        self.0.prefix_len() == self.0.max_prefix_len()
    }

    /// True for an IPv4 network.
    pub const fn is_ipv4(self) -> bool {
        matches!(self.0, IpNet::V4(_))
    }

    /// True when `addr` is one of its addresses.
    pub fn contains(self, addr: IpAddr) -> bool {
        self.0.contains(&addr)
    }

    /// True when the two networks have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.0.contains(&other.0) || other.0.contains(&self.0)
    }

    /// Reads `address/length`, or an address alone where `alone` allows it.
    ///
    /// # Errors
    /// The error in `text`, and how to correct it.
    pub(crate) fn parse(text: &str, alone: bool) -> Result<Self, String> {
        let example = if alone {
            "write for example \"10.0.0.5\" or \"10.0.0.0/24\""
        } else {
            "write for example \"10.0.0.0/24\" or \"::/0\""
        };
        let (addr, len) = match text.split_once('/') {
            Some((addr, len)) => (addr, Some(len)),
            None => (text, None),
        };
        let Ok(addr) = addr.parse::<IpAddr>() else {
            let what = if alone { "address" } else { "network with a prefix length" };
            return Err(format!("{text:?} is not an IP {what}; {example}"));
        };
        let Some(len) = len else {
            return match alone {
                true => Ok(addr.into()),
                false => Err(format!("no prefix length after {addr}; {example}")),
            };
        };
        let net = prefix_len_of(len)
            .and_then(|len| IpNet::new(addr, len).ok())
            .ok_or_else(|| bad_prefix_len(text, addr, 0))?;
        let prefix = Self::from(net);
        if prefix.0 != net {
            return Err(format!("{text} has host bits set; the network is {prefix}"));
        }
        Ok(prefix)
    }
}

/// As a constant of OVN's logical-flow language.
impl From<Prefix> for Constant {
    fn from(prefix: Prefix) -> Self {
        let bits = |addr| match addr {
            IpAddr::V4(addr) => u128::from(addr.to_bits()),
            IpAddr::V6(addr) => addr.to_bits(),
        };
        Self {
            value: bits(prefix.addr()),
            mask: (!prefix.is_single()).then(|| bits(prefix.0.netmask())),
            format: if prefix.is_ipv4() { Format::Ipv4 } else { Format::Ipv6 },
        }
    }
}

/// As OVN's language writes it: without the prefix length when it is one address.
impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() { self.addr().fmt(f) } else { self.0.fmt(f) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_round_trips_when_it_is_a_network() {
        for text in ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.5", "::/0", "fd00:1::/64", "fd00::5"] {
            assert_eq!(Prefix::parse(text, true).map(|p| p.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(Prefix::parse("10.0.0.5/32", false), Prefix::parse("10.0.0.5", true));
    }

    #[test]
    fn prefix_is_refused_with_the_reason_when_it_is_no_network() {
        for (text, error) in [
            (
                "10.0.0.0",
                "no prefix length after 10.0.0.0; write for example \"10.0.0.0/24\" or \"::/0\"",
            ),
            ("10.0.0.1/24", "10.0.0.1/24 has host bits set; the network is 10.0.0.0/24"),
            ("10.0.0.0/33", "bad prefix length in \"10.0.0.0/33\"; IPv4 takes 0 to 32 bits"),
            ("::/+1", "bad prefix length in \"::/+1\"; IPv6 takes 0 to 128 bits"),
            (
                "web",
                "\"web\" is not an IP network with a prefix length; write for example \
                 \"10.0.0.0/24\" or \"::/0\"",
            ),
        ] {
            assert_eq!(Prefix::parse(text, false), Err(error.to_owned()));
        }
        let expected =
            "\"web\" is not an IP address; write for example \"10.0.0.5\" or \"10.0.0.0/24\"";
        assert_eq!(Prefix::parse("web", true), Err(expected.to_owned()));
    }

    #[test]
    fn constant_is_written_like_the_prefix() {
        for text in ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.5", "::/0", "fd00:1::/64", "fd00::5"] {
            let constant = Constant::from(Prefix::parse(text, true).unwrap());
            assert_eq!(constant.to_string(), text);
        }
    }

    #[test]
    fn prefixes_overlap_when_one_contains_the_other() {
        let prefix = |text| Prefix::parse(text, true).unwrap();
        assert!(prefix("10.0.0.0/8").overlaps(prefix("10.1.0.0/16")));
        assert!(prefix("10.1.0.0/16").overlaps(prefix("0.0.0.0/0")));
        assert!(!prefix("10.0.0.0/16").overlaps(prefix("10.1.0.0/16")));
        assert!(!prefix("0.0.0.0/0").overlaps(prefix("::/0")));
    }
}
