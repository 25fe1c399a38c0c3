//! Accepted and rejected texts of expressions, and canonical forms.

use super::*;
use proptest::prelude::*;

/// Texts that are in canonical form.
const CANONICAL: &[&str] = &[
    "0",
    "1",
    "eth.type == 0x800",
    "vlan.present",
    "!vlan.present",
    "eth.dst[40]",
    "!eth.dst[40]",
    "!eth.mcast",
    "vlan.tci[12..15] == 0x3",
    "vlan.tci[12..15] != 0x3",
    "vlan.pcp <= 0x4",
    "vlan.pcp > 0",
    "tcp.dst[0..7] >= 0x10",
    "reg0[31]",
    "eth.dst[40] > 0",
    "eth.dst == 0x1/0x10001",
    "eth.dst == 0/0",
    "eth.dst != 0/0x5",
    "ip.proto == 0x1/0x1",
    "eth.type == 0x800/0xff00",
    "inport == \"eth0\"",
    "inport == \"a \\\"quoted\\\" name\\n\"",
    "outport == @pg",
    "ip4.src == $ten",
    "ip4.src != $ten",
    "reg0[0..15] == $ten",
    "is_chassis_resident(\"eth0\")",
    "!is_chassis_resident(\"eth0\")",
    "ip4 && tcp && (tcp.dst == 0x50 || tcp.dst == 0x1bb)",
    "ip4 || (ip6 && (udp || tcp) && reg0 == 0x1) || arp",
    "ip4.src == 0xa000001 || ip4.src == $ten",
    "ip6.mcast_flood && !ip6.mcast_rsvd",
    "xxreg1 == 0x1234567890abcdef1234567890abcdef",
    "nd.target == 0x1 && nd_ns && nd.sll == 0",
    "ct.new && !ct.est && !ct_mark.blocked",
];

/// Texts and their canonical forms.
const REWRITTEN: &[(&str, &str)] = &[
    ("eth.type[0..15]==0x800", "eth.type == 0x800"),
    ("vlan.present == 1", "vlan.present"),
    ("vlan.present != 0", "vlan.present"),
    ("vlan.present[0] == 1/1", "vlan.present"),
    ("!(vlan.present == 1)", "!vlan.present"),
    ("!(eth.dst[0] != 1)", "eth.dst[0]"),
    ("vlan.tci == 0x3000/0xf000", "vlan.tci[12..15] == 0x3"),
    ("!vlan.pcp", "vlan.pcp == 0"),
    ("!(vlan.pcp)", "vlan.pcp == 0"),
    ("!(vlan.pcp != 4)", "vlan.pcp == 0x4"),
    ("!(vlan.pcp <= 4)", "vlan.pcp > 0x4"),
    ("!(vlan.pcp > 4)", "vlan.pcp <= 0x4"),
    ("4 == vlan.pcp", "vlan.pcp == 0x4"),
    ("4 < vlan.pcp", "vlan.pcp > 0x4"),
    ("!(4 >= vlan.pcp)", "vlan.pcp > 0x4"),
    ("1 < vlan.pcp <= 4", "vlan.pcp > 0x1 && vlan.pcp <= 0x4"),
    ("4 >= vlan.pcp > 1", "vlan.pcp <= 0x4 && vlan.pcp > 0x1"),
    ("!(1 <= vlan.pcp < 4)", "vlan.pcp < 0x1 || vlan.pcp >= 0x4"),
    ("tcp.dst == {80, 443}", "tcp.dst == 0x50 || tcp.dst == 0x1bb"),
    ("tcp.dst == {80 443,}", "tcp.dst == 0x50 || tcp.dst == 0x1bb"),
    ("tcp.dst != {80, 443}", "tcp.dst != 0x50 && tcp.dst != 0x1bb"),
    ("{80, 443} == tcp.dst", "tcp.dst == 0x50 || tcp.dst == 0x1bb"),
    (
        "reg0 == 1 || ((reg0 == 2 || reg0 == 3) || reg0 == 4)",
        "reg0 == 0x1 || reg0 == 0x2 || reg0 == 0x3 || reg0 == 0x4",
    ),
    (
        "reg0 == 1 && !((reg0 == 2 && reg0 == 3) && reg0 == 4)",
        "reg0 == 0x1 && (reg0 != 0x2 || reg0 != 0x3 || reg0 != 0x4)",
    ),
    (
        "reg0 == 1 && !(!(reg0 == 2 && reg0 == 3) && reg1 == 4)",
        "reg0 == 0x1 && ((reg0 == 0x2 && reg0 == 0x3) || reg1 != 0x4)",
    ),
    (
        "ip4.src == {10.0.0.0/8, 172.16.20.0/24, 8.8.8.8}",
        "ip4.src[24..31] == 0xa || ip4.src[8..31] == 0xac1014 || ip4.src == 0x8080808",
    ),
    ("ip4.src == 10.1.2.3/8", "ip4.src[24..31] == 0xa"),
    ("ip4.src == ::1.2.3.4/::ffff:ffff", "ip4.src == 0x1020304"),
    ("ip6.src == ::1", "ip6.src == 0x1"),
    ("eth.src == 00:00:00:00:00:0F", "eth.src == 0xf"),
    ("reg0 == 0x00000000000000000000000000000000000000001", "reg0 == 0x1"),
    // Like in OVN, only the width of the whole field limits a constant.
    ("vlan.vid[0..3] == 0x25", "vlan.vid[0..3] == 0x5"),
    ("!1", "0"),
    ("!(0)", "1"),
    ("(((0)))", "0"),
    ("!(inport != \"eth0\")", "inport == \"eth0\""),
    ("!(inport != {\"eth0\", @pg})", "inport == \"eth0\" || inport == @pg"),
    ("outport == {\"a\", \"b\"}", "outport == \"a\" || outport == \"b\""),
    ("$ten == ip4.src", "ip4.src == $ten"),
    ("ip4.src != {$ten, 1.2.3.4}", "ip4.src != $ten && ip4.src != 0x1020304"),
    ("ip == 1 && tcp[0]", "ip && tcp"),
    ("!(is_chassis_resident(\"eth0\"))", "!is_chassis_resident(\"eth0\")"),
    ("ip4 // a comment\n && /* and */ tcp", "ip4 && tcp"),
];

