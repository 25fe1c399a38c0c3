//! The MTU at the five points that a guest's packets pass: the guest, its interface on the host, a
//! bridge in between, the uplink, and the path to other hosts.

use netdev::{Ifindex, Link, Netlink, Netns, Result};
use network::{Device, HostIndex, LogicalSwitch, Network, Port};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Limit on the namespaces that are searched for the peer of a veth device.
const NAMESPACES: usize = 256;

/// The type of a point on the path of packets that has an MTU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum MtuPointKind {
    /// The guest's own interface.
    Guest,
    /// The interface on the host that the guest is attached to.
    Vif,
    /// A Linux bridge that the VIF or the uplink is a port of.
    Bridge,
    /// The uplink.
    Uplink,
    /// The path MTU to another host that the kernel knows, from routes or ICMP.
    Path,
}

/// The MTU at one point.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MtuPoint {
    /// The type of the point.
    pub kind: MtuPointKind,
    /// The device, or the address of the other host.
    pub name: String,
    /// The namespace of the device; `None` for the host's own.
    pub netns: Option<String>,
    /// Its MTU, in bytes of IP packet.
    pub mtu: u32,
    /// The required MTU: the exact value for a guest, the minimum for all other points.
    pub needed: u32,
}

impl MtuPoint {
    /// The MTU is too small; for a guest, too small or too large.
    pub fn is_wrong(&self) -> bool {
        match self.kind {
            MtuPointKind::Guest => self.mtu != self.needed,
            _ => self.mtu < self.needed,
        }
    }

    /// The point lies between a guest and the switch.
    pub const fn is_of_a_guest(&self) -> bool {
        matches!(self.kind, MtuPointKind::Guest | MtuPointKind::Vif | MtuPointKind::Bridge)
    }
}

/// The MTU points of one logical switch on a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SwitchMtu {
    /// The name of the switch.
    pub switch: String,
    /// The tunnel type.
    pub tunnel: String,
    /// The tunnel's overhead, in bytes per packet.
    pub overhead: u16,
    /// The MTU of its guests.
    pub guest: u16,
    /// The underlay MTU in the network file.
    pub underlay: u16,
    /// The MTU of the uplink, if it exists.
    pub uplink: Option<u32>,
    /// The devices that exist. Devices that `weft run` has not created yet, and devices inside VMs,
    /// are missing.
    pub places: Vec<MtuPoint>,
}

/// Reads the MTU points of all switches with ports on `host`, in the calling thread's namespace.
pub fn read(network: &Network, host: HostIndex) -> Result<Vec<SwitchMtu>> {
    let netlink = Netlink::open()?;
    let links = netlink.links()?;
    let has_ports = |switch: &&LogicalSwitch| switch.ports.iter().any(|port| port.host == host);
    let switches = network.logical_switches().iter().filter(has_ports);
    Ok(switches.map(|switch| of_switch(network, host, switch, &netlink, &links)).collect())
}

fn of_switch(
    network: &Network,
    host: HostIndex,
    switch: &LogicalSwitch,
    netlink: &Netlink,
    links: &[Link],
) -> SwitchMtu {
    let overhead = network.overhead_bytes(switch.tunnel);
    let guest = u32::from(switch.mtu);
    let outer = guest + u32::from(overhead);
    let uplink = &network[host].uplink;
    let uplink = links.iter().find(|link| link.name == *uplink);
    let mut places = Vec::new();
    for port in switch.ports.iter().filter(|port| port.host == host) {
        places.extend(of_port(port, guest, netlink, links));
    }
    let remotes = switch.remote_hosts(host);
    if let Some(link) = uplink.filter(|_| !remotes.is_empty()) {
        places.push(place(MtuPointKind::Uplink, link, None, outer));
        places.extend(bridge(link, links, outer));
    }
    if switch.tunnel.has_endpoints() {
        let family = network.underlay_family();
        let addresses = remotes.iter().filter_map(|&remote| network[remote].underlay(family));
        places.extend(addresses.filter_map(|remote| path(netlink, remote, outer, uplink)));
    }
    SwitchMtu {
        switch: switch.name.clone(),
        tunnel: switch.tunnel.name().to_owned(),
        overhead,
        guest: switch.mtu,
        underlay: network.underlay_mtu(),
        uplink: uplink.map(|link| link.mtu),
        places,
    }
}

fn place(kind: MtuPointKind, link: &Link, netns: Option<&str>, needed: u32) -> MtuPoint {
    let (name, netns) = (link.name.clone(), netns.map(str::to_owned));
    MtuPoint { kind, name, netns, mtu: link.mtu, needed }
}

/// The MTU points of one port: the guest, its VIF and its bridge.
fn of_port(port: &Port, guest: u32, netlink: &Netlink, links: &[Link]) -> Vec<MtuPoint> {
    let on_host = |name: &str| links.iter().find(|link| link.name == name);
    // Ports of pools have no device in the file. The plugin that attaches their devices sets the
    // MTU.
    let Some(device) = &port.device else { return Vec::new() };
    match device {
        // A TAP in the guest's namespace is both the guest's interface and the VIF.
        Device::Tap { name, netns: Some(netns) } => {
            let link = Netns::open(netns).and_then(|there| there.netlink()?.link(name));
            link.iter().map(|link| place(MtuPointKind::Guest, link, Some(netns), guest)).collect()
        }
        Device::Tap { name, netns: None } | Device::Vm { name, .. } => on_host(name)
            .map(|link| place(MtuPointKind::Vif, link, None, guest))
            .into_iter()
            .collect(),
        Device::Interface { name } => {
            let Some(link) = on_host(name) else { return Vec::new() };
            let mut places = vec![place(MtuPointKind::Vif, link, None, guest)];
            places.extend(bridge(link, links, guest));
            if let Some((netns, peer)) = other_end(netlink, link) {
                places.push(place(MtuPointKind::Guest, &peer, Some(&netns), guest));
            }
            places
        }
    }
}

fn bridge(link: &Link, links: &[Link], needed: u32) -> Option<MtuPoint> {
    let master: Ifindex = link.master?;
    let bridge = links.iter().find(|link| link.index == master)?;
    Some(place(MtuPointKind::Bridge, bridge, None, needed))
}

/// The peer of a veth device, if it is in a named namespace.
fn other_end(netlink: &Netlink, link: &Link) -> Option<(String, Link)> {
    let peer = link.lower.filter(|_| link.is_veth())?;
    let number = peer.netns?;
    let names = Netns::list().ok()?;
    names.into_iter().take(NAMESPACES).find_map(|name| {
        let netns = Netns::open(&name).ok()?;
        netlink.nsid_of(&netns).ok()?.filter(|found| *found == number)?;
        Some((name, netns.netlink().ok()?.link_by_index(peer.index).ok()?))
    })
}

/// The path MTU to another host, when it is less than the uplink's MTU.
fn path(netlink: &Netlink, remote: IpAddr, needed: u32, uplink: Option<&Link>) -> Option<MtuPoint> {
    let path = netlink.route_get(remote, None).ok()?;
    let narrower = uplink.is_none_or(|uplink| path.mtu < uplink.mtu);
    narrower.then(|| MtuPoint {
        kind: MtuPointKind::Path,
        name: remote.to_string(),
        netns: None,
        mtu: path.mtu,
        needed,
    })
}
