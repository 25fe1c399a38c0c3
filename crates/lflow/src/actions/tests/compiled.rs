//! The steps that actions compile to.

use super::parse_here;
use crate::actions::compile;
use crate::{Constant, Scope};
use flow::{AclVerdict, Field, LogPriority, LogRecord, Reply, Subfield};
use pipeline::{Direction, LearnedOp, Op, Operand, TableId};
use std::sync::Arc;

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

    fn port_group(&self, _: &str) -> Option<&[String]> {
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
    ] {
        becomes(
            &format!("{name} {{ output; }};"),
            &[Op::Reply { reply, ops: [Op::Output].into() }],
        );
    }
    becomes("reject { next; };", &[Op::Reject([Op::Next(table(11))].into())]);
    becomes("sctp_abort { next; };", &[Op::Unsupported("sctp_abort")]);
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
    becomes("ct_clear;", &[]);
    becomes("sample(probability=65535,collector_set=1,obs_domain=1,obs_point=$cookie);", &[]);
}

#[test]
fn unsupported_actions_are_named() {
    for (text, name) in [
        ("ct_next;", "ct_next"),
        ("ct_commit { ct_mark = 1; };", "ct_commit"),
        ("ct_commit(ct_mark=1);", "ct_commit"),
        ("ct_dnat;", "ct_dnat"),
        ("ct_snat(10.0.0.1);", "ct_snat"),
        ("ct_dnat_in_czone;", "ct_dnat_in_czone"),
        ("ct_snat_in_czone;", "ct_snat_in_czone"),
        ("ct_lb;", "ct_lb"),
        ("ct_lb_mark;", "ct_lb_mark"),
        ("ct_commit_nat;", "ct_commit_nat"),
        ("ct_snat_to_vip;", "ct_snat_to_vip"),
        ("reg0[0] = put_dhcp_opts(offerip = 1.2.3.4);", "put_dhcp_opts"),
        ("reg0[0] = put_dhcpv6_opts();", "put_dhcpv6_opts"),
        (
            "reg0[0] = put_nd_ra_opts(addr_mode = \"dhcpv6_stateful\", slla = ae:01:02:03:04:10);",
            "put_nd_ra_opts",
        ),
        ("reg0[0] = dns_lookup();", "dns_lookup"),
        ("reg0[0] = chk_lb_hairpin();", "chk_lb_hairpin"),
        ("reg0[0] = chk_lb_hairpin_reply();", "chk_lb_hairpin_reply"),
        ("reg0[0] = chk_ecmp_nh_mac();", "chk_ecmp_nh_mac"),
        ("reg0[0] = chk_ecmp_nh();", "chk_ecmp_nh"),
        ("reg0[0] = chk_lb_aff();", "chk_lb_aff"),
        ("commit_ecmp_nh(ipv6 = true, proto = tcp);", "commit_ecmp_nh"),
        ("commit_lb_aff(vip = \"1.2.3.4\", backend = \"1.2.3.5\", timeout = 1);", "commit_lb_aff"),
        ("trigger_event(event = \"empty_lb_backends\");", "trigger_event"),
        ("bind_vport(\"a\", inport);", "bind_vport"),
        ("handle_svc_check(inport);", "handle_svc_check"),
        ("handle_dhcpv6_reply;", "handle_dhcpv6_reply"),
        ("handle_bfd_msg();", "handle_bfd_msg"),
        ("igmp;", "igmp"),
    ] {
        becomes(text, &[Op::Unsupported(name)]);
    }
}
