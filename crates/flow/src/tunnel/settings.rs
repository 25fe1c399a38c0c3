//! The settings of a tunnel type: the keys of `[tunnel_options.NAME]` in `network.toml`, and their
//! values.

use super::{Carrier, LogicalPortsField, TunnelDescriptor, TunnelType};
use crate::{Dscp, Ttl};
use wire::EtherType;

/// A key of `[tunnel_options.NAME]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunnelOption {
    /// The setting.
    pub kind: OptionKind,
    /// The key.
    pub name: &'static str,
    /// An example for error messages.
    pub example: &'static str,
    /// The default, as the documentation shows it.
    pub default: &'static str,
}

/// The setting that an option changes. The reader of `network.toml` parses the value of each kind
/// into a field of [`TunnelSettings`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OptionKind {
    /// The destination port, 1 to 65535.
    Port,
    /// Whether the outer UDP checksum, or the checksum of the tunnel header, is sent.
    Checksum,
    /// Whether the key field is sent.
    Key,
    /// Whether sequence numbers are sent.
    Sequence,
    /// Whether the logical ports are sent.
    LogicalPorts,
    /// TTL or hop limit of the outer header.
    Ttl,
    /// DSCP of the outer header.
    Dscp,
    /// The multicast group of the underlay for broadcast, unknown unicast and multicast frames.
    Group,
    /// TTL or hop limit of packets to that group.
    GroupTtl,
    /// The EtherType of the outer tag.
    ServiceTpid,
}

/// The options that several types have.
impl TunnelOption {
    pub(super) const TTL: Self = Self {
        kind: OptionKind::Ttl,
        name: "ttl",
        example: "ttl = \"inherit\" or ttl = 64",
        default: "64",
    };
    pub(super) const DSCP: Self = Self {
        kind: OptionKind::Dscp,
        name: "dscp",
        example: "dscp = \"inherit\" or dscp = 46",
        default: "0",
    };
    /// For UDP tunnels: by default, each host decides from the offloads of its uplink.
    pub(super) const UDP_CHECKSUM: Self = Self {
        kind: OptionKind::Checksum,
        name: "checksum",
        example: "checksum = true",
        default: "each host chooses",
    };
    pub(super) const LOGICAL_PORTS: Self = Self {
        kind: OptionKind::LogicalPorts,
        name: "logical_ports",
        example: "logical_ports = true",
        default: "true",
    };

    pub(super) const fn new(
        kind: OptionKind,
        name: &'static str,
        example: &'static str,
        default: &'static str,
    ) -> Self {
        Self { kind, name, example, default }
    }
}

/// The settings of one tunnel type. Fields that the type has no option for keep their defaults.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TunnelSettings {
    /// The destination port; 0 if the type has none.
    pub port: u16,
    /// Whether the outer UDP checksum, or that of the tunnel header, is sent. `None` lets each host
    /// decide from the offloads of its uplink.
    pub checksum: Option<bool>,
    /// Whether the key field is sent. Without a key, the tunnel carries only one logical switch.
    pub key: bool,
    /// Whether sequence numbers are sent.
    pub sequence: bool,
    /// Whether the logical ports are sent.
    pub logical_ports: bool,
    /// TTL or hop limit of the outer header.
    pub ttl: Ttl,
    /// DSCP of the outer header; the ECN bits follow RFC 6040.
    pub dscp: Dscp,
    /// TTL or hop limit of packets to multicast groups, 1 to 255.
    pub group_ttl: u8,
    /// The EtherType of the outer of two tags.
    pub service_tpid: EtherType,
}

impl TunnelDescriptor {
    /// The option of a kind, if the type has it.
    pub const fn option(&self, kind: OptionKind) -> Option<&'static TunnelOption> {
        let mut index = 0;
        while index < self.options.len() {
            if self.options[index].kind as u8 == kind as u8 {
                return Some(&self.options[index]);
            }
            index += 1;
        }
        None
    }

    /// Every option at its default.
    pub const fn default_settings(&self) -> TunnelSettings {
        TunnelSettings {
            port: self.default_port,
            checksum: match self.carrier {
                Carrier::Udp => None,
                // The checksum of the TCP-like header is mandatory, because NICs fill it in.
                Carrier::TcpLike => Some(true),
                Carrier::Gre | Carrier::Tags => Some(false),
            },
            key: self.option(OptionKind::Key).is_some(),
            sequence: false,
            logical_ports: !matches!(self.logical_ports, LogicalPortsField::Absent),
            ttl: Ttl::Fixed(Ttl::UNLESS_GIVEN),
            dscp: Dscp::Fixed(0),
            group_ttl: 1,
            service_tpid: EtherType::QINQ,
        }
    }
}

impl TunnelType {
    /// Bytes that the type adds to a guest's IP packet with these settings; see
    /// [`TunnelDescriptor::overhead_bytes`].
    pub const fn overhead_bytes(self, is_ipv6: bool, settings: &TunnelSettings) -> u16 {
        let descriptor = self.descriptor();
        let TunnelSettings { key, sequence, logical_ports, .. } = *settings;
        let checksum = matches!(settings.checksum, Some(true));
        let mut len = descriptor.header.with_fields(checksum, key, sequence);
        if logical_ports {
            len += descriptor.header.logical_ports as usize;
        }
        descriptor.overhead_bytes(is_ipv6, len)
    }
}
