//! Two hosts, joined by an underlay, with two guests each unless their [`Shape`] says otherwise: all of them network
//! namespaces of this machine.
//!
//! ```text
//!   h1g1   h1g2                     h2g1   h2g2      guests: eth0 (made by the contender), 10.77.0.<host><guest>/24
//!     |      |                        |      |
//!   [    h1    ] uplink ---- uplink [    h2    ]     hosts: 192.0.2.<host>/24, 2001:db8::<host>/64
//! ```
//!
//! A [`Lab`] is the same for every [`Contender`]; how frames get from `eth0` to `uplink` is the contender's affair.
//! Everything lives in the namespaces, and these end when the lab is dropped.

mod attachment;
mod contender;
mod kernel;
mod ovs;
pub(crate) mod policy;
mod profile;
pub(crate) mod scratch;
mod session;
mod shape;
mod weft;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netdev::{
    CpuMask, Dad, Ethtool, Ifindex, IpPrefix, LinkKind, LinkSpec, Netlink, Netns, OwnedNetns,
};
use wire::MacAddr;

use crate::measure::{WireCounters, processors};
use crate::{Error, Result, Stop};

pub use attachment::Attachment;
pub use contender::{Contender, Datapath, KernelTunnel, OvsTunnel};
pub use policy::{Policy, RoutedGuest};
pub use profile::{OffloadFlags, Profile, ProfileError};
pub use session::{Session, check_privileges, remove_stale};
pub use shape::{Family, Shape};
pub(crate) use weft::{attach_large, attach_with};
pub use weft::{attach_network, network_toml};

/// The device that joins the hosts, on either of them.
pub const UPLINK: &str = "uplink";
/// The guests' device.
pub const GUEST_DEVICE: &str = "eth0";
/// The MTU of the underlay unless told otherwise, in bytes.
pub const DEFAULT_UPLINK_MTU: u16 = 1500;

/// The congestion control of the guests' TCP.
pub const CONGESTION_CONTROL: &str = "cubic";

/// A host: a namespace with an uplink.
#[derive(Debug)]
pub struct Host {
    index: usize,
    netns: OwnedNetns,
    netlink: Netlink,
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

    /// Links and addresses of its namespace.
    pub fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    /// Its IPv4 address on the underlay, a /24.
    pub fn underlay4(&self) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, self.index as u8 + 1)
    }

    /// Its address of `family` on the underlay.
    pub fn underlay(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.underlay4().into(),
            Family::V6 => self.underlay6().into(),
        }
    }

    /// Its IPv6 address on the underlay, a /64.
    pub fn underlay6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, self.index as u16 + 1)
    }
}

/// A guest: a namespace whose only way out is `eth0`.
#[derive(Debug)]
pub struct Guest {
    host: usize,
    number: usize,
    netns: OwnedNetns,
}

impl Guest {
    /// `h1g1` to `h2g2`.
    pub fn name(&self) -> String {
        format!("h{}g{}", self.host + 1, self.number + 1)
    }

    /// The place of its host in [`Lab::hosts`].
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

    /// The core to which its traffic is pinned: guests of one host share a core, so that sender and receiver never do
    /// (on a machine with more than one).
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

    /// Gives `eth0`, which is there already, the guest's addresses.
    fn configure(&self) -> Result<()> {
        let netlink = self.netns.netlink()?;
        let index = netlink.index_of(GUEST_DEVICE)?;
        add_address(&netlink, index, self.ip4().into(), 24)?;
        add_address(&netlink, index, self.ip6().into(), 64)
    }
}

/// Two hosts with guests, joined by an underlay. Dropping it removes everything.
#[derive(Debug)]
pub struct Lab<'s> {
    // Guests first: a process of a host may hold devices in their namespaces, never the other way round.
    guests: Vec<Guest>,
    hosts: Vec<Host>,
    shape: Shape,
    offloads: OffloadFlags,
    session: &'s Session,
}

