//! [`Placement`]: the locations of logical ports, as seen from one host. It is the physical part of
//! a network; the logical flows are the same on every host.

use crate::health;
use crate::logical::{DatapathKeys, LogicalPort};
use crate::{HostIndex, LogicalRouter, LogicalSwitch, Network, Port, RouterLink};
use flow::{DatapathKey, EndpointId, PortKey, PortNo, TagLink, TunnelType};
use pipeline::{PortLocation, PortRole, TunnelInport};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The remote end of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum RemoteEnd {
    /// A host.
    Host(HostIndex),
    /// An underlay multicast group, which all its hosts receive.
    Group(IpAddr),
}

/// The locations of logical ports, and the logical port of packets from each datapath port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// The logical datapaths that packets of this host's guests can reach; the program needs no
    /// others.
    pub datapaths: BTreeSet<DatapathKey>,
    /// The locations of their ports; the program has no other ports.
    pub locations: BTreeMap<(DatapathKey, PortKey), PortLocation>,
    /// The roles of the datapath ports.
    pub entries: BTreeMap<PortNo, PortRole>,
    /// The underlay multicast groups of switches, which reach all their other hosts.
    pub groups: BTreeMap<DatapathKey, EndpointId>,
    /// How to find the ingress port of packets from tunnels without logical ports, for switches
    /// that learn.
    pub tunnel_inports: BTreeMap<DatapathKey, TunnelInport>,
    /// The switch of each tunnel key.
    pub tunnels: BTreeMap<(TunnelType, u64), DatapathKey>,
    /// The VLAN tags in use on the uplink. Their keys are in `tunnels` too.
    pub links: BTreeSet<TagLink>,
}

impl Placement {
    /// The datapath port for tagged frames on the uplink.
    pub const UPLINK: PortNo = PortNo(0);

    /// The datapath port for packets from tunnels of a type; the number is beyond those of guests.
    pub const fn tunnel_port(tunnel: TunnelType) -> PortNo {
        PortNo(0xffff_ff00 + tunnel as u32)
    }

    /// The placement as seen from `host`. `number` returns the datapath port of each of its guests,
    /// not 0; `None` leaves the port unbound. `end_point` returns the end point of a tunnel type at
    /// another host; ports of a host without one are unbound. It is also called for end points that
    /// send to this host: every host whose guests reach a switch of this host through a router
    /// sends in that switch's tunnel. For a multicast group it is called when other hosts use it.
    pub fn of_host<N: Into<Option<PortNo>>>(
        network: &Network,
        host: HostIndex,
        mut number: impl FnMut(&LogicalSwitch, &Port) -> N,
        mut end_point: impl FnMut(TunnelType, RemoteEnd) -> Option<EndpointId>,
    ) -> Self {
        let connectivity = network.connectivity();
        let switches = network.logical_switches();
        let on_switches = hosts_on_switches(network);
        let is_home = |index: usize| on_switches[index].contains(&host);
        let parts: BTreeSet<usize> = (0..switches.len())
            .filter(|&index| is_home(index))
            .map(|index| connectivity.part_of_switch(index))
            .collect();
        // The other hosts with guests or routers in each connected part of the network.
        let mut others: BTreeMap<usize, BTreeSet<HostIndex>> = BTreeMap::new();
        for (index, on_switch) in on_switches.iter().enumerate() {
            let hosts = others.entry(connectivity.part_of_switch(index)).or_default();
            hosts.extend(on_switch.iter().filter(|&&other| other != host));
        }
        for (index, switch) in switches.iter().enumerate() {
            if is_home(index) && switch.tunnel.has_endpoints() {
                for &other in others.get(&connectivity.part_of_switch(index)).into_iter().flatten()
                {
                    end_point(switch.tunnel, RemoteEnd::Host(other));
                }
            }
        }
        let mut builder = PlacementBuilder::new(network);
        for (index, switch) in switches.iter().enumerate() {
            if parts.contains(&connectivity.part_of_switch(index)) {
                builder.add_wire(index, switch);
                builder.add_guests(index, switch, |port| {
                    if port.host == host {
                        return match number(switch, port).into() {
                            Some(number) => GuestHost::Here(number),
                            None => GuestHost::Elsewhere(PortLocation::Unbound),
                        };
                    }
                    let end_point = || end_point(switch.tunnel, RemoteEnd::Host(port.host));
                    GuestHost::Elsewhere(remote_location(network, switch, end_point))
                });
                // Hosts without guests of the switch may send to it through a router.
                let others = others.get(&connectivity.part_of_switch(index));
                let group = switch.group.filter(|_| others.is_some_and(|hosts| !hosts.is_empty()));
                let end = group.and_then(|group| end_point(switch.tunnel, RemoteEnd::Group(group)));
                builder.add_group(index, end);
                builder.add_tunnel_inports(index, switch, |other| {
                    (other != host)
                        .then(|| end_point(switch.tunnel, RemoteEnd::Host(other)))
                        .flatten()
                });
            }
        }
        let monitored = health::monitored(network).into_keys();
        for index in monitored.filter(|index| parts.contains(&connectivity.part_of_switch(*index)))
        {
            let switch = &switches[index];
            builder.add_monitors(index, host, |other| {
                let end_point = || end_point(switch.tunnel, RemoteEnd::Host(other));
                remote_location(network, switch, end_point)
            });
        }
        for (index, router) in network.logical_routers().iter().enumerate() {
            if !parts.contains(&connectivity.part_of_router(index)) {
                continue;
            }
            match router.home.filter(|&home| home != host) {
                None => builder.add_router(index),
                Some(home) => builder.add_remote_router(router, |switch| {
                    let end_point = || end_point(switch.tunnel, RemoteEnd::Host(home));
                    remote_location(network, switch, end_point)
                }),
            }
        }
        builder.placement
    }

