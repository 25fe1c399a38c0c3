//! Compiles actions to the steps of a flow.

use super::Actions;
use super::ast::{Action, Check, LbAffinity, Log, LogVerdict, NestedPacket, Severity, Stage};
use super::{conntrack, service};
use crate::scope::Scope;
use crate::symbol::FieldRef;
use crate::token::Constant;
use flow::{AclVerdict, Field, LogPriority, LogRecord, Reply, Subfield, low_bits};
use pipeline::{Affinity, AffinityRule, AffinityVip, Direction, LearnedOp, Op, Operand, TableId};
use std::sync::Arc;

/// Compiles actions for the datapath of `scope`. A name that is not in the scope becomes 0, which
/// is not the key of any port.
pub fn compile(actions: &Actions, scope: &impl Scope) -> Arc<[Op]> {
    compile_list(&actions.list, actions.stage, scope)
}

/// Collects the names that [`compile`] looks up.
pub(super) fn names<'a>(actions: &'a [Action], found: &mut Vec<&'a str>) {
    for action in actions {
        match action {
            Action::LoadName { name, .. } if !name.is_empty() => found.push(name),
            Action::ForwardGroup { ports, .. } => found.extend(ports.iter().map(|port| &**port)),
            Action::Nested(_, actions) => names(actions, found),
            _ => {}
        }
    }
}

fn compile_list(actions: &[Action], stage: Stage, scope: &impl Scope) -> Arc<[Op]> {
    let mut ops = Vec::with_capacity(actions.len());
    for (index, action) in actions.iter().enumerate() {
        let is_last = index + 1 == actions.len();
        // Only actions inside `ct_commit` can use fields outside the key.
        if compile_action(action, (stage, is_last), scope, &mut ops).is_none() {
            ops.push(Op::Unsupported("ct_commit"));
        }
    }
    ops.into()
}

