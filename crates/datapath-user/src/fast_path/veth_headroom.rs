//! Headroom for outer headers in front of guests' frames that arrive by veth pairs.
//!
//! A socket reserves as much headroom as the device asks for, and a veth asks for none. An eBPF
//! program that encapsulates such a frame, or adds a second tag, then makes the kernel copy it
//! (`pskb_expand_head`), which costs half as much as everything else. Only the kernel's own
//! switches can make a veth ask for more: a bridge sets the headroom of each port to the most that
//! any of its ports needs (`netdev_set_rx_headroom`).
//!
//! So the outer ends of the pairs are ports of a bridge that has a VXLAN device as another port. A
//! full bridge is followed by another. These bridges and VXLAN devices are never up, so they
//! forward nothing and occupy no UDP port. In addition, the bridge ports are isolated from one
//! another, and programs consume guests' frames before a bridge would see them. If the kernel has
//! no such devices, frames are forwarded without the headroom, at a higher cost.

use netdev::{Error, Ifindex, Link, LinkKind, LinkSpec, Netlink, VxlanSpec};
use std::sync::atomic::{AtomicU8, Ordering};
use wire::{MacAddr, Vni};

/// The most bridges: enough for [`MAX_PORT`](datapath::config::MAX_PORT) ports. A bridge has at
/// most 1,023 ports (`BR_MAX_PORTS` of the kernel), of which the VXLAN device is one.
const MAX_BRIDGES: u8 = 65;
const PREFIX: &str = "weft-room";
/// The first bytes of the MAC addresses of these devices. They distinguish the devices from others
/// with such a name.
const MAC_PREFIX: [u8; 5] = [2, b'w', b'e', b'f', b't'];
/// The kernel requires that VXLAN devices differ in VNI or UDP port. Nobody uses this port for
/// VXLAN ("discard", RFC 863).
const UNUSED_PORT: u16 = 9;
const FIRST_VNI: u32 = 0x00ff_ff00;

/// The number of the bridge that the latest port joined: it is likely to have room for another.
static LATEST: AtomicU8 = AtomicU8::new(0);

/// Gives frames that arrive by `outer` headroom, if the kernel supports it.
pub(super) fn provide(netlink: &Netlink, outer: Ifindex) {
    if let Err(error) = join_any_bridge(netlink, outer, &LATEST) {
        messages::log!(HEADROOM_NOT_SET, "cannot give guests' frames headroom: {error}");
    }
}

fn join_any_bridge(netlink: &Netlink, outer: Ifindex, latest: &AtomicU8) -> Result<(), Error> {
    let is_our_bridge = |master| netlink.link_by_index(master).is_ok_and(|master| is_ours(&master));
    if netlink.link_by_index(outer)?.master.is_some_and(is_our_bridge) {
        return Ok(());
    }
    let first = latest.load(Ordering::Relaxed);
    for number in (first..MAX_BRIDGES).chain(0..first) {
        let Some(bridge) = bridge(netlink, number)? else { continue };
        match join(netlink, outer, bridge) {
            Err(error) if error.is_full() => {}
            result => {
                latest.store(number, Ordering::Relaxed);
                return result;
            }
        }
    }
    Ok(())
}

/// Gives headroom to frames from a device that weft has not made, if it is a veth whose other end
/// is in another network namespace, and not a port of another bridge.
pub(crate) fn provide_to_interface(netlink: &Netlink, link: &Link) {
    if link.is_veth() && link.has_peer_in_other_netns() && link.master.is_none() {
        provide(netlink, link.index);
    }
}

/// Undoes [`provide_to_interface`].
///
/// # Errors
/// The device is gone, or the kernel refuses.
pub(crate) fn withdraw(netlink: &Netlink, index: Ifindex) -> Result<(), Error> {
    if let Some(master) = netlink.link_by_index(index)?.master
        && is_ours(&netlink.link_by_index(master)?)
    {
        netlink.set_master(index, None)?;
    }
    remove_unused(netlink)
}

/// Removes all devices that weft has not made from the bridges, and ends their promiscuous mode.
/// This cleans up after a process that has left no other trace of them.
///
/// # Errors
/// The kernel refuses to list or change devices.
pub(super) fn release_all(netlink: &Netlink) -> Result<(), Error> {
    let links = netlink.links()?;
    let is_our_bridge = |index| links.iter().any(|link| link.index == index && is_ours(link));
    let is_foreign_port = |link: &&Link| {
        !is_ours(link) && !super::veth::is_ours(link) && link.master.is_some_and(is_our_bridge)
    };
    for link in links.iter().filter(is_foreign_port) {
        match super::release_interface(netlink, link.index) {
            Err(error) if error.is_not_found() => {}
            result => result?,
        }
    }
    Ok(())
}

