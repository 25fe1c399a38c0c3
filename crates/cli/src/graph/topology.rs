//! [`Topology`]: the switches, routers, ports and hosts of a network, by their names. It comes from
//! a network file, or from the program of a daemon that follows OVN.

use datapath::config::{Config, DeviceConfig};
use flow::{DatapathKey, EndpointId, PortNo, TunnelType};
use network::{
    BridgePort, Device, HostIndex, LoadBalancer, LogicalRouter, Network, Port, RouterLink, Segment,
};
use pipeline::{Datapath, DatapathKind, PortLocation, Program};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A network.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Topology {
    /// The hosts.
    pub hosts: Vec<HostNode>,
    /// The logical switches and the bridges.
    pub switches: Vec<SwitchNode>,
    /// The logical routers.
    pub routers: Vec<RouterNode>,
    /// The load balancers.
    pub load_balancers: Vec<BalancerNode>,
    /// The tunnel types.
    pub tunnels: Vec<TunnelNode>,
}

/// A host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostNode {
    /// Its name; its underlay address if the name is unknown.
    pub name: String,
    /// Its uplink; empty if unknown.
    pub uplink: String,
    /// Its underlay addresses.
    pub underlay: Vec<IpAddr>,
}

/// A logical switch or a bridge.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SwitchNode {
    /// Its name.
    pub name: String,
    /// `switch`, `bridge` or `provider bridge`.
    pub kind: String,
    /// The tunnel type between hosts; empty if it has none or each host has its own.
    pub tunnel: String,
    /// Its identifier on the wire, such as `vni 5001`; empty if it has none.
    pub segment: String,
    /// The MTU of its guests in bytes; 0 if unknown.
    pub mtu: u16,
    /// The ports of guests.
    pub ports: Vec<PortNode>,
    /// The patch ports to other switches and bridges.
    #[serde(default)]
    pub patches: Vec<PatchNode>,
}

/// A patch port between two switches.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PatchNode {
    /// The port.
    pub port: String,
    /// The other switch or bridge.
    pub switch: String,
}

/// A port of a guest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortNode {
    /// Its name.
    pub name: String,
    /// Its host; `None` if it is on no host.
    pub host: Option<String>,
    /// Its MAC address; empty if unknown.
    pub mac: String,
    /// Its addresses with prefix length.
    pub addresses: Vec<String>,
    /// Its device; `None` for a port of another host of OVN, and for a free port of a pool.
    pub device: Option<String>,
    /// Its pool.
    pub pool: Option<String>,
}

/// A logical router.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RouterNode {
    /// Its name.
    pub name: String,
    /// The only host that it runs on; `None` for all hosts.
    pub home: Option<String>,
    /// Number of static routes.
    pub routes: usize,
    /// Number of rules of address translation.
    pub nats: usize,
    /// Its ports.
    pub ports: Vec<RouterPortNode>,
}

/// A port of a logical router.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RouterPortNode {
    /// Its name.
    pub name: String,
    /// Its addresses with prefix length.
    pub addresses: Vec<String>,
    /// The switch or router that it is linked to; empty if there is none on this host.
    pub peer: String,
    /// The port of the other router; empty if the peer is a switch.
    pub peer_port: String,
}

/// A load balancer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BalancerNode {
    /// Its name.
    pub name: String,
    /// Protocol and virtual address.
    pub vip: String,
    /// The backends.
    pub backends: Vec<String>,
    /// The switches of its clients.
    pub switches: Vec<String>,
    /// The routers that execute it.
    #[serde(default)]
    pub routers: Vec<String>,
}

/// A tunnel type.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TunnelNode {
    /// Its name.
    pub name: String,
    /// The protocol that carries its packets, such as `UDP port 6081`.
    pub carrier: String,
    /// The hosts that it joins.
    pub hosts: Vec<String>,
}

