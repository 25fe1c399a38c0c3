//! The actions of logical flows: all actions of OVN 23.03, and some of later versions.

use super::options::ActionOption;
use crate::symbol::FieldRef;
use crate::token::Constant;
use pipeline::{Direction, TableId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One action.
///
/// Actions that differ only in a detail share a variant: `get_arp` and `get_nd` are
/// [`Action::GetMacBinding`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// `output;`
    Output,
    /// `next;`, `next(TABLE);` or `next(pipeline=PIPELINE, table=TABLE);`: continues in a table of
    /// this or the other pipeline. The last step of most flows.
    Next(TableId),
    /// `FIELD = CONSTANT;`. Bits of the value beyond the width of the field are cut off.
    Load {
        /// The destination.
        to: FieldRef,
        /// The value; with a mask, only the bits in the mask are written.
        value: Constant,
    },
    /// `FIELD = "NAME";`: loads the key of a port or multicast group, or 0 for an unknown or empty
    /// name.
    LoadName {
        /// `inport` or `outport`.
        to: FieldRef,
        /// The name of a port or multicast group.
        name: Box<str>,
    },
    /// `TO = FROM;`
    Move {
        /// The destination.
        to: FieldRef,
        /// The source; as wide as the destination.
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
    /// `icmp4.frag_mtu = MTU;` or `icmp6.frag_mtu = MTU;`
    LoadFragMtu {
        /// ICMP or ICMPv6.
        family: IpVersion,
        /// The MTU in bytes; at most 16 bits for IPv4.
        mtu: u32,
    },
    /// `clone { ACTIONS };` and other actions that execute actions on another packet.
    Nested(NestedPacket, Box<[Action]>),
    /// `get_arp(PORT, IP);` or `get_nd(PORT, IP);`: sets `eth.dst` to the MAC address bound to an
    /// IP address.
    GetMacBinding {
        /// `get_arp` or `get_nd`.
        family: IpVersion,
        /// The logical port behind which the IP address is.
        port: FieldRef,
        /// The IP address, 32 or 128 bits.
        ip: FieldRef,
    },
    /// `put_arp(PORT, IP, MAC);` or `put_nd(PORT, IP, MAC);`
    PutMacBinding {
        /// `put_arp` or `put_nd`.
        family: IpVersion,
        /// The logical port behind which the IP address is.
        port: FieldRef,
        /// The IP address, 32 or 128 bits.
        ip: FieldRef,
        /// The MAC address, 48 bits.
        mac: FieldRef,
    },
    /// `BIT = lookup_arp(PORT, IP, MAC);` or `BIT = lookup_nd(PORT, IP, MAC);`, or without MAC
    /// address `lookup_arp_ip` or `lookup_nd_ip`.
    LookupMacBinding {
        /// The destination, 1 bit.
        to: FieldRef,
        /// `lookup_arp` or `lookup_nd`.
        family: IpVersion,
        /// The logical port behind which the IP address is.
        port: FieldRef,
        /// The IP address, 32 or 128 bits.
        ip: FieldRef,
        /// The MAC address, 48 bits.
        mac: Option<FieldRef>,
    },
    /// `PORT = get_fdb(MAC);`: the port behind which the MAC address was seen, or 0.
    GetFdb {
        /// The destination: `inport`, `outport`, or 32 bits.
        to: FieldRef,
        /// The MAC address, 48 bits.
        mac: FieldRef,
    },
    /// `put_fdb(PORT, MAC);`
    PutFdb {
        /// The logical port.
        port: FieldRef,
        /// The MAC address, 48 bits.
        mac: FieldRef,
    },
    /// `BIT = lookup_fdb(PORT, MAC);`
    LookupFdb {
        /// The destination, 1 bit.
        to: FieldRef,
        /// The logical port.
        port: FieldRef,
        /// The MAC address, 48 bits.
        mac: FieldRef,
    },
    /// `BIT = check_in_port_sec();`, `BIT = check_out_port_sec();` and other tests without
    /// arguments.
    Check {
        /// The destination, 1 bit.
        to: FieldRef,
        /// The test.
        check: Check,
    },
    /// `BIT = check_pkt_larger(BYTES);`
    CheckLength {
        /// The destination, 1 bit.
        to: FieldRef,
        /// The limit in bytes, including the Ethernet header.
        bytes: u16,
    },
    /// `FIELD = select(VALUE=WEIGHT, ...);`: loads one of the values and continues in the next
    /// table.
    Select {
        /// The destination, 16 bits or more.
        to: FieldRef,
        /// Two or more values with their weights; no weight is 0.
        choices: Box<[(u16, u16)]>,
    },
    /// `fwd_group(liveness="true", childports="NAME", ...);`: outputs to one of the ports.
    ForwardGroup {
        /// True to use only ports that are reachable.
        liveness: bool,
        /// The names of the ports.
        ports: Box<[Box<str>]>,
    },
    /// `log(name="NAME", verdict=VERDICT, severity=SEVERITY, meter="NAME");`
    Log(Log),
    /// `set_meter(RATE);` or `set_meter(RATE, BURST);`
    SetMeter {
        /// The rate in kilobits per second; not 0.
        rate_kbps: u64,
        /// The burst in kilobits; 0 if none is given.
        burst_kb: u64,
    },
    /// `set_queue(NUMBER);`, a number from 0 to [`MAX_QUEUE`].
    SetQueue(u16),
    /// `ct_clear;`
    CtClear,
    /// `ct_next;`, `ct_next(ZONE);`
    CtNext(Option<NatZone>),
    /// `ct_commit;`, `ct_commit { ct_mark = VALUE; ct_label = VALUE; };`
    CtCommit(Box<[Action]>),
    /// `ct_commit(ct_mark=VALUE/MASK, ct_label=VALUE/MASK);`: the older form, with at least one of
    /// the two.
    CtCommitV1 {
        /// Value and mask of the mark, 32 bits; the mask is not 0.
        mark: Option<(u32, u32)>,
        /// Value and mask of the label; the mask is not 0.
        label: Option<(u128, u128)>,
    },
    /// `ct_dnat;`, `ct_dnat(IP);`, `ct_dnat(IP, PORT-PORT);`, and the same for `ct_snat`,
    /// `ct_dnat_in_czone` and `ct_snat_in_czone`.
    CtNat {
        /// The one of these actions that is meant.
        nat: Nat,
        /// The new address and ports.
        to: Option<NatTarget>,
    },
    /// `ct_commit_nat;`, `ct_commit_nat(ZONE);`
    CtCommitNat(Option<NatZone>),
    /// `ct_commit_to_zone(ZONE);` of OVN 24.09.
    CtCommitToZone(NatZone),
    /// `TO = ct_nw_dst();` and the like, of OVN 25.03 and later.
    CtRead {
        /// The destination, as wide as the value.
        to: FieldRef,
        /// The value that is read.
        value: CtValue,
    },
    /// `mac_cache_use;` of OVN 24.03: notes that the address of the sender is in use.
    MacCacheUse,
    /// `ct_snat_to_vip;`
    CtSnatToVip,
    /// `ct_lb;`, `ct_lb(backends=IP:PORT, ...; hash_fields="FIELDS"; FLAG);`, and the same for
    /// `ct_lb_mark`.
    CtLb(CtLb),
    /// `commit_ecmp_nh(ipv6 = BOOLEAN, proto = PROTOCOL);`
    CommitEcmpNh {
        /// True for IPv6, false for IPv4.
        ipv6: bool,
        /// The protocol of the connection.
        protocol: Transport,
    },
    /// `commit_lb_aff(vip = "IP:PORT", backend = "IP:PORT", proto = PROTOCOL, timeout = SECONDS);`
    CommitLbAffinity(LbAffinity),
    /// `BIT = put_dhcp_opts(OPTION = VALUE, ...);`, `put_dhcpv6_opts` or `put_nd_ra_opts`.
    PutOptions {
        /// The destination, 1 bit.
        to: FieldRef,
        /// The one of these actions that is meant.
        protocol: OptionProtocol,
        /// The options, in the order of the text.
        options: Box<[ActionOption]>,
    },
    /// `trigger_event(event = "empty_lb_backends", OPTION = VALUE, ...);`
    TriggerEvent(Box<[ActionOption]>),
    /// `bind_vport("NAME", PORT);`
    BindVport {
        /// The virtual port.
        name: Box<str>,
        /// The logical port that claims it.
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

/// The largest transmit queue number.
pub const MAX_QUEUE: u16 = 0xf000;

/// IPv4 or IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpVersion {
    /// ARP, ICMP, 32 bits.
    V4,
    /// Neighbour discovery, ICMPv6, 128 bits.
    V6,
}

impl IpVersion {
    /// The width of an address in bits.
    pub const fn address_width(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// Defines an enum whose variants are words of the language, with `name` and `from_name`.
macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident {
        $($(#[doc = $variant_doc:literal])+ $variant:ident $word:literal,)+
    }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[doc = $variant_doc])+ $variant,)+
        }

        impl $name {
            /// All variants.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word in the language.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// The variant with this word.
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
    /// The packet that nested actions work on. Each kind is made from a copy of the current packet.
    NestedPacket {
        /// The unchanged copy.
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
        /// A TCP reset, an SCTP ABORT, or an ICMP or ICMPv6 message, sent back to the source of the
        /// packet.
        Reject "reject",
    }
}

words! {
    /// A test without arguments; the result is 1 bit.
    Check {
        /// Does port security forbid `inport` to send the packet?
        InPortSec "check_in_port_sec",
        /// Does port security forbid `outport` to receive the packet?
        OutPortSec "check_out_port_sec",
        /// Can the controller answer the DNS query?
        DnsLookup "dns_lookup",
        /// Did the load balancer send the packet back to its source?
        LbHairpin "chk_lb_hairpin",
        /// Is the packet a reply to such a packet?
        LbHairpinReply "chk_lb_hairpin_reply",
        /// Does the next hop of the connection have another MAC address?
        EcmpNhMac "chk_ecmp_nh_mac",
        /// Is the next hop of the connection known?
        EcmpNh "chk_ecmp_nh",
        /// Does the client have a backend already?
        LbAffinity "chk_lb_aff",
    }
}

words! {
    /// The verdict of a flow that logs a packet.
    LogVerdict {
        /// It lets the packet pass.
        Allow "allow",
        /// It drops the packet.
        Drop "drop",
        /// It drops the packet and sends a reply to its source.
        Reject "reject",
    }
}

words! {
    /// The severity of a log record.
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
    /// The kind of network address translation, and its connection tracking zone.
    Nat {
        /// Destination NAT.
        Dnat "ct_dnat",
        /// Source NAT.
        Snat "ct_snat",
        /// Destination NAT in the common zone.
        DnatInCzone "ct_dnat_in_czone",
        /// Source NAT in the common zone.
        SnatInCzone "ct_snat_in_czone",
    }
}

words! {
    /// A zone of a logical router. Logical switches use the zone of the port instead.
    NatZone {
        /// The zone of destination NAT.
        Dnat "dnat",
        /// The zone of source NAT.
        Snat "snat",
    }
}

words! {
    /// A value of the connection of a packet.
    CtValue {
        /// The IPv4 destination of the packet that opened the connection.
        Ip4Dst "ct_nw_dst",
        /// The IPv6 destination of the packet that opened the connection.
        Ip6Dst "ct_ip6_dst",
        /// The destination port of the packet that opened the connection.
        PortDst "ct_tp_dst",
        /// The IP protocol.
        Protocol "ct_proto",
        /// The lowest 8 bits of the packet's connection state: `ct_state` of ovs-fields(7).
        State "ct_state_save",
    }
}

impl CtValue {
    /// The width in bits.
    pub const fn width(self) -> u8 {
        match self {
            Self::Ip4Dst => 32,
            Self::Ip6Dst => 128,
            Self::PortDst => 16,
            Self::Protocol | Self::State => 8,
        }
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
    /// Source NAT of load-balanced connections.
    LbFlag {
        /// Skip source NAT.
        SkipSnat "skip_snat",
        /// Force source NAT.
        ForceSnat "force_snat",
    }
}

words! {
    /// A protocol whose replies are built from options.
    OptionProtocol {
        /// DHCP.
        Dhcp4 "put_dhcp_opts",
        /// DHCPv6.
        Dhcp6 "put_dhcpv6_opts",
        /// A router advertisement.
        NdRa "put_nd_ra_opts",
    }
}

/// The contents of a log record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    /// The name of the rule; at most 63 bytes.
    pub name: Option<Box<str>>,
    /// The verdict on the packet.
    pub verdict: LogVerdict,
    /// The severity.
    pub severity: Severity,
    /// The meter that limits the rate of log records.
    pub meter: Option<Box<str>>,
}

/// The target of network address translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NatTarget {
    /// The address.
    pub ip: IpAddr,
    /// The first port, not 0, and the last one if there are several; the last is larger.
    pub ports: Option<(u16, Option<u16>)>,
}

/// The arguments of `ct_lb` and `ct_lb_mark`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CtLb {
    /// True for `ct_lb_mark`, false for `ct_lb`.
    pub mark: bool,
    /// The backends; without any, the recorded NAT of the connection is applied.
    pub backends: Box<[Backend]>,
    /// The fields to hash, comma-separated; only with backends.
    pub hash_fields: Option<Box<str>>,
    /// Treatment of source NAT; only with backends.
    pub flag: Option<LbFlag>,
}

/// An address with an optional port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backend {
    /// The address.
    pub ip: IpAddr,
    /// The port; 0 for none.
    pub port: u16,
}

