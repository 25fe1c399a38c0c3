//! The intermediate form: the steps of a flow, whichever language it was written in.

use crate::program::TableId;
use crate::state::{Affinity, AffinityVip};
use flow::{CtNat, Field, LogRecord, NamedMeter, PortNo, Reply, Subfield};
use services::Service;
use std::net::IpAddr;
use std::sync::Arc;

/// One step of a flow. Steps work on the flow key of the packet. The translation emits
/// [`Action`](flow::Action)s for changed headers when the packet is output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Writes a constant.
    Load {
        /// The destination.
        to: Subfield,
        /// The value, right aligned; bits beyond the width are 0.
        value: u128,
    },
    /// Copies bits; both sides have the same width.
    Move {
        /// The source.
        from: Subfield,
        /// The destination.
        to: Subfield,
    },
    /// Exchanges bits; both sides have the same width.
    Exchange(Subfield, Subfield),
    /// Pushes bits on the packet's stack.
    Push(Subfield),
    /// Pops the top of the stack; an empty stack yields 0.
    Pop(Subfield),
    /// Pushes a VLAN tag with this TPID, VLAN ID 0 and priority 0.
    PushVlan {
        /// 0x8100, 0x88a8 or 0x9100.
        tpid: u16,
    },
    /// Pops the outermost VLAN tag. Does nothing to an untagged frame.
    PopVlan,
    /// Sets bits of the outer VLAN tag. Pushes a tag with TPID 0x8100 first when the frame is
    /// untagged (`mod_vlan_vid` and `mod_vlan_pcp` of ovs-ofctl).
    SetVlan {
        /// The destination, bits of [`Field::VlanTci`].
        bits: Subfield,
        /// The value, right aligned.
        value: u16,
    },
    /// Decrements the TTL or hop limit. A packet whose TTL is 0 or 1 is dropped as
    /// [`DropReason::TtlExpired`](flow::DropReason::TtlExpired). Does nothing to a packet that is
    /// not IP.
    DecTtl,
    /// Looks the packet up in another table, executes the flow found, and then continues here.
    Next(TableId),
    /// Like `Next`, but looks up with another `in_port` (`resubmit(port,table)` of ovs-ofctl). The
    /// steps of the flow found see the real `in_port`.
    Resubmit {
        /// The `in_port` to look up with.
        in_port: PortNo,
        /// The table; `None` for the table of this flow.
        table: Option<TableId>,
    },
    /// Logical output. From an ingress pipeline the packet goes to the egress pipeline of
    /// `outport`, from an egress pipeline it leaves through `outport`.
    Output,
    /// Sends the packet out of a datapath port. Does nothing when that is its ingress port.
    OutputPort(PortNo),
    /// Sends the packet out of the datapath port whose number is in these bits.
    OutputField(Subfield),
    /// Sends the packet out of its ingress port.
    OutputInPort,
    /// Sends the packet out of every port except its ingress port.
    Flood,
    /// Forwards like a learning switch: learns the source MAC address, and sends the packet to the
    /// port of the destination, or floods it when that is unknown.
    Normal,
    /// Sends a copy to the controller, if there is one.
    Controller,
    /// Executes steps on a copy of the packet.
    Clone(Arc<[Op]>),
    /// Generates a new packet from this one, and executes steps on it.
    Reply {
        /// The packet to generate.
        reply: Reply,
        /// The steps.
        ops: Arc<[Op]>,
    },
    /// Rejects the packet (OVN's `reject`): generates a reply with Ethernet and IP addresses
    /// exchanged, and executes steps on it. The reply is a TCP reset for TCP, an ABORT for SCTP,
    /// "port unreachable" (ICMP or ICMPv6) for UDP, "unreachable" for other IP packets. Other
    /// packets get no reply.
    Reject(Arc<[Op]>),
    /// Sets the MTU of an ICMP "packet too big", in bytes.
    SetIcmpMtu(u32),
    /// Reads or changes learned state. Boxed because it is larger than the other steps.
    Learned(Box<LearnedOp>),
    /// Sets a bit to 1 when port security forbids the packet.
    PortSecurity {
        /// The bit.
        to: Subfield,
        /// Ingress: may `inport` send the packet? Egress: may `outport` receive it?
        direction: Direction,
    },
    /// Sets a bit to 1 when the frame is longer than a limit. For a super-packet the length of each
    /// segment's frame counts.
    CheckLength {
        /// The bit.
        to: Subfield,
        /// The limit in bytes, including the Ethernet header.
        bytes: u16,
    },
    /// Passes the packet to a service. If the service answers, the answer replaces the packet and a
    /// bit is set to 1, otherwise to 0.
    Serve {
        /// The bit.
        to: Subfield,
        /// The service.
        service: Arc<Service>,
    },
    /// Looks up a DNS query in the names of the datapath ([`Datapath::dns`](crate::Datapath::dns)),
    /// with the same effect as [`Op::Serve`]. The bit is 0 if the datapath has no names.
    DnsLookup(Subfield),
    /// Loads one of several values, chosen by a hash of the packet's addresses, protocol and ports.
    Select {
        /// The destination.
        to: Subfield,
        /// Values and weights; at least one weight is not 0.
        choices: Arc<[(u16, u16)]>,
    },
    /// Writes a log record.
    Log(Arc<LogRecord>),
    /// Drops packets above a rate.
    Meter {
        /// The rate in kilobits per second.
        rate_kbps: u64,
        /// The burst in kilobits.
        burst_kb: u64,
    },
    /// Drops packets that the meter does not allow.
    NamedMeter(Arc<NamedMeter>),
    /// Sets the transmit queue for later output.
    SetQueue(u32),
    /// Passes the packet through the connection tracker. Boxed because it is larger than the other
    /// steps.
    Ct(Box<CtOp>),
    /// Chooses a backend, and passes the packet through the connection tracker.
    CtBalance(Box<CtBalance>),
    /// Reads a header field of the packet that opened the connection of a tracked packet; 0 for
    /// other packets. If NAT in this zone has translated the field, the packet is dropped as
    /// [`DropReason::UnsupportedAction`](flow::DropReason::UnsupportedAction).
    CtOriginal {
        /// The destination.
        to: Subfield,
        /// The header field.
        part: CtOriginal,
    },
    /// Makes the packet untracked: the fields of connection tracking become 0.
    CtClear,
    /// Ends the flow: later steps are not executed.
    Drop,
    /// An action that weft does not support, by name. The packet is dropped as
    /// [`DropReason::UnsupportedAction`](flow::DropReason::UnsupportedAction).
    Unsupported(&'static str),
}

