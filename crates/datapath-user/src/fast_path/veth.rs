//! A guest's device as a veth pair: the inner end is the guest's, eBPF programs are attached to the
//! outer.
//!
//! Pinned programs (and clsact filters always) keep forwarding when the process is killed, so a
//! pair outlives the process. The next process finds the outer end by its name, which depends only
//! on the guest's namespace and device name, and adopts the pair if it is as configured. An orderly
//! stop and the removal of the port delete the pair.

use super::veth_headroom;
use crate::device::{check_name_is_free, configure_guest};
use datapath::config::GuestConfig;
use netdev::{Address, Error, Ethtool, Ifindex, IpNet, Link, LinkKind, LinkSpec, Netlink, Netns};

/// The prefix of the names of outer ends; ten hexadecimal digits follow.
const PREFIX: &str = "weft-";
const DIGITS: usize = 10;

/// Offloads of veth devices that TAPs lack. They are switched off, because frames with them could
/// not be punted. Some kernels lack some of them.
const OFFLOADS_WITHOUT_TAP: [&str; 10] = [
    "tx-checksum-sctp",
    "tx-sctp-segmentation",
    "tx-udp_tnl-segmentation",
    "tx-udp_tnl-csum-segmentation",
    "tx-gre-segmentation",
    "tx-gre-csum-segmentation",
    "tx-ipxip4-segmentation",
    "tx-ipxip6-segmentation",
    "tx-esp-segmentation",
    "tx-gso-list",
];
/// UDP segmentation, which TAPs have since Linux 6.2.
const UDP_SEGMENTATION: &str = "tx-udp-segmentation";

/// The configuration of the guest's end.
#[derive(Clone, Copy)]
pub(crate) struct GuestEnd<'a> {
    pub(crate) name: &'a str,
    /// The guest's namespace and the device's settings in it. Without, the device stays in this
    /// namespace, for others to configure.
    pub(crate) guest: Option<(&'a Netns, &'a GuestConfig)>,
    pub(crate) mtu: u16,
    /// Whether UDP super-packets can be punted.
    pub(crate) udp_segmentation: bool,
}

impl GuestEnd<'_> {
    fn netlink(&self) -> Result<Netlink, Error> {
        self.guest.map_or_else(Netlink::open, |(netns, _)| netns.netlink())
    }

    /// The name of the outer end.
    fn outer_name(&self) -> String {
        outer_name(self.guest.map(|(_, guest)| guest.netns.as_str()), self.name)
    }
}

