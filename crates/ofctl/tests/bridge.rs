//! Flows of a bridge: added, replaced, modified, deleted, printed, and executed.

use crate::bridge;
use flow::{Action, DropReason, EndpointId, Field, PortNo};
use ofctl::{Bridge, BridgeError, PortError, parse_packet_flow};
use pipeline::{BridgePort, BridgePortKind, translate};
use proptest::prelude::*;

fn after(files: &[&str]) -> String {
    let mut bridge = bridge();
    for file in files {
        bridge.apply(file, "test", 0).unwrap();
    }
    bridge.dump()
}

/// The datapath actions for a packet.
fn sent(bridge: &Bridge, packet: &str) -> Vec<Action> {
    let key = parse_packet_flow(packet, bridge.ports()).unwrap();
    translate(bridge.program(), &key, &(), &mut ()).actions
}

#[test]
fn a_flow_replaces_the_one_with_the_same_table_priority_and_match() {
    let dump = after(&[
        "priority=5,tcp actions=1\npriority=6,tcp actions=2\n",
        "priority=5,eth_type=0x800,nw_proto=6 actions=3\ntable=1,priority=5,tcp actions=4",
    ]);
    assert_eq!(
        dump,
        "table=0,priority=6,tcp actions=output:2\ntable=0,priority=5,tcp actions=output:3\n\
         table=1,priority=5,tcp actions=output:4\n"
    );
}

#[test]
fn flows_are_deleted_and_modified_as_the_filter_says() {
    const FLOWS: &str = "cookie=1,priority=1,ip actions=1\ncookie=2,priority=2,tcp actions=1\n\
                         cookie=3,table=1,arp actions=1\n";
    for (line, left) in [
        ("delete", ""),
        ("delete table=0", "3"),
        ("delete ip", "3"),
        ("delete tcp", "1 3"),
        ("delete_strict priority=1,ip", "2 3"),
        ("delete_strict ip", "1 2 3"),
        ("delete cookie=0x2/-1", "1 3"),
        ("flow delete cookie=1/1", "2"),
        ("modify ip actions=2", "1* 2* 3"),
        ("modify_strict priority=2,tcp actions=2", "1 2* 3"),
        ("modify udp actions=2", "1 2 3"),
    ] {
        let mut cookies: Vec<String> = after(&[FLOWS, line])
            .lines()
            .map(|flow| {
                let changed = if flow.ends_with("output:2") { "*" } else { "" };
                format!("{}{changed}", &flow["cookie=0x".len()..][..1])
            })
            .collect();
        cookies.sort();
        assert_eq!(cookies.join(" "), left, "{line}");
    }
}

#[test]
fn deleted_flows_decide_nothing() {
    let mut bridge = bridge();
    bridge.apply("priority=2,tcp actions=2\npriority=1 actions=3", "test", 0).unwrap();
    assert_eq!(sent(&bridge, "in_port=1,tcp"), [Action::Output(PortNo(2))]);
    bridge.apply("modify tcp actions=4", "test", 0).unwrap();
    assert_eq!(sent(&bridge, "in_port=1,tcp"), [Action::Output(PortNo(4))]);
    bridge.apply("delete tcp", "test", 0).unwrap();
    assert_eq!(sent(&bridge, "in_port=1,tcp"), [Action::Output(PortNo(3))]);
    bridge.apply("delete", "test", 0).unwrap();
    assert_eq!(sent(&bridge, "in_port=1,tcp"), [Action::Drop(DropReason::NoFlow)]);
}

#[test]
fn flows_expire_after_their_timeout() {
    let mut bridge = bridge();
    let flows = "hard_timeout=2,priority=1 actions=1\nidle_timeout=3,priority=2 actions=1\npriority=3 actions=1";
    bridge.apply(flows, "test", 10_000).unwrap();
    assert_eq!((bridge.expire(11_999), bridge.len()), (0, 3));
    assert_eq!((bridge.expire(12_000), bridge.len()), (1, 2));
    let idle = bridge.flows().find(|(spec, _)| spec.idle_timeout_s > 0).unwrap().1;
    idle.counters.add(1, 64);
    assert_eq!((bridge.expire(13_000), bridge.len()), (0, 2));
    assert_eq!((bridge.expire(15_999), bridge.len()), (0, 2));
    assert_eq!((bridge.expire(16_000), bridge.len()), (1, 1));
}

