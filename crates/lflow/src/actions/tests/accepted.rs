//! Accepted texts and their canonical forms.

use super::{parse_here, stage};
use crate::actions::{MAX_NESTING, Stage, parse};
use pipeline::Direction;

/// Asserts that each text is accepted and printed as the second text, or unchanged if that is
/// empty, and that the printed text parses to the same actions.
fn accepts(table: &[(&str, &str)]) {
    for &(input, canonical) in table {
        let actions = parse_here(input).unwrap_or_else(|error| panic!("{input}: {error}"));
        let printed = actions.to_string();
        assert_eq!(printed, if canonical.is_empty() { input } else { canonical }, "{input}");
        assert_eq!(parse_here(&printed).as_ref(), Ok(&actions), "{input}");
    }
}

#[test]
fn control_actions_are_printed_in_canonical_form() {
    accepts(&[
        ("drop;", ""),
        ("", "drop;"),
        ("output;", ""),
        ("next;", ""),
        ("next(11);", "next;"),
        ("next(0);", ""),
        ("next(23);", ""),
        ("next(10);", ""),
        ("next(table=11);", "next;"),
        ("next(pipeline=ingress);", "next;"),
        ("next(table=11, pipeline=ingress);", "next;"),
        ("next(pipeline=ingress, table=10);", "next(10);"),
        ("next(pipeline=egress);", "next(pipeline=egress, table=11);"),
        ("next(pipeline=egress, table=5);", ""),
        ("next;next ; // the end\nnext;", "next; next; next;"),
        ("output; /* drop */", "output;"),
        ("clone { ip4.dst = 255.255.255.255; output; }; next;", ""),
        (
            "clone {outport = \"a\"; output; }; outport = \"b\"; output;",
            "clone { outport = \"a\"; output; }; outport = \"b\"; output;",
        ),
        ("clone { drop; };", ""),
        ("clone { };", "clone { drop; };"),
        ("clone { arp { clone { next; }; }; };", ""),
    ]);
}

#[test]
fn assignments_are_printed_in_canonical_form() {
    accepts(&[
        ("tcp.dst=80;", "tcp.dst = 80;"),
        ("eth.dst[40] = 1;", ""),
        ("vlan.pcp = 2;", ""),
        ("vlan.tci[13..15] = 2;", ""),
        ("inport = \"\";", ""),
        ("outport = \"a\\\"b\\\\c\\u000a\";", "outport = \"a\\\"b\\\\c\\n\";"),
        ("ip.ttl=4;", "ip.ttl = 4;"),
        (
            "outport=\"eth0\"; next; outport=\"LOCAL\"; next;",
            "outport = \"eth0\"; next; outport = \"LOCAL\"; next;",
        ),
        ("pkt.mark = 1000;", ""),
        ("reg0 = 10.0.0.1;", ""),
        ("xxreg0 = fd00::0001;", "xxreg0 = fd00::1;"),
        ("xreg0[0..47] = 00:00:00:00:FF:01;", "xreg0[0..47] = 00:00:00:00:ff:01;"),
        ("reg0[0..3] = 0xff;", ""),
        ("ip4.src = 10.0.0.0/8;", ""),
        ("eth.src = 01:00:00:00:00:00/01:00:00:00:00:00;", ""),
        ("flags.loopback = 1;", ""),
        ("reg0=reg1;", "reg0 = reg1;"),
        ("vlan.pcp = reg0[0..2];", ""),
        ("reg0[10] = vlan.pcp[1];", ""),
        ("outport = inport;", ""),
        ("ip4.src = ip6.src[0..31];", ""),
        ("reg0 <-> reg1;", ""),
        ("vlan.pcp<->reg0[0..2];", "vlan.pcp <-> reg0[0..2];"),
        ("outport <-> inport;", ""),
        ("ip.ttl--;", ""),
        ("ip.ttl --;", "ip.ttl--;"),
        (
            "push(xxreg0);push(xxreg1[10..20]);push(eth.src);pop(xxreg0[0..47]);pop(xxreg1);",
            "push(xxreg0); push(xxreg1[10..20]); push(eth.src); pop(xxreg0[0..47]); pop(xxreg1);",
        ),
        ("push(ct_label); push(inport); pop(outport);", ""),
        ("reg9[16..31] = select(1=50, 2=100, 3, );", "reg9[16..31] = select(1=50, 2=100, 3=100);"),
        ("reg0 = select(1, 2);", "reg0 = select(1=100, 2=100);"),
    ]);
    // Bits beyond a mask are not printed.
    accepts(&[("reg0 = 5/3;", "reg0 = 1/3;")]);
}