    /// The longest tagged packet on the uplink, in bytes after the Ethernet header; 0 without tags.
    pub fn tagged_mtu_bytes(&self, network: &Network) -> u16 {
        let here = |switch: &&LogicalSwitch| {
            link_of(network, switch).is_some_and(|link| self.links.contains(&link))
        };
        let switches = network.logical_switches().iter().filter(here);
        let mtus = switches.map(|s| s.mtu.saturating_add(network.overhead_bytes(s.tunnel)));
        mtus.max().unwrap_or(0)
    }

    /// The placement with all guests on one host, for a trace of the whole network. The datapath
    /// ports of guests count from 1 in the order of the file.
    pub fn of_all(network: &Network) -> Self {
        let mut builder = PlacementBuilder::new(network);
        let mut number = 0;
        for (index, switch) in network.logical_switches().iter().enumerate() {
            builder.add_guests(index, switch, |_| {
                number += 1;
                GuestHost::Here(PortNo(number))
            });
        }
        for index in 0..network.logical_routers().len() {
            builder.add_router(index);
        }
        builder.placement
    }
}

/// For each switch, the hosts of its guests and the home hosts of routers with a port in it.
pub(crate) fn hosts_on_switches(network: &Network) -> Vec<BTreeSet<HostIndex>> {
    let switches = network.logical_switches().iter();
    let mut on_switches: Vec<BTreeSet<HostIndex>> =
        switches.map(|switch| switch.ports.iter().map(|port| port.host).collect()).collect();
    for router in network.logical_routers() {
        let Some(home) = router.home else { continue };
        for port in &router.ports {
            if let RouterLink::Switch { switch, .. } = port.link {
                on_switches[switch.value()].insert(home);
            }
        }
    }
    on_switches
}

/// Where a port on another host is.
fn remote_location(
    network: &Network,
    switch: &LogicalSwitch,
    end_point: impl FnOnce() -> Option<EndpointId>,
) -> PortLocation {
    match link_of(network, switch) {
        Some(link) => PortLocation::Tagged { uplink: Placement::UPLINK, link },
        None => match end_point() {
            Some(endpoint) => {
                let logical_ports = network.options().of(switch.tunnel).logical_ports;
                PortLocation::Remote { endpoint, logical_ports }
            }
            None => PortLocation::Unbound,
        },
    }
}

/// The VLAN tags of a switch; `None` when it uses tunnels.
fn link_of(network: &Network, switch: &LogicalSwitch) -> Option<TagLink> {
    switch.segment.link(network.options().of(switch.tunnel).service_tpid)
}

/// Where a guest is.
enum GuestHost {
    /// On this host, at a datapath port.
    Here(PortNo),
    /// On another host.
    Elsewhere(PortLocation),
}

struct PlacementBuilder<'n> {
    network: &'n Network,
    keys: DatapathKeys,
    placement: Placement,
}

impl<'n> PlacementBuilder<'n> {
    fn new(network: &'n Network) -> Self {
        let keys = DatapathKeys::new(network);
        Self { network, keys, placement: Placement::default() }
    }

    fn key(&self, switch: usize) -> DatapathKey {
        self.keys.switch(crate::SwitchIndex(switch))
    }

