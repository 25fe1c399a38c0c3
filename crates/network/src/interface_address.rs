//! IP addresses with a prefix length, as `network.toml` writes them: `10.0.0.1/24`.

use ipnet::IpNet;
use std::net::IpAddr;

/// Reads `address/prefix`, the address of one host in its network.
///
/// # Errors
/// The error in `text`, and how to correct it. Refused are multicast, loopback and unspecified
/// addresses, a prefix of 0 bits, and the network and broadcast addresses of the network.
pub(crate) fn parse(text: &str) -> Result<IpNet, String> {
    let Some((addr, prefix_len)) = text.split_once('/') else {
        return Err(match text.parse::<IpAddr>() {
            Ok(addr) => {
                let usual = if addr.is_ipv4() { 24 } else { 64 };
                format!("no prefix length after {addr}; write for example \"{addr}/{usual}\"")
            }
            Err(_) => not_an_address(text),
        });
    };
    let addr: IpAddr = addr.parse().map_err(|_| not_an_address(text))?;
    let net = prefix_len_of(prefix_len)
        .filter(|len| *len > 0)
        .and_then(|len| IpNet::new(addr, len).ok())
        .ok_or_else(|| bad_prefix_len(text, addr, 1))?;
    match not_a_host(net) {
        Some(why) => Err(format!("{net} is {why}; write the address of one host")),
        None => Ok(net),
    }
}

/// Reads a prefix length. `u8::from_str` accepts a plus sign, which no prefix length has.
pub(crate) fn prefix_len_of(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The error for a prefix length in `text` that is not `least` to the bits of `addr`.
pub(crate) fn bad_prefix_len(text: &str, addr: IpAddr, least: u8) -> String {
    let (most, family) = if addr.is_ipv4() { (32, "IPv4") } else { (128, "IPv6") };
    format!("bad prefix length in \"{text}\"; {family} takes {least} to {most} bits")
}

/// Why `net` is not the address of one host.
pub(crate) fn not_a_host(net: IpNet) -> Option<&'static str> {
    if let Some(why) = not_unicast(net.addr()) {
        return Some(why);
    }
    // A network of one or two addresses reserves none of them (RFC 3021, RFC 6164).
    if net.max_prefix_len() - net.prefix_len() < 2 {
        return None;
    }
    match net {
        IpNet::V4(net) if net.addr() == net.network() => Some("the network address"),
        IpNet::V4(net) if net.addr() == net.broadcast() => Some("the broadcast address"),
        IpNet::V6(net) if net.addr() == net.network() => Some("the subnet-router anycast address"),
        _ => None,
    }
}

/// Why no host can have the address `addr`; `None` when one can.
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
        Some("an IPv4-mapped IPv6 address")
    } else {
        None
    }
}

fn not_an_address(text: &str) -> String {
    format!(
        "\"{text}\" is not an IP address with a prefix length; write for example \
         \"10.0.0.1/24\" or \"fd00::1/64\""
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_round_trips_when_a_host_can_have_it() {
        for text in [
            "10.0.0.1/24",
            "10.0.0.0/31",
            "10.0.0.255/32",
            "1.2.3.4/1",
            "fd00::1/64",
            "fd00::/127",
            "fe80::1/128",
        ] {
            assert_eq!(parse(text).map(|net| net.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn address_is_refused_with_the_reason_when_no_host_can_have_it() {
        let one_host = |text: &str, why| format!("{text} is {why}; write the address of one host");
        let prefix = |text: &str, bits| format!("bad prefix length in \"{text}\"; {bits} bits");
        let syntax = |text: &str| {
            format!(
                "\"{text}\" is not an IP address with a prefix length; write for example \
                 \"10.0.0.1/24\" or \"fd00::1/64\""
            )
        };
        let none = |addr: &str, example| {
            format!("no prefix length after {addr}; write for example \"{example}\"")
        };
        for (text, expected) in [
            ("10.0.0.1", none("10.0.0.1", "10.0.0.1/24")),
            ("fd00::1", none("fd00::1", "fd00::1/64")),
            ("10.0.0.1/33", prefix("10.0.0.1/33", "IPv4 takes 1 to 32")),
            ("10.0.0.1/0", prefix("10.0.0.1/0", "IPv4 takes 1 to 32")),
            ("10.0.0.1/+8", prefix("10.0.0.1/+8", "IPv4 takes 1 to 32")),
            ("10.0.0.1/", prefix("10.0.0.1/", "IPv4 takes 1 to 32")),
            ("fd00::1/129", prefix("fd00::1/129", "IPv6 takes 1 to 128")),
            ("10.0.0.0/24", one_host("10.0.0.0/24", "the network address")),
            ("10.0.0.255/24", one_host("10.0.0.255/24", "the broadcast address")),
            ("fd00::/64", one_host("fd00::/64", "the subnet-router anycast address")),
            ("224.0.0.1/4", one_host("224.0.0.1/4", "a multicast address")),
            ("::1/128", one_host("::1/128", "a loopback address")),
            ("0.0.0.0/8", one_host("0.0.0.0/8", "the unspecified address")),
            ("::ffff:10.0.0.1/120", one_host("::ffff:10.0.0.1/120", "an IPv4-mapped IPv6 address")),
            ("web", syntax("web")),
            ("web/24", syntax("web/24")),
        ] {
            assert_eq!(parse(text), Err(expected), "{text}");
        }
    }
}
