//! The names of fields in the syntax of ovs-ofctl, as ovs-fields(7) lists them, and what each means for a flow key.

use flow::{Field, Match, Subfield};
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

/// How values of a field are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A number, shown in decimal.
    Decimal,
    /// A number, shown in hexadecimal.
    Hex,
    /// An EtherType.
    EtherType,
    Mac,
    Ipv4,
    Ipv6,
    /// A port of the bridge, by number or name.
    Port,
    /// `no`, `yes`, `first`, `later`, `not_later`.
    Fragment,
    /// Names joined by `|`, or each behind `+` or `-`.
    Flags(&'static [(&'static str, u8)]),
    /// The type of service without the bits of ECN, in their place.
    Tos,
    /// A VLAN, or 0xffff for "no tag".
    DlVlan,
    /// A VLAN with 0x1000 for "there is a tag".
    VlanVid,
    /// A priority; there must be a tag.
    VlanPcp,
    /// A whole tag with 0x1000 for "there is a tag".
    VlanTci,
    /// An option of a tunnel, present.
    Option(u8),
}

/// What a packet must be known to be for a field to mean something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needs {
    Nothing,
    /// A VLAN tag; of concern to actions only, a match says so by itself.
    Vlan,
    Ipv4,
    Ipv6,
    /// IPv4 or IPv6.
    Ip,
    Arp,
    Tcp,
    Udp,
    Sctp,
    /// TCP, UDP or SCTP.
    Ports,
    Icmp4,
    Icmp6,
    /// ICMP or ICMPv6.
    Icmp,
    /// A neighbour solicitation or advertisement.
    Neighbour,
    Solicitation,
    Advertisement,
}

/// What a match says of the kind of packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Known {
    pub ethertype: Option<u16>,
    pub protocol: Option<u8>,
    pub icmp_type: Option<u8>,
    pub icmp_code: Option<u8>,
    pub tagged: bool,
}

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
pub(super) const ARP: u16 = 0x0806;
pub(super) const RARP: u16 = 0x8035;
const ICMP4: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP6: u8 = 58;
const SCTP: u8 = 132;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// In [`Field::VlanTci`]: the lowest bit of the priority.
const PCP_FIRST: u8 = 13;
/// In [`Field::VlanTci`]: there is a tag.
pub(super) const TAGGED: u128 = 0x1000;

impl Known {
    pub fn of(condition: &Match) -> Self {
        let exact = |field: Field| {
            let whole = condition.mask().get(field) == field.all_ones();
            whole.then(|| condition.key().get(field) as u16)
        };
        Self {
            ethertype: exact(Field::EthType),
            protocol: exact(Field::IpProto).map(|value| value as u8),
            icmp_type: exact(Field::IcmpType).map(|value| value as u8),
            icmp_code: exact(Field::IcmpCode).map(|value| value as u8),
            tagged: condition.mask().get(Field::VlanTci)
                & condition.key().get(Field::VlanTci)
                & TAGGED
                != 0,
        }
    }
}