/// Texts that are not expressions, and their errors. `>` and `<` mark the part that the error
/// points at.
const WRONG: &[(&str, &str)] = &[
    (">><<", "Syntax error at end of input expecting constant."),
    ("ip4.src == >>\"eth0\"<<", "Integer field ip4.src is not compatible with string constant."),
    ("inport == >>1<<", "String field inport is not compatible with integer constant."),
    ("inport == >>$ten<<", "String field inport is not compatible with integer constant."),
    ("ip4.src >>=<< 1.2.3.4", "Syntax error at `=' expecting relational operator."),
    ("ip4.src > >>{1, 2}<<", "Only == and != operators may be used with value sets."),
    ("ip4.src > >>$ten<<", "Only == and != operators may be used with value sets."),
    (">>eth.type<< > 0x800", "Only == and != operators may be used with nominal field eth.type."),
    (">>ip<< > 0", "Only == and != operators may be used with nominal field ip."),
    (
        ">>vlan.present<< > 0",
        "Only == and != operators may be used with Boolean field vlan.present.",
    ),
    (
        ">>inport != \"eth0\"<<",
        "Nominal field inport may only be tested for equality (taking enclosing `!' operators \
         into account).",
    ),
    (
        "!(>>inport == \"eth0\"<<)",
        "Nominal field inport may only be tested for equality (taking enclosing `!' operators \
         into account).",
    ),
    (
        "reg0 == 1 && >>0x800 != eth.type<<",
        "Nominal field eth.type may only be tested for equality (taking enclosing `!' operators \
         into account).",
    ),
    (
        ">>ip == 0<<",
        "Nominal predicate ip may only be tested positively, e.g. `ip' or `ip == 1' but not `!ip' \
         or `ip == 0'.",
    ),
    (
        "!>>ip<<",
        "Nominal predicate ip may only be tested positively, e.g. `ip' or `ip == 1' but not `!ip' \
         or `ip == 0'.",
    ),
    ("123 == >>123<<", "Syntax error at `123' expecting field name."),
    (">>xyzzy<< == 1", "Syntax error at `xyzzy' expecting field name."),
    ("1 == >>xyzzy<<", "Syntax error at `xyzzy' expecting field name."),
    ("inport>>[<<1] == 1", "Cannot select subfield of string field inport."),
    ("eth.type[>>]<< == 1", "Syntax error at `]' expecting small integer."),
    ("eth.type[>>::1<<] == 1", "Syntax error at `::1' expecting small integer."),
    (
        "eth.type[>>18446744073709551615<<]",
        "Syntax error at `18446744073709551615' expecting small integer.",
    ),
    ("eth.type[5>>!<<]", "Syntax error at `!' expecting `]'."),
    ("eth.type>>[5..1]<<", "Invalid bit range 5 to 1."),
    ("eth.type>>[12..16]<<", "Cannot select bits 12 to 16 of 16-bit field eth.type."),
    ("eth.type>>[10]<< == 1", "Cannot select subfield of nominal field eth.type."),
    (
        ">>eth.type<<",
        "Explicit `!= 0' is required for inequality test of multibit field against 0.",
    ),
    (
        "!(!(>>vlan.pcp<<))",
        "Explicit `!= 0' is required for inequality test of multibit field against 0.",
    ),
    ("123>><<", "Syntax error at end of input expecting relational operator."),
    ("inport>><<", "Syntax error at end of input expecting relational operator."),
    ("123 >>x<<", "Syntax error at `x' expecting relational operator."),
    ("{1}>><<", "Syntax error at end of input expecting relational operator."),
    ("{1, >>\"eth0\"<<}", "Syntax error at `\"eth0\"' expecting integer."),
    ("inport == {\"eth0\", >>$ten<<}", "Syntax error at `$ten' expecting string."),
    ("eth.type == >>xyzzy<<", "Syntax error at `xyzzy' expecting constant."),
    ("eth.dst == {>>}<<", "Syntax error at `}' expecting constant."),
    ("eth.dst == {1>><<", "Syntax error at end of input expecting constant."),
    ("(1 >>x<<)", "Syntax error at `x' expecting `)'."),
    ("(1>><<", "Syntax error at end of input expecting `)'."),
    ("!>>0x800 != reg0 <<&& 1", "Missing parentheses around operand of !."),
    ("!>>!<<1", "Syntax error at `!' expecting constant."),
    ("tcp || udp >>&&<< ip4", "&& and || must be parenthesized when used together."),
    (
        "eth.src > >>00:00:00:00:11:11/00:00:00:00:ff:ff<<",
        "Only == and != operators may be used with masked constants.  Consider using subfields \
         instead (e.g. eth.src[0..15] > 0x1111 in place of eth.src > \
         00:00:00:00:11:11/00:00:00:00:ff:ff).",
    ),
    ("ip4.src == >>::1<<", "128-bit constant is not compatible with 32-bit field ip4.src."),
    ("tcp.dst == {80, >>65536<<}", "17-bit constant is not compatible with 16-bit field tcp.dst."),
    ("tcp.dst == >>0/0x10000<<", "17-bit constant is not compatible with 16-bit field tcp.dst."),
    (
        "1 == reg0 >>==<< 2",
        "Range expressions must have the form `x < field < y' or `x > field > y', with each `<' \
         optionally replaced by `<=' or `>' by `>=').",
    ),
    (
        "1 < reg0 >>><< 2",
        "Range expressions must have the form `x < field < y' or `x > field > y', with each `<' \
         optionally replaced by `<=' or `>' by `>=').",
    ),
    ("eth.dst[40] >>x<<", "Syntax error at `x' expecting end of input."),
    ("ip4 >>&<< tcp", "`&' is only valid as part of `&&'."),
    ("ip4.src == >>^vip<<", "Unexpanded template."),
    (">>^vip<<", "Unexpanded template."),
    (">>foo<<(\"x\")", "Syntax error at `foo' expecting function name."),
    ("is_chassis_resident(>>1<<)", "Syntax error at `1' expecting string."),
    ("is_chassis_resident(\"x\">><<", "Syntax error at end of input expecting `)'."),
    (">>is_chassis_resident<<", "Syntax error at `is_chassis_resident' expecting field name."),
    (">>icmp4.frag_mtu<< == 1500", "Field icmp4.frag_mtu cannot be matched."),
    ("ip == >>$ten<<", "Predicate ip cannot be compared with a set."),
    ("inport == >>\"eth0<<", "Input ends inside quoted string."),
];

