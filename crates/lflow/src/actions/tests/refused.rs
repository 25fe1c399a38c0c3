//! Rejected texts, with the error and its position.

use super::parse_here;

/// Asserts that each text is rejected with the second text as error, and that the error points at
/// the third.
fn refuses(table: &[(&str, &str, &str)]) {
    for &(input, message, part) in table {
        match parse_here(input) {
            Ok(actions) => panic!("{input}: accepted as {actions}"),
            Err(error) => {
                assert_eq!(error.to_string(), message, "{input}");
                assert_eq!(&input[error.span], part, "{input}");
            }
        }
    }
}

#[test]
fn malformed_statements_are_refused() {
    refuses(&[
        ("drop; next;", "Syntax error at `next' expecting end of input.", "next"),
        ("next; drop;", "Syntax error at `drop' expecting action.", "drop"),
        ("clone { drop; next; };", "Syntax error at `next' expecting `}'.", "next"),
        (";", "Syntax error at `;' expecting action.", ";"),
        ("xyzzy;", "Syntax error at `xyzzy' expecting action.", "xyzzy"),
        ("next; 123;", "Syntax error at `123' expecting action.", "123"),
        ("next; xyzzy;", "Syntax error at `xyzzy' expecting action.", "xyzzy"),
        ("next", "Syntax error at end of input expecting `;'.", ""),
        ("next;}", "Syntax error at `}' expecting action.", "}"),
        ("^template;", "Unexpanded template.", "^template"),
        ("reg0 = ^template;", "Unexpanded template.", "^template"),
        ("next; \"", "Input ends inside quoted string.", "\""),
        // Found by the fuzzer: a null character was accepted, and could not be printed.
        ("inport = \"a\0\";", "Null character in quoted string.", "\"a\0\""),
        ("inport = \"a\\u0000\";", "Null character in quoted string.", "\"a\\u0000\""),
        ("clone next;", "Syntax error at `next' expecting `{'.", "next"),
        ("clone { next;", "Syntax error at end of input expecting action.", ""),
        ("clone { next; }", "Syntax error at end of input expecting `;'.", ""),
        ("next();", "Syntax error at `)' expecting \"pipeline\" or \"table\".", ")"),
        ("next(10;", "Syntax error at `;' expecting `)'.", ";"),
        ("next(24);", "\"next\" action cannot advance beyond table 23.", "next(24)"),
        (
            "next(table=4294967296);",
            "Syntax error at `4294967296' expecting small integer.",
            "4294967296",
        ),
        (
            "next(pipeline=sideways);",
            "Syntax error at `sideways' expecting \"ingress\" or \"egress\".",
            "sideways",
        ),
        ("next(table=1,);", "Syntax error at `)' expecting \"pipeline\" or \"table\".", ")"),
    ]);
}

