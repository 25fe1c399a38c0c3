//! Decides which header fields a packet has.

use super::translator::TAG_PRESENT;
use crate::recorder::Recorder;
use flow::{Access, Field, Prerequisite};

/// True when the packet has the header field and the switch may write it. A field that the packet
/// lacks is 0 in the key, and stays 0. Records every bit that the result depends on.
pub(super) fn has_field(key: &mut impl Recorder, field: Field) -> bool {
    let spec = field.spec();
    match (spec.access, spec.prerequisite) {
        (Access::ReadWrite | Access::SwitchOnly, Prerequisite::Vlan) => {
            key.read(Field::VlanTci, TAG_PRESENT) != 0
        }
        // An option that the message lacks cannot be written.
        (Access::ReadWrite, Prerequisite::NdSolicit | Prerequisite::NdAdvert) => {
            meets(key, Prerequisite::Nd) && key.read_field(field) != 0
        }
        (Access::ReadWrite | Access::SwitchOnly, needs) => meets(key, needs),
        _ => false,
    }
}

/// True when the packet meets a prerequisite, and has the transport header if the prerequisite
/// names a protocol: later fragments have none.
fn meets(key: &mut impl Recorder, prerequisite: Prerequisite) -> bool {
    const LATER_FRAGMENT: u128 = 2;
    let requirement = prerequisite.requirement();
    if requirement.frame_kinds.is_empty() {
        return true;
    }
    let eth_type = key.read_field(Field::EthType);
    let kind = requirement.frame_kinds.iter().find(|kind| u128::from(kind.eth_type) == eth_type);
    let Some(kind) = kind else { return false };
    if kind.ip_protos.is_empty() {
        return true;
    }
    let ip_proto = key.read_field(Field::IpProto);
    let is_later = key.read(Field::IpFrag, LATER_FRAGMENT) != 0;
    let is_one_of = |value: u128, of: &[u8]| of.iter().any(|&one| u128::from(one) == value);
    if is_later || !is_one_of(ip_proto, kind.ip_protos) {
        return false;
    }
    requirement.icmp_types.is_empty()
        || is_one_of(key.read_field(Field::IcmpType), requirement.icmp_types)
            && key.read_field(Field::IcmpCode) == 0
}
