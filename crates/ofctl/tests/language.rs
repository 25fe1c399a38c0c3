//! Accepted lines with their canonical forms, and rejected lines with their errors.

use crate::{bridge, ports};
use ofctl::{parse, parse_line, parse_packet_flow};

/// The canonical form, or `line:column: message`.
fn shown(line: &str) -> String {
    match parse_line(line, &ports()) {
        Ok(change) => change.to_string(),
        Err(problem) => problem.to_string(),
    }
}

/// The canonical form of a match.
fn condition(words: &str) -> String {
    let shown = shown(&format!("{words} actions=drop"));
    let Some(rest) = shown.strip_prefix("table=0,priority=32768") else { return shown };
    rest.trim_end_matches(" actions=drop").trim_start_matches(',').to_owned()
}

/// The canonical form of the actions of a flow with this match.
fn actions(words: &str, actions: &str) -> String {
    let shown = shown(&format!("{words} actions={actions}"));
    shown.split_once(" actions=").map_or(shown.clone(), |(_, actions)| actions.to_owned())
}

#[test]
fn matches_are_shown_in_one_way_however_they_are_written() {
    for (words, expected) in [
        ("", ""),
        ("ip, nw_src=10.0.0.1/24", "ip,nw_src=10.0.0.0/24"),
        ("ip ip_dst=10.0.0.1/255.255.0.255", "ip,nw_dst=10.0.0.1/255.255.0.255"),
        ("eth_type=0x800,ip_proto=6,tcp_dst=80", "tcp,tp_dst=80"),
        ("tcp_dst=0x50/0xf0,tcp6", "tcp6,tp_dst=0x50/0xf0"),
        ("arp,nw_src=1.2.3.4,nw_proto=2", "arp,arp_spa=1.2.3.4,arp_op=2"),
        ("rarp,arp_sha=02:00:00:00:00:01", "rarp,arp_sha=02:00:00:00:00:01"),
        ("in_port=p3", "in_port=3"),
        ("in_port=\"p3\"", "in_port=3"),
        ("dl_vlan=5,vlan_pcp=7", "dl_vlan=5,dl_vlan_pcp=7"),
        ("vlan_vid=0x1005", "dl_vlan=5"),
        ("vlan_vid=0x1000/0x1000", "vlan_tci=0x1000/0x1000"),
        ("dl_vlan=0xffff", "vlan_tci=0x0"),
        ("vlan_tci=0x1123/0x1fff", "dl_vlan=291"),
        ("ip,ip_dscp=4,ip_ecn=1", "ip,nw_tos=16,nw_ecn=1"),
        ("ipv6,nw_frag=not_later", "ipv6,nw_frag=not_later"),
        ("tcp,tcp_flags=0x2/0x12", "tcp,tcp_flags=+syn-ack"),
        ("tcp,tcp_flags=ack|syn", "tcp,tcp_flags=syn|ack"),
        ("tcp,tcp_flags=0x800/0x800", "tcp,tcp_flags=0x800/0x800"),
        ("icmp6,icmpv6_type=135,nd_target=fe80::/10", "icmp6,icmp_type=135,nd_target=fe80::/10"),
        ("tunnel_id=0x10/0xf0,tun_flags=oam", "tun_id=0x10/0xf0,tun_flags=+oam"),
        ("tun_metadata0", "tun_metadata0"),
        ("tun_metadata3=7/0xff", "tun_metadata3=0x7/0xff"),
        ("xreg0=0x100000002", "reg0=0x1,reg1=0x2"),
        ("xxreg3=1/0xff", "reg15=0x1/0xff"),
        ("ct_state=-trk", "ct_state=-trk"),
        ("in_port=1,reg1=5,ip,ct_zone=3", "ct_zone=3,ip,reg1=0x5,in_port=1"),
        ("ip,nw_src=*", "ip"),
        ("metadata=0/0", ""),
        ("dl_type=0x88cc", "dl_type=0x88cc"),
    ] {
        assert_eq!(condition(words), expected, "{words}");
        assert_eq!(condition(expected), expected, "{words}");
    }
}

