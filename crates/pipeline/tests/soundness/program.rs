//! Random programs and packets, with so few fields and values that packets often match flows.

use super::bridge::{PROVIDER, provider_bridge};
use super::clients;
use flow::{
    CtNat, DatapathKey, DropReason, EndpointId, Field, FlowKey, FlowMask, Match, PortKey, PortNo,
    Reply, Subfield, TagLink, TunnelType,
};
use pipeline::{
    BridgePort, BridgePortKind, CtOp, CtZone, CtZones, Datapath, DatapathKind, Direction, FdbKey,
    FdbPort, Flow, FlowCounters, FlowId, FlowText, GroupId, LearnEvent, LearnedOp, LearnedTables,
    LogicalPort, MacBindingKey, MulticastGroup, Op, Operand, PortLocation, PortRole, PortSecurity,
    Predicate, Program, TableId, TunnelInport,
};
use services::router::{AddressMode, Preference, Router};
use services::{Service, dhcp4, dhcp6, dns};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use testkit::random::Random;
use wire::{EtherType, MacAddr, VlanId};

/// Ports from this number on are uplinks of tagged switches.
pub const UPLINK: u32 = 90;
const TABLES: u8 = 5;
const TUNNEL_PORT: u32 = 50;
/// The ingress port of packets from the uplink.
const LINK_PORT: u32 = 51;
/// Hosts on an IPv6 underlay; the program knows the first one.
const SENDERS_V6: [u128; 2] = [0x2001_0db8 << 96 | 1, 0x2001_0db8 << 96 | 2];

/// Fields that matches read.
const READ: &[Field] = &[
    Field::InPort,
    Field::Metadata,
    Field::TunId,
    Field::TunDst,
    Field::TunMetadata0,
    Field::Reg0,
    Field::Reg1,
    Field::Xreg0,
    Field::Reg10,
    Field::Reg14,
    Field::Reg15,
    Field::EthSrc,
    Field::EthDst,
    Field::EthType,
    Field::VlanTci,
    Field::VlanInnerTci,
    Field::VlanTpid,
    Field::Ip4Src,
    Field::Ip4Dst,
    Field::Ip6Src,
    Field::Ip6Dst,
    Field::IpProto,
    Field::IpDscp,
    Field::IpTtl,
    Field::IpFrag,
    Field::ArpOp,
    Field::ArpSpa,
    Field::ArpTpa,
    Field::ArpSha,
    Field::TpSrc,
    Field::TpDst,
    Field::TcpFlags,
    Field::IcmpType,
    Field::NdTarget,
    Field::NdSll,
    Field::CtState,
    Field::CtMark,
    Field::CtLabel,
];

/// Fields that steps write.
const WRITTEN: &[Field] = &[
    Field::TunId,
    Field::TunDst,
    Field::Reg0,
    Field::Reg1,
    Field::Xxreg0,
    Field::Reg10,
    Field::Reg15,
    Field::EthSrc,
    Field::EthDst,
    Field::VlanTci,
    Field::Ip4Src,
    Field::Ip4Dst,
    Field::Ip6Src,
    Field::Ip6Dst,
    Field::IpDscp,
    Field::IpTtl,
    Field::ArpOp,
    Field::ArpSpa,
    Field::ArpTpa,
    Field::ArpSha,
    Field::TpSrc,
    Field::TpDst,
    Field::IcmpType,
    Field::NdTarget,
];

/// A random value of a field: small, or with a common prefix, or with a meaning in the protocol.
fn value(random: &mut Random, field: Field) -> u128 {
    let small = random.below(4) as u128;
    match field {
        Field::EthType => random.pick(&[0x0800, 0x86dd, 0x0806, 0x05ff]),
        Field::IpProto => random.pick(&[0, 1, 6, 17, 58]),
        Field::IpTtl => random.pick(&[0, 1, 2, 64]),
        Field::IpFrag => random.pick(&[0, 1, 3]),
        Field::InPort | Field::Reg14 | Field::Reg15 => 1 + random.below(7) as u128,
        Field::Metadata => 1 + random.below(3) as u128,
        Field::VlanTci | Field::VlanInnerTci => random.pick(&[0, 0x1001, 0x1002, 0x3001]),
        Field::VlanTpid => random.pick(&[0, 0x8100]),
        Field::EthSrc | Field::EthDst | Field::ArpSha | Field::NdSll => {
            random.pick(&[0x0200_0000_0000, 0x0200_0000_0100, 0xffff_ffff_fff0]) | small
        }
        _ => {
            let top = field.all_ones() ^ field.all_ones() >> 1;
            random.pick(&[0, top, top >> 2, 0x10]) | small
        }
    }
}

