//! The checked model: what a valid network file says.

mod policy;
mod router;

pub use policy::{Acl, AclAction, AclDirection, AclScope, PortSecurity};
pub(crate) use router::port_in_switch;
pub use router::{LogicalRouter, Route, RouterIndex, RouterLink, RouterPort};

use crate::reach::Reach;
use crate::{Family, IpNet, Prefix, TunnelOptions, overhead_bytes};
use flow::{DatapathKey, PortKey, TagLink, TunnelType};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Index;
use wire::{EtherType, MacAddr, VlanId};

/// A whole network, the same on every host. It is made by [`Network::load`] or [`Network::parse`] only, which
/// check it, and never changes afterwards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Network {
    pub(crate) hosts: Vec<Host>,
    pub(crate) logical_switches: Vec<LogicalSwitch>,
    pub(crate) logical_routers: Vec<LogicalRouter>,
    pub(crate) address_sets: BTreeMap<String, Vec<Prefix>>,
    pub(crate) port_groups: BTreeMap<String, Vec<String>>,
    pub(crate) acls: Vec<Acl>,
    pub(crate) options: TunnelOptions,
    pub(crate) underlay_family: Family,
    pub(crate) underlay_mtu: u16,
}

impl Network {
    /// The hosts, in the order of the file; at least one.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host of that name.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// The logical switches, in the order of the file.
    pub fn logical_switches(&self) -> &[LogicalSwitch] {
        &self.logical_switches
    }

    /// The logical switch of that name.
    pub fn logical_switch(&self, name: &str) -> Option<&LogicalSwitch> {
        self.logical_switches.iter().find(|switch| switch.name == name)
    }

    /// The logical routers, in the order of the file.
    pub fn logical_routers(&self) -> &[LogicalRouter] {
        &self.logical_routers
    }

    /// The logical router of that name.
    pub fn logical_router(&self, name: &str) -> Option<&LogicalRouter> {
        self.logical_routers.iter().find(|router| router.name == name)
    }

    /// Which switches routers link with which.
    pub(crate) fn reach(&self) -> Reach {
        let mut reach = Reach::new(self.logical_switches.len(), self.logical_routers.len());
        for (index, router) in self.logical_routers.iter().enumerate() {
            for port in &router.ports {
                match port.link {
                    RouterLink::Switch { switch, .. } => reach.link_switch(index, switch.0),
                    RouterLink::Router { router, .. } => reach.link_routers(index, router.0),
                }
            }
        }
        reach
    }

    /// What `$name` stands for in matches: networks of one family each.
    pub const fn address_sets(&self) -> &BTreeMap<String, Vec<Prefix>> {
        &self.address_sets
    }

    /// What `@name` stands for in matches: names of ports of logical switches.
    pub const fn port_groups(&self) -> &BTreeMap<String, Vec<String>> {
        &self.port_groups
    }

    /// The access control lists' entries, in the order of the file.
    pub fn acls(&self) -> &[Acl] {
        &self.acls
    }

    /// The ports on a host with the switches they belong to, in the order of the file.
    pub fn ports_on(&self, host: HostIndex) -> impl Iterator<Item = (&LogicalSwitch, &Port)> {
        self.logical_switches
            .iter()
            .flat_map(|switch| switch.ports.iter().map(move |port| (switch, port)))
            .filter(move |(_, port)| port.host == host)
    }

    /// The options of the tunnel types, the same for every switch.
    pub const fn options(&self) -> &TunnelOptions {
        &self.options
    }

    /// The family of the outer IP headers.
    pub const fn underlay_family(&self) -> Family {
        self.underlay_family
    }

    /// The MTU of the path between the hosts, in bytes of IP packet; 576 to 65,535, with IPv6 at least 1280.
    pub const fn underlay_mtu(&self) -> u16 {
        self.underlay_mtu
    }

    /// Bytes that a tunnel type adds to a guest's packet in this network; see [`overhead_bytes`].
    pub const fn overhead_bytes(&self, tunnel: TunnelType) -> u16 {
        overhead_bytes(tunnel, self.underlay_family, &self.options)
    }
}