impl Needs {
    pub fn met(self, known: &Known) -> bool {
        let ip = matches!(known.ethertype, Some(IPV4 | IPV6));
        let protocol = |wanted: &[u8]| ip && known.protocol.is_some_and(|p| wanted.contains(&p));
        let icmp6 = known.ethertype == Some(IPV6) && protocol(&[ICMP6]);
        // Of an ICMPv6 message with another code nothing more is read.
        let neighbour = |wanted: &[u8]| {
            icmp6
                && known.icmp_type.is_some_and(|t| wanted.contains(&t))
                && known.icmp_code.unwrap_or(0) == 0
        };
        match self {
            Self::Nothing => true,
            Self::Vlan => known.tagged,
            Self::Ipv4 => known.ethertype == Some(IPV4),
            Self::Ipv6 => known.ethertype == Some(IPV6),
            Self::Ip => ip,
            Self::Arp => matches!(known.ethertype, Some(ARP | RARP)),
            Self::Tcp => protocol(&[TCP]),
            Self::Udp => protocol(&[UDP]),
            Self::Sctp => protocol(&[SCTP]),
            Self::Ports => protocol(&[TCP, UDP, SCTP]),
            Self::Icmp4 => known.ethertype == Some(IPV4) && protocol(&[ICMP4]),
            Self::Icmp6 => icmp6,
            Self::Icmp => Self::Icmp4.met(known) || icmp6,
            Self::Neighbour => neighbour(&[SOLICITATION, ADVERTISEMENT]),
            Self::Solicitation => neighbour(&[SOLICITATION]),
            Self::Advertisement => neighbour(&[ADVERTISEMENT]),
        }
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Vlan => "a VLAN tag: `dl_vlan` or `vlan_tci=0x1000/0x1000`",
            Self::Ipv4 => "`ip`",
            Self::Ipv6 => "`ipv6`",
            Self::Ip => "`ip` or `ipv6`",
            Self::Arp => "`arp` or `rarp`",
            Self::Tcp => "`tcp` or `tcp6`",
            Self::Udp => "`udp` or `udp6`",
            Self::Sctp => "`sctp` or `sctp6`",
            Self::Ports => "`tcp`, `udp` or `sctp` (or `tcp6`, `udp6` or `sctp6`)",
            Self::Icmp4 => "`icmp`",
            Self::Icmp6 => "`icmp6`",
            Self::Icmp => "`icmp` or `icmp6`",
            Self::Neighbour => "`icmp6` with `icmpv6_type=135` or `icmpv6_type=136`",
            Self::Solicitation => "`icmp6` with `icmpv6_type=135`",
            Self::Advertisement => "`icmp6` with `icmpv6_type=136`",
        })
    }
}

/// Whether actions may set a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    ReadWrite,
    /// As in Open vSwitch.
    ReadOnly,
    /// Open vSwitch can; the text says why weft cannot.
    NotHere(&'static str),
}

/// A field under one of its names.
#[derive(Clone, Debug)]
pub(super) struct Name {
    /// What actions call it.
    pub name: &'static str,
    /// Other names, those of NXM and OXM included.
    others: &'static [&'static str],
    /// What matches call it; empty when another entry of the table stands for the field there.
    pub shown: &'static str,
    pub field: Field,
    /// Bits, as ovs-fields(7) counts them.
    pub width: u8,
    /// Bits of those that the field lacks, at their low end.
    pub lead: u8,
    /// Bits that the field has below those.
    raise: u8,
    pub kind: Kind,
    /// Whether a match may have a mask.
    pub masked: bool,
    pub needs: Needs,
    pub access: Access,
}

impl Name {
    /// The bits `first` to `first + width - 1`, as ovs-fields(7) counts them; `None` for ones that there are not.
    pub fn bits(&self, first: u8, width: u8) -> Option<Subfield> {
        let within = u16::from(first) + u16::from(width) <= u16::from(self.width);
        let first = first.checked_sub(self.lead)?.checked_add(self.raise)?;
        Subfield::new(self.field, first, width).filter(|_| within)
    }

    /// True for a field that is shown under this name.
    pub fn is_shown(&self) -> bool {
        !self.shown.is_empty()
    }
}

const fn name(name: &'static str, field: Field, kind: Kind, needs: Needs) -> Name {
    Name {
        name,
        others: &[],
        shown: name,
        field,
        width: field.width(),
        lead: 0,
        raise: 0,
        kind,
        masked: true,
        needs,
        access: Access::ReadWrite,
    }
}

/// What differs from the usual.
impl Name {
    const fn also(mut self, others: &'static [&'static str]) -> Self {
        self.others = others;
        self
    }

    const fn shown(mut self, shown: &'static str) -> Self {
        self.shown = shown;
        self
    }

    const fn unshown(self) -> Self {
        self.shown("")
    }

    const fn width(mut self, width: u8) -> Self {
        self.width = width;
        self
    }

    const fn lead(mut self, lead: u8) -> Self {
        self.lead = lead;
        self
    }

    const fn raise(mut self, raise: u8) -> Self {
        self.raise = raise;
        self
    }

    const fn exact(mut self) -> Self {
        self.masked = false;
        self
    }

    const fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
}

