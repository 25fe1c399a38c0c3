//! What each tunnel type can be told, and how many bytes it adds to a packet.

use flow::{Ttl, TunnelType};
use std::fmt;
use std::net::IpAddr;
use wire::tunnel::{geneve, stt, vxlan};

/// The address family of the underlay: what the outer IP headers are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub const fn of(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The other one.
    pub const fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }

    /// 4 or 6.
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPv{}", self.number())
    }
}

/// The outer DSCP of tunnelled packets (RFC 2983). The ECN bits are not part of it: they always follow RFC
/// 6040.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dscp {
    /// That of the inner packet, 0 when it is not IP (the uniform model).
    Inherit,
    /// Always this one, 0 to 63 (the pipe model): guests have no say in the underlay's priorities.
    Fixed(u8),
}

/// The fields of the outer IP header that can be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OuterIp {
    /// TTL or hop limit; 64 unless given.
    pub ttl: Ttl,
    /// The DSCP; `Fixed(0)` unless given.
    pub dscp: Dscp,
}

impl Default for OuterIp {
    fn default() -> Self {
        Self { ttl: Ttl::default(), dscp: Dscp::Fixed(0) }
    }
}

/// Options of VXLAN (RFC 7348).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VxlanOptions {
    /// Destination UDP port, not 0; 4789 unless given.
    pub udp_port: u16,
    /// Whether the outer UDP checksum is computed; unless given, each host chooses by what its uplink can do.
    pub checksum: Option<bool>,
    /// The outer IP header.
    pub outer: OuterIp,
    /// TTL or hop limit of what is sent to multicast groups, 1 to 255; 1 unless given: no router passes it on.
    pub group_ttl: u8,
}

impl Default for VxlanOptions {
    fn default() -> Self {
        Self { udp_port: vxlan::PORT, checksum: None, outer: OuterIp::default(), group_ttl: 1 }
    }
}

/// Options of Geneve (RFC 8926).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GeneveOptions {
    /// Destination UDP port, not 0; 6081 unless given.
    pub udp_port: u16,
    /// Whether the outer UDP checksum is computed; unless given, each host chooses by what its uplink can do.
    pub checksum: Option<bool>,
    /// Whether the option with the logical ports is sent (class 0x0102, type 0x80, 8 bytes); true unless given.
    pub logical_ports: bool,
    /// The outer IP header.
    pub outer: OuterIp,
}

impl Default for GeneveOptions {
    fn default() -> Self {
        Self {
            udp_port: geneve::PORT,
            checksum: None,
            logical_ports: true,
            outer: OuterIp::default(),
        }
    }
}

/// Options of GRE (RFC 2784 and 2890). Each of the three fields adds 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GreOptions {
    /// Whether the checksum field is sent; false unless given.
    pub checksum: bool,
    /// Whether the key field is sent; true unless given. Without it GRE carries one logical switch.
    pub key: bool,
    /// Whether sequence numbers are sent; false unless given.
    pub sequence: bool,
    /// The outer IP header.
    pub outer: OuterIp,
}

impl Default for GreOptions {
    fn default() -> Self {
        Self { checksum: false, key: true, sequence: false, outer: OuterIp::default() }
    }
}

/// Options of STT (draft-davie-stt).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SttOptions {
    /// Destination TCP port, not 0; 7471 unless given.
    pub tcp_port: u16,
    /// Whether bits 24 to 54 of the context carry the logical ports; true unless given. It costs no bytes.
    pub logical_ports: bool,
    /// The outer IP header.
    pub outer: OuterIp,
}

impl Default for SttOptions {
    fn default() -> Self {
        Self { tcp_port: stt::PORT, logical_ports: true, outer: OuterIp::default() }
    }
}

/// The EtherType of the outer tag of QinQ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ServiceTpid {
    /// 0x88a8, the service tag of IEEE 802.1ad.
    #[default]
    Dot1ad,
    /// 0x8100, two customer tags.
    Dot1q,
    /// 0x9100, of equipment older than 802.1ad.
    Legacy,
}

impl ServiceTpid {
    /// All three, the default first.
    pub const ALL: [Self; 3] = [Self::Dot1ad, Self::Dot1q, Self::Legacy];

    /// The EtherType.
    pub const fn value(self) -> u16 {
        match self {
            Self::Dot1ad => 0x88a8,
            Self::Dot1q => 0x8100,
            Self::Legacy => 0x9100,
        }
    }
}

/// Options of QinQ (IEEE 802.1ad).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QinqOptions {
    /// The EtherType of the outer tag; 0x88a8 unless given. The inner tag is always 0x8100.
    pub s_tpid: ServiceTpid,
}

