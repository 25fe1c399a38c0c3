//! The steps that actions compile to.

use super::parse_here;
use crate::actions::compile;
use crate::{Constant, PortGroupMembers, Scope};
use flow::{AclVerdict, CtNat, Field, LogPriority, LogRecord, NatRange, Reply, Subfield};
use pipeline::{
    Affinity, AffinityRule, AffinityVip, CtBackend, CtBalance, CtOp, CtOriginal, CtZone, Direction,
    LearnedOp, Op, Operand, TableId,
};
use services::router::{AddressMode, Preference, Router};
use services::{Service, dhcp4, dhcp6};
use std::sync::Arc;
use wire::MacAddr;
use wire::icmp::nd::{NdOption, NdPrefix};

/// Ports `a` (1) and `b` (2).
struct Ports;

impl Scope for Ports {
    fn port(&self, name: &str) -> Option<u16> {
        match name {
            "a" => Some(1),
            "b" => Some(2),
            _ => None,
        }
    }

    fn address_set(&self, _: &str) -> Option<&[Constant]> {
        None
    }

    fn port_group(&self, _: &str) -> Option<PortGroupMembers> {
        None
    }

    fn is_chassis_resident(&self, _: &str) -> bool {
        false
    }
}

fn ops(text: &str) -> Arc<[Op]> {
    compile(&parse_here(text).unwrap(), &Ports)
}

fn becomes(text: &str, expected: &[Op]) {
    assert_eq!(&*ops(text), expected, "{text}");
}

fn bits(field: Field, first: u8, width: u8) -> Subfield {
    Subfield::new(field, first, width).unwrap()
}

fn whole(field: Field) -> Subfield {
    field.into()
}

fn load(to: Subfield, value: u128) -> Op {
    Op::Load { to, value }
}

fn table(number: u8) -> TableId {
    TableId::logical(Direction::Ingress, number).unwrap()
}

#[test]
fn lists_become_steps_in_order() {
    becomes("drop;", &[]);
    becomes("output; next; next(3);", &[Op::Output, Op::Next(table(11)), Op::Next(table(3))]);
    let egress = TableId::logical(Direction::Egress, 5).unwrap();
    becomes("next(pipeline=egress, table=5);", &[Op::Next(egress)]);
    becomes(
        "clone { reg0 = 1; }; output;",
        &[Op::Clone([load(whole(Field::Reg0), 1)].into()), Op::Output],
    );
}

#[test]
fn constants_are_truncated_to_the_width_of_their_bits() {
    becomes("reg9[16..31] = 0x12345678;", &[load(bits(Field::Reg9, 16, 16), 0x5678)]);
    becomes("flags.loopback = 1;", &[load(bits(Field::Reg10, 0, 1), 1)]);
    becomes("xxreg0 = fd00::1;", &[load(whole(Field::Xxreg0), 0xfd00 << 112 | 1)]);
    becomes("eth.dst = 00:00:00:00:ff:01;", &[load(whole(Field::EthDst), 0xff01)]);
    becomes("ip4.src = 10.0.0.0/8;", &[load(bits(Field::Ip4Src, 24, 8), 10)]);
    becomes(
        "reg0 = 0x50a/0xf0f;",
        &[load(bits(Field::Reg0, 0, 4), 0xa), load(bits(Field::Reg0, 8, 4), 5)],
    );
    becomes("reg0[4..7] = 0x1ff/0x1f3;", &[load(bits(Field::Reg0, 4, 2), 3)]);
    becomes("reg0 = 0/0;", &[]);
}

#[test]
fn ports_become_keys_and_unknown_ports_become_none() {
    for (name, key) in [("a", 1), ("b", 2), ("unknown", 0), ("", 0)] {
        becomes(&format!("outport = \"{name}\";"), &[load(whole(Field::Reg15), key)]);
    }
    becomes("inport = \"b\";", &[load(whole(Field::Reg14), 2)]);
}

