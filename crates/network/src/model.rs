//! The checked model of a network file.

mod bridge;
mod policy;
mod router;
mod services;

pub use bridge::{Bridge, BridgePort};
pub use policy::{Acl, AclAction, AclDirection, AclScope, PortSecurity, Trust};
pub(crate) use router::port_in_switch;
pub use router::{ForceSnat, LogicalRouter, Route, RouterIndex, RouterLink, RouterPort};
pub use services::{HealthChecks, HealthTarget, LoadBalancer, Nat, NatKind};

use crate::connectivity::Connectivity;
use crate::logical::DatapathKeys;
use crate::{IpNet, Prefix, TunnelOptions, UnderlayFamily, overhead_bytes};
use flow::{DatapathKey, PortKey, TagLink, TunnelType};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Index;
use std::sync::Arc;
use wire::{EtherType, MacAddr, VlanId};

/// A network, the same on every host. Only [`Network::load`] and [`Network::parse`] create it,
/// after checking it, and it never changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Network {
    pub(crate) hosts: Vec<Host>,
    pub(crate) logical_switches: Vec<LogicalSwitch>,
    pub(crate) logical_routers: Vec<LogicalRouter>,
    pub(crate) bridges: Vec<Bridge>,
    pub(crate) address_sets: BTreeMap<String, Vec<Prefix>>,
    pub(crate) port_groups: BTreeMap<String, Vec<String>>,
    pub(crate) acls: Vec<Acl>,
    pub(crate) load_balancers: Vec<LoadBalancer>,
    pub(crate) nats: Vec<Nat>,
    pub(crate) options: TunnelOptions,
    pub(crate) underlay_family: UnderlayFamily,
    pub(crate) underlay_mtu: u16,
    pub(crate) least_path_mtu: u16,
    pub(crate) path_probes: bool,
    pub(crate) checks_reverse_path: bool,
    pub(crate) punt_limit: Option<u32>,
    pub(crate) upcall_cpu_percent: Option<u32>,
    pub(crate) connections: conntrack::Config,
}

impl Network {
    /// The hosts in the order of the file; at least one.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host named `name`.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// The logical switches in the order of the file.
    pub fn logical_switches(&self) -> &[LogicalSwitch] {
        &self.logical_switches
    }

    /// The logical switch named `name`.
    pub fn logical_switch(&self, name: &str) -> Option<&LogicalSwitch> {
        self.logical_switches.iter().find(|switch| switch.name == name)
    }

    /// The logical routers in the order of the file.
    pub fn logical_routers(&self) -> &[LogicalRouter] {
        &self.logical_routers
    }

    /// The logical router named `name`.
    pub fn logical_router(&self, name: &str) -> Option<&LogicalRouter> {
        self.logical_routers.iter().find(|router| router.name == name)
    }

    /// The bridges in the order of the file.
    pub fn bridges(&self) -> &[Bridge] {
        &self.bridges
    }

    /// The bridges on a host, each with the key of its datapath.
    pub fn bridges_on(&self, host: HostIndex) -> impl Iterator<Item = (DatapathKey, &Bridge)> {
        let keys = DatapathKeys::new(self).bridges;
        keys.into_iter().zip(&self.bridges).filter(move |(_, bridge)| bridge.host == host)
    }

    /// The connectivity of switches through routers.
    pub(crate) fn connectivity(&self) -> Connectivity {
        let mut connectivity =
            Connectivity::new(self.logical_switches.len(), self.logical_routers.len());
        for (index, router) in self.logical_routers.iter().enumerate() {
            for port in &router.ports {
                match port.link {
                    RouterLink::Switch { switch, .. } => connectivity.link_switch(index, switch.0),
                    RouterLink::Router { router, .. } => connectivity.link_routers(index, router.0),
                }
            }
        }
        connectivity
    }

    /// The address sets: the values of `$name` in matches, each of one address family.
    pub const fn address_sets(&self) -> &BTreeMap<String, Vec<Prefix>> {
        &self.address_sets
    }

    /// The port groups: the port names of `@name` in matches.
    pub const fn port_groups(&self) -> &BTreeMap<String, Vec<String>> {
        &self.port_groups
    }

