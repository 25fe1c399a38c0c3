//! Actions: the operations that a datapath performs on a frame.

use crate::{CtAction, DatapathKey, DropReason, EndpointId, Field, PortKey, PortNo};
use services::Service;
use std::sync::Arc;
use wire::vlan::Tag;

/// The logical ports in a tunnel header (Geneve option class 0x0102 type 0x80; bits 24-54 of the
/// STT context).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LogicalPorts {
    /// Ingress logical port; 15 bits on the wire. `None` is sent as 0.
    pub ingress: Option<PortKey>,
    /// Egress logical port, or a multicast group.
    pub egress: PortKey,
}

impl From<LogicalPorts> for wire::tunnel::LogicalPorts {
    fn from(ports: LogicalPorts) -> Self {
        let ingress = ports.ingress.map_or(0, PortKey::value);
        Self { ingress, egress: ports.egress.value() }
    }
}

/// The metadata in a tunnel header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TunnelKey {
    /// The logical switch: VNI, GRE key, or STT context.
    pub datapath: DatapathKey,
    /// `Some` when the tunnel carries logical ports.
    pub ports: Option<LogicalPorts>,
}

/// A packet that is generated from another one: a reply to it, or a neighbour query on its behalf.
///
/// The new packet keeps the Ethernet addresses and tags of the original, and the IP addresses if
/// both have them. Variants below name their exceptions, and the actions that follow set other
/// fields. [`Reply::build`] generates the packet or reports why it cannot; [`Reply::key_edits`]
/// describes its flow key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reply {
    /// An ARP request for the destination of an IPv4 packet. Sender and target addresses are the
    /// packet's source and destination; `eth_dst` is broadcast.
    Arp,
    /// A neighbour advertisement that answers a neighbour solicitation (RFC 4861 section 7.2.4).
    ///
    /// Ethernet addresses are exchanged. The IP destination is the soliciting node, or all nodes
    /// when it solicits from `::`. The IP source is the solicitation's target. The target's
    /// link-layer address is the new Ethernet source.
    NeighbourAdvert {
        /// The R flag.
        router: bool,
    },
    /// A neighbour solicitation for the destination of an IPv6 packet, sent to the solicited-node
    /// multicast group (RFC 4861 section 7.2.2).
    ///
    /// The IP source is the link-local address of the Ethernet source, because the packet's own
    /// source may belong to another link.
    NeighbourSolicit,
    /// An ICMP host unreachable error about an IPv4 packet, type 3 code 1 (RFC 792). The error
    /// packet is at most 576 bytes long. The addresses are not exchanged.
    Icmp4,
    /// An ICMPv6 error about an IPv6 packet, type 1 code 1 (RFC 4443). The error packet is at most
    /// 1280 bytes long. The addresses are not exchanged.
    Icmp6,
    /// A TCP reset that answers a segment (RFC 9293 section 3.10.7.1). Ports are exchanged,
    /// addresses are not.
    TcpReset,
    /// An SCTP ABORT that answers a packet (RFC 9260 section 8.4). Ports are exchanged, addresses
    /// are not.
    SctpAbort,
}

impl Reply {
    /// All replies.
    pub const ALL: [Self; 8] = [
        Self::Arp,
        Self::NeighbourAdvert { router: false },
        Self::NeighbourAdvert { router: true },
        Self::NeighbourSolicit,
        Self::Icmp4,
        Self::Icmp6,
        Self::TcpReset,
        Self::SctpAbort,
    ];

    /// True for a query for a neighbour's link-layer address.
    pub const fn is_solicitation(self) -> bool {
        matches!(self, Self::Arp | Self::NeighbourSolicit)
    }
}

/// The severity of a log record, as in OVN.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum LogPriority {
    /// Immediate action is needed.
    Alert,
    /// Something is wrong.
    Warning,
    /// Normal but worth noting.
    Notice,
    /// Informational.
    Info,
    /// For debugging.
    Debug,
}

impl LogPriority {
    /// The name in OVN.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alert => "alert",
            Self::Warning => "warning",
            Self::Notice => "notice",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

impl AclVerdict {
    /// The name in OVN.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Drop => "drop",
            Self::Reject => "reject",
            Self::Unknown => "unknown",
        }
    }
}

/// The verdict of an ACL that logs a packet, as in OVN.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AclVerdict {
    /// The packet was allowed.
    Allow,
    /// The packet was dropped.
    Drop,
    /// The packet was rejected: dropped, with a reply to the sender.
    Reject,
    /// No verdict is given.
    Unknown,
}

/// The fields of a log record about a packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LogRecord {
    /// The name of the ACL; may be empty.
    pub name: String,
    /// Severity.
    pub priority: LogPriority,
    /// The ACL's verdict.
    pub verdict: AclVerdict,
    /// True for an ACL on packets from logical ports, false for one on packets to them.
    pub is_from_lport: bool,
    /// The meter that limits the rate of records; `None` for a separate limit per ACL name.
    pub meter: Option<String>,
}