#[test]
fn fields_are_copied_exchanged_and_saved() {
    let (src, dst) = (whole(Field::Ip4Src), whole(Field::Ip4Dst));
    becomes("ip4.src = ip4.dst;", &[Op::Move { from: dst, to: src }]);
    becomes("ip4.src <-> ip4.dst;", &[Op::Exchange(src, dst)]);
    becomes(
        "outport = inport;",
        &[Op::Move { from: whole(Field::Reg14), to: whole(Field::Reg15) }],
    );
    let label = bits(Field::CtLabel, 32, 48);
    becomes(
        "push(xxreg1); eth.dst = ct_label.ecmp_reply_eth; pop(xxreg1); ip.ttl--;",
        &[
            Op::Push(whole(Field::Xxreg1)),
            Op::Move { from: label, to: whole(Field::EthDst) },
            Op::Pop(whole(Field::Xxreg1)),
            Op::DecTtl,
        ],
    );
}

#[test]
fn tags_are_pushed_and_popped_with_the_tag_present_bit() {
    let tci = |first, width| bits(Field::VlanTci, first, width);
    becomes("vlan.pcp = 2;", &[load(tci(13, 3), 2)]);
    becomes("vlan.tci = 0;", &[Op::PopVlan]);
    becomes("vlan.tci = 0x0fff;", &[Op::PopVlan]);
    becomes(
        "vlan.tci = 0x7064;",
        &[
            Op::SetVlan { bits: tci(0, 12), value: 0x64 },
            Op::SetVlan { bits: tci(13, 3), value: 3 },
        ],
    );
    becomes("vlan.tci[12] = 1;", &[Op::SetVlan { bits: tci(12, 1), value: 1 }]);
    becomes("vlan.tci[12] = 0;", &[Op::PopVlan]);
    becomes("vlan.tci[12..15] = 5;", &[Op::SetVlan { bits: tci(13, 3), value: 2 }]);
    becomes("vlan.tci[0] = 1;", &[load(tci(0, 1), 1)]);
    becomes("vlan.tci = reg0[0..15];", &[Op::Unsupported("vlan.tci")]);
    becomes(
        "reg0[0..15] = vlan.tci;",
        &[Op::Move { from: tci(0, 16), to: bits(Field::Reg0, 0, 16) }],
    );
}

#[test]
fn replies_have_their_own_steps() {
    for (name, reply) in [
        ("arp", Reply::Arp),
        ("nd_na", Reply::NeighbourAdvert { router: false }),
        ("nd_na_router", Reply::NeighbourAdvert { router: true }),
        ("nd_ns", Reply::NeighbourSolicit),
        ("icmp4", Reply::Icmp4),
        ("icmp4_error", Reply::Icmp4),
        ("icmp6", Reply::Icmp6),
        ("icmp6_error", Reply::Icmp6),
        ("tcp_reset", Reply::TcpReset),
        ("sctp_abort", Reply::SctpAbort),
    ] {
        becomes(
            &format!("{name} {{ output; }};"),
            &[Op::Reply { reply, ops: [Op::Output].into() }],
        );
    }
    becomes("reject { next; };", &[Op::Reject([Op::Next(table(11))].into())]);
    becomes(
        "icmp4.frag_mtu = 1400; icmp6.frag_mtu = 1300;",
        &[Op::SetIcmpMtu(1400), Op::SetIcmpMtu(1300)],
    );
}

