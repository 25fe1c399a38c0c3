//! What a frame must be for a field to have a meaning, with its name in both flow languages.

use wire::icmp::nd::{NEIGHBOR_ADVERTISEMENT, NEIGHBOR_SOLICITATION};
use wire::{EtherType, Protocol};

const IPV4: u16 = EtherType::IPV4.0;
const IPV6: u16 = EtherType::IPV6.0;
const ARP: u16 = EtherType::ARP.0;
const RARP: u16 = EtherType::RARP.0;
const TCP: u8 = Protocol::TCP.0;
const UDP: u8 = Protocol::UDP.0;
const SCTP: u8 = Protocol::SCTP.0;
const ICMP: u8 = Protocol::ICMP.0;
const ICMPV6: u8 = Protocol::ICMPV6.0;

/// One kind of frame that meets a [`Prerequisite`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameKind {
    /// The EtherType.
    pub eth_type: u16,
    /// The IP protocols, any of which will do; empty when the protocol does not matter.
    pub ip_protos: &'static [u8],
}

/// What a [`Prerequisite`] means.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    /// What the frame must be, in words.
    pub description: &'static str,
    /// The frames that meet the prerequisite; empty when the EtherType does not matter.
    pub frame_kinds: &'static [FrameKind],
    /// The ICMPv6 types, any of which will do, of messages with code 0; empty when type and code
    /// do not matter.
    pub icmp_types: &'static [u8],
    /// The predicate of OVN's language: empty for any frame, `None` when OVN has no predicate.
    pub ovn: Option<&'static str>,
    /// What to write in a match of ovs-ofctl to meet the prerequisite, for error messages.
    pub ofctl: &'static str,
}

macro_rules! prerequisites {
    ($($(#[doc = $doc:literal])+ $variant:ident = $row:expr,)+) => {
        /// What a frame must be for a field to have a meaning.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Prerequisite {
            $($(#[doc = $doc])+ $variant,)+
        }

        static REQUIREMENTS: &[Requirement] = &[$($row,)+];
    };
}

const ICMP6: &[FrameKind] = &[kind(IPV6, &[ICMPV6])];

prerequisites! {
    /// Any frame.
    Nothing = requires("any frame", &[], "nothing").ovn(""),
    /// A frame with a VLAN tag.
    Vlan = requires(
        "a VLAN tag",
        &[],
        "a VLAN tag: `dl_vlan` or `vlan_tci=0x1000/0x1000`",
    ).ovn("vlan.present"),
    /// IPv4.
    Ipv4 = requires("IPv4", &[kind(IPV4, &[])], "`ip`").ovn("ip4"),
    /// IPv6.
    Ipv6 = requires("IPv6", &[kind(IPV6, &[])], "`ipv6`").ovn("ip6"),
    /// IPv4 or IPv6.
    Ip = requires("IPv4 or IPv6", &[kind(IPV4, &[]), kind(IPV6, &[])], "`ip` or `ipv6`").ovn("ip"),
    /// ARP or reverse ARP. OVN tells one from the other, so it has no predicate for both.
    Arp = requires("ARP or RARP", &[kind(ARP, &[]), kind(RARP, &[])], "`arp` or `rarp`"),
    /// TCP over IPv4 or IPv6.
    Tcp = requires("TCP", &[kind(IPV4, &[TCP]), kind(IPV6, &[TCP])], "`tcp` or `tcp6`").ovn("tcp"),
    /// UDP over IPv4 or IPv6.
    Udp = requires("UDP", &[kind(IPV4, &[UDP]), kind(IPV6, &[UDP])], "`udp` or `udp6`").ovn("udp"),
    /// SCTP over IPv4 or IPv6.
    Sctp = requires(
        "SCTP",
        &[kind(IPV4, &[SCTP]), kind(IPV6, &[SCTP])],
        "`sctp` or `sctp6`",
    ).ovn("sctp"),
    /// A protocol with ports: TCP, UDP or SCTP. OVN has no predicate for all three.
    Ports = requires(
        "TCP, UDP or SCTP",
        &[kind(IPV4, &[TCP, UDP, SCTP]), kind(IPV6, &[TCP, UDP, SCTP])],
        "`tcp`, `udp` or `sctp` (or `tcp6`, `udp6` or `sctp6`)",
    ),
    /// ICMP over IPv4, or ICMPv6.
    Icmp = requires(
        "ICMP or ICMPv6",
        &[kind(IPV4, &[ICMP]), kind(IPV6, &[ICMPV6])],
        "`icmp` or `icmp6`",
    ).ovn("icmp"),
    /// ICMPv6.
    Icmp6 = requires("ICMPv6", ICMP6, "`icmp6`").ovn("icmp6"),
    /// A neighbour solicitation or advertisement (RFC 4861).
    Nd = requires(
        "neighbour discovery",
        ICMP6,
        "`icmp6` with `icmpv6_type=135` or `icmpv6_type=136`",
    ).ovn("nd")
        .icmp_types(&[NEIGHBOR_SOLICITATION, NEIGHBOR_ADVERTISEMENT]),
    /// A neighbour solicitation (RFC 4861 section 4.3).
    NdSolicit = requires(
        "neighbour solicitation",
        ICMP6,
        "`icmp6` with `icmpv6_type=135`",
    ).ovn("nd_ns").icmp_types(&[NEIGHBOR_SOLICITATION]),
    /// A neighbour advertisement (RFC 4861 section 4.4).
    NdAdvert = requires(
        "neighbour advertisement",
        ICMP6,
        "`icmp6` with `icmpv6_type=136`",
    ).ovn("nd_na").icmp_types(&[NEIGHBOR_ADVERTISEMENT]),
}

impl Prerequisite {
    /// What the prerequisite means.
    pub fn requirement(self) -> &'static Requirement {
        &REQUIREMENTS[self as usize]
    }
}

const fn kind(eth_type: u16, ip_protos: &'static [u8]) -> FrameKind {
    FrameKind { eth_type, ip_protos }
}

const fn requires(
    description: &'static str,
    frame_kinds: &'static [FrameKind],
    ofctl: &'static str,
) -> Requirement {
    Requirement { description, frame_kinds, icmp_types: &[], ovn: None, ofctl }
}

impl Requirement {
    const fn ovn(self, predicate: &'static str) -> Self {
        Self { ovn: Some(predicate), ..self }
    }

    const fn icmp_types(self, icmp_types: &'static [u8]) -> Self {
        Self { icmp_types, ..self }
    }
}
