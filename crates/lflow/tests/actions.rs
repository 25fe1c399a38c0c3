//! The effects of logical flow actions on packets.

use flow::{
    AclVerdict, Action, DatapathKey, DropReason, Field, FlowKey, LogPriority, LogRecord, PortKey,
    PortNo, Reply,
};
use lflow::{Loader, LogicalFlow};
use pipeline::{
    Affinity, CtZones, DatapathKind, Direction, Event, FdbPort, IngressPort, LearnEvent,
    LearnedTables, LogicalPort, Observer, PortLocation, PortRole, Program, translate,
};
use services::Service;
use services::dns::{Records, Resolver};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SWITCH: DatapathKey = DatapathKey(1);

/// A switch with the local ports `a` and `b`. Its first ingress table executes `actions`, the
/// second outputs to `outport`, and its egress pipeline outputs everything.
fn program(actions: &str) -> Program {
    loader(actions).program()
}

fn loader(actions: &str) -> Loader {
    let mut loader = Loader::default();
    loader.add_datapath(SWITCH, "sw", DatapathKind::Switch);
    for (number, name) in [(1, "a"), (2, "b")] {
        let (key, port) = (PortKey::new(number).unwrap(), PortNo(number.into()));
        let security = Default::default();
        let location = PortLocation::Local(port);
        loader.set_port(SWITCH, key, LogicalPort { name: name.to_owned(), location, security });
        loader.program_mut().set_port_role(port, PortRole::Vif { datapath: SWITCH, port: key });
    }
    let flows = [
        (Direction::Ingress, 0, actions),
        (Direction::Ingress, 1, "output;"),
        (Direction::Egress, 0, "output;"),
    ];
    for (direction, table, actions) in flows {
        add_flow(&mut loader, direction, table, ("1", actions));
    }
    loader
}

/// Adds a flow of the switch. A flow for all packets has a lower priority than others.
fn add_flow(
    loader: &mut Loader,
    direction: Direction,
    table: u8,
    (condition, actions): (&str, &str),
) {
    let flow = LogicalFlow {
        datapaths: vec![SWITCH],
        direction,
        table,
        priority: (condition != "1").into(),
        stage: String::new(),
        condition: condition.to_owned(),
        actions: actions.to_owned(),
        source: String::new(),
        cookie: 0,
    };
    loader.add_flow(&flow).unwrap_or_else(|error| panic!("{actions}: {error}"));
}

/// A packet from `a` with this Ethernet type and IP protocol.
fn packet(ethertype: u128, protocol: u128) -> FlowKey {
    let mut key = FlowKey::default();
    for (field, value) in [
        (Field::InPort, 1),
        (Field::EthSrc, 0xa),
        (Field::EthDst, 0xb),
        (Field::EthType, ethertype),
        (Field::IpProto, protocol),
        (Field::IpTtl, 64),
        (Field::TpSrc, 1000),
        (Field::TpDst, 80),
    ] {
        key.set(field, value);
    }
    let (src, dst) = match ethertype {
        0x86dd => (Field::Ip6Src, Field::Ip6Dst),
        _ => (Field::Ip4Src, Field::Ip4Dst),
    };
    key.set(src, 0x0a00_000a);
    key.set(dst, 0x0a00_000b);
    key
}

fn tcp() -> FlowKey {
    packet(0x0800, 6)
}

/// The datapath actions for a packet.
fn done(actions: &str, key: &FlowKey) -> Vec<Action> {
    translate(&program(actions), key, &(), &mut ()).actions
}

fn set(field: Field, value: u128) -> Action {
    Action::Set { field, value, mask: field.all_ones() }
}

const TO_A: Action = Action::Output(PortNo(1));
const TO_B: Action = Action::Output(PortNo(2));

#[test]
fn packets_are_output_as_actions_say() {
    let dropped = |reason| vec![Action::Drop(reason)];
    for (actions, expected) in [
        ("outport = \"b\"; output;", vec![TO_B]),
        ("outport = \"b\"; next;", vec![TO_B]),
        ("outport = \"b\"; next(1);", vec![TO_B]),
        ("outport = \"b\"; next(pipeline=egress, table=0);", vec![TO_B]),
        // The end of an egress pipeline does not compare the port with the ingress port.
        ("outport = \"a\"; next(pipeline=egress, table=0);", vec![TO_A]),
        ("outport = \"a\"; output;", dropped(DropReason::Hairpin)),
        ("outport = \"a\"; flags.loopback = 1; output;", vec![TO_A]),
        ("outport = \"a\"; inport = \"\"; output;", vec![TO_A]),
        ("outport = \"nowhere\"; output;", dropped(DropReason::NoSuchPort)),
        ("drop;", dropped(DropReason::FlowDrop)),
        ("ct_clear; outport = \"b\"; output;", vec![TO_B]),
        // The program has no zones.
        ("ct_next; outport = \"b\"; output;", dropped(DropReason::CtUnavailable)),
        ("igmp; output;", dropped(DropReason::UnsupportedAction)),
        ("sample(probability=1); outport = \"b\"; output;", vec![TO_B]),
        ("fwd_group(childports=\"b\", \"b\");", vec![TO_B]),
        ("reg0[0..15] = select(2, 2); output;", dropped(DropReason::NoSuchPort)),
        ("outport = \"b\"; reg0[0..15] = select(2, 2);", vec![TO_B]),
    ] {
        assert_eq!(done(actions, &tcp()), expected, "{actions}");
    }
}

