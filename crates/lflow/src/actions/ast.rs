//! The actions of logical flows: every one of OVN 23.03.

use super::options::DialogueOption;
use crate::symbol::FieldRef;
use crate::token::Constant;
use pipeline::{Direction, TableId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One action.
///
/// Actions that differ in a detail only are one variant: `get_arp` and `get_nd` are [`Action::GetMacBinding`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// `output;`
    Output,
    /// `next;`, `next(TABLE);`, `next(pipeline=PIPELINE, table=TABLE);`: in this or in the other pipeline. The last step of
    /// most flows.
    Next(TableId),
    /// `FIELD = CONSTANT;`. The value may be wider than the bits written; its upper bits are cut off.
    Load {
        /// Where to.
        to: FieldRef,
        /// What; with a mask only the bits in it are written.
        value: Constant,
    },
    /// `FIELD = "NAME";`: the key of a port or multicast group, 0 for an unknown or empty name.
    LoadName {
        /// `inport` or `outport`.
        to: FieldRef,
        /// Of a port or multicast group.
        name: Box<str>,
    },
    /// `TO = FROM;`
    Move {
        /// Where to.
        to: FieldRef,
        /// From where; as wide.
        from: FieldRef,
    },
    /// `A <-> B;`
    Exchange(FieldRef, FieldRef),
    /// `push(FIELD);`
    Push(FieldRef),
    /// `pop(FIELD);`
    Pop(FieldRef),
    /// `ip.ttl--;`
    DecTtl,
    /// `icmp4.frag_mtu = MTU;` and `icmp6.frag_mtu = MTU;`
    LoadFragMtu {
        /// Of the ICMP message.
        family: Family,
        /// In bytes; 16 bits for IPv4.
        mtu: u32,
    },
    /// `clone { ACTIONS };` and others that execute actions on another packet.
    Nested(Nest, Box<[Action]>),
    /// `get_arp(PORT, IP);`, `get_nd(PORT, IP);`: `eth.dst` becomes the MAC address bound to an IP address.
    GetMacBinding {
        /// `get_arp` or `get_nd`.
        family: Family,
        /// Behind which logical port.
        port: FieldRef,
        /// 32 or 128 bits.
        ip: FieldRef,
    },
    /// `put_arp(PORT, IP, MAC);`, `put_nd(PORT, IP, MAC);`
    PutMacBinding {
        /// `put_arp` or `put_nd`.
        family: Family,
        /// Behind which logical port.
        port: FieldRef,
        /// 32 or 128 bits.
        ip: FieldRef,
        /// 48 bits.
        mac: FieldRef,
    },
    /// `BIT = lookup_arp(PORT, IP, MAC);`, `BIT = lookup_nd(PORT, IP, MAC);`, and without MAC `lookup_arp_ip`, `lookup_nd_ip`.
    LookupMacBinding {
        /// 1 bit.
        to: FieldRef,
        /// `lookup_arp` or `lookup_nd`.
        family: Family,
        /// Behind which logical port.
        port: FieldRef,
        /// 32 or 128 bits.
        ip: FieldRef,
        /// 48 bits.
        mac: Option<FieldRef>,
    },
    /// `PORT = get_fdb(MAC);`: behind which port the MAC address was seen, 0 for none.
    GetFdb {
        /// `inport`, `outport`, or 32 bits.
        to: FieldRef,
        /// 48 bits.
        mac: FieldRef,
    },
    /// `put_fdb(PORT, MAC);`
    PutFdb {
        /// The logical port.
        port: FieldRef,
        /// 48 bits.
        mac: FieldRef,
    },
    /// `BIT = lookup_fdb(PORT, MAC);`
    LookupFdb {
        /// 1 bit.
        to: FieldRef,
        /// The logical port.
        port: FieldRef,
        /// 48 bits.
        mac: FieldRef,
    },
    /// `BIT = check_in_port_sec();`, `BIT = check_out_port_sec();` and other questions without arguments.
    Check {
        /// 1 bit.
        to: FieldRef,
        /// The question.
        check: Check,
    },
    /// `BIT = check_pkt_larger(BYTES);`
    CheckLength {
        /// 1 bit.
        to: FieldRef,
        /// The longest frame that is not too long, Ethernet header included.
        bytes: u16,
    },
    /// `FIELD = select(VALUE=WEIGHT, ...);`: one of the values, and on to the next table.
    Select {
        /// 16 bits or more.
        to: FieldRef,
        /// Values and weights, two or more; no weight is 0.
        choices: Box<[(u16, u16)]>,
    },
    /// `fwd_group(liveness="true", childports="NAME", ...);`: output to one of the ports.
    ForwardGroup {
        /// Only ports that can be reached.
        liveness: bool,
        /// Names of ports.
        ports: Box<[Box<str>]>,
    },
    /// `log(name="NAME", verdict=VERDICT, severity=SEVERITY, meter="NAME");`
    Log(Log),
    /// `set_meter(RATE);`, `set_meter(RATE, BURST);`
    SetMeter {
        /// Kilobits per second, not 0.
        rate_kbps: u64,
        /// Kilobits; 0 when none is given.
        burst_kb: u64,
    },
    /// `set_queue(NUMBER);`: 0 to [`MAX_QUEUE`].
    SetQueue(u16),
    /// `ct_clear;`
    CtClear,
    /// `ct_next;`
    CtNext,
    /// `ct_commit;`, `ct_commit { ct_mark = VALUE; ct_label = VALUE; };`
    CtCommit(Box<[Action]>),
    /// `ct_commit(ct_mark=VALUE/MASK, ct_label=VALUE/MASK);`: the older form, with one of the two at least.
    CtCommitV1 {
        /// Value and mask, of 32 bits; the mask is not 0.
        mark: Option<(u32, u32)>,
        /// Value and mask; the mask is not 0.
        label: Option<(u128, u128)>,
    },
    /// `ct_dnat;`, `ct_dnat(IP);`, `ct_dnat(IP, PORT-PORT);` and the same for `ct_snat`, `ct_dnat_in_czone`,
    /// `ct_snat_in_czone`.
    CtNat {
        /// Which of them.
        nat: Nat,
        /// To which address.
        to: Option<NatTarget>,
    },
    /// `ct_commit_nat;`
    CtCommitNat,
    /// `ct_snat_to_vip;`
    CtSnatToVip,
    /// `ct_lb;`, `ct_lb(backends=IP:PORT, ...; hash_fields="FIELDS"; FLAG);` and the same for `ct_lb_mark`.
    CtLb(CtLb),
    /// `commit_ecmp_nh(ipv6 = BOOLEAN, proto = PROTOCOL);`
    CommitEcmpNh {
        /// IPv6 rather than IPv4.
        ipv6: bool,
        /// Of the connection.
        protocol: Transport,
    },
    /// `commit_lb_aff(vip = "IP:PORT", backend = "IP:PORT", proto = PROTOCOL, timeout = SECONDS);`
    CommitLbAffinity(LbAffinity),
    /// `BIT = put_dhcp_opts(OPTION = VALUE, ...);`, `put_dhcpv6_opts`, `put_nd_ra_opts`.
    PutOptions {
        /// 1 bit.
        to: FieldRef,
        /// Which of them.
        dialogue: Dialogue,
        /// In the order in which they were written.
        options: Box<[DialogueOption]>,
    },
    /// `trigger_event(event = "empty_lb_backends", OPTION = VALUE, ...);`
    TriggerEvent(Box<[DialogueOption]>),
    /// `bind_vport("NAME", PORT);`
    BindVport {
        /// The virtual port.
        name: Box<str>,
        /// The logical port that has it.
        parent: FieldRef,
    },
    /// `handle_svc_check(PORT);`
    HandleSvcCheck(FieldRef),
    /// `handle_dhcpv6_reply;`
    HandleDhcp6Reply,
    /// `handle_bfd_msg();`
    HandleBfdMsg,
    /// `igmp;`
    Igmp,
    /// `sample(probability=N, collector_set=N, obs_domain=N, obs_point=N);`
    Sample(Sample),
}