/// Passes the packet through the connection tracker. If `next` is set, a copy begins its next pass
/// in that table, with the state of its connection. The steps that follow work on the untracked
/// packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CtOp {
    /// The zone.
    pub zone: CtZone,
    /// Network address translation.
    pub nat: Option<CtNat>,
    /// Commits the connection. These steps write its mark and label, and are all [`Op::Load`] or
    /// [`Op::Move`].
    pub commit: Option<Arc<[Op]>>,
    /// A commit of a packet in the reply direction ends the connection and opens a new one.
    pub force: bool,
    /// The table in which the next pass begins; `None` to commit only.
    pub next: Option<TableId>,
}

/// A load balancer: commits a new connection with destination NAT to one of the backends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CtBalance {
    /// The zone.
    pub zone: CtZone,
    /// The backends; only those of the packet's address family are used.
    pub backends: Box<[CtBackend]>,
    /// The fields whose hash selects the backend; empty for addresses, protocol and ports.
    pub hash_fields: Box<[Field]>,
    /// Steps that write the mark and the label of the connection, as in [`CtOp::commit`].
    pub exec: Arc<[Op]>,
    /// The table in which the next pass begins.
    pub next: Option<TableId>,
}

/// A backend of a load balancer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CtBackend {
    /// The address.
    pub ip: IpAddr,
    /// The port; 0 to keep that of the packet.
    pub port: u16,
}

/// A header field of the packet that opened a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CtOriginal {
    /// The IPv4 destination.
    Ip4Dst,
    /// The IPv6 destination.
    Ip6Dst,
    /// The destination port of TCP, UDP or SCTP; 0 for other protocols.
    PortDst,
    /// The IP protocol.
    Protocol,
}

/// The zone of connection tracking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CtZone {
    /// In a logical switch, the zone of the logical port; in a logical router, that of destination
    /// NAT.
    Logical,
    /// In a logical switch, the zone of the logical port; in a logical router, that of source NAT.
    LogicalSnat,
    /// The router's zone of destination NAT.
    Dnat,
    /// The router's zone of source NAT.
    Snat,
    /// The value of some bits, at most 16.
    Bits(Subfield),
    /// A constant.
    Number(u16),
}