/// The name of the outer end of a pair whose inner end is `inner` in the namespace `netns`.
pub(crate) fn outer_name(netns: Option<&str>, inner: &str) -> String {
    // FNV-1a gives the same name in every process. A slash occurs in neither of the two names.
    let bytes = netns.unwrap_or_default().bytes().chain(*b"/").chain(inner.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{PREFIX}{:0DIGITS$x}", hash >> 24)
}

/// Makes a pair, or adopts an existing one. Returns the link of the outer end.
pub(crate) fn open(inner: &GuestEnd<'_>) -> Result<Link, Error> {
    let (here, there) = (Netlink::open()?, inner.netlink()?);
    let name = inner.outer_name();
    match here.link(&name) {
        Ok(link) => {
            if is_as_configured(&link, inner, &there)? {
                veth_headroom::provide(&here, link.index);
                return Ok(link);
            }
            delete(&here, &link)?;
        }
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    check_name_is_free(&there, inner.name, inner.guest.map(|(netns, _)| netns))?;
    make(&name, inner, &here, &there).inspect_err(|_| {
        // The first error is the one to report; the pair may not have been made at all.
        let _ = here.index_of(&name).and_then(|index| here.delete(index));
    })
}

fn make(name: &str, inner: &GuestEnd<'_>, here: &Netlink, there: &Netlink) -> Result<Link, Error> {
    let mtu = u32::from(inner.mtu);
    let peer = LinkSpec::new(inner.name).mtu(mtu);
    let peer = match inner.guest {
        Some((netns, guest)) => peer.mac(guest.mac).netns(netns),
        None => peer,
    };
    let outer = here.create(&LinkSpec::new(name).mtu(mtu), &LinkKind::Veth { peer })?;
    netdev::silence_host_stack(name)?;
    veth_headroom::provide(here, outer);
    let ethtool = inner.guest.map_or_else(Ethtool::open, |(netns, _)| netns.ethtool())?;
    let udp = (!inner.udp_segmentation).then_some(UDP_SEGMENTATION);
    let off: Vec<_> =
        OFFLOADS_WITHOUT_TAP.into_iter().chain(udp).map(|feature| (feature, false)).collect();
    // Offloads that the kernel does not know need not be switched off.
    let _ = ethtool.set_features(inner.name, &off)?;
    let index = there.index_of(inner.name)?;
    match inner.guest {
        Some((netns, guest)) => configure_guest(there, index, netns, guest)?,
        None => there.set_up(index)?,
    }
    here.set_up(outer)?;
    // With the outer end up, the inner end has a carrier. But the kernel drops its frames until a
    // kernel worker has activated its queues; since Linux 6.8, a lookup activates them at once.
    there.link_by_index(index)?;
    here.link_by_index(outer)
}

/// Whether an existing pair matches the configuration. Additional addresses of the guest are
/// allowed.
fn is_as_configured(outer: &Link, inner: &GuestEnd<'_>, there: &Netlink) -> Result<bool, Error> {
    let link = match there.link(inner.name) {
        Ok(link) => link,
        Err(error) if error.is_not_found() => return Ok(false),
        Err(error) => return Err(error),
    };
    let of = |link: &Link, other: &Link| {
        link.lower.is_some_and(|lower| {
            lower.index == other.index && lower.netns.is_some() == inner.guest.is_some()
        })
    };
    let is_like = |link: &Link| link.up && link.is_veth() && link.mtu == u32::from(inner.mtu);
    let is_pair = is_like(outer) && is_like(&link) && of(outer, &link) && of(&link, outer);
    let Some((netns, guest)) = inner.guest.filter(|_| is_pair) else { return Ok(is_pair) };
    let has: Vec<IpNet> =
        there.addresses(Some(link.index))?.iter().map(|Address { prefix, .. }| *prefix).collect();
    // With IPv6 disabled, the guest lacks its IPv6 addresses; the pair still matches.
    let key = format!("net/ipv6/conf/{}/disable_ipv6", inner.name);
    let without_ipv6 = netns.read_sysctl(&key).map_or(true, |disabled| disabled != "0");
    let is_there =
        |prefix: &IpNet| has.contains(prefix) || (prefix.addr().is_ipv6() && without_ipv6);
    Ok(link.mac == guest.mac && guest.addresses.iter().all(is_there))
}

/// Removes a pair by its outer end. It may be gone already, with the guest's namespace.
pub(crate) fn close(outer: Ifindex) -> Result<(), Error> {
    let netlink = Netlink::open()?;
    match netlink.delete(outer) {
        Err(error) if error.is_not_found() => {}
        result => result?,
    }
    veth_headroom::remove_unused(&netlink)
}

fn delete(netlink: &Netlink, link: &Link) -> Result<(), Error> {
    if !link.is_veth() {
        return Err(Error::invalid(
            format!("create veth link {}", link.name),
            "another device has that name and is no veth: remove or rename it",
        ));
    }
    netlink.delete(link.index)
}

/// Removes the pair that an earlier process has left behind for this device, if there is one.
pub(crate) fn remove(netns: Option<&str>, inner: &str) -> Result<(), Error> {
    let netlink = Netlink::open()?;
    match netlink.link(&outer_name(netns, inner)) {
        Ok(link) if link.is_veth() => close(link.index),
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes all pairs of this thread's network namespace except those whose outer ends are in
/// `keep`. Returns their number.
pub(crate) fn remove_others(keep: &[String]) -> Result<usize, Error> {
    let netlink = Netlink::open()?;
    let links = netlink.links()?;
    let others = links.iter().filter(|link| is_ours(link) && !keep.contains(&link.name));
    let mut removed = 0;
    for link in others {
        match netlink.delete(link.index) {
            Err(error) if error.is_not_found() => {}
            result => result?,
        }
        messages::log!(VETH_REMOVED, device = %link.name, "removed the veth pair of a former port");
        removed += 1;
    }
    veth_headroom::remove_unused(&netlink)?;
    Ok(removed)
}

pub(super) fn is_ours(link: &Link) -> bool {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    let digits = link.name.strip_prefix(PREFIX);
    link.is_veth()
        && digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_name_is_stable_and_a_valid_link_name() {
        let name = outer_name(Some("blue"), "eth0");
        assert_eq!(name, "weft-56203aac08");
        assert!(netdev::check_link_name(&name).is_ok());
        let others =
            [(None, "blue/eth0"), (None, "eth0"), (Some("blue"), "eth1"), (Some("b"), "lueeth0")];
        let names = others.map(|(netns, inner)| outer_name(netns, inner));
        assert!(!names[1..].contains(&name) && names[1] != names[2]);
    }
}
