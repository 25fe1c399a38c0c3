//! Programs that loop or are very large end in bounded time, with a named drop or the right result.

use flow::{Action, DatapathKey, DropReason, Field, FlowKey, PortKey, PortNo};
use lflow::{Loader, LogicalFlow};
use pipeline::{
    DatapathKind, Direction, LogicalPort, MulticastGroup, PortLocation, PortRole, PortSecurity,
    Program, TableId, translate,
};
use std::time::{Duration, Instant};

/// Far longer than any test in this file takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

const TCP_22: [(Field, u128); 4] =
    [(Field::InPort, 1), (Field::EthType, 0x0800), (Field::IpProto, 6), (Field::TpDst, 22)];

fn key(fields: &[(Field, u128)]) -> FlowKey {
    let mut key = FlowKey::default();
    fields.iter().for_each(|&(field, value)| key.set(field, value));
    key
}

fn dropped(program: &Program, fields: &[(Field, u128)]) -> Option<DropReason> {
    let start = Instant::now();
    let translation = translate(program, &key(fields), &(), &mut ());
    assert!(start.elapsed() < LONG);
    translation.dropped()
}

fn switch_with(flows: &[(u8, &str, &str)]) -> Loader {
    let mut loader = Loader::default();
    let datapath = DatapathKey(1);
    loader.add_datapath(datapath, "sw", DatapathKind::Switch);
    for number in 1..=3u16 {
        let location = PortLocation::Local(PortNo(number.into()));
        let port = PortKey::new(number).unwrap();
        let name = format!("vm{number}");
        let security = PortSecurity::default();
        loader.set_port(datapath, port, LogicalPort { name, location, security });
        loader.program_mut().set_port_role(PortNo(number.into()), PortRole::Vif { datapath, port });
    }
    for &(table, condition, actions) in flows {
        loader.add_flow(&logical(table, condition, actions)).unwrap();
    }
    loader
}

fn logical(table: u8, condition: &str, actions: &str) -> LogicalFlow {
    LogicalFlow {
        datapaths: vec![DatapathKey(1)],
        direction: if table < 64 { Direction::Ingress } else { Direction::Egress },
        table: table % 64,
        priority: 100,
        stage: "stage".into(),
        condition: condition.into(),
        actions: actions.into(),
        source: "test:1".into(),
        cookie: 0,
    }
}

#[test]
fn cyclic_next_ends_with_a_named_drop() {
    let program = switch_with(&[(0, "1", "next;"), (1, "1", "next(pipeline=ingress, table=0);")]);
    let reason = dropped(&program.program(), &TCP_22);
    assert_eq!(reason, Some(DropReason::TranslationSteps));
}

#[test]
fn patch_ports_that_lead_to_each_other_end_with_a_named_drop() {
    let mut loader = switch_with(&[
        (0, "1", "outport = \"loop\"; flags.loopback = 1; output;"),
        (64, "1", "output;"),
    ]);
    let datapath = DatapathKey(1);
    let (port, name) = (PortKey::new(9).unwrap(), "loop".to_owned());
    let location = PortLocation::Patch { datapath, port };
    loader.set_port(
        datapath,
        port,
        LogicalPort { name, location, security: PortSecurity::default() },
    );
    let reason = dropped(&loader.program(), &TCP_22);
    assert_eq!(reason, Some(DropReason::TranslationSteps));
}

#[test]
fn group_that_contains_itself_over_a_patch_port_ends_with_a_named_drop() {
    let mut loader = switch_with(&[
        (0, "1", "outport = \"all\"; flags.loopback = 1; output;"),
        (64, "1", "output;"),
    ]);
    let (datapath, port) = (DatapathKey(1), PortKey::new(9).unwrap());
    let location = PortLocation::Patch { datapath, port };
    let security = PortSecurity::default();
    loader.set_port(datapath, port, LogicalPort { name: "loop".into(), location, security });
    let members = [9, 9, 1].into_iter().filter_map(PortKey::new).collect();
    let group = MulticastGroup { name: "all".into(), members };
    loader.set_multicast(datapath, PortKey::FLOOD, group);
    assert!(matches!(
        dropped(&loader.program(), &TCP_22),
        Some(DropReason::TranslationDepth | DropReason::TranslationSteps)
    ));
}

