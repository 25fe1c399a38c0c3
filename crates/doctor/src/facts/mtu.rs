//! The five places at which the MTU of a guest's network has to be right: the guest, its interface on the host, a bridge in between,
//! the uplink, and the path to other hosts.

use netdev::{Ifindex, Link, Netlink, Netns, Result};
use network::{Device, HostIndex, LogicalSwitch, Network, Port};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Namespaces in which the far end of a veth pair is looked for.
const NAMESPACES: usize = 256;

/// One of the five.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum PlaceKind {
    /// The guest's own interface.
    Guest,
    /// The interface on the host that a guest is attached by.
    Vif,
    /// A Linux bridge of which that, or the uplink, is a port.
    Bridge,
    /// The uplink.
    Uplink,
    /// What the kernel knows of the path to another host: from routes, or from what routers have said.
    Path,
}

/// A place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Which of the five.
    pub kind: PlaceKind,
    /// The device, or the address of the other host.
    pub name: String,
    /// The namespace of the device; `None` for the host's own.
    pub netns: Option<String>,
    /// Its MTU, in bytes of IP packet.
    pub mtu: u32,
    /// What it has to be at least; of a guest, at most.
    pub needed: u32,
}

impl Place {
    /// It is too narrow, or a guest has it too wide.
    pub fn is_wrong(&self) -> bool {
        match self.kind {
            PlaceKind::Guest => self.mtu != self.needed,
            _ => self.mtu < self.needed,
        }
    }

    /// It is between a guest and the switch.
    pub const fn is_of_a_guest(&self) -> bool {
        matches!(self.kind, PlaceKind::Guest | PlaceKind::Vif | PlaceKind::Bridge)
    }
}

/// The places of one logical switch on a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SwitchMtu {
    /// Its name.
    pub switch: String,
    /// Its tunnel, by name.
    pub tunnel: String,
    /// What the tunnel adds to a guest's packet, in bytes.
    pub overhead: u16,
    /// The MTU that its guests are to have.
    pub guest: u16,
    /// The MTU that the network file says the underlay has.
    pub underlay: u16,
    /// The uplink's, if there is one.
    pub uplink: Option<u32>,
    /// Devices that are there; what `weft run` has yet to make, and what is inside a virtual machine, is not.
    pub places: Vec<Place>,
}

/// Reads the places of all switches with ports on `host`, in the namespace of the calling thread.
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
        places.push(place(PlaceKind::Uplink, link, None, outer));
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

fn place(kind: PlaceKind, link: &Link, netns: Option<&str>, needed: u32) -> Place {
    let (name, netns) = (link.name.clone(), netns.map(str::to_owned));
    Place { kind, name, netns, mtu: link.mtu, needed }
}

/// The guest, its interface and a bridge of a port.
fn of_port(port: &Port, guest: u32, netlink: &Netlink, links: &[Link]) -> Vec<Place> {
    let on_host = |name: &str| links.iter().find(|link| link.name == name);
    match &port.device {
        // A TAP in the guest's namespace is both: what the guest has, and what weft reads.
        Device::Tap { name, netns: Some(netns) } => {
            let link = Netns::open(netns).and_then(|there| there.netlink()?.link(name));
            link.iter().map(|link| place(PlaceKind::Guest, link, Some(netns), guest)).collect()
        }
        Device::Tap { name, netns: None } | Device::Vm { name } => {
            on_host(name).map(|link| place(PlaceKind::Vif, link, None, guest)).into_iter().collect()
        }
        Device::Interface { name } => {
            let Some(link) = on_host(name) else { return Vec::new() };
            let mut places = vec![place(PlaceKind::Vif, link, None, guest)];
            places.extend(bridge(link, links, guest));
            if let Some((netns, peer)) = other_end(netlink, link) {
                places.push(place(PlaceKind::Guest, &peer, Some(&netns), guest));
            }
            places
        }
    }
}

fn bridge(link: &Link, links: &[Link], needed: u32) -> Option<Place> {
    let master: Ifindex = link.master?;
    let bridge = links.iter().find(|link| link.index == master)?;
    Some(place(PlaceKind::Bridge, bridge, None, needed))
}

/// The other end of a veth pair, if it is in a namespace with a name.
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

/// What the kernel knows of the way to another host, where that is less than the uplink's MTU.
fn path(netlink: &Netlink, remote: IpAddr, needed: u32, uplink: Option<&Link>) -> Option<Place> {
    let path = netlink.route_get(remote, None).ok()?;
    let narrower = uplink.is_none_or(|uplink| path.mtu < uplink.mtu);
    narrower.then(|| Place {
        kind: PlaceKind::Path,
        name: remote.to_string(),
        netns: None,
        mtu: path.mtu,
        needed,
    })
}
