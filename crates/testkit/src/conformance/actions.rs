//! Generates random conditions and action lists.

use super::{PORTS, UNREPORTED_FIELDS, UPLINK, endpoints};
use crate::frames;
use crate::random::Random;
use flow::{
    AclVerdict, Action, DatapathKey, DropReason, EndpointId, Field, FlowKey, FlowMask, LogPriority,
    LogRecord, LogicalPorts, Match, PortKey, PortNo, Reply, TunnelKey,
};
use services::{Service, dhcp4};
use std::sync::Arc;
use wire::EtherType;
use wire::vlan::Tag;

/// Fields that no action rewrites. With TPID 0x9100, Linux would not find the headers behind the
/// tag, and so would not treat the frame as a super-packet.
pub(super) const KEPT: [Field; 2] = [Field::VlanTpid, Field::VlanInnerTpid];

/// Which actions a list may contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kinds {
    /// All actions.
    All,
    /// Only actions whose effect on a super-packet equals that on each of its segments.
    EachSegment,
}

/// A random match condition that `key` meets.
pub(super) fn condition(random: &mut Random, key: &FlowKey) -> Match {
    let mut mask = FlowMask::default();
    for _ in 0..1 + random.below(5) {
        let field = random.pick(Field::ALL);
        if field.is_register() || UNREPORTED_FIELDS.contains(&field) {
            continue;
        }
        let all = field.all_ones();
        let bits = match random.below(4) {
            0 => all & !(all >> random.below(field.width().into())),
            1 => random.wide() & all,
            _ => all,
        };
        mask.add_bits(field, bits);
    }
    if random.once_in(2) {
        [Field::InPort, Field::EthSrc, Field::EthDst].into_iter().for_each(|field| mask.add(field));
    }
    Match::new(key, mask)
}

/// A random action list.
pub(super) fn list(random: &mut Random, kinds: Kinds) -> Arc<[Action]> {
    nested(random, kinds, 0).into()
}

fn nested(random: &mut Random, kinds: Kinds, depth: usize) -> Vec<Action> {
    let mut list: Vec<Action> =
        (0..random.below(4)).map(|_| action(random, kinds, depth)).collect();
    if !random.once_in(6) {
        list.push(Action::Output(port(random)));
    }
    list
}

fn port(random: &mut Random) -> PortNo {
    match random.below(10) {
        0 => UPLINK,
        1 => PortNo(77),
        _ => random.pick(&PORTS),
    }
}

fn action(random: &mut Random, kinds: Kinds, depth: usize) -> Action {
    let boxed = |random: &mut Random| nested(random, kinds, depth + 1).into_boxed_slice();
    let kind = if kinds == Kinds::All { random.below(25) } else { random.below(13) };
    match kind {
        0..3 => Action::Output(random.pick(&PORTS)),
        3..5 => {
            let tpid = random.pick(&[EtherType::VLAN, EtherType::QINQ]);
            Action::PushVlan(Tag::from_tci(tpid, random.pick(&[1, 0x2064, 0xefff])))
        }
        5..7 => Action::PopVlan,
        7..12 => set(random, kinds),
        12 if depth < 2 => Action::Clone(boxed(random)),
        13 if depth < 2 => {
            Action::Reply { reply: random.pick(&Reply::ALL), actions: boxed(random) }
        }
        14 if depth < 2 => Action::CheckLength {
            bytes: random.pick(&[59, 100, 600, 1514]),
            larger: boxed(random),
            otherwise: boxed(random),
        },
        15..20 => encap(random),
        20 => Action::SetIcmpMtu(random.pick(&[0, 1400, 70_000])),
        21 => Action::Controller,
        22 => Action::Drop(random.pick(DropReason::ALL)),
        23 if depth < 2 => {
            let service = Service::Dhcp4(dhcp4::Server::new([10, 0, 0, 2].into()));
            let answered = [boxed(random), boxed(random)].into();
            Action::Serve { service: Arc::new(service), answered, otherwise: boxed(random) }
        }
        _ => log_or_queue(random.once_in(2)),
    }
}

fn log_or_queue(queue: bool) -> Action {
    if queue {
        return Action::SetQueue(1);
    }
    let record = LogRecord {
        name: "conformance".to_owned(),
        priority: LogPriority::Debug,
        verdict: AclVerdict::Allow,
        is_from_lport: true,
        meter: None,
    };
    Action::Log(Arc::new(record))
}

fn encap(random: &mut Random) -> Action {
    let known: Vec<EndpointId> = endpoints().map(|endpoint| endpoint.id).collect();
    let endpoint = if random.once_in(12) { EndpointId(1) } else { random.pick(&known) };
    let egress = PortKey::new(1 + random.below(9) as u16).expect("not 0");
    let ports = LogicalPorts { ingress: PortKey::new(random.below(3) as u16), egress };
    let key = TunnelKey {
        datapath: DatapathKey(1 + random.below(9) as u32),
        ports: random.once_in(2).then_some(ports),
    };
    Action::Encap { endpoint, key }
}

/// Sets a header field, whether or not the packet has this header.
fn set(random: &mut Random, kinds: Kinds) -> Action {
    // The first and the last segment of a super-packet can have TCP flags that the others lack.
    let is_kept = |field: &Field| {
        KEPT.contains(field) || kinds == Kinds::EachSegment && *field == Field::TcpFlags
    };
    let all: Vec<Field> =
        Field::ALL.iter().copied().filter(|f| f.is_header() && !is_kept(f)).collect();
    let often = [Field::EthSrc, Field::EthDst, Field::Ip4Src, Field::Ip6Dst, Field::IpTtl];
    let field = if random.once_in(2) { random.pick(&often) } else { random.pick(&all) };
    let value = match field {
        Field::EthSrc | Field::EthDst => {
            let octets = frames::mac(random).0.map(u64::from);
            u128::from(octets.iter().fold(0, |value, octet| value << 8 | octet))
        }
        Field::Ip4Src | Field::Ip4Dst => frames::ip4(random).to_bits().into(),
        Field::Ip6Src | Field::Ip6Dst => frames::ip6(random).to_bits(),
        Field::IpTtl => random.pick(&[0, 1, 63]),
        _ => random.wide() & field.all_ones(),
    };
    let mask = if random.once_in(4) { random.wide() & field.all_ones() } else { field.all_ones() };
    Action::Set { field, value: value & mask, mask }
}