/// The bridge of the published study, with a flow-based tunnel as port 1.
fn study() -> Bridge {
    let endpoints = [("10.222.0.6".parse().unwrap(), EndpointId(6))].into_iter().collect();
    let tunnel = BridgePort { name: "tun".to_owned(), kind: BridgePortKind::Tunnel { endpoints } };
    let ports = [(PortNo(1), tunnel), (PortNo(2), Bridge::device("guest"))];
    Bridge::new("br0", ports).unwrap()
}

#[test]
fn rules_of_the_published_study_work_as_written() {
    let mut bridge = study();
    let flows = "in_port=2 action=set_field:10.222.0.6->tun_dst,output:1\n\
                 in_port=1,tun_dst=10.222.0.1 action=output:2\n";
    bridge.apply(flows, "study", 0).unwrap();
    match &sent(&bridge, "in_port=2,tcp,tp_dst=80")[..] {
        [Action::Encap { endpoint: EndpointId(6), key }] => assert_eq!(key.datapath.0, 0),
        other => panic!("{other:?}"),
    }
    assert_eq!(sent(&bridge, "in_port=1,tun_dst=10.222.0.1"), [Action::Output(PortNo(2))]);
    assert_eq!(sent(&bridge, "in_port=1,tun_dst=10.222.0.2"), [Action::Drop(DropReason::NoFlow)]);
    let flows = "delete\nin_port=2 action=push_vlan:0x88a8,mod_vlan_vid:1,output:1\n\
                 in_port=1,dl_vlan=1 action=pop_vlan,output:2\n";
    let mut bridge = crate::bridge();
    bridge.apply(flows, "study", 0).unwrap();
    match &sent(&bridge, "in_port=2,tcp,tp_dst=80")[..] {
        [Action::PushVlan(tag), Action::Output(PortNo(1))] => {
            assert_eq!((tag.tpid.0, tag.tci()), (0x88a8, 1));
        }
        other => panic!("{other:?}"),
    }
    let back = sent(&bridge, "in_port=1,dl_vlan=1,tcp");
    assert_eq!(back, [Action::PopVlan, Action::Output(PortNo(2))]);
}

#[test]
fn dec_ttl_leaves_packets_without_a_ttl_alone() {
    let mut bridge = bridge();
    bridge.apply("actions=dec_ttl,2", "test", 0).unwrap();
    assert_eq!(sent(&bridge, "in_port=1,arp"), [Action::Output(PortNo(2))]);
    assert_eq!(sent(&bridge, "in_port=1,ip,nw_ttl=1"), [Action::Drop(DropReason::TtlExpired)]);
    let set = Action::Set { field: Field::IpTtl, value: 63, mask: 0xff };
    assert_eq!(sent(&bridge, "in_port=1,ipv6,nw_ttl=64"), [set, Action::Output(PortNo(2))]);
}

#[test]
fn ports_are_refused_when_flows_could_not_name_them() {
    let mut bridge = bridge();
    for (number, name, error) in [
        (0, "x", PortError::Number(PortNo(0))),
        (0xff00, "x", PortError::Number(PortNo(0xff00))),
        (9, "p1", PortError::NameTaken("p1".to_owned())),
        (1, "x", PortError::NumberTaken(PortNo(1))),
        (9, "Normal", PortError::Name("Normal".to_owned())),
        (9, "7", PortError::Name("7".to_owned())),
        (9, "a\"b", PortError::Name("a\"b".to_owned())),
    ] {
        assert_eq!(bridge.add_port(PortNo(number), Bridge::device(name)), Err(error));
    }
    bridge.add_port(PortNo(9), Bridge::device("x, y")).unwrap();
    bridge.apply("in_port=\"x, y\" actions=\"x, y\"", "test", 0).unwrap();
    assert_eq!(bridge.dump(), "table=0,priority=32768,in_port=9 actions=output:9\n");
}