#[test]
fn lookups_name_their_operands() {
    let (port, mac) = (Operand::from(Field::Reg14), Operand::from(Field::EthSrc));
    let ip = Operand::from(Field::Ip4Dst);
    let to = bits(Field::Reg0, 3, 1);
    becomes("get_arp(inport, ip4.dst);", &[LearnedOp::GetMacBinding { port, ip }.into()]);
    becomes(
        "put_arp(inport, ip4.dst, eth.src);",
        &[LearnedOp::PutMacBinding { port, ip, mac }.into()],
    );
    becomes(
        "reg0[3] = lookup_arp(inport, ip4.dst, eth.src);",
        &[LearnedOp::LookupMacBinding { to, port, ip, mac: Some(mac) }.into()],
    );
    becomes(
        "reg0[3] = lookup_arp_ip(inport, ip4.dst);",
        &[LearnedOp::LookupMacBinding { to, port, ip, mac: None }.into()],
    );
    let ip = Operand::from(Field::Xxreg0);
    becomes("get_nd(inport, xxreg0);", &[LearnedOp::GetMacBinding { port, ip }.into()]);
    assert_eq!(ip.width(), 128);
    becomes(
        "outport = get_fdb(eth.src);",
        &[LearnedOp::GetFdb { to: whole(Field::Reg15), mac }.into()],
    );
    becomes("put_fdb(inport, eth.src);", &[LearnedOp::PutFdb { port, mac }.into()]);
    becomes(
        "reg0[3] = lookup_fdb(inport, eth.src);",
        &[LearnedOp::LookupFdb { to, port, mac }.into()],
    );
    becomes("reg0[3] = check_pkt_larger(1500);", &[Op::CheckLength { to, bytes: 1500 }]);
    becomes(
        "reg0[3] = check_in_port_sec(); reg0[3] = check_out_port_sec();",
        &[
            Op::PortSecurity { to, direction: Direction::Ingress },
            Op::PortSecurity { to, direction: Direction::Egress },
        ],
    );
}

#[test]
fn select_continues_in_the_next_table() {
    becomes(
        "reg8[16..31] = select(1=50, 2);",
        &[
            Op::Select { to: bits(Field::Reg8, 16, 16), choices: [(1, 50), (2, 100)].into() },
            Op::Next(table(11)),
        ],
    );
    becomes(
        "fwd_group(liveness=\"true\", childports=\"a\", \"b\");",
        &[Op::Select { to: whole(Field::Reg15), choices: [(1, 1), (2, 1)].into() }, Op::Output],
    );
    becomes("fwd_group(childports=\"a\", \"unknown\");", &[]);
}

#[test]
fn logs_meters_and_queues_keep_their_numbers() {
    becomes(
        "log(name=\"n\", verdict=reject, severity=notice, meter=\"m\");",
        &[Op::Log(Arc::new(LogRecord {
            name: "n".to_owned(),
            priority: LogPriority::Notice,
            verdict: AclVerdict::Reject,
            is_from_lport: true,
            meter: Some("m".to_owned()),
        }))],
    );
    becomes(
        "set_meter(700); set_meter(700, 90); set_queue(61440);",
        &[
            Op::Meter { rate_kbps: 700, burst_kb: 700 },
            Op::Meter { rate_kbps: 700, burst_kb: 90 },
            Op::SetQueue(61440),
        ],
    );
}

#[test]
fn actions_without_effect_compile_to_nothing() {
    becomes("sample(probability=65535,collector_set=1,obs_domain=1,obs_point=$cookie);", &[]);
}

/// A step in the zone `zone` that continues in the next table.
fn tracked(zone: CtZone, nat: Option<CtNat>, commits: bool) -> Op {
    let (commit, next) = (commits.then(Arc::default), parse_here("ct_next;").unwrap().stage.next());
    Op::Ct(Box::new(CtOp { zone, nat, commit, force: false, next }))
}