impl Topology {
    /// The topology of a network file. `device_of` returns the device that is attached to a port of
    /// a pool.
    pub fn of_network(network: &Network, device_of: impl Fn(&str) -> Option<String>) -> Self {
        let host = |index: HostIndex| network[index].name.clone();
        let port = |port: &Port| PortNode {
            name: port.name.clone(),
            host: Some(host(port.host)),
            mac: port.mac.to_string(),
            addresses: texts(&port.addresses),
            device: match &port.device {
                Some(device) => Some(device_text(device)),
                None => device_of(&port.name),
            },
            pool: port.pool.as_deref().map(str::to_owned),
        };
        let switches = network.logical_switches().iter().map(|switch| SwitchNode {
            name: switch.name.clone(),
            kind: "switch".to_owned(),
            tunnel: switch.tunnel.name().to_owned(),
            segment: segment_text(switch.segment),
            mtu: switch.mtu,
            ports: switch.ports.iter().map(port).collect(),
            patches: Vec::new(),
        });
        let bridge_port = |at: HostIndex, port: &BridgePort| PortNode {
            name: port.name.clone(),
            host: Some(host(at)),
            mac: port.mac.map(|mac| mac.to_string()).unwrap_or_default(),
            addresses: texts(&port.addresses),
            device: Some(device_text(&port.device)),
            pool: None,
        };
        let bridges = network.bridges().iter().map(|bridge| SwitchNode {
            name: bridge.name.clone(),
            kind: "bridge".to_owned(),
            mtu: bridge.mtu,
            ports: bridge.ports.iter().map(|port| bridge_port(bridge.host, port)).collect(),
            ..SwitchNode::default()
        });
        Self {
            hosts: network.hosts().iter().map(host_node).collect(),
            switches: switches.chain(bridges).collect(),
            routers: routers_of(network),
            load_balancers: network
                .load_balancers()
                .iter()
                .map(|balancer| balancer_node(network, balancer))
                .collect(),
            tunnels: tunnels_of(network),
        }
    }

    /// The part of OVN's network that a host knows. `name_of` returns the name of the host with an
    /// underlay address.
    pub fn of_program(
        program: &Program,
        config: &Config,
        name_of: impl Fn(IpAddr) -> Option<String>,
    ) -> Self {
        let remotes: BTreeMap<EndpointId, String> = config
            .underlay
            .endpoints
            .iter()
            .map(|end| (end.id, name_of(end.remote).unwrap_or_else(|| end.remote.to_string())))
            .collect();
        let devices: BTreeMap<PortNo, &DeviceConfig> =
            config.ports.iter().map(|port| (port.port, &port.device)).collect();
        let facts = ProgramFacts { program, config, remotes: &remotes, devices: &devices };
        let mut datapaths: Vec<_> = program.datapaths().collect();
        datapaths.sort_unstable_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        let is_router = |datapath: &Datapath| datapath.kind == DatapathKind::Router;
        let (routers, switches): (Vec<_>, Vec<_>) =
            datapaths.into_iter().partition(|(_, datapath)| is_router(datapath));
        Self {
            hosts: facts.hosts(),
            switches: switches.iter().map(|(_, datapath)| facts.switch(datapath)).collect(),
            routers: routers.iter().map(|(_, datapath)| facts.router(datapath)).collect(),
            load_balancers: Vec::new(),
            tunnels: facts.tunnels(),
        }
    }

    /// The number of ports of guests.
    pub fn port_count(&self) -> usize {
        self.switches.iter().map(|switch| switch.ports.len()).sum()
    }
}

/// The sources of the topology on a host of OVN.
struct ProgramFacts<'a> {
    program: &'a Program,
    config: &'a Config,
    /// The names of the hosts at the end points.
    remotes: &'a BTreeMap<EndpointId, String>,
    devices: &'a BTreeMap<PortNo, &'a DeviceConfig>,
}