#[test]
fn matches_are_refused_where_they_are_wrong() {
    for (words, expected) in [
        ("nw_src=10.0.0.1", "1:1: `nw_src` needs `ip`, `arp` or `rarp` in the match"),
        (
            "ip,tp_dst=80",
            "1:4: `tp_dst` needs `tcp`, `udp` or `sctp` (or `tcp6`, `udp6` or `sctp6`) in the \
             match",
        ),
        ("udp,tcp_dst=80", "1:5: `tcp_dst` needs `tcp` or `tcp6` in the match"),
        ("nw_proto=6", "1:1: `nw_proto` needs `ip`, `ipv6`, `arp` or `rarp` in the match"),
        ("ip,nw_proto=58,icmpv6_type=1", "1:16: `icmpv6_type` needs `icmp6` in the match"),
        (
            "icmp6,nd_target=::1",
            "1:7: `nd_target` needs `icmp6` with `icmpv6_type=135` or `icmpv6_type=136` in the \
             match",
        ),
        ("ip,nw_src=*,arp_spa=*", "1:13: `arp_spa` needs `arp` or `rarp` in the match"),
        ("tcp,udp", "1:5: `udp` contradicts `tcp`"),
        ("tcp,nw_proto=17", "1:5: `nw_proto` contradicts `tcp`"),
        ("dl_type=0x806,ip", "1:1: `dl_type` contradicts `ip`"),
        ("in_port=1 in_port=1", "1:11: duplicate `in_port`"),
        ("reg0=1,xreg0=5", "1:8: `reg0` and `xreg0` are about the same bits"),
        ("ip,nw_tos=4,ip_dscp=1", "1:13: `nw_tos` and `ip_dscp` are about the same bits"),
        (
            "dl_vlan=0xffff,dl_vlan_pcp=1",
            "1:16: `dl_vlan` and `dl_vlan_pcp` are about the same bits",
        ),
        (
            "vlan_vid=5",
            "1:1: `vlan_vid` matches no packet: bit 0x1000, which every tag has, is 0, and others \
             are not",
        ),
        (
            "tcp,nw_frag=later,tp_dst=80",
            "1:19: `tp_dst` matches no packet: later fragments have no transport header",
        ),
        ("ip,ip_dscp=64", "1:12: `64` does not fit into 6 bits"),
        ("ip,ip_dscp=4/4", "1:14: `ip_dscp` takes no mask"),
        (
            "ip,nw_tos=17",
            "1:11: the lowest 2 bits of `nw_tos` are to be 0: they belong to `nw_ecn`",
        ),
        ("dl_vlan=4096", "1:9: expected a VLAN from 0 to 4095, or 0xffff for no tag, found `4096`"),
        ("ip,nw_src=10.0.0.300", "1:11: expected an IPv4 address, found `10.0.0.300`"),
        (
            "ip,nw_src=10.0.0.1/33",
            "1:20: expected a prefix length from 0 to 32, or a mask, found `33`",
        ),
        ("tcp,tcp_flags=+syn+syn", "1:20: duplicate flag `syn`"),
        ("tcp,tcp_flags=syb", "1:15: `tcp_flags` has no flag `syb`; did you mean `syn`?"),
        ("priority=010", "1:10: expected a number without a leading 0, found `010`"),
        ("priority=65536", "1:10: expected a priority from 0 to 65535, found `65536`"),
        ("table=255", "1:7: expected a table from 0 to 254, found `255`"),
        ("priority=1,priority=1", "1:12: duplicate `priority`"),
        ("cookie=1/1", "1:1: `cookie` of a flow that is added takes no mask"),
        ("in_port=eth0", "1:9: unknown port `eth0`"),
        ("in_port=P3", "1:9: unknown port `P3`; did you mean `p3`?"),
        ("in_port=LOCAL", "1:9: this switch has no port `LOCAL`: use the name of one of its ports"),
        ("nw_scr=1", "1:1: unknown word `nw_scr`; did you mean `nw_src`?"),
        ("ct_nw_src=1.1.1.1", "1:1: the field `ct_nw_src` of Open vSwitch is not supported"),
        ("tun_metadata4=5", "1:1: the field `tun_metadata4` of Open vSwitch is not supported"),
        (
            "conj_id=1",
            "1:1: `conj_id` is not supported: conjunctions are not, write one flow for each \
             combination",
        ),
        ("tcp,tp_dst", "1:11: `tp_dst` needs a value"),
        ("tcp=1", "1:5: `tcp` takes no value"),
        ("send_flow_rem", "1:1: `send_flow_rem` is not supported"),
    ] {
        assert_eq!(condition(words), expected, "{words}");
    }
}