impl<'s> Lab<'s> {
    /// Builds hosts, underlay and guests; the guests have no device yet. A session can have one lab at a time.
    ///
    /// # Errors
    /// The kernel refuses a part, such as an offload flag that cannot be set; what was built before is removed.
    pub fn build(session: &'s Session, profile: Profile, uplink_mtu: u16) -> Result<Self> {
        Self::build_as(session, Shape { profile, uplink_mtu, policy: true, ..Shape::default() })
    }

    /// The same in any shape.
    ///
    /// # Errors
    /// As [`Lab::build`], and a shape with more guests than there are addresses for.
    pub fn build_as(session: &'s Session, shape: Shape) -> Result<Self> {
        shape.check()?;
        let prefix = session::prefix();
        let (guests, hosts) = (Vec::new(), Vec::with_capacity(2));
        let offloads = OffloadFlags::new();
        let mut lab = Self { guests, hosts, shape, offloads, session };
        for index in 0..2 {
            session.stop().check()?;
            let netns = namespace(&format!("{prefix}h{}", index + 1))?;
            let netlink = netns.netlink()?;
            lab.hosts.push(Host { index, netns, netlink });
            for number in 0..shape.guests_per_host {
                let netns = namespace(&format!("{prefix}h{}g{}", index + 1, number + 1))?;
                lab.guests.push(Guest { host: index, number, netns });
            }
        }
        lab.join_hosts()?;
        lab.offloads = lab.apply_profile()?;
        Ok(lab)
    }

    /// The two hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The guests, host by host.
    pub fn guests(&self) -> &[Guest] {
        &self.guests
    }

    /// The guest `number` of host `host`, both from 0.
    pub fn guest(&self, host: usize, number: usize) -> &Guest {
        &self.guests[self.shape.guests_per_host * host + number]
    }

    /// What it was asked to be.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The MTU of the underlay, in bytes.
    pub fn uplink_mtu(&self) -> u16 {
        self.shape.uplink_mtu
    }

    /// The MTU of the guests where a tunnel takes `overhead` bytes of the underlay's.
    ///
    /// # Errors
    /// The shape asks for more than fits.
    pub(crate) fn guest_mtu(&self, overhead: u16) -> Result<u16> {
        let most = self.shape.uplink_mtu.saturating_sub(overhead);
        match self.shape.guest_mtu {
            Some(mtu) if mtu > most => Err(Error::Traffic(format!(
                "guests with an MTU of {mtu} need an underlay of {}",
                mtu + overhead
            ))),
            Some(mtu) => Ok(mtu),
            None => Ok(most),
        }
    }

    /// Sets the MTU of the guests' devices, and of the ends of those on the hosts, whatever fits the underlay: what a guest is that
    /// was told wrong.
    ///
    /// # Errors
    /// A device is not there yet, or does not take it.
    pub(crate) fn raise_guest_mtu(&self, bytes: u16) -> Result<()> {
        let bytes = u32::from(bytes);
        for guest in &self.guests {
            let (inside, host) = (guest.netns.netlink()?, &self.hosts[guest.host]);
            inside.set_mtu(inside.index_of(GUEST_DEVICE)?, bytes)?;
            // A TAP has no other end.
            if let Ok(index) = host.netlink.index_of(&kernel::host_end(guest)) {
                host.netlink.set_mtu(index, bytes)?;
            }
        }
        Ok(())
    }

    /// The host that is not `host`.
    pub(crate) fn other(&self, host: &Host) -> &Host {
        &self.hosts[1 - host.index]
    }

    /// The offload flags of the underlay, read back from the kernel.
    pub fn offloads(&self) -> &OffloadFlags {
        &self.offloads
    }