/// Removes the bridges that have no veth as port any more, and their VXLAN devices.
pub(super) fn remove_unused(netlink: &Netlink) -> Result<(), Error> {
    let links = netlink.links()?;
    let has_ports =
        |bridge: Ifindex| links.iter().any(|link| link.master == Some(bridge) && !is_ours(link));
    let is_used = |link: &Link| has_ports(link.index) || link.master.is_some_and(has_ports);
    for link in links.iter().filter(|link| is_ours(link) && !is_used(link)) {
        match netlink.delete(link.index) {
            Err(error) if error.is_not_found() => {}
            result => result?,
        }
    }
    Ok(())
}

fn is_ours(link: &Link) -> bool {
    link.name.starts_with(PREFIX)
        && link.mac.0.starts_with(&MAC_PREFIX)
        && matches!(link.kind.as_deref(), Some("bridge" | "vxlan"))
}

fn join(netlink: &Netlink, port: Ifindex, bridge: Ifindex) -> Result<(), Error> {
    netlink.set_master(port, Some(bridge))?;
    netlink.isolate(port)
}

/// Finds or makes a bridge with its VXLAN device. `None` if another device has one of their names.
fn bridge(netlink: &Netlink, number: u8) -> Result<Option<Ifindex>, Error> {
    let [bridge, vxlan] = [number * 2, number * 2 + 1].map(|last| {
        let [a, b, c, d, e] = MAC_PREFIX;
        MacAddr([a, b, c, d, e, last])
    });
    let name = format!("{PREFIX}{number}");
    let Some(bridge) = find_or_make(netlink, &name, bridge, &LinkKind::Bridge)? else {
        return Ok(None);
    };
    let Some(vni) = Vni::new(FIRST_VNI + u32::from(number)) else { return Ok(None) };
    let spec = VxlanSpec { port: UNUSED_PORT, ..VxlanSpec::new(vni) };
    let name = format!("{PREFIX}{number}-vx");
    let Some(vxlan) = find_or_make(netlink, &name, vxlan, &LinkKind::Vxlan(spec))? else {
        return Ok(None);
    };
    join(netlink, vxlan, bridge)?;
    Ok(Some(bridge))
}

