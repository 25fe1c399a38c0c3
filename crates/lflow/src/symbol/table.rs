//! The symbols: those of fields come from the table of fields ([`flow::FieldSpec`]), the predicates
//! are here.

use super::{Level, Symbol, SymbolMeaning, Writable};
use flow::{Access, Field, FieldSpec, OvnKind, OvnSymbol, Subfield};
use std::collections::HashMap;

/// Every symbol. Symbols that a condition or prerequisite mentions precede its owner.
pub(super) fn symbols() -> Vec<Symbol> {
    let fields = Field::ALL.iter().chain(Field::ALIASES).map(|field| field.spec());
    let fields = fields.flat_map(|spec| spec.ovn.iter().map(|symbol| of_field(spec, symbol)));
    ordered(&fields.chain(PREDICATES.iter().copied()).collect::<Vec<_>>())
}

fn of_field(spec: &FieldSpec, symbol: &OvnSymbol) -> Symbol {
    let whole = Subfield::whole(spec.field);
    let bits = Subfield::new(spec.field, symbol.first, symbol.width).unwrap_or(whole);
    let is_port = symbol.kind == OvnKind::PortName;
    Symbol {
        name: symbol.name,
        width: if is_port { 0 } else { bits.width() },
        level: match symbol.kind {
            OvnKind::Ordinal => Level::Ordinal,
            OvnKind::Nominal | OvnKind::PortName => Level::Nominal,
        },
        prerequisite: symbol
            .prerequisite
            .or(spec.prerequisite.requirement().ovn)
            .unwrap_or_default(),
        writable: match spec.access {
            Access::ReadWrite => Writable::Anywhere,
            Access::CtCommit => Writable::InCtCommit,
            Access::ReadOnly | Access::SwitchOnly | Access::Unsupported(_) => Writable::Never,
        },
        meaning: if is_port {
            SymbolMeaning::Port(spec.field)
        } else {
            SymbolMeaning::Number(bits)
        },
    }
}

/// Sorts symbols so that each follows those that its condition and its prerequisite mention.
fn ordered(symbols: &[Symbol]) -> Vec<Symbol> {
    fn visit(
        at: usize,
        by_name: &HashMap<&str, usize>,
        rest: &mut [Option<Symbol>],
        out: &mut Vec<Symbol>,
    ) {
        let Some(symbol) = rest[at].take() else { return };
        let condition = match symbol.meaning {
            SymbolMeaning::Predicate(condition) => condition,
            _ => "",
        };
        for text in [condition, symbol.prerequisite] {
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '_');
            for &mentioned in words.filter_map(|word| by_name.get(word)) {
                visit(mentioned, by_name, rest, out);
            }
        }
        out.push(symbol);
    }
    let by_name = symbols.iter().enumerate().map(|(at, symbol)| (symbol.name, at)).collect();
    let mut rest: Vec<_> = symbols.iter().copied().map(Some).collect();
    let mut out = Vec::new();
    for at in 0..symbols.len() {
        visit(at, &by_name, &mut rest, &mut out);
    }
    out
}

/// A predicate that may be negated.
const fn predicate(name: &'static str, condition: &'static str) -> Symbol {
    Symbol {
        name,
        width: 1,
        level: Level::Boolean,
        prerequisite: "",
        writable: Writable::Never,
        meaning: SymbolMeaning::Predicate(condition),
    }
}

/// A predicate on a nominal field, which OVN does not allow to be negated.
const fn nominal(name: &'static str, condition: &'static str) -> Symbol {
    Symbol { level: Level::Nominal, ..predicate(name, condition) }
}

const fn icmp_mtu(name: &'static str, width: u8) -> Symbol {
    Symbol {
        name,
        width,
        level: Level::Nominal,
        prerequisite: "",
        writable: Writable::Everywhere,
        meaning: SymbolMeaning::IcmpMtu,
    }
}

/// The symbols that are not bits of a field.
const PREDICATES: &[Symbol] = &[
    // Ethernet and VLAN.
    predicate("eth.bcast", "eth.dst == ff:ff:ff:ff:ff:ff"),
    predicate("eth.mcastv6", "eth.dst[32..47] == 0x3333"),
    predicate("vlan.present", "vlan.tci[12]"),
    // IP.
    nominal("ip4", "eth.type == 0x800"),
    nominal("ip6", "eth.type == 0x86dd"),
    nominal("ip", "ip4 || ip6"),
    predicate("ip4.src_mcast", "ip4.src[28..31] == 0xe"),
    predicate("ip4.mcast", "eth.mcast && ip4.dst[28..31] == 0xe"),
    // Multicast groups of RFC 4291, section 2.7.1.
    predicate("ip6.mcast_rsvd", "ip6.dst[116..127] == 0xff0 && ip6.dst[0..111] == 0x0"),
    predicate("ip6.mcast_all_nodes", "ip6.dst == {ff01::1, ff02::1}"),
    predicate("ip6.mcast_all_rtrs", "ip6.dst == {ff01::2, ff02::2, ff05::2}"),
    predicate("ip6.mcast_sol_node", "ip6.dst == ff02::1:ff00:0000/104"),
    predicate(
        "ip6.mcast_flood",
        "eth.mcastv6 && (ip6.mcast_rsvd || ip6.mcast_all_nodes || ip6.mcast_all_rtrs \
         || ip6.mcast_sol_node)",
    ),
    predicate("ip6.mcast", "eth.mcastv6 && ip6.dst[120..127] == 0xff"),
    predicate("ip.is_frag", "ip.frag[0]"),
    predicate("ip.later_frag", "ip.frag[1]"),
    predicate("ip.first_frag", "ip.is_frag && !ip.later_frag"),
    // ICMP and IGMP.
    nominal("icmp4", "ip4 && ip.proto == 1"),
    nominal("icmp6", "ip6 && ip.proto == 58"),
    nominal("icmp", "icmp4 || icmp6"),
    nominal("igmp", "ip4.mcast && ip.proto == 2"),
    icmp_mtu("icmp4.frag_mtu", 16),
    icmp_mtu("icmp6.frag_mtu", 32),
    // ARP and reverse ARP, which share a packet format.
    nominal("arp", "eth.type == 0x806"),
    nominal("rarp", "eth.type == 0x8035"),
    // Neighbour discovery (RFC 4861) and multicast listener discovery (RFC 2710, RFC 3810).
    nominal("nd", "icmp6.type == {135, 136} && icmp6.code == 0 && ip.ttl == 255"),
    nominal("nd_ns", "icmp6.type == 135 && icmp6.code == 0 && ip.ttl == 255"),
    nominal("nd_ns_mcast", "ip6.mcast && icmp6.type == 135 && icmp6.code == 0 && ip.ttl == 255"),
    nominal("nd_na", "icmp6.type == 136 && icmp6.code == 0 && ip.ttl == 255"),
    nominal("nd_rs", "icmp6.type == 133 && icmp6.code == 0 && ip.ttl == 255"),
    nominal("nd_ra", "icmp6.type == 134 && icmp6.code == 0 && ip.ttl == 255"),
    nominal("mldv1", "eth.mcastv6 && ip6.src == fe80::/10 && icmp6.type == {130, 131, 132}"),
    nominal("mldv2", "eth.mcastv6 && ip6.dst == ff02::16 && icmp6.type == 143"),
    // Transport.
    nominal("tcp", "ip.proto == 6"),
    nominal("udp", "ip.proto == 17"),
    nominal("sctp", "ip.proto == 132"),
];