#[test]
fn invalid_assignments_are_refused() {
    refuses(&[
        ("inport[1] = 1;", "Cannot select subfield of string field inport.", "["),
        ("ip.proto[1] = 1;", "Cannot select subfield of nominal field ip.proto.", "[1]"),
        ("reg0[32] = 1;", "Cannot select bits 32 to 32 of 32-bit field reg0.", "[32]"),
        ("eth.dst[40] == 1;", "Syntax error at `==' expecting `=' or `<->'.", "=="),
        ("ip = 1;", "Predicate symbol ip used where lvalue required.", "ip"),
        ("ip.proto = 6;", "Field ip.proto is not modifiable.", "ip.proto"),
        ("ct_mark = 12345", "Field ct_mark is not modifiable.", "ct_mark"),
        ("ct_label.blocked = 1/1", "Field ct_label.blocked is not modifiable.", "ct_label.blocked"),
        ("inport = {\"a\", \"b\"};", "Syntax error at `{' expecting constant.", "{"),
        ("inport = $set;", "Syntax error at `$set' expecting constant.", "$set"),
        (
            "vlan.present = 0;",
            "Predicate symbol vlan.present used where lvalue required.",
            "vlan.present",
        ),
        ("xyzzy = 0;", "Syntax error at `xyzzy' expecting field name.", "xyzzy"),
        ("pkt.mark;", "Syntax error at `pkt.mark' expecting action.", "pkt.mark"),
        ("pkt.mark = foo;", "Syntax error at `foo' expecting field name.", "foo"),
        (
            "pkt.mark = \"foo\";",
            "Integer field pkt.mark is not compatible with string constant.",
            "\"foo\"",
        ),
        ("inport = 5;", "String field inport is not compatible with integer constant.", "5"),
        (
            "tcp.dst = 65536;",
            "17-bit constant is not compatible with 16-bit field tcp.dst.",
            "65536",
        ),
        (
            "reg0 = fd00::1;",
            "128-bit constant is not compatible with 32-bit field reg0.",
            "fd00::1",
        ),
        (
            "reg0[0] = vlan.present;",
            "Predicate symbol vlan.present used where lvalue required.",
            "vlan.present",
        ),
        (
            "reg0 = reg1[0..10];",
            "Can't assign 11-bit value to 32-bit destination.",
            "reg0 = reg1[0..10]",
        ),
        (
            "inport = reg0;",
            "Can't assign integer field (reg0) to string field (inport).",
            "inport = reg0",
        ),
        ("ip.proto = reg0[0..7];", "Field ip.proto is not modifiable.", "ip.proto"),
        (
            "reg0 <-> reg1[0..10];",
            "Can't exchange 32-bit field with 11-bit field.",
            "reg0 <-> reg1[0..10]",
        ),
        (
            "inport <-> reg0;",
            "Can't exchange string field (inport) with integer field (reg0).",
            "inport <-> reg0",
        ),
        ("reg0[0..7] <-> ip.proto;", "Field ip.proto is not modifiable.", "ip.proto"),
        ("ip.proto <-> reg0[0..7];", "Field ip.proto is not modifiable.", "ip.proto"),
        ("ip.ttl", "Syntax error at end of input expecting `--'.", ""),
        ("pop(eth.type);", "Field eth.type is not modifiable.", "eth.type"),
        ("push(abc);", "Syntax error at `abc' expecting field name.", "abc"),
        ("push reg0;", "Syntax error at `reg0' expecting `('.", "reg0"),
        (
            "icmp4.frag_mtu = 65536;",
            "17-bit constant is not compatible with 16-bit field icmp4.frag_mtu.",
            "65536",
        ),
        ("icmp4.frag_mtu = 4/7;", "An MTU has no mask.", "4/7"),
        ("icmp4.frag_mtu = reg0[0..15];", "Syntax error at `reg0' expecting constant.", "reg0"),
        (
            "reg0[0..15] = icmp4.frag_mtu;",
            "Field icmp4.frag_mtu can only be assigned a number.",
            "icmp4.frag_mtu",
        ),
        ("reg0 = select(1=, 2);", "Syntax error at `,' expecting weight.", ","),
        ("reg0 = select(1=0, 2);", "weight can't be 0.", "0"),
        ("reg0 = select(1=123456, 2);", "Syntax error at `123456' expecting weight.", "123456"),
        ("reg0 = select(123);", "Syntax error at `;' expecting at least 2 group members.", ";"),
        ("ip.proto = select(1, 2, 3);", "Field ip.proto is not modifiable.", "ip.proto"),
        (
            "reg0[0..14] = select(1, 2, 3);",
            "cannot use 15-bit field reg0[0..14] for \"select\", which requires at least 16 bits.",
            "reg0[0..14]",
        ),
        (
            "inport = select(1, 2);",
            "Cannot use string field inport where numeric field is required.",
            "inport",
        ),
    ]);
}

