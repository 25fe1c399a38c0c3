//! The rows and residual predicates of expressions.

use super::*;
use std::time::{Duration, Instant};

/// The rows of an expression, one per line, and its residual.
fn compiled(text: &str) -> String {
    let expr = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let compiled = compile(&expr, &Names::default());
    let mut lines: Vec<_> = compiled.rows.iter().map(|row| format!("{row:?}")).collect();
    lines.sort();
    lines.extend(compiled.residual.map(|residual| format!("and {residual:?}")));
    lines.extend(compiled.refused.map(|error| error.to_string()));
    lines.join("\n")
}

const ROWS: &[(&str, &[&str])] = &[
    ("1", &["{}"]),
    ("0", &[]),
    ("eth.dst == 0/0", &["{}"]),
    ("eth.dst != 0/0", &[]),
    ("ip4.src == 1.2.3.4", &["{eth_type=0x800, ip4_src=0x1020304}"]),
    ("tcp", &["{eth_type=0x800, ip_proto=0x6}", "{eth_type=0x86dd, ip_proto=0x6}"]),
    ("tcp.dst == 80 && ip4", &["{eth_type=0x800, ip_proto=0x6, tp_dst=0x50}"]),
    ("tcp.dst >= 0", &["{eth_type=0x800, ip_proto=0x6}", "{eth_type=0x86dd, ip_proto=0x6}"]),
    ("ip4 && tcp.dst > 65535", &[]),
    ("ip4 && ip6", &[]),
    ("ip4.src == 1.2.3.4 && ip6.src == ::1", &[]),
    ("inport == \"eth0\"", &["{reg14=0x5}"]),
    ("inport == \"nowhere\"", &[]),
    ("inport == \"nowhere\" && ip", &[]),
    ("inport == \"eth0\" && inport == \"eth1\"", &[]),
    ("inport == {\"eth0\", \"eth1\", \"nowhere\"}", &["{reg14=0x5}", "{reg14=0x6}"]),
    ("outport == @pg", &["{reg15=0x5}", "{reg15=0x6}"]),
    ("outport == @empty", &[]),
    ("outport == {\"eth0\", @empty}", &["{reg15=0x5}"]),
    ("outport == @nothing", &["There is no port group `@nothing'."]),
    (
        "ip4.src == $ten",
        &[
            "{eth_type=0x800, ip4_src=0xa000001}",
            "{eth_type=0x800, ip4_src=0xa000002}",
            "{eth_type=0x800, ip4_src=0xa000003}",
        ],
    ),
    (
        "ip4.src == {1.2.0.0/20, 5.5.5.0/24, $empty}",
        &[
            "{eth_type=0x800, ip4_src=0x1020000/0xfffff000}",
            "{eth_type=0x800, ip4_src=0x5050500/0xffffff00}",
        ],
    ),
    ("ip4.src == $empty", &[]),
    ("ip4.src != $empty", &["{}"]),
    ("ip4.src == 1.2.3.4 || ip4.src != $empty", &["{}"]),
    ("ip4.src == $nothing || arp", &["There is no address set `$nothing'."]),
    (
        "ip4.src == $six",
        &["Address set `$six' has a 128-bit address, and field ip4.src has 32 bits."],
    ),
    (
        "ip4.dst == 1.2.3.4 && ip4.src == {10.0.0.1, 10.0.0.2} && ip4.dst != 10.128.0.0/14",
        &[
            "{eth_type=0x800, ip4_src=0xa000001, ip4_dst=0x1020304}",
            "{eth_type=0x800, ip4_src=0xa000002, ip4_dst=0x1020304}",
        ],
    ),
    ("is_chassis_resident(\"eth1\") && arp", &["{eth_type=0x806}"]),
    ("is_chassis_resident(\"eth0\") && arp", &[]),
    ("!is_chassis_resident(\"eth0\")", &["{}"]),
    (
        "ip4 && (!ct.est || (ct.est && ct_mark.blocked == 1))",
        &[
            "{ct_state=0x20/0x22, eth_type=0x800}",
            "{ct_state=0x22/0x22, ct_mark=0x1/0x1, eth_type=0x800}",
        ],
    ),
    (
        "ip4 && tcp && 1000 <= tcp.dst <= 1010",
        &[
            "{eth_type=0x800, ip_proto=0x6, tp_dst=0x3e8/0xfff8}",
            "{eth_type=0x800, ip_proto=0x6, tp_dst=0x3f0/0xfffe}",
            "{eth_type=0x800, ip_proto=0x6, tp_dst=0x3f2}",
        ],
    ),
    ("ip4 && ip.first_frag", &["{eth_type=0x800, ip_frag=0x1}"]),
    (
        "ip4 && !ip.first_frag",
        &["{eth_type=0x800, ip_frag=0x0/0x1}", "{eth_type=0x800, ip_frag=0x2/0x2}"],
    ),
    ("arp && !ip.first_frag", &["{eth_type=0x806}"]),
    ("vlan.vid == 2 && vlan.pcp == 1", &["{vlan_tci=0x3002}"]),
    ("!vlan.present", &["{vlan_tci=0x0/0x1000}"]),
    ("reg0 == 1 && reg1 == 2 && xxreg0[0..63] == 0", &["{reg0=0x1, reg1=0x2, reg2=0x0, reg3=0x0}"]),
    (
        "ip4.src == $ten && ip4.src == {10.0.0.3, 10.0.0.9}",
        &["{eth_type=0x800, ip4_src=0xa000003}"],
    ),
    (
        "ip4.src != 1.2.3.4",
        &[
            "{eth_type=0x800}",
            "and Not(Masked { field: Ip4Src, value: 16909060, mask: 4294967295 })",
        ],
    ),
    ("reg0[0..1] != 2", &["{reg0=0x0/0x2}", "{reg0=0x1/0x1}"]),
    (
        "ip4.src != {1.2.3.4, 1.2.3.9}",
        &[
            "{eth_type=0x800}",
            "and Not(OneOf { bits: Subfield { field: Ip4Src, first: 0, width: 32 }, values: \
             [16909060, 16909065] })",
        ],
    ),
    (
        "flags.loopback && ip.ttl == {0, 1} && ip4",
        &[
            "{reg10=0x1/0x1, eth_type=0x800, ip_ttl=0x0}",
            "{reg10=0x1/0x1, eth_type=0x800, ip_ttl=0x1}",
        ],
    ),
];