fn mask(random: &mut Random, field: Field) -> u128 {
    let all = field.all_ones();
    match random.below(6) {
        0 => {
            let prefix = random.below(usize::from(field.width()) + 1) as u32;
            all & !all.checked_shr(prefix).unwrap_or(0)
        }
        1 => 1 << random.below(field.width().into()),
        2 => random.wide() & all,
        _ => all,
    }
}

fn bits(random: &mut Random, field: Field) -> Subfield {
    let width = 1 + random.below(field.width().into()) as u8;
    let first = random.below(usize::from(field.width() - width) + 1) as u8;
    if random.once_in(2) { field.into() } else { Subfield::new(field, first, width).unwrap() }
}

fn condition(random: &mut Random) -> Match {
    let mut condition = Match::any();
    for _ in 0..random.pick(&[0, 1, 1, 2, 3]) {
        let field = random.pick(READ);
        let (value, mask) = (value(random, field), mask(random, field));
        // A contradicting requirement is left out.
        let _ = condition.require(field, value, mask);
    }
    condition
}

fn predicate(random: &mut Random, depth: usize) -> Predicate {
    let field = random.pick(READ);
    let deeper = |random: &mut Random| {
        (0..random.below(4)).map(|_| predicate(random, depth + 1)).collect::<Box<[_]>>()
    };
    match random.below(if depth < 3 { 6 } else { 3 }) {
        0 => {
            let mask = mask(random, field);
            Predicate::Masked { field, value: value(random, field) & mask, mask }
        }
        1 => {
            let mut values: Vec<u128> = (0..3).map(|_| value(random, field)).collect();
            values.sort_unstable();
            values.dedup();
            Predicate::OneOf { bits: field.into(), values: values.into() }
        }
        2 => {
            let (a, b) = (value(random, field), value(random, field));
            Predicate::InRanges { bits: field.into(), ranges: [(a.min(b), a.max(b))].into() }
        }
        3 => Predicate::All(deeper(random)),
        4 => Predicate::Any(deeper(random)),
        _ => Predicate::Not(Box::new(predicate(random, depth + 1))),
    }
}

struct Context {
    logical: bool,
    depth: usize,
    /// The table of the flow.
    table: TableId,
}

fn table(random: &mut Random, context: &Context) -> TableId {
    any_table(random, context.logical)
}

fn any_table(random: &mut Random, logical: bool) -> TableId {
    let number = random.below(TABLES.into()) as u8;
    if logical {
        let direction = random.pick(&[Direction::Ingress, Direction::Ingress, Direction::Egress]);
        TableId::logical(direction, number).unwrap()
    } else {
        TableId::bridge(number).unwrap()
    }
}

fn tables(logical: bool) -> impl Iterator<Item = TableId> {
    let numbers = 0..TABLES;
    let bridge = numbers.clone().filter(move |_| !logical).filter_map(TableId::bridge);
    let logical = numbers.filter(move |_| logical).flat_map(|number| {
        [Direction::Ingress, Direction::Egress].map(|d| TableId::logical(d, number).unwrap())
    });
    bridge.chain(logical)
}

