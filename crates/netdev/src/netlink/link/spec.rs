//! The properties of a link to create.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use wire::{MacAddr, Vni};

use super::super::encapsulation::{GeneveSpec, GreSpec, VlanSpec};
use super::{Ifindex, check_link_name};
use crate::{Netns, Result};

/// The properties that every kind of link has. Only the name is required.
#[derive(Clone, Debug, Default)]
pub struct LinkSpec<'a> {
    pub(super) name: &'a str,
    mac: Option<MacAddr>,
    mtu: Option<u32>,
    pub(super) up: bool,
    queues: Option<u32>,
    tx_queue_len: Option<u32>,
    pub(super) netns: Option<&'a Netns>,
    master: Option<Ifindex>,
}

impl<'a> LinkSpec<'a> {
    /// A link `name` that is down, with a random MAC address and the default MTU of its kind.
    pub fn new(name: &'a str) -> Self {
        Self { name, ..Self::default() }
    }

    /// Sets the MAC address.
    pub fn mac(self, mac: MacAddr) -> Self {
        Self { mac: Some(mac), ..self }
    }

    /// Sets the MTU, in bytes.
    pub fn mtu(self, bytes: u32) -> Self {
        Self { mtu: Some(bytes), ..self }
    }

    /// Brings the link up at once.
    pub fn up(self) -> Self {
        Self { up: true, ..self }
    }

    fn down(self) -> Self {
        Self { up: false, ..self }
    }

    /// Sets the number of transmit and of receive queues.
    pub fn queues(self, count: u32) -> Self {
        Self { queues: Some(count), ..self }
    }

    /// Sets the transmit queue length, in packets.
    pub fn tx_queue_len(self, packets: u32) -> Self {
        Self { tx_queue_len: Some(packets), ..self }
    }

    /// Makes the link a port of the bridge `master`.
    pub fn master(self, master: Ifindex) -> Self {
        Self { master: Some(master), ..self }
    }

    /// Creates the link in this namespace. A tunnel sends and receives its outer packets in the
    /// namespace of the [`Netlink`](crate::Netlink) that creates it.
    pub fn netns(self, netns: &'a Netns) -> Self {
        Self { netns: Some(netns), ..self }
    }

    pub(super) fn message(&self) -> Result<LinkMessage> {
        check_link_name(self.name)?;
        let mut message = LinkMessage::default();
        if self.up {
            message.header.flags = LinkFlags::Up;
            message.header.change_mask = LinkFlags::Up;
        }
        let attributes = &mut message.attributes;
        attributes.push(LinkAttribute::IfName(self.name.to_owned()));
        attributes.extend(self.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        attributes.extend(self.mtu.map(LinkAttribute::Mtu));
        attributes.extend(self.queues.map(LinkAttribute::NumTxQueues));
        attributes.extend(self.queues.map(LinkAttribute::NumRxQueues));
        attributes.extend(self.tx_queue_len.map(LinkAttribute::TxQueueLen));
        attributes.extend(self.master.map(|master| LinkAttribute::Controller(master.0)));
        attributes
            .extend(self.netns.map(|netns| LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd())));
        Ok(message)
    }
}

/// The kind of a new link.
#[derive(Clone, Debug)]
pub enum LinkKind<'a> {
    /// A pair of connected devices.
    Veth {
        /// The other end, often in another namespace, with its own properties.
        peer: LinkSpec<'a>,
    },
    /// A Linux bridge without spanning tree.
    Bridge,
    /// The kernel's VXLAN (RFC 7348).
    Vxlan(VxlanSpec),
    /// The kernel's Geneve.
    Geneve(GeneveSpec),
    /// The kernel's GRE with Ethernet frames in it.
    Gre(GreSpec),
    /// A VLAN of another device.
    Vlan(VlanSpec),
}

