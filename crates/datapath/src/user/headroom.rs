//! Room in front of guests' frames for outer headers.
//!
//! A guest's socket leaves in front of a datagram what its device asks for, which of a veth is nothing. A program that puts such a
//! datagram into a tunnel, or a second tag in front of it, has the kernel move all of it to another place first
//! (`pskb_expand_head`), at half of what all the rest costs. Nobody can tell a veth to ask for more but the kernel's own switches: a
//! bridge asks of each port what any other port needs (`netdev_set_rx_headroom`).
//!
//! So the outer ends of pairs are ports of a bridge, of which a VXLAN device is a port as well. Neither is ever up, so that this
//! bridge forwards nothing; besides, its ports are isolated from one another, and programs take what comes from guests before a
//! bridge sees it. Where the kernel does not have these devices, the datapath does the same at its former cost.

use netdev::{Error, Ifindex, LinkKind, LinkSpec, Netlink, VxlanSpec};

const BRIDGE: &str = "weft-room";
const VXLAN: &str = "weft-room-vxlan";

/// Sees to it that frames which come by `outer` have room in front of them, if the kernel can do that.
pub(super) fn provide(netlink: &Netlink, outer: Ifindex) {
    if let Err(error) = bridge(netlink).and_then(|bridge| join(netlink, outer, bridge)) {
        tracing::debug!("guests' datagrams have no room for outer headers: {error}");
    }
}

/// Removes the devices when no pair uses them any more.
pub(super) fn tidy(netlink: &Netlink) -> Result<(), Error> {
    let links = netlink.links()?;
    let of_name = |name: &str| links.iter().find(|link| link.name == name);
    let Some(bridge) = of_name(BRIDGE) else { return Ok(()) };
    if links.iter().any(|link| link.master == Some(bridge.index) && link.name != VXLAN) {
        return Ok(());
    }
    for link in [of_name(VXLAN), Some(bridge)].into_iter().flatten() {
        match netlink.delete(link.index) {
            Err(error) if error.is_not_found() => {}
            result => result?,
        }
    }
    Ok(())
}

fn join(netlink: &Netlink, port: Ifindex, bridge: Ifindex) -> Result<(), Error> {
    netlink.set_master(port, Some(bridge))?;
    netlink.isolate(port)
}

/// The bridge, which has its VXLAN device.
fn bridge(netlink: &Netlink) -> Result<Ifindex, Error> {
    let bridge = find_or_make(netlink, BRIDGE, &LinkKind::Bridge)?;
    let vxlan = find_or_make(netlink, VXLAN, &LinkKind::Vxlan(VxlanSpec::external()))?;
    join(netlink, vxlan, bridge)?;
    Ok(bridge)
}

fn find_or_make(netlink: &Netlink, name: &str, kind: &LinkKind<'_>) -> Result<Ifindex, Error> {
    match netlink.create(&LinkSpec::new(name), kind) {
        Err(error) if error.is_exists() => netlink.index_of(name),
        result => result,
    }
}