#[test]
fn connections_are_tracked_in_the_zone_that_ovn_uses() {
    let range = NatRange::address([10, 0, 0, 1].into());
    let ports = NatRange { ports: Some((1, 3000)), ..range };
    for (text, expected) in [
        ("ct_next;", tracked(CtZone::Logical, None, false)),
        ("ct_lb;", tracked(CtZone::Logical, Some(CtNat::Existing), false)),
        ("ct_lb_mark;", tracked(CtZone::Logical, Some(CtNat::Existing), false)),
        ("ct_commit_nat;", tracked(CtZone::Logical, Some(CtNat::Existing), true)),
        ("ct_next(dnat);", tracked(CtZone::Logical, None, false)),
        ("ct_next(snat);", tracked(CtZone::LogicalSnat, None, false)),
        ("ct_commit_nat(snat);", tracked(CtZone::LogicalSnat, Some(CtNat::Existing), true)),
        ("ct_commit_to_zone(dnat);", tracked(CtZone::Logical, None, true)),
        ("ct_commit_to_zone(snat);", tracked(CtZone::LogicalSnat, None, true)),
        ("ct_dnat;", tracked(CtZone::Dnat, Some(CtNat::Existing), false)),
        ("ct_snat;", tracked(CtZone::Snat, Some(CtNat::Existing), false)),
        ("ct_snat(10.0.0.1);", tracked(CtZone::Snat, Some(CtNat::Source(range)), true)),
        (
            "ct_dnat(10.0.0.1, 1-3000);",
            tracked(CtZone::Dnat, Some(CtNat::Destination(ports)), true),
        ),
        ("ct_dnat_in_czone;", tracked(CtZone::Dnat, Some(CtNat::Existing), false)),
        ("ct_snat_in_czone(10.0.0.1);", tracked(CtZone::Dnat, Some(CtNat::Source(range)), true)),
        ("ct_clear;", Op::CtClear),
    ] {
        becomes(text, &[expected]);
    }
}

#[test]
fn commits_write_the_mark_and_the_label() {
    let commit = |exec: Vec<Op>| {
        let (zone, commit) = (CtZone::Logical, Some(exec.into()));
        // A connection that clashes with another one gets another source port.
        let nat = Some(CtNat::Existing);
        Op::Ct(Box::new(CtOp { zone, nat, commit, force: false, next: None }))
    };
    let mark = |first, width, value| load(bits(Field::CtMark, first, width), value);
    for (text, exec) in [
        ("ct_commit;", vec![]),
        ("ct_commit { ct_mark.blocked = 1; };", vec![mark(0, 1, 1)]),
        ("ct_commit(ct_mark=1/3);", vec![mark(0, 2, 1)]),
        (
            "ct_commit { ct_mark = 0x1/0x11; ct_label.label = reg3; };",
            vec![
                mark(0, 1, 1),
                mark(4, 1, 0),
                Op::Move { from: whole(Field::Reg3), to: bits(Field::CtLabel, 96, 32) },
            ],
        ),
    ] {
        becomes(text, &[commit(exec)]);
    }
}

#[test]
fn meters_come_before_what_services_do() {
    use crate::Loader;
    use crate::logical_flow::LogicalFlow;
    use flow::{DatapathKey, MeterUnit, NamedMeter};
    use pipeline::{DatapathKind, Direction};

    let meter = Arc::new(NamedMeter {
        name: "slow".to_owned(),
        unit: MeterUnit::Packets,
        rate: 1,
        burst: 1,
    });
    let mut loader = Loader::default();
    let datapath = DatapathKey(1);
    loader.add_datapath(datapath, "s", DatapathKind::Switch);
    let flow = |actions: &str| LogicalFlow {
        datapaths: vec![datapath],
        direction: Direction::Ingress,
        table: 0,
        priority: 1,
        stage: "ls_in_acl".to_owned(),
        condition: "ip4".to_owned(),
        actions: actions.to_owned(),
        source: String::new(),
        cookie: 0,
    };
    // The same actions without a meter, added before and after, share no steps with the metered
    // ones.
    let metered = |op: &Op| matches!(op, Op::NamedMeter(_));
    for (text, limit, expected) in [
        ("reject { outport <-> inport; next; };", None, vec![]),
        ("reject { outport <-> inport; next; };", Some(&meter), vec![0]),
        ("reject { outport <-> inport; next; };", None, vec![]),
        ("reg0 = 1; clone { icmp4 { output; }; }; next;", Some(&meter), vec![]),
        ("reg0 = 1; next;", Some(&meter), vec![]),
    ] {
        let id = loader.add_metered_flow(&flow(text), limit.cloned()).unwrap();
        let program = loader.program();
        let mut flows = program.groups().flat_map(|group| {
            let table = TableId::logical(Direction::Ingress, 0).unwrap();
            program.rules(group, table).map(|(_, _, flow)| Arc::clone(flow)).collect::<Vec<_>>()
        });
        let ops = Arc::clone(&flows.next().unwrap().ops);
        let at: Vec<usize> = (0..ops.len()).filter(|at| metered(&ops[*at])).collect();
        assert_eq!(at, expected, "{text} {ops:?}");
        let inner = ops.iter().find_map(|op| match op {
            Op::Clone(inner) => Some(metered(&inner[0])),
            _ => None,
        });
        assert_ne!(inner, Some(false), "{text} {ops:?}");
        loader.remove_flow(id);
    }
}

