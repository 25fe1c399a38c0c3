//! What a datapath does with a frame.

use crate::{DatapathKey, DropReason, EndpointId, Field, PortKey, PortNo};
use std::sync::Arc;
use wire::vlan::Tag;

/// The logical ports that a tunnelled frame carries with it (Geneve option class 0x0102 type 0x80; bits 24-54 of STT's
/// context).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LogicalPorts {
    /// Where the frame entered the logical switch; 15 bits on the wire. `None` is sent as 0.
    pub ingress: Option<PortKey>,
    /// Where it leaves: one port, or a multicast group.
    pub egress: PortKey,
}

impl From<LogicalPorts> for wire::tunnel::LogicalPorts {
    fn from(ports: LogicalPorts) -> Self {
        let ingress = ports.ingress.map_or(0, PortKey::value);
        Self { ingress, egress: ports.egress.value() }
    }
}

/// What a tunnel header says beside the frame it carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TunnelKey {
    /// The logical switch: VNI, GRE key, or STT context.
    pub datapath: DatapathKey,
    /// `Some` where the tunnel carries logical ports.
    pub ports: Option<LogicalPorts>,
}

/// A packet that is made from another one, in answer to it or on its behalf. The new packet keeps the Ethernet addresses and
/// tags of the old one, and IP addresses where both have them, unless said otherwise here; what is to differ is set by the
/// actions that follow. [`Reply::build`] makes it and says when there is none, [`Reply::key_edits`] tells what its key is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reply {
    /// An ARP request for the destination of an IPv4 packet: sender as the packet's source, target its destination,
    /// `eth_dst` broadcast.
    Arp,
    /// A neighbour advertisement in answer to a neighbour solicitation (RFC 4861 section 7.2.4); `router` sets the R flag.
    /// Ethernet addresses are exchanged, the IP destination is who asked, and the IP source is the solicitation's target. An
    /// answer to `::` goes to all nodes. The target's link-layer address is the new Ethernet source.
    NeighbourAdvert {
        /// The R flag.
        router: bool,
    },
    /// A neighbour solicitation for the destination of an IPv6 packet, to the group of its neighbours (RFC 4861 section
    /// 7.2.2). The IP source is the link-local address that belongs to the Ethernet source: the packet's own may be of
    /// another link.
    NeighbourSolicit,
    /// An ICMP error about an IPv4 packet, type 3 code 1 (RFC 792), with as much of the packet as 576 bytes hold. The
    /// addresses are not exchanged.
    Icmp4,
    /// An ICMPv6 error about an IPv6 packet, type 1 code 1 (RFC 4443), with as much of the packet as 1280 bytes
    /// hold. The addresses are not exchanged.
    Icmp6,
    /// A TCP reset in answer to a segment (RFC 9293 section 3.10.7.1); ports are exchanged, addresses are not.
    TcpReset,
}

impl Reply {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Arp,
        Self::NeighbourAdvert { router: false },
        Self::NeighbourAdvert { router: true },
        Self::NeighbourSolicit,
        Self::Icmp4,
        Self::Icmp6,
        Self::TcpReset,
    ];

    /// True when it asks for a neighbour's address.
    pub const fn is_solicitation(self) -> bool {
        matches!(self, Self::Arp | Self::NeighbourSolicit)
    }
}

/// How much a log record matters; as in OVN.
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

/// What a logging rule did with the packet that it logs; as in OVN.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// Let it pass.
    Allow,
    /// Dropped it.
    Drop,
    /// Dropped it and answered.
    Reject,
    /// None is given.
    Unknown,
}

/// What is to be logged with a packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LogRecord {
    /// The name of the rule; may be empty.
    pub name: String,
    /// How much it matters.
    pub priority: LogPriority,
    /// What became of the packet.
    pub verdict: Verdict,
}

/// One step of what happens to a frame. A list of them is executed in order on one frame; a frame that is to go to several
/// places simply has several outputs in its list.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Send the frame, as it stands, out of a port.
    Output(PortNo),
    /// Send the frame to a remote end point. The frame itself is as before for the actions that follow.
    Encap {
        /// Where to.
        endpoint: EndpointId,
        /// What the tunnel header says.
        key: TunnelKey,
    },
    /// Put a tag in front of the others.
    PushVlan(Tag),
    /// Take the outermost tag off; nothing when there is none.
    PopVlan,
    /// Count the frame under a reason and end the list.
    Drop(DropReason),
    /// Rewrite bits of a header field, and the checksums that cover it. Nothing when the frame lacks the header: the
    /// translation has made sure of it. What says which headers there are is never rewritten: `eth_type`, `ip_proto`,
    /// `ip_frag`, the bit of a TCI that says that there is a tag, and a TPID by what is none. Ports of a fragmented SCTP
    /// message, whose checksum cannot be kept right, end the list with [`DropReason::NotApplicable`].
    Set {
        /// A field for which [`Field::is_header`] holds.
        field: Field,
        /// The new bits, right aligned in the field; 0 outside `mask`.
        value: u128,
        /// Which bits of the field to rewrite.
        mask: u128,
    },
    /// Rewrite the MTU of an ICMP "packet too big" (RFC 1191, RFC 4443 section 3.2), or of an error of type "unreachable",
    /// which may become one. At most 65,535 for IPv4. Nothing for other frames.
    SetIcmpMtu(u32),
    /// Execute a list on a copy of the frame, then go on with the frame as it was.
    Clone(Box<[Action]>),
    /// Make a new packet from this one, execute a list on it, then go on with the frame as it was. Where there is no such
    /// packet to make, or none may be sent now ([`Output::solicit`](crate::Output::solicit)), that is counted as a drop, and the
    /// list goes on.
    Reply {
        /// The packet to make.
        reply: Reply,
        /// What to do with it.
        actions: Box<[Action]>,
    },
    /// One list for frames, or segments of super-packets, of more than `bytes` from the Ethernet header on (tags
    /// included), and another for the others. Ends the list.
    CheckLength {
        /// The longest frame that is not too long.
        bytes: u16,
        /// For longer ones.
        larger: Box<[Action]>,
        /// For the others.
        otherwise: Box<[Action]>,
    },
    /// Write a log record about the frame.
    Log(Arc<LogRecord>),
    /// Hand a copy of the frame to a controller, if there is one.
    Controller,
    /// Go on only as long as the rate is kept, with room for a burst; else drop
    /// ([`DropReason::Meter`]). Equal meters of one datapath are one.
    Meter {
        /// Kilobits per second.
        rate_kbps: u64,
        /// Kilobits that may come at once.
        burst_kb: u64,
    },
    /// The transmit queue for the outputs that follow in this list; 0 is the default.
    SetQueue(u32),
}