/// A meter with a name: a limit on the packets that services of the switch handle, or on the log
/// records of ACLs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NamedMeter {
    /// The name. Packets of all flows with this meter count together.
    pub name: String,
    /// The unit that `rate` and `burst` count.
    pub unit: MeterUnit,
    /// Units per second; at least 1.
    pub rate: u64,
    /// The burst size in units; at least 1.
    pub burst: u64,
}

/// The unit that a [`NamedMeter`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MeterUnit {
    /// Packets.
    Packets,
    /// Kilobits.
    Kilobits,
}

/// One action on a frame. A list of actions is executed in order on one frame. A frame for several
/// destinations has several outputs in its list.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Send the frame, as modified so far, out of a port.
    Output(PortNo),
    /// Send the frame through a tunnel. Later actions in the list see the frame without the outer
    /// header.
    Encap {
        /// The remote end point.
        endpoint: EndpointId,
        /// The metadata of the tunnel header.
        key: TunnelKey,
    },
    /// Push a VLAN tag as the outermost one.
    PushVlan(Tag),
    /// Pop the outermost VLAN tag; no effect on an untagged frame.
    PopVlan,
    /// Count the frame under a reason and end the list.
    Drop(DropReason),
    /// Rewrite bits of a header field, and update the checksums that cover it.
    ///
    /// No effect when the frame lacks the header; the translation checks that. Fields that
    /// determine the headers are never rewritten: `eth_type`, `ip_proto`, `ip_frag`, the
    /// tag-present bit of a TCI. A TPID is only replaced by another TPID.
    ///
    /// The ports of a fragmented SCTP message end the list with [`DropReason::NotApplicable`],
    /// because their checksum covers bytes in other fragments.
    Set {
        /// A field for which [`Field::is_header`] holds.
        field: Field,
        /// The new bits, right aligned in the field; 0 outside `mask`.
        value: u128,
        /// The bits of the field to rewrite.
        mask: u128,
    },
    /// Rewrite the MTU of an ICMP "packet too big" (RFC 1191, RFC 4443 section 3.2), or of a
    /// "destination unreachable" whose code may be changed later. At most 65,535 for IPv4. No
    /// effect on other frames.
    SetIcmpMtu(u32),
    /// Execute a list on a copy of the frame, then continue with the unchanged frame.
    Clone(Box<[Action]>),
    /// Generate a packet from this frame, execute a list on it, then continue with the unchanged
    /// frame.
    ///
    /// If the packet cannot be generated, or may not be sent now
    /// ([`ActionOutput::solicit`](crate::ActionOutput::solicit)), a drop is counted and the list
    /// continues.
    Reply {
        /// The packet to generate.
        reply: Reply,
        /// The actions on the new packet.
        actions: Box<[Action]>,
    },
    /// Branch on the frame length: execute one list for long frames and another for the others.
    /// Ends the list. The length includes Ethernet header and tags; for a super-packet it is the
    /// length of a segment.
    CheckLength {
        /// The longest frame for which `otherwise` is executed.
        bytes: u16,
        /// Actions for frames longer than `bytes`.
        larger: Box<[Action]>,
        /// Actions for the other frames.
        otherwise: Box<[Action]>,
    },
    /// Let a service of the switch answer the frame ([`answer`](crate::answer)). Ends the list.
    ///
    /// Only the datapath sees the request, so the translation makes one list for each destination
    /// that an answer may have.
    Serve {
        /// The service.
        service: Arc<Service>,
        /// Actions on an answer: one list for each of [`Service::destinations`], in that order.
        answered: Box<[Box<[Action]>]>,
        /// Actions on the unchanged frame, if there is no answer.
        otherwise: Box<[Action]>,
    },
    /// Write a log record about the frame.
    Log(Arc<LogRecord>),
    /// Send a copy of the frame to the controller, if there is one.
    Controller,
    /// Police the frame with a token bucket, and drop it when the bucket is empty
    /// ([`DropReason::Meter`]). Equal meters of one datapath share a bucket.
    Meter {
        /// Kilobits per second.
        rate_kbps: u64,
        /// Burst size, in kilobits.
        burst_kb: u64,
    },
    /// Drop the frame if the meter's rate is exceeded ([`DropReason::Meter`]). Precedes the action
    /// of the service whose packets the meter limits.
    NamedMeter(Arc<NamedMeter>),
    /// The transmit queue for the outputs that follow in this list; 0 is the default.
    SetQueue(u32),
    /// Pass the frame through the connection tracker. The list then continues with the unchanged
    /// frame. If the tracker refuses the frame, a drop is counted and the list ends.
    Ct(Arc<CtAction>),
}