#[test]
fn actions_are_shown_in_one_way_however_they_are_written() {
    for (words, list, expected) in [
        ("", "1,p2 output(3)", "output:1,output:2,output:3"),
        ("", "output:NXM_NX_REG0[0..15]", "output:reg0[0..15]"),
        ("", "in_port,FLOOD,All,normal", "IN_PORT,FLOOD,ALL,NORMAL"),
        ("", "", "drop"),
        ("", "set_field:10.222.0.6->tun_dst,output:1", "set_field:10.222.0.6->tun_dst,output:1"),
        ("", "push_vlan:0x88a8,mod_vlan_vid:1,1", "push_vlan:0x88a8,mod_vlan_vid:1,output:1"),
        ("dl_vlan=1", "strip_vlan,2", "pop_vlan,output:2"),
        ("dl_vlan=1", "set_field:5->dl_vlan", "set_field:4101->vlan_vid"),
        ("udp", "set_field:80->tp_dst", "set_field:80->udp_dst"),
        ("icmp6", "set_field:1->icmp_type", "set_field:1->icmpv6_type"),
        ("", "load:0x5->NXM_NX_XXREG1[64..127]", "load:0x5->xxreg1[64..127]"),
        ("ip", "move:nw_src->reg0", "move:ip_src[]->reg0[]"),
        (
            "",
            "resubmit(in_port),resubmit:2,resubmit(,3)",
            "resubmit:IN_PORT,resubmit:2,resubmit(,3)",
        ),
        ("", "write_metadata:1/3,goto_table:4", "write_metadata:0x1/0x3,goto_table:4"),
        ("", "clone(clone(),1)", "clone(clone(drop),output:1)"),
        ("", "controller(reason=action,max_len=64)", "CONTROLLER:64"),
        ("", "check_pkt_larger(1500)->reg0[0]", "check_pkt_larger(1500)->reg0[0]"),
        ("", "note:0011.FF,1", "note:00.11.ff,output:1"),
        ("ip", "ct(force,commit,table=1)", "ct(commit,force,table=1)"),
        (
            "ip",
            "ct(nat(random,src=10.0.0.1-10.0.0.2:5,persistent),commit)",
            "ct(commit,nat(src=10.0.0.1-10.0.0.2:5,persistent,random))",
        ),
        ("ip6", "ct(commit,nat(src=::))", "ct(commit,nat(src=::))"),
        ("", "set_field:5->in_port", "set_field:5->in_port"),
    ] {
        assert_eq!(actions(words, list), expected, "{list}");
        assert_eq!(actions(words, expected), expected, "{list}");
    }
}

#[test]
fn actions_are_refused_where_they_are_wrong() {
    for (words, list, expected) in [
        ("", "drop,1", "1:10: `drop` must be the only action"),
        ("", "1,drop", "1:12: `drop` must be the only action"),
        ("", "ct(commit)", "1:10: `ct` needs `ip` or `ipv6` in the match"),
        ("ip", "ct(force)", "1:15: `force` needs `commit`"),
        ("ip", "ct(commit,nat(random))", "1:26: `random` of `nat` needs `src` or `dst`"),
        ("ip", "ct(commit,nat(dst=0.0.0.0))", "1:30: only a source may be 0, and not in a range"),
        (
            "",
            "learn(table=1)",
            "1:10: the action `learn` is not supported: `normal` learns MAC addresses",
        ),
        (
            "",
            "conjunction(1,1/2)",
            "1:10: the action `conjunction` is not supported: write one flow for each combination",
        ),
        ("", "outptu:1", "1:10: unknown action or port `outptu`; did you mean `output`?"),
        ("ip", "set_field:80->tcp_dst", "1:26: `tcp_dst` needs `tcp` or `tcp6` in the match"),
        ("ip", "set_field:6->nw_proto", "1:25: `ip_proto` is read-only"),
        (
            "",
            "set_field:1.1.1.1->tun_src",
            "1:29: `tun_src` cannot be set: the tunnel's end point decides it",
        ),
        (
            "",
            "set_field:3->vlan_vid",
            "1:23: `vlan_vid` needs a VLAN tag: `dl_vlan` or `vlan_tci=0x1000/0x1000` in the \
             match, or \
             `push_vlan` before",
        ),
        (
            "dl_vlan=1",
            "load:1->vlan_tci[]",
            "1:27: bit 12 of `vlan_tci` cannot be set: use `push_vlan` or `pop_vlan`",
        ),
        ("", "load:9->reg0[0..2]", "1:15: `9` does not fit into 3 bits"),
        ("", "load:1->reg0[32]", "1:23: expected a bit from 0 to 31, found `32`"),
        ("", "move:reg0[0..3]->reg1[4..8]", "1:15: `reg0[0..3]` has 4 bits and `reg1[4..8]` has 5"),
        (
            "ip",
            "load:1->nw_tos[]",
            "1:20: the lowest 2 bits of `nw_tos` cannot be used: they are no part of the field",
        ),
        (
            "",
            "goto_table:0",
            "1:21: `goto_table` goes forward only: from table 0 to 1 or a later one",
        ),
        ("", "goto_table:1,2", "1:23: nothing may follow `goto_table`"),
        ("", "write_metadata:1,2", "1:27: only `goto_table` may follow `write_metadata`"),
        ("", "clone(goto_table:1)", "1:16: `goto_table` cannot be inside `clone`"),
        ("", "clone(1", "1:17: missing `)`"),
        ("", "output:eth9", "1:17: unknown port `eth9`"),
        ("", "local", "1:10: this switch has no port `LOCAL`: use the name of one of its ports"),
        ("", "set_field:1->reg99", "1:23: unknown field `reg99`; did you mean `reg9`?"),
        ("", "resubmit(1,2,ct)", "1:21: `resubmit` with `ct` is not supported"),
    ] {
        assert_eq!(actions(words, list), expected, "{list}");
    }
}

