//! Parses the strings of OVN's `port_security` column: `MAC [IP[/LEN]]...`, one for each MAC
//! address.

use super::{Address, AddressSet, PortSecurity};
use flow::low_bits;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A malformed `port_security` string.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("port security `{entry}`: {problem}")]
pub struct PortSecurityError {
    /// The string.
    pub entry: String,
    /// The problem with the string.
    pub problem: PortSecurityProblem,
}

/// A problem with a `port_security` string.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PortSecurityProblem {
    /// The first word is not a MAC address.
    #[error("expected a MAC address first, such as 02:00:00:00:00:01")]
    NoMac,
    /// A later word is not an IP address.
    #[error("expected an IPv4 or IPv6 address, with a prefix length if it is a subnet, not `{0}`")]
    NoAddress(String),
}

impl PortSecurity {
    /// Parses strings of the form `MAC [IP[/LEN]]...`, separated by white space.
    ///
    /// An address with a prefix length stands for the whole subnet if its host part is 0, else for
    /// itself only. Without any string the port may use any address.
    ///
    /// # Errors
    /// The first malformed string.
    pub fn parse<T: AsRef<str>>(entries: &[T]) -> Result<Self, PortSecurityError> {
        let (security, errors) = Self::parse_as_ovn(entries);
        match errors.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(security),
        }
    }

    /// Like [`PortSecurity::parse`], but handles malformed strings like ovn-controller. It ignores
    /// a string that does not begin with a MAC address; a port without another string may then use
    /// any address. It ignores the rest of a string from the first word that is not an IP address.
    pub fn parse_as_ovn<T: AsRef<str>>(entries: &[T]) -> (Self, Vec<PortSecurityError>) {
        let mut errors = Vec::new();
        let mut parsed = Vec::with_capacity(entries.len());
        for text in entries.iter().map(AsRef::as_ref) {
            let (entry, problem) = parse_entry(text);
            parsed.extend(entry);
            errors.extend(
                problem.map(|problem| PortSecurityError { entry: text.to_owned(), problem }),
            );
        }
        (Self { address_sets: parsed.into() }, errors)
    }
}

fn parse_entry(text: &str) -> (Option<AddressSet>, Option<PortSecurityProblem>) {
    let mut words = text.split_ascii_whitespace();
    let Some(mac) = words.next().and_then(parse_mac) else {
        return (None, Some(PortSecurityProblem::NoMac));
    };
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    let mut problem = None;
    for word in words {
        if let Some(address) = parse_ipv4(word) {
            v4.push(address);
        } else if let Some(address) = parse_ipv6(word) {
            v6.push(address);
        } else {
            problem = Some(PortSecurityProblem::NoAddress(word.to_owned()));
            break;
        }
    }
    (Some(AddressSet { mac, v4: v4.into(), v6: v6.into() }), problem)
}

/// Parses six hexadecimal numbers of one or two digits, separated by colons.
fn parse_mac(text: &str) -> Option<u128> {
    let mut parts = text.split(':');
    let mut mac = 0;
    for _ in 0..6 {
        let part = parts.next()?;
        if part.len() > 2 || part.starts_with('+') {
            return None;
        }
        mac = mac << 8 | u128::from(u8::from_str_radix(part, 16).ok()?);
    }
    parts.next().is_none().then_some(mac)
}

fn parse_ipv4(text: &str) -> Option<Address> {
    let (address, suffix) = split(text);
    let value: Ipv4Addr = address.parse().ok()?;
    let prefix_len = match suffix {
        None => 32,
        Some(suffix) => parse_prefix_len(suffix, 32).or_else(|| parse_netmask(suffix))?,
    };
    Some(subnet_or_host(value.to_bits().into(), prefix_len, 32))
}

fn parse_ipv6(text: &str) -> Option<Address> {
    let (address, suffix) = split(text);
    let value: Ipv6Addr = address.parse().ok()?;
    let prefix_len = match suffix {
        None => 128,
        Some(suffix) => parse_prefix_len(suffix, 128)?,
    };
    Some(subnet_or_host(value.to_bits(), prefix_len, 128))
}

fn split(text: &str) -> (&str, Option<&str>) {
    text.split_once('/').map_or((text, None), |(address, suffix)| (address, Some(suffix)))
}

fn parse_prefix_len(text: &str, width: u8) -> Option<u8> {
    if text.starts_with('+') {
        return None;
    }
    text.parse().ok().filter(|&len| len <= width)
}

/// The prefix length of a netmask in dotted decimal form.
fn parse_netmask(text: &str) -> Option<u8> {
    let mask = text.parse::<Ipv4Addr>().ok()?.to_bits();
    // The cast is lossless: there are at most 32 ones.
    (mask.leading_ones() + mask.trailing_zeros() == 32).then_some(mask.leading_ones() as u8)
}

fn subnet_or_host(value: u128, prefix_len: u8, width: u8) -> Address {
    let host_part = low_bits(width - prefix_len);
    if value & host_part == 0 {
        // Also the case of a full prefix length, which has no host part.
        return Address { value, mask: low_bits(width) & !host_part, broadcast: None };
    }
    let broadcast = (width == 32).then_some(value | host_part);
    Address { value, mask: low_bits(width), broadcast }
}
