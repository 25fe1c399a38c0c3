//! The intermediate form: what a flow does, whatever language it was written in.

use crate::program::TableId;
use flow::{Field, LogRecord, PortNo, Reply, Subfield};
use std::sync::Arc;

/// One step of a flow. Steps work on the flow key of the packet; what they change in headers becomes
/// [`Action`](flow::Action)s when the packet is output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Writes a constant.
    Load {
        /// Where to.
        to: Subfield,
        /// Right aligned; bits beyond the width are 0.
        value: u128,
    },
    /// Copies bits; both have the same width.
    Move {
        /// From where.
        from: Subfield,
        /// Where to.
        to: Subfield,
    },
    /// Exchanges bits; both have the same width.
    Exchange(Subfield, Subfield),
    /// Puts bits on the translation's stack.
    Push(Subfield),
    /// Takes the topmost value off the stack; 0 from an empty one.
    Pop(Subfield),
    /// Puts a tag with this TPID, VID 0 and priority 0 in front of the others.
    PushVlan {
        /// 0x8100, 0x88a8 or 0x9100.
        tpid: u16,
    },
    /// Takes the outermost tag off; nothing without one.
    PopVlan,
    /// Sets bits of the outer tag, putting one of TPID 0x8100 on a frame that has none (`mod_vlan_vid` and `mod_vlan_pcp` of
    /// ovs-ofctl).
    SetVlan {
        /// In [`Field::VlanTci`].
        bits: Subfield,
        /// Right aligned.
        value: u16,
    },
    /// Decrements TTL or hop limit. A packet whose TTL is 1 or 0 is dropped
    /// ([`DropReason::TtlExpired`](flow::DropReason::TtlExpired)) and nothing more happens to it. Nothing on other packets.
    DecTtl,
    /// Looks the packet up in another table and executes what is found there; then goes on here.
    Next(TableId),
    /// As `Next`, with `in_port` replaced for the time of the lookup (`resubmit(port,table)` of ovs-ofctl); the actions
    /// found see the true one.
    Resubmit {
        /// The port to look up with.
        in_port: PortNo,
        /// The table; `None` for the one of this flow.
        table: Option<TableId>,
    },
    /// Logical output: in an ingress pipeline to the egress pipeline of `outport`, in an egress pipeline out of `outport`.
    Output,
    /// Out of a datapath port. Dropped silently when it is the port that the packet came from.
    OutputPort(PortNo),
    /// Out of the datapath port whose number is in these bits.
    OutputField(Subfield),
    /// Out of the port that the packet came from.
    OutputInPort,
    /// Out of every port but the one that the packet came from.
    Flood,
    /// As a learning switch: to where the destination MAC address was last seen, else flood; the source is learnt.
    Normal,
    /// Hands a copy to a controller, if there is one.
    Controller,
    /// Executes a list on a copy.
    Clone(Arc<[Op]>),
    /// Makes a new packet and executes a list on it.
    Reply {
        /// The packet to make.
        reply: Reply,
        /// What to do with it.
        ops: Arc<[Op]>,
    },
    /// A TCP reset for TCP, an ICMP or ICMPv6 "port unreachable" for UDP, "unreachable" for other IP packets, nothing for
    /// the rest; sent back, with Ethernet and IP addresses exchanged; with a list to execute on it (OVN's `reject`).
    Reject(Arc<[Op]>),
    /// Sets the MTU of an ICMP "too big".
    SetIcmpMtu(u32),
    /// Asks what was learnt, or teaches. Apart because it is larger than the others.
    LearnedTables(Box<LearnedOp>),
    /// Sets a bit to 1 when port security forbids the packet: what `inport` may send, or what `outport` may receive.
    PortSecurity {
        /// The bit.
        to: Subfield,
        /// Which of the two.
        direction: Direction,
    },
    /// Sets a bit: is the frame (or, of a super-packet, each segment's frame) longer than so many bytes?
    CheckLength {
        /// The bit.
        to: Subfield,
        /// The longest frame that is not too long, in bytes, Ethernet header included.
        bytes: u16,
    },
    /// Loads one of several values, chosen by a hash of the packet's addresses, protocol and ports.
    Select {
        /// Where to.
        to: Subfield,
        /// Value and weight; the weights are not all 0.
        choices: Arc<[(u16, u16)]>,
    },
    /// Writes a log record.
    Log(Arc<LogRecord>),
    /// Goes on only as long as the rate is kept.
    Meter {
        /// Kilobits per second.
        rate_kbps: u64,
        /// Kilobits that may come at once.
        burst_kb: u64,
    },
    /// The transmit queue for what follows.
    SetQueue(u32),
    /// Ends the flow: nothing after it is executed.
    Drop,
    /// An action that is not executed here: the packet is dropped
    /// ([`DropReason::UnsupportedAction`](flow::DropReason::UnsupportedAction)). The name is the action's.
    Unsupported(&'static str),
}

/// A step that asks for what was learnt, or is a lesson.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LearnedOp {
    /// Sets `eth_dst` to the MAC address bound to an IP address, to 0 when none is (`get_arp`, `get_nd`).
    GetMacBinding {
        /// The logical port behind which the address is.
        port: Operand,
        /// An IPv4 address of 32 bits or an IPv6 address of 128.
        ip: Operand,
    },
    /// Sets a bit: is the address bound, and to this MAC address if one is given? (`lookup_arp`, `lookup_nd` and their `_ip`
    /// forms.)
    LookupMacBinding {
        /// The bit.
        to: Subfield,
        /// The logical port behind which the address is.
        port: Operand,
        /// An IPv4 address of 32 bits or an IPv6 address of 128.
        ip: Operand,
        /// The MAC address.
        mac: Option<Operand>,
    },
    /// Binds an IP address to a MAC address (`put_arp`, `put_nd`).
    PutMacBinding {
        /// The logical port behind which the address is.
        port: Operand,
        /// An IPv4 address of 32 bits or an IPv6 address of 128.
        ip: Operand,
        /// The MAC address.
        mac: Operand,
    },
    /// Sets a field to the key of the logical port behind which a MAC address was seen, to 0 when it was not (`get_fdb`).
    GetFdb {
        /// `outport`.
        to: Subfield,
        /// The MAC address.
        mac: Operand,
    },
    /// Sets a bit: was the MAC address seen behind this logical port? (`lookup_fdb`.)
    LookupFdb {
        /// The bit.
        to: Subfield,
        /// The logical port.
        port: Operand,
        /// The MAC address.
        mac: Operand,
    },
    /// Notes behind which logical port a MAC address is (`put_fdb`).
    PutFdb {
        /// The logical port.
        port: Operand,
        /// The MAC address.
        mac: Operand,
    },
}

impl From<LearnedOp> for Op {
    fn from(op: LearnedOp) -> Self {
        Self::LearnedTables(Box::new(op))
    }
}

/// A value that a step reads: bits of the key, or a constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// Bits of the key.
    Bits(Subfield),
    /// A constant of that many bits.
    Constant {
        /// The value, right aligned.
        value: u128,
        /// Bits.
        width: u8,
    },
}

impl Operand {
    /// Bits of the operand.
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

/// Seen from the logical switch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// Into it.
    Ingress,
    /// Out of it.
    Egress,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A large program has half a million of them.
    #[test]
    fn step_is_small() {
        assert_eq!(size_of::<Op>(), 32);
    }
}