#[test]
fn load_balancers_commit_to_a_backend() {
    let backend = |last, port| CtBackend { ip: [10, 0, 0, last].into(), port };
    becomes(
        "ct_lb_mark(backends=10.0.0.3:80,10.0.0.4; hash_fields=\"ip_src,tcp_dst\"; skip_snat);",
        &[Op::CtBalance(Box::new(CtBalance {
            zone: CtZone::Logical,
            backends: [backend(3, 80), backend(4, 0)].into(),
            hash_fields: [Field::Ip4Src, Field::TpDst].into(),
            exec: [load(bits(Field::CtMark, 1, 1), 1), load(bits(Field::CtMark, 2, 1), 1)].into(),
            next: parse_here("ct_next;").unwrap().stage.next(),
        }))],
    );
}

#[test]
fn hairpin_packets_are_looked_up_in_tables_of_their_own() {
    let (found, to) = (bits(Field::Reg10, 7, 1), bits(Field::Reg0, 6, 1));
    for (text, table) in [
        ("reg0[6] = chk_lb_hairpin();", TableId::HAIRPIN),
        ("reg0[6] = chk_lb_hairpin_reply();", TableId::HAIRPIN_REPLY),
    ] {
        becomes(text, &[load(found, 0), Op::Next(table), Op::Move { from: found, to }]);
    }
    becomes("ct_snat_to_vip;", &[Op::Next(TableId::HAIRPIN_SNAT)]);
}

