//! The lab itself: two hosts joined by an underlay, and their guests.

use netdev::{CpuMask, LinkKind, LinkSpec};

use super::counters::WireCounters;
use super::host::{GUEST_DEVICE, Guest, Host, UPLINK, add_address, namespace, processors, switch};
use super::names;
use super::profile::{OffloadFlags, Profile};
use super::session::Session;
use super::shape::Shape;
use crate::{Error, Result, Stop};

/// The name of the host's end of the veth pair of `guest`, if it has one: `g1`, `g2`, ...
pub(super) fn host_end(guest: &Guest) -> String {
    format!("g{}", guest.number() + 1)
}

/// Two hosts with guests, joined by an underlay. Dropping it removes everything.
#[derive(Debug)]
pub struct Lab<'s> {
    // Dropped first: a process of a host may hold devices in the guests' namespaces.
    guests: Vec<Guest>,
    hosts: Vec<Host>,
    shape: Shape,
    offloads: OffloadFlags,
    session: &'s Session,
}

impl<'s> Lab<'s> {
    /// Builds hosts, underlay and guests. The guests have no device yet. A session can have one lab
    /// at a time.
    ///
    /// # Errors
    /// The kernel refuses a part, such as an offload flag. The parts built before are removed.
    pub fn build(session: &'s Session, profile: Profile, uplink_mtu: u16) -> Result<Self> {
        Self::build_as(session, Shape { profile, uplink_mtu, policy: true, ..Shape::default() })
    }

    /// Builds a lab of any shape.
    ///
    /// # Errors
    /// As [`Lab::build`], or the shape has too many guests.
    pub fn build_as(session: &'s Session, shape: Shape) -> Result<Self> {
        shape.check()?;
        let prefix = names::prefix();
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

    /// Its parameters.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The MTU of the underlay, in bytes.
    pub fn uplink_mtu(&self) -> u16 {
        self.shape.uplink_mtu
    }

    /// The MTU of the guests when the tunnel adds `overhead` bytes.
    ///
    /// # Errors
    /// The shape asks for a larger MTU than the underlay can carry.
    pub(crate) fn guest_mtu(&self, overhead: u16) -> Result<u16> {
        let most = self.shape.uplink_mtu.saturating_sub(overhead);
        match self.shape.guest_mtu {
            Some(mtu) if mtu > most => Err(Error::Other(format!(
                "guests with an MTU of {mtu} need an underlay of {}",
                mtu + overhead
            ))),
            Some(mtu) => Ok(mtu),
            None => Ok(most),
        }
    }

    /// Sets the MTU of the guests' devices, and of their peers on the hosts, even above what the
    /// underlay can carry. This simulates guests with a wrong MTU.
    ///
    /// # Errors
    /// A device does not exist yet, or refuses the MTU.
    pub(crate) fn raise_guest_mtu(&self, bytes: u16) -> Result<()> {
        let bytes = u32::from(bytes);
        for guest in &self.guests {
            let (inside, host) = (guest.netns.netlink()?, &self.hosts[guest.host]);
            inside.set_mtu(inside.index_of(GUEST_DEVICE)?, bytes)?;
            // A TAP device has no peer.
            if let Ok(index) = host.netlink.index_of(&host_end(guest)) {
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

    /// The flag that every wait polls.
    pub fn stop(&self) -> &'s Stop {
        self.session.stop()
    }

    /// The counters of the first host's uplink since the lab was built.
    ///
    /// # Errors
    /// The uplink does not exist any more.
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

    /// Applies the profile to both ends of the underlay. Returns the flags, which are equal on both
    /// ends.
    fn apply_profile(&self) -> Result<OffloadFlags> {
        let mut flags = OffloadFlags::new();
        for host in &self.hosts {
            let ethtool = host.netns.ethtool()?;
            switch(&ethtool, UPLINK, &self.shape.profile.features_off(), false)?;
            switch(&ethtool, UPLINK, self.shape.profile.features_on(), true)?;
            if self.shape.steering {
                let all = processors().iter().copied().collect::<CpuMask>();
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
