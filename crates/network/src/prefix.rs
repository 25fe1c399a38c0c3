//! [`Prefix`]: a range of addresses that share their first bits.

use crate::ipnet::{bits, width};
use lflow::{Constant, Format};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP network, as in `10.0.0.0/24`: the bits after the prefix are zero. The prefix has 0 to 32 bits, or 0 to 128; with all
/// of them it is one address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl Prefix {
    /// The first `len` bits of `addr`; all of them if it has no more.
    pub(crate) fn of(addr: IpAddr, len: u8) -> Self {
        let len = len.min(width(addr) as u8);
        let host_bits = width(addr) - u32::from(len);
        let mask = u128::MAX.checked_shl(host_bits).unwrap_or_default();
        let addr = match addr {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & mask as u32).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & mask).into(),
        };
        Self { addr, len }
    }

    /// That address alone.
    pub(crate) fn single(addr: IpAddr) -> Self {
        Self::of(addr, u8::MAX)
    }

    /// The first address.
    pub const fn addr(self) -> IpAddr {
        self.addr
    }

    /// Bits that its addresses have in common.
    pub const fn prefix_len(self) -> u8 {
        self.len
    }

    /// True when it is one address.
    pub const fn is_single(self) -> bool {
        self.len as u32 == width(self.addr)
    }

    /// True for an IPv4 network.
    pub const fn is_ipv4(self) -> bool {
        self.addr.is_ipv4()
    }

    /// True when `addr` is one of its addresses.
    pub fn contains(self, addr: IpAddr) -> bool {
        self.is_ipv4() == addr.is_ipv4() && Self::of(addr, self.len) == self
    }

    /// True when some address is in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.addr) || other.contains(self.addr)
    }

    /// Reads `address/length`, or an address alone where `alone` allows it. The error says what is wrong with `text` and what
    /// would be right.
    pub(crate) fn parse(text: &str, alone: bool) -> Result<Self, String> {
        let right = if alone {
            "write one such as \"10.0.0.5\" or \"10.0.0.0/24\""
        } else {
            "write one such as \"10.0.0.0/24\" or \"::/0\""
        };
        let (addr, len) = match text.split_once('/') {
            Some((addr, len)) => (addr, Some(len)),
            None => (text, None),
        };
        let Ok(addr) = addr.parse::<IpAddr>() else {
            let what = if alone { "address" } else { "IP network with its prefix length" };
            let article = if alone { "no IP" } else { "no" };
            return Err(format!("{text:?} is {article} {what}; {right}"));
        };
        let Some(len) = len else {
            return if alone {
                Ok(Self::single(addr))
            } else {
                Err(format!("no prefix length after {addr}; {right}"))
            };
        };
        // `u8::from_str` takes a plus sign, which no prefix length has.
        let digits = !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit());
        let max = width(addr);
        let len = len.parse::<u8>().ok().filter(|&len| digits && u32::from(len) <= max);
        let Some(len) = len else {
            let family = if addr.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(format!(
                "bad prefix length in \"{text}\"; it is 0 to {max} bits for {family}"
            ));
        };
        let prefix = Self::of(addr, len);
        if bits(prefix.addr) != bits(addr) {
            return Err(format!(
                "{text} has bits set after its first {len}; the network is {prefix}"
            ));
        }
        Ok(prefix)
    }
}

/// As a constant of the logical language.
impl From<Prefix> for Constant {
    fn from(prefix: Prefix) -> Self {
        let width = width(prefix.addr);
        let host_bits = width - u32::from(prefix.len);
        let field = u128::MAX >> (128 - width);
        let mask = field & u128::MAX.checked_shl(host_bits).unwrap_or_default();
        Self {
            value: bits(prefix.addr),
            mask: (!prefix.is_single()).then_some(mask),
            format: if prefix.is_ipv4() { Format::Ipv4 } else { Format::Ipv6 },
        }
    }
}

/// As OVN's language writes it: an address alone when it is one.
impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() { self.addr.fmt(f) } else { write!(f, "{}/{}", self.addr, self.len) }
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
        let cases = [
            (
                "10.0.0.0",
                "no prefix length after 10.0.0.0; write one such as \"10.0.0.0/24\" or \"::/0\"",
            ),
            (
                "10.0.0.1/24",
                "10.0.0.1/24 has bits set after its first 24; the network is 10.0.0.0/24",
            ),
            ("10.0.0.0/33", "bad prefix length in \"10.0.0.0/33\"; it is 0 to 32 bits for IPv4"),
            ("::/+1", "bad prefix length in \"::/+1\"; it is 0 to 128 bits for IPv6"),
            (
                "web",
                "\"web\" is no IP network with its prefix length; write one such as \"10.0.0.0/24\" or \
                 \"::/0\"",
            ),
        ];
        for (text, error) in cases {
            assert_eq!(Prefix::parse(text, false), Err(error.to_owned()));
        }
        assert_eq!(
            Prefix::parse("web", true),
            Err("\"web\" is no IP address; write one such as \"10.0.0.5\" or \"10.0.0.0/24\""
                .to_owned())
        );
    }

    #[test]
    fn constant_is_written_like_the_prefix() {
        for text in ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.5", "::/0", "fd00:1::/64", "fd00::5"] {
            let constant = Constant::from(Prefix::parse(text, true).unwrap());
            assert_eq!(constant.to_string(), text);
        }
    }

    #[test]
    fn prefixes_overlap_when_one_is_within_the_other() {
        let prefix = |text| Prefix::parse(text, true).unwrap();
        assert!(prefix("10.0.0.0/8").overlaps(prefix("10.1.0.0/16")));
        assert!(prefix("10.1.0.0/16").overlaps(prefix("0.0.0.0/0")));
        assert!(!prefix("10.0.0.0/16").overlaps(prefix("10.1.0.0/16")));
        assert!(!prefix("0.0.0.0/0").overlaps(prefix("::/0")));
    }
}