/// Compiles one action. `None` for a field that is not in the key.
fn compile_action(
    action: &Action,
    (stage, is_last): (Stage, bool),
    scope: &impl Scope,
    ops: &mut Vec<Op>,
) -> Option<()> {
    let op = match action {
        Action::Output => Op::Output,
        Action::Next(table) => Op::Next(*table),
        Action::Load { to, value } => return load(to.bits()?, *value, ops),
        Action::LoadName { to, name } => {
            let key = if name.is_empty() { None } else { scope.port(name) };
            Op::Load { to: to.bits()?, value: key.unwrap_or(0).into() }
        }
        Action::Move { to, from } => {
            tag_guard(Op::Move { from: from.bits()?, to: to.bits()? }, &[*to])
        }
        Action::Exchange(a, b) => tag_guard(Op::Exchange(a.bits()?, b.bits()?), &[*a, *b]),
        Action::Push(field) => Op::Push(field.bits()?),
        Action::Pop(field) => tag_guard(Op::Pop(field.bits()?), &[*field]),
        Action::DecTtl => Op::DecTtl,
        Action::LoadFragMtu { mtu, .. } => Op::SetIcmpMtu(*mtu),
        Action::Nested(nest, actions) => nested(*nest, compile_list(actions, stage, scope)),
        Action::GetMacBinding { port, ip, .. } => {
            LearnedOp::GetMacBinding { port: operand(*port)?, ip: operand(*ip)? }.into()
        }
        Action::PutMacBinding { port, ip, mac, .. } => LearnedOp::PutMacBinding {
            port: operand(*port)?,
            ip: operand(*ip)?,
            mac: operand(*mac)?,
        }
        .into(),
        Action::LookupMacBinding { to, port, ip, mac, .. } => LearnedOp::LookupMacBinding {
            to: to.bits()?,
            port: operand(*port)?,
            ip: operand(*ip)?,
            mac: match mac {
                Some(mac) => Some(operand(*mac)?),
                None => None,
            },
        }
        .into(),
        Action::GetFdb { to, mac } => {
            LearnedOp::GetFdb { to: to.bits()?, mac: operand(*mac)? }.into()
        }
        Action::PutFdb { port, mac } => {
            LearnedOp::PutFdb { port: operand(*port)?, mac: operand(*mac)? }.into()
        }
        Action::LookupFdb { to, port, mac } => {
            LearnedOp::LookupFdb { to: to.bits()?, port: operand(*port)?, mac: operand(*mac)? }
                .into()
        }
        Action::CheckLength { to, bytes } => Op::CheckLength { to: to.bits()?, bytes: *bytes },
        Action::Check { to, check } => return check_ops(to.bits()?, *check, ops),
        Action::Select { to, choices } => {
            ops.push(Op::Select { to: to.bits()?, choices: choices.to_vec().into() });
            // `select` continues in the next table.
            stage.next().map_or(Op::Drop, Op::Next)
        }
        Action::ForwardGroup { ports, .. } => return forward_group(ports, scope, ops),
        Action::Log(log) => Op::Log(Arc::new(record(log, stage))),
        Action::SetMeter { rate_kbps, burst_kb } => Op::Meter {
            rate_kbps: *rate_kbps,
            // The default burst is what arrives in one second.
            burst_kb: if *burst_kb == 0 { *rate_kbps } else { *burst_kb },
        },
        Action::SetQueue(queue) => Op::SetQueue((*queue).into()),
        // weft has no sample collectors.
        Action::Sample(_) => return Some(()),
        Action::CtClear => Op::CtClear,
        Action::CtNext(zone) => conntrack::next(*zone, stage),
        Action::CtCommit(actions) => conntrack::commit(compile_list(actions, stage, scope)),
        Action::CtCommitV1 { mark, label } => conntrack::commit_v1(*mark, *label)?,
        Action::CtNat { nat, to } => conntrack::nat(*nat, *to, stage),
        Action::CtCommitNat(zone) => conntrack::commit_nat(*zone, stage),
        Action::CtCommitToZone(zone) => conntrack::commit_to_zone(*zone, stage),
        Action::CtRead { to, value } => conntrack::read(to.bits()?, *value),
        Action::MacCacheUse => LearnedOp::UseMacBinding.into(),
        Action::CtSnatToVip => Op::Next(TableId::HAIRPIN_SNAT),
        Action::CtLb(lb) => conntrack::balance(lb, stage),
        Action::CommitEcmpNh { .. } => LearnedOp::LearnNextHop.into(),
        Action::CommitLbAffinity(affinity) => {
            ops.push(LearnedOp::LearnAffinity(affinity_rule(affinity)).into());
            if !is_last {
                return Some(());
            }
            // ovn-northd ends the flow here, which drops the packet. weft continues in the next
            // table, as it would if the affinity was known.
            stage.next().map_or(Op::Drop, Op::Next)
        }
        Action::PutOptions { to, protocol, options } => {
            service::put_options(to.bits()?, *protocol, options)
        }
        Action::TriggerEvent(_) => Op::Unsupported("trigger_event"),
        Action::BindVport { .. } => Op::Unsupported("bind_vport"),
        // Only replies to probes of this host count, so the controller does not need the port.
        Action::HandleSvcCheck(_) => Op::Controller,
        Action::HandleDhcp6Reply => Op::Unsupported("handle_dhcpv6_reply"),
        Action::HandleBfdMsg => Op::Unsupported("handle_bfd_msg"),
        Action::Igmp => Op::Unsupported("igmp"),
    };
    ops.push(op);
    Some(())
}

fn operand(field: FieldRef) -> Option<Operand> {
    field.bits().map(Operand::Bits)
}

/// The bit of `vlan_tci` that is 1 in tagged frames.
const TAG_PRESENT: u128 = flow::TAG_PRESENT as u128;

/// Writes a constant: one step for each run of contiguous bits of its mask.
pub(super) fn load(to: Subfield, value: Constant, ops: &mut Vec<Op>) -> Option<()> {
    let mut mask = value.mask.unwrap_or(u128::MAX) & low_bits(to.width());
    let is_tag = to.field() == Field::VlanTci && mask << to.first() & TAG_PRESENT != 0;
    if is_tag && value.value << to.first() & TAG_PRESENT == 0 {
        ops.push(Op::PopVlan);
        return Some(());
    }
    if is_tag && mask << to.first() != TAG_PRESENT {
        mask &= !(TAG_PRESENT >> to.first());
    }
    while mask != 0 {
        let first = mask.trailing_zeros() as u8;
        let width = (mask >> first).trailing_ones() as u8;
        let to = Subfield::new(to.field(), to.first() + first, width)?;
        let value = value.value >> first & low_bits(width);
        ops.push(match is_tag {
            // The cast is lossless: the field has 16 bits.
            true => Op::SetVlan { bits: to, value: value as u16 },
            false => Op::Load { to, value },
        });
        mask &= !(low_bits(width) << first);
    }
    Some(())
}