    /// The ACLs in the order of the file.
    pub fn acls(&self) -> &[Acl] {
        &self.acls
    }

    /// The load balancers in the order of the file.
    pub fn load_balancers(&self) -> &[LoadBalancer] {
        &self.load_balancers
    }

    /// The rules of network address translation in the order of the file.
    pub fn nats(&self) -> &[Nat] {
        &self.nats
    }

    /// The rules of a router.
    pub(crate) fn nats_of(&self, router: RouterIndex) -> impl Iterator<Item = &Nat> {
        self.nats.iter().filter(move |nat| nat.router == router)
    }

    /// The load balancers of a router.
    pub(crate) fn load_balancers_of(
        &self,
        router: RouterIndex,
    ) -> impl Iterator<Item = &LoadBalancer> {
        self.load_balancers.iter().filter(move |balancer| balancer.routers.contains(&router))
    }

    /// The ports on a host with their switches, in the order of the file.
    pub fn ports_on(&self, host: HostIndex) -> impl Iterator<Item = (&LogicalSwitch, &Port)> {
        self.logical_switches
            .iter()
            .flat_map(|switch| switch.ports.iter().map(move |port| (switch, port)))
            .filter(move |(_, port)| port.host == host)
    }

    /// The options of the tunnel types, which apply to all switches.
    pub const fn options(&self) -> &TunnelOptions {
        &self.options
    }

    /// The address family of the outer IP headers.
    pub const fn underlay_family(&self) -> UnderlayFamily {
        self.underlay_family
    }

    /// The MTU of the underlay, in bytes of IP packet: 576 to 65,535, with IPv6 at least 1280.
    pub const fn underlay_mtu(&self) -> u16 {
        self.underlay_mtu
    }

    /// The least path MTU that weft accepts in a router's report, in bytes of IP packet: 576 to the
    /// MTU of the underlay, with IPv6 at least 1280.
    pub const fn least_path_mtu(&self) -> u16 {
        self.least_path_mtu
    }

    /// The same for the path between two hosts: the lower setting of these hosts, if one has any.
    pub fn least_path_mtu_between(&self, a: HostIndex, b: HostIndex) -> u16 {
        let of_hosts = [a, b].map(|host| self[host].least_path_mtu);
        of_hosts.into_iter().flatten().min().unwrap_or(self.least_path_mtu)
    }

    /// Whether hosts send probes to detect paths that lose long packets. All hosts should run weft:
    /// other switches count the probes as packets with an unknown tunnel key.
    pub const fn path_probes(&self) -> bool {
        self.path_probes
    }

    /// Whether packets are accepted only from end points to which a route leads over the uplink.
    pub const fn checks_reverse_path(&self) -> bool {
        self.checks_reverse_path
    }

    /// The limit of each port's packets that eBPF programs have punted and the user datapath has
    /// not read, in units of up to 8 KiB or 16 segments: 128 to 4,096; `None` for the default.
    pub const fn punt_limit(&self) -> Option<u32> {
        self.punt_limit
    }

    /// The most processor time for the upcalls of each port, in percent of one processor, 1 to
    /// 6,400; `None` for the default.
    pub const fn upcall_cpu_percent(&self) -> Option<u32> {
        self.upcall_cpu_percent
    }

    /// Limits and timeouts of tracked connections.
    pub const fn connections(&self) -> &conntrack::Config {
        &self.connections
    }

    /// The overhead of a tunnel type in this network, in bytes; see [`overhead_bytes`].
    pub const fn overhead_bytes(&self, tunnel: TunnelType) -> u16 {
        overhead_bytes(tunnel, self.underlay_family, &self.options)
    }
}

/// The host at a [`HostIndex`] of this network. Panics on a larger index of another network.
impl Index<HostIndex> for Network {
    type Output = Host;

    fn index(&self, index: HostIndex) -> &Host {
        &self.hosts[index.0]
    }
}

/// The logical switch at a [`SwitchIndex`] of this network. Panics on a larger index of another
/// network.
impl Index<SwitchIndex> for Network {
    type Output = LogicalSwitch;