/// Of RFC 9293 and RFC 3540, by bit.
const TCP_FLAGS: &[(&str, u8)] = &[
    ("fin", 0),
    ("syn", 1),
    ("rst", 2),
    ("psh", 3),
    ("ack", 4),
    ("urg", 5),
    ("ece", 6),
    ("cwr", 7),
    ("ns", 8),
];
const CT_STATE: &[(&str, u8)] = &[
    ("new", 0),
    ("est", 1),
    ("rel", 2),
    ("rpl", 3),
    ("inv", 4),
    ("trk", 5),
    ("snat", 6),
    ("dnat", 7),
];
const TUN_FLAGS: &[(&str, u8)] = &[("oam", 0)];

const BY_ENDPOINT: Access = Access::NotHere("the tunnel's end point decides it");
const NO_OPTIONS: Access =
    Access::NotHere("options are not put on frames that a flow-based tunnel sends");
const NO_TRACKING: Access = Access::NotHere("there is no connection tracking");
const NO_IN_PORT: Access =
    Access::NotHere("`in_port` as an action sends a packet back to where it came from");

/// Every name but those of registers, in the order in which a match is shown.
static NAMED: &[Name] = {
    use Field::*;
    use Kind::*;
    const NO: Needs = Needs::Nothing;
    &[
        name("in_port", InPort, Port, NO)
            .also(&["NXM_OF_IN_PORT"])
            .width(16)
            .exact()
            .access(NO_IN_PORT),
        name("in_port_oxm", InPort, Port, NO)
            .also(&["OXM_OF_IN_PORT"])
            .unshown()
            .exact()
            .access(NO_IN_PORT),
        name("tun_id", TunId, Hex, NO).also(&["tunnel_id", "NXM_NX_TUN_ID", "OXM_OF_TUNNEL_ID"]),
        name("tun_src", TunSrc, Ipv4, NO).also(&["NXM_NX_TUN_IPV4_SRC"]).access(BY_ENDPOINT),
        name("tun_dst", TunDst, Ipv4, NO).also(&["NXM_NX_TUN_IPV4_DST"]),
        name("tun_ipv6_src", TunIpv6Src, Ipv6, NO)
            .also(&["NXM_NX_TUN_IPV6_SRC"])
            .access(BY_ENDPOINT),
        name("tun_ipv6_dst", TunIpv6Dst, Ipv6, NO).also(&["NXM_NX_TUN_IPV6_DST"]),
        name("tun_tos", TunTos, Hex, NO).exact().access(BY_ENDPOINT),
        name("tun_ttl", TunTtl, Decimal, NO).exact().access(BY_ENDPOINT),
        name("tun_flags", TunFlags, Flags(TUN_FLAGS), NO)
            .also(&["NXM_NX_TUN_FLAGS"])
            .width(1)
            .access(BY_ENDPOINT),
        name("tun_metadata0", TunMetadata0, Option(0), NO)
            .also(&["NXM_NX_TUN_METADATA0"])
            .access(NO_OPTIONS),
        name("tun_metadata1", TunMetadata1, Option(1), NO)
            .also(&["NXM_NX_TUN_METADATA1"])
            .access(NO_OPTIONS),
        name("tun_metadata2", TunMetadata2, Option(2), NO)
            .also(&["NXM_NX_TUN_METADATA2"])
            .access(NO_OPTIONS),
        name("tun_metadata3", TunMetadata3, Option(3), NO)
            .also(&["NXM_NX_TUN_METADATA3"])
            .access(NO_OPTIONS),
        name("metadata", Metadata, Hex, NO).also(&["OXM_OF_METADATA"]),
        name("pkt_mark", PktMark, Hex, NO).also(&["NXM_NX_PKT_MARK", "OXM_OF_PKT_MARK"]),
        name("ct_state", CtState, Flags(CT_STATE), NO)
            .also(&["NXM_NX_CT_STATE"])
            .access(Access::ReadOnly),
        name("ct_mark", CtMark, Hex, NO).also(&["NXM_NX_CT_MARK"]).access(NO_TRACKING),
        name("ct_label", CtLabel, Hex, NO).also(&["NXM_NX_CT_LABEL"]).access(NO_TRACKING),
        name("vlan_tci", Field::VlanTci, Kind::VlanTci, NO).also(&["NXM_OF_VLAN_TCI"]),
        name("dl_vlan", Field::VlanTci, DlVlan, NO).unshown().width(12).exact(),
        name("vlan_vid", Field::VlanTci, VlanVid, Needs::Vlan)
            .also(&["OXM_OF_VLAN_VID"])
            .unshown()
            .width(12),
        name("vlan_pcp", Field::VlanTci, VlanPcp, Needs::Vlan)
            .also(&["dl_vlan_pcp", "OXM_OF_VLAN_PCP"])
            .unshown()
            .width(3)
            .raise(PCP_FIRST)
            .exact(),
        name("eth_src", EthSrc, Mac, NO)
            .also(&["dl_src", "NXM_OF_ETH_SRC", "OXM_OF_ETH_SRC"])
            .shown("dl_src"),
        name("eth_dst", EthDst, Mac, NO)
            .also(&["dl_dst", "NXM_OF_ETH_DST", "OXM_OF_ETH_DST"])
            .shown("dl_dst"),
        name("eth_type", EthType, EtherType, NO)
            .also(&["dl_type", "NXM_OF_ETH_TYPE", "OXM_OF_ETH_TYPE"])
            .shown("dl_type")
            .exact()
            .access(Access::ReadOnly),
        name("ip_src", Ip4Src, Ipv4, Needs::Ipv4)
            .also(&["nw_src", "NXM_OF_IP_SRC", "OXM_OF_IPV4_SRC"])
            .shown("nw_src"),
        name("ip_dst", Ip4Dst, Ipv4, Needs::Ipv4)
            .also(&["nw_dst", "NXM_OF_IP_DST", "OXM_OF_IPV4_DST"])
            .shown("nw_dst"),
        name("ipv6_src", Ip6Src, Ipv6, Needs::Ipv6).also(&["NXM_NX_IPV6_SRC", "OXM_OF_IPV6_SRC"]),
        name("ipv6_dst", Ip6Dst, Ipv6, Needs::Ipv6).also(&["NXM_NX_IPV6_DST", "OXM_OF_IPV6_DST"]),
        name("ipv6_label", Ip6Label, Hex, Needs::Ipv6)
            .also(&["NXM_NX_IPV6_LABEL", "OXM_OF_IPV6_FLABEL"]),
        name("ip_proto", IpProto, Decimal, Needs::Ip)
            .also(&["nw_proto", "NXM_OF_IP_PROTO", "OXM_OF_IP_PROTO"])
            .shown("nw_proto")
            .exact()
            .access(Access::ReadOnly),
        name("nw_tos", IpDscp, Tos, Needs::Ip).also(&["NXM_OF_IP_TOS"]).width(8).lead(2).exact(),
        name("ip_dscp", IpDscp, Decimal, Needs::Ip).also(&["OXM_OF_IP_DSCP"]).unshown().exact(),
        name("nw_ecn", IpEcn, Decimal, Needs::Ip)
            .also(&["ip_ecn", "NXM_NX_IP_ECN", "OXM_OF_IP_ECN"])
            .exact(),
        name("nw_ttl", IpTtl, Decimal, Needs::Ip).also(&["NXM_NX_IP_TTL"]).exact(),
        name("ip_frag", IpFrag, Fragment, Needs::Ip)
            .also(&["nw_frag", "NXM_NX_IP_FRAG"])
            .shown("nw_frag")
            .access(Access::ReadOnly),
        name("arp_op", ArpOp, Decimal, Needs::Arp)
            .also(&["NXM_OF_ARP_OP", "OXM_OF_ARP_OP"])
            .exact(),
        name("arp_spa", ArpSpa, Ipv4, Needs::Arp).also(&["NXM_OF_ARP_SPA", "OXM_OF_ARP_SPA"]),
        name("arp_tpa", ArpTpa, Ipv4, Needs::Arp).also(&["NXM_OF_ARP_TPA", "OXM_OF_ARP_TPA"]),
        name("arp_sha", ArpSha, Mac, Needs::Arp).also(&["NXM_NX_ARP_SHA", "OXM_OF_ARP_SHA"]),
        name("arp_tha", ArpTha, Mac, Needs::Arp).also(&["NXM_NX_ARP_THA", "OXM_OF_ARP_THA"]),
        name("tp_src", TpSrc, Decimal, Needs::Ports),
        name("tp_dst", TpDst, Decimal, Needs::Ports),
        name("tcp_src", TpSrc, Decimal, Needs::Tcp)
            .also(&["NXM_OF_TCP_SRC", "OXM_OF_TCP_SRC"])
            .unshown(),
        name("tcp_dst", TpDst, Decimal, Needs::Tcp)
            .also(&["NXM_OF_TCP_DST", "OXM_OF_TCP_DST"])
            .unshown(),
        name("udp_src", TpSrc, Decimal, Needs::Udp)
            .also(&["NXM_OF_UDP_SRC", "OXM_OF_UDP_SRC"])
            .unshown(),
        name("udp_dst", TpDst, Decimal, Needs::Udp)
            .also(&["NXM_OF_UDP_DST", "OXM_OF_UDP_DST"])
            .unshown(),
        name("sctp_src", TpSrc, Decimal, Needs::Sctp).also(&["OXM_OF_SCTP_SRC"]).unshown(),
        name("sctp_dst", TpDst, Decimal, Needs::Sctp).also(&["OXM_OF_SCTP_DST"]).unshown(),
        name("tcp_flags", TcpFlags, Flags(TCP_FLAGS), Needs::Tcp)
            .also(&["NXM_NX_TCP_FLAGS", "OXM_OF_TCP_FLAGS"])
            .access(Access::ReadOnly),
        name("icmp_type", IcmpType, Decimal, Needs::Icmp)
            .also(&["NXM_OF_ICMP_TYPE", "OXM_OF_ICMPV4_TYPE"])
            .exact(),
        name("icmp_code", IcmpCode, Decimal, Needs::Icmp)
            .also(&["NXM_OF_ICMP_CODE", "OXM_OF_ICMPV4_CODE"])
            .exact(),
        name("icmpv6_type", IcmpType, Decimal, Needs::Icmp6)
            .also(&["NXM_NX_ICMPV6_TYPE", "OXM_OF_ICMPV6_TYPE"])
            .unshown()
            .exact(),
        name("icmpv6_code", IcmpCode, Decimal, Needs::Icmp6)
            .also(&["NXM_NX_ICMPV6_CODE", "OXM_OF_ICMPV6_CODE"])
            .unshown()
            .exact(),
        name("nd_target", NdTarget, Ipv6, Needs::Neighbour)
            .also(&["NXM_NX_ND_TARGET", "OXM_OF_IPV6_ND_TARGET"]),
        name("nd_sll", NdSll, Mac, Needs::Solicitation)
            .also(&["NXM_NX_ND_SLL", "OXM_OF_IPV6_ND_SLL"]),
        name("nd_tll", NdTll, Mac, Needs::Advertisement)
            .also(&["NXM_NX_ND_TLL", "OXM_OF_IPV6_ND_TLL"]),
    ]
};