/// The largest number of a transmit queue.
pub const MAX_QUEUE: u16 = 0xf000;

/// IPv4 or IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// ARP, ICMP, 32 bits.
    V4,
    /// Neighbour discovery, ICMPv6, 128 bits.
    V6,
}

impl Family {
    /// Bits of an address.
    pub const fn address_width(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// Defines a plain enum whose variants have a name in the language, and `name` and `from_name` for it.
macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $variant_doc:literal])+ $variant:ident $word:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[doc = $variant_doc])+ $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word for it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// The one with that word.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

words! {
    /// On what the actions in braces are executed. Each begins with a copy of the packet.
    Nest {
        /// The copy as it is.
        Clone "clone",
        /// An ARP request.
        Arp "arp",
        /// A neighbour advertisement.
        NdNa "nd_na",
        /// A neighbour advertisement with the router flag.
        NdNaRouter "nd_na_router",
        /// A neighbour solicitation.
        NdNs "nd_ns",
        /// An ICMP message.
        Icmp4 "icmp4",
        /// An ICMP message with as much of the packet as fits.
        Icmp4Error "icmp4_error",
        /// An ICMPv6 message.
        Icmp6 "icmp6",
        /// An ICMPv6 message with as much of the packet as fits.
        Icmp6Error "icmp6_error",
        /// A TCP reset.
        TcpReset "tcp_reset",
        /// An SCTP ABORT.
        SctpAbort "sctp_abort",
        /// A TCP reset, an SCTP ABORT, or an ICMP or ICMPv6 message, back to where the packet came from.
        Reject "reject",
    }
}