#[test]
fn clones_are_refused_when_nested_too_deep() {
    let nested = |depth: usize| format!("{}1{}", "clone(".repeat(depth), ")".repeat(depth));
    assert!(actions("", &nested(16)).starts_with("clone("));
    assert_eq!(actions("", &nested(17)), "1:106: `clone` is nested more than 16 deep");
    assert!(actions("", &nested(10_000)).contains("longer than"), "the line is too long");
}

#[test]
fn files_are_refused_with_all_that_is_wrong() {
    let text = "# comment\n\nip,nw_src=1.2.3.4 actions=1 # fine\n  tp_dst=1 actions=2\nactions=\u{fc}bel\n\
                \u{fc},tp_dst=1 actions=2\nin_port=1\n";
    let problems = parse(text, "flows.txt", &ports()).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "flows.txt:4:3: `tp_dst` needs `tcp`, `udp` or `sctp` (or `tcp6`, `udp6` or `sctp6`) in \
         the match\n\
         flows.txt:5:9: unknown action or port `\u{fc}bel`\n\
         flows.txt:6:1: unknown word `\u{fc}`\n\
         flows.txt:7:10: expected `actions=...`"
    );
    let mut bridge = bridge();
    assert!(bridge.apply(text, "flows.txt", 0).is_err());
    assert!(bridge.is_empty());
}

#[test]
fn packets_are_keys_when_every_value_is_exact() {
    use flow::Field;
    let key =
        parse_packet_flow("in_port=p2,tcp,nw_src=10.0.0.1,tp_dst=80,dl_vlan=5", &ports()).unwrap();
    for (field, value) in [
        (Field::InPort, 2),
        (Field::EthType, 0x800),
        (Field::IpProto, 6),
        (Field::Ip4Src, 0x0a00_0001),
        (Field::TpDst, 80),
        (Field::VlanTci, 0x1005),
        (Field::VlanTpid, 0x8100),
        (Field::EthSrc, 0),
    ] {
        assert_eq!(key.get(field), value, "{field}");
    }
    for (text, expected) in [
        ("tcp,tp_dst=80/0xf0", "1:5: `tp_dst` is not an exact value: a packet needs exact values"),
        ("ip,nw_frag=yes", "1:4: `nw_frag` is not an exact value: a packet needs exact values"),
        (
            "tp_dst=80",
            "1:1: `tp_dst` needs `tcp`, `udp` or `sctp` (or `tcp6`, `udp6` or `sctp6`) in the \
             match",
        ),
        ("ip actions=1", "1:4: unknown word `actions`"),
    ] {
        assert_eq!(parse_packet_flow(text, &ports()).unwrap_err().to_string(), expected);
    }
}