/// The options of every tunnel type; VLAN has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TunnelOptions {
    /// VXLAN.
    pub vxlan: VxlanOptions,
    /// Geneve.
    pub geneve: GeneveOptions,
    /// GRE.
    pub gre: GreOptions,
    /// STT.
    pub stt: SttOptions,
    /// QinQ.
    pub qinq: QinqOptions,
    /// The maximum segment size of guests' TCP connections is lowered to what their tunnels carry.
    pub clamp_mss: bool,
}

impl TunnelOptions {
    /// The outer IP header of a tunnel type; `None` for those that have none.
    pub const fn outer(&self, tunnel: TunnelType) -> Option<OuterIp> {
        match tunnel {
            TunnelType::Vxlan => Some(self.vxlan.outer),
            TunnelType::Geneve => Some(self.geneve.outer),
            TunnelType::Gre => Some(self.gre.outer),
            TunnelType::Stt => Some(self.stt.outer),
            TunnelType::Vlan | TunnelType::QinQ => None,
        }
    }

    /// Whether a tunnel type carries the logical ports beside the frame.
    pub const fn logical_ports(&self, tunnel: TunnelType) -> bool {
        match tunnel {
            TunnelType::Geneve => self.geneve.logical_ports,
            TunnelType::Stt => self.stt.logical_ports,
            TunnelType::Vxlan | TunnelType::Gre | TunnelType::Vlan | TunnelType::QinQ => false,
        }
    }
}

const ETHERNET_BYTES: u16 = 14;
const UDP_BYTES: u16 = 8;
const VLAN_TAG_BYTES: u16 = 4;
const GRE_FIELD_BYTES: u16 = 4;

/// Bytes that a tunnel adds to a guest's IP packet, so that guest MTU + overhead = MTU of the underlay.
///
/// The inner Ethernet header counts, the outer one does not, as it is not part of an IP MTU; tags of VLAN and
/// QinQ count in full, as no NIC has to take a longer frame. For STT it is what the first segment of a frame
/// carries; the frame may have more segments, each with 40 bytes of IPv4 and TCP (60 with IPv6).
pub const fn overhead_bytes(tunnel: TunnelType, family: Family, options: &TunnelOptions) -> u16 {
    let ip = match family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    match tunnel {
        TunnelType::Vxlan => ip + UDP_BYTES + 8 + ETHERNET_BYTES,
        TunnelType::Geneve => {
            let logical_ports = if options.geneve.logical_ports { 8 } else { 0 };
            ip + UDP_BYTES + 8 + logical_ports + ETHERNET_BYTES
        }
        TunnelType::Gre => {
            let GreOptions { checksum, key, sequence, outer: _ } = options.gre;
            let fields = checksum as u16 + key as u16 + sequence as u16;
            ip + 4 + fields * GRE_FIELD_BYTES + ETHERNET_BYTES
        }
        // TCP header, STT header with its padding, frame.
        TunnelType::Stt => ip + 20 + 18 + ETHERNET_BYTES,
        TunnelType::Vlan => VLAN_TAG_BYTES,
        TunnelType::QinQ => 2 * VLAN_TAG_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_is_that_of_the_design_when_options_are_default() {
        let options = TunnelOptions::default();
        let table = [
            (TunnelType::Vxlan, 50, 70),
            (TunnelType::Geneve, 58, 78),
            (TunnelType::Gre, 42, 62),
            (TunnelType::Stt, 72, 92),
            (TunnelType::Vlan, 4, 4),
            (TunnelType::QinQ, 8, 8),
        ];
        assert_eq!(table.map(|(tunnel, _, _)| tunnel), TunnelType::ALL);
        for (tunnel, v4, v6) in table {
            assert_eq!(overhead_bytes(tunnel, Family::V4, &options), v4, "{tunnel}");
            assert_eq!(overhead_bytes(tunnel, Family::V6, &options), v6, "{tunnel}");
        }
    }

    #[test]
    fn overhead_follows_the_options_when_they_change_the_header() {
        let mut options = TunnelOptions::default();
        options.geneve.logical_ports = false;
        options.gre.key = false;
        assert_eq!(overhead_bytes(TunnelType::Geneve, Family::V4, &options), 50);
        assert_eq!(overhead_bytes(TunnelType::Gre, Family::V4, &options), 38);
        options.gre = GreOptions { checksum: true, key: true, sequence: true, ..options.gre };
        assert_eq!(overhead_bytes(TunnelType::Gre, Family::V6, &options), 70);
        // These cost no bytes: a zero checksum is still sent, and the ports are inside STT's context.
        options.vxlan.checksum = Some(false);
        options.stt.logical_ports = false;
        assert_eq!(overhead_bytes(TunnelType::Vxlan, Family::V4, &options), 50);
        assert_eq!(overhead_bytes(TunnelType::Stt, Family::V4, &options), 72);
    }
}
