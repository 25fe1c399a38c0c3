use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use netdev::{
    Dad, IpNet, Link, LinkKind, LinkSpec, Monitor, NeighbourState, Netlink, NetlinkEvent, Route,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use testkit::host::{TestHost, pair, wait_until};

/// Waits until an event satisfies `is_expected`, and returns all events up to it.
fn wait_for(
    monitor: &mut Monitor,
    what: &str,
    is_expected: impl Fn(&NetlinkEvent) -> bool,
) -> Vec<NetlinkEvent> {
    let mut seen = Vec::new();
    wait_until(Duration::from_secs(10), what, || {
        seen.extend(monitor.drain().unwrap());
        seen.iter().any(&is_expected)
    });
    seen
}

#[test]
fn monitor_reports_links_created_changed_and_removed() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, far) = pair(&a, &b);
    wait_until(Duration::from_secs(5), "the link runs", || {
        a.netlink().link(&end.name).unwrap().running
    });
    let mut monitor = a.monitor().unwrap();
    assert_eq!(monitor.drain().unwrap(), []);

    b.netlink().set_down(far.index).unwrap();
    wait_for(&mut monitor, "carrier is lost", |event| {
        matches!(event, NetlinkEvent::LinkChanged(link)
                if link.name == end.name && link.up && !link.running)
    });
    b.netlink().set_up(far.index).unwrap();
    wait_for(&mut monitor, "carrier is back", |event| {
        matches!(event, NetlinkEvent::LinkChanged(link)
                if link.index == end.index && link.running)
    });
    a.netlink().set_down(end.index).unwrap();
    let is_down = |link: &Link| link.index == end.index && !link.up;
    wait_for(
        &mut monitor,
        "the link is down",
        |event| matches!(event, NetlinkEvent::LinkChanged(link) if is_down(link)),
    );
    a.netlink().delete(end.index).unwrap();
    let removed = NetlinkEvent::LinkRemoved { index: end.index, name: end.name };
    wait_for(&mut monitor, "the link is gone", |event| *event == removed);
}

#[test]
fn descriptor_is_readable_only_after_a_change() {
    testkit::require_root!();
    let a = TestHost::new("a");
    let mut monitor = a.monitor().unwrap();
    let readable = |monitor: &Monitor, timeout_ms: u16| {
        let mut fds = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(timeout_ms)).unwrap() == 1
    };
    assert!(!readable(&monitor, 0));
    a.netlink().create(&LinkSpec::new("br0"), &LinkKind::Bridge).unwrap();
    assert!(readable(&monitor, 5000));
    wait_for(
        &mut monitor,
        "the bridge is seen",
        |event| matches!(event, NetlinkEvent::LinkChanged(link) if link.name == "br0"),
    );
}

#[test]
fn monitor_reports_no_removal_when_a_port_leaves_its_bridge() {
    testkit::require_root!();
    let a = TestHost::new("a");
    let netlink = a.netlink();
    let bridge = netlink.create(&LinkSpec::new("br0"), &LinkKind::Bridge).unwrap();
    let kind = LinkKind::Veth { peer: LinkSpec::new("v1") };
    let port = netlink.create(&LinkSpec::new("v0").master(bridge), &kind).unwrap();
    let mut monitor = a.monitor().unwrap();
    netlink.set_master(port, None).unwrap();
    netlink.set_mtu(port, 1234).unwrap();
    let seen = wait_for(
        &mut monitor,
        "the end of the changes",
        |event| matches!(event, NetlinkEvent::LinkChanged(link) if link.mtu == 1234),
    );
    assert!(
        !seen.iter().any(|event| matches!(event, NetlinkEvent::LinkRemoved { .. })),
        "{seen:?}"
    );
    let released = |event: &NetlinkEvent| match event {
        NetlinkEvent::LinkChanged(link) => link.index == port && link.master.is_none(),
        _ => false,
    };
    assert!(seen.iter().any(released), "{seen:?}");
}

#[test]
fn monitor_reports_neighbours_addresses_and_routes() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, far) = pair(&a, &b);
    let (netlink, mut monitor) = (a.netlink(), a.monitor().unwrap());

    let remote = IpAddr::from(far.ip4);
    netlink.use_neighbour(end.index, remote).unwrap();
    wait_for(&mut monitor, "the neighbour is reachable", |event| {
        matches!(event, NetlinkEvent::NeighbourChanged(neighbour)
            if neighbour.ip == remote
                && neighbour.state == NeighbourState::Reachable
                && neighbour.mac == Some(far.mac))
    });

    for (text, destination, gateway) in [
        ("192.0.2.7/25", "198.51.100.0/24", remote),
        ("2001:db8::7/120", "2001:db8:5::/48", far.ip6.into()),
    ] {
        let prefix: IpNet = text.parse().unwrap();
        netlink.add_address(end.index, prefix, Dad::Skip).unwrap();
        wait_for(
            &mut monitor,
            "the address is there",
            |event| matches!(event, NetlinkEvent::AddressChanged(it) if it.prefix == prefix),
        );
        netlink.delete_address(end.index, prefix).unwrap();
        wait_for(
            &mut monitor,
            "the address is gone",
            |event| matches!(event, NetlinkEvent::AddressRemoved(it) if it.prefix == prefix),
        );

        let route = Route::via(destination.parse().unwrap(), gateway);
        let same =
            |seen: &Route| seen.destination == route.destination && seen.gateway == route.gateway;
        netlink.add_route(&route).unwrap();
        wait_for(&mut monitor, "the route is there", |event| {
            matches!(event, NetlinkEvent::RouteChanged(seen)
                    if same(seen) && seen.oif == Some(end.index))
        });
        netlink.delete_route(&route).unwrap();
        wait_for(
            &mut monitor,
            "the route is gone",
            |event| matches!(event, NetlinkEvent::RouteRemoved(seen) if same(seen)),
        );
    }
}

/// Causes more notifications than the monitor's queue holds.
fn flood(netlink: &Netlink, host: &TestHost) {
    let index = netlink.create(&LinkSpec::new("br0"), &LinkKind::Bridge).unwrap();
    let mut reader = host.monitor().unwrap();
    let mut unread = 0;
    // About 2 MiB of messages of more than 1 KiB each.
    while unread < 4000 {
        netlink.set_mtu(index, 1000 + unread % 2).unwrap();
        unread += reader.drain().unwrap().len() as u32;
    }
}

#[test]
fn monitor_reports_loss_and_continues_when_its_queue_overflowed() {
    testkit::require_root!();
    let a = TestHost::new("a");
    let mut monitor = a.monitor().unwrap();
    flood(a.netlink(), &a);
    wait_for(&mut monitor, "the loss is reported", |event| *event == NetlinkEvent::Lost);
    while !monitor.drain().unwrap().is_empty() {}

    a.netlink().create(&LinkSpec::new("br1"), &LinkKind::Bridge).unwrap();
    let seen = wait_for(
        &mut monitor,
        "a later change is seen",
        |event| matches!(event, NetlinkEvent::LinkChanged(link) if link.name == "br1"),
    );
    assert!(!seen.contains(&NetlinkEvent::Lost));
}