/// Rejects copies to the bit that marks frames as tagged: they would push or pop tags depending on
/// other bits.
fn tag_guard(op: Op, written: &[FieldRef]) -> Op {
    let touches = |field: &FieldRef| {
        let bits = field.bits();
        bits.is_some_and(|bits| {
            bits.field() == Field::VlanTci && bits.field_mask() & TAG_PRESENT != 0
        })
    };
    if written.iter().any(touches) { Op::Unsupported("vlan.tci") } else { op }
}

fn nested(nest: NestedPacket, ops: Arc<[Op]>) -> Op {
    let reply = match nest {
        NestedPacket::Clone => return Op::Clone(ops),
        NestedPacket::Reject => return Op::Reject(ops),
        NestedPacket::Arp => Reply::Arp,
        NestedPacket::NdNa => Reply::NeighbourAdvert { router: false },
        NestedPacket::NdNaRouter => Reply::NeighbourAdvert { router: true },
        NestedPacket::NdNs => Reply::NeighbourSolicit,
        NestedPacket::Icmp4 | NestedPacket::Icmp4Error => Reply::Icmp4,
        NestedPacket::Icmp6 | NestedPacket::Icmp6Error => Reply::Icmp6,
        NestedPacket::TcpReset => Reply::TcpReset,
        NestedPacket::SctpAbort => Reply::SctpAbort,
    };
    Op::Reply { reply, ops }
}

fn affinity_rule(affinity: &LbAffinity) -> AffinityRule {
    let LbAffinity { vip, backend, protocol, timeout_s } = *affinity;
    let service = protocol.map(|protocol| (protocol.ip_protocol(), vip.port));
    AffinityRule {
        vip: AffinityVip { ip: vip.ip, service },
        affinity: Affinity { backend: backend.ip, port: backend.port, timeout_s },
    }
}

/// OVN's `flags.lookup_lb_hairpin`: the result of a lookup in a hairpin table.
const FOUND: (Field, u8) = (Field::Reg10, 7);

fn check_ops(to: Subfield, check: Check, ops: &mut Vec<Op>) -> Option<()> {
    let table = match check {
        Check::InPortSec | Check::OutPortSec => {
            let is_in = check == Check::InPortSec;
            let direction = if is_in { Direction::Ingress } else { Direction::Egress };
            ops.push(Op::PortSecurity { to, direction });
            return Some(());
        }
        Check::LbHairpin => TableId::HAIRPIN,
        Check::LbHairpinReply => TableId::HAIRPIN_REPLY,
        Check::DnsLookup => {
            ops.push(Op::DnsLookup(to));
            return Some(());
        }
        Check::EcmpNhMac | Check::EcmpNh => {
            let forward = check == Check::EcmpNhMac;
            ops.push(LearnedOp::CheckNextHop { to, forward }.into());
            return Some(());
        }
        Check::LbAffinity => {
            ops.push(LearnedOp::CheckAffinity { to }.into());
            return Some(());
        }
    };
    let found = Subfield::bit(FOUND.0, FOUND.1)?;
    ops.push(Op::Load { to: found, value: 0 });
    ops.push(Op::Next(table));
    ops.push(Op::Move { from: found, to });
    Some(())
}

/// Outputs to one of the ports. Does nothing if one of them is unknown.
fn forward_group(ports: &[Box<str>], scope: &impl Scope, ops: &mut Vec<Op>) -> Option<()> {
    let keys: Option<Vec<u16>> = ports.iter().map(|name| scope.port(name)).collect();
    if let Some(keys) = keys.filter(|keys| !keys.is_empty()) {
        let choices = keys.into_iter().map(|key| (key, 1)).collect();
        ops.push(Op::Select { to: Field::Reg15.into(), choices });
        ops.push(Op::Output);
    }
    Some(())
}

fn record(log: &Log, stage: Stage) -> LogRecord {
    LogRecord {
        name: log.name.as_deref().unwrap_or_default().to_owned(),
        priority: match log.severity {
            Severity::Alert => LogPriority::Alert,
            Severity::Warning => LogPriority::Warning,
            Severity::Notice => LogPriority::Notice,
            Severity::Info => LogPriority::Info,
            Severity::Debug => LogPriority::Debug,
        },
        verdict: match log.verdict {
            LogVerdict::Allow => AclVerdict::Allow,
            LogVerdict::Drop => AclVerdict::Drop,
            LogVerdict::Reject => AclVerdict::Reject,
        },
        is_from_lport: stage.direction() == Direction::Ingress,
        meter: log.meter.as_deref().map(str::to_owned),
    }
}