#[test]
fn actions_that_create_packets_are_printed_in_canonical_form() {
    accepts(&[
        ("arp { eth.dst = ff:ff:ff:ff:ff:ff; output; }; output;", ""),
        ("arp { };", "arp { drop; };"),
        ("nd_ns { nd.target = xxreg0; output; };", ""),
        (
            "nd_na { eth.src = 12:34:56:78:9a:bc; inport = \"\"; /* Allow sending out inport. */ \
             output; };",
            "nd_na { eth.src = 12:34:56:78:9a:bc; inport = \"\"; output; };",
        ),
        ("nd_na_router { nd.tll = xreg0[0..47]; output; };", ""),
        ("icmp4 { icmp4.frag_mtu = 1500; output; }; output;", ""),
        ("icmp4_error { icmp4.frag_mtu = 0x5dc; };", "icmp4_error { icmp4.frag_mtu = 1500; };"),
        ("icmp6 { output; };", ""),
        ("icmp6_error { icmp6.frag_mtu = 70000; };", ""),
        ("icmp4.frag_mtu = 1500; icmp6.frag_mtu = 1500;", ""),
        ("tcp_reset { eth.dst <-> eth.src; output; };", ""),
        ("sctp_abort {output; };", "sctp_abort { output; };"),
        (
            "reject { outport <-> inport; next(pipeline=egress,table=5);};",
            "reject { outport <-> inport; next(pipeline=egress, table=5); };",
        ),
    ]);
}

#[test]
fn lookups_and_learning_are_printed_in_canonical_form() {
    accepts(&[
        ("mac_cache_use;", ""),
        ("get_arp(outport, ip4.dst);", ""),
        ("get_arp(inport, reg0);", ""),
        ("put_arp(inport, arp.spa, arp.sha);", ""),
        ("reg0[0] = lookup_arp(inport, ip4.dst, eth.src);", ""),
        ("reg1[1] = lookup_arp(inport, arp.spa, arp.sha);", ""),
        ("reg0[0] = lookup_arp_ip(inport, arp.spa);", ""),
        ("get_nd(outport, ip6.dst);", ""),
        ("get_nd(inport, xxreg0);", ""),
        ("put_nd(inport, nd.target, nd.sll);", ""),
        ("reg3[0] = lookup_nd(inport, nd.target, nd.tll);", ""),
        ("reg3[0] = lookup_nd_ip(inport, nd.target);", ""),
        ("put_fdb(inport, eth.src);", ""),
        ("outport = get_fdb(eth.dst);", ""),
        ("reg0 = get_fdb(arp.tha);", ""),
        ("reg0[0] = lookup_fdb(inport, eth.src);", ""),
        ("flags.loopback = lookup_fdb(inport, eth.src);", ""),
        ("reg0[0] = check_in_port_sec();", ""),
        ("reg0[15] = check_out_port_sec( );", "reg0[15] = check_out_port_sec();"),
        ("reg0[0] = check_pkt_larger(1500);", ""),
        ("reg0[0] = chk_lb_hairpin(); reg0[1] = chk_lb_hairpin_reply();", ""),
        ("reg9[5] = chk_ecmp_nh_mac(); reg9[5] = chk_ecmp_nh(); reg9[6] = chk_lb_aff();", ""),
        ("reg1[0] = dns_lookup();", ""),
    ]);
}