/// The steps of a table's default flow: some random ones, then output or the next table.
fn send_on(random: &mut Random, context: &Context, table: TableId) -> Arc<[Op]> {
    let next = if context.logical {
        let (direction, number) = table.in_pipeline();
        TableId::logical(direction, number + 1).filter(|_| number + 1 < TABLES)
    } else {
        TableId::bridge(table.index() as u8 + 1).filter(|table| table.index() < TABLES.into())
    };
    let port = random.pick(&[1, 2, 3, 6, 7]);
    let mut list = vec![Op::Load { to: Field::Reg15.into(), value: port }];
    if random.once_in(2) {
        list.push(Op::Load { to: Field::EthSrc.into(), value: value(random, Field::EthSrc) });
    }
    list.push(match (next, context.logical) {
        (Some(next), _) if !random.once_in(3) => Op::Next(next),
        (_, true) => Op::Output,
        (_, false) => random.pick(&[1, 2, 3]).pipe(|port| Op::OutputPort(PortNo(port))),
    });
    list.into()
}

/// Mostly a later table, so that few programs loop.
fn later_table(random: &mut Random, context: &Context) -> TableId {
    let other = table(random, context);
    if other.index() > context.table.index() || random.once_in(16) {
        return other;
    }
    let (direction, _) = context.table.in_pipeline();
    let last = if context.logical {
        TableId::logical(direction, TABLES - 1)
    } else {
        TableId::bridge(TABLES - 1)
    };
    last.filter(|last| *last != context.table).unwrap_or(other)
}

fn ops(random: &mut Random, context: &Context) -> Arc<[Op]> {
    let count = if context.depth > 2 { random.below(3) } else { 1 + random.below(4) };
    let mut list: Vec<Op> = (0..count).map(|_| op(random, context)).collect();
    if !random.once_in(4) {
        list.push(last_op(random, context));
    }
    list.into()
}

fn last_op(random: &mut Random, context: &Context) -> Op {
    match (context.logical, random.below(3)) {
        (_, 0) => Op::Next(later_table(random, context)),
        (true, _) => Op::Output,
        (false, _) => Op::OutputPort(PortNo(1 + random.below(6) as u32)),
    }
}

fn operand(random: &mut Random, field: Field) -> Operand {
    if random.once_in(3) {
        Operand::Constant { value: value(random, field), width: field.width() }
    } else {
        field.into()
    }
}

/// A pass through the connection tracker; the next pass mostly begins in a later table.
fn ct_op(random: &mut Random, context: &Context) -> Op {
    let next = (!random.once_in(4)).then(|| later_table(random, context));
    let from = random.pick(READ);
    let width = from.width().min(32);
    let exec: Arc<[Op]> = [
        Op::Load { to: Field::CtLabel.into(), value: value(random, Field::CtLabel) },
        Op::Move {
            from: Subfield::new(from, 0, width).unwrap(),
            to: Subfield::new(Field::CtMark, 32 - width, width).unwrap(),
        },
    ]
    .into();
    Op::Ct(Box::new(CtOp {
        zone: random.pick(&[CtZone::Number(1), CtZone::Bits(Field::Reg0.into())]),
        nat: random.once_in(2).then_some(CtNat::Existing),
        commit: (next.is_none() || random.once_in(2)).then_some(exec),
        force: false,
        next,
    }))
}