fn find_or_make(
    netlink: &Netlink,
    name: &str,
    mac: MacAddr,
    kind: &LinkKind<'_>,
) -> Result<Option<Ifindex>, Error> {
    match netlink.create(&LinkSpec::new(name).mac(mac), kind) {
        Err(error) if error.is_exists() => {
            let link = netlink.link(name)?;
            Ok((is_ours(&link) && link.mac == mac).then_some(link.index))
        }
        result => result.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::host::TestHost;

    fn device(netlink: &Netlink, number: u32) -> Ifindex {
        let spec = VxlanSpec { port: 7, ..VxlanSpec::new(Vni::new(number).unwrap()) };
        netlink.create(&LinkSpec::new(&format!("d{number}")), &LinkKind::Vxlan(spec)).unwrap()
    }

    fn masters(netlink: &Netlink) -> Vec<(Ifindex, usize)> {
        let links = netlink.links().unwrap();
        let ports = |bridge: &Link| {
            links.iter().filter(|link| link.master == Some(bridge.index) && !is_ours(link)).count()
        };
        let bridges = links.iter().filter(|link| link.kind.as_deref() == Some("bridge"));
        bridges.map(|bridge| (bridge.index, ports(bridge))).collect()
    }

    #[test]
    fn second_bridge_is_used_when_the_first_is_full() {
        testkit::require_root!();
        let host = TestHost::new("room");
        let netlink = host.netlink();
        let devices: Vec<Ifindex> = (1..=1030).map(|number| device(netlink, number)).collect();
        let latest = AtomicU8::new(0);
        devices.iter().for_each(|&device| join_any_bridge(netlink, device, &latest).unwrap());
        let ports = |at: usize| masters(netlink)[at].1;
        assert_eq!((masters(netlink).len(), ports(0), ports(1)), (2, 1022, 8));
        join_any_bridge(netlink, devices[0], &latest).unwrap();
        assert_eq!((ports(0), ports(1)), (1022, 8), "the device is already in a bridge");
        devices[..1022].iter().for_each(|&device| netlink.delete(device).unwrap());
        remove_unused(netlink).unwrap();
        assert_eq!(masters(netlink).iter().map(|it| it.1).collect::<Vec<_>>(), [8]);
        devices[1022..].iter().for_each(|&device| netlink.delete(device).unwrap());
        remove_unused(netlink).unwrap();
        assert!(netlink.links().unwrap().iter().all(|link| !link.name.starts_with(PREFIX)));
    }

    #[test]
    fn foreign_devices_are_unchanged_when_they_have_our_names() {
        testkit::require_root!();
        let host = TestHost::new("taken");
        let netlink = host.netlink();
        let name = format!("{PREFIX}0");
        let theirs = netlink.create(&LinkSpec::new(&name), &LinkKind::Bridge).unwrap();
        let external = LinkKind::Vxlan(VxlanSpec::external());
        let own = device(netlink, 1);
        join_any_bridge(netlink, own, &AtomicU8::new(0)).unwrap();
        netlink.create(&LinkSpec::new("vxlan0"), &external).expect("its UDP port is free");
        let master = netlink.link_by_index(own).unwrap().master.expect("another bridge");
        assert_ne!(master, theirs);
        netlink.delete(own).unwrap();
        remove_unused(netlink).unwrap();
        let left: Vec<String> = netlink.links().unwrap().into_iter().map(|it| it.name).collect();
        assert!(left.contains(&name) && left.contains(&"vxlan0".to_owned()), "{left:?}");
        assert!(netlink.link_by_index(master).unwrap_err().is_not_found());
    }

    #[test]
    fn interface_of_somebody_else_leaves_the_bridge_when_it_is_no_longer_a_port() {
        testkit::require_root!();
        let (host, guest) = (TestHost::new("lent"), TestHost::new("guest"));
        let netlink = host.netlink();
        let pair = |name: &str, netns| {
            let peer = LinkSpec::new("eth0");
            let peer = if netns { peer.netns(&guest) } else { LinkSpec::new("other") };
            netlink.create(&LinkSpec::new(name), &LinkKind::Veth { peer }).expect("a pair")
        };
        let (container, here) = (pair("a", true), pair("b", false));
        let link = |index| netlink.link_by_index(index).unwrap();
        for index in [container, here] {
            provide_to_interface(netlink, &link(index));
        }
        let master = link(container).master.expect("the device has headroom");
        assert!(is_ours(&link(master)));
        assert_eq!(link(here).master, None, "its other end is in the same namespace");
        withdraw(netlink, container).unwrap();
        assert_eq!(link(container).master, None);
        assert!(netlink.link_by_index(master).unwrap_err().is_not_found());

        let theirs = netlink.create(&LinkSpec::new("br0"), &LinkKind::Bridge).unwrap();
        netlink.set_master(container, Some(theirs)).unwrap();
        provide_to_interface(netlink, &link(container));
        withdraw(netlink, container).unwrap();
        assert_eq!(link(container).master, Some(theirs), "the bridge of somebody else");
    }

    #[test]
    fn interfaces_of_others_leave_the_bridges_when_all_are_released() {
        testkit::require_root!();
        let (host, guest) = (TestHost::new("left"), TestHost::new("guest"));
        let netlink = host.netlink();
        let pair = |name: &str| {
            let peer = LinkSpec::new(name).netns(&guest);
            netlink.create(&LinkSpec::new(name), &LinkKind::Veth { peer }).expect("a pair")
        };
        let (lent, theirs) = (pair("a"), pair("b"));
        let link = |index| netlink.link_by_index(index).unwrap();
        netlink.set_promiscuous(lent, true).unwrap();
        netlink.set_promiscuous(theirs, true).unwrap();
        provide_to_interface(netlink, &link(lent));
        let master = link(lent).master.expect("the device has headroom");
        let bridge = netlink.create(&LinkSpec::new("br0"), &LinkKind::Bridge).unwrap();
        netlink.set_master(theirs, Some(bridge)).unwrap();

        release_all(netlink).unwrap();
        assert_eq!((link(lent).master, link(lent).promiscuous), (None, false));
        assert!(netlink.link_by_index(master).unwrap_err().is_not_found());
        let theirs = link(theirs);
        assert_eq!((theirs.master, theirs.promiscuous), (Some(bridge), true), "not lent to weft");
    }
}
