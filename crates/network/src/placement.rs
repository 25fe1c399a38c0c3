//! [`Placement`]: where logical ports are, as seen from one host. It is the physical side of a network, apart from the logical
//! flows, which are the same everywhere.

use crate::logical::{Keys, LogicalPort};
use crate::{HostIndex, LogicalSwitch, Network, Port, RouterLink};
use flow::{DatapathKey, EndpointId, PortKey, PortNo, TagLink, TunnelType};
use pipeline::{PortLocation, PortRole, TunnelInport};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The other end of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum FarEnd {
    /// A host.
    Host(HostIndex),
    /// All hosts that have joined a multicast group of the underlay.
    Group(IpAddr),
}

/// Where logical ports are, and what comes in by which port of the datapath.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// The logical switches and routers to which a packet of a guest of this host can get; the program needs no others.
    pub datapaths: BTreeSet<DatapathKey>,
    /// Every port of these; one that is not here is not in the program.
    pub places: BTreeMap<(DatapathKey, PortKey), PortLocation>,
    /// The ports of the datapath.
    pub entries: BTreeMap<PortNo, PortRole>,
    /// The end points that stand for all other hosts of a switch: multicast groups of the underlay.
    pub groups: BTreeMap<DatapathKey, EndpointId>,
    /// Where packets of switches come from whose tunnels name no logical ports, where that is learnt.
    pub senders: BTreeMap<DatapathKey, TunnelInport>,
    /// The switches that tunnel keys stand for.
    pub tunnels: BTreeMap<(TunnelType, u64), DatapathKey>,
    /// The links of the uplink. Their keys are in `tunnels`, like those of all tunnels.
    pub links: BTreeSet<TagLink>,
}

impl Placement {
    /// The port of the datapath by which tagged frames leave.
    pub const UPLINK: PortNo = PortNo(0);

    /// The port of the datapath by which packets come in out of tunnels of a type; far from those of guests.
    pub const fn tunnel_port(tunnel: TunnelType) -> PortNo {
        PortNo(0xffff_ff00 + tunnel as u32)
    }

    /// As seen from `host`. `number` gives the port of the datapath for each of its guests, not 0. `end_point` gives the end
    /// point of a tunnel type at another host; a port of a host for which there is none is unbound. It is also asked for the end points
    /// from which packets come: every host whose guests a router leads to a switch here sends in that switch's tunnel; and for
    /// that of a group when there are others to hear it or to send to it.
    pub fn of_host(
        network: &Network,
        host: HostIndex,
        mut number: impl FnMut(&LogicalSwitch, &Port) -> PortNo,
        mut end_point: impl FnMut(TunnelType, FarEnd) -> Option<EndpointId>,
    ) -> Self {
        let reach = network.reach();
        let switches = network.logical_switches();
        let is_home = |switch: &LogicalSwitch| switch.ports.iter().any(|port| port.host == host);
        let parts: BTreeSet<usize> = (0..switches.len())
            .filter(|&index| is_home(&switches[index]))
            .map(|index| reach.part_of_switch(index))
            .collect();
        // The other hosts with guests in each part.
        let mut others: BTreeMap<usize, BTreeSet<HostIndex>> = BTreeMap::new();
        for (index, switch) in switches.iter().enumerate() {
            let hosts = others.entry(reach.part_of_switch(index)).or_default();
            hosts.extend(switch.ports.iter().map(|port| port.host).filter(|&other| other != host));
        }
        for (index, switch) in switches.iter().enumerate() {
            if is_home(switch) && switch.tunnel.has_endpoints() {
                for &other in others.get(&reach.part_of_switch(index)).into_iter().flatten() {
                    end_point(switch.tunnel, FarEnd::Host(other));
                }
            }
        }
        let mut builder = Builder::new(network);
        for (index, switch) in switches.iter().enumerate() {
            if parts.contains(&reach.part_of_switch(index)) {
                builder.add_wire(index, switch);
                builder.add_guests(index, switch, |port| {
                    if port.host == host {
                        return Placed::Here(number(switch, port));
                    }
                    let end_point = || end_point(switch.tunnel, FarEnd::Host(port.host));
                    Placed::Elsewhere(remote_place(network, switch, end_point))
                });
                // Hosts without guests of the switch may send to it over a router.
                let others = others.get(&reach.part_of_switch(index));
                let group = switch.group.filter(|_| others.is_some_and(|hosts| !hosts.is_empty()));
                let end = group.and_then(|group| end_point(switch.tunnel, FarEnd::Group(group)));
                builder.add_group(index, end);
                builder.add_senders(index, switch, |other| {
                    (other != host).then(|| end_point(switch.tunnel, FarEnd::Host(other))).flatten()
                });
            }
        }
        for index in 0..network.logical_routers().len() {
            if parts.contains(&reach.part_of_router(index)) {
                builder.add_router(index);
            }
        }
        builder.placement
    }