#[test]
fn headers_are_changed_as_actions_say() {
    for (actions, expected) in [
        ("ip.ttl--;", vec![set(Field::IpTtl, 63)]),
        ("tcp.dst = 81;", vec![set(Field::TpDst, 81)]),
        ("eth.dst <-> eth.src;", vec![set(Field::EthDst, 0xa), set(Field::EthSrc, 0xb)]),
        ("reg0 = ip4.src; ip4.dst = reg0;", vec![set(Field::Ip4Dst, 0x0a00_000a)]),
        ("push(eth.src); pop(eth.dst);", vec![set(Field::EthDst, 0xa)]),
        ("reg0 = 5; push(reg0); reg0 = 6; pop(ip.ttl);", vec![set(Field::IpTtl, 5)]),
        ("set_queue(7);", vec![Action::SetQueue(7)]),
        ("set_meter(8);", vec![Action::Meter { rate_kbps: 8, burst_kb: 8 }]),
        ("reg0[0] = check_in_port_sec(); ip.ttl = reg0[0..7];", vec![set(Field::IpTtl, 0)]),
        ("get_arp(inport, ip4.dst);", vec![set(Field::EthDst, 0)]),
    ] {
        let expected = [expected, vec![TO_B]].concat();
        assert_eq!(
            done(&format!("{actions} outport = \"b\"; output;"), &tcp()),
            expected,
            "{actions}"
        );
    }
}

#[test]
fn flows_apply_to_packets_that_meet_their_prerequisites() {
    let actions = "udp.dst = 53; outport = \"b\"; output;";
    assert_eq!(done(actions, &tcp()), [Action::Drop(DropReason::NoFlow)]);
    assert_eq!(done(actions, &packet(0x0800, 17)), [set(Field::TpDst, 53), TO_B]);
    assert_eq!(
        done("outport = \"b\"; ip.ttl--; output;", &packet(0x0806, 0)),
        [Action::Drop(DropReason::NoFlow)]
    );
}

#[test]
fn copies_and_answers_leave_the_packet_as_it_was() {
    let actions = "clone { ip.ttl = 1; outport = \"b\"; output; }; outport = \"b\"; output;";
    let copy = Action::Clone([set(Field::IpTtl, 1), TO_B].into());
    assert_eq!(done(actions, &tcp()), [copy, TO_B]);

    let actions =
        "arp { arp.spa = 10.0.0.1; outport = \"b\"; output; }; log(name=\"n\", verdict=allow);";
    let request = Action::Reply {
        reply: Reply::Arp,
        actions: [set(Field::ArpSpa, 0x0a00_0001), TO_B].into(),
    };
    let record = LogRecord {
        name: "n".to_owned(),
        priority: LogPriority::Info,
        verdict: AclVerdict::Allow,
        is_from_lport: true,
        meter: None,
    };
    assert_eq!(done(actions, &tcp()), [request, Action::Log(Arc::new(record))]);
}

#[test]
fn rejections_go_back_to_where_packets_came_from() {
    let actions = "reject { outport <-> inport; outport = \"a\"; inport = \"\"; output; };";
    let (v4, v6) = ((Field::Ip4Src, Field::Ip4Dst), (Field::Ip6Src, Field::Ip6Dst));
    for (ethertype, protocol, reply, (src, dst), code) in [
        (0x0800, 6, Reply::TcpReset, v4, None),
        (0x86dd, 6, Reply::TcpReset, v6, None),
        (0x0800, 17, Reply::Icmp4, v4, Some(3)),
        (0x86dd, 17, Reply::Icmp6, v6, Some(4)),
        (0x0800, 132, Reply::SctpAbort, v4, None),
        (0x86dd, 132, Reply::SctpAbort, v6, None),
        (0x0800, 33, Reply::Icmp4, v4, None),
        (0x86dd, 33, Reply::Icmp6, v6, None),
    ] {
        let done = done(actions, &packet(ethertype, protocol));
        let [Action::Reply { reply: made, actions }] = &*done else { panic!("{done:?}") };
        let mut expected = vec![
            set(Field::EthDst, 0xa),
            set(Field::EthSrc, 0xb),
            set(src, 0x0a00_000b),
            set(dst, 0x0a00_000a),
        ];
        expected.extend(code.map(|code| set(Field::IcmpCode, code)));
        expected.push(TO_A);
        assert_eq!((*made, &**actions), (reply, &*expected), "{ethertype:#x} {protocol}");
    }
    assert_eq!(done(actions, &packet(0x0806, 0)), [Action::Drop(DropReason::NotApplicable)]);
}

