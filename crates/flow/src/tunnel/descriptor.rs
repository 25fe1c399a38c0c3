//! [`TunnelDescriptor`]: the constant properties of a tunnel type.
//!
//! A descriptor is data. Other code reads it instead of matching on
//! [`TunnelType`](super::TunnelType), so that a new type only needs a new descriptor.

use super::settings::TunnelOption;
use wire::{Protocol, Vni, ipv4, ipv6};

/// The description of a tunnel type.
#[derive(Debug)]
pub struct TunnelDescriptor {
    /// Its name in `network.toml`, in JSON and on command lines.
    pub name: &'static str,
    /// The RFC or other document that specifies it.
    pub standard: &'static str,
    /// The protocol that carries the tunnel header.
    pub carrier: Carrier,
    /// The registered destination port; 0 if the carrier has no ports.
    pub default_port: u16,
    /// The length of the tunnel header.
    pub header: HeaderLen,
    /// How `network.toml` identifies the logical switches of this type.
    pub network_id: NetworkId,
    /// Where the tunnel header carries the logical ports.
    pub logical_ports: LogicalPortsField,
    /// The keys of `[tunnel_options.NAME]`, in the order of the documentation.
    pub options: &'static [TunnelOption],
    /// The device features that segment super-packets of this type.
    pub offloads: DeviceOffloads,
    /// The support of the BPF programs for this type.
    pub kernel_datapath: KernelDatapath,
    /// Whether GRO looks into the tunnel if a kernel device owns the UDP port. The user datapath
    /// then creates such a device (`weft-gro`) for packets on their way to the BPF programs.
    pub has_gro_device: bool,
}

/// The protocol that carries a tunnel header, as sockets, firewalls and NICs see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Carrier {
    /// A UDP datagram. Its source port carries the entropy of the inner flow.
    Udp,
    /// An IP packet of protocol 47. There are no ports.
    Gre,
    /// TCP-like segments without a connection. The source port carries the entropy.
    TcpLike,
    /// VLAN tags on the uplink: there is no outer IP header and no remote end point.
    Tags,
}

impl Carrier {
    /// The protocol number of the outer IP header; `None` for tags.
    pub const fn protocol(self) -> Option<Protocol> {
        match self {
            Self::Udp => Some(Protocol::UDP),
            Self::Gre => Some(Protocol::GRE),
            Self::TcpLike => Some(Protocol::TCP),
            Self::Tags => None,
        }
    }

    /// Bytes between the outer IP header and the tunnel header.
    pub const fn header_len(self) -> usize {
        match self {
            Self::Udp => wire::udp::HEADER_LEN,
            Self::TcpLike => wire::tunnel::stt::SEGMENT_HEADER_LEN,
            Self::Gre | Self::Tags => 0,
        }
    }
}

/// The length of a tunnel header in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderLen {
    /// The mandatory fields; for [`Carrier::Tags`], the tags.
    pub fixed: u8,
    /// Each of checksum, key and sequence number, for types that have them as optional fields.
    pub optional_field: u8,
    /// The field for the logical ports; 0 if the header has room for them anyway.
    pub logical_ports: u8,
}

impl HeaderLen {
    /// A header without optional fields.
    pub const fn fixed(len: usize) -> Self {
        Self { fixed: len as u8, optional_field: 0, logical_ports: 0 }
    }

    /// The header with these optional fields, without logical ports.
    pub const fn with_fields(self, checksum: bool, key: bool, sequence: bool) -> usize {
        let fields = checksum as usize + key as usize + sequence as usize;
        self.fixed as usize + fields * self.optional_field as usize
    }
}

/// The key of `network.toml` that identifies the logical switches of a tunnel type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkId {
    /// `vni`, a number in the tunnel header.
    Vni {
        /// The largest number.
        max: u32,
        /// The error message for a number that is out of range.
        rule: &'static str,
    },
    /// `vlan`, one tag.
    Vlan,
    /// `vlan = { outer, inner }`, two tags.
    VlanPair,
}

impl NetworkId {
    /// A 24-bit network identifier.
    pub const VNI_24: Self =
        Self::Vni { max: Vni::MAX, rule: "a VNI is 1 to 16777215 (0 means no key)" };