/// The host at a [`HostIndex`] of this network. Panics on an index of another network that has more hosts.
impl Index<HostIndex> for Network {
    type Output = Host;

    fn index(&self, index: HostIndex) -> &Host {
        &self.hosts[index.0]
    }
}

/// The logical switch at a [`SwitchIndex`] of this network. Panics on an index of another network that has more.
impl Index<SwitchIndex> for Network {
    type Output = LogicalSwitch;

    fn index(&self, index: SwitchIndex) -> &LogicalSwitch {
        &self.logical_switches[index.0]
    }
}

/// The logical router at a [`RouterIndex`] of this network. Panics on an index of another network that has more.
impl Index<RouterIndex> for Network {
    type Output = LogicalRouter;

    fn index(&self, index: RouterIndex) -> &LogicalRouter {
        &self.logical_routers[index.0]
    }
}

/// Where something stands in the file: its line, from 1. It says nothing about what the network *is*, so any two are equal, and
/// a network does not differ from one in whose file there is a comment more.
#[derive(Clone, Copy, Debug)]
pub struct Line(pub usize);

impl PartialEq for Line {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Line {}

/// The place of a host in [`Network::hosts`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HostIndex(pub(crate) usize);

impl HostIndex {
    /// The place, from 0.
    pub const fn value(self) -> usize {
        self.0
    }
}

/// A host: where guests run, and one end of the tunnels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its place in [`Network::hosts`].
    pub index: HostIndex,
    /// Unique in the network.
    pub name: String,
    /// The interface that leads to the other hosts; a valid interface name.
    pub uplink: String,
    /// The IPv4 address at which the host is a tunnel end point.
    pub underlay4: Option<Ipv4Addr>,
    /// The IPv6 address at which the host is a tunnel end point.
    pub underlay6: Option<Ipv6Addr>,
}

impl Host {
    /// The underlay address of one family. It is there for [`Network::underlay_family`] on every host that
    /// shares a switch with another host through a tunnel type with end points.
    pub fn underlay(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.underlay4.map(IpAddr::V4),
            Family::V6 => self.underlay6.map(IpAddr::V6),
        }
    }
}

/// The place of a logical switch in [`Network::logical_switches`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SwitchIndex(pub(crate) usize);

impl SwitchIndex {
    /// The place, from 0.
    pub const fn value(self) -> usize {
        self.0
    }
}

/// A logical switch: one layer 2 network, stretched over the hosts that have ports in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalSwitch {
    /// Unique in the network.
    pub name: String,
    /// What stands for the switch in keys; unique among the switches of its tunnel type. See
    /// [`Segment::datapath_key`].
    pub datapath_key: DatapathKey,
    /// What tells its frames from those of other switches on the wire.
    pub segment: Segment,
    /// How its frames travel between hosts.
    pub tunnel: TunnelType,
    /// The MTU of its guests, in bytes of IP packet, 68 to 65,535.
    pub mtu: u16,
    /// The multicast group of the underlay to which its broadcasts and multicasts are sent, once for all other hosts; of the
    /// family of the underlay, and of VXLAN switches only. `None`: a copy is sent to each host.
    pub group: Option<IpAddr>,
    /// The switch answers for the addresses of its ports: ARP and neighbour solicitations for them go no further.
    pub arp_responder: bool,
    /// The ports, in the order of the file; at most 32,767 together with those of logical routers.
    pub ports: Vec<Port>,
    /// Where it is in the file.
    pub line: Line,
}

impl LogicalSwitch {
    /// The port with that key.
    pub fn port(&self, key: PortKey) -> Option<&Port> {
        // Unless keys are given, that is its place.
        let place = usize::from(key.value()).checked_sub(1)?;
        let is = |port: &&Port| port.key == key;
        self.ports.get(place).filter(is).or_else(|| self.ports.iter().find(is))
    }