    /// The longest frame that leaves by the uplink with tags, in bytes of what follows its Ethernet header; 0 when none does.
    pub fn tagged_mtu_bytes(&self, network: &Network) -> u16 {
        let here = |switch: &&LogicalSwitch| {
            link_of(network, switch).is_some_and(|link| self.links.contains(&link))
        };
        let switches = network.logical_switches().iter().filter(here);
        let mtus = switches.map(|s| s.mtu.saturating_add(network.overhead_bytes(s.tunnel)));
        mtus.max().unwrap_or(0)
    }

    /// As if every guest were on one host: for a trace of the whole network. The guests' ports are numbered from 1 in the order
    /// of the file.
    pub fn of_all(network: &Network) -> Self {
        let mut builder = Builder::new(network);
        let mut number = 0;
        for (index, switch) in network.logical_switches().iter().enumerate() {
            builder.add_guests(index, switch, |_| {
                number += 1;
                Placed::Here(PortNo(number))
            });
        }
        for index in 0..network.logical_routers().len() {
            builder.add_router(index);
        }
        builder.placement
    }
}

/// Where a port on another host is.
fn remote_place(
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

/// The link of a switch; `None` when it has tunnels.
fn link_of(network: &Network, switch: &LogicalSwitch) -> Option<TagLink> {
    switch.segment.link(network.options().of(switch.tunnel).service_tpid)
}

/// Where a guest is.
enum Placed {
    /// On this host, at a port of the datapath.
    Here(PortNo),
    /// On another.
    Elsewhere(PortLocation),
}

struct Builder<'n> {
    network: &'n Network,
    keys: Keys,
    placement: Placement,
}

impl<'n> Builder<'n> {
    fn new(network: &'n Network) -> Self {
        let keys = Keys::new(network);
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
        mut place: impl FnMut(&Port) -> Placed,
    ) {
        let datapath = self.key(index);
        self.placement.datapaths.insert(datapath);
        for port in &switch.ports {
            let place = match place(port) {
                Placed::Here(number) => {
                    let entry = PortRole::Vif { datapath, port: port.key };
                    self.placement.entries.insert(number, entry);
                    PortLocation::Local(number)
                }
                Placed::Elsewhere(place) => place,
            };
            self.placement.places.insert((datapath, port.key), place);
        }
    }

    fn add_group(&mut self, index: usize, end: Option<EndpointId>) {
        let datapath = self.key(index);
        self.placement.groups.extend(end.map(|end| (datapath, end)));
    }

    /// Gives the other hosts, or the wire, from which a switch learns the ports that stand for them. Where the tunnel names logical
    /// ports there are none.
    fn add_senders(
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
            self.placement.senders.insert(datapath, TunnelInport::Shared(LogicalPort::WIRE));
            return;
        }
        let mut hosts = BTreeMap::new();
        for other in switch.learning_hosts() {
            let address = self.network[other].underlay(self.network.underlay_family());
            let (Some(port), Some(address)) = (LogicalPort::of_host(other), address) else {
                continue;
            };
            let Some(endpoint) = end_point(other) else { continue };
            let place = PortLocation::Remote { endpoint, logical_ports: false };
            self.placement.places.insert((datapath, port), place);
            hosts.insert(address, port);
        }
        if !hosts.is_empty() {
            self.placement.senders.insert(datapath, TunnelInport::ByHost(hosts));
        }
    }

    /// Says how the switch's frames are known when they come from other hosts.
    fn add_wire(&mut self, index: usize, switch: &LogicalSwitch) {
        let datapath = self.key(index);
        let tunnel = switch.tunnel;
        self.placement.tunnels.insert((tunnel, switch.datapath_key.0.into()), datapath);
        self.placement.entries.insert(Placement::tunnel_port(tunnel), PortRole::Tunnel(tunnel));
        if let Some(link) = link_of(self.network, switch) {
            self.placement.links.insert(link);
            let wire = PortLocation::Tagged { uplink: Placement::UPLINK, link };
            self.placement.places.insert((datapath, LogicalPort::WIRE), wire);
        }
    }

    /// A router is on every host: so are its ports, and those of switches that lead to it.
    fn add_router(&mut self, index: usize) {
        let key = self.keys.router(crate::RouterIndex(index));
        self.placement.datapaths.insert(key);
        for port in &self.network.logical_routers()[index].ports {
            let (datapath, peer) = match port.link {
                RouterLink::Switch { switch, key: peer } => {
                    let datapath = self.keys.switch(switch);
                    let back = PortLocation::Patch { datapath: key, port: port.key };
                    self.placement.places.insert((datapath, peer), back);
                    (datapath, peer)
                }
                RouterLink::Router { router, port } => (self.keys.router(router), port),
            };
            let place = PortLocation::Patch { datapath, port: peer };
            self.placement.places.insert((key, port.key), place);
        }
    }
}