/// A step that reads or changes learned state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LearnedOp {
    /// Sets `eth_dst` to the MAC address bound to an IP address, or to 0 when it is unknown
    /// (`get_arp`, `get_nd`).
    GetMacBinding {
        /// The logical port behind which the IP address is.
        port: Operand,
        /// The IP address: 32 bits for IPv4, 128 bits for IPv6.
        ip: Operand,
    },
    /// Sets a bit to 1 when the IP address is bound; if `mac` is set, only when it is bound to that
    /// MAC address (`lookup_arp`, `lookup_nd`, and their `_ip` forms).
    LookupMacBinding {
        /// The bit.
        to: Subfield,
        /// The logical port behind which the IP address is.
        port: Operand,
        /// The IP address: 32 bits for IPv4, 128 bits for IPv6.
        ip: Operand,
        /// The MAC address.
        mac: Option<Operand>,
    },
    /// Binds an IP address to a MAC address (`put_arp`, `put_nd`).
    PutMacBinding {
        /// The logical port behind which the IP address is.
        port: Operand,
        /// The IP address: 32 bits for IPv4, 128 bits for IPv6.
        ip: Operand,
        /// The MAC address.
        mac: Operand,
    },
    /// Sets a field to the key of the logical port behind which a MAC address was seen, or to 0
    /// when it is unknown (`get_fdb`).
    GetFdb {
        /// The destination, normally `outport`.
        to: Subfield,
        /// The MAC address.
        mac: Operand,
    },
    /// Sets a bit to 1 when the MAC address was seen behind this logical port (`lookup_fdb`).
    LookupFdb {
        /// The bit.
        to: Subfield,
        /// The logical port.
        port: Operand,
        /// The MAC address.
        mac: Operand,
    },
    /// Learns that a MAC address is behind a logical port (`put_fdb`).
    PutFdb {
        /// The logical port.
        port: Operand,
        /// The MAC address.
        mac: Operand,
    },
    /// Notes that the IPv4 or IPv6 source address of the packet is in use behind `inport`
    /// (`mac_cache_use`).
    UseMacBinding,
    /// Sets a bit to 1 when the client has an affinity to a backend of the packet's virtual
    /// destination address, and writes the backend to registers (`chk_lb_aff`).
    CheckAffinity {
        /// The bit.
        to: Subfield,
    },
    /// Learns that new connections of the client to a virtual address go to this backend
    /// (`commit_lb_aff`).
    LearnAffinity(AffinityRule),
    /// Sets a bit to 1 when the next hop of the packet's connection is known
    /// (`chk_ecmp_nh_mac`, `chk_ecmp_nh`).
    CheckNextHop {
        /// The bit.
        to: Subfield,
        /// True for a packet in the direction in which the connection was opened, which must come
        /// from this next hop; false for a reply.
        forward: bool,
    },
    /// Learns that the connection was opened through the next hop that sent the packet
    /// (`commit_ecmp_nh`).
    LearnNextHop,
}

/// A backend that is to serve further connections of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AffinityRule {
    /// The virtual address that the client connects to.
    pub vip: AffinityVip,
    /// The backend.
    pub affinity: Affinity,
}

impl From<LearnedOp> for Op {
    fn from(op: LearnedOp) -> Self {
        Self::Learned(Box::new(op))
    }
}

/// A value that a step reads: bits of the key, or a constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// Bits of the key.
    Bits(Subfield),
    /// A constant.
    Constant {
        /// The value, right aligned.
        value: u128,
        /// The width in bits.
        width: u8,
    },
}

impl Operand {
    /// The width in bits.
    pub const fn width(self) -> u8 {
        match self {
            Self::Bits(bits) => bits.width(),
            Self::Constant { width, .. } => width,
        }
    }
}

impl From<Field> for Operand {
    fn from(field: Field) -> Self {
        Self::Bits(field.into())
    }
}

/// A pipeline of a logical datapath.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// From the logical ingress port to the choice of the egress port.
    Ingress,
    /// From the choice of the egress port to the output.
    Egress,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A large program has half a million steps, so a larger one costs megabytes.
    #[test]
    fn step_is_small() {
        assert_eq!(size_of::<Op>(), 32);
    }
}
