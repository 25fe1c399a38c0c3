//! The kernel's own Geneve, GRE and VLAN devices: what others are compared with.

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_route::link::{
    GreIOFlags, InfoData, InfoGeneve, InfoGre, InfoKind, InfoVlan, LinkInfo, VlanProtocol,
};
use wire::Vni;

use super::Ifindex;

/// The options of a Geneve device (RFC 8926).
#[derive(Clone, Debug)]
pub struct GeneveSpec {
    /// Its network.
    pub vni: Vni,
    /// Where all frames go.
    pub remote: IpAddr,
    /// Send outer UDP checksums.
    pub udp_checksum: bool,
}

/// The options of a GRE device that carries Ethernet frames over IPv4 (RFC 2784, RFC 2890).
#[derive(Clone, Debug)]
pub struct GreSpec {
    /// Address to send from.
    pub local: Ipv4Addr,
    /// Where all frames go.
    pub remote: Ipv4Addr,
    /// The key, both ways.
    pub key: u32,
}

/// The options of a VLAN device (IEEE 802.1Q).
#[derive(Clone, Copy, Debug)]
pub struct VlanSpec {
    /// The device whose tagged frames it sends and receives.
    pub parent: Ifindex,
    /// The VLAN, 1 to 4094.
    pub id: u16,
    /// With the tag of a service provider (0x88a8) in place of a customer's (0x8100).
    pub service: bool,
}

impl GeneveSpec {
    pub(super) fn info(&self) -> Vec<LinkInfo> {
        let remote = match self.remote {
            IpAddr::V4(address) => InfoGeneve::Remote(address),
            IpAddr::V6(address) => InfoGeneve::Remote6(address),
        };
        // What goes by the name of IPv4's checksum does not count over IPv6, where the default is
        // to send it.
        let checksum = match self.remote {
            IpAddr::V4(_) => InfoGeneve::UdpCsum(self.udp_checksum),
            IpAddr::V6(_) => InfoGeneve::UdpZeroCsum6Tx(!self.udp_checksum),
        };
        let data = vec![InfoGeneve::Id(self.vni.value()), remote, checksum];
        vec![LinkInfo::Kind(InfoKind::Geneve), LinkInfo::Data(InfoData::Geneve(data))]
    }
}

impl GreSpec {
    pub(super) fn info(&self) -> Vec<LinkInfo> {
        let data = vec![
            InfoGre::IFlags(GreIOFlags::Key),
            InfoGre::OFlags(GreIOFlags::Key),
            InfoGre::IKey(self.key),
            InfoGre::OKey(self.key),
            InfoGre::Local(self.local),
            InfoGre::Remote(self.remote),
        ];
        vec![LinkInfo::Kind(InfoKind::GreTap), LinkInfo::Data(InfoData::GreTap(data))]
    }
}

impl VlanSpec {
    pub(super) fn info(&self) -> Vec<LinkInfo> {
        let protocol = match self.service {
            true => VlanProtocol::Ieee8021Ad,
            false => VlanProtocol::Ieee8021Q,
        };
        let data = vec![InfoVlan::Id(self.id), InfoVlan::Protocol(protocol)];
        vec![LinkInfo::Kind(InfoKind::Vlan), LinkInfo::Data(InfoData::Vlan(data))]
    }
}