#[test]
fn invalid_lookups_are_refused() {
    refuses(&[
        ("get_arp;", "Syntax error at `;' expecting `('.", ";"),
        ("get_arp();", "Syntax error at `)' expecting field name.", ")"),
        ("get_arp(inport);", "Syntax error at `)' expecting `,'.", ")"),
        ("get_arp(inport, ip4.dst;", "Syntax error at `;' expecting `)'.", ";"),
        (
            "get_arp(inport, eth.dst);",
            "Cannot use 48-bit field eth.dst[0..47] where 32-bit field is required.",
            "eth.dst",
        ),
        (
            "get_arp(inport, outport);",
            "Cannot use string field outport where numeric field is required.",
            "outport",
        ),
        (
            "get_arp(reg0, ip4.dst);",
            "Cannot use numeric field reg0 where string field is required.",
            "reg0",
        ),
        (
            "get_nd(inport, ip4.dst);",
            "Cannot use 32-bit field ip4.dst[0..31] where 128-bit field is required.",
            "ip4.dst",
        ),
        ("put_arp(inport, ip4.src);", "Syntax error at `)' expecting `,'.", ")"),
        (
            "put_nd(inport, ip6.src, ip4.src);",
            "Cannot use 32-bit field ip4.src[0..31] where 48-bit field is required.",
            "ip4.src",
        ),
        (
            "put_fdb(inport, ip4.src);",
            "Cannot use 32-bit field ip4.src[0..31] where 48-bit field is required.",
            "ip4.src",
        ),
        ("lookup_arp;", "Syntax error at `lookup_arp' expecting action.", "lookup_arp"),
        (
            "reg0[0] = lookup_arp;",
            "Syntax error at `lookup_arp' expecting field name.",
            "lookup_arp",
        ),
        ("reg0[0] = lookup_arp(inport, ip4.dst;", "Syntax error at `;' expecting `,'.", ";"),
        (
            "reg0 = lookup_arp(inport, ip4.dst, eth.src);",
            "Cannot use 32-bit field reg0[0..31] where 1-bit field is required.",
            "reg0",
        ),
        ("ct.new = lookup_nd_ip(inport, ip6.dst);", "Field ct.new is not modifiable.", "ct.new"),
        (
            "reg0[0] = lookup_arp_ip(inport, ip4.dst, eth.src);",
            "Syntax error at `,' expecting `)'.",
            ",",
        ),
        (
            "reg0[0] = lookup_nd(inport, ip4.src, eth.src);",
            "Cannot use 32-bit field ip4.src[0..31] where 128-bit field is required.",
            "ip4.src",
        ),
        (
            "reg0[1..3] = get_fdb(eth.src);",
            "Cannot use 3-bit field reg0[1..3] where 32-bit field is required.",
            "reg0[1..3]",
        ),
        (
            "outport = get_fdb(ip4.dst);",
            "Cannot use 32-bit field ip4.dst[0..31] where 48-bit field is required.",
            "ip4.dst",
        ),
        (
            "outport = lookup_fdb(outport, arp.sha);",
            "Cannot use string field outport where numeric field is required.",
            "outport",
        ),
        (
            "reg1[1] = lookup_fdb(ip4.src, eth.src);",
            "Cannot use numeric field ip4.src where string field is required.",
            "ip4.src",
        ),
        (
            "reg0 = check_in_port_sec();",
            "Cannot use 32-bit field reg0[0..31] where 1-bit field is required.",
            "reg0",
        ),
        (
            "reg0[0] = check_out_port_sec(foo);",
            "check_out_port_sec doesn't take any parameters",
            "foo",
        ),
        (
            "check_in_port_sec;",
            "Syntax error at `check_in_port_sec' expecting action.",
            "check_in_port_sec",
        ),
        ("reg0[0] = dns_lookup(\"foo\");", "dns_lookup doesn't take any parameters", "\"foo\""),
        (
            "reg0[0] = check_pkt_larger(foo);",
            "Syntax error at `foo' expecting packet length.",
            "foo",
        ),
        (
            "reg0[0] = check_pkt_larger(65536);",
            "Syntax error at `65536' expecting packet length.",
            "65536",
        ),
        (
            "reg0 = check_pkt_larger(1500);",
            "Cannot use 32-bit field reg0[0..31] where 1-bit field is required.",
            "reg0",
        ),
    ]);
}