fn op(random: &mut Random, context: &Context) -> Op {
    let inner = Context { depth: context.depth + 1, ..*context };
    let to = random.pick(WRITTEN);
    let flag = Subfield::bit(Field::Reg0, random.below(4) as u8).unwrap();
    let replies = [
        Reply::Arp,
        Reply::Icmp4,
        Reply::Icmp6,
        Reply::TcpReset,
        Reply::SctpAbort,
        Reply::NeighbourSolicit,
        Reply::NeighbourAdvert { router: true },
    ];
    match random.below(36) {
        33.. => clients::op(random, flag),
        30 => ct_op(random, context),
        31 => ct_op(random, context),
        32 if random.once_in(4) => Op::CtClear,
        0..5 => {
            let to = bits(random, to);
            let value = value(random, to.field()) & flow::low_bits(to.width());
            Op::Load { to, value }
        }
        5..7 => {
            let from = random.pick(READ);
            let width = from.width().min(to.width());
            Op::Move {
                from: Subfield::new(from, 0, width).unwrap(),
                to: Subfield::new(to, to.width() - width, width).unwrap(),
            }
        }
        7 => random
            .pick(&[
                (Field::EthSrc, Field::EthDst),
                (Field::Ip4Src, Field::Ip4Dst),
                (Field::TpSrc, Field::TpDst),
                (Field::Reg0, Field::Ip4Dst),
            ])
            .pipe(|(a, b)| Op::Exchange(a.into(), b.into())),
        8 => {
            let field = random.pick(READ);
            Op::Push(bits(random, field))
        }
        9 => Op::Pop(bits(random, to)),
        10 => Op::PushVlan { tpid: random.pick(&[0x8100, 0x88a8]) },
        11 => Op::PopVlan,
        12 => Op::SetVlan {
            bits: Subfield::new(Field::VlanTci, 0, 12).unwrap(),
            value: random.below(4) as u16,
        },
        13 => Op::DecTtl,
        14..16 => Op::Next(later_table(random, context)),
        16 if !context.logical => Op::Resubmit {
            in_port: PortNo(1 + random.below(6) as u32),
            table: random.pick(&[None, Some(TableId::FIRST), TableId::bridge(2)]),
        },
        17 if context.logical => Op::Output,
        17 => random.pick(&[0, 1, 2, 3]).pipe(|which| match which {
            0 => Op::Flood,
            1 => Op::OutputInPort,
            2 => Op::Normal,
            _ => Op::OutputField(Field::Reg1.into()),
        }),
        18 if context.depth < 3 => Op::Clone(ops(random, &inner)),
        19 if context.depth < 3 => {
            Op::Reply { reply: random.pick(&replies), ops: ops(random, &inner) }
        }
        20 if context.depth < 3 => Op::Reject(ops(random, &inner)),
        21 => LearnedOp::GetMacBinding {
            port: Field::Reg15.into(),
            ip: operand(random, Field::Ip4Dst),
        }
        .into(),
        22 => LearnedOp::LookupMacBinding {
            to: flag,
            port: operand(random, Field::Reg14),
            ip: Field::ArpSpa.into(),
            mac: random.once_in(2).then_some(Field::ArpSha.into()),
        }
        .into(),
        23 => LearnedOp::PutMacBinding {
            port: Field::Reg14.into(),
            ip: Field::ArpSpa.into(),
            mac: Field::ArpSha.into(),
        }
        .into(),
        24 => LearnedOp::GetFdb { to: Field::Reg15.into(), mac: Field::EthDst.into() }.into(),
        25 => LearnedOp::LookupFdb {
            to: flag,
            port: Field::Reg14.into(),
            mac: operand(random, Field::EthSrc),
        }
        .into(),
        26 => LearnedOp::PutFdb { port: Field::Reg14.into(), mac: Field::EthSrc.into() }.into(),
        27 => Op::CheckLength { to: flag, bytes: 1514 },
        28 => Op::Select { to: Field::Reg1.into(), choices: [(1, 10), (2, 20), (3, 1)].into() },
        _ => random.pick(&[0, 1, 2, 3, 4, 5, 6]).pipe(|which| match which {
            0 => Op::Controller,
            1 => Op::Meter { rate_kbps: 1, burst_kb: 1 },
            2 => Op::SetQueue(3),
            3 => Op::PortSecurity { to: flag, direction: Direction::Ingress },
            4 => Op::Serve { to: flag, service: service(random) },
            5 => Op::DnsLookup(flag),
            _ => Op::Drop,
        }),
    }
}

fn service(random: &mut Random) -> Arc<Service> {
    let service = match random.below(4) {
        0 => Service::Dhcp4(dhcp4::Server::new([10, 0, 0, 2].into())),
        1 => Service::Dns(dns::Resolver([].into())),
        2 => Service::Dhcp6(dhcp6::Server::new(MacAddr([2, 0, 0, 0, 0, 1]), None)),
        _ => Service::Router(Router::new(AddressMode::Slaac, Preference::Medium)),
    };
    Arc::new(service)
}

trait Pipe: Sized {
    fn pipe<R>(self, f: impl FnOnce(Self) -> R) -> R {
        f(self)
    }
}
impl<T> Pipe for T {}

