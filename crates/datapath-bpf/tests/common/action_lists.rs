//! Random actions for frames.

use flow::{Action, Field, FlowKey};
use testkit::random::Random;

/// Actions that set fields that a frame of this key has.
pub fn sets(random: &mut Random, key: &FlowKey) -> Vec<Action> {
    let ip: &[Field] = match key.get(Field::EthType) {
        0x0800 => &[Field::Ip4Src, Field::Ip4Dst, Field::IpTtl, Field::IpDscp, Field::IpEcn],
        0x86dd => &[Field::Ip6Src, Field::Ip6Dst, Field::IpTtl, Field::IpDscp, Field::IpEcn],
        0x0806 => &[Field::ArpOp, Field::ArpSha, Field::ArpSpa, Field::ArpTha, Field::ArpTpa],
        _ => &[],
    };
    let has_ports = matches!(key.get(Field::IpProto), 6 | 17) && key.get(Field::IpFrag) != 3;
    let ports: &[Field] = if has_ports { &[Field::TpSrc, Field::TpDst] } else { &[] };
    let mut fields = [&[Field::EthDst, Field::EthSrc], ip, ports].concat();
    fields.retain(|_| random.once_in(3));
    let set = |field: Field| {
        let mask = field.all_ones();
        Action::Set { field, value: random.wide() & mask, mask }
    };
    fields.into_iter().map(set).collect()
}

/// Whether programs punt such a list although userspace can execute it. This does not use the
/// programs' own condition, so that the comparison is independent of it.
pub fn has_odd_action(key: &FlowKey, actions: &[Action]) -> bool {
    let of_ip6 = [Field::Ip6Src, Field::Ip6Dst, Field::TpSrc, Field::TpDst];
    let of_addresses = [Field::Ip4Src, Field::Ip4Dst, Field::Ip6Src, Field::Ip6Dst];
    actions.iter().any(|action| {
        let Action::Set { field, .. } = action else { return false };
        let odd_sum = matches!(key.get(Field::IpProto), 33 | 136);
        of_addresses.contains(field) && odd_sum
            || key.get(Field::EthType) == 0x86dd && of_ip6.contains(field)
    })
}