    fn index(&self, index: SwitchIndex) -> &LogicalSwitch {
        &self.logical_switches[index.0]
    }
}

/// The logical router at a [`RouterIndex`] of this network. Panics on a larger index of another
/// network.
impl Index<RouterIndex> for Network {
    type Output = LogicalRouter;

    fn index(&self, index: RouterIndex) -> &LogicalRouter {
        &self.logical_routers[index.0]
    }
}

/// A line in the file, from 1. Any two lines are equal, so that two networks whose files differ
/// only in comments are equal.
#[derive(Clone, Copy, Debug)]
pub struct FileLine(pub usize);

impl PartialEq for FileLine {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for FileLine {}

/// The index of a host in [`Network::hosts`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HostIndex(pub(crate) usize);

impl HostIndex {
    /// The index, from 0.
    pub const fn value(self) -> usize {
        self.0
    }
}

/// A host: it runs guests, and is a tunnel end point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its index in [`Network::hosts`].
    pub index: HostIndex,
    /// Its name, unique in the network.
    pub name: String,
    /// The interface that leads to the other hosts.
    pub uplink: String,
    /// Its IPv4 address as a tunnel end point.
    pub underlay4: Option<Ipv4Addr>,
    /// Its IPv6 address as a tunnel end point.
    pub underlay6: Option<Ipv6Addr>,
    /// The least path MTU of its tunnels that weft believes, in bytes of IP packet; `None` for that
    /// of the network.
    pub least_path_mtu: Option<u16>,
}

impl Host {
    /// The underlay address of one family. Every host that shares a switch with another host
    /// through tunnel end points has one of [`Network::underlay_family`].
    pub fn underlay(&self, family: UnderlayFamily) -> Option<IpAddr> {
        match family {
            UnderlayFamily::V4 => self.underlay4.map(IpAddr::V4),
            UnderlayFamily::V6 => self.underlay6.map(IpAddr::V6),
        }
    }
}

/// The index of a logical switch in [`Network::logical_switches`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SwitchIndex(pub(crate) usize);

impl SwitchIndex {
    /// The index, from 0.
    pub const fn value(self) -> usize {
        self.0
    }
}

/// A logical switch: a layer 2 network across all hosts that have ports in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalSwitch {
    /// Its name, unique in the network.
    pub name: String,
    /// Its tunnel key, unique among the switches of its tunnel type. See [`Segment::datapath_key`].
    pub datapath_key: DatapathKey,
    /// Its identifier on the wire.
    pub segment: Segment,
    /// The tunnel type between hosts.
    pub tunnel: TunnelType,
    /// The MTU of its guests in bytes of IP packet, 68 to 65,535.
    pub mtu: u16,
    /// The underlay multicast group for broadcasts and multicasts of a VXLAN switch, of the address
    /// family of the underlay. `None`: a copy is sent to each host.
    pub group: Option<IpAddr>,
    /// Answer ARP and neighbour solicitations for the addresses of its ports.
    pub arp_responder: bool,
    /// Its ports in the order of the file; at most 32,767 including those of logical routers.
    pub ports: Vec<Port>,
    /// Its line in the file.
    pub line: FileLine,
}

impl LogicalSwitch {
    /// The port with the key `key`.
    pub fn port(&self, key: PortKey) -> Option<&Port> {
        // Without given keys, the key is the index plus one.
        let place = usize::from(key.value()).checked_sub(1)?;
        let is = |port: &&Port| port.key == key;
        self.ports.get(place).filter(is).or_else(|| self.ports.iter().find(is))
    }

    /// The port named `name`.
    pub fn port_named(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// The ports behind which MAC addresses are learned.
    pub fn learning_ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|port| port.learn)
    }

    /// True when it has learning ports.
    pub fn learns(&self) -> bool {
        self.learning_ports().next().is_some()
    }

    /// The hosts with learning ports, each once.
    pub fn learning_hosts(&self) -> BTreeSet<HostIndex> {
        self.learning_ports().map(|port| port.host).collect()
    }

    /// The hosts other than `host` with ports in this switch, each once.
    pub fn remote_hosts(&self, host: HostIndex) -> BTreeSet<HostIndex> {
        self.ports.iter().map(|port| port.host).filter(|&other| other != host).collect()
    }
}