#[test]
fn connection_tracking_actions_are_printed_in_canonical_form() {
    accepts(&[
        ("ct_next; ct_clear; ct_commit_nat; ct_snat_to_vip;", ""),
        ("ct_commit;", ""),
        ("ct_commit { };", "ct_commit;"),
        ("ct_commit { drop; };", "ct_commit;"),
        ("ct_commit { ct_mark=1; };", "ct_commit { ct_mark = 1; };"),
        (
            "ct_commit { ct_mark=1/1; ct_label=1/1; };",
            "ct_commit { ct_mark = 1/1; ct_label = 1/1; };",
        ),
        (
            "ct_commit { ct_label=0x01020304050607080910111213141516; };",
            "ct_commit { ct_label = 0x1020304050607080910111213141516; };",
        ),
        (
            "ct_commit { ct_label=18446744073709551615; };",
            "ct_commit { ct_label = 18446744073709551615; };",
        ),
        (
            "ct_commit { ct_label[0..47] = 0x00000f040201; };",
            "ct_commit { ct_label[0..47] = 0xf040201; };",
        ),
        (
            "ct_commit { ct_label.ecmp_reply_eth = eth.src;  ct_mark.ecmp_reply_port = 1;};",
            "ct_commit { ct_label.ecmp_reply_eth = eth.src; ct_mark.ecmp_reply_port = 1; };",
        ),
        ("ct_commit();", "ct_commit;"),
        ("ct_commit(ct_mark=1);", "ct_commit(ct_mark=0x1);"),
        ("ct_commit(ct_mark=1/1, ct_label=2);", "ct_commit(ct_mark=0x1/0x1, ct_label=0x2);"),
        ("ct_commit(ct_mark=0/3);", "ct_commit(ct_mark=0/0x3);"),
        ("ct_commit(ct_mark=0/0);", "ct_commit;"),
        (
            "ct_commit(ct_label=0x1000000000000000000000000000000/0x1000000000000000000000000000000);",
            "",
        ),
        ("ct_dnat; ct_snat; ct_dnat_in_czone; ct_snat_in_czone;", ""),
        ("ct_dnat(192.168.1.2);", ""),
        ("ct_snat(fd11::2);", ""),
        ("ct_dnat_in_czone(192.168.1.2, 1-3000);", "ct_dnat_in_czone(192.168.1.2,1-3000);"),
        ("ct_snat_in_czone(192.168.1.2, 1000);", "ct_snat_in_czone(192.168.1.2,1000);"),
        ("ct_lb;", ""),
        ("ct_lb();", "ct_lb;"),
        ("ct_lb(backends=);", "ct_lb;"),
        ("ct_lb(backends=192.168.1.2:80,192.168.1.3:80);", ""),
        ("ct_lb(backends=192.168.1.2:80,192.168.1.3:80; skip_snat);", ""),
        ("ct_lb(backends=192.168.1.2, 192.168.1.3, );", "ct_lb(backends=192.168.1.2,192.168.1.3);"),
        ("ct_lb(backends=fd0f::2, fd0f::3, );", "ct_lb(backends=fd0f::2,fd0f::3);"),
        (
            "ct_lb_mark(backends=[fd0f::2]:80,[fd0f::3]; force_snat);",
            "ct_lb_mark(backends=[fd0f::2]:80,fd0f::3; force_snat);",
        ),
        ("ct_lb_mark(backends=10.0.0.3:80; hash_fields=\"ip_dst,ip_src\"; skip_snat);", ""),
        ("ct_lb(backends=fd0f::2; hash_fields=\"eth_src\");", ""),
        (
            "commit_ecmp_nh(ipv6 = \"false\", proto = tcp);",
            "commit_ecmp_nh(ipv6 = false, proto = tcp);",
        ),
        ("commit_ecmp_nh(ipv6 = true, proto = udp);", ""),
        (
            "commit_lb_aff(vip = \"172.16.0.123:8080\", backend = \"10.0.0.3:8080\", proto = tcp, \
             timeout = 30);",
            "",
        ),
        ("commit_lb_aff(vip = \"172.16.0.123\", backend = \"10.0.0.3\", timeout = 30);", ""),
        (
            "commit_lb_aff(vip = \"[::1]:8080\", backend = \"[::2]:8080\", proto = sctp, timeout \
             = 30);",
            "",
        ),
        (
            "commit_lb_aff(vip = \"[::1]\", backend = \"::2\", timeout = 30);",
            "commit_lb_aff(vip = \"[::1]\", backend = \"[::2]\", timeout = 30);",
        ),
    ]);
}

