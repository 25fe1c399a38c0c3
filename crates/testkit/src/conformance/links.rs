//! Frames with VLAN tags on the uplink. The datapath removes these tags before further processing.

use super::reference::ExpectedUpcall;
use super::{UPLINK, tunnel_port};
use crate::random::Random;
use datapath::config::LinkConfig;
use flow::{DropReason, PortNo, TagLink, TagLinks, TunnelInfo, extract, push_vlan};
use packet::PacketBuf;
use wire::vlan::{Tag, Tags};
use wire::{EtherType, VlanId};

/// The configured tag links. Frames of guests may contain the same tags.
pub(super) fn links() -> Vec<LinkConfig> {
    let vlan = |value| VlanId::new(value).expect("a VLAN");
    let qinq = |service_tpid, outer, inner| TagLink::QinQ {
        service_tpid,
        outer: vlan(outer),
        inner: vlan(inner),
    };
    let links = [
        TagLink::Vlan(vlan(100)),
        qinq(EtherType::QINQ, 100, 1),
        qinq(EtherType::VLAN, 1, 2),
        qinq(EtherType::VLAN_9100, 100, 100),
    ];
    let link = |link: TagLink| LinkConfig { port: tunnel_port(link.tunnel()), link };
    links.into_iter().map(link).collect()
}

/// Adds the tags of a link to most frames for the uplink. Returns false for a frame that stays
/// untagged, because the uplink does not accept it.
pub(super) fn add_tags(random: &mut Random, packet: &mut PacketBuf) -> bool {
    let Ok(own) = Tags::parse(packet.head()) else { return false };
    if own.outer().is_some() && random.once_in(4) {
        return true;
    }
    let (outer, inner) = random.pick(&links()).link.tags();
    if outer.tpid == EtherType::VLAN_9100 && packet.offload.gso.is_some() {
        // A frame with TPID 0x9100 cannot be sent, because Linux does not support it.
        return own.outer().is_some();
    }
    let mut add_tag = |tag: Tag| {
        let tag = Tag { pcp: random.below(8) as u8, ..tag };
        push_vlan(packet, tag).is_ok()
    };
    inner.is_none_or(&mut add_tag) && add_tag(outer)
}

/// The packet as the datapath sees it when the frame is received on the port.
pub(super) fn arrived(
    port: PortNo,
    packet: &PacketBuf,
) -> Result<(PortNo, Option<TunnelInfo>, PacketBuf), DropReason> {
    if port != UPLINK {
        return Ok((port, None, packet.clone()));
    }
    let known: TagLinks = links().iter().map(|&LinkConfig { port, link }| (link, port)).collect();
    let mut packet = packet.clone();
    let (link, port) = known.decap(&mut packet)?;
    Ok((port, Some(TunnelInfo::of_link(link)), packet))
}

/// The packet of an upcall for this frame; `None` when the frame is dropped before the lookup.
pub(super) fn expected_upcall(port: PortNo, packet: &PacketBuf) -> Option<ExpectedUpcall> {
    let (port, info, packet) = arrived(port, packet).ok()?;
    let key = extract(&packet, port, info.as_ref()).ok()?;
    Some(ExpectedUpcall { port, key, packet })
}