words! {
    /// A question without arguments; the answer is 1 bit.
    Check {
        /// Does port security forbid the packet to `inport`?
        InPortSec "check_in_port_sec",
        /// Does port security forbid the packet to `outport`?
        OutPortSec "check_out_port_sec",
        /// Can the controller answer the DNS query?
        DnsLookup "dns_lookup",
        /// Did the load balancer send the packet back to where it came from?
        LbHairpin "chk_lb_hairpin",
        /// Is the packet a reply to such a packet?
        LbHairpinReply "chk_lb_hairpin_reply",
        /// Has the next hop of the connection another MAC address?
        EcmpNhMac "chk_ecmp_nh_mac",
        /// Is the next hop of the connection known?
        EcmpNh "chk_ecmp_nh",
        /// Has the client a backend already?
        LbAffinity "chk_lb_aff",
    }
}

words! {
    /// What a flow that logs does.
    LogVerdict {
        /// Lets the packet pass.
        Allow "allow",
        /// Drops it.
        Drop "drop",
        /// Drops it and answers.
        Reject "reject",
    }
}

words! {
    /// How much a log record matters.
    Severity {
        /// Immediate action is needed.
        Alert "alert",
        /// Something is wrong.
        Warning "warning",
        /// Normal but worth noting.
        Notice "notice",
        /// Informational.
        Info "info",
        /// For debugging.
        Debug "debug",
    }
}

words! {
    /// Network address translation, in one direction and in one of two zones.
    Nat {
        /// Of the destination.
        Dnat "ct_dnat",
        /// Of the source.
        Snat "ct_snat",
        /// Of the destination, in the zone common to both.
        DnatInCzone "ct_dnat_in_czone",
        /// Of the source, in the zone common to both.
        SnatInCzone "ct_snat_in_czone",
    }
}

words! {
    /// A transport protocol with ports.
    Transport {
        /// TCP.
        Tcp "tcp",
        /// UDP.
        Udp "udp",
        /// SCTP.
        Sctp "sctp",
    }
}

