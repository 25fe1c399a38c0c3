//! The kernel's own Geneve, GRE and VLAN devices, which tests and benchmarks use as peers of weft.

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_route::link::{
    GreIOFlags, InfoData, InfoGeneve, InfoGre, InfoKind, InfoVlan, LinkInfo, VlanProtocol,
};
use wire::Vni;

use super::Ifindex;

/// The options of a Geneve device (RFC 8926).
#[derive(Clone, Debug)]
pub struct GeneveSpec {
    /// The VNI.
    pub vni: Vni,
    /// The remote end point: the destination of all frames.
    pub remote: IpAddr,
    /// Send outer UDP checksums.
    pub udp_checksum: bool,
}

/// The options of a GRE device that carries Ethernet frames over IPv4 (RFC 2784, RFC 2890).
#[derive(Clone, Debug)]
pub struct GreSpec {
    /// Address to send from.
    pub local: Ipv4Addr,
    /// The remote end point: the destination of all frames.
    pub remote: Ipv4Addr,
    /// The GRE key to send and to expect.
    pub key: u32,
}

/// The options of a VLAN device (IEEE 802.1Q).
#[derive(Clone, Copy, Debug)]
pub struct VlanSpec {
    /// The device whose tagged frames it sends and receives.
    pub parent: Ifindex,
    /// The VLAN, 1 to 4094.
    pub id: u16,
    /// Use service tags (TPID 0x88a8) instead of customer tags (TPID 0x8100).
    pub service: bool,
}

impl GeneveSpec {
    pub(super) fn info(&self) -> Vec<LinkInfo> {
        let remote = match self.remote {
            IpAddr::V4(address) => InfoGeneve::Remote(address),
            IpAddr::V6(address) => InfoGeneve::Remote6(address),
        };
        // The option for IPv4 checksums has no effect over IPv6, where checksums are on by default.
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
