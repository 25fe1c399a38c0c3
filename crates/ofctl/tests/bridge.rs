//! Flows of a bridge: added, replaced, modified, deleted, printed, and executed.

use crate::bridge;
use flow::{Action, DatapathKey, DropReason, EndpointId, Field, PortNo};
use ofctl::{Bridge, BridgeError, PortError, Ports, parse_packet_flow};
use pipeline::{BridgePort, BridgePortKind, CtZones, LearnedTables, Program, ZoneUser, translate};
use proptest::prelude::*;
use std::sync::Arc;

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
    let kind = BridgePortKind::Tunnel { endpoints };
    let tunnel = BridgePort { name: "tun".to_owned(), number: PortNo(1), kind };
    let ports = [(PortNo(1), tunnel), Bridge::device(PortNo(2), "guest")];
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
fn packet_may_return_by_its_port_when_a_flow_sets_another_one() {
    let mut bridge = bridge();
    let flows = "in_port=1,arp actions=move:NXM_OF_IN_PORT[]->reg3[0..15],load:0->NXM_OF_IN_PORT[],\
                 output:reg3[0..15]\n\
                 in_port=1,ip actions=set_field:2->in_port,output:1,output:2,resubmit(,1)\n\
                 in_port=1,ipv6 actions=load:9->in_port[],normal\n\
                 in_port=2 actions=output:2\n\
                 table=1,in_port=2 actions=in_port\n\
                 table=1 actions=drop";
    bridge.apply(flows, "test", 0).unwrap();
    assert_eq!(sent(&bridge, "in_port=1,arp"), [Action::Output(PortNo(1))]);
    // Port 2 is now the ingress port: only `in_port` outputs to it.
    let both = [1, 2].map(|port| Action::Output(PortNo(port)));
    assert_eq!(sent(&bridge, "in_port=1,ip"), both);
    let unknown = [Action::Drop(DropReason::NoSuchPort)];
    assert_eq!(sent(&bridge, "in_port=1,ipv6"), unknown);
    assert_eq!(sent(&bridge, "in_port=2,ip"), [Action::Drop(DropReason::Hairpin)]);
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
        let (number, port) = Bridge::device(PortNo(number), name);
        assert_eq!(bridge.add_port(number, port), Err(error));
    }
    let (number, port) = Bridge::device(PortNo(9), "x, y");
    bridge.add_port(number, port).unwrap();
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
    let text = "actions=1\n".repeat(Bridge::MAX_FLOWS);
    let mut bridge = bridge();
    bridge.apply("actions=2", "test", 0).unwrap();
    let refused = bridge.apply(&text, "test", 0);
    assert_eq!(refused, Err(BridgeError::TooManyFlows(Bridge::MAX_FLOWS + 1)));
    let refused = bridge.apply(&(text + "delete\n"), "test", 0);
    assert_eq!(refused, Err(BridgeError::TooManyFlows(Bridge::MAX_FLOWS + 1)));
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

/// Two bridges in one program, whose flows use the same port numbers and zones. Ports 1 and 2 of
/// the second one are the datapath ports 21 and 22.
fn two_bridges(flows: &str) -> (Program, [Bridge; 2]) {
    let mut program = Program::default();
    let bridges = [(5, 10), (6, 20)].map(|(key, base)| {
        let port = |number: u32| {
            let (name, kind) = (format!("p{number}"), BridgePortKind::Device);
            (PortNo(number), BridgePort { name, number: PortNo(base + number), kind })
        };
        let mut bridge = Bridge::new(&format!("br{key}"), [1, 2].map(port)).unwrap();
        bridge.apply(flows, "flows", 0).unwrap();
        bridge.install(&mut program, DatapathKey(key));
        bridge
    });
    program.allocate_zones(&CtZones::default());
    (program, bridges)
}

fn actions_from(program: &Program, in_port: u32, learned: &LearnedTables) -> Vec<Action> {
    let mut key = parse_packet_flow("icmp,nw_src=10.0.0.1", &Ports::new()).unwrap();
    key.set(Field::InPort, in_port.into());
    translate(program, &key, learned, &mut ()).actions
}

#[test]
fn bridges_of_one_program_share_neither_ports_nor_zones() {
    let flows = "in_port=1 actions=output:2,output:3\nin_port=2,ip actions=ct(commit,zone=5),flood";
    let (program, _) = two_bridges(flows);
    let learned = LearnedTables::default();
    for base in [10, 20] {
        let to = |number: u32| Action::Output(PortNo(base + number));
        assert_eq!(actions_from(&program, base + 1, &learned), [to(2)]);
        match &actions_from(&program, base + 2, &learned)[..] {
            [Action::Ct(_), output] => assert_eq!(*output, to(1)),
            other => panic!("{other:?}"),
        }
    }
    let zone = |in_port| match &actions_from(&program, in_port, &learned)[0] {
        Action::Ct(action) => action.zone,
        other => panic!("{other:?}"),
    };
    assert!(zone(12) != zone(22) && zone(12) != 0 && zone(22) != 0);
    let user = ZoneUser::Bridge { datapath: "br6".to_owned(), zone: 5 };
    assert_eq!(program.zones().user(zone(22)), Some(&user));
    assert_eq!(actions_from(&program, 1, &learned), [Action::Drop(DropReason::NoSuchPort)]);
}

