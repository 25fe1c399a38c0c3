//! The veth pair of a container: one end in the container, the other one on the host.

use crate::config::Attachment;
use crate::outcome::{self, Error, Route};
use ipnet::IpNet;
use netdev::{Dad, LinkKind, LinkSpec, Netlink, Netns};
use std::net::IpAddr;
use std::path::Path;
use wire::MacAddr;

/// The prefix of the names of host ends.
const PREFIX: &str = "wp";
/// The characters of names after the prefix: five bits each.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const NETWORK_CHARS: usize = 4;
const ATTACHMENT_CHARS: usize = 9;

/// The name of the host end. It depends only on network, container and interface name, so DEL and
/// GC find an interface that a killed ADD left behind.
pub fn host_name(network: &str, attachment: &Attachment) -> String {
    let Attachment { container, ifname } = attachment;
    let rest = hash(&format!("{network}/{container}/{ifname}"));
    host_prefix(network) + &letters(rest, ATTACHMENT_CHARS)
}

/// The prefix of the names of all host ends of a network.
pub fn host_prefix(network: &str) -> String {
    PREFIX.to_owned() + &letters(hash(network), NETWORK_CHARS)
}

fn letters(mut value: u64, count: usize) -> String {
    let mut text = String::new();
    for _ in 0..count {
        text.push(char::from(ALPHABET[(value & 31) as usize]));
        value >>= 5;
    }
    text
}

/// FNV-1a, followed by a mixing step, because its low bits are weak.
fn hash(text: &str) -> u64 {
    let fnv = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ fnv >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ mixed >> 33
}

/// The addresses and routes of a container's interface.
pub struct Settings<'a> {
    pub mac: MacAddr,
    pub addresses: &'a [IpNet],
    pub routes: &'a [Route],
    /// The gateways of routes that name none.
    pub gateways: &'a [IpAddr],
}

fn failed(what: &str) -> impl Fn(netdev::Error) -> Error {
    move |error| Error::new(outcome::IO, what, error)
}

/// Opens the namespace of a container.
///
/// # Errors
/// It does not exist.
pub fn open_netns(path: &Path) -> Result<Netns, Error> {
    Netns::open_path(path).map_err(failed("cannot open the namespace of the container"))
}

/// Creates the veth pair and sets both ends up, so that the port is up when the daemon attaches it.
/// The container's end sends nothing yet, because it has no addresses and IPv6 is off.
///
/// # Errors
/// One of the names is in use; nothing has changed.
pub fn create(host: &str, ifname: &str, netns: &Netns, mtu: u16) -> Result<(), Error> {
    let netlink = Netlink::open().map_err(failed("cannot open netlink"))?;
    let mtu = u32::from(mtu);
    let peer = LinkSpec::new(ifname).mtu(mtu).netns(netns);
    let index = netlink
        .create(&LinkSpec::new(host).mtu(mtu), &LinkKind::Veth { peer })
        .map_err(failed("cannot make the interface of the container"))?;
    // The host's network stack must not reply to packets of the container.
    netdev::silence_host_stack(host).map_err(failed("cannot configure the interface"))?;
    netlink.set_up(index).map_err(failed("cannot set the interface up"))?;
    let what = failed("cannot set the interface of the container up");
    set_ipv6(ifname, netns, false)?;
    let inside = netns.netlink().map_err(&what)?;
    inside.index_of(ifname).and_then(|index| inside.set_up(index)).map_err(what)
}

/// Turns IPv6 on or off for a container's interface. When it is turned on, the kernel derives a
/// link-local address from the present MAC address.
fn set_ipv6(ifname: &str, netns: &Netns, is_on: bool) -> Result<(), Error> {
    let key = format!("net/ipv6/conf/{ifname}/disable_ipv6");
    match netns.sysctl(&key, if is_on { "0" } else { "1" }) {
        // A kernel without IPv6.
        Err(error) if error.is_not_found() => Ok(()),
        result => result.map_err(failed("cannot configure IPv6 in the container")),
    }
}