#[test]
fn rejection_reads_ports_only_when_it_is_asked_about_them() {
    let ports = |ask: &str| {
        let actions = format!("tcp_reset {{ {ask} outport = \"a\"; inport = \"\"; output; }};");
        let program = program(&actions);
        let mask = translate(&program, &tcp(), &(), &mut ()).mask;
        [Field::TpSrc, Field::TpDst, Field::TcpFlags].map(|field| mask.get(field))
    };
    assert_eq!(ports(""), [0, 0, 0]);
    // The reset has the ports exchanged, so `tcp.dst` is the source port of the packet.
    assert_eq!(ports("reg0[0..15] = tcp.dst;"), [0xffff, 0, 0]);
    assert_eq!(ports("tcp.dst <-> tcp.src;"), [0xffff, 0xffff, 0]);
}

#[test]
fn senders_of_too_long_packets_get_an_icmp_error() {
    let actions = "reg0[0] = check_pkt_larger(1400); \
                   icmp4_error { icmp4.code = 4; icmp4.frag_mtu = 1386; \
                   outport = \"b\"; output; };";
    let done = done(actions, &tcp());
    let reply = Action::Reply {
        reply: Reply::Icmp4,
        actions: [Action::SetIcmpMtu(1386), set(Field::IcmpCode, 4), TO_B].into(),
    };
    // Both branches are equal because no flow reads the bit.
    assert_eq!(done, [reply]);
}

#[test]
fn packet_is_dropped_with_a_reason_when_a_branch_only_logs_it() {
    let mut loader = loader("reg0[0] = check_pkt_larger(1400); next(pipeline=ingress, table=5);");
    add_flow(&mut loader, Direction::Ingress, 5, ("1", "outport = \"b\"; output;"));
    let log = ("reg0[0] == 0", "ip.ttl = 7; log(name=\"n\", verdict=drop); ip.ttl = 8;");
    add_flow(&mut loader, Direction::Ingress, 5, log);
    let program = loader.program();
    let actions = translate(&program, &tcp(), &(), &mut ()).actions;
    let [Action::CheckLength { larger, otherwise, .. }] = &*actions else { panic!("{actions:?}") };
    assert_eq!(**larger, [TO_B]);
    let [ref changed, Action::Log(_), Action::Drop(DropReason::FlowDrop)] = **otherwise else {
        panic!("{otherwise:?}")
    };
    assert_eq!(*changed, set(Field::IpTtl, 7), "the record has this value");
}

#[test]
fn answer_is_dropped_with_a_reason_when_it_is_only_logged() {
    let log = "icmp4 { icmp4.type = 11; log(name=\"n\", verdict=drop); };";
    let [Action::Reply { ref actions, .. }] = *done(log, &tcp()) else { panic!("no answer") };
    let [ref changed, Action::Log(_), Action::Drop(DropReason::FlowDrop)] = **actions else {
        panic!("{actions:?}")
    };
    assert_eq!(*changed, set(Field::IcmpType, 11));
}

#[test]
fn stations_are_learned_as_actions_say() {
    let program = program("reg0[0] = lookup_fdb(inport, eth.src); put_fdb(inport, eth.src);");
    let translation = translate(&program, &tcp(), &(), &mut ());
    let location = FdbPort::Logical(PortKey::new(1).unwrap());
    assert!(
        matches!(*translation.learn_events, [LearnEvent::Fdb(key, learned)]
            if key.datapath == SWITCH && learned == location),
        "{:?}",
        translation.learn_events
    );
}

