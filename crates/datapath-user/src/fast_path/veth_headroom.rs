//! Room in front of guests' frames for outer headers.
//!
//! A guest's socket leaves in front of a datagram what its device asks for, which of a veth is nothing. A program that puts such a
//! datagram into a tunnel, or a second tag in front of it, has the kernel move all of it to another place first
//! (`pskb_expand_head`), at half of what all the rest costs. Nobody can tell a veth to ask for more but the kernel's own switches: a
//! bridge asks of each port what any other port needs (`netdev_set_rx_headroom`).
//!
//! So the outer ends of pairs are ports of a bridge, of which a VXLAN device is a port as well; a bridge that is full is followed by
//! another. Neither is ever up, so that this bridge forwards nothing and no UDP port is taken; besides, its ports are isolated from one
//! another, and programs take what comes from guests before a bridge sees it. Where the kernel does not have these devices, the
//! datapath does the same at its former cost.

use netdev::{Error, Ifindex, Link, LinkKind, LinkSpec, Netlink, VxlanSpec};
use std::sync::atomic::{AtomicU8, Ordering};
use wire::{MacAddr, Vni};

/// A bridge has 1,023 ports at most (BR_MAX_PORTS of the kernel), and there are no more ports than [`MAX_PORT`](datapath::config::MAX_PORT).
const ROOMS: u8 = 65;
const PREFIX: &str = "weft-room";
/// How the addresses of these devices begin, by which they are told from somebody else's of such a name.
const MARK: [u8; 5] = [2, b'w', b'e', b'f', b't'];
/// A device of the kernel's is told from another by its VNI and UDP port: one that nobody has for VXLAN ("discard", RFC 863).
const UNUSED_PORT: u16 = 9;
const FIRST_VNI: u32 = 0x00ff_ff00;

/// Where the latest port has found a place: there is likely to be another.
static LATEST: AtomicU8 = AtomicU8::new(0);

/// Sees to it that frames which come by `outer` have room in front of them, if the kernel can do that.
pub(super) fn provide(netlink: &Netlink, outer: Ifindex) {
    if let Err(error) = find_room(netlink, outer, &LATEST) {
        tracing::debug!("guests' datagrams have no room for outer headers: {error}");
    }
}

fn find_room(netlink: &Netlink, outer: Ifindex, latest: &AtomicU8) -> Result<(), Error> {
    let is_room = |master| netlink.link_by_index(master).is_ok_and(|master| is_ours(&master));
    if netlink.link_by_index(outer)?.master.is_some_and(is_room) {
        return Ok(());
    }
    let first = latest.load(Ordering::Relaxed);
    for room in (first..ROOMS).chain(0..first) {
        let Some(bridge) = bridge(netlink, room)? else { continue };
        match join(netlink, outer, bridge) {
            Err(error) if error.is_full() => {}
            result => {
                latest.store(room, Ordering::Relaxed);
                return result;
            }
        }
    }
    Ok(())
}

/// Removes the devices that no pair uses any more.
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
        && link.mac.0.starts_with(&MARK)
        && matches!(link.kind.as_deref(), Some("bridge" | "vxlan"))
}

fn join(netlink: &Netlink, port: Ifindex, bridge: Ifindex) -> Result<(), Error> {
    netlink.set_master(port, Some(bridge))?;
    netlink.isolate(port)
}

/// A bridge, which has its VXLAN device; `None` when one of them has a name that somebody else has.
fn bridge(netlink: &Netlink, room: u8) -> Result<Option<Ifindex>, Error> {
    let [bridge, vxlan] = [room * 2, room * 2 + 1].map(|last| {
        let [a, b, c, d, e] = MARK;
        MacAddr([a, b, c, d, e, last])
    });
    let name = format!("{PREFIX}{room}");
    let Some(bridge) = find_or_make(netlink, &name, bridge, &LinkKind::Bridge)? else {
        return Ok(None);
    };
    let Some(vni) = Vni::new(FIRST_VNI + u32::from(room)) else { return Ok(None) };
    let spec = VxlanSpec { port: UNUSED_PORT, ..VxlanSpec::new(vni) };
    let name = format!("{PREFIX}{room}-vx");
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
    fn another_bridge_takes_ports_when_one_is_full() {
        testkit::require_root!();
        let host = TestHost::new("room");
        let netlink = host.netlink();
        let devices: Vec<Ifindex> = (1..=1030).map(|number| device(netlink, number)).collect();
        let latest = AtomicU8::new(0);
        devices.iter().for_each(|&device| find_room(netlink, device, &latest).unwrap());
        let ports = |at: usize| masters(netlink)[at].1;
        assert_eq!((masters(netlink).len(), ports(0), ports(1)), (2, 1022, 8));
        find_room(netlink, devices[0], &latest).unwrap();
        assert_eq!((ports(0), ports(1)), (1022, 8), "it is in one");
        devices[..1022].iter().for_each(|&device| netlink.delete(device).unwrap());
        remove_unused(netlink).unwrap();
        assert_eq!(masters(netlink).iter().map(|it| it.1).collect::<Vec<_>>(), [8]);
        devices[1022..].iter().for_each(|&device| netlink.delete(device).unwrap());
        remove_unused(netlink).unwrap();
        assert!(netlink.links().unwrap().iter().all(|link| !link.name.starts_with(PREFIX)));
    }

    #[test]
    fn devices_of_others_are_left_alone_when_they_have_our_names() {
        testkit::require_root!();
        let host = TestHost::new("taken");
        let netlink = host.netlink();
        let name = format!("{PREFIX}0");
        let theirs = netlink.create(&LinkSpec::new(&name), &LinkKind::Bridge).unwrap();
        let external = LinkKind::Vxlan(VxlanSpec::external());
        let own = device(netlink, 1);
        find_room(netlink, own, &AtomicU8::new(0)).unwrap();
        netlink.create(&LinkSpec::new("vxlan0"), &external).expect("its port is nobody's");
        let master = netlink.link_by_index(own).unwrap().master.expect("there is another");
        assert_ne!(master, theirs);
        netlink.delete(own).unwrap();
        remove_unused(netlink).unwrap();
        let left: Vec<String> = netlink.links().unwrap().into_iter().map(|it| it.name).collect();
        assert!(left.contains(&name) && left.contains(&"vxlan0".to_owned()), "{left:?}");
        assert!(netlink.link_by_index(master).unwrap_err().is_not_found());
    }
}