/// Session affinity of a load balancer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LbAffinity {
    /// The address of the load balancer.
    pub vip: Backend,
    /// The backend; of the same address family.
    pub backend: Backend,
    /// The protocol; present if the load balancer has a port.
    pub protocol: Option<Transport>,
    /// The timeout in seconds.
    pub timeout_s: u16,
}

/// The arguments of `sample`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The probability as a fraction of 65,535; not 0.
    pub probability: u16,
    /// The collector set.
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

/// The position of actions in the pipelines of a datapath.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stage {
    direction: Direction,
    table: u8,
    tables: u8,
}

impl Stage {
    /// Table `table` of a pipeline, where each pipeline has `tables` tables, 1 to 64. `None` if
    /// there is no such table.
    pub const fn new(direction: Direction, table: u8, tables: u8) -> Option<Self> {
        if table < tables && tables <= TableId::LOGICAL {
            Some(Self { direction, table, tables })
        } else {
            None
        }
    }

    /// A table of a program, where each pipeline has 64 tables. A table outside both pipelines has
    /// no next table.
    pub const fn of(table: TableId) -> Self {
        let tables = TableId::LOGICAL;
        match table.in_pipeline() {
            (direction, table) if table < tables => Self { direction, table, tables },
            (direction, _) => Self { direction, table: tables - 1, tables },
        }
    }

    /// The pipeline.
    pub const fn direction(self) -> Direction {
        self.direction
    }

    /// The table in the pipeline.
    pub const fn table(self) -> u8 {
        self.table
    }

    /// The number of tables of each pipeline.
    pub const fn tables(self) -> u8 {
        self.tables
    }

    /// The next table of this pipeline, or `None` in its last table.
    pub fn next(self) -> Option<TableId> {
        let next = self.table + 1;
        if next < self.tables { TableId::logical(self.direction, next) } else { None }
    }
}

impl Transport {
    /// The number of the protocol in IP headers.
    pub const fn ip_protocol(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol with this number in IP headers.
    pub fn from_ip_protocol(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|protocol| protocol.ip_protocol() == number)
    }
}

impl Backend {
    /// The family of the address.
    pub const fn family(&self) -> IpVersion {
        match self.ip {
            IpAddr::V4(_) => IpVersion::V4,
            IpAddr::V6(_) => IpVersion::V6,
        }
    }
}

/// The address in the low bits of a number.
pub(super) const fn address(family: IpVersion, bits: u128) -> IpAddr {
    match family {
        IpVersion::V4 => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
        IpVersion::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    }
}