    /// The flag that waits poll.
    pub fn stop(&self) -> &'s Stop {
        self.session.stop()
    }

    /// What has passed the uplink of the first host since the lab was built.
    ///
    /// # Errors
    /// The uplink is gone.
    pub fn wire_counters(&self) -> Result<WireCounters> {
        let stats = self.hosts[0].netlink.link(UPLINK)?.stats;
        Ok(WireCounters {
            frames: stats.rx_packets + stats.tx_packets,
            bytes: stats.rx_bytes + stats.tx_bytes,
            dropped: stats.rx_dropped + stats.tx_dropped,
        })
    }

    fn join_hosts(&self) -> Result<()> {
        let [first, second] = &self.hosts[..] else { return Ok(()) };
        let mtu = u32::from(self.shape.uplink_mtu);
        let peer = LinkSpec::new(UPLINK).mtu(mtu).up().netns(second.netns());
        let spec = LinkSpec::new(UPLINK).mtu(mtu).up();
        first.netlink.create(&spec, &LinkKind::Veth { peer })?;
        for host in &self.hosts {
            let index = host.netlink.index_of(UPLINK)?;
            add_address(&host.netlink, index, host.underlay4().into(), 24)?;
            add_address(&host.netlink, index, host.underlay6().into(), 64)?;
        }
        Ok(())
    }

    /// Switches what the profile says on both ends of the underlay, and reads the flags back (they are the same on both).
    fn apply_profile(&self) -> Result<OffloadFlags> {
        let mut flags = OffloadFlags::new();
        for host in &self.hosts {
            let ethtool = host.netns.ethtool()?;
            switch(&ethtool, UPLINK, &self.shape.profile.features_off(), false)?;
            switch(&ethtool, UPLINK, self.shape.profile.features_on(), true)?;
            if self.shape.steering {
                let all = CpuMask::of(processors().iter().copied());
                host.netns.steer_packets(UPLINK, &all)?;
            }
            let features = ethtool.features(UPLINK)?;
            flags = Profile::reported_features()
                .filter_map(|name| Some((name.to_owned(), features.get(name)?.active)))
                .collect();
        }
        Ok(flags)
    }
}

/// The one of `processors`, of which there is one, that guests of host `host` share.
fn cpu_of(host: usize, processors: &[usize]) -> usize {
    processors.get(host % processors.len().max(1)).copied().unwrap_or(0)
}

/// Switches `features` of `link` on or off. One that this kernel does not know is as good as off.
fn switch(ethtool: &Ethtool, link: &str, features: &[&str], on: bool) -> Result<()> {
    let wanted: Vec<_> = features.iter().map(|&name| (name, on)).collect();
    let unchanged = ethtool.set_features(link, &wanted)?;
    let now = ethtool.features(link)?;
    let is_on = |name: &str| now.get(name).is_some_and(|feature| feature.active);
    match unchanged.iter().find(|u| is_on(&u.name) != on) {
        None => Ok(()),
        Some(stuck) => {
            let wish = if on { "on" } else { "off" };
            Err(Error::Traffic(format!("{link}: {} cannot be switched {wish}", stuck.name)))
        }
    }
}

/// A namespace with the settings of a lab.
fn namespace(name: &str) -> Result<OwnedNetns> {
    let netns = OwnedNetns::create(name)?;
    for (key, value) in [
        // Ping sockets are for root's group too.
        ("net/ipv4/ping_group_range", "0 2147483647"),
        // Link-local addresses are usable at once, like those that the lab gives.
        ("net/ipv6/conf/all/accept_dad", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
        // For programs that do not choose theirs, or do so when they are connected already: where the host's is BBR, they would be
        // paced by timers. The others are not for namespaces to choose.
        ("net/ipv4/tcp_congestion_control", "reno"),
    ] {
        netns.sysctl(key, value)?;
    }
    Ok(netns)
}

fn add_address(netlink: &Netlink, index: Ifindex, address: IpAddr, prefix_len: u8) -> Result<()> {
    let prefix = IpPrefix::new(address, prefix_len)
        .ok_or_else(|| Error::Traffic(format!("{address}/{prefix_len} is no prefix")))?;
    Ok(netlink.add_address(index, prefix, Dad::Skip)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_pinned_to_processors_that_there_are() {
        assert_eq!([0, 1].map(|host| cpu_of(host, &[0, 1])), [0, 1]);
        assert_eq!([0, 1].map(|host| cpu_of(host, &[2, 5, 7])), [2, 5]);
        assert_eq!([0, 1].map(|host| cpu_of(host, &[3])), [3, 3]);
    }
}