    /// Places the guests of a switch.
    fn add_guests(
        &mut self,
        index: usize,
        switch: &LogicalSwitch,
        mut host_of: impl FnMut(&Port) -> GuestHost,
    ) {
        let datapath = self.key(index);
        self.placement.datapaths.insert(datapath);
        for port in &switch.ports {
            let location = match host_of(port) {
                GuestHost::Here(number) => {
                    let entry = PortRole::Vif { datapath, port: port.key };
                    self.placement.entries.insert(number, entry);
                    PortLocation::Local(number)
                }
                GuestHost::Elsewhere(location) => location,
            };
            self.placement.locations.insert((datapath, port.key), location);
        }
    }

    fn add_group(&mut self, index: usize, end: Option<EndpointId>) {
        let datapath = self.key(index);
        self.placement.groups.extend(end.map(|end| (datapath, end)));
    }

    /// Adds the ports that stand for other hosts or the uplink, from which a switch learns. Tunnels
    /// with logical ports need none.
    fn add_tunnel_inports(
        &mut self,
        index: usize,
        switch: &LogicalSwitch,
        mut end_point: impl FnMut(HostIndex) -> Option<EndpointId>,
    ) {
        let datapath = self.key(index);
        if !switch.learns() || self.network.options().of(switch.tunnel).logical_ports {
            return;
        }
        if !switch.tunnel.has_endpoints() {
            self.placement.tunnel_inports.insert(datapath, TunnelInport::Shared(LogicalPort::WIRE));
            return;
        }
        let mut hosts = BTreeMap::new();
        for other in switch.learning_hosts() {
            let address = self.network[other].underlay(self.network.underlay_family());
            let (Some(port), Some(address)) = (LogicalPort::of_host(other), address) else {
                continue;
            };
            let Some(endpoint) = end_point(other) else { continue };
            let location = PortLocation::Remote { endpoint, logical_ports: false };
            self.placement.locations.insert((datapath, port), location);
            hosts.insert(address, port);
        }
        if !hosts.is_empty() {
            self.placement.tunnel_inports.insert(datapath, TunnelInport::ByHost(hosts));
        }
    }

    /// Adds the ports from which hosts check the backends in a switch. The program of another host
    /// finds its own port by the header fields, so no tunnel carries logical ports to it.
    fn add_monitors(
        &mut self,
        index: usize,
        own: HostIndex,
        mut location: impl FnMut(HostIndex) -> PortLocation,
    ) {
        let datapath = self.key(index);
        for host in health::hosts_of(self.network, index) {
            let Some(port) = health::port_key(host) else { continue };
            let place = if host == own {
                let entry = health::entry(index);
                self.placement.entries.insert(entry, PortRole::Vif { datapath, port });
                PortLocation::Local(entry)
            } else {
                match location(host) {
                    PortLocation::Remote { endpoint, .. } => {
                        PortLocation::Remote { endpoint, logical_ports: false }
                    }
                    other => other,
                }
            };
            self.placement.locations.insert((datapath, port), place);
        }
    }

    /// Adds the tunnel key or VLAN tags by which frames of the switch from other hosts are
    /// recognised.
    fn add_wire(&mut self, index: usize, switch: &LogicalSwitch) {
        let datapath = self.key(index);
        let tunnel = switch.tunnel;
        self.placement.tunnels.insert((tunnel, switch.datapath_key.0.into()), datapath);
        self.placement.entries.insert(Placement::tunnel_port(tunnel), PortRole::Tunnel(tunnel));
        if let Some(link) = link_of(self.network, switch) {
            self.placement.links.insert(link);
            let wire = PortLocation::Tagged { uplink: Placement::UPLINK, link };
            self.placement.locations.insert((datapath, LogicalPort::WIRE), wire);
        }
    }

    /// Places the switch ports that lead to a router on another host.
    fn add_remote_router(
        &mut self,
        router: &LogicalRouter,
        mut location: impl FnMut(&LogicalSwitch) -> PortLocation,
    ) {
        for port in &router.ports {
            if let RouterLink::Switch { switch, key } = port.link {
                let place = (self.keys.switch(switch), key);
                self.placement.locations.insert(place, location(&self.network[switch]));
            }
        }
    }

    /// Places a router on this host with its ports and the switch ports that lead to it.
    fn add_router(&mut self, index: usize) {
        let key = self.keys.router(crate::RouterIndex(index));
        self.placement.datapaths.insert(key);
        for port in &self.network.logical_routers()[index].ports {
            let (datapath, peer) = match port.link {
                RouterLink::Switch { switch, key: peer } => {
                    let datapath = self.keys.switch(switch);
                    let back = PortLocation::Patch { datapath: key, port: port.key };
                    self.placement.locations.insert((datapath, peer), back);
                    (datapath, peer)
                }
                RouterLink::Router { router, port } => (self.keys.router(router), port),
            };
            let location = PortLocation::Patch { datapath, port: peer };
            self.placement.locations.insert((key, port.key), location);
        }
    }
}