#[test]
fn logs_meters_and_queues_are_printed_in_canonical_form() {
    accepts(&[
        ("log(verdict=allow, severity=warning);", ""),
        ("log(name=\"test1\", verdict=drop, severity=info, meter=\"meter1\");", ""),
        ("log(severity=debug, verdict=reject);", "log(verdict=reject, severity=debug);"),
        ("log(verdict=drop);", "log(verdict=drop, severity=info);"),
        (
            "log(name=\"a\", name=\"b\", verdict=drop, severity=alert);",
            "log(name=\"b\", verdict=drop, severity=alert);",
        ),
        (
            "log(verdict=drop, severity=notice, name=\"\\\"\");",
            "log(name=\"\\\"\", verdict=drop, severity=notice);",
        ),
        ("set_meter(1); set_meter(100, 1000); set_meter(4294967295, 4294967295);", ""),
        ("set_meter(1, 0);", "set_meter(1);"),
        ("set_queue(0); set_queue(61440);", ""),
        (
            "fwd_group(liveness=true, childports=\"eth0\", \"lsp1\");",
            "fwd_group(liveness=\"true\", childports=\"eth0\", \"lsp1\");",
        ),
        ("fwd_group(liveness=\"false\",childports=\"eth0\");", "fwd_group(childports=\"eth0\");"),
        ("igmp; handle_dhcpv6_reply; handle_bfd_msg();", ""),
        ("bind_vport(\"lsp1\", inport);", ""),
        ("handle_svc_check(inport);", ""),
        ("sample(probability=100,collector_set=200,obs_domain=10,obs_point=$cookie);", ""),
        (
            "sample(probability=10);",
            "sample(probability=10,collector_set=0,obs_domain=0,obs_point=0);",
        ),
        (
            "trigger_event(event = \"empty_lb_backends\", vip = \"10.0.0.1:80\", protocol = \
             \"tcp\", load_balancer = \"12345678-abcd-9876-fedc-11119f8e7d6c\");",
            "",
        ),
        (
            "trigger_event(event=\"empty_lb_backends\" vip=\"[fd00::1]:80\");",
            "trigger_event(event = \"empty_lb_backends\", vip = \"[fd00::1]:80\");",
        ),
    ]);
}

#[test]
fn put_actions_require_options() {
    accepts(&[
        ("reg1[0] = put_dhcp_opts(offerip = 1.2.3.4, router = 10.0.0.1);", ""),
        (
            "reg0[15] = put_dhcp_opts(offerip=10.0.0.4,mtu=1400,dns_server={8.8.8.8,7.7.7.7},classless_static_route={30.0.0.0/24,10.0.0.4,0.0.0.0/0,10.0.0.1},ethernet_encap=1,tftp_server=\"host\");",
            "reg0[15] = put_dhcp_opts(offerip = 10.0.0.4, mtu = 1400, dns_server = {8.8.8.8, \
             7.7.7.7}, classless_static_route = {30.0.0.0/24, 10.0.0.4, 0.0.0.0/0, 10.0.0.1}, \
             ethernet_encap = 1, tftp_server = \"host\");",
        ),
        (
            "reg0[15] = put_dhcp_opts(offerip = 10.0.0.4, tftp_server = 10.0.0.10, T1 = 5, \
             domain_search_list = \"ovn.org,abc.com\");",
            "",
        ),
        ("reg0[15] = put_dhcp_opts(offerip = 10.0.0.4, domain_name = {\"a\"});", ""),
        ("reg1[0] = put_dhcpv6_opts(ia_addr = ae70::4, server_id = 00:00:00:00:10:02);", ""),
        ("reg1[0] = put_dhcpv6_opts();", ""),
        (
            "reg1[0] = put_dhcpv6_opts(dns_server={ae70::1,ae70::2});",
            "reg1[0] = put_dhcpv6_opts(dns_server = {ae70::1, ae70::2});",
        ),
        (
            "reg1[0] = put_nd_ra_opts(addr_mode = \"slaac\", mtu = 1500, router_preference = \
             \"HIGH\", prefix = aef0::/64, slla = ae:01:02:03:04:05);",
            "",
        ),
        (
            "reg1[0] = put_nd_ra_opts(addr_mode = \"dhcpv6_stateful\", slla = ae:01:02:03:04:10, \
             rdnss = fd00::53, dnssl = \"ovn.org\", route_info = \"HIGH-fd77::/64\");",
            "",
        ),
    ]);
}