#[test]
fn sets_of_ten_thousand_terms_are_compiled_and_right() {
    let addresses = |net: u32| {
        let terms = (0..10_000u32).map(|n| format!("10.{net}.{}.{}", n / 250, n % 250));
        terms.collect::<Vec<_>>().join(", ")
    };
    let both = format!("ip4.src == {{{}}} && ip4.dst == {{{}}}", addresses(1), addresses(2));
    let start = Instant::now();
    let loader = switch_with(&[(0, &both, "outport = \"vm2\"; output;"), (64, "1", "output;")]);
    let program = loader.program();
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
    let packet = |source: u128, destination: u128| {
        let fields = [
            (Field::InPort, 1),
            (Field::EthType, 0x0800),
            (Field::Ip4Src, source),
            (Field::Ip4Dst, destination),
        ];
        translate(&program, &key(&fields), &(), &mut ()).actions
    };
    assert_eq!(packet(0x0a01_27f9, 0x0a02_0000), [Action::Output(PortNo(2))]);
    assert_eq!(packet(0x0a01_27f9, 0x0a02_00fa), [Action::Drop(DropReason::NoFlow)]);
    assert_eq!(packet(0x0a02_0000, 0x0a02_0000), [Action::Drop(DropReason::NoFlow)]);
}

#[test]
fn contradictory_prerequisites_never_match() {
    let program =
        switch_with(&[(0, "tcp.dst == 22 && udp.dst == 22", "outport = \"vm2\"; output;")]);
    assert_eq!(dropped(&program.program(), &TCP_22), Some(DropReason::NoFlow));
}

#[test]
fn unsupported_action_is_a_drop_with_a_name() {
    let program = switch_with(&[(0, "ip", "igmp;")]);
    assert_eq!(dropped(&program.program(), &TCP_22), Some(DropReason::UnsupportedAction));
}

#[test]
fn tracked_packet_is_dropped_when_its_port_has_no_zone() {
    let program = switch_with(&[(0, "ip", "ct_next;")]);
    assert_eq!(dropped(&program.program(), &TCP_22), Some(DropReason::CtUnavailable));
}

#[test]
fn flow_that_does_not_parse_changes_nothing() {
    let mut loader = switch_with(&[(0, "1", "outport = \"vm2\"; output;"), (64, "1", "output;")]);
    let error = loader.add_flow(&logical(0, "ip4.src == 1.2.3.4 && tcp.dst = 80", "drop;"));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("test:1: match, column 31"), "{text}");
    assert_eq!(loader.flow_count(), 2);
    let actions = translate(&loader.program(), &key(&TCP_22), &(), &mut ()).actions;
    assert_eq!(actions, [Action::Output(PortNo(2))]);
}

#[test]
fn program_cloned_before_a_change_does_not_see_it() {
    let mut loader = switch_with(&[(64, "1", "output;")]);
    let id = loader.add_flow(&logical(0, "1", "outport = \"late\"; output;")).unwrap();
    let run = |program: &Program| translate(program, &key(&TCP_22), &(), &mut ()).actions;
    let before = loader.program();
    assert_eq!(run(&before), [Action::Drop(DropReason::NoSuchPort)]);
    // Only the flows that mention the name are recompiled.
    let port = LogicalPort {
        name: "late".into(),
        location: PortLocation::Local(PortNo(7)),
        security: PortSecurity::default(),
    };
    loader.set_port(DatapathKey(1), PortKey::new(7).unwrap(), port);
    let with_port = loader.program();
    assert_eq!(run(&with_port), [Action::Output(PortNo(7))]);
    assert!(loader.remove_flow(id));
    assert_eq!(run(&loader.program()), [Action::Drop(DropReason::NoFlow)]);
    assert_eq!(run(&before), [Action::Drop(DropReason::NoSuchPort)]);
    assert_eq!(run(&with_port), [Action::Output(PortNo(7))]);
}

#[test]
fn packet_that_is_only_logged_or_queued_is_counted_as_dropped() {
    for actions in [
        "log(verdict=drop);",
        "set_queue(1); next;",
        "clone { ip.ttl--; output; }; set_queue(1); next;",
    ] {
        let program = switch_with(&[(0, "1", actions)]).program();
        let translation = translate(&program, &key(&TCP_22), &(), &mut ());
        assert!(
            matches!(translation.actions.last(), Some(Action::Drop(_))),
            "{actions} {:?}",
            translation.actions
        );
        assert!(translation.dropped().is_some(), "{actions}");
    }
}