/// A program and learned state.
pub fn program(random: &mut Random, logical: bool) -> (Program, LearnedTables) {
    let mut program = Program::default();
    if logical {
        logical_datapaths(random, &mut program)
    } else {
        bridge(&mut program)
    }
    let mut catch_all: Vec<TableId> = tables(logical).collect();
    for id in 0..(20 + random.below(40)) as u64 {
        // Every table has a default flow that sends the packet on.
        add_flow(random, &mut program, logical, (id, catch_all.pop()));
    }
    (program, learned(random))
}

/// Adds a random flow with the number `id`; the default flow of a table if that is given.
fn add_flow(
    random: &mut Random,
    program: &mut Program,
    logical: bool,
    (id, last): (u64, Option<TableId>),
) {
    let mut rows: Vec<Match> = (0..1 + random.below(2)).map(|_| condition(random)).collect();
    if last.is_some() {
        rows = vec![Match::any()];
    }
    // The rows of one flow differ, like those that the languages generate.
    rows.dedup();
    add_flow_with(random, program, logical, (id, last), rows);
}

fn add_flow_with(
    random: &mut Random,
    program: &mut Program,
    logical: bool,
    (id, last): (u64, Option<TableId>),
    rows: Vec<Match>,
) {
    let groups: Vec<_> = program.groups().collect();
    let residual = last.is_none() && random.once_in(4);
    let table = last.unwrap_or_else(|| any_table(random, logical));
    let context = Context { logical, depth: 0, table };
    let flow = Arc::new(Flow {
        id: FlowId(id),
        table,
        priority: if last.is_some() { 0 } else { 1 + random.below(3) as u16 },
        residual: residual.then(|| Box::new(predicate(random, 0))),
        ops: match last {
            Some(table) => send_on(random, &context, table),
            None => ops(random, &context),
        },
        drop_reason: DropReason::FlowDrop,
        text: FlowText {
            condition: "".into(),
            actions: "".into(),
            stage: "".into(),
            source: "".into(),
            cookie: 0,
            meter: None,
        },
        counters: FlowCounters::default(),
    });
    let group = if last.is_some() { groups[0] } else { random.pick(&groups) };
    program.add_flow(group, &flow, &rows);
}

/// A flow of a program, and its rows.
type FlowRows = (GroupId, Arc<Flow>, Vec<Match>);

fn flows_of(program: &Program) -> Vec<FlowRows> {
    let mut flows: Vec<FlowRows> = Vec::new();
    let tables = (0..=254).filter_map(TableId::bridge);
    for table in tables {
        for group in program.groups() {
            for (row, _, flow) in program.rules(group, table) {
                match flows.iter_mut().find(|(_, other, _)| Arc::ptr_eq(other, flow)) {
                    Some((_, _, rows)) => rows.push(row),
                    None => flows.push((group, Arc::clone(flow), vec![row])),
                }
            }
        }
    }
    flows.sort_by_key(|(_, flow, _)| flow.id);
    flows
}

/// A copy of a flow with another number, and with some of its steps.
fn copy(flow: &Flow, id: u64, keeps: impl FnMut(&&Op) -> bool) -> Flow {
    Flow {
        id: FlowId(id),
        table: flow.table,
        priority: flow.priority,
        residual: flow.residual.clone(),
        ops: flow.ops.iter().filter(keeps).cloned().collect(),
        drop_reason: flow.drop_reason,
        text: flow.text.clone(),
        counters: FlowCounters::default(),
    }
}

/// Keeps only the steps of simple access control lists and forwarding.
pub fn simplify(program: &mut Program) {
    let is_simple = |op: &&Op| {
        matches!(op, Op::Load { .. } | Op::Move { .. } | Op::Next(_) | Op::Output | Op::Normal)
            || matches!(op, Op::DecTtl | Op::Drop | Op::OutputPort(_) | Op::PortSecurity { .. })
    };
    for (group, flow, rows) in flows_of(program) {
        program.remove_flow(group, &flow, &rows);
        program.add_flow(group, &Arc::new(copy(&flow, flow.id.0, is_simple)), &rows);
    }
}