/// The identifier that separates the frames of logical switches on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Segment {
    /// VNI of VXLAN, Geneve and STT, 1 to 2^24 - 1; key of GRE, 1 to 2^32 - 1.
    Vni(u32),
    /// GRE without key: the only switch of the type.
    Unkeyed,
    /// The VLAN of `vlan`.
    Vlan(VlanId),
    /// The two VLANs of `qinq`.
    QinQ {
        /// The service VLAN, in the outer tag.
        outer: VlanId,
        /// The customer VLAN, in the inner tag.
        inner: VlanId,
    },
}

impl Segment {
    /// The tunnel key of the switch: the VNI or GRE key itself, 0 without key, or [`TagLink::key`].
    pub fn datapath_key(self) -> DatapathKey {
        match self {
            Self::Vni(vni) => DatapathKey(vni),
            Self::Unkeyed => DatapathKey(0),
            Self::Vlan(vlan) => TagLink::Vlan(vlan).key(),
            // The key does not depend on the TPID.
            Self::QinQ { outer, inner } => {
                TagLink::QinQ { service_tpid: EtherType::QINQ, outer, inner }.key()
            }
        }
    }

    /// The VLAN tags on the uplink, with the outer TPID if there are two; `None` for segments in
    /// tunnels.
    pub fn link(self, service_tpid: EtherType) -> Option<TagLink> {
        match self {
            Self::Vni(_) | Self::Unkeyed => None,
            Self::Vlan(vlan) => Some(TagLink::Vlan(vlan)),
            Self::QinQ { outer, inner } => Some(TagLink::QinQ { service_tpid, outer, inner }),
        }
    }
}

/// A logical port, which attaches one guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Its name, unique in the network.
    pub name: String,
    /// Its key in its switch, 1 to 32,767: as given, or the first free one in the order of the
    /// file.
    pub key: PortKey,
    /// The host it is on.
    pub host: HostIndex,
    /// The guest's MAC address: unicast, unique in the switch.
    pub mac: MacAddr,
    /// The guest's IP addresses, unique in the switch; possibly none.
    pub addresses: Vec<IpNet>,
    /// The guest's interface on the host, unique there. `None` for a port of a pool, which gets
    /// its device while the switch runs.
    pub device: Option<Device>,
    /// The pool that it belongs to.
    pub pool: Option<Arc<str>>,
    /// Its port security; `None` for no restriction.
    pub security: Option<PortSecurity>,
    /// Control messages that it may send although other guests may not.
    pub trusted: Trust,
    /// Other MAC addresses behind it are learned, and it receives unknown unicast (OVN's address
    /// "unknown").
    pub learn: bool,
    /// Its line in the file.
    pub line: FileLine,
}

/// The interface of a guest. Names are valid interface names: 1 to 15 bytes of printable ASCII.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Device {
    /// A TAP device that weft creates and removes.
    Tap {
        /// Its name, in the given namespace if any.
        name: String,
        /// The name of its network namespace under `/run/netns`; `None` for that of weft.
        netns: Option<String>,
    },
    /// A TAP device that weft creates in its own namespace and a virtual machine opens.
    Vm {
        /// Its name.
        name: String,
        /// How many queues the machine may open: 1 to [`MAX_VM_QUEUES`].
        queues: u16,
    },
    /// An existing interface in the namespace of weft.
    Interface {
        /// Its name.
        name: String,
    },
}

/// The maximum number of queues of a TAP device (the kernel's MAX_TAP_QUEUES).
pub const MAX_VM_QUEUES: u16 = 256;

impl Device {
    /// The name of the interface.
    pub fn name(&self) -> &str {
        match self {
            Self::Tap { name, .. } | Self::Vm { name, .. } | Self::Interface { name } => name,
        }
    }

    /// The network namespace of the interface; `None` for that of weft.
    pub fn netns(&self) -> Option<&str> {
        match self {
            Self::Tap { netns, .. } => netns.as_deref(),
            Self::Vm { .. } | Self::Interface { .. } => None,
        }
    }
}
