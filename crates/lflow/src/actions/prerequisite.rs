//! The prerequisites of actions: conditions under which the fields that they use exist.

use super::ast::{Action, Check, NestedPacket, OptionProtocol};
use crate::symbol::FieldRef;

/// Adds the prerequisites of actions to `found`, each once.
pub(super) fn collect(actions: &[Action], found: &mut Vec<&'static str>) {
    for action in actions {
        let mut add = |name: &'static str| {
            if !name.is_empty() && !found.contains(&name) {
                found.push(name);
            }
        };
        add(own(action));
        for field in fields(action).into_iter().flatten() {
            add(field.symbol().prerequisite);
        }
        // These work on the same packet, or on one with the same headers. Other nested actions work
        // on a new packet that may have headers which the current one lacks.
        if let Action::Nested(NestedPacket::Clone | NestedPacket::Reject, actions) = action {
            collect(actions, found);
        }
    }
}

/// The prerequisite of the action itself; empty if there is none.
const fn own(action: &Action) -> &'static str {
    match action {
        Action::DecTtl
        | Action::CtNext(_)
        | Action::CtCommit(_)
        | Action::CtCommitV1 { .. }
        | Action::CtNat { .. }
        | Action::CtCommitNat(_)
        | Action::CtCommitToZone(_)
        | Action::CtLb(_) => "ip",
        Action::Nested(nest, _) => match nest {
            NestedPacket::Arp | NestedPacket::Icmp4 | NestedPacket::Icmp4Error => "ip4",
            NestedPacket::Icmp6 | NestedPacket::Icmp6Error | NestedPacket::NdNs => "ip6",
            NestedPacket::NdNa | NestedPacket::NdNaRouter => "nd_ns",
            NestedPacket::TcpReset => "tcp",
            NestedPacket::SctpAbort => "sctp",
            NestedPacket::Clone | NestedPacket::Reject => "",
        },
        Action::Check { check: Check::DnsLookup, .. } => "udp",
        Action::PutOptions { protocol: OptionProtocol::NdRa, .. } => "ip6",
        _ => "",
    }
}

/// The fields that the action reads or writes.
fn fields(action: &Action) -> [Option<FieldRef>; 4] {
    let (a, b, c, d) = match *action {
        Action::Load { to, .. }
        | Action::LoadName { to, .. }
        | Action::Push(to)
        | Action::Pop(to)
        | Action::Check { to, .. }
        | Action::CheckLength { to, .. }
        | Action::CtRead { to, .. }
        | Action::Select { to, .. }
        | Action::PutOptions { to, .. }
        | Action::BindVport { parent: to, .. }
        | Action::HandleSvcCheck(to) => (Some(to), None, None, None),
        Action::Move { to: a, from: b }
        | Action::Exchange(a, b)
        | Action::GetMacBinding { port: a, ip: b, .. }
        | Action::GetFdb { to: a, mac: b }
        | Action::PutFdb { port: a, mac: b } => (Some(a), Some(b), None, None),
        Action::PutMacBinding { port: a, ip: b, mac: c, .. }
        | Action::LookupFdb { to: a, port: b, mac: c } => (Some(a), Some(b), Some(c), None),
        Action::LookupMacBinding { to, port, ip, mac, .. } => (Some(to), Some(port), Some(ip), mac),
        _ => (None, None, None, None),
    };
    [a, b, c, d]
}
