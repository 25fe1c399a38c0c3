//! The hosts and guests of a lab: network namespaces and their addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use netdev::{Dad, Ethtool, Ifindex, IpNet, Netlink, Netns, OwnedNetns};
use wire::MacAddr;

use super::shape::IpVersion;
use crate::{Error, Result};

/// The device that connects a host to the other one.
pub const UPLINK: &str = "uplink";
/// The guests' device.
pub const GUEST_DEVICE: &str = "eth0";

/// The congestion control that the traffic programs of this crate select.
pub const CONGESTION_CONTROL: &str = "cubic";

/// A host: a namespace with an uplink.
#[derive(Debug)]
pub struct Host {
    pub(super) index: usize,
    pub(super) netns: OwnedNetns,
    pub(super) netlink: Netlink,
}

impl Host {
    /// `h1` or `h2`.
    pub fn name(&self) -> String {
        format!("h{}", self.index + 1)
    }

    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The rtnetlink socket of its namespace.
    pub fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    /// Its IPv4 address on the underlay, a /24.
    pub fn underlay4(&self) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, self.index as u8 + 1)
    }

    /// Its address of `family` on the underlay.
    pub fn underlay(&self, family: IpVersion) -> IpAddr {
        match family {
            IpVersion::V4 => self.underlay4().into(),
            IpVersion::V6 => self.underlay6().into(),
        }
    }

    /// Its IPv6 address on the underlay, a /64.
    pub fn underlay6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, self.index as u16 + 1)
    }
}

/// A guest: a namespace whose only device is `eth0`.
#[derive(Debug)]
pub struct Guest {
    pub(super) host: usize,
    pub(super) number: usize,
    pub(super) netns: OwnedNetns,
}

impl Guest {
    /// `h1g1` to `h2g2`.
    pub fn name(&self) -> String {
        format!("h{}g{}", self.host + 1, self.number + 1)
    }

    /// The index of its host in [`Lab::hosts`](super::Lab::hosts).
    pub fn host(&self) -> usize {
        self.host
    }

    /// Its number on the host, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The address of its `eth0`.
    pub fn mac(&self) -> MacAddr {
        MacAddr([0x02, 0x77, 0, 0, self.host as u8 + 1, self.number as u8 + 1])
    }

    /// The IPv4 address of its `eth0`, a /24.
    pub fn ip4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 10 * (self.host as u8 + 1) + self.number as u8 + 1)
    }

    /// The IPv6 address of its `eth0`, a /64.
    pub fn ip6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, self.host as u16 + 1, self.number as u16 + 1)
    }

    /// The processor to which its traffic programs are pinned. Guests of one host share a
    /// processor. Two hosts share one only if this process may use only one.
    pub fn cpu(&self) -> usize {
        cpu_of(self.host, processors())
    }

    /// Runs `work` in its namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R> {
        Ok(self.netns.run_in(work)?)
    }

    /// Adds the guest's addresses to its existing `eth0`.
    pub(super) fn configure(&self) -> Result<()> {
        let netlink = self.netns.netlink()?;
        let index = netlink.index_of(GUEST_DEVICE)?;
        add_address(&netlink, index, self.ip4().into(), 24)?;
        add_address(&netlink, index, self.ip6().into(), 64)
    }
}

/// The processors that this process could use at the first call, at least one. Pinning a thread
/// later does not change the result.
pub fn processors() -> &'static [usize] {
    static ALL: OnceLock<Vec<usize>> = OnceLock::new();
    ALL.get_or_init(|| netdev::cpu::usable().ok().filter(|a| !a.is_empty()).unwrap_or(vec![0]))
}

/// The processor of `processors` that the guests of host `host` share.
fn cpu_of(host: usize, processors: &[usize]) -> usize {
    processors.get(host % processors.len().max(1)).copied().unwrap_or(0)
}

/// Switches `features` of `link` on or off. A feature that this kernel does not know counts as off.
pub(super) fn switch(ethtool: &Ethtool, link: &str, features: &[&str], on: bool) -> Result<()> {
    let settings: Vec<_> = features.iter().map(|&name| (name, on)).collect();
    let unchanged = ethtool.set_features(link, &settings)?;
    let now = ethtool.features(link)?;
    let is_on = |name: &str| now.get(name).is_some_and(|feature| feature.active);
    match unchanged.iter().find(|u| is_on(&u.name) != on) {
        None => Ok(()),
        Some(stuck) => {
            let state = if on { "on" } else { "off" };
            Err(Error::Other(format!("{link}: {} cannot be switched {state}", stuck.name)))
        }
    }
}

/// Creates a namespace with the settings of a lab.
pub(super) fn namespace(name: &str) -> Result<OwnedNetns> {
    let netns = OwnedNetns::create(name)?;
    for (key, value) in [
        // Ping sockets need a group range that includes root's group.
        ("net/ipv4/ping_group_range", "0 2147483647"),
        // Without duplicate address detection, link-local addresses are usable at once.
        ("net/ipv6/conf/all/accept_dad", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
        // For programs that select no congestion control, or select it only after connecting. BBR
        // as the host's default would pace their streams with timers. Reno is the only algorithm
        // that every namespace may select.
        ("net/ipv4/tcp_congestion_control", "reno"),
    ] {
        netns.sysctl(key, value)?;
    }
    Ok(netns)
}

pub(super) fn add_address(
    netlink: &Netlink,
    index: Ifindex,
    address: IpAddr,
    prefix_len: u8,
) -> Result<()> {
    let prefix = IpNet::new(address, prefix_len)
        .map_err(|_| Error::Other(format!("{address}/{prefix_len} is no prefix")))?;
    Ok(netlink.add_address(index, prefix, Dad::Skip)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_pinned_to_existing_processors() {
        assert_eq!([0, 1].map(|host| cpu_of(host, &[0, 1])), [0, 1]);
        assert_eq!([0, 1].map(|host| cpu_of(host, &[2, 5, 7])), [2, 5]);
        assert_eq!([0, 1].map(|host| cpu_of(host, &[3])), [3, 3]);
    }
}