#[test]
fn invalid_connection_tracking_actions_are_refused() {
    refuses(&[
        ("ct_commit { ip4.dst = 192.168.0.1; };", "Field ip4.dst is not modifiable.", "ip4.dst"),
        ("ct_commit { clone { ct_mark = 1; }; };", "Field ct_mark is not modifiable.", "ct_mark"),
        (
            "ct_commit { ct_label=18446744073709551616; };",
            "Decimal constants must be less than 2**64.",
            "18446744073709551616",
        ),
        (
            "ct_commit { ct_label=0x181716151413121110090807060504030201; };",
            "Hexadecimal constant requires more than 128 bits.",
            "0x181716151413121110090807060504030201",
        ),
        (
            "ct_commit(ct_foo=1);",
            "Syntax error at `ct_foo' expecting \"ct_mark\" or \"ct_label\".",
            "ct_foo",
        ),
        ("ct_commit(ct_mark=\"a\");", "Syntax error at `\"a\"' expecting integer.", "\"a\""),
        ("ct_dnat();", "Syntax error at `)' expecting IPv4 or IPv6 address.", ")"),
        ("ct_dnat(foo, bar);", "Syntax error at `foo' expecting IPv4 or IPv6 address.", "foo"),
        (
            "ct_snat(10.0.0.0/8);",
            "Syntax error at `10.0.0.0/8' expecting IPv4 or IPv6 address.",
            "10.0.0.0/8",
        ),
        (
            "ct_snat(192.168.1.2, 192.168.1.3);",
            "Syntax error at `192.168.1.3' expecting Integer for port range.",
            "192.168.1.3",
        ),
        (
            "ct_snat(192.168.1.2, 1000-foo);",
            "Syntax error at `foo' expecting Integer for port range.",
            "foo",
        ),
        ("ct_snat(192.168.1.2, 0);", "The first port of a range can't be 0.", "0"),
        (
            "ct_snat_in_czone(192.168.1.2, 1000-100);",
            "The last port of a range should be greater than the first.",
            "100",
        ),
        (
            "ct_lb(192.168.1.2:80);",
            "Syntax error at `192.168.1.2' expecting backends.",
            "192.168.1.2",
        ),
        ("ct_lb(backends=192.168.1.2:);", "Syntax error at `)' expecting port number.", ")"),
        (
            "ct_lb(backends=192.168.1.2:123456);",
            "Syntax error at `123456' expecting port number.",
            "123456",
        ),
        ("ct_lb(backends=foo);", "Syntax error at `foo' expecting IP address.", "foo"),
        (
            "ct_lb(backends=[192.168.1.2]);",
            "Syntax error at `192.168.1.2' expecting IPv6 address.",
            "192.168.1.2",
        ),
        ("ct_lb(backends=[fd00::1:80);", "Syntax error at `)' expecting `]'.", ")"),
        (
            "ct_lb(backends=10.0.0.1; hash_fields=eth_src,eth_dst);",
            "Syntax error at `eth_src' expecting hash_fields in quotes.",
            "eth_src",
        ),
        (
            "ct_lb(backends=10.0.0.1; hash_fields=\"a\"; foo);",
            "Syntax error at `foo' expecting skip_snat or force_snat.",
            "foo",
        ),
        (
            "ct_lb(backends=10.0.0.1; foo);",
            "Syntax error at `foo' expecting hash_fields, skip_snat or force_snat.",
            "foo",
        ),
        ("ct_lb(backends=; skip_snat);", "Only backends can have hash_fields or a flag.", ";"),
        ("ct_lb(backends=10.0.0.1; skip_snat;);", "Syntax error at `;' expecting `)'.", ";"),
        ("ct_snat_to_vip(foo);", "Syntax error at `(' expecting `;'.", "("),
        ("ct_commit_to_zone;", "Syntax error at `;' expecting `('.", ";"),
        (
            "ct_commit_to_zone();",
            "\"ct_commit_to_zone\" action accepts only \"dnat\" or \"snat\" parameter.",
            ")",
        ),
        (
            "ct_next(ignore);",
            "\"ct_next\" action accepts only \"dnat\" or \"snat\" parameter.",
            "ignore",
        ),
        ("ct_commit_to_zone(dnat;", "Syntax error at `;' expecting `)'.", ";"),
        ("mac_cache_use();", "Syntax error at `(' expecting `;'.", "("),
        ("ct_nw_dst();", "Syntax error at `ct_nw_dst' expecting action.", "ct_nw_dst"),
        ("reg1[0..7] = ct_proto(x);", "ct_proto doesn't take any parameters", "x"),
        (
            "reg1 = ct_tp_dst();",
            "Cannot use 32-bit field reg1[0..31] where 16-bit field is required.",
            "reg1",
        ),
        ("commit_ecmp_nh(proto = sctp);", "Syntax error at `proto' expecting ipv6.", "proto"),
        (
            "commit_ecmp_nh(ipv6 = maybe, proto = tcp);",
            "Syntax error at `maybe' expecting true or false.",
            "maybe",
        ),
        (
            "commit_ecmp_nh(ipv6 = true, proto = icmp);",
            "Syntax error at `icmp' expecting tcp, udp or sctp.",
            "icmp",
        ),
        (
            "commit_lb_aff(vip = \"foo\");",
            "Syntax error at `\"foo\"' expecting IP address and port in quotes.",
            "\"foo\"",
        ),
        (
            "commit_lb_aff(vip = \"[1.2.3.4]:80\");",
            "Syntax error at `\"[1.2.3.4]:80\"' expecting IP address and port in quotes.",
            "\"[1.2.3.4]:80\"",
        ),
        (
            "commit_lb_aff(vip = \"1.2.3.4:80\", backend = \"[::1]:80\", proto = tcp, timeout = \
             1);",
            "Addresses of vip and backend are of two families.",
            "\"[::1]:80\"",
        ),
        (
            "commit_lb_aff(vip = \"1.2.3.4:80\", backend = \"1.2.3.5\", timeout = 1);",
            "Syntax error at `timeout' expecting proto.",
            "timeout",
        ),
        (
            "commit_lb_aff(vip = \"1.2.3.4\", backend = \"1.2.3.5\", timeout = 65536);",
            "Syntax error at `65536' expecting affinity timeout.",
            "65536",
        ),
    ]);
}