/// Configures the container's end.
///
/// # Errors
/// The kernel returns an error.
pub fn configure(ifname: &str, netns: &Netns, settings: &Settings<'_>) -> Result<(), Error> {
    let what = failed("cannot configure the interface of the container");
    let netlink = netns.netlink().map_err(&what)?;
    let index = netlink.index_of(ifname).map_err(&what)?;
    netlink.set_mac(index, settings.mac).map_err(&what)?;
    set_ipv6(ifname, netns, settings.addresses.iter().any(|net| net.addr().is_ipv6()))?;
    if let Ok(loopback) = netlink.index_of("lo") {
        netlink.set_up(loopback).map_err(&what)?;
    }
    for &net in settings.addresses {
        // No duplicate address detection: all addresses are in the network file, and each is
        // unique.
        netlink.add_address(index, net, Dad::Skip).map_err(&what)?;
    }
    for route in settings.routes {
        let destination: IpNet = route.dst.parse().map_err(|error| {
            Error::new(outcome::CONFIG, format!("route {} is no network", route.dst), error)
        })?;
        let configured = route.gw.as_deref().map(str::parse).transpose().map_err(|error| {
            Error::new(outcome::CONFIG, format!("the gateway of {destination} is invalid"), error)
        })?;
        let is_same = |gateway: &&IpAddr| gateway.is_ipv4() == destination.addr().is_ipv4();
        let gateway = configured.or_else(|| settings.gateways.iter().find(is_same).copied());
        let route = match gateway {
            Some(gateway) => {
                netdev::Route { oif: Some(index), ..netdev::Route::via(destination, gateway) }
            }
            None => netdev::Route::on_link(destination, index),
        };
        match netlink.add_route(&route) {
            // If several interfaces have a default route, the first one keeps it.
            Err(error) if error.is_exists() => {}
            result => result.map_err(&what)?,
        }
    }
    Ok(())
}

/// Whether a container has an interface of this name.
///
/// # Errors
/// The kernel returns an error.
pub fn exists(ifname: &str, netns: &Netns) -> Result<bool, Error> {
    let what = failed("cannot look into the namespace of the container");
    match netns.netlink().map_err(&what)?.link(ifname) {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(what(error)),
    }
}

/// Removes a host end, and with it the container's end. It is no error if it does not exist.
///
/// # Errors
/// The kernel returns an error.
pub fn remove(host: &str) -> Result<(), Error> {
    let what = failed("cannot remove the interface of the container");
    let netlink = Netlink::open().map_err(&what)?;
    let removed = netlink.link(host).and_then(|link| netlink.delete(link.index));
    match removed {
        // The pair may also have been removed with the namespace of the container.
        Err(error) if error.is_not_found() => Ok(()),
        result => result.map_err(what),
    }
}

/// The names of all host ends of a network.
///
/// # Errors
/// The kernel returns an error.
pub fn host_ends(network: &str) -> Result<Vec<String>, Error> {
    let what = failed("cannot list the interfaces of the host");
    let links = Netlink::open().and_then(|netlink| netlink.links()).map_err(what)?;
    let prefix = host_prefix(network);
    let length = PREFIX.len() + NETWORK_CHARS + ATTACHMENT_CHARS;
    let is_end = |name: &String| name.starts_with(&prefix) && name.len() == length;
    Ok(links.into_iter().filter(netdev::Link::is_veth).map(|it| it.name).filter(is_end).collect())
}

/// Compares a container's interface with the expected settings. Returns a description of the
/// difference.
///
/// # Errors
/// The kernel returns an error.
pub fn difference(
    ifname: &str,
    netns: &Netns,
    mac: MacAddr,
    addresses: &[IpNet],
) -> Result<Option<String>, Error> {
    let what = failed("cannot look into the namespace of the container");
    let netlink = netns.netlink().map_err(&what)?;
    let link = match netlink.link(ifname) {
        Ok(link) => link,
        Err(error) if error.is_not_found() => {
            return Ok(Some(format!("the container has no interface {ifname}")));
        }
        Err(error) => return Err(what(error)),
    };
    if link.mac != mac {
        return Ok(Some(format!("the MAC address of {ifname} is {}, not {mac}", link.mac)));
    }
    if !link.up {
        return Ok(Some(format!("{ifname} is down")));
    }
    let here = netlink.addresses(Some(link.index)).map_err(what)?;
    let missing = addresses.iter().find(|net| here.iter().all(|it| it.prefix != **net));
    Ok(missing.map(|net| format!("{ifname} lacks the address {net}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_short_and_differ_when_one_part_differs() {
        let name = |network: &str, container: &str, ifname: &str| {
            let (container, ifname) = (container.to_owned(), ifname.to_owned());
            host_name(network, &Attachment { container, ifname })
        };
        let mut names = HashSet::new();
        for container in 0..1000 {
            for ifname in ["eth0", "eth1"] {
                let name = name("pods", &format!("c{container}"), ifname);
                assert_eq!(name.len(), 15);
                assert!(name.starts_with(&host_prefix("pods")));
                assert!(names.insert(name));
            }
        }
        assert!(!name("other", "c1", "eth0").starts_with(&host_prefix("pods")));
    }
}