/// The options of a VXLAN device.
#[derive(Clone, Debug)]
pub struct VxlanSpec {
    /// The VNI; `None` for a device whose VNI and end points come with each packet (`external`).
    pub vni: Option<Vni>,
    /// Whether an external device drops packets whose VNI is not in its filter. The filter is empty
    /// at first.
    pub filters_vnis: bool,
    /// The source address; also selects IPv4 or IPv6 for the socket.
    pub local: Option<IpAddr>,
    /// The destination of frames without a forwarding entry.
    pub remote: Option<IpAddr>,
    /// The UDP port to which the device sends, and on which it listens.
    pub port: u16,
    /// The range of UDP source ports for inner flows (the second one is exclusive); `None` for the
    /// kernel's default.
    pub source_ports: Option<(u16, u16)>,
    /// Learn the remote end point of each source MAC address.
    pub learning: bool,
    /// Send outer UDP checksums over IPv4.
    pub udp_checksum: bool,
    /// Accept (and send) zero outer UDP checksums over IPv6 (RFC 6936).
    pub udp_zero_checksum6: bool,
    /// The link by which outer packets leave.
    pub underlay: Option<Ifindex>,
}

impl VxlanSpec {
    /// The registered UDP port.
    pub const PORT: u16 = 4789;

    /// A device of the network `vni`, without learning, otherwise with the kernel's defaults.
    pub const fn new(vni: Vni) -> Self {
        Self { vni: Some(vni), ..Self::external() }
    }

    /// A device whose VNI and end points come with each packet. While it is up, the kernel
    /// coalesces received VXLAN segments on its port before a tc program sees them.
    pub const fn external() -> Self {
        Self {
            vni: None,
            filters_vnis: false,
            local: None,
            remote: None,
            port: Self::PORT,
            source_ports: None,
            learning: false,
            udp_checksum: true,
            udp_zero_checksum6: false,
            underlay: None,
        }
    }

    fn attributes(&self) -> Vec<InfoVxlan> {
        let mut attributes = vec![
            InfoVxlan::Port(self.port),
            InfoVxlan::Learning(self.learning),
            InfoVxlan::UDPCsum(self.udp_checksum),
        ];
        attributes.push(match self.vni {
            Some(vni) => InfoVxlan::Id(vni.value()),
            None => InfoVxlan::CollectMetadata(true),
        });
        if self.filters_vnis {
            attributes.push(InfoVxlan::Vnifilter(true));
        }
        attributes.extend(self.source_ports.map(InfoVxlan::PortRange));
        attributes.extend(self.local.map(|local| match local {
            IpAddr::V4(address) => InfoVxlan::Local(address),
            IpAddr::V6(address) => InfoVxlan::Local6(address),
        }));
        attributes.extend(self.remote.map(|remote| match remote {
            IpAddr::V4(address) => InfoVxlan::Group(address),
            IpAddr::V6(address) => InfoVxlan::Group6(address),
        }));
        if self.udp_zero_checksum6 {
            attributes.push(InfoVxlan::UDPZeroCsumTX(true));
            attributes.push(InfoVxlan::UDPZeroCsumRX(true));
        }
        attributes.extend(self.underlay.map(|index| InfoVxlan::Link(index.0)));
        attributes
    }
}

impl LinkKind<'_> {
    pub(super) fn info(&self) -> Result<Vec<LinkInfo>> {
        Ok(match self {
            Self::Veth { peer } => vec![
                LinkInfo::Kind(InfoKind::Veth),
                // The kernel configures the peer before it connects the ends, so it cannot be up
                // yet.
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer.clone().down().message()?))),
            ],
            Self::Bridge => vec![LinkInfo::Kind(InfoKind::Bridge)],
            Self::Vxlan(spec) => vec![
                LinkInfo::Kind(InfoKind::Vxlan),
                LinkInfo::Data(InfoData::Vxlan(spec.attributes())),
            ],
            Self::Geneve(spec) => spec.info(),
            Self::Gre(spec) => spec.info(),
            Self::Vlan(spec) => spec.info(),
        })
    }

    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Veth { .. } => "veth",
            Self::Bridge => "bridge",
            Self::Vxlan(_) => "vxlan",
            Self::Geneve(_) => "geneve",
            Self::Gre(_) => "gretap",
            Self::Vlan(_) => "vlan",
        }
    }

    /// The underlying device (IFLA_LINK) of kinds that do not name it in their options.
    pub(super) const fn parent(&self) -> Option<Ifindex> {
        match self {
            Self::Vlan(spec) => Some(spec.parent),
            _ => None,
        }
    }
}