#[test]
fn prerequisites_are_named_once_each() {
    for (input, expected) in [
        ("next;", ""),
        ("tcp.dst = 80;", "tcp"),
        ("vlan.pcp = reg0[0..2];", "vlan.present"),
        ("ip.ttl--; ip.ttl = 4; ip4.src <-> ip4.dst;", "ip ip4"),
        ("ip4.src = ip6.src[0..31];", "ip4 ip6"),
        ("ct_lb; ct_next;", "ip"),
        ("arp { arp.op = 1; };", "ip4"),
        ("nd_ns { nd.target = xxreg0; };", "ip6"),
        ("nd_na { nd.tll = eth.src; };", "nd_ns"),
        ("icmp4 { };", "ip4"),
        ("icmp6_error { };", "ip6"),
        ("tcp_reset { };", "tcp"),
        ("sctp_abort { };", "sctp"),
        ("reject { ip4.src = 1.2.3.4; };", "ip4"),
        ("clone { udp.dst = 1; arp { }; };", "udp ip4"),
        ("put_arp(inport, arp.spa, arp.sha);", "arp"),
        ("put_nd(inport, nd.target, nd.sll);", "nd nd_ns"),
        ("reg0[0] = lookup_nd(inport, ip6.src, nd.tll);", "ip6 nd_na"),
        ("put_fdb(inport, arp.sha); get_arp(inport, ip4.dst);", "arp ip4"),
        ("reg0[0] = dns_lookup();", "udp"),
        (
            "reg1[0] = put_nd_ra_opts(addr_mode = \"dhcpv6_stateful\", slla = ae:01:02:03:04:10);",
            "ip6",
        ),
        ("ct_commit { ct_mark[0..15] = tcp.dst; };", "ip"),
    ] {
        let actions = parse_here(input).unwrap_or_else(|error| panic!("{input}: {error}"));
        assert_eq!(actions.prerequisites().join(" "), expected, "{input}");
    }
}

#[test]
fn names_of_ports_are_listed_in_order() {
    let text = "outport = \"a\"; clone { inport = \"\"; outport = \"b\"; }; bind_vport(\"v\", inport); fwd_group(childports=\"c\", \"a\");";
    assert_eq!(parse_here(text).unwrap().names(), ["a", "b", "c", "a"]);
    assert!(parse_here("outport = inport; next;").unwrap().names().is_empty());
}

#[test]
fn next_is_accepted_up_to_the_last_table() {
    let last = Stage::new(Direction::Egress, 3, 4).unwrap();
    assert_eq!(parse("next(0);", last).unwrap().to_string(), "next(0);");
    assert_eq!(
        parse("next(pipeline=ingress, table=3);", last).unwrap().to_string(),
        "next(pipeline=ingress, table=3);"
    );
    assert!(parse("next;", last).is_err());
    assert_eq!(Stage::new(Direction::Egress, 4, 4), None);
    assert_eq!(Stage::new(Direction::Egress, 0, 65), None);
    assert!(Stage::new(Direction::Egress, 63, 64).unwrap().next().is_none());
    assert_eq!(stage().next().map(|table| table.in_pipeline()), Some((Direction::Ingress, 11)));
}

#[test]
fn braces_are_nested_as_deep_as_allowed() {
    let nested = |depth| format!("{}next;{}", "clone { ".repeat(depth), " };".repeat(depth));
    accepts(&[(&nested(MAX_NESTING), "")]);
    let error = parse_here(&nested(MAX_NESTING + 1)).unwrap_err();
    assert_eq!(error.to_string(), "maximum depth of nested actions reached");
    assert!(parse_here(&nested(100_000)).is_err());
}