#[test]
fn texts_are_printed_in_canonical_form() {
    let same = CANONICAL.iter().map(|&text| (text, text));
    for (text, canonical) in same.chain(REWRITTEN.iter().copied()) {
        let expr = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(expr.to_string(), canonical, "{text}");
        assert_eq!(parse(canonical).as_ref(), Ok(&expr), "{text}");
    }
}

#[test]
fn errors_point_at_the_token() {
    for (marked, message) in WRONG {
        // The marked part may begin with `>` itself.
        let start = marked.find(">>").unwrap();
        let end = marked.rfind("<<").unwrap() - 2;
        let text =
            format!("{}{}{}", &marked[..start], &marked[start + 2..end + 2], &marked[end + 4..]);
        let error = parse(&text).unwrap_err();
        assert_eq!(error.message, *message, "{text}");
        assert_eq!(error.span, start..end, "{text}");
    }
}

#[test]
fn parentheses_nest_to_a_limit() {
    let nested = |depth: usize| format!("{}0{}", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(parse(&nested(100)).unwrap().to_string(), "0");
    let error = parse(&nested(101)).unwrap_err();
    assert_eq!((error.message.as_str(), error.span), ("Parentheses nested too deeply.", 100..101));
    let not = format!("{}vlan.vid == 1{}", "!(".repeat(100), ")".repeat(100));
    assert_eq!(parse(&not).unwrap().to_string(), "vlan.vid == 0x1");
    assert!(parse(&"(".repeat(1_000_000)).is_err());
    assert!(parse(&"!".repeat(1_000_000)).is_err());
}

#[test]
fn inport_is_known_when_there_is_one() {
    for (text, inport) in [
        ("inport == \"eth0\" && ip4", Some("eth0")),
        ("(inport == \"a\" || ip4) && inport == \"a\"", Some("a")),
        ("inport == {\"a\", \"b\"}", None),
        ("outport == \"a\"", None),
    ] {
        assert_eq!(parse(text).unwrap().inport(), inport, "{text}");
    }
}

#[test]
fn fields_imply_their_prerequisites() {
    for (text, prerequisite) in [
        ("ip4.src", Some("ip4")),
        ("tcp.dst[0..7]", Some("tcp")),
        ("nd.target", Some("nd")),
        ("reg0", None),
    ] {
        let field = FieldRef::parse(&mut Lexer::new(text)).unwrap();
        assert_eq!(field.to_string(), text);
        let found = field.prerequisite().map(|expr| expr.to_string());
        assert_eq!(found.as_deref(), prerequisite, "{text}");
    }
    let error = FieldRef::parse(&mut Lexer::new("ip4")).unwrap_err();
    assert_eq!(error.message, "Predicate symbol ip4 used where lvalue required.");
}

#[test]
fn conditions_are_joined_flat() {
    let join = |a: &str, b: &str| parse(a).unwrap().and(parse(b).unwrap()).to_string();
    assert_eq!(join("ip4 && tcp", "udp && arp"), "ip4 && tcp && udp && arp");
    assert_eq!(join("ip4", "udp && arp"), "ip4 && udp && arp");
    assert_eq!(join("ip4 || ip6", "arp"), "(ip4 || ip6) && arp");
}

const MICROFLOWS: &[(&str, &str)] = &[
    (
        "inport == \"eth0\" && eth.dst == 00:00:00:00:00:02 && ip4.src == 10.0.0.1 && tcp.dst == \
         80",
        "{reg14=0x5, eth_dst=0x2, eth_type=0x800, ip4_src=0xa000001, ip_proto=0x6, tp_dst=0x50}",
    ),
    ("ip4 && tcp.src[1..15] == 0x28", "{eth_type=0x800, ip_proto=0x6, tp_src=0x50}"),
    ("ip4 && tcp.src > 79 && tcp.src < 82", "{eth_type=0x800, ip_proto=0x6, tp_src=0x50}"),
    ("ip4 && 80 <= tcp.src <= 80", "{eth_type=0x800, ip_proto=0x6, tp_src=0x50}"),
    ("vlan.vid == 5", "{vlan_tpid=0x8100, vlan_tci=0x1005}"),
    (
        "ip4.src == {1.2.3.4} && (tcp || (udp && ip6))",
        "{eth_type=0x800, ip4_src=0x1020304, ip_proto=0x6}",
    ),
    (
        "nd_ns && nd.target == fe80::1",
        "{eth_type=0x86dd, ip_proto=0x3a, ip_ttl=0xff, icmp_type=0x87, \
         nd_target=0xfe800000000000000000000000000001}",
    ),
    ("ip4 && ip.later_frag && ip.is_frag", "{eth_type=0x800, ip_frag=0x3}"),
    ("arp.op == 1 && is_chassis_resident(\"eth1\")", "{eth_type=0x806, arp_op=0x1}"),
    ("1", "{}"),
    ("0", "Constraints are contradictory."),
    ("ip4 && ip6", "Constraints are contradictory."),
    ("tcp && udp", "Constraints are contradictory."),
    ("ip4.src == 1.2.3.4 && arp", "Constraints are contradictory."),
    ("tcp.src == 80", "Constraints are ambiguous: eth.type could have several values."),
    ("ip4 && tcp.src > 1024", "Constraints are ambiguous: tcp.src could have several values."),
    ("ip4.src == $ten", "Constraints are ambiguous: ip4.src could have several values."),
    ("ip4.src != 1.2.3.4", "Constraints are ambiguous: ip4.src could have several values."),
    ("inport == \"nowhere\"", "There is no logical port `nowhere'."),
    ("ip4.src == $nothing", "There is no address set `$nothing'."),
    ("inport == @nothing", "There is no port group `@nothing'."),
    ("ip4.src == $six", "Address set `$six' has a 128-bit address, and field ip4.src has 32 bits."),
    ("inport ==", "Syntax error at end of input expecting constant."),
];

#[test]
fn microflows_give_each_field_a_value() {
    let names = Names::default();
    for (text, expected) in MICROFLOWS {
        let found = match parse_microflow(text, &names) {
            Ok(microflow) => format!("{:?}", microflow.key),
            Err(error) => error.message,
        };
        assert_eq!(found, *expected, "{text}");
    }
    let microflow = parse_microflow(MICROFLOWS[0].0, &names).unwrap();
    assert_eq!(microflow.inport.as_deref(), Some("eth0"));
    let error = parse_microflow("ip4 && inport == \"nowhere\"", &names).unwrap_err();
    assert_eq!(error.span, 17..26);
}

/// Random sequences of fragments of the language.
fn soup() -> impl Strategy<Value = String> {
    let pieces = [
        "ip4",
        "ip4.src",
        "tcp.dst",
        "inport",
        "reg0",
        "vlan.pcp",
        "eth.type",
        "ct.new",
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "!",
        "&&",
        "||",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "..",
        ",",
        "0",
        "1",
        "5",
        "0x800",
        "1.2.3.4",
        "::1",
        "10.0.0.0/8",
        "\"eth0\"",
        "$ten",
        "@pg",
        "^t",
        "is_chassis_resident",
        "=",
        ";",
        "//",
        "\"",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..24)
        .prop_map(|all| all.join(" "))
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in prop_oneof![soup(), any::<String>()]) {
        match parse(&text) {
            Ok(expr) => {
                prop_assert_eq!(parse(&expr.to_string()), Ok(expr.clone()));
                compile(&expr, &Names::default());
            }
            Err(error) => {
                prop_assert!(error.span.start <= error.span.end && error.span.end <= text.len());
                prop_assert!(text.is_char_boundary(error.span.start));
                prop_assert!(!error.message.is_empty());
            }
        }
    }
}
