//! The symbols of the logical language: fields, parts of fields, and predicates, with what must hold for them to have a
//! meaning.

mod field;

pub use field::FieldRef;

use flow::{Field, Subfield};
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

/// Which comparisons make sense with a symbol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Only equality: names and numbers that only identify, such as Ethernet types.
    Nominal,
    /// Equality and inequality: predicates.
    Boolean,
    /// Order too, and single bits may be looked at.
    Ordinal,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nominal => "nominal",
            Self::Boolean => "Boolean",
            Self::Ordinal => "ordinal",
        })
    }
}

/// Which actions may change a symbol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Writable {
    /// None.
    Never,
    /// All but those inside `ct_commit { ... }`.
    Anywhere,
    /// Only those inside `ct_commit { ... }`.
    InCtCommit,
    /// All.
    Everywhere,
}

/// What a symbol stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// A number in a packet's key.
    Number(Subfield),
    /// The key of a logical port or multicast group, written as its name.
    Port(Field),
    /// A condition.
    Predicate(&'static str),
    /// The MTU in an ICMP or ICMPv6 "packet too big": actions write it, nothing reads it.
    IcmpMtu,
}

/// A symbol's place in [`Symbol::all`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct SymbolId(u8);

impl SymbolId {
    pub(super) fn find(name: &str) -> Option<Self> {
        BY_NAME.get(name).copied()
    }

    /// Made by [`SymbolId::all`] alone, an identifier has its symbol.
    pub(super) fn symbol(self) -> &'static Symbol {
        &SYMBOLS[self.index()]
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).take(SYMBOLS.len()).map(Self)
    }
}

/// A symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// As it is written.
    pub name: &'static str,
    /// Bits; 1 for a predicate, 0 for a name of a port.
    pub width: u8,
    /// Which comparisons make sense.
    pub level: Level,
    /// What must hold for the symbol to have a meaning; empty for nothing. A condition on the symbol implies it.
    pub prerequisite: &'static str,
    /// Which actions may change it.
    pub writable: Writable,
    /// What it stands for.
    pub meaning: Meaning,
}

impl Symbol {
    /// The symbol of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        SymbolId::find(name).map(SymbolId::symbol)
    }

    /// Every symbol. One that is explained by others stands behind them.
    pub const fn all() -> &'static [Self] {
        SYMBOLS
    }

    /// True for a symbol whose values are written as names of ports.
    pub const fn is_string(&self) -> bool {
        self.width == 0
    }

    /// The bits of a key that the symbol is; `None` for a predicate and for what only actions know.
    pub const fn bits(&self) -> Option<Subfield> {
        match self.meaning {
            Meaning::Number(bits) => Some(bits),
            Meaning::Port(field) => Some(Subfield::whole(field)),
            Meaning::Predicate(_) | Meaning::IcmpMtu => None,
        }
    }

    const fn number(name: &'static str, bits: Subfield) -> Self {
        Self {
            name,
            width: bits.width(),
            level: Level::Ordinal,
            prerequisite: "",
            writable: Writable::Anywhere,
            meaning: Meaning::Number(bits),
        }
    }

    const fn needs(self, prerequisite: &'static str) -> Self {
        Self { prerequisite, ..self }
    }

    const fn nominal(self) -> Self {
        Self { level: Level::Nominal, ..self }
    }

    const fn written(self, writable: Writable) -> Self {
        Self { writable, ..self }
    }
}

const fn field(name: &'static str, field: Field) -> Symbol {
    Symbol::number(name, Subfield::whole(field))
}

/// The bits `first` to `last` of a field.
const fn bits(name: &'static str, field: Field, first: u8, last: u8) -> Symbol {
    match Subfield::new(field, first, last - first + 1) {
        Some(bits) => Symbol::number(name, bits),
        None => panic!("a symbol has bits that its field does not have"),
    }
}

const fn port(name: &'static str, field: Field) -> Symbol {
    Symbol {
        width: 0,
        level: Level::Nominal,
        meaning: Meaning::Port(field),
        ..self::field(name, field)
    }
}