words! {
    /// How connections of a load balancer are to be translated besides.
    LbFlag {
        /// Not at all.
        SkipSnat "skip_snat",
        /// In any case.
        ForceSnat "force_snat",
    }
}

words! {
    /// An answer that a controller writes with options.
    Dialogue {
        /// DHCP.
        Dhcp4 "put_dhcp_opts",
        /// DHCPv6.
        Dhcp6 "put_dhcpv6_opts",
        /// A router advertisement.
        NdRa "put_nd_ra_opts",
    }
}

/// What is to be logged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    /// Of the rule; at most 63 bytes.
    pub name: Option<Box<str>>,
    /// What becomes of the packet.
    pub verdict: LogVerdict,
    /// How much it matters.
    pub severity: Severity,
    /// The meter that limits the records.
    pub meter: Option<Box<str>>,
}

/// Where network address translation leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NatTarget {
    /// The address.
    pub ip: IpAddr,
    /// The first port, not 0, and the last, larger one if there is more than one.
    pub ports: Option<(u16, Option<u16>)>,
}

/// A load balancer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CtLb {
    /// `ct_lb_mark` rather than `ct_lb`.
    pub mark: bool,
    /// The backends; without any, what is known of the connection is applied.
    pub backends: Box<[Backend]>,
    /// The fields that decide, comma-separated; only with backends.
    pub hash_fields: Option<Box<str>>,
    /// Only with backends.
    pub flag: Option<LbFlag>,
}

/// An address, perhaps with a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backend {
    /// The address.
    pub ip: IpAddr,
    /// 0 for none.
    pub port: u16,
}

/// Which client has which backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LbAffinity {
    /// The address of the load balancer.
    pub vip: Backend,
    /// Of the same family.
    pub backend: Backend,
    /// There is one when the load balancer has a port.
    pub protocol: Option<Transport>,
    /// Seconds.
    pub timeout_s: u16,
}

/// Packets to be sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Out of 65,535; not 0.
    pub probability: u16,
    /// Where to.
    pub collector_set: u32,
    /// The upper 8 bits of the observation domain.
    pub domain: u8,
    /// The observation point.
    pub point: ObservationPoint,
}

/// The observation point of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObservationPoint {
    /// A number.
    Number(u32),
    /// `$cookie`: the first 32 bits of the flow's UUID.
    Cookie,
}

/// Where in the pipelines of a datapath actions stand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stage {
    direction: Direction,
    table: u8,
    tables: u8,
}

impl Stage {
    /// Table `table` of a pipeline, each of which has `tables`, 1 to 64. `None` when there is no such table.
    pub const fn new(direction: Direction, table: u8, tables: u8) -> Option<Self> {
        if table < tables && tables <= TableId::LOGICAL {
            Some(Self { direction, table, tables })
        } else {
            None
        }
    }

    /// As many tables as the pipelines of a program have.
    pub const fn of(table: TableId) -> Self {
        let (direction, table) = table.in_pipeline();
        Self { direction, table: table % TableId::LOGICAL, tables: TableId::LOGICAL }
    }

    /// The pipeline.
    pub const fn direction(self) -> Direction {
        self.direction
    }

    /// The table in the pipeline.
    pub const fn table(self) -> u8 {
        self.table
    }

    /// Tables of each pipeline.
    pub const fn tables(self) -> u8 {
        self.tables
    }

    /// Table `number` of this pipeline, or `None` in its last table.
    pub fn next(self) -> Option<TableId> {
        let next = self.table + 1;
        if next < self.tables { TableId::logical(self.direction, next) } else { None }
    }
}

impl Backend {
    /// The family of the address.
    pub const fn family(&self) -> Family {
        match self.ip {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }
}

/// An address out of the low bits of a number.
pub(super) const fn address(family: Family, bits: u128) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    }
}