#[test]
fn broadcast_reaches_all_ports_of_a_large_switch() {
    let mut loader = switch_with(&[
        (0, "1", "outport = \"all\"; output;"),
        (64, "1", "next;"),
        (65, "1", "output;"),
    ]);
    let members: Vec<PortKey> = (1..=2000).filter_map(PortKey::new).collect();
    for &port in &members {
        let location = PortLocation::Local(PortNo(port.value().into()));
        let name = format!("vm{port}");
        let security = PortSecurity::default();
        loader.set_port(DatapathKey(1), port, LogicalPort { name, location, security });
    }
    let group = MulticastGroup { name: "all".into(), members };
    loader.set_multicast(DatapathKey(1), PortKey::FLOOD, group);
    let program = loader.program();
    let translation = translate(&program, &key(&TCP_22), &(), &mut ());
    // All ports except the ingress port.
    assert_eq!(translation.actions.len(), 1999);
}

#[test]
fn results_are_written_to_no_header_that_the_packet_lacks() {
    let program = switch_with(&[
        (0, "ip", "tcp.dst[0] = check_pkt_larger(100); next;"),
        (1, "tcp.dst == 1", "drop;"),
        (64, "1", "output;"),
    ]);
    let later =
        [(Field::InPort, 1), (Field::EthType, 0x0800), (Field::IpProto, 6), (Field::IpFrag, 3)];
    assert_eq!(dropped(&program.program(), &later), Some(DropReason::NoFlow));
    let untagged = switch_with(&[
        (0, "1", "vlan.tci[12] = check_pkt_larger(100); next;"),
        (1, "vlan.present", "drop;"),
    ]);
    assert_eq!(dropped(&untagged.program(), &TCP_22), Some(DropReason::NoFlow));
}

#[test]
fn port_keeps_its_name_when_a_group_of_that_name_goes() {
    let mut loader = switch_with(&[(0, "1", "outport = \"vm2\"; output;"), (64, "1", "output;")]);
    let run = |loader: &Loader| translate(&loader.program(), &key(&TCP_22), &(), &mut ()).actions;
    let members = vec![PortKey::new(3).unwrap()];
    let group = MulticastGroup { name: "vm2".into(), members };
    loader.set_multicast(DatapathKey(1), PortKey::FLOOD, group);
    assert_eq!(run(&loader), [Action::Output(PortNo(2))]);
    loader.remove_port(DatapathKey(1), PortKey::new(2).unwrap());
    assert_eq!(run(&loader), [Action::Output(PortNo(3))]);
    loader.remove_multicast(DatapathKey(1), PortKey::FLOOD);
    assert_eq!(run(&loader), [Action::Drop(DropReason::NoSuchPort)]);
}

/// The name has another key in each datapath, so the flow is compiled once for each. It still
/// counts as one flow.
#[test]
fn flow_of_several_datapaths_counts_for_all_of_them() {
    let mut loader = switch_with(&[]);
    let other = DatapathKey(2);
    loader.add_datapath(other, "other", DatapathKind::Switch);
    let (name, security) = ("vm2".to_owned(), PortSecurity::default());
    let port = LogicalPort { name, location: PortLocation::Unbound, security };
    loader.set_port(other, PortKey::new(7).unwrap(), port);
    let mut flow = logical(0, "1", "outport = \"vm2\"; output;");
    flow.datapaths.push(other);
    loader.add_flow(&flow).unwrap();
    let program = loader.program();
    let table = TableId::FIRST;
    let flows: Vec<_> =
        program.groups().flat_map(|group| program.rules(group, table)).map(|rule| rule.2).collect();
    let [one, two] = &flows[..] else { panic!("{flows:?}") };
    assert_ne!(one.ops, two.ops);
    one.counters.add(1, 60);
    two.counters.add(2, 200);
    assert_eq!((one.counters.get(), two.counters.get()), ((3, 260), (3, 260)));
}

#[test]
fn groups_of_datapaths_are_released() {
    let mut loader = switch_with(&[(0, "1", "outport = \"vm2\"; output;"), (64, "1", "output;")]);
    let before = loader.program();
    let count = |program: &Program| {
        let own = program.datapath(DatapathKey(1)).map_or(0, |datapath| datapath.groups.len());
        (program.groups().count(), own)
    };
    for other in 2..50 {
        loader.add_datapath(DatapathKey(other), "other", DatapathKind::Switch);
        let mut shared = logical(5, "ip", "next;");
        shared.datapaths.push(DatapathKey(other));
        let id = loader.add_flow(&shared).unwrap();
        assert_eq!(count(&loader.program()).1, count(&before).1 + 1);
        assert!(loader.remove_flow(id));
        loader.remove_datapath(DatapathKey(other));
    }
    assert_eq!(count(&loader.program()).1, count(&before).1);
    assert!(count(&loader.program()).0 <= count(&before).0 + 1);
    assert_eq!(loader.program().datapaths().count(), 1);
}