static BY_NAME: LazyLock<HashMap<&'static str, &'static Name, ahash::RandomState>> =
    LazyLock::new(|| {
        let mut names = HashMap::default();
        for entry in all() {
            names.insert(entry.name, entry);
            names.extend(entry.others.iter().map(|&other| (other, entry)));
        }
        names
    });

/// Registers: their names differ only in a number, and NXM's differ from ours only in capitals.
static REGISTERS: LazyLock<Vec<Name>> = LazyLock::new(|| {
    let registers = Field::ALL.iter().filter(|field| field.name().starts_with("reg"));
    registers
        .chain(Field::ALIASES)
        .map(|&field| {
            let other = match field.name().strip_prefix("xreg") {
                Some(number) => format!("OXM_OF_PKT_REG{number}"),
                None => format!("NXM_NX_{}", field.name().to_uppercase()),
            };
            // Once per process, for names that live as long as it does.
            let others: &'static [&'static str] = Box::leak(Box::new([&*other.leak()]));
            let shown = if Field::ALIASES.contains(&field) { "" } else { field.name() };
            name(field.name(), field, Kind::Hex, Needs::Nothing).also(others).shown(shown)
        })
        .collect()
});

/// Every name, in the order in which a match is shown.
pub(super) fn all() -> impl Iterator<Item = &'static Name> {
    NAMED.iter().chain(REGISTERS.iter())
}