/// The service of a step.
fn service(text: &str) -> Service {
    match &*ops(text) {
        [Op::Serve { to, service }] if *to == bits(Field::Reg0, 3, 1) => Service::clone(service),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn dhcp_options_become_those_of_a_server() {
    let mut expected = dhcp4::Server::new([10, 0, 0, 5].into());
    let hops = [[8, 8, 8, 8].into(), [9, 9, 9, 9].into()];
    let route = |destination: [u8; 4], prefix_len| dhcp4::Route {
        destination: destination.into(),
        prefix_len,
        gateway: [10, 0, 0, 1].into(),
    };
    expected.add_addresses(1, &[[255, 255, 255, 0].into()]);
    expected.add_addresses(6, &hops);
    expected.add(19, &[1]);
    expected.add(23, &[64]);
    expected.add(26, &[5, 120]);
    expected.add(51, &[0, 1, 81, 128]);
    expected.add(12, b"vm");
    expected.add_addresses(66, &[[10, 0, 0, 9].into()]);
    expected.add_routes(121, &[route([10, 1, 0, 0], 16), route([0; 4], 0)]);
    expected.add_domains(119, ["a.b", "c"]).unwrap();
    expected.set_next_server([10, 0, 0, 7].into());
    expected.set_boot_files(Some(b"x"), Some(b"y"));
    let text = "reg0[3] = put_dhcp_opts(netmask = 255.255.255.0, dns_server = {8.8.8.8, 9.9.9.9}, \
                ip_forward_enable = 1, default_ttl = 64, mtu = 1400, lease_time = 86400, \
                hostname = \"vm\", tftp_server = 10.0.0.9, classless_static_route = \
                {10.1.0.0/16, 10.0.0.1, 0.0.0.0/0, 10.0.0.1, 10.2.0.0/16}, \
                domain_search_list = \"a.b, c\", next_server = 10.0.0.7, bootfile_name = \"x\", \
                bootfile_name_alt = \"y\", offerip = 10.0.0.5);";
    assert_eq!(service(text), Service::Dhcp4(expected));
}

#[test]
fn dhcpv6_options_become_those_of_a_server() {
    let id = MacAddr([2, 0, 0, 0, 0, 1]);
    let dns = ["fd77::53".parse().unwrap(), "fd77::54".parse().unwrap()];
    let mut expected = dhcp6::Server::new(id, Some("fd77::5".parse().unwrap()));
    expected.add_addresses(23, &dns);
    expected.add_domains(24, ["a.b", "c"]).unwrap();
    expected.set_name("vm.b").unwrap();
    expected.set_boot_files(Some(b"tftp://a"), Some(b"tftp://b"));
    let text = "reg0[3] = put_dhcpv6_opts(ia_addr = fd77::5, bootfile_name = \"tftp://a\", \
                bootfile_name_alt = \"tftp://b\", dns_server = {fd77::53, fd77::54}, \
                domain_search = \"a.b,c\", fqdn = \"vm.b\", server_id = 02:00:00:00:00:01);";
    assert_eq!(service(text), Service::Dhcp6(expected));
    let stateless = "reg0[3] = put_dhcpv6_opts(server_id = 02:00:00:00:00:01);";
    assert_eq!(service(stateless), Service::Dhcp6(dhcp6::Server::new(id, None)));
    let text = "reg0[3] = put_dhcpv6_opts(server_id = 02:00:00:00:00:01, fqdn = \"a..b\");";
    becomes(text, &[Op::Unsupported("put_dhcpv6_opts with an invalid domain name")]);
}

#[test]
fn ra_options_become_those_of_a_router() {
    let router = |mode, preference, autonomous| {
        let mut router = Router::new(mode, preference);
        let prefix = NdPrefix {
            len: 64,
            on_link: true,
            autonomous,
            valid_lifetime_s: u32::MAX,
            preferred_lifetime_s: u32::MAX,
            prefix: "fd77::".parse().unwrap(),
        };
        for option in [
            NdOption::SourceLinkLayer(MacAddr([2, 0, 0, 0, 0, 1])),
            NdOption::Mtu(1400),
            NdOption::Prefix(prefix),
        ] {
            router.add(option).unwrap();
        }
        router
    };
    let options = "slla = 02:00:00:00:00:01, mtu = 1400, prefix = fd77::/64";
    let text = format!(
        "reg0[3] = put_nd_ra_opts(addr_mode = \"slaac\", router_preference = \"HIGH\", {options}, \
         rdnss = fd77::53, dnssl = \"a.b, c\", route_info = \"LOW-fd01::/48,bad,HIGH-fd02::/64\");"
    );
    let mut expected = router(AddressMode::Slaac, Preference::High, true);
    expected.add_dns_servers(&["fd77::53".parse().unwrap()]).unwrap();
    expected.add_domains(["a.b", "c"]).unwrap();
    expected.add_route(("fd01::".parse().unwrap(), 48), Preference::Low).unwrap();
    expected.add_route(("fd02::".parse().unwrap(), 64), Preference::High).unwrap();
    assert_eq!(service(&text), Service::Router(expected));
    for (mode, name, autonomous) in [
        (AddressMode::DhcpStateful, "dhcpv6_stateful", false),
        (AddressMode::DhcpStateless, "dhcpv6_stateless", true),
    ] {
        let text = format!("reg0[3] = put_nd_ra_opts(addr_mode = \"{name}\", {options});");
        let expected = router(mode, Preference::Medium, autonomous);
        assert_eq!(service(&text), Service::Router(expected));
    }
}

#[test]
fn dns_lookup_asks_the_names_of_the_datapath() {
    becomes("reg0[4] = dns_lookup();", &[Op::DnsLookup(bits(Field::Reg0, 4, 1))]);
}

#[test]
fn dhcp_options_that_cannot_be_sent_are_unsupported() {
    for (option, problem) in [
        ("domain_search_list = \"a..b\"", "put_dhcp_opts with an invalid domain name"),
        (
            &*format!("domain_name = \"{}\"", "x".repeat(1000)),
            "put_dhcp_opts with options that are too long",
        ),
    ] {
        let text = format!("reg0[0] = put_dhcp_opts(offerip = 1.2.3.4, {option});");
        becomes(&text, &[Op::Unsupported(problem)]);
    }
}

#[test]
fn values_of_connections_are_read() {
    let (field, state) = (Subfield::from, Subfield::new(Field::CtState, 0, 8).unwrap());
    let low = |width| Subfield::new(Field::Reg1, 0, width).unwrap();
    for (text, to, part) in [
        ("reg1 = ct_nw_dst();", field(Field::Reg1), CtOriginal::Ip4Dst),
        ("xxreg1 = ct_ip6_dst();", field(Field::Xxreg1), CtOriginal::Ip6Dst),
        ("reg1[0..15] = ct_tp_dst();", low(16), CtOriginal::PortDst),
        ("reg1[0..7] = ct_proto();", low(8), CtOriginal::Protocol),
    ] {
        becomes(text, &[Op::CtOriginal { to, part }]);
    }
    becomes("reg1[0..7] = ct_state_save();", &[Op::Move { from: state, to: low(8) }]);
    becomes("mac_cache_use;", &[LearnedOp::UseMacBinding.into()]);
}

#[test]
fn clients_are_remembered_as_actions_say() {
    let to = Subfield::bit(Field::Reg9, 6).unwrap();
    becomes("reg9[6] = chk_lb_aff();", &[LearnedOp::CheckAffinity { to }.into()]);
    let affinity = |port| Affinity { backend: [10, 0, 0, 3].into(), port, timeout_s: 60 };
    let rule = |service, port| {
        let vip = AffinityVip { ip: [10, 9, 9, 9].into(), service };
        Op::from(LearnedOp::LearnAffinity(AffinityRule { vip, affinity: affinity(port) }))
    };
    // The packet continues, although ovn-northd ends the flow here.
    becomes(
        "commit_lb_aff(vip = \"10.9.9.9\", backend = \"10.0.0.3\", timeout = 60); /* drop */",
        &[rule(None, 0), Op::Next(table(11))],
    );
    becomes(
        "commit_lb_aff(vip = \"10.9.9.9:80\", backend = \"10.0.0.3:8080\", proto = sctp, \
         timeout = 60); output;",
        &[rule(Some((132, 80)), 8080), Op::Output],
    );
    for (action, forward) in [("chk_ecmp_nh_mac", true), ("chk_ecmp_nh", false)] {
        let check = LearnedOp::CheckNextHop { to, forward };
        becomes(&format!("reg9[6] = {action}();"), &[check.into()]);
    }
    becomes("commit_ecmp_nh(ipv6 = true, proto = tcp);", &[LearnedOp::LearnNextHop.into()]);
}

#[test]
fn unsupported_actions_are_named() {
    for (text, name) in [
        ("ct_commit { push(ct_mark); };", "ct_commit"),
        ("ct_lb(backends=10.0.0.3; hash_fields=\"no_such_field\");", "hash_fields"),
        ("reg0[0] = put_dhcpv6_opts();", "put_dhcpv6_opts without server_id"),
        ("trigger_event(event = \"empty_lb_backends\");", "trigger_event"),
        ("bind_vport(\"a\", inport);", "bind_vport"),
        ("handle_dhcpv6_reply;", "handle_dhcpv6_reply"),
        ("handle_bfd_msg();", "handle_bfd_msg"),
        ("igmp;", "igmp"),
    ] {
        becomes(text, &[Op::Unsupported(name)]);
    }
}