const fn boolean(name: &'static str, condition: &'static str) -> Symbol {
    Symbol {
        name,
        width: 1,
        level: Level::Boolean,
        prerequisite: "",
        writable: Writable::Never,
        meaning: Meaning::Predicate(condition),
    }
}

/// A predicate about a nominal field: it may only be affirmed.
const fn kind(name: &'static str, condition: &'static str) -> Symbol {
    boolean(name, condition).nominal()
}

const fn mtu(name: &'static str, width: u8) -> Symbol {
    Symbol {
        name,
        width,
        level: Level::Nominal,
        prerequisite: "",
        writable: Writable::Everywhere,
        meaning: Meaning::IcmpMtu,
    }
}

static BY_NAME: LazyLock<HashMap<&str, SymbolId, ahash::RandomState>> =
    LazyLock::new(|| SymbolId::all().map(|id| (id.symbol().name, id)).collect());

const _: () = assert!(SYMBOLS.len() <= 256);

use Writable::{InCtCommit, Never};

/// Order matters: a symbol stands behind those that its condition and its prerequisite speak of.
static SYMBOLS: &[Symbol] = &[
    port("inport", Field::Reg14),
    port("outport", Field::Reg15),
    // Registers of the logical pipeline.
    field("xxreg0", Field::Xxreg0),
    field("xxreg1", Field::Xxreg1),
    field("xreg0", Field::Xreg0),
    field("xreg1", Field::Xreg1),
    field("xreg2", Field::Xreg2),
    field("xreg3", Field::Xreg3),
    field("xreg4", Field::Xreg4),
    field("reg0", Field::Reg0),
    field("reg1", Field::Reg1),
    field("reg2", Field::Reg2),
    field("reg3", Field::Reg3),
    field("reg4", Field::Reg4),
    field("reg5", Field::Reg5),
    field("reg6", Field::Reg6),
    field("reg7", Field::Reg7),
    field("reg8", Field::Reg8),
    field("reg9", Field::Reg9),
    field("flags", Field::Reg10),
    bits("flags.loopback", Field::Reg10, 0, 0),
    bits("flags.force_snat_for_dnat", Field::Reg10, 2, 2),
    bits("flags.force_snat_for_lb", Field::Reg10, 3, 3),
    bits("flags.skip_snat_for_lb", Field::Reg10, 9, 9),
    bits("flags.use_snat_zone", Field::Reg10, 11, 11),
    bits("flags.localnet", Field::Reg10, 15, 15),
    bits("flags.from_ctrl", Field::Reg10, 16, 16),
    // Connection tracking.
    field("ct_mark", Field::CtMark).written(InCtCommit),
    bits("ct_mark.blocked", Field::CtMark, 0, 0).written(InCtCommit),
    bits("ct_mark.natted", Field::CtMark, 1, 1).written(InCtCommit),
    bits("ct_mark.skip_snat", Field::CtMark, 2, 2).written(InCtCommit),
    bits("ct_mark.force_snat", Field::CtMark, 3, 3).written(InCtCommit),
    bits("ct_mark.ecmp_reply_port", Field::CtMark, 16, 31).written(InCtCommit),
    field("ct_label", Field::CtLabel).written(InCtCommit),
    bits("ct_label.blocked", Field::CtLabel, 0, 0).written(InCtCommit),
    bits("ct_label.natted", Field::CtLabel, 1, 1).written(InCtCommit),
    bits("ct_label.skip_snat", Field::CtLabel, 2, 2).written(InCtCommit),
    bits("ct_label.force_snat", Field::CtLabel, 3, 3).written(InCtCommit),
    bits("ct_label.ecmp_reply_eth", Field::CtLabel, 32, 79).written(InCtCommit),
    bits("ct_label.ecmp_reply_port", Field::CtLabel, 80, 95).written(InCtCommit),
    bits("ct_label.label", Field::CtLabel, 96, 127).written(InCtCommit),
    field("ct_state", Field::CtState).written(Never),
    bits("ct.trk", Field::CtState, 5, 5).written(Never),
    bits("ct.new", Field::CtState, 0, 0).written(Never).needs("ct.trk"),
    bits("ct.est", Field::CtState, 1, 1).written(Never).needs("ct.trk"),
    bits("ct.rel", Field::CtState, 2, 2).written(Never).needs("ct.trk"),
    bits("ct.rpl", Field::CtState, 3, 3).written(Never).needs("ct.trk"),
    bits("ct.inv", Field::CtState, 4, 4).written(Never).needs("ct.trk"),
    bits("ct.snat", Field::CtState, 6, 6).written(Never).needs("ct.trk"),
    bits("ct.dnat", Field::CtState, 7, 7).written(Never).needs("ct.trk"),
    // Ethernet and VLAN.
    field("eth.src", Field::EthSrc),
    field("eth.dst", Field::EthDst),
    field("eth.type", Field::EthType).written(Never).nominal(),
    boolean("eth.bcast", "eth.dst == ff:ff:ff:ff:ff:ff"),
    bits("eth.mcast", Field::EthDst, 40, 40),
    boolean("eth.mcastv6", "eth.dst[32..47] == 0x3333"),
    field("vlan.tci", Field::VlanTci),
    boolean("vlan.present", "vlan.tci[12]"),
    bits("vlan.pcp", Field::VlanTci, 13, 15).needs("vlan.present"),
    bits("vlan.vid", Field::VlanTci, 0, 11).needs("vlan.present"),
    // IP.
    kind("ip4", "eth.type == 0x800"),
    kind("ip6", "eth.type == 0x86dd"),
    kind("ip", "ip4 || ip6"),
    field("ip.proto", Field::IpProto).written(Never).nominal().needs("ip"),
    field("ip.dscp", Field::IpDscp).nominal().needs("ip"),
    field("ip.ecn", Field::IpEcn).nominal().needs("ip"),
    field("ip.ttl", Field::IpTtl).nominal().needs("ip"),
    field("ip4.src", Field::Ip4Src).needs("ip4"),
    field("ip4.dst", Field::Ip4Dst).needs("ip4"),
    boolean("ip4.src_mcast", "ip4.src[28..31] == 0xe"),
    boolean("ip4.mcast", "eth.mcast && ip4.dst[28..31] == 0xe"),
    kind("icmp4", "ip4 && ip.proto == 1"),
    field("icmp4.type", Field::IcmpType).nominal().needs("icmp4"),
    field("icmp4.code", Field::IcmpCode).nominal().needs("icmp4"),
    kind("igmp", "ip4.mcast && ip.proto == 2"),
    field("ip6.src", Field::Ip6Src).needs("ip6"),
    field("ip6.dst", Field::Ip6Dst).needs("ip6"),
    field("ip6.label", Field::Ip6Label).needs("ip6"),
    // Multicast groups of RFC 4291, section 2.7.1.
    boolean("ip6.mcast_rsvd", "ip6.dst[116..127] == 0xff0 && ip6.dst[0..111] == 0x0"),
    boolean("ip6.mcast_all_nodes", "ip6.dst == {ff01::1, ff02::1}"),
    boolean("ip6.mcast_all_rtrs", "ip6.dst == {ff01::2, ff02::2, ff05::2}"),
    boolean("ip6.mcast_sol_node", "ip6.dst == ff02::1:ff00:0000/104"),
    boolean(
        "ip6.mcast_flood",
        "eth.mcastv6 && (ip6.mcast_rsvd || ip6.mcast_all_nodes || ip6.mcast_all_rtrs || ip6.mcast_sol_node)",
    ),
    boolean("ip6.mcast", "eth.mcastv6 && ip6.dst[120..127] == 0xff"),
    kind("icmp6", "ip6 && ip.proto == 58"),
    field("icmp6.type", Field::IcmpType).nominal().needs("icmp6"),
    field("icmp6.code", Field::IcmpCode).nominal().needs("icmp6"),
    kind("icmp", "icmp4 || icmp6"),
    field("ip.frag", Field::IpFrag).written(Never).needs("ip"),
    boolean("ip.is_frag", "ip.frag[0]"),
    boolean("ip.later_frag", "ip.frag[1]"),
    boolean("ip.first_frag", "ip.is_frag && !ip.later_frag"),
    // ARP and reverse ARP, whose packets look alike.
    kind("arp", "eth.type == 0x806"),
    field("arp.op", Field::ArpOp).nominal().needs("arp"),
    field("arp.spa", Field::ArpSpa).needs("arp"),
    field("arp.sha", Field::ArpSha).needs("arp"),
    field("arp.tpa", Field::ArpTpa).needs("arp"),
    field("arp.tha", Field::ArpTha).needs("arp"),
    kind("rarp", "eth.type == 0x8035"),
    field("rarp.op", Field::ArpOp).nominal().needs("rarp"),
    field("rarp.spa", Field::ArpSpa).needs("rarp"),
    field("rarp.sha", Field::ArpSha).needs("rarp"),
    field("rarp.tpa", Field::ArpTpa).needs("rarp"),
    field("rarp.tha", Field::ArpTha).needs("rarp"),
    // Neighbour discovery (RFC 4861) and multicast listener discovery (RFC 2710, RFC 3810).
    kind("nd", "icmp6.type == {135, 136} && icmp6.code == 0 && ip.ttl == 255"),
    kind("nd_ns", "icmp6.type == 135 && icmp6.code == 0 && ip.ttl == 255"),
    kind("nd_ns_mcast", "ip6.mcast && icmp6.type == 135 && icmp6.code == 0 && ip.ttl == 255"),
    kind("nd_na", "icmp6.type == 136 && icmp6.code == 0 && ip.ttl == 255"),
    kind("nd_rs", "icmp6.type == 133 && icmp6.code == 0 && ip.ttl == 255"),
    kind("nd_ra", "icmp6.type == 134 && icmp6.code == 0 && ip.ttl == 255"),
    field("nd.target", Field::NdTarget).needs("nd"),
    field("nd.sll", Field::NdSll).needs("nd_ns"),
    field("nd.tll", Field::NdTll).needs("nd_na"),
    kind("mldv1", "eth.mcastv6 && ip6.src == fe80::/10 && icmp6.type == {130, 131, 132}"),
    kind("mldv2", "eth.mcastv6 && ip6.dst == ff02::16 && icmp6.type == 143"),
    // Transport.
    kind("tcp", "ip.proto == 6"),
    field("tcp.src", Field::TpSrc).needs("tcp"),
    field("tcp.dst", Field::TpDst).needs("tcp"),
    field("tcp.flags", Field::TcpFlags).written(Never).needs("tcp"),
    kind("udp", "ip.proto == 17"),
    field("udp.src", Field::TpSrc).needs("udp"),
    field("udp.dst", Field::TpDst).needs("udp"),
    kind("sctp", "ip.proto == 132"),
    field("sctp.src", Field::TpSrc).needs("sctp"),
    field("sctp.dst", Field::TpDst).needs("sctp"),
    field("pkt.mark", Field::PktMark),
    mtu("icmp4.frag_mtu", 16),
    mtu("icmp6.frag_mtu", 32),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symbol_is_found_by_its_name() {
        for symbol in SYMBOLS {
            // Of two symbols of one name, one would be found for both.
            assert!(std::ptr::eq(Symbol::find(symbol.name).unwrap(), symbol), "{}", symbol.name);
        }
        assert_eq!(Symbol::find("xyzzy"), None);
        assert_eq!(Symbol::find(""), None);
    }

    #[test]
    fn symbols_have_the_bits_of_their_meaning() {
        for symbol in SYMBOLS {
            match symbol.meaning {
                Meaning::Number(bits) => assert_eq!(symbol.width, bits.width(), "{}", symbol.name),
                Meaning::Port(_) => assert!(symbol.is_string()),
                Meaning::Predicate(_) => {
                    assert_eq!((symbol.width, symbol.writable), (1, Writable::Never));
                }
                Meaning::IcmpMtu => assert_eq!(symbol.bits(), None),
            }
        }
    }
}