#[test]
fn invalid_logs_meters_and_queues_are_refused() {
    refuses(&[
        (
            "set_queue(65535);",
            "Queue ID 65535 for set_queue is not in valid range 0 to 61440.",
            "65535",
        ),
        ("set_meter(0);", "Rate 0 for set_meter is not valid.", "0"),
        ("set_meter(0x10);", "Syntax error at `0x10' expecting decimal number.", "0x10"),
        ("set_meter(100, 1000, );", "Syntax error at `,' expecting `)'.", ","),
        (
            "log(verdict=bad_verdict, severity=info);",
            "Syntax error at `bad_verdict' expecting allow, drop or reject.",
            "bad_verdict",
        ),
        (
            "log(verdict=drop, severity=bad);",
            "Syntax error at `bad' expecting alert, warning, notice, info or debug.",
            "bad",
        ),
        ("log(severity=notice);", "Syntax error at `;' expecting verdict.", ";"),
        ("log(name=foo);", "Syntax error at `foo' expecting string.", "foo"),
        (
            "log(color=red);",
            "Syntax error at `color' expecting name, verdict, severity or meter.",
            "color",
        ),
        (
            "fwd_group(childports=eth0);",
            "Syntax error at `eth0' expecting logical switch port.",
            "eth0",
        ),
        ("fwd_group();", "Syntax error at `)' expecting childports.", ")"),
        (
            "fwd_group(liveness=xyzzy, childports=\"eth0\");",
            "Syntax error at `xyzzy' expecting true or false.",
            "xyzzy",
        ),
        (
            "fwd_group(liveness=false childports=\"eth0\");",
            "Syntax error at `childports' expecting `,'.",
            "childports",
        ),
        ("bind_vport;", "Syntax error at `;' expecting `('.", ";"),
        ("bind_vport(;", "Syntax error at `;' expecting port name string.", ";"),
        ("bind_vport(\"xyzzy\";", "Syntax error at `;' expecting `,'.", ";"),
        ("bind_vport(\"xyzzy\",;", "Syntax error at `;' expecting field name.", ";"),
        ("bind_vport(\"xyzzy\", inport;", "Syntax error at `;' expecting `)'.", ";"),
        ("handle_svc_check();", "Syntax error at `)' expecting field name.", ")"),
        (
            "handle_svc_check(reg0);",
            "Cannot use numeric field reg0 where string field is required.",
            "reg0",
        ),
        ("handle_bfd_msg;", "Syntax error at `;' expecting `('.", ";"),
        (
            "sample(probability=0,collector_set=200);",
            "probability must be greater than zero",
            "sample(probability=0,collector_set=200)",
        ),
        (
            "sample(probability=1,obs_point=foo);",
            "Syntax error at `foo' expecting number or $cookie.",
            "foo",
        ),
        (
            "sample(probability=1,obs_domain=300);",
            "Syntax error at `300' expecting obs_domain of 8 bits.",
            "300",
        ),
        (
            "sample(probability=10,foo=bar);",
            "Syntax error at `foo' expecting probability, collector_set, obs_domain or obs_point.",
            "foo",
        ),
        ("trigger_event(vip = \"1.2.3.4:80\");", "Syntax error at `vip' expecting event.", "vip"),
        (
            "trigger_event(event = \"other\");",
            "Syntax error at `\"other\"' expecting \"empty_lb_backends\".",
            "\"other\"",
        ),
        (
            "trigger_event(event = \"empty_lb_backends\", vip = \"10.0.0.1:a\");",
            "Invalid load balancer VIP '10.0.0.1:a'",
            "trigger_event(event = \"empty_lb_backends\", vip = \"10.0.0.1:a\")",
        ),
        (
            "trigger_event(event = \"empty_lb_backends\", protocol = \"aarp\");",
            "Load balancer protocol 'aarp' is not 'tcp', 'udp', or 'sctp'",
            "trigger_event(event = \"empty_lb_backends\", protocol = \"aarp\")",
        ),
        (
            "trigger_event(event = \"empty_lb_backends\", load_balancer = \"bacon\");",
            "Load balancer 'bacon' is not a UUID",
            "trigger_event(event = \"empty_lb_backends\", load_balancer = \"bacon\")",
        ),
    ]);
    let name = "x".repeat(64);
    refuses(&[(
        &format!("log(name=\"{name}\", verdict=drop);"),
        "name must be shorter than 64 characters",
        &format!("\"{name}\""),
    )]);
}