#[test]
fn conditions_become_rows() {
    for (text, lines) in ROWS {
        let mut lines = lines.to_vec();
        let rows = lines.iter().take_while(|line| line.starts_with('{')).count();
        lines[..rows].sort_unstable();
        assert_eq!(compiled(text), lines.join("\n"), "{text}");
    }
}

/// The number of rows, whether there is a residual, and the compile time.
fn sizes(text: &str) -> (usize, bool, Duration) {
    let begun = Instant::now();
    let expr = parse(text).unwrap_or_else(|error| panic!("{error}"));
    let compiled = compile(&expr, &Names::default());
    (compiled.rows.len(), compiled.residual.is_some(), begun.elapsed())
}

/// A hundred times the usual time: this catches a wrong order of growth, not slowness.
const LONG: Duration = Duration::from_secs(2);

#[test]
fn large_sets_do_not_multiply() {
    for (text, rows, residual) in [
        ("ip4.src == $many", 10_000, false),
        ("ip4.src == $many && ip4.dst == $more", 10_000, true),
        ("ip4.src == $many && ip4.dst == $ten && tcp", 3, true),
        ("ip4.src == $many && ip4.src == $many", 10_000, false),
        ("ip4.src == $many && ip4.src == $more", 0, false),
        ("ip4.src != $many && ip4.dst != $more", 1, true),
        ("ip4.src == $many || ip4.dst == $more", 1, true),
        ("ip4.src == $ten && ip4.dst == $ten && tcp.dst == {1, 2, 5, 9}", 36, false),
        ("ip4.src == $many && (tcp.dst == 5 || udp.dst == 4)", 2, true),
    ] {
        let (found, has_residual, time) = sizes(text);
        assert_eq!((found, has_residual), (rows, residual), "{text}");
        assert!(time < LONG, "{text}: {time:?}");
    }
}

#[test]
fn deep_mixtures_are_bounded() {
    let alternatives =
        |at: usize| format!("(reg{0} == 1 || reg{0} == 2 || tcp.dst == {1})", at % 10, at);
    let wide: Vec<_> = (0..500).map(alternatives).collect();
    let mut deep = "reg0 == 0".to_owned();
    for at in 1..100 {
        let operator = if at % 2 == 0 { "&&" } else { "||" };
        deep = format!("({deep}) {operator} {}", alternatives(at).replace("||", operator));
    }
    let pairs: Vec<_> = (0..5_000)
        .map(|at| format!("(ip4.src == {at} && (tcp.dst == {at} || udp.dst == {at}))"))
        .collect();
    for text in [wide.join(" && "), deep, pairs.join(" || ")] {
        let (rows, _, time) = sizes(&text);
        assert!(rows <= 16_384 && time < LONG, "{rows} {time:?}");
    }
}

#[test]
fn pairs_of_values_become_pairs_in_rows() {
    let pairs: Vec<_> =
        (0..1_000).map(|at| format!("(ip4.src == {at} && ip4.dst == {at})")).collect();
    let (rows, residual, _) = sizes(&pairs.join(" || "));
    assert_eq!((rows, residual), (1_000, false));
}