impl ProgramFacts<'_> {
    fn hosts(&self) -> Vec<HostNode> {
        let local: Vec<_> = self.config.underlay.endpoints.iter().map(|end| end.local).collect();
        let own = HostNode {
            name: self.config.host.clone(),
            uplink: self.config.uplink.clone(),
            underlay: without_duplicates(local),
        };
        let mut others: BTreeMap<&str, Vec<IpAddr>> = BTreeMap::new();
        for end in &self.config.underlay.endpoints {
            let Some(name) = self.remotes.get(&end.id) else { continue };
            others.entry(name).or_default().push(end.remote);
        }
        let others = others.into_iter().map(|(name, underlay)| HostNode {
            name: name.to_owned(),
            uplink: String::new(),
            underlay: without_duplicates(underlay),
        });
        std::iter::once(own).chain(others).collect()
    }

    fn tunnels(&self) -> Vec<TunnelNode> {
        let mut tunnels: BTreeMap<TunnelType, Vec<String>> = BTreeMap::new();
        for end in &self.config.underlay.endpoints {
            let hosts = tunnels.entry(end.spec.tunnel).or_default();
            hosts.extend(self.remotes.get(&end.id).cloned());
        }
        let node = |(tunnel, hosts): (TunnelType, Vec<String>)| {
            let hosts = std::iter::once(self.config.host.clone()).chain(hosts).collect();
            let tunnels = &self.config.underlay.tunnels;
            let spec = tunnels.iter().map(|it| it.spec).find(|spec| spec.tunnel == tunnel);
            let port = spec.map_or(0, |spec| spec.port);
            TunnelNode {
                name: tunnel.name().to_owned(),
                carrier: carrier_text(tunnel, port),
                hosts: without_duplicates(hosts),
            }
        };
        tunnels.into_iter().map(node).collect()
    }

    fn switch(&self, datapath: &Datapath) -> SwitchNode {
        let mut ports: Vec<_> = datapath.ports.values().collect();
        ports.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let kind = match datapath.kind {
            DatapathKind::Bridge => "bridge",
            DatapathKind::Provider => "provider bridge",
            DatapathKind::Switch | DatapathKind::Router => "switch",
        };
        let mut node = SwitchNode {
            name: datapath.name.clone(),
            kind: kind.to_owned(),
            ..SwitchNode::default()
        };
        let device = |number: &PortNo| self.devices.get(number).map(ToString::to_string);
        for port in ports {
            let (host, device) = match port.location {
                PortLocation::Local(number) => (Some(self.config.host.clone()), device(&number)),
                PortLocation::Child { parent, vlan } => (
                    Some(self.config.host.clone()),
                    device(&parent).map(|device| format!("{device}, VLAN {}", vlan.value())),
                ),
                PortLocation::Remote { endpoint, .. } => {
                    (self.remotes.get(&endpoint).cloned(), None)
                }
                PortLocation::Unbound | PortLocation::Tagged { .. } => (None, None),
                PortLocation::Redirect(_) => continue,
                PortLocation::Patch { datapath, .. } => {
                    node.patches.extend(self.patch(&port.name, datapath));
                    continue;
                }
            };
            let name = port.name.clone();
            node.ports.push(PortNode { name, host, device, ..PortNode::default() });
        }
        node
    }

    /// The patch node of a port that leads to another switch; `None` for a port that leads to a
    /// router, whose own ports show the link.
    fn patch(&self, port: &str, peer: DatapathKey) -> Option<PatchNode> {
        let peer = self.program.datapath(peer)?;
        (peer.kind != DatapathKind::Router)
            .then(|| PatchNode { port: port.to_owned(), switch: peer.name.clone() })
    }

    fn router(&self, datapath: &Datapath) -> RouterNode {
        let mut ports: Vec<_> = datapath.ports.values().collect();
        ports.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let node = |port: &pipeline::LogicalPort| {
            let PortLocation::Patch { datapath, port: peer } = port.location else { return None };
            let other = self.program.datapath(datapath)?;
            let peer_port = match other.kind {
                DatapathKind::Router => other.ports.get(&peer).map(|port| port.name.clone()),
                _ => None,
            };
            Some(RouterPortNode {
                name: port.name.clone(),
                addresses: Vec::new(),
                peer: other.name.clone(),
                peer_port: peer_port.unwrap_or_default(),
            })
        };
        let ports = ports.into_iter().filter_map(node).collect();
        RouterNode { name: datapath.name.clone(), ports, ..RouterNode::default() }
    }
}

fn host_node(host: &network::Host) -> HostNode {
    let v4 = host.underlay4.map(IpAddr::V4);
    let v6 = host.underlay6.map(IpAddr::V6);
    HostNode {
        name: host.name.clone(),
        uplink: host.uplink.clone(),
        underlay: v4.into_iter().chain(v6).collect(),
    }
}

fn routers_of(network: &Network) -> Vec<RouterNode> {
    let routers = network.logical_routers();
    let port_node = |port: &network::RouterPort| {
        let (peer, peer_port) = match port.link {
            RouterLink::Switch { switch, .. } => (network[switch].name.clone(), String::new()),
            RouterLink::Router { router, port } => {
                let other = routers.get(router.value());
                let peer_port = other.and_then(|other| other.port(port));
                (
                    other.map(|other| other.name.clone()).unwrap_or_default(),
                    peer_port.map(|port| port.name.clone()).unwrap_or_default(),
                )
            }
        };
        RouterPortNode {
            name: port.name.clone(),
            addresses: texts(&port.addresses),
            peer,
            peer_port,
        }
    };
    let node = |(index, router): (usize, &LogicalRouter)| RouterNode {
        name: router.name.clone(),
        home: router.home.map(|home| network[home].name.clone()),
        routes: router.routes.len(),
        nats: network.nats().iter().filter(|nat| nat.router.value() == index).count(),
        ports: router.ports.iter().map(port_node).collect(),
    };
    routers.iter().enumerate().map(node).collect()
}