/// The program after a random change. Half of the programs are rebuilt: all flows are new objects
/// with new numbers.
pub fn changed(random: &mut Random, old: &Program, logical: bool) -> Program {
    let mut program = old.clone();
    for next in 1000..1001 + random.below(2) as u64 {
        match random.below(8) {
            0 => add_flow(random, &mut program, logical, (next, None)),
            1 | 2 => {
                // Like the entry of an access control list.
                let fields = [Field::EthType, Field::IpProto, Field::TpDst, Field::EthDst];
                let (mut row, field) = (Match::any(), random.pick(&fields));
                let _ = row.require(field, value(random, field), field.all_ones());
                add_flow_with(random, &mut program, logical, (next, None), vec![row]);
            }
            3 | 4 => {
                let flows = flows_of(&program);
                let (group, flow, rows) = &flows[random.below(flows.len())];
                program.remove_flow(*group, flow, rows);
            }
            5 if !logical => {
                program.remove_port_role(PortNo(1 + random.below(5) as u32));
            }
            5 => {
                let key = DatapathKey(1 + random.below(3) as u32);
                let port = PortKey::new(1 + random.below(6) as u16).unwrap();
                if let Some(datapath) = program.datapath_mut(key)
                    && let Some(port) = datapath.ports.get_mut(&port)
                {
                    port.location = PortLocation::Local(PortNo(40 + random.below(3) as u32));
                }
            }
            6 => {
                let key = DatapathKey(1 + random.below(3) as u32);
                if let Some(datapath) = program.datapath_mut(key) {
                    let port = PortKey::new(7).unwrap();
                    let group = datapath.multicast.get_mut(&port);
                    group.into_iter().for_each(|group| group.members.truncate(3));
                }
            }
            _ => program.set_tunnel(TunnelType::Geneve, 1, DatapathKey(2)),
        }
    }
    if random.once_in(2) {
        return program;
    }
    let mut flows = flows_of(&program);
    for (group, flow, rows) in &flows {
        program.remove_flow(*group, flow, rows);
    }
    if random.once_in(4) {
        // Flows of equal priority change their order.
        flows.reverse();
    }
    for (id, (group, flow, rows)) in (5000..).step_by(2).zip(&flows) {
        // Sometimes a flow is split into two that share its rows.
        let middle = if random.once_in(4) { rows.len() / 2 } else { 0 };
        let parts = [&rows[..middle], &rows[middle..]];
        for (id, part) in (id..).zip(parts).filter(|(_, part)| !part.is_empty()) {
            program.add_flow(*group, &Arc::new(copy(flow, id, |_| true)), part);
        }
    }
    program
}

fn bridge(program: &mut Program) {
    let group = program.add_group();
    let mut datapath = Datapath::new("bridge", DatapathKind::Bridge);
    datapath.groups.push(group);
    // Zones whose numbers in flows and in the tracker differ; 3 is unknown.
    datapath.bridge_zones = [0, 1, 2].into();
    program.set_datapath(Program::BRIDGE, datapath);
    program.allocate_zones(&CtZones::default());
    for port in 1..6 {
        let kind = if port == 4 {
            let endpoints = (0..4u8).map(|n| ([0, 0, 0, n].into(), EndpointId(n.into()))).collect();
            BridgePortKind::Tunnel { endpoints }
        } else {
            BridgePortKind::Device
        };
        let bridge_port = BridgePort { name: format!("p{port}"), number: PortNo(6 - port), kind };
        program.set_bridge_port(Program::BRIDGE, PortNo(port), bridge_port);
    }
}

