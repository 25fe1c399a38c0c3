//! Two tables: the match fields, and the prerequisites of match fields. A prerequisite says which
//! frames have a field. `docs/adding-a-field.md` explains how to add a field.
//!
//! The arguments of `row` are:
//!
//! 1. the name in weft's output;
//! 2. the 64-bit word of the flow key that holds the field;
//! 3. the number of bits to the right of the field in that word;
//! 4. the width of the field in bits;
//! 5. where the key of the BPF programs (`struct weft_key`) holds the field:
//!    - `held`: in a member of the struct;
//!    - `in_shape`: in a member of the struct, but only in some kinds of frames;
//!    - `NotHeld`: nowhere; programs punt packets whose megaflow depends on the field;
//!    - `Register`: nowhere, because the field is 0 in every packet that arrives.
//!
//! By default a field is written in hexadecimal, has values that are not allotted in prefixes, is
//! in any frame, may be written by actions, and has no name in other languages. The methods after
//! `row` change these defaults. Rows are ordered by their place in the flow key. The doc comment of
//! a row is its description in `docs/glossary.md`.

use super::Position;
use super::prerequisite::{FrameKind, Requirement, kind, prerequisites, requires};
use super::spec::{
    Access, FieldSpec, KernelMember, KernelShape, KernelWord, Notation, OfctlSyntax,
};
use super::spec::{CT_STATE, TCP_FLAGS, TUN_FLAGS, VLAN_PCP_FIRST, fields};
use super::spec::{NICIRA, NICIRA_BASIC, OPENFLOW, PACKET_REGS};
use super::spec::{held, in_shape, ofctl, ovn, ovn_bits, row};
use crate::tun_flags;
use KernelMember::{Ip, L3, Nd, Port, Transport, TunAddr, TunMetadata};
use KernelShape::{Arp, Ip4, Ip6, Tunnel4, Tunnel6};
use KernelWord::{NotHeld, Register};
use Notation::{Decimal, Hexadecimal, Ipv4, Ipv6, Mac};
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
    /// ARP or reverse ARP. OVN has a predicate for each, but none for both.
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

const BY_ENDPOINT: Access = Access::Unsupported("the tunnel's end point decides it");
const NO_OPTIONS: Access =
    Access::Unsupported("options are not put on frames that a flow-based tunnel sends");

