//! Compiles actions of connection tracking, address translation and load balancing.

use super::ast::{CtLb, CtValue, LbFlag, Nat, NatTarget, NatZone, Stage};
use super::compile::load;
use crate::token::{Constant, Format};
use flow::{CtNat, Field, NatRange, Subfield};
use pipeline::{CtBackend, CtBalance, CtOp, CtOriginal, CtZone, Op};
use std::sync::Arc;

/// The bits of `ct_mark`, and of `ct_label` in older versions of OVN, that a load balancer sets.
const NATTED: u8 = 1;
const SKIP_SNAT: u8 = 2;
const FORCE_SNAT: u8 = 3;

/// A step that tracks the packet and continues in the next table.
fn track(zone: Option<NatZone>, stage: Stage, nat: Option<CtNat>, commit: Option<Arc<[Op]>>) -> Op {
    let zone = match zone {
        None | Some(NatZone::Dnat) => CtZone::Logical,
        Some(NatZone::Snat) => CtZone::LogicalSnat,
    };
    Op::Ct(Box::new(CtOp { zone, nat, commit, force: false, next: stage.next() }))
}

/// Compiles `ct_next;`, `ct_next(ZONE);`
pub(super) fn next(zone: Option<NatZone>, stage: Stage) -> Op {
    track(zone, stage, None, None)
}

/// Compiles `ct_commit_nat;`, `ct_commit_nat(ZONE);`
pub(super) fn commit_nat(zone: Option<NatZone>, stage: Stage) -> Op {
    track(zone, stage, Some(CtNat::Existing), Some(Arc::default()))
}

/// Compiles `ct_commit_to_zone(ZONE);`
pub(super) fn commit_to_zone(zone: NatZone, stage: Stage) -> Op {
    track(Some(zone), stage, None, Some(Arc::default()))
}

/// Compiles `TO = ct_nw_dst();` and the like.
pub(super) fn read(to: Subfield, value: CtValue) -> Op {
    let part = match value {
        CtValue::Ip4Dst => CtOriginal::Ip4Dst,
        CtValue::Ip6Dst => CtOriginal::Ip6Dst,
        CtValue::PortDst => CtOriginal::PortDst,
        CtValue::Protocol => CtOriginal::Protocol,
        CtValue::State => {
            let state = Subfield::new(Field::CtState, 0, CtValue::State.width());
            return state.map_or(Op::Unsupported(value.name()), |from| Op::Move { from, to });
        }
    };
    Op::CtOriginal { to, part }
}

/// Compiles `ct_commit { ... };`, with the steps inside the braces. NAT gives the connection
/// another source port if its replies would be those of a load-balanced connection.
pub(super) fn commit(exec: Arc<[Op]>) -> Op {
    let is_assignment = |op: &Op| matches!(op, Op::Load { .. } | Op::Move { .. });
    if !exec.iter().all(is_assignment) {
        return Op::Unsupported("ct_commit");
    }
    Op::Ct(Box::new(CtOp {
        zone: CtZone::Logical,
        nat: Some(CtNat::Existing),
        commit: Some(exec),
        force: false,
        next: None,
    }))
}

/// Compiles `ct_commit(ct_mark=VALUE/MASK, ct_label=VALUE/MASK);`
pub(super) fn commit_v1(mark: Option<(u32, u32)>, label: Option<(u128, u128)>) -> Option<Op> {
    let mut ops = Vec::new();
    let mark = mark.map(|(value, mask)| (Field::CtMark, value.into(), mask.into()));
    let label = label.map(|(value, mask)| (Field::CtLabel, value, mask));
    for (field, value, mask) in mark.into_iter().chain(label) {
        let value = Constant { value, mask: Some(mask), format: Format::Hexadecimal };
        load(field.into(), value, &mut ops)?;
    }
    Some(commit(ops.into()))
}

/// Compiles `ct_dnat;`, `ct_snat(IP);` and the like.
pub(super) fn nat(nat: Nat, to: Option<NatTarget>, stage: Stage) -> Op {
    let (zone, is_source) = match nat {
        Nat::Dnat => (CtZone::Dnat, false),
        Nat::Snat => (CtZone::Snat, true),
        // The common zone of a router is that of destination NAT.
        Nat::DnatInCzone => (CtZone::Dnat, false),
        Nat::SnatInCzone => (CtZone::Dnat, true),
    };
    let translation = to.map(|NatTarget { ip, ports }| {
        let ports = ports.map(|(first, last)| (first, last.unwrap_or(first)));
        let range = NatRange { ports, ..NatRange::address(ip) };
        if is_source { CtNat::Source(range) } else { CtNat::Destination(range) }
    });
    let commit = translation.is_some().then(Arc::default);
    let nat = Some(translation.unwrap_or(CtNat::Existing));
    Op::Ct(Box::new(CtOp { zone, nat, commit, force: false, next: stage.next() }))
}

/// Compiles `ct_lb;`, `ct_lb_mark(backends=...);` and the like.
pub(super) fn balance(lb: &CtLb, stage: Stage) -> Op {
    if lb.backends.is_empty() {
        return track(None, stage, Some(CtNat::Existing), None);
    }
    let names = lb.hash_fields.as_deref().unwrap_or_default().split(',').map(str::trim);
    let names = names.filter(|name| !name.is_empty());
    let Some(hash_fields) = names.map(field_named).collect::<Option<Box<[Field]>>>() else {
        return Op::Unsupported("hash_fields");
    };
    let written = if lb.mark { Field::CtMark } else { Field::CtLabel };
    let flag = lb.flag.map(|flag| match flag {
        LbFlag::SkipSnat => SKIP_SNAT,
        LbFlag::ForceSnat => FORCE_SNAT,
    });
    let bits = [Some(NATTED), flag].into_iter().flatten();
    let exec = bits.filter_map(|bit| Some(Op::Load { to: Subfield::bit(written, bit)?, value: 1 }));
    let backends = lb.backends.iter().map(|it| CtBackend { ip: it.ip, port: it.port });
    Op::CtBalance(Box::new(CtBalance {
        zone: CtZone::Logical,
        backends: backends.collect(),
        hash_fields,
        exec: exec.collect(),
        next: stage.next(),
    }))
}

/// The field with this name in ovs-fields(7).
fn field_named(name: &str) -> Option<Field> {
    let has_name = |field: &&Field| {
        field.spec().ofctl.iter().any(|known| known.name == name || known.aliases.contains(&name))
    };
    Field::ALL.iter().find(has_name).copied()
}