/// Two switches with a router and a bridge between them; guests on this host, on other hosts, and
/// behind an uplink.
fn logical_datapaths(random: &mut Random, program: &mut Program) {
    // All datapaths are in the first group.
    let shared = program.add_group();
    for number in 1..=3u32 {
        let own = program.add_group();
        let kind = if number == 3 { DatapathKind::Router } else { DatapathKind::Switch };
        let mut datapath = Datapath::new(format!("dp{number}"), kind);
        let names = Service::Dns(dns::Resolver([].into()));
        datapath.dns = random.once_in(2).then(|| Arc::new(names));
        datapath.groups = vec![own, shared];
        for key in 1..=6u16 {
            let port = PortKey::new(key).unwrap();
            let location = location(random, number, key);
            if let PortLocation::Local(vif) = location {
                program.set_port_role(vif, PortRole::Vif { datapath: DatapathKey(number), port });
            }
            let security = PortSecurity::default();
            datapath
                .ports
                .insert(port, LogicalPort { name: format!("{number}-{key}"), location, security });
        }
        let members = (1..=6).filter_map(PortKey::new).collect();
        datapath
            .multicast
            .insert(PortKey::new(7).unwrap(), MulticastGroup { name: "flood".into(), members });
        datapath.tunnel_inport = tunnel_inport(random);
        program.set_datapath(DatapathKey(number), datapath);
        for tunnel in [TunnelType::Geneve, TunnelType::Vlan] {
            program.set_tunnel(tunnel, number.into(), DatapathKey(number));
        }
    }
    provider_bridge(random, program);
    let children = [(2, (DatapathKey(2), PortKey::new(3).unwrap()))].into();
    let own = random.once_in(2).then(|| (DatapathKey(2), PortKey::new(1).unwrap()));
    program.set_port_role(PortNo(21), PortRole::Parent { own, children });
    program.set_port_role(PortNo(TUNNEL_PORT), PortRole::Tunnel(TunnelType::Geneve));
    program.set_port_role(PortNo(LINK_PORT), PortRole::Tunnel(TunnelType::Vlan));
}

/// The location of a port of a switch or router.
fn location(random: &mut Random, number: u32, key: u16) -> PortLocation {
    match (number, key) {
        (3, 1 | 2) => PortLocation::Patch {
            datapath: DatapathKey(key.into()),
            port: PortKey::new(6).unwrap(),
        },
        (1 | 2, 6) => PortLocation::Patch {
            datapath: DatapathKey(3),
            port: PortKey::new(number as u16).unwrap(),
        },
        // The port of a provider bridge, and an alias of it.
        (1 | 2, 2) if random.once_in(2) => PortLocation::Patch {
            datapath: DatapathKey(PROVIDER),
            port: PortKey::new(number as u16 + 3).unwrap(),
        },
        (1 | 2, 3) if random.once_in(4) => PortLocation::Redirect(PortKey::new(2).unwrap()),
        // Pushes and pops a tag without changing the key, like a link.
        (1 | 2, 3) if random.once_in(2) => {
            PortLocation::Child { parent: PortNo(UPLINK + number), vlan: VlanId::new(2).unwrap() }
        }
        (_, 4) => PortLocation::Remote {
            endpoint: EndpointId(random.below(2) as u32),
            logical_ports: number == 1,
        },
        (_, 5) => PortLocation::Tagged {
            uplink: PortNo(UPLINK),
            link: TagLink::QinQ {
                service_tpid: EtherType::QINQ,
                outer: VlanId::new(7).unwrap(),
                inner: VlanId::new(8).unwrap(),
            },
        },
        (3, _) => PortLocation::Unbound,
        _ => PortLocation::Local(PortNo(number * 10 + u32::from(key))),
    }
}

/// The ingress port of packets from tunnels that carry no logical ports.
fn tunnel_inport(random: &mut Random) -> TunnelInport {
    let port = |number| PortKey::new(number).unwrap();
    match random.below(3) {
        0 => TunnelInport::None,
        1 => TunnelInport::Shared(port(5)),
        _ => {
            let v6 = IpAddr::from(Ipv6Addr::from_bits(SENDERS_V6[0]));
            let v4 =
                [1, 2].map(|host| (IpAddr::from([192, 0, 2, host]), port(3 + u16::from(host))));
            TunnelInport::ByHost(v4.into_iter().chain([(v6, port(4))]).collect())
        }
    }
}