#[test]
fn a_hundred_thousand_flows_of_one_table_are_loaded_and_found() {
    const FLOWS: u32 = 100_000;
    let mut text = String::new();
    for number in 0..FLOWS {
        let [_, a, b, c] = number.to_be_bytes();
        text += &format!("priority={},tcp,nw_dst=10.{a}.{b}.{c},tp_dst=80 actions=2\n", number % 7);
    }
    let mut bridge = bridge();
    assert_eq!(bridge.apply(&text, "large", 0).unwrap(), FLOWS as usize);
    assert_eq!(bridge.len(), FLOWS as usize);
    let found = sent(&bridge, "in_port=1,tcp,nw_dst=10.1.134.159,tp_dst=80");
    assert_eq!(found, [Action::Output(PortNo(2))]);
    let missed = sent(&bridge, "in_port=1,tcp,nw_dst=10.1.134.160,tp_dst=80");
    assert_eq!(missed, [Action::Drop(DropReason::NoFlow)]);
}

#[test]
fn nothing_is_applied_when_there_could_be_too_many_flows() {
    let text = "delete\n".to_owned() + &"actions=1\n".repeat(Bridge::MAX_FLOWS + 1);
    let mut bridge = bridge();
    bridge.apply("actions=2", "test", 0).unwrap();
    let refused = bridge.apply(&text, "test", 0);
    assert_eq!(refused, Err(BridgeError::TooManyFlows(Bridge::MAX_FLOWS + 3)));
    assert_eq!(bridge.len(), 1);
}

fn line() -> impl Strategy<Value = String> {
    let head = prop_oneof![
        "",
        "table=[0-3],",
        "priority=[1-9],",
        "cookie=0x[1-9],table=1,",
        "idle_timeout=9,"
    ];
    let words = prop_oneof![
        Just("in_port=1".to_owned()),
        "ip,nw_src=10\\.0\\.0\\.[1-9]/(24|32|30|255\\.0\\.255\\.0)",
        "tcp,tp_dst=[1-9]0/0x(f0|ffff|7)",
        "dl_vlan=[1-9]",
        "ipv6,ipv6_dst=fd00::[1-9]/(64|128|ffff::f)",
        "reg[0-9]=[1-9]/0x[1-9]f,metadata=[1-9]",
        "tcp6,tcp_flags=(\\+syn-ack|syn\\|rst|0x3/0x7)",
        "dl_dst=0[13]:00:00:00:00:00/01:00:00:00:00:0f",
        "tun_id=[1-9],tun_metadata1=[1-9]/0xf",
    ];
    let action = prop_oneof![
        "[1-4]",
        "load:[1-9]->reg[0-9]\\[3\\.\\.9\\]",
        "set_field:0x[1-9]/0x[1-9]f->metadata",
        "move:reg[0-9]\\[0\\.\\.7\\]->eth_src\\[8\\.\\.15\\]",
        "push_vlan:0x88a8,set_field:[1-9]->vlan_vid",
        "clone\\(flood,mod_nw_tos:4\\)",
        "resubmit\\([1-4],[1-9]\\)",
        "controller\\(max_len=[1-9],id=3\\)",
        "check_pkt_larger\\([1-9]00\\)->reg1\\[3\\]",
    ];
    (head, words, prop::collection::vec(action, 1..5))
        .prop_map(|(head, words, actions)| format!("{head}{words} actions={}", actions.join(",")))
}

proptest! {
    #[test]
    fn dumped_flows_are_the_same_when_loaded(lines in prop::collection::vec(line(), 0..30)) {
        let mut first = bridge();
        first.apply(&lines.join("\n"), "first", 0).unwrap();
        let dump = first.dump();
        let mut second = bridge();
        second.apply(&dump, "second", 0).unwrap();
        prop_assert_eq!(second.dump(), dump);
        let specs = |bridge: &Bridge| {
            let mut specs: Vec<_> = bridge.flows().map(|(spec, _)| spec.clone()).collect();
            specs.sort_by_key(ToString::to_string);
            specs
        };
        prop_assert_eq!(specs(&second), specs(&first));
    }
}
