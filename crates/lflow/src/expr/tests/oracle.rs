//! Compares compiled expressions with a naive evaluator.

use super::*;
use crate::symbol::{SymbolId, SymbolMeaning};
use flow::{Field, FlowKey, FlowMask};
use pipeline::PlainRecorder;
use proptest::prelude::*;

/// Naive evaluation: tests each comparison and the prerequisites of its field in turn.
fn holds(node: &Node, key: &FlowKey, names: &Names) -> bool {
    let presupposed = |symbol: SymbolId| match symbol.symbol().prerequisite {
        "" => true,
        text => holds(&parse(text).unwrap().0, key, names),
    };
    match node {
        Node::Constant(value) => *value,
        Node::Resident(test) => names.is_chassis_resident(&test.port) != test.negated,
        Node::All(parts) => parts.iter().all(|part| holds(part, key, names)),
        Node::Any(parts) => parts.iter().any(|part| holds(part, key, names)),
        Node::Port(test) => {
            let value = key.get_bits(test.symbol.symbol().bits().unwrap());
            names.port(&test.port).is_some_and(|port| u128::from(port) == value)
        }
        Node::Number(test) => number_holds(test, key, names) && presupposed(test.symbol),
        Node::Set(test) if test.field.is_text() => {
            let ports = names.port_group(&test.name).unwrap();
            let value = key.get_bits(test.field.bits().unwrap());
            ports.keys.iter().any(|port| u128::from(*port) == value)
        }
        Node::Set(test) => {
            let addresses = names.address_set(&test.name).unwrap();
            let value = key.get_bits(test.field.bits().unwrap());
            let cut = flow::low_bits(test.field.width());
            let among = addresses.iter().any(|address| {
                let mask = address.mask.unwrap_or(u128::MAX) & cut;
                (value ^ address.value) & mask == 0
            });
            among != test.negated && (addresses.is_empty() || presupposed(test.field.id()))
        }
    }
}

fn number_holds(test: &NumberTest, key: &FlowKey, names: &Names) -> bool {
    let symbol = test.symbol.symbol();
    if let SymbolMeaning::Predicate(text) = symbol.meaning {
        return holds(&parse(text).unwrap().0, key, names) == (test.value == 1);
    }
    let value = key.get_bits(symbol.bits().unwrap()) & test.mask;
    match test.relation {
        Relation::Equal => value == test.value,
        Relation::NotEqual => value != test.value,
        Relation::Less => value < test.value,
        Relation::LessOrEqual => value <= test.value,
        Relation::Greater => value > test.value,
        Relation::GreaterOrEqual => value >= test.value,
    }
}

/// Evaluates a compiled condition.
fn compiled_holds(compiled: &Compiled, key: &FlowKey) -> bool {
    let mut read = FlowMask::default();
    compiled.rows.iter().any(|row| row.matches(key))
        && compiled
            .residual
            .as_ref()
            .is_none_or(|residual| residual.holds(&mut PlainRecorder { key, read: &mut read }))
}

/// Comparisons that may be negated.
fn comparison() -> impl Strategy<Value = String> {
    let field = prop::sample::select(vec![
        "ip4.src",
        "ip4.dst[0..3]",
        "tcp.dst",
        "tcp.dst[2..5]",
        "udp.src",
        "vlan.vid",
        "vlan.tci",
        "reg0",
        "reg0[0..2]",
        "xxreg0[94..99]",
        "eth.dst",
        "eth.dst[40..47]",
        "ip6.dst",
        "ip6.src[0..7]",
        "flags",
        "ct_label[30..40]",
        "nd.sll",
        "arp.spa",
        "ip.frag",
    ]);
    let number = || 0u32..4;
    let relation = prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
    let equality = prop::sample::select(vec!["==", "!="]);
    prop_oneof![
        4 => (field.clone(), relation, 0u32..4).prop_map(|(f, r, n)| format!("{f} {r} {n}")),
        1 => (field.clone(), equality.clone(), number(), number())
            .prop_map(|(f, r, n, m)| format!("{f} {r} {n}/{m}")),
        2 => (field.clone(), equality.clone(), prop::collection::vec(0u32..4, 1..4))
            .prop_map(|(f, r, n)| {
                let n: Vec<_> = n.iter().map(u32::to_string).collect();
                format!("{f} {r} {{{}}}", n.join(", "))
            }),
        1 => (field, 0u32..4, 0u32..4).prop_map(|(f, a, b)| format!("{a} <= {f} < {b}")),
        2 => prop::sample::select(vec![
            "ct.new", "ct.est", "!ct.trk", "eth.mcast", "eth.bcast", "vlan.present",
            "!vlan.present", "ip.is_frag", "ip.first_frag", "!ip.first_frag", "ip.later_frag",
            "!ip.later_frag", "ip4.mcast", "!ip4.mcast", "ip6.mcast", "!ip6.mcast",
            "ip6.mcast_flood", "!ip6.mcast_flood", "!ip4.src_mcast", "eth.mcastv6", "reg0[31]",
            "is_chassis_resident(\"eth0\")", "is_chassis_resident(\"eth1\")", "0", "1",
        ]).prop_map(str::to_owned),
        1 => (
            prop::sample::select(vec![
                ("ip4.src", "ten"), ("ip4.dst", "nets"), ("ip4.src", "empty"), ("eth.src", "macs"),
                ("ip6.src", "six"), ("reg0[0..7]", "ten"), ("arp.spa", "nets"),
            ]),
            equality,
        ).prop_map(|((field, set), r)| format!("{field} {r} ${set}")),
    ]
}