#[test]
fn only_answers_of_dns_are_marked_as_those_of_the_controller() {
    let mut program = program(
        "reg0[4] = dns_lookup(); udp.dst[0] = flags.from_ctrl; udp.dst[1] = reg0[4]; \
         outport = \"b\"; output;",
    );
    let marked = |value| Action::Set { field: Field::TpDst, value, mask: 3 };
    // A guest chooses its source port, so an unanswered query from port 53 must not be marked as an
    // answer.
    let question = packet(0x0800, 17);
    let without_names = translate(&program, &question, &(), &mut ()).actions;
    assert_eq!(without_names, [marked(0), TO_B]);
    let names = Service::Dns(Resolver([Arc::new(Records::default())].into()));
    program.datapath_mut(SWITCH).unwrap().dns = Some(Arc::new(names));
    let actions = translate(&program, &question, &(), &mut ()).actions;
    let [Action::Serve { answered, otherwise, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(**otherwise, [marked(0), TO_B]);
    assert_eq!(*answered[0], [marked(3), TO_B]);
}

#[test]
fn tracker_sees_an_answer_as_another_packet() {
    let fresh = |actions: &[Action]| match actions {
        [.., Action::Ct(action)] => action.fresh,
        other => panic!("{other:?}"),
    };
    let mut loader = loader("reg0[4] = dns_lookup(); outport = \"b\"; ct_next;");
    loader.program_mut().allocate_zones(&CtZones::default());
    let names = Service::Dns(Resolver([Arc::new(Records::default())].into()));
    loader.set_dns(SWITCH, Some(Arc::new(names)));
    let (program, state) = (loader.program(), LearnedTables::default());
    let actions = translate(&program, &packet(0x0800, 17), &state, &mut ()).actions;
    let [Action::Serve { answered, otherwise, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert!(fresh(&answered[0]), "{answered:?}");
    assert!(!fresh(otherwise), "{otherwise:?}");
}

/// The flows of a load balancer with affinity, without those of connection tracking.
const AFFINITY: &str = "reg9[6] = chk_lb_aff(); \
     commit_lb_aff(vip = \"10.0.0.11:80\", backend = \"10.0.0.12:8080\", proto = tcp, \
     timeout = 60);";

#[test]
fn client_keeps_its_backend_while_the_program_has_it() {
    let (mut loader, mut learned, now) =
        (loader(AFFINITY), LearnedTables::default(), Instant::now());
    let backend = Affinity { backend: [10, 0, 0, 12].into(), port: 8080, timeout_s: 60 };
    let translation = translate(&loader.program(), &tcp(), &learned, &mut ()).learn_events;
    let [event @ LearnEvent::Affinity(key, affinity)] = translation[..] else {
        panic!("{translation:?}")
    };
    assert_eq!((affinity, key.client), (backend, IpAddr::from([10, 0, 0, 10])));
    let ingress = IngressPort { datapath: SWITCH, port: FdbPort::Port(PortNo(1)) };
    learned.learn(event, ingress, now).unwrap();
    let registers = |program: &Program, learned: &LearnedTables, key: &FlowKey| {
        let mut found = Registers::default();
        let mask = translate(program, key, learned, &mut found).mask;
        (found.0, mask)
    };
    let (found, mask) = registers(&loader.program(), &learned, &tcp());
    assert_eq!(found, [1, 0x0a00_000c, 8080]);
    for field in [Field::Ip4Src, Field::Ip4Dst, Field::IpProto, Field::TpDst] {
        assert_eq!(mask.get(field), field.all_ones(), "{field:?}");
    }
    assert_eq!(mask.get(Field::TpSrc), 0);
    // Another client, another port, another protocol.
    for (field, value) in [(Field::Ip4Src, 0x0a00_0063), (Field::TpDst, 81), (Field::IpProto, 17)] {
        let mut other = tcp();
        other.set(field, value);
        assert_eq!(registers(&loader.program(), &learned, &other).0, [0, 0, 0], "{field:?}");
    }
    // The load balancer loses the backend.
    let other = AFFINITY.replace("10.0.0.12", "10.0.0.13");
    let flow = |actions: &str, priority| LogicalFlow {
        datapaths: vec![SWITCH],
        direction: Direction::Ingress,
        table: 0,
        priority,
        stage: String::new(),
        condition: "1".to_owned(),
        actions: actions.to_owned(),
        source: String::new(),
        cookie: 0,
    };
    let without = self::loader(&other);
    assert_eq!(registers(&without.program(), &learned, &tcp()).0, [0, 0, 0]);
    let event = translate(&without.program(), &tcp(), &learned, &mut ()).learn_events;
    assert!(matches!(event[..], [LearnEvent::Affinity(..)]), "{event:?}");
    // One of two flows with the rule is removed, and then the other.
    let second = loader.add_flow(&flow(AFFINITY, 1)).unwrap();
    loader.remove_flow(second);
    assert_eq!(registers(&loader.program(), &learned, &tcp()).0[0], 1);
    learned.expire(now + Duration::from_secs(61));
    assert_eq!(registers(&loader.program(), &learned, &tcp()).0, [0, 0, 0]);
}

/// The values that are written to `reg9[6]`, `reg4` and `reg8`.
#[derive(Default)]
struct Registers([u128; 3]);

impl Observer for Registers {
    fn event(&mut self, event: Event<'_>) {
        let Event::Change { field, after, .. } = event else { return };
        match field {
            Field::Reg9 => self.0[0] = after >> 6,
            Field::Reg4 => self.0[1] = after,
            Field::Reg8 => self.0[2] = after,
            _ => {}
        }
    }
}

#[test]
fn reply_finds_the_next_hop_of_its_connection_until_it_ages_out() {
    let forward =
        program("reg9[6] = chk_ecmp_nh_mac(); commit_ecmp_nh(ipv6 = false, proto = tcp);");
    let back = program("reg9[6] = chk_ecmp_nh();");
    let (mut learned, now) = (LearnedTables::default(), Instant::now());
    let is_known = |program: &Program, learned: &LearnedTables, key: &FlowKey| {
        let mut found = Registers::default();
        let events = translate(program, key, learned, &mut found).learn_events;
        (found.0[0], events)
    };
    let (found, events) = is_known(&forward, &learned, &tcp());
    let [event] = events[..] else { panic!("{events:?}") };
    assert_eq!(found, 0);
    let mut reply = tcp();
    for (field, value) in [
        (Field::Ip4Src, 0x0a00_000b),
        (Field::Ip4Dst, 0x0a00_000a),
        (Field::TpSrc, 80),
        (Field::TpDst, 1000),
        (Field::EthSrc, 0xc),
    ] {
        reply.set(field, value);
    }
    assert_eq!(is_known(&back, &learned, &reply).0, 0);
    let ingress = IngressPort { datapath: SWITCH, port: FdbPort::Port(PortNo(1)) };
    learned.learn(event, ingress, now).unwrap();
    assert_eq!(is_known(&forward, &learned, &tcp()), (1, vec![]));
    assert_eq!(is_known(&back, &learned, &reply).0, 1);
    // The packet itself is not a reply.
    assert_eq!(is_known(&back, &learned, &tcp()).0, 0);
    // The next hop has another MAC address: it is learned again.
    let mut moved = tcp();
    moved.set(Field::EthSrc, 0xd);
    let (found, events) = is_known(&forward, &learned, &moved);
    assert_eq!((found, events.len()), (0, 1));
    let query = event.query();
    learned.refresh(&query, now + Duration::from_secs(15));
    learned.expire(now + Duration::from_secs(30));
    assert_eq!(is_known(&back, &learned, &reply).0, 1);
    learned.expire(now + Duration::from_secs(36));
    assert_eq!(is_known(&back, &learned, &reply).0, 0);
}

#[test]
fn destination_of_a_connection_is_read_where_the_packet_has_it() {
    const NEW: u128 = 0x21;
    const ESTABLISHED: u128 = 0x22;
    const REPLY: u128 = 0x08;
    const SRC_NAT: u128 = 0x40;
    const DST_NAT: u128 = 0x80;
    // The key contains the state of the connection, as in a later pass.
    let tracked = |state| {
        let mut key = tcp();
        key.set(Field::CtState, state);
        key
    };
    let actions = "reg4 = ct_nw_dst(); reg8[0..15] = ct_tp_dst(); reg9[6..13] = ct_proto();";
    let (program, none) = (program(actions), [0, 0, 0]);
    let (there, back) = ([6, 0x0a00_000b, 80], [6, 0x0a00_000a, 1000]);
    for (state, expected) in [
        (0, none),
        (0x30, none),
        (NEW, there),
        (ESTABLISHED, there),
        (ESTABLISHED | REPLY, back),
        // NAT of the packet's other address does not matter.
        (ESTABLISHED | SRC_NAT, there),
        (ESTABLISHED | REPLY | DST_NAT, back),
    ] {
        let mut found = Registers::default();
        let mask = translate(&program, &tracked(state), &(), &mut found).mask;
        assert_eq!(found.0, expected, "{state:#x}");
        assert_eq!(mask.get(Field::TpSrc) != 0, expected == back, "{state:#x}");
    }
    for state in [ESTABLISHED | DST_NAT, ESTABLISHED | REPLY | SRC_NAT] {
        let actions = translate(&program, &tracked(state), &(), &mut ()).actions;
        assert_eq!(actions, [Action::Drop(DropReason::UnsupportedAction)], "{state:#x}");
    }
}