/// The field with that name.
pub(super) fn find(name: &str) -> Option<&'static Name> {
    BY_NAME.get(name).copied()
}

/// The entry of `field` under the name that needs just this of the packet.
pub(super) fn of_field(field: Field, needs: Needs) -> Option<&'static Name> {
    all().find(|entry| entry.field == field && entry.needs == needs)
}

/// All that may be said of a kind of packet in one word: name, EtherType, IP protocol.
pub(super) const SHORTHANDS: [(&str, u16, Option<u8>); 12] = [
    ("ip", IPV4, None),
    ("ipv6", IPV6, None),
    ("arp", ARP, None),
    ("rarp", RARP, None),
    ("icmp", IPV4, Some(ICMP4)),
    ("icmp6", IPV6, Some(ICMP6)),
    ("tcp", IPV4, Some(TCP)),
    ("tcp6", IPV6, Some(TCP)),
    ("udp", IPV4, Some(UDP)),
    ("udp6", IPV6, Some(UDP)),
    ("sctp", IPV4, Some(SCTP)),
    ("sctp6", IPV6, Some(SCTP)),
];

/// Fields of Open vSwitch that weft's keys do not have.
pub(super) fn is_foreign(name: &str) -> bool {
    const FOREIGN: [&str; 24] = [
        "dp_hash",
        "recirc_id",
        "packet_type",
        "skb_priority",
        "ct_zone",
        "ct_nw_src",
        "ct_nw_dst",
        "ct_ipv6_src",
        "ct_ipv6_dst",
        "ct_nw_proto",
        "ct_tp_src",
        "ct_tp_dst",
        "actset_output",
        "nd_reserved",
        "nd_options_type",
        "mpls",
        "mplsm",
        "eth",
        "tun_gbp_id",
        "tun_gbp_flags",
        "nsh_flags",
        "nsh_ttl",
        "nsh_spi",
        "nsh_si",
    ];
    let prefixes = ["mpls_", "nsh_", "tun_erspan_", "tun_gtpu_", "tun_metadata"];
    FOREIGN.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_ovs_has_is_shown_under_one_name() {
        let lacking =
            [Field::TunMetadataPresent, Field::VlanTpid, Field::VlanInnerTpid, Field::VlanInnerTci];
        for &field in Field::ALL {
            let shown = all().filter(|entry| entry.field == field && entry.is_shown()).count();
            assert_eq!(shown, usize::from(!lacking.contains(&field)), "{field}");
        }
    }

    #[test]
    fn names_are_found_when_old_new_or_of_nxm() {
        for (name, field) in [
            ("nw_src", Field::Ip4Src),
            ("OXM_OF_IPV4_SRC", Field::Ip4Src),
            ("NXM_NX_REG15", Field::Reg15),
            ("NXM_NX_XXREG3", Field::Xxreg3),
            ("OXM_OF_PKT_REG7", Field::Xreg7),
            ("vlan_pcp", Field::VlanTci),
            ("udp_dst", Field::TpDst),
        ] {
            assert_eq!(find(name).map(|entry| entry.field), Some(field), "{name}");
        }
        assert!(find("vlan_tpid").is_none());
    }
}