fn learned(random: &mut Random) -> LearnedTables {
    let mut learned = LearnedTables::default();
    clients::configure(random, &mut learned);
    for _ in 0..8 {
        let mac = MacAddr([2, 0, 0, 0, 0, random.below(4) as u8]);
        let port = PortKey::new(1 + random.below(6) as u16).unwrap();
        let datapath = DatapathKey(1 + random.below(3) as u32);
        let ip = [random.pick(&[0, 0x80]), 0, 0, random.below(4) as u8].into();
        learned.configure(LearnEvent::MacBinding(MacBindingKey { datapath, port, ip }, mac));
        learned
            .configure(LearnEvent::Fdb(FdbKey { datapath, vlan: 0, mac }, FdbPort::Logical(port)));
        let vlan = random.below(3) as u16;
        let key = FdbKey { datapath: DatapathKey(PROVIDER), vlan, mac };
        learned.configure(LearnEvent::Fdb(key, FdbPort::Logical(port)));
        let key = FdbKey { datapath: Program::BRIDGE, vlan, mac };
        learned.configure(LearnEvent::Fdb(key, FdbPort::Port(PortNo(1 + random.below(5) as u32))));
    }
    learned
}

/// A random flow key for a logical network or for a bridge.
pub fn packet(random: &mut Random, logical: bool) -> FlowKey {
    let mut key = FlowKey::default();
    for &field in READ {
        if !field.is_register() && field.is_header() {
            let value = value(random, field);
            key.set(field, value);
        }
    }
    let port = if logical {
        random.pick(&[11, 12, 13, 21, 22, 41, 42, 43, TUNNEL_PORT, LINK_PORT, 77])
    } else {
        random.pick(&[1, 2, 3, 4])
    };
    key.set(Field::InPort, port.into());
    let tunnelled = port == TUNNEL_PORT;
    if tunnelled || port == LINK_PORT {
        key.set(Field::TunId, 1 + random.below(4) as u128);
    }
    if tunnelled {
        key.set(Field::TunSrc, random.pick(&[0, 0, 0xc000_0201, 0xc000_0202, 0xc000_0203]));
        if key.get(Field::TunSrc) == 0 {
            key.set(Field::TunIpv6Src, random.pick(&SENDERS_V6));
        }
        key.set(Field::TunMetadataPresent, random.below(2) as u128);
        key.set(Field::TunMetadata0, (random.below(8) << 16 | random.below(8)) as u128);
    }
    if random.once_in(2) {
        key.set(Field::VlanTci, 0);
    }
    // Consistent like an extracted key: no inner tag without an outer one, a TPID for each tag, and
    // 0 in the fields of absent headers.
    for (tpid, tci) in
        [(Field::VlanTpid, Field::VlanTci), (Field::VlanInnerTpid, Field::VlanInnerTci)]
    {
        let tagged = key.get(Field::VlanTci) & key.get(tci) & 0x1000 != 0;
        key.set(tpid, if tagged { 0x8100 } else { 0 });
        if !tagged {
            key.set(tci, 0);
        }
    }
    clear_absent_headers(&mut key);
    FlowMask::exact().of_packet().apply(&key)
}

fn clear_absent_headers(key: &mut FlowKey) {
    let clear =
        |key: &mut FlowKey, fields: &[Field]| fields.iter().for_each(|&field| key.set(field, 0));
    let (ethertype, protocol) = (key.get(Field::EthType), key.get(Field::IpProto));
    let ports = [Field::TpSrc, Field::TpDst];
    let icmp = [Field::IcmpType, Field::IcmpCode, Field::NdTarget, Field::NdSll];
    let ip = [Field::IpProto, Field::IpDscp, Field::IpTtl, Field::IpFrag];
    if ethertype != 0x0800 {
        clear(key, &[Field::Ip4Src, Field::Ip4Dst]);
    }
    if ethertype != 0x86dd {
        clear(key, &[Field::Ip6Src, Field::Ip6Dst]);
    }
    if ethertype != 0x0806 {
        clear(key, &[Field::ArpOp, Field::ArpSpa, Field::ArpTpa, Field::ArpSha]);
    }
    let is_ip = matches!(ethertype, 0x0800 | 0x86dd);
    let whole = is_ip && key.get(Field::IpFrag) & 2 == 0;
    if !is_ip {
        clear(key, &ip);
    }
    if !whole || !matches!(protocol, 6 | 17) {
        clear(key, &ports);
    }
    if !whole || protocol != 6 {
        clear(key, &[Field::TcpFlags]);
    }
    if !whole || !matches!(protocol, 1 | 58) {
        clear(key, &icmp);
    }
}