/// Comparisons that may not be negated.
fn nominal() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop::sample::select(vec![
            "ip", "ip4", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp4", "icmp6",
            "igmp", "nd", "nd_ns", "nd_na", "nd_rs", "nd_ra", "nd_ns_mcast", "mldv1", "mldv2",
            "inport == \"eth0\"", "inport == \"nowhere\"", "inport == {\"eth0\", \"eth1\"}",
            "outport == @pg", "outport == @empty", "outport == \"group\"", "ip.ttl == {0, 1}",
            "ip.proto == {6, 17}", "eth.type == 0x800/0xfff0", "ip.ttl == 255", "icmp6.type == 135",
            "icmp4.code == 0", "arp.op == 1", "rarp.op == 2",
        ]).prop_map(str::to_owned),
        1 => (0u32..4).prop_map(|n| format!("icmp4.type == {n}")),
    ]
}

fn joined(parts: Vec<String>, operator: bool) -> String {
    match &parts[..] {
        [one] => one.clone(),
        _ => format!("({})", parts.join(if operator { " && " } else { " || " })),
    }
}

fn expression() -> impl Strategy<Value = String> {
    let negatable = comparison().prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            2 => (prop::collection::vec(inner.clone(), 1..4), any::<bool>())
                .prop_map(|(parts, and)| joined(parts, and)),
            1 => inner.prop_map(|part| format!("!({part})")),
        ]
    });
    prop_oneof![2 => negatable, 1 => nominal()].prop_recursive(3, 16, 4, |inner| {
        (prop::collection::vec(inner, 1..5), any::<bool>())
            .prop_map(|(parts, and)| joined(parts, and))
    })
}

/// Keys whose fields often have values that occur in expressions.
fn key() -> impl Strategy<Value = FlowKey> {
    let small = || prop_oneof![3 => 0u128..4, 1 => any::<u128>()];
    let of = |values: &[u128]| prop::sample::select(values.to_vec());
    (
        of(&[0x800, 0x86dd, 0x806, 0x8035, 0]),
        of(&[1, 2, 6, 17, 58, 132]),
        of(&[0, 1, 64, 255]),
        of(&[0, 1, 3]),
        of(&[133, 134, 135, 136, 130, 143, 0, 1]),
        of(&[0xffff_ffff_ffff, 0x3333_0000_0001, 0x0100_5e00_0001, 1, 2]),
        of(&[0, 0x1000, 0x1001, 0x3002, 0x2003]),
        of(&[0xff02 << 112 | 1, 0xff05 << 112 | 2, 0xff02 << 112 | 0x16, 0xfe80 << 112 | 1, 1, 2]),
        of(&[0x0a00_0001, 0x0a00_0007, 0xc0a8_0001, 0x0102_0304, 0xe000_0001, 0, 1, 2, 3]),
        prop::collection::vec((prop::sample::select(Field::ALL.to_vec()), small()), 0..40),
        0u128..8,
    )
        .prop_map(|(eth_type, proto, ttl, frag, icmp, dst, tci, ip6, ip4, rest, port)| {
            let mut key = FlowKey::default();
            rest.into_iter().for_each(|(field, value)| key.set(field, value));
            for (field, value) in [
                (Field::EthType, eth_type),
                (Field::IpProto, proto),
                (Field::IpTtl, ttl),
                (Field::IpFrag, frag),
                (Field::IcmpType, icmp),
                (Field::EthDst, dst),
                (Field::VlanTci, tci),
                (Field::Ip6Dst, ip6),
                (Field::Ip4Src, ip4),
                (Field::Reg14, port),
            ] {
                key.set(field, value);
            }
            key
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn compiled_expressions_agree_with_the_oracle(
        text in expression(),
        keys in prop::collection::vec(key(), 8),
        pick in any::<prop::sample::Index>(),
    ) {
        let names = Names::default();
        let expr = parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        prop_assert_eq!(parse(&expr.to_string()), Ok(expr.clone()));
        let compiled = compile(&expr, &names);
        prop_assert!(compiled.rows.len() <= 1024, "{} rows", compiled.rows.len());
        let agrees = |key: &FlowKey| {
            let (compiled_result, result) =
                (compiled_holds(&compiled, key), holds(&expr.0, key, &names));
            prop_assert_eq!(compiled_result, result, "{} {:?} {:?}", text, key, compiled);
            Ok(())
        };
        for key in keys {
            agrees(&key)?;
            // A packet that matches a row.
            if !compiled.rows.is_empty() {
                let row = pick.get(&compiled.rows);
                let mut key = key;
                for (field, mask) in row.mask().fields() {
                    key.set(field, key.get(field) & !mask | row.key().get(field));
                }
                agrees(&key)?;
            }
        }
    }
}
