//! [`IpNet`]: an address together with the network it is in.

use crate::Prefix;
use std::fmt;
use std::net::IpAddr;

/// An IP address of a station and the length of its network's prefix, as in `10.0.0.1/24`.
///
/// Always the address of one station: neither multicast nor loopback nor unspecified, not the network's own
/// address, not its broadcast address; the prefix is 1 to 32 bits, or 1 to 128.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct IpNet {
    addr: IpAddr,
    prefix_len: u8,
}

impl IpNet {
    /// The address of the station.
    pub const fn addr(self) -> IpAddr {
        self.addr
    }

    /// The length of the network's prefix in bits.
    pub const fn prefix_len(self) -> u8 {
        self.prefix_len
    }

    /// The network that the station is in.
    pub fn network(self) -> Prefix {
        Prefix::of(self.addr, self.prefix_len)
    }

    /// True when `other` is in the same network.
    pub fn contains(self, other: IpAddr) -> bool {
        self.network().contains(other)
    }

    const fn host_bits(self) -> u32 {
        width(self.addr) - self.prefix_len as u32
    }

    /// Reads `address/prefix`; the error says what is wrong with `text` and what would be right.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let Some((addr, prefix_len)) = text.split_once('/') else {
            return Err(match text.parse::<IpAddr>() {
                Ok(addr) => {
                    let usual = if addr.is_ipv4() { 24 } else { 64 };
                    format!("no prefix length after {addr}; write it as in \"{addr}/{usual}\"")
                }
                Err(_) => not_an_address(text),
            });
        };
        let addr: IpAddr = addr.parse().map_err(|_| not_an_address(text))?;
        // `u8::from_str` takes a plus sign, which no prefix length has.
        let digits = !prefix_len.is_empty() && prefix_len.bytes().all(|b| b.is_ascii_digit());
        let prefix_len = prefix_len
            .parse()
            .ok()
            .filter(|&len: &u8| digits && (1..=width(addr)).contains(&u32::from(len)));
        let Some(prefix_len) = prefix_len else {
            return Err(format!(
                "bad prefix length in \"{text}\"; it is 1 to {} bits for {}",
                width(addr),
                if addr.is_ipv4() { "IPv4" } else { "IPv6" }
            ));
        };
        let net = Self { addr, prefix_len };
        match net.not_a_station() {
            Some(why) => Err(format!("{net} is {why}; write the address of one station")),
            None => Ok(net),
        }
    }

    /// Why the address cannot be that of one station.
    fn not_a_station(self) -> Option<&'static str> {
        if let Some(why) = not_unicast(self.addr) {
            return Some(why);
        }
        // Networks of one or two addresses have none to spare (RFC 3021, RFC 6164).
        let host_bits = self.host_bits();
        if host_bits < 2 {
            return None;
        }
        let mask = 1u128.checked_shl(host_bits).map_or(u128::MAX, |bit| bit - 1);
        match (bits(self.addr) & mask, self.addr) {
            (0, IpAddr::V4(_)) => Some("the network itself"),
            (0, IpAddr::V6(_)) => Some("the anycast address of the network's routers"),
            (host, IpAddr::V4(_)) if host == mask => Some("the broadcast address of its network"),
            _ => None,
        }
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix_len)
    }
}

/// Why no station on a network can have the address `addr`; `None` when one can.
pub(crate) fn not_unicast(addr: IpAddr) -> Option<&'static str> {
    let broadcast = matches!(addr, IpAddr::V4(v4) if v4.is_broadcast());
    let mapped = matches!(addr, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    if addr.is_unspecified() {
        Some("the unspecified address")
    } else if addr.is_multicast() {
        Some("a multicast address")
    } else if addr.is_loopback() {
        Some("a loopback address")
    } else if broadcast {
        Some("the broadcast address")
    } else if mapped {
        Some("an IPv4 address in the guise of IPv6")
    } else {
        None
    }
}

fn not_an_address(text: &str) -> String {
    format!(
        "\"{text}\" is not an IP address with its prefix length; write one such as \"10.0.0.1/24\" or \
         \"fd00::1/64\""
    )
}

pub(crate) const fn width(addr: IpAddr) -> u32 {
    match addr {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

pub(crate) fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn net_round_trips_when_it_is_a_station() {
        for text in [
            "10.0.0.1/24",
            "10.0.0.0/31",
            "10.0.0.255/32",
            "1.2.3.4/1",
            "fd00::1/64",
            "fd00::/127",
            "fe80::1/128",
        ] {
            assert_eq!(IpNet::parse(text).map(|net| net.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn net_is_refused_with_the_reason_when_it_is_no_station() {
        let cases = [
            ("10.0.0.1", "no prefix length after 10.0.0.1; write it as in \"10.0.0.1/24\""),
            ("fd00::1", "no prefix length after fd00::1; write it as in \"fd00::1/64\""),
            ("10.0.0.1/33", "bad prefix length in \"10.0.0.1/33\"; it is 1 to 32 bits for IPv4"),
            ("10.0.0.1/0", "bad prefix length in \"10.0.0.1/0\"; it is 1 to 32 bits for IPv4"),
            ("10.0.0.1/+8", "bad prefix length in \"10.0.0.1/+8\"; it is 1 to 32 bits for IPv4"),
            ("fd00::1/129", "bad prefix length in \"fd00::1/129\"; it is 1 to 128 bits for IPv6"),
            ("10.0.0.0/24", "10.0.0.0/24 is the network itself; write the address of one station"),
            (
                "10.0.0.255/24",
                "10.0.0.255/24 is the broadcast address of its network; write the address of one station",
            ),
            (
                "fd00::/64",
                "fd00::/64 is the anycast address of the network's routers; write the address of one station",
            ),
            ("224.0.0.1/4", "224.0.0.1/4 is a multicast address; write the address of one station"),
            ("::1/128", "::1/128 is a loopback address; write the address of one station"),
            ("0.0.0.0/8", "0.0.0.0/8 is the unspecified address; write the address of one station"),
            (
                "::ffff:10.0.0.1/120",
                "::ffff:10.0.0.1/120 is an IPv4 address in the guise of IPv6; write the address of one station",
            ),
            (
                "web",
                "\"web\" is not an IP address with its prefix length; write one such as \
                 \"10.0.0.1/24\" or \"fd00::1/64\"",
            ),
            (
                "web/24",
                "\"web/24\" is not an IP address with its prefix length; write one such as \
                 \"10.0.0.1/24\" or \"fd00::1/64\"",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(IpNet::parse(text), Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn contains_is_false_when_the_family_differs() {
        let net = IpNet::parse("10.0.0.1/24").unwrap();
        assert!(net.contains("10.0.0.77".parse().unwrap()));
        assert!(!net.contains("10.0.1.1".parse().unwrap()));
        assert!(!net.contains("::10.0.0.1".parse().unwrap()));
        assert!(IpNet::parse("fd00::1/64").unwrap().contains("fd00::2".parse().unwrap()));
    }
}