fields! {
    // Metadata, not read from the frame itself: ingress port, packet mark and tunnel.
    /// The datapath port on which the frame arrived.
    InPort = row("in_port", 0, 32, 32, held(Port))
        .notation(Decimal)
        .ofctl(&[
            ofctl("in_port").also(&["NXM_OF_IN_PORT"]).syntax(OfctlSyntax::Port).width(16).exact(),
            ofctl("in_port_oxm").oxm(OPENFLOW, 0, 4)
                .also(&["OXM_OF_IN_PORT"])
                .unshown()
                .syntax(OfctlSyntax::Port)
                .exact(),
        ]),
    /// A mark that stays with the packet inside the host; 0 on arrival.
    PktMark = row("pkt_mark", 0, 0, 32, Register)
        .ovn(&[ovn("pkt.mark")])
        .ofctl(&[
            ofctl("pkt_mark").oxm(NICIRA, 33, 4).also(&["NXM_NX_PKT_MARK", "OXM_OF_PKT_MARK"]),
        ]),
    /// The tunnel key: VNI, GRE key, or the 64-bit context of STT; 0 without a tunnel.
    TunId = row("tun_id", 1, 0, 64, held(KernelMember::TunId))
        .ofctl(&[
            ofctl("tun_id")
                .oxm(OPENFLOW, 38, 8)
                .also(&["tunnel_id", "NXM_NX_TUN_ID", "OXM_OF_TUNNEL_ID"]),
        ]),
    /// Outer IPv4 source address.
    TunSrc = row("tun_src", 2, 32, 32, in_shape(TunAddr, 0, Tunnel4))
        .notation(Ipv4).access(BY_ENDPOINT)
        .ofctl(&[ofctl("tun_src").oxm(NICIRA, 31, 4).also(&["NXM_NX_TUN_IPV4_SRC"])]),
    /// Outer IPv4 destination address.
    TunDst = row("tun_dst", 2, 0, 32, in_shape(TunAddr, 0, Tunnel4))
        .notation(Ipv4)
        .ofctl(&[
            ofctl("tun_dst").oxm(NICIRA, 32, 4).also(&["NXM_NX_TUN_IPV4_DST"]),
        ]),
    /// Tunnel flags: bit 0 OAM, bit 1 don't fragment, bit 2 checksum, bit 3 key.
    TunFlags = row("tun_flags", 3, tun_flags::FLAGS_SHIFT, 16, held(KernelMember::TunFlags))
        .access(BY_ENDPOINT)
        .ofctl(&[
            ofctl("tun_flags")
                .also(&["NXM_NX_TUN_FLAGS"])
                .syntax(OfctlSyntax::Flags(TUN_FLAGS))
                .width(1),
        ]),
    /// Type of service or traffic class of the outer IP header.
    TunTos = row("tun_tos", 3, tun_flags::TOS_SHIFT, 8, held(KernelMember::TunFlags))
        .notation(Decimal).access(BY_ENDPOINT)
        .ofctl(&[ofctl("tun_tos").syntax(OfctlSyntax::Number(Hexadecimal)).exact()]),
    /// TTL or hop limit of the outer IP header.
    TunTtl = row("tun_ttl", 3, tun_flags::TTL_SHIFT, 8, held(KernelMember::TunFlags))
        .notation(Decimal).access(BY_ENDPOINT).ofctl(&[ofctl("tun_ttl").exact()]),
    /// Which tunnel options the packet carried: bit n stands for `tun_metadata`n.
    TunMetadataPresent = row(
        "tun_metadata_present",
        3,
        tun_flags::METADATA_PRESENT_SHIFT,
        8,
        held(KernelMember::TunFlags),
    ).access(Access::ReadOnly),
    /// Outer IPv6 source address.
    TunIpv6Src = row("tun_ipv6_src", 4, 0, 128, in_shape(TunAddr, 0, Tunnel6))
        .notation(Ipv6).access(BY_ENDPOINT)
        .ofctl(&[ofctl("tun_ipv6_src").also(&["NXM_NX_TUN_IPV6_SRC"])]),
    /// Outer IPv6 destination address.
    TunIpv6Dst = row("tun_ipv6_dst", 6, 0, 128, in_shape(TunAddr, 2, Tunnel6))
        .notation(Ipv6).ofctl(&[ofctl("tun_ipv6_dst").also(&["NXM_NX_TUN_IPV6_DST"])]),
    /// Tunnel option 0, right-aligned. By default it is OVN's option with both logical ports.
    TunMetadata0 = row("tun_metadata0", 8, 0, 64, held(TunMetadata))
        .access(NO_OPTIONS)
        .ofctl(&[
            ofctl("tun_metadata0")
                .also(&["NXM_NX_TUN_METADATA0"])
                .syntax(OfctlSyntax::TunnelOption(0)),
        ]),
    /// Tunnel option 1, right-aligned.
    TunMetadata1 = row("tun_metadata1", 9, 0, 64, NotHeld)
        .access(NO_OPTIONS)
        .ofctl(&[
            ofctl("tun_metadata1")
                .also(&["NXM_NX_TUN_METADATA1"])
                .syntax(OfctlSyntax::TunnelOption(1)),
        ]),
    /// Tunnel option 2, right-aligned.
    TunMetadata2 = row("tun_metadata2", 10, 0, 64, NotHeld)
        .access(NO_OPTIONS)
        .ofctl(&[
            ofctl("tun_metadata2")
                .also(&["NXM_NX_TUN_METADATA2"])
                .syntax(OfctlSyntax::TunnelOption(2)),
        ]),
    /// Tunnel option 3, right-aligned.
    TunMetadata3 = row("tun_metadata3", 11, 0, 64, NotHeld)
        .access(NO_OPTIONS)
        .ofctl(&[
            ofctl("tun_metadata3")
                .also(&["NXM_NX_TUN_METADATA3"])
                .syntax(OfctlSyntax::TunnelOption(3)),
        ]),

    // Only the pipeline writes these fields. They are 0 in a frame that arrives.
    /// The logical datapath: the number of a logical switch or logical router.
    Metadata = row("metadata", 12, 0, 64, Register)
        .ofctl(&[ofctl("metadata").oxm(OPENFLOW, 2, 8).also(&["OXM_OF_METADATA"])]),
    /// Register 0.
    Reg0 = row("reg0", 13, 32, 32, Register)
        .ovn(&[ovn("reg0")]).ofctl(&[ofctl("reg0").oxm(NICIRA, 0, 4).also(&["NXM_NX_REG0"])]),
    /// Register 1.
    Reg1 = row("reg1", 13, 0, 32, Register)
        .ovn(&[ovn("reg1")]).ofctl(&[ofctl("reg1").oxm(NICIRA, 1, 4).also(&["NXM_NX_REG1"])]),
    /// Register 2.
    Reg2 = row("reg2", 14, 32, 32, Register)
        .ovn(&[ovn("reg2")]).ofctl(&[ofctl("reg2").oxm(NICIRA, 2, 4).also(&["NXM_NX_REG2"])]),
    /// Register 3.
    Reg3 = row("reg3", 14, 0, 32, Register)
        .ovn(&[ovn("reg3")]).ofctl(&[ofctl("reg3").oxm(NICIRA, 3, 4).also(&["NXM_NX_REG3"])]),
    /// Register 4.
    Reg4 = row("reg4", 15, 32, 32, Register)
        .ovn(&[ovn("reg4")]).ofctl(&[ofctl("reg4").oxm(NICIRA, 4, 4).also(&["NXM_NX_REG4"])]),
    /// Register 5.
    Reg5 = row("reg5", 15, 0, 32, Register)
        .ovn(&[ovn("reg5")]).ofctl(&[ofctl("reg5").oxm(NICIRA, 5, 4).also(&["NXM_NX_REG5"])]),
    /// Register 6.
    Reg6 = row("reg6", 16, 32, 32, Register)
        .ovn(&[ovn("reg6")]).ofctl(&[ofctl("reg6").oxm(NICIRA, 6, 4).also(&["NXM_NX_REG6"])]),
    /// Register 7.
    Reg7 = row("reg7", 16, 0, 32, Register)
        .ovn(&[ovn("reg7")]).ofctl(&[ofctl("reg7").oxm(NICIRA, 7, 4).also(&["NXM_NX_REG7"])]),
    /// Register 8.
    Reg8 = row("reg8", 17, 32, 32, Register)
        .ovn(&[ovn("reg8")]).ofctl(&[ofctl("reg8").oxm(NICIRA, 8, 4).also(&["NXM_NX_REG8"])]),
    /// Register 9.
    Reg9 = row("reg9", 17, 0, 32, Register)
        .ovn(&[ovn("reg9")]).ofctl(&[ofctl("reg9").oxm(NICIRA, 9, 4).also(&["NXM_NX_REG9"])]),
    /// Register 10: OVN's `flags`.
    Reg10 = row("reg10", 18, 32, 32, Register)
        .ovn(&[
            ovn("flags"),
            ovn_bits("flags.loopback", 0, 0),
            ovn_bits("flags.force_snat_for_dnat", 2, 2),
            ovn_bits("flags.force_snat_for_lb", 3, 3),
            ovn_bits("flags.skip_snat_for_lb", 9, 9),
            ovn_bits("flags.use_snat_zone", 11, 11),
            ovn_bits("flags.localnet", 15, 15),
            ovn_bits("flags.from_ctrl", 16, 16),
        ])
        .ofctl(&[ofctl("reg10").oxm(NICIRA, 10, 4).also(&["NXM_NX_REG10"])]),
    /// Register 11.
    Reg11 = row("reg11", 18, 0, 32, Register)
        .ofctl(&[ofctl("reg11").oxm(NICIRA, 11, 4).also(&["NXM_NX_REG11"])]),
    /// Register 12.
    Reg12 = row("reg12", 19, 32, 32, Register)
        .ofctl(&[ofctl("reg12").oxm(NICIRA, 12, 4).also(&["NXM_NX_REG12"])]),
    /// Register 13.
    Reg13 = row("reg13", 19, 0, 32, Register)
        .ofctl(&[ofctl("reg13").oxm(NICIRA, 13, 4).also(&["NXM_NX_REG13"])]),
    /// Register 14: OVN's `inport`, the logical ingress port.
    Reg14 = row("reg14", 20, 32, 32, Register)
        .ovn(&[ovn("inport").port_name()])
        .ofctl(&[
            ofctl("reg14").oxm(NICIRA, 14, 4).also(&["NXM_NX_REG14"]),
        ]),
    /// Register 15: OVN's `outport`, the logical egress port.
    Reg15 = row("reg15", 20, 0, 32, Register)
        .ovn(&[ovn("outport").port_name()])
        .ofctl(&[
            ofctl("reg15").oxm(NICIRA, 15, 4).also(&["NXM_NX_REG15"]),
        ]),
    /// State of the packet's connection; 0 before the packet has passed the connection tracker.
    CtState = row("ct_state", 21, 32, 32, Register)
        .access(Access::ReadOnly)
        .ovn(&[
            ovn("ct_state"),
            ovn_bits("ct.trk", 5, 5),
            ovn_bits("ct.new", 0, 0).needs("ct.trk"),
            ovn_bits("ct.est", 1, 1).needs("ct.trk"),
            ovn_bits("ct.rel", 2, 2).needs("ct.trk"),
            ovn_bits("ct.rpl", 3, 3).needs("ct.trk"),
            ovn_bits("ct.inv", 4, 4).needs("ct.trk"),
            ovn_bits("ct.snat", 6, 6).needs("ct.trk"),
            ovn_bits("ct.dnat", 7, 7).needs("ct.trk"),
        ])
        .ofctl(&[
            ofctl("ct_state")
                .oxm(NICIRA, 105, 4)
                .also(&["NXM_NX_CT_STATE"])
                .syntax(OfctlSyntax::Flags(CT_STATE)),
        ]),
    /// Mark of the packet's connection; 0 before the packet has passed the connection tracker.
    CtMark = row("ct_mark", 21, 0, 32, Register)
        .access(Access::CtCommit)
        .ovn(&[
            ovn("ct_mark"),
            ovn_bits("ct_mark.blocked", 0, 0),
            ovn_bits("ct_mark.natted", 1, 1),
            ovn_bits("ct_mark.skip_snat", 2, 2),
            ovn_bits("ct_mark.force_snat", 3, 3),
            ovn_bits("ct_mark.ecmp_reply_port", 16, 31),
        ])
        .ofctl(&[ofctl("ct_mark").oxm(NICIRA, 107, 4).also(&["NXM_NX_CT_MARK"])]),
    /// Label of the packet's connection; 0 before the packet has passed the connection tracker.
    CtLabel = row("ct_label", 22, 0, 128, Register)
        .access(Access::CtCommit)
        .ovn(&[
            ovn("ct_label"),
            ovn_bits("ct_label.blocked", 0, 0),
            ovn_bits("ct_label.natted", 1, 1),
            ovn_bits("ct_label.skip_snat", 2, 2),
            ovn_bits("ct_label.force_snat", 3, 3),
            ovn_bits("ct_label.ecmp_reply_eth", 32, 79),
            ovn_bits("ct_label.ecmp_reply_port", 80, 95),
            ovn_bits("ct_label.label", 96, 127),
        ])
        .ofctl(&[ofctl("ct_label").oxm(NICIRA, 108, 16).also(&["NXM_NX_CT_LABEL"])]),
    /// The recirculation, which names the state in which a later pass of the packet begins; 0 in
    /// the first pass.
    RecircId = row("recirc_id", 24, 16, 48, Register).access(Access::SwitchOnly),
    /// Connection tracking zone; 0 before the packet has passed the connection tracker.
    CtZone = row("ct_zone", 24, 0, 16, Register)
        .notation(Decimal).access(Access::ReadOnly)
        .ofctl(&[ofctl("ct_zone").oxm(NICIRA, 106, 2).also(&["NXM_NX_CT_ZONE"]).exact()]),

    // Layer 2.
    /// Ethernet destination address.
    EthDst = row("eth_dst", 25, 16, 48, held(KernelMember::EthDst))
        .notation(Mac).ovn(&[ovn("eth.dst"), ovn_bits("eth.mcast", 40, 40)])
        .ofctl(&[
            ofctl("eth_dst")
                .oxm(OPENFLOW, 3, 6)
                .also(&["dl_dst", "NXM_OF_ETH_DST", "OXM_OF_ETH_DST"])
                .shown("dl_dst"),
        ]),
    /// EtherType behind at most two VLAN tags, or in a SNAP header behind them; 0x05ff for any
    /// other IEEE 802.3 frame, which has a length there.
    EthType = row("eth_type", 25, 0, 16, held(KernelMember::EthDst))
        .access(Access::ReadOnly).ovn(&[ovn("eth.type").nominal()])
        .ofctl(&[
            ofctl("eth_type").oxm(OPENFLOW, 5, 2)
                .also(&["dl_type", "NXM_OF_ETH_TYPE", "OXM_OF_ETH_TYPE"])
                .shown("dl_type")
                .syntax(OfctlSyntax::EtherType)
                .exact(),
        ]),
    /// Ethernet source address.
    EthSrc = row("eth_src", 26, 16, 48, held(KernelMember::EthSrc))
        .notation(Mac).ovn(&[ovn("eth.src")])
        .ofctl(&[
            ofctl("eth_src")
                .oxm(OPENFLOW, 4, 6)
                .also(&["dl_src", "NXM_OF_ETH_SRC", "OXM_OF_ETH_SRC"])
                .shown("dl_src"),
        ]),
    /// TPID of the outer VLAN tag; 0 without a tag.
    VlanTpid = row("vlan_tpid", 27, 48, 16, held(KernelMember::Vlan))
        .needs(Prerequisite::Vlan).access(Access::SwitchOnly),
    /// Outer VLAN tag: PCP (3 bits), a bit that is 1 if there is a tag (instead of DEI), VID (12
    /// bits).
    VlanTci = row("vlan_tci", 27, 32, 16, held(KernelMember::Vlan))
        .needs(Prerequisite::Vlan)
        .ovn(&[
            ovn("vlan.tci").needs(""),
            ovn_bits("vlan.pcp", 13, 15),
            ovn_bits("vlan.vid", 0, 11),
        ])
        .ofctl(&[
            ofctl("vlan_tci")
                .oxm(NICIRA_BASIC, 4, 2)
                .also(&["NXM_OF_VLAN_TCI"])
                .needs(Prerequisite::Nothing),
            ofctl("dl_vlan")
                .needs(Prerequisite::Nothing)
                .unshown()
                .syntax(OfctlSyntax::DlVlan)
                .width(12)
                .exact(),
            ofctl("vlan_vid")
                .also(&["OXM_OF_VLAN_VID"])
                .unshown()
                .syntax(OfctlSyntax::VlanVid)
                .width(12),
            ofctl("vlan_pcp")
                .also(&["dl_vlan_pcp", "OXM_OF_VLAN_PCP"])
                .unshown()
                .syntax(OfctlSyntax::VlanPcp)
                .first(VLAN_PCP_FIRST)
                .width(3)
                .exact(),
        ]),
    /// TPID of the second VLAN tag; 0 without one.
    VlanInnerTpid = row("vlan_inner_tpid", 27, 16, 16, held(KernelMember::Vlan))
        .access(Access::ReadOnly),
    /// Second VLAN tag in the format of `vlan_tci`; 0 without one.
    VlanInnerTci = row("vlan_inner_tci", 27, 0, 16, held(KernelMember::Vlan))
        .access(Access::ReadOnly),

    // Layer 3.
    /// IPv4 source address.
    Ip4Src = row("ip4_src", 28, 32, 32, in_shape(L3, 0, Ip4))
        .notation(Ipv4).in_prefixes().needs(Prerequisite::Ipv4).ovn(&[ovn("ip4.src")])
        .ofctl(&[
            ofctl("ip_src")
                .oxm(OPENFLOW, 11, 4)
                .also(&["nw_src", "NXM_OF_IP_SRC", "OXM_OF_IPV4_SRC"])
                .shown("nw_src"),
        ]),
    /// IPv4 destination address.
    Ip4Dst = row("ip4_dst", 28, 0, 32, in_shape(L3, 0, Ip4))
        .notation(Ipv4).in_prefixes().needs(Prerequisite::Ipv4).ovn(&[ovn("ip4.dst")])
        .ofctl(&[
            ofctl("ip_dst")
                .oxm(OPENFLOW, 12, 4)
                .also(&["nw_dst", "NXM_OF_IP_DST", "OXM_OF_IPV4_DST"])
                .shown("nw_dst"),
        ]),
    /// IPv6 source address.
    Ip6Src = row("ip6_src", 29, 0, 128, in_shape(L3, 0, Ip6))
        .notation(Ipv6).in_prefixes().needs(Prerequisite::Ipv6).ovn(&[ovn("ip6.src")])
        .ofctl(&[
            ofctl("ipv6_src").oxm(OPENFLOW, 26, 16).also(&["NXM_NX_IPV6_SRC", "OXM_OF_IPV6_SRC"]),
        ]),
    /// IPv6 destination address.
    Ip6Dst = row("ip6_dst", 31, 0, 128, in_shape(L3, 2, Ip6))
        .notation(Ipv6).in_prefixes().needs(Prerequisite::Ipv6).ovn(&[ovn("ip6.dst")])
        .ofctl(&[
            ofctl("ipv6_dst").oxm(OPENFLOW, 27, 16).also(&["NXM_NX_IPV6_DST", "OXM_OF_IPV6_DST"]),
        ]),
    /// IP protocol; in IPv6, of the header behind the extension headers.
    IpProto = row("ip_proto", 33, 56, 8, held(Ip))
        .notation(Decimal).needs(Prerequisite::Ip).access(Access::ReadOnly)
        .ovn(&[ovn("ip.proto").nominal()])
        .ofctl(&[
            ofctl("ip_proto").oxm(OPENFLOW, 10, 1)
                .also(&["nw_proto", "NXM_OF_IP_PROTO", "OXM_OF_IP_PROTO"])
                .shown("nw_proto")
                .exact(),
        ]),
    /// Differentiated services code point (RFC 2474).
    IpDscp = row("ip_dscp", 33, 50, 6, held(Ip))
        .notation(Decimal).needs(Prerequisite::Ip).ovn(&[ovn("ip.dscp").nominal()])
        .ofctl(&[
            ofctl("nw_tos")
                .also(&["NXM_OF_IP_TOS"])
                .syntax(OfctlSyntax::Tos)
                .width(8)
                .missing_low_bits(2)
                .exact(),
            ofctl("ip_dscp").oxm(OPENFLOW, 8, 1).also(&["OXM_OF_IP_DSCP"]).unshown().exact(),
        ]),
    /// Explicit congestion notification (RFC 3168).
    IpEcn = row("ip_ecn", 33, 48, 2, held(Ip))
        .notation(Decimal).needs(Prerequisite::Ip).ovn(&[ovn("ip.ecn").nominal()])
        .ofctl(&[
            ofctl("nw_ecn")
                .oxm(OPENFLOW, 9, 1)
                .also(&["ip_ecn", "NXM_NX_IP_ECN", "OXM_OF_IP_ECN"])
                .exact(),
        ]),
    /// TTL or hop limit.
    IpTtl = row("ip_ttl", 33, 40, 8, held(Ip))
        .notation(Decimal).needs(Prerequisite::Ip).ovn(&[ovn("ip.ttl").nominal()])
        .ofctl(&[ofctl("nw_ttl").oxm(NICIRA, 29, 1).also(&["NXM_NX_IP_TTL"]).exact()]),
    /// 0: not a fragment; 1: the first fragment; 3: a later fragment.
    IpFrag = row("ip_frag", 33, 32, 2, held(Ip))
        .needs(Prerequisite::Ip).access(Access::ReadOnly).ovn(&[ovn("ip.frag")])
        .ofctl(&[
            ofctl("ip_frag").oxm(NICIRA, 26, 1)
                .also(&["nw_frag", "NXM_NX_IP_FRAG"])
                .shown("nw_frag")
                .syntax(OfctlSyntax::Fragment),
        ]),
    /// IPv6 flow label (RFC 6437).
    Ip6Label = row("ip6_label", 33, 0, 20, held(Ip))
        .needs(Prerequisite::Ipv6).ovn(&[ovn("ip6.label")])
        .ofctl(&[
            ofctl("ipv6_label")
                .oxm(OPENFLOW, 28, 4)
                .also(&["NXM_NX_IPV6_LABEL", "OXM_OF_IPV6_FLABEL"]),
        ]),
    /// ARP sender protocol address.
    ArpSpa = row("arp_spa", 34, 32, 32, in_shape(L3, 0, Arp))
        .notation(Ipv4).in_prefixes().needs(Prerequisite::Arp)
        .ovn(&[ovn("arp.spa").needs("arp"), ovn("rarp.spa").needs("rarp")])
        .ofctl(&[
            ofctl("arp_spa").oxm(OPENFLOW, 22, 4).also(&["NXM_OF_ARP_SPA", "OXM_OF_ARP_SPA"]),
        ]),
    /// ARP target protocol address.
    ArpTpa = row("arp_tpa", 34, 0, 32, in_shape(L3, 0, Arp))
        .notation(Ipv4).in_prefixes().needs(Prerequisite::Arp)
        .ovn(&[ovn("arp.tpa").needs("arp"), ovn("rarp.tpa").needs("rarp")])
        .ofctl(&[
            ofctl("arp_tpa").oxm(OPENFLOW, 23, 4).also(&["NXM_OF_ARP_TPA", "OXM_OF_ARP_TPA"]),
        ]),
    /// ARP sender hardware address.
    ArpSha = row("arp_sha", 35, 16, 48, in_shape(L3, 1, Arp))
        .notation(Mac).needs(Prerequisite::Arp)
        .ovn(&[ovn("arp.sha").needs("arp"), ovn("rarp.sha").needs("rarp")])
        .ofctl(&[
            ofctl("arp_sha").oxm(OPENFLOW, 24, 6).also(&["NXM_NX_ARP_SHA", "OXM_OF_ARP_SHA"]),
        ]),
    /// ARP operation.
    ArpOp = row("arp_op", 35, 0, 16, in_shape(L3, 1, Arp))
        .notation(Decimal).needs(Prerequisite::Arp)
        .ovn(&[ovn("arp.op").nominal().needs("arp"), ovn("rarp.op").nominal().needs("rarp")])
        .ofctl(&[
            ofctl("arp_op").oxm(OPENFLOW, 21, 2).also(&["NXM_OF_ARP_OP", "OXM_OF_ARP_OP"]).exact(),
        ]),
    /// ARP target hardware address.
    ArpTha = row("arp_tha", 36, 16, 48, in_shape(L3, 2, Arp))
        .notation(Mac).needs(Prerequisite::Arp)
        .ovn(&[ovn("arp.tha").needs("arp"), ovn("rarp.tha").needs("rarp")])
        .ofctl(&[
            ofctl("arp_tha").oxm(OPENFLOW, 25, 6).also(&["NXM_NX_ARP_THA", "OXM_OF_ARP_THA"]),
        ]),

    // Layer 4.
    /// Source port of TCP, UDP or SCTP; `ip_proto` tells which.
    TpSrc = row("tp_src", 37, 48, 16, held(Transport))
        .notation(Decimal).in_prefixes().needs(Prerequisite::Ports)
        .ovn(&[
            ovn("tcp.src").needs("tcp"),
            ovn("udp.src").needs("udp"),
            ovn("sctp.src").needs("sctp"),
        ])
        .ofctl(&[
            ofctl("tp_src"),
            ofctl("tcp_src").oxm(OPENFLOW, 13, 2)
                .also(&["NXM_OF_TCP_SRC", "OXM_OF_TCP_SRC"])
                .unshown()
                .needs(Prerequisite::Tcp),
            ofctl("udp_src").oxm(OPENFLOW, 15, 2)
                .also(&["NXM_OF_UDP_SRC", "OXM_OF_UDP_SRC"])
                .unshown()
                .needs(Prerequisite::Udp),
            ofctl("sctp_src")
                .oxm(OPENFLOW, 17, 2)
                .also(&["OXM_OF_SCTP_SRC"])
                .unshown()
                .needs(Prerequisite::Sctp),
        ]),
    /// Destination port of TCP, UDP or SCTP; `ip_proto` tells which.
    TpDst = row("tp_dst", 37, 32, 16, held(Transport))
        .notation(Decimal).in_prefixes().needs(Prerequisite::Ports)
        .ovn(&[
            ovn("tcp.dst").needs("tcp"),
            ovn("udp.dst").needs("udp"),
            ovn("sctp.dst").needs("sctp"),
        ])
        .ofctl(&[
            ofctl("tp_dst"),
            ofctl("tcp_dst").oxm(OPENFLOW, 14, 2)
                .also(&["NXM_OF_TCP_DST", "OXM_OF_TCP_DST"])
                .unshown()
                .needs(Prerequisite::Tcp),
            ofctl("udp_dst").oxm(OPENFLOW, 16, 2)
                .also(&["NXM_OF_UDP_DST", "OXM_OF_UDP_DST"])
                .unshown()
                .needs(Prerequisite::Udp),
            ofctl("sctp_dst")
                .oxm(OPENFLOW, 18, 2)
                .also(&["OXM_OF_SCTP_DST"])
                .unshown()
                .needs(Prerequisite::Sctp),
        ]),
    /// TCP flags (RFC 9293): 12 bits, including the reserved ones.
    TcpFlags = row("tcp_flags", 37, 16, 12, held(Transport))
        .needs(Prerequisite::Tcp).access(Access::SwitchOnly).ovn(&[ovn("tcp.flags")])
        .ofctl(&[
            ofctl("tcp_flags").oxm(OPENFLOW, 42, 2)
                .also(&["NXM_NX_TCP_FLAGS", "OXM_OF_TCP_FLAGS"])
                .syntax(OfctlSyntax::Flags(TCP_FLAGS)),
        ]),
    /// ICMP or ICMPv6 type; `ip_proto` tells which.
    IcmpType = row("icmp_type", 37, 8, 8, held(Transport))
        .notation(Decimal).needs(Prerequisite::Icmp)
        .ovn(&[
            ovn("icmp4.type").nominal().needs("icmp4"),
            ovn("icmp6.type").nominal().needs("icmp6"),
        ])
        .ofctl(&[
            ofctl("icmp_type")
                .oxm(OPENFLOW, 19, 1)
                .also(&["NXM_OF_ICMP_TYPE", "OXM_OF_ICMPV4_TYPE"])
                .exact(),
            ofctl("icmpv6_type").oxm(OPENFLOW, 29, 1)
                .also(&["NXM_NX_ICMPV6_TYPE", "OXM_OF_ICMPV6_TYPE"])
                .unshown()
                .exact()
                .needs(Prerequisite::Icmp6),
        ]),
    /// ICMP or ICMPv6 code; `ip_proto` tells which.
    IcmpCode = row("icmp_code", 37, 0, 8, held(Transport))
        .notation(Decimal).needs(Prerequisite::Icmp)
        .ovn(&[
            ovn("icmp4.code").nominal().needs("icmp4"),
            ovn("icmp6.code").nominal().needs("icmp6"),
        ])
        .ofctl(&[
            ofctl("icmp_code")
                .oxm(OPENFLOW, 20, 1)
                .also(&["NXM_OF_ICMP_CODE", "OXM_OF_ICMPV4_CODE"])
                .exact(),
            ofctl("icmpv6_code").oxm(OPENFLOW, 30, 1)
                .also(&["NXM_NX_ICMPV6_CODE", "OXM_OF_ICMPV6_CODE"])
                .unshown()
                .exact()
                .needs(Prerequisite::Icmp6),
        ]),
    /// Target address of a neighbour solicitation or advertisement (RFC 4861).
    NdTarget = row("nd_target", 38, 0, 128, held(Nd))
        .notation(Ipv6).in_prefixes().needs(Prerequisite::Nd).ovn(&[ovn("nd.target")])
        .ofctl(&[
            ofctl("nd_target")
                .oxm(OPENFLOW, 31, 16)
                .also(&["NXM_NX_ND_TARGET", "OXM_OF_IPV6_ND_TARGET"]),
        ]),
    /// Source link-layer address option of a neighbour solicitation; 0 without one.
    NdSll = row("nd_sll", 40, 16, 48, in_shape(Nd, 2, KernelShape::NdSolicit))
        .notation(Mac).needs(Prerequisite::NdSolicit).ovn(&[ovn("nd.sll")])
        .ofctl(&[
            ofctl("nd_sll").oxm(OPENFLOW, 32, 6).also(&["NXM_NX_ND_SLL", "OXM_OF_IPV6_ND_SLL"]),
        ]),
    /// Target link-layer address option of a neighbour advertisement; 0 without one.
    NdTll = row("nd_tll", 41, 16, 48, in_shape(Nd, 2, KernelShape::NdAdvert))
        .notation(Mac).needs(Prerequisite::NdAdvert).ovn(&[ovn("nd.tll")])
        .ofctl(&[
            ofctl("nd_tll").oxm(OPENFLOW, 33, 6).also(&["NXM_NX_ND_TLL", "OXM_OF_IPV6_ND_TLL"]),
        ]),
    ---
    // Aliases: fields that cover two or four registers.
    /// `reg0` and `reg1`.
    Xreg0 = row("xreg0", 13, 0, 64, Register)
        .ovn(&[ovn("xreg0")])
        .ofctl(&[
            ofctl("xreg0").oxm(PACKET_REGS, 0, 8).also(&["OXM_OF_PKT_REG0"]).unshown(),
        ]),
    /// `reg2` and `reg3`.
    Xreg1 = row("xreg1", 14, 0, 64, Register)
        .ovn(&[ovn("xreg1")])
        .ofctl(&[
            ofctl("xreg1").oxm(PACKET_REGS, 1, 8).also(&["OXM_OF_PKT_REG1"]).unshown(),
        ]),
    /// `reg4` and `reg5`.
    Xreg2 = row("xreg2", 15, 0, 64, Register)
        .ovn(&[ovn("xreg2")])
        .ofctl(&[
            ofctl("xreg2").oxm(PACKET_REGS, 2, 8).also(&["OXM_OF_PKT_REG2"]).unshown(),
        ]),
    /// `reg6` and `reg7`.
    Xreg3 = row("xreg3", 16, 0, 64, Register)
        .ovn(&[ovn("xreg3")])
        .ofctl(&[
            ofctl("xreg3").oxm(PACKET_REGS, 3, 8).also(&["OXM_OF_PKT_REG3"]).unshown(),
        ]),
    /// `reg8` and `reg9`.
    Xreg4 = row("xreg4", 17, 0, 64, Register)
        .ovn(&[ovn("xreg4")])
        .ofctl(&[
            ofctl("xreg4").oxm(PACKET_REGS, 4, 8).also(&["OXM_OF_PKT_REG4"]).unshown(),
        ]),
    /// `reg10` and `reg11`.
    Xreg5 = row("xreg5", 18, 0, 64, Register)
        .ofctl(&[ofctl("xreg5").oxm(PACKET_REGS, 5, 8).also(&["OXM_OF_PKT_REG5"]).unshown()]),
    /// `reg12` and `reg13`.
    Xreg6 = row("xreg6", 19, 0, 64, Register)
        .ofctl(&[ofctl("xreg6").oxm(PACKET_REGS, 6, 8).also(&["OXM_OF_PKT_REG6"]).unshown()]),
    /// `reg14` and `reg15`.
    Xreg7 = row("xreg7", 20, 0, 64, Register)
        .ofctl(&[ofctl("xreg7").oxm(PACKET_REGS, 7, 8).also(&["OXM_OF_PKT_REG7"]).unshown()]),
    /// `reg0` to `reg3`.
    Xxreg0 = row("xxreg0", 13, 0, 128, Register)
        .ovn(&[ovn("xxreg0")])
        .ofctl(&[
            ofctl("xxreg0").oxm(NICIRA, 111, 16).also(&["NXM_NX_XXREG0"]).unshown(),
        ]),
    /// `reg4` to `reg7`.
    Xxreg1 = row("xxreg1", 15, 0, 128, Register)
        .ovn(&[ovn("xxreg1")])
        .ofctl(&[
            ofctl("xxreg1").oxm(NICIRA, 112, 16).also(&["NXM_NX_XXREG1"]).unshown(),
        ]),
    /// `reg8` to `reg11`.
    Xxreg2 = row("xxreg2", 17, 0, 128, Register)
        .ofctl(&[ofctl("xxreg2").oxm(NICIRA, 113, 16).also(&["NXM_NX_XXREG2"]).unshown()]),
    /// `reg12` to `reg15`.
    Xxreg3 = row("xxreg3", 19, 0, 128, Register)
        .ofctl(&[ofctl("xxreg3").oxm(NICIRA, 114, 16).also(&["NXM_NX_XXREG3"]).unshown()]),
}

/// Fields of Open vSwitch that weft does not support; `*` matches any suffix. The parser of
/// ovs-ofctl flows reports them as "not supported" instead of "unknown field".
#[rustfmt::skip]
pub const FOREIGN_FIELDS: &[&str] = &[
    "dp_hash", "recirc_id", "packet_type", "skb_priority", "ct_nw_src", "ct_nw_dst",
    "ct_ipv6_src", "ct_ipv6_dst", "ct_nw_proto", "ct_tp_src", "ct_tp_dst", "actset_output",
    "nd_reserved", "nd_options_type", "mpls", "mplsm", "eth", "tun_gbp_id", "tun_gbp_flags",
    "nsh_flags", "nsh_ttl", "nsh_spi", "nsh_si", "mpls_*", "nsh_*", "tun_erspan_*", "tun_gtpu_*",
    "tun_metadata*",
];