fn balancer_node(network: &Network, balancer: &LoadBalancer) -> BalancerNode {
    BalancerNode {
        name: balancer.name.clone(),
        vip: format!("{} {}", balancer.protocol.name(), balancer.vip),
        backends: texts(&balancer.backends),
        switches: balancer.switches.iter().map(|&it| network[it].name.clone()).collect(),
        routers: balancer.routers.iter().map(|&it| network[it].name.clone()).collect(),
    }
}

/// The tunnel types, each with its hosts. Switches and routers that are linked form a connected
/// part of the network. A type joins the hosts with guests or routers in a part that contains a
/// switch of this type.
fn tunnels_of(network: &Network) -> Vec<TunnelNode> {
    let (switches, routers) = (network.logical_switches(), network.logical_routers());
    // Union-find over the switches, followed by the routers. Each entry is the number of a member
    // of the same part.
    let mut parts: Vec<usize> = (0..switches.len() + routers.len()).collect();
    for (index, router) in routers.iter().enumerate() {
        for port in &router.ports {
            let peer = match port.link {
                RouterLink::Switch { switch, .. } => switch.value(),
                RouterLink::Router { router, .. } => switches.len() + router.value(),
            };
            let (own, other) = (part(&parts, switches.len() + index), part(&parts, peer));
            parts[own.max(other)] = own.min(other);
        }
    }
    let mut hosts: BTreeMap<usize, Vec<HostIndex>> = BTreeMap::new();
    for (index, switch) in switches.iter().enumerate() {
        let here = hosts.entry(part(&parts, index)).or_default();
        here.extend(switch.ports.iter().map(|port| port.host));
    }
    for (index, router) in routers.iter().enumerate() {
        hosts.entry(part(&parts, switches.len() + index)).or_default().extend(router.home);
    }
    let mut tunnels: BTreeMap<TunnelType, Vec<HostIndex>> = BTreeMap::new();
    for (index, switch) in switches.iter().enumerate() {
        let here = hosts.remove(&part(&parts, index)).map(without_duplicates);
        let here = here.unwrap_or_default();
        if here.len() > 1 {
            tunnels.entry(switch.tunnel).or_default().extend(&here);
        }
        hosts.insert(part(&parts, index), here);
    }
    let node = |(tunnel, hosts): (TunnelType, Vec<HostIndex>)| {
        let hosts = without_duplicates(hosts);
        TunnelNode {
            name: tunnel.name().to_owned(),
            carrier: carrier_text(tunnel, network.options().of(tunnel).port),
            hosts: hosts.into_iter().map(|host| network[host].name.clone()).collect(),
        }
    };
    tunnels.into_iter().map(node).collect()
}

/// The representative of the part of a switch or router: its lowest member.
fn part(parts: &[usize], mut member: usize) -> usize {
    // Each member points to a lower one. The representative points to itself.
    while parts[member] != member {
        member = parts[member];
    }
    member
}

fn without_duplicates<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn carrier_text(tunnel: TunnelType, port: u16) -> String {
    use flow::Carrier;
    match tunnel.carrier() {
        Carrier::Udp => format!("UDP port {port}"),
        Carrier::TcpLike => format!("TCP-like, port {port}"),
        Carrier::Gre => "IP protocol 47".to_owned(),
        Carrier::Tags => "tags on the uplinks".to_owned(),
    }
}

fn segment_text(segment: Segment) -> String {
    match segment {
        Segment::Vni(vni) => format!("vni {vni}"),
        Segment::Unkeyed => String::new(),
        Segment::Vlan(vlan) => format!("VLAN {}", vlan.value()),
        Segment::QinQ { outer, inner } => format!("VLAN {}, {}", outer.value(), inner.value()),
    }
}

/// A device in the format of `weft ports`.
fn device_text(device: &Device) -> String {
    match device {
        Device::Tap { name, netns: Some(netns) } => format!("tap {name} in {netns}"),
        Device::Tap { name, netns: None } => format!("tap {name}"),
        Device::Vm { name, .. } => format!("vm {name}"),
        Device::Interface { name } => format!("interface {name}"),
    }
}