    /// The ports behind which MAC addresses are learnt.
    pub fn learning_ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|port| port.learn)
    }

    /// True when it has such ports.
    pub fn learns(&self) -> bool {
        self.learning_ports().next().is_some()
    }

    /// The hosts that have such ports, each once.
    pub fn learning_hosts(&self) -> BTreeSet<HostIndex> {
        self.learning_ports().map(|port| port.host).collect()
    }

    /// The hosts other than `host` that have ports in this switch, each once.
    pub fn remote_hosts(&self, host: HostIndex) -> BTreeSet<HostIndex> {
        self.ports.iter().map(|port| port.host).filter(|&other| other != host).collect()
    }
}

/// What tells the frames of one logical switch from those of another on the wire.
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
        /// The service VLAN, in the tag nearest to the Ethernet header.
        outer: VlanId,
        /// The customer VLAN.
        inner: VlanId,
    },
}

impl Segment {
    /// The number that stands for the switch in tunnel keys: the VNI or GRE key itself, 0 without key, or
    /// [`TagLink::key`].
    pub fn datapath_key(self) -> DatapathKey {
        match self {
            Self::Vni(vni) => DatapathKey(vni),
            Self::Unkeyed => DatapathKey(0),
            Self::Vlan(vlan) => TagLink::Vlan(vlan).key(),
            // The same with every TPID.
            Self::QinQ { outer, inner } => {
                TagLink::QinQ { service_tpid: EtherType::QINQ, outer, inner }.key()
            }
        }
    }

    /// The link of the uplinks by which frames travel, with that outer TPID if there are two tags; `None` where they
    /// travel in tunnels.
    pub fn link(self, service_tpid: EtherType) -> Option<TagLink> {
        match self {
            Self::Vni(_) | Self::Unkeyed => None,
            Self::Vlan(vlan) => Some(TagLink::Vlan(vlan)),
            Self::QinQ { outer, inner } => Some(TagLink::QinQ { service_tpid, outer, inner }),
        }
    }
}

/// A logical port: where one guest is attached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Unique in the network.
    pub name: String,
    /// Its number in its switch, 1 to 32,767: what the file says, or the first that is left in the order of the file.
    pub key: PortKey,
    /// The host it is on.
    pub host: HostIndex,
    /// The guest's address; unicast, unique in the switch.
    pub mac: MacAddr,
    /// The guest's IP addresses, unique in the switch; possibly none.
    pub addresses: Vec<IpNet>,
    /// What the guest is attached by; unique on the host.
    pub device: Device,
    /// What it may send and receive; everything when `None`.
    pub security: Option<PortSecurity>,
    /// There may be MAC addresses behind it that the file does not have: they are learnt, and frames to those that nobody has
    /// learnt go there, too (OVN's address "unknown").
    pub learn: bool,
    /// Where it is in the file.
    pub line: Line,
}

/// What a guest is attached by. The names are valid interface names: 1 to 15 bytes of printable ASCII.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Device {
    /// A TAP device that weft creates and removes.
    Tap {
        /// Its name, inside the namespace where one is given.
        name: String,
        /// The network namespace it belongs to, by its name under `/run/netns`; that of weft itself when
        /// `None`.
        netns: Option<String>,
    },
    /// A TAP device that weft makes and a virtual machine opens, in the namespace of weft itself.
    Vm {
        /// Its name.
        name: String,
    },
    /// An interface that is already there, in the namespace of weft itself.
    Interface {
        /// Its name.
        name: String,
    },
}

impl Device {
    /// The name of the interface.
    pub fn name(&self) -> &str {
        match self {
            Self::Tap { name, .. } | Self::Vm { name } | Self::Interface { name } => name,
        }
    }

    /// The network namespace of the interface; `None` for that of weft itself.
    pub fn netns(&self) -> Option<&str> {
        match self {
            Self::Tap { netns, .. } => netns.as_deref(),
            Self::Vm { .. } | Self::Interface { .. } => None,
        }
    }
}