#[test]
fn invalid_options_are_refused() {
    refuses(&[
        (
            "reg1[0..1] = put_dhcp_opts(offerip = 1.2.3.4);",
            "Cannot use 2-bit field reg1[0..1] where 1-bit field is required.",
            "reg1[0..1]",
        ),
        (
            "reg1[0] = put_dhcp_opts();",
            "put_dhcp_opts requires offerip to be specified.",
            "reg1[0] = put_dhcp_opts()",
        ),
        (
            "reg1[0] = put_dhcp_opts(x = 1.2.3.4);",
            "Syntax error at `x' expecting DHCPv4 option name.",
            "x",
        ),
        (
            "reg1[0] = put_dhcp_opts(offerip=1.2.3.4, \"hi\");",
            "Syntax error at `\"hi\"' expecting DHCPv4 option name.",
            "\"hi\"",
        ),
        (
            "reg1[0] = put_dhcp_opts(offerip=\"xyzzy\");",
            "DHCPv4 option offerip requires numeric value.",
            "\"xyzzy\"",
        ),
        (
            "reg1[0] = put_dhcp_opts(domain_name=1.2.3.4);",
            "DHCPv4 option domain_name requires string value.",
            "1.2.3.4",
        ),
        ("reg1[0] = put_dhcp_opts(router={});", "Syntax error at `}' expecting constant.", "}"),
        (
            "reg1[0] = put_dhcp_opts(router={1.2.3.4, \"a\"});",
            "Syntax error at `\"a\"' expecting integer.",
            "\"a\"",
        ),
        (
            "reg1[0] = put_dhcp_opts(tftp_server={\"a\", 1.2.3.4});",
            "Syntax error at `1.2.3.4' expecting string.",
            "1.2.3.4",
        ),
        (
            "reg1[0] = put_dhcp_opts(router={1.2.3.4;",
            "Syntax error at `;' expecting constant.",
            ";",
        ),
        (
            "reg1[0] = put_dhcpv6_opts(ia_addr=\"ae70::4\");",
            "DHCPv6 option ia_addr requires numeric value.",
            "\"ae70::4\"",
        ),
        (
            "reg1[0] = put_dhcpv6_opts(offerip=1.2.3.4);",
            "Syntax error at `offerip' expecting DHCPv6 option name.",
            "offerip",
        ),
        (
            "reg1[0] = put_nd_ra_opts(addr_mode = slaac);",
            "Syntax error at `slaac' expecting constant.",
            "slaac",
        ),
        (
            "reg1[0] = put_nd_ra_opts(mtu = \"1500\");",
            "IPv6 ND RA option mtu requires numeric value.",
            "\"1500\"",
        ),
    ]);
    for (options, message) in [
        ("addr_mode = \"slaac\", mtu = 1500, prefix = aef0::/64", "slla option not present"),
        (
            "addr_mode = \"slaac\", slla = ae:01:02:03:04:10",
            "prefix option needs to be set when address mode is slaac/dhcpv6_stateless.",
        ),
        ("prefix = aef0::, slla = ae:01:02:03:04:10", "Invalid value for \"prefix\" option"),
        ("addr_mode = \"foo\", slla = ae:01:02:03:04:10", "Invalid value for \"addr_mode\" option"),
        ("mtu = 10.0.0.4", "Invalid value for \"mtu\" option"),
        ("rdnss = 10.0.0.4", "Invalid value for \"rdnss\" option"),
        ("dnssl = {\"a\", \"b\"}", "Invalid value for \"dnssl\" option"),
        ("router_preference = \"none\"", "Invalid value for \"router_preference\" option"),
    ] {
        let statement = format!("reg1[0] = put_nd_ra_opts({options})");
        refuses(&[(&format!("{statement};"), message, &statement)]);
    }
}