#[test]
fn packet_is_tracked_anew_when_a_flow_has_changed_its_addresses_or_ports() {
    let flows = "in_port=1,tcp actions=ct(commit,zone=5),ct(commit,force,zone=5),\
                 set_field:10.0.0.9->nw_dst,ct(commit,zone=5),set_field:80->tp_dst,\
                 ct(commit,zone=5),set_field:00:00:00:00:00:07->eth_dst,ct(commit,zone=5),2";
    let (program, _) = two_bridges(flows);
    let mut key = parse_packet_flow("tcp,nw_src=10.0.0.1,tp_dst=7", &Ports::new()).unwrap();
    key.set(Field::InPort, 11);
    let actions = translate(&program, &key, &LearnedTables::default(), &mut ()).actions;
    let tracked = actions.iter().filter_map(|action| match action {
        Action::Ct(action) => Some((action.fresh, action.commit?.force)),
        _ => None,
    });
    let expected = [(false, false), (false, true), (true, false), (true, false), (false, false)];
    assert_eq!(tracked.collect::<Vec<_>>(), expected);
}

#[test]
fn zones_read_from_a_field_are_those_that_flows_load_into_it() {
    let flows = "in_port=1,ip actions=load:7->reg0[0..15],resubmit(,1)\n\
                 in_port=2,ip actions=load:3->reg0[0],load:7->reg1[],resubmit(,1)\n\
                 table=1,ip actions=ct(commit,zone=reg0[0..15])";
    let flows = flows.replace("load:3->reg0[0]", "move:ip_src[0..15]->reg0[0..15]");
    let (mut program, [mut bridge, _]) = two_bridges(&flows);
    let learned = LearnedTables::default();
    let zones = |program: &Program| -> Vec<String> {
        let users = program.zones().iter().map(|(user, _)| format!("{user:?}"));
        users.filter(|user| user.contains("br5")).collect()
    };
    assert_eq!(zones(&program).len(), 2, "0 and 7: {:?}", zones(&program));
    assert!(matches!(actions_from(&program, 11, &learned)[..], [Action::Ct(_), ..]));
    // The zone is read from the end of the address, 0.1, and no flow loads this constant.
    let dropped = [Action::Drop(DropReason::CtUnavailable)];
    assert_eq!(actions_from(&program, 12, &learned), dropped);

    bridge.apply_line("add", "table=9 actions=set_field:1->reg0", "test", 0).unwrap();
    bridge.update(&mut program, DatapathKey(5));
    let before = Arc::clone(program.zones());
    program.allocate_zones(&before);
    assert!(matches!(actions_from(&program, 12, &learned)[..], [Action::Ct(_), ..]));
    // The zones stay when the flows are deleted, so connections survive.
    bridge.apply("delete", "test", 0).unwrap();
    bridge.update(&mut program, DatapathKey(5));
    let before = Arc::clone(program.zones());
    program.allocate_zones(&before);
    assert_eq!((zones(&program).len(), before.freed(program.zones())), (3, Vec::new()));
}

#[test]
fn zones_are_limited() {
    let mut bridge = bridge();
    let flows = |zones: std::ops::Range<usize>| -> String {
        zones.map(|zone| format!("tp_dst={zone},tcp actions=ct(zone={zone})\n")).collect()
    };
    let most = Bridge::MAX_ZONES;
    let error = bridge.apply(&flows(0..most + 1), "test", 0).unwrap_err();
    assert_eq!((error, bridge.len()), (BridgeError::TooManyZones(most + 1), 0));
    bridge.apply(&flows(0..most), "test", 0).unwrap();
    // Zones that no flow uses any more do not count.
    bridge.apply("delete", "test", 0).unwrap();
    bridge.apply(&flows(most..most + 10), "test", 0).unwrap();
    assert_eq!(bridge.len(), 10);
}

#[test]
fn equal_flows_keep_their_counters_when_all_are_replaced() {
    let mut old = bridge();
    let flows = "priority=1 actions=1\npriority=2 actions=2\npriority=3,idle_timeout=9 actions=3\n";
    old.apply(flows, "test", 0).unwrap();
    old.flows().for_each(|(_, flow)| flow.counters.add(5, 500));
    let mut bridge = bridge();
    bridge.adopt_flows(&old);
    assert!(bridge.has_timeouts());
    let new = "priority=1 actions=1\npriority=2 actions=1\npriority=4 actions=1\n\
               priority=4 actions=4\n";
    assert_eq!(bridge.replace(new, "test", 1500), Ok((2, 1)));
    let all = bridge.selector("", false).unwrap();
    let line = |age: &str, packets: u64, rest: &str| {
        let bytes = packets * 100;
        format!(
            " cookie=0x0, duration={age}s, table=0, n_packets={packets}, n_bytes={bytes}, {rest}"
        )
    };
    assert_eq!(
        bridge.dump_flows(&all, true, 2500),
        [
            line("1", 0, "priority=4 actions=output:4"),
            line("1", 0, "priority=2 actions=output:1"),
            line("2.500", 5, "priority=1 actions=output:1"),
        ]
    );
    assert!(!bridge.has_timeouts());
    assert_eq!(sent(&bridge, "in_port=1"), [Action::Output(PortNo(4))]);
    // A modified flow keeps its counters. Packets that old megaflows report later are added.
    let before = Arc::clone(bridge.flows().next().unwrap().1);
    bridge.apply("modify actions=2", "test", 3000).unwrap();
    before.counters.add(1, 100);
    let newest = bridge.flows().next().unwrap().1.counters.get();
    assert_eq!(newest, (6, 600));
}