    /// The key of `[[logical_switch]]`.
    pub const fn key_name(self) -> &'static str {
        match self {
            Self::Vni { .. } => "vni",
            Self::Vlan | Self::VlanPair => "vlan",
        }
    }

    /// An example for error messages.
    pub const fn example(self) -> &'static str {
        match self {
            Self::Vni { .. } => "vni = 5001",
            Self::Vlan => "vlan = 100",
            Self::VlanPair => "vlan = { outer = 100, inner = 200 }",
        }
    }

    /// Number of VLAN tags that carry it.
    pub const fn tags(self) -> usize {
        match self {
            Self::Vni { .. } => 0,
            Self::Vlan => 1,
            Self::VlanPair => 2,
        }
    }
}

/// Where a tunnel header carries the ingress and egress logical ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogicalPortsField {
    /// Nowhere: the receiver looks up the destination address.
    Absent,
    /// OVN's Geneve option: class 0x0102, type 0x80, 4 bytes of data.
    GeneveOption,
    /// Bits 24 to 54 of STT's 64-bit context.
    SttContext,
}

/// The device features, by their ethtool names, that segment super-packets of a tunnel type.
///
/// If a device lacks one of them, the kernel segments. An empty list means that no super-packets
/// are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceOffloads {
    /// Packets of the user datapath over IPv4.
    pub user: &'static [&'static str],
    /// Packets of the user datapath over IPv6.
    pub user_ipv6: &'static [&'static str],
    /// Packets of BPF programs and of the kernel's own tunnels, without outer checksum.
    pub kernel: &'static [&'static str],
    /// Packets of BPF programs and of the kernel's own tunnels, with outer checksum.
    pub kernel_checksum: &'static [&'static str],
}

/// Segmentation of TCP over IPv4.
pub const TSO: &str = "tx-tcp-segmentation";
/// Segmentation of TCP over IPv6.
pub const TSO6: &str = "tx-tcp6-segmentation";

impl DeviceOffloads {
    /// UDP tunnels: the user datapath sends UDP GSO packets.
    pub(super) const UDP: Self = Self {
        user: &["tx-udp-segmentation"],
        user_ipv6: &["tx-udp-segmentation"],
        kernel: &["tx-udp_tnl-segmentation", TSO, TSO6],
        kernel_checksum: &["tx-udp_tnl-csum-segmentation", TSO, TSO6],
    };
    /// GRE: the user datapath sends one packet for each segment.
    pub(super) const GRE: Self = Self {
        user: &[],
        user_ipv6: &[],
        kernel: &["tx-gre-segmentation", TSO, TSO6],
        kernel_checksum: &["tx-gre-csum-segmentation", TSO, TSO6],
    };
    /// TCP-like tunnels: the device segments the outer packet.
    pub(super) const TCP_SHAPED: Self =
        Self { user: &[TSO], user_ipv6: &[TSO6], kernel: &[], kernel_checksum: &[] };
    /// Tagged frames.
    pub(super) const TAGS: Self = Self {
        user: &[TSO, TSO6],
        user_ipv6: &[TSO, TSO6],
        kernel: &[TSO, TSO6],
        kernel_checksum: &[TSO, TSO6],
    };
}

/// The support of the kernel datapath's BPF programs for a tunnel type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelDatapath {
    /// Nothing: the user datapath sends and receives the packets.
    Unsupported {
        /// The reason.
        why: &'static str,
    },
    /// They encapsulate and decapsulate. The C constant of the type is `WEFT_` and its upper-case
    /// name.
    EndPoints,
    /// They push and pop the tags.
    Tags,
}

impl TunnelDescriptor {
    /// True for types with an outer IP header, hence with remote end points.
    pub const fn has_endpoints(&self) -> bool {
        !matches!(self.carrier, Carrier::Tags)
    }

    /// Bytes that the type adds to a guest's IP packet, so that guest MTU + overhead = MTU of the
    /// underlay.
    ///
    /// The inner Ethernet header counts; the outer one does not, because it is not part of an IP
    /// MTU. Tags count in full, because a NIC may not accept longer frames. For STT the result is
    /// the overhead of the first segment of a frame.
    pub const fn overhead_bytes(&self, is_ipv6: bool, header_len: usize) -> u16 {
        let ip = if is_ipv6 { ipv6::HEADER_LEN } else { ipv4::MIN_HEADER_LEN };
        let bytes = match self.carrier {
            Carrier::Tags => header_len,
            carrier => ip + carrier.header_len() + header_len + wire::ethernet::HEADER_LEN,
        };
        bytes as u16
    }
}
