//! Determines which frames must keep their order: frames of one flow that take the same path.

use super::reference::ObservedFrame;
use datapath::megaflow::MegaflowId;
use flow::{Action, Field, FlowKey, FlowMask, PortNo};
use packet::PacketBuf;
use std::hash::{DefaultHasher, Hash, Hasher};
use wire::EtherType;

/// Fields that are equal in all packets of a flow.
const FLOW: [Field; 14] = [
    Field::EthSrc,
    Field::EthDst,
    Field::EthType,
    Field::VlanTci,
    Field::VlanInnerTci,
    Field::Ip4Src,
    Field::Ip4Dst,
    Field::Ip6Src,
    Field::Ip6Dst,
    Field::IpProto,
    Field::TpSrc,
    Field::TpDst,
    Field::TunId,
    Field::TunDst,
];

/// The flow of a packet, within which order is kept.
pub(super) fn flow_of(port: PortNo, key: &FlowKey, packet: &PacketBuf) -> u64 {
    let mut mask = FlowMask::default();
    FLOW.into_iter().for_each(|field| mask.add(field));
    let mut hasher = DefaultHasher::new();
    (port, mask.apply(key)).hash(&mut hasher);
    if EtherType(key.get(Field::EthType) as u16).is_vlan() {
        // The key does not contain the headers behind more than two tags, but these headers may
        // belong to different flows.
        ObservedFrame::whole(packet).frame.hash(&mut hasher);
    }
    hasher.finish()
}

/// Identifies the path of a frame through a datapath, which depends on its megaflow and its
/// actions.
pub(super) fn path_of(megaflow: Option<MegaflowId>, actions: &[Action]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (megaflow, actions).hash(&mut hasher);
    hasher.finish()
}
