use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use netdev::{Dad, IpNet, Neighbour, NeighbourState, Route};
use testkit::host::{TestHost, pair, wait_until};
use wire::MacAddr;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x17]);

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn added_addresses_are_listed() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, _) = pair(&a, &b);
    let netlink = a.netlink();
    for text in ["192.0.2.7/25", "2001:db8::7/120"] {
        netlink.add_address(end.index, prefix(text), Dad::Skip).unwrap();
        let of_link = netlink.addresses(Some(end.index)).unwrap();
        let found = of_link.iter().find(|address| address.prefix == prefix(text)).unwrap();
        assert!(found.ready && found.index == end.index, "{found:?}");

        let again = netlink.add_address(end.index, prefix(text), Dad::Skip).unwrap_err();
        assert!(again.is_exists(), "{again}");
        netlink.delete_address(end.index, prefix(text)).unwrap();
        let of_link = netlink.addresses(Some(end.index)).unwrap();
        assert!(!of_link.iter().any(|address| address.prefix == prefix(text)), "{of_link:?}");
    }
    let all = netlink.addresses(None).unwrap();
    let loopback = all.iter().any(|address| address.prefix == prefix("127.0.0.1/8"));
    assert!(loopback && netlink.addresses(Some(end.index)).unwrap().len() < all.len(), "{all:?}");
}

#[test]
fn address_is_not_ready_during_duplicate_address_detection() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, _) = pair(&a, &b);
    a.sysctl("net/ipv6/conf/eth0/accept_dad", "1").unwrap();
    a.sysctl("net/ipv6/conf/eth0/dad_transmits", "1").unwrap();
    a.netlink().add_address(end.index, prefix("2001:db8::7/64"), Dad::Run).unwrap();
    let ready = || {
        let addresses = a.netlink().addresses(Some(end.index)).unwrap();
        addresses.iter().find(|address| address.prefix == prefix("2001:db8::7/64")).unwrap().ready
    };
    assert!(!ready());
    wait_until(Duration::from_secs(10), "the address is ready", ready);
}

#[test]
fn route_get_returns_link_source_and_mtu_for_a_destination_on_the_link() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, far) = pair(&a, &b);
    a.netlink().set_mtu(end.index, 1450).unwrap();
    for (own, other) in [(end.ip4.into(), far.ip4.into()), (end.ip6.into(), IpAddr::from(far.ip6))]
    {
        let path = a.netlink().route_get(other, None).unwrap();
        assert_eq!((path.oif, path.source), (end.index, Some(own)));
        assert_eq!((path.gateway, path.mtu, path.local), (None, 1450, false));
        assert_eq!(a.netlink().route_get(other, Some(own)).unwrap(), path);
        assert!(a.netlink().route_get(own, None).unwrap().local);
    }
}

#[test]
fn route_get_returns_gateway_and_mtu_of_a_route() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, far) = pair(&a, &b);
    let netlink = a.netlink();
    for (destination, gateway, beyond) in [
        ("198.51.100.9/24", IpAddr::from(far.ip4), ip("198.51.100.77")),
        ("2001:db8:5::9/48", far.ip6.into(), ip("2001:db8:5::77")),
        ("0.0.0.0/0", far.ip4.into(), ip("8.8.8.8")),
        ("203.0.113.0/24", far.ip6.into(), ip("203.0.113.77")),
    ] {
        let route = Route {
            mtu: Some(1300),
            oif: Some(end.index),
            ..Route::via(prefix(destination), gateway)
        };
        netlink.add_route(&route).unwrap();
        let path = netlink.route_get(beyond, None).unwrap();
        assert_eq!((path.oif, path.gateway, path.mtu), (end.index, Some(gateway), 1300));
        assert!(netlink.add_route(&route).unwrap_err().is_exists());
        netlink.delete_route(&route).unwrap();
        let error = netlink.route_get(beyond, None).unwrap_err();
        assert_eq!(error.errno(), Some(nix::libc::ENETUNREACH), "{error}");
        assert!(netlink.delete_route(&route).unwrap_err().is_not_found());
    }
    netlink.add_route(&Route::on_link(prefix("198.51.100.0/24"), end.index)).unwrap();
    assert_eq!(netlink.route_get(ip("198.51.100.77"), None).unwrap().gateway, None);
}

#[test]
fn packet_crosses_a_router_along_the_routes() {
    testkit::require_root!();
    let (a, router, b) = (TestHost::new("a"), TestHost::new("router"), TestHost::new("b"));
    let ((near, near_router), (far, far_router)) = (pair(&a, &router), pair(&b, &router));
    router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let any = prefix("0.0.0.0/0");
    a.netlink().add_route(&Route::via(any, near_router.ip4.into())).unwrap();
    b.netlink().add_route(&Route::via(any, far_router.ip4.into())).unwrap();

    let receiver = b.run(|| UdpSocket::bind((far.ip4, 7000))).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let sender = a.run(|| UdpSocket::bind((near.ip4, 0))).unwrap();
    sender.send_to(b"routed", (far.ip4, 7000)).unwrap();
    let mut bytes = [0; 16];
    let (length, _) = receiver.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..length], b"routed");
}

#[test]
fn neighbour_is_resolved_on_request() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, far) = pair(&a, &b);
    let netlink = a.netlink();
    for address in [IpAddr::from(far.ip4), far.ip6.into()] {
        assert_eq!(netlink.neighbour(end.index, address).unwrap(), None);
        netlink.use_neighbour(end.index, address).unwrap();
        wait_until(Duration::from_secs(5), "the neighbour is resolved", || {
            let neighbour = netlink.neighbour(end.index, address).unwrap();
            neighbour.and_then(|neighbour| neighbour.usable_mac()) == Some(far.mac)
        });
        let all = netlink.neighbours(Some(end.index)).unwrap();
        assert!(
            all.iter().any(|neighbour| neighbour.ip == address && neighbour.mac == Some(far.mac))
        );
    }
}

#[test]
fn neighbour_fails_without_an_answer() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, _) = pair(&a, &b);
    let [x, y, z, _] = end.ip4.octets();
    let unused_address = IpAddr::from([x, y, z, 99]);
    a.sysctl("net/ipv4/neigh/eth0/retrans_time_ms", "100").unwrap();
    a.netlink().use_neighbour(end.index, unused_address).unwrap();
    wait_until(Duration::from_secs(10), "resolution fails", || {
        let neighbour = a.netlink().neighbour(end.index, unused_address).unwrap();
        neighbour.is_none_or(|neighbour| neighbour.state == NeighbourState::Failed)
    });
    let neighbour = a.netlink().neighbour(end.index, unused_address).unwrap();
    assert_eq!(neighbour.and_then(|neighbour| neighbour.usable_mac()), None);
}

#[test]
fn neighbour_is_permanent_when_set() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, far) = pair(&a, &b);
    let netlink = a.netlink();
    for address in [IpAddr::from(far.ip4), far.ip6.into()] {
        for mac in [far.mac, MAC] {
            netlink.set_neighbour(end.index, address, mac).unwrap();
            let expected = Neighbour {
                index: end.index,
                ip: address,
                mac: Some(mac),
                state: NeighbourState::Permanent,
            };
            assert_eq!(netlink.neighbour(end.index, address).unwrap(), Some(expected));
        }
        netlink.delete_neighbour(end.index, address).unwrap();
        let usable = netlink.neighbour(end.index, address).unwrap();
        assert_eq!(usable.and_then(|neighbour| neighbour.usable_mac()), None);
    }
}
