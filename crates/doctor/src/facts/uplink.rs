//! The uplink and the devices below it. Packets to other hosts pass all of them.

use netdev::{Ifindex, Link};

/// A device, as the firewall and NIC checks see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its interface index.
    pub index: Ifindex,
    /// The kind of a software device (`bond`, `vlan`, `bridge` ...); `None` for hardware.
    pub kind: Option<String>,
}

/// A device that leads to other hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uplink {
    /// The device itself.
    pub device: Device,
    /// The devices below it, nearest first: the device that a VLAN is on, the ports of a bond or
    /// team, the hardware port of a bridge.
    pub below: Vec<Device>,
}

impl Uplink {
    /// The uplink `name` among `links`; `None` when it does not exist.
    pub fn find(links: &[Link], name: &str) -> Option<Self> {
        let link = links.iter().find(|link| link.name == name)?;
        let mut found = vec![link];
        let mut at = 0;
        while let Some(link) = found.get(at).copied() {
            for lower in links.iter().filter(|lower| is_below(lower, link)) {
                if !found.iter().any(|known| known.index == lower.index) {
                    found.push(lower);
                }
            }
            at += 1;
        }
        let mut devices = found.into_iter().map(Device::of);
        Some(Self { device: devices.next()?, below: devices.collect() })
    }
}

impl Device {
    fn of(link: &Link) -> Self {
        Self { name: link.name.clone(), index: link.index, kind: link.kind.clone() }
    }

    /// True for a Linux bridge.
    pub fn is_bridge(&self) -> bool {
        self.kind.as_deref() == Some("bridge")
    }
}

/// True when `link` sends its packets through `lower`.
fn is_below(lower: &Link, link: &Link) -> bool {
    let is_port = lower.master == Some(link.index);
    match link.kind.as_deref() {
        Some("bond" | "team") => is_port,
        // The other ports of a bridge belong to guests.
        Some("bridge") => is_port && lower.kind.is_none(),
        Some("vlan" | "macvlan" | "macvtap" | "ipvlan") => {
            link.lower.is_some_and(|known| known.netns.is_none() && known.index == lower.index)
        }
        _ => false,
    }
}
