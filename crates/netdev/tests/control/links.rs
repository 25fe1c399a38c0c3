use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use netdev::{Dad, Error, Ifindex, IpNet, Link, LinkKind, LinkSpec, SizeLimits, VxlanSpec};
use testkit::host::{TestHost, WireEnd, pair, wait_until};
use wire::{MacAddr, Vni};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x17]);

/// Creates a veth pair with both ends in the same namespace.
fn veth(host: &TestHost, name: &str, peer: &str) -> Ifindex {
    let kind = LinkKind::Veth { peer: LinkSpec::new(peer) };
    host.netlink().create(&LinkSpec::new(name), &kind).unwrap()
}

fn link(host: &TestHost, index: Ifindex) -> Link {
    host.netlink().link_by_index(index).unwrap()
}

fn vni(value: u32) -> Vni {
    Vni::new(value).unwrap()
}

#[test]
fn veth_has_the_requested_properties_across_namespaces() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let far = MacAddr([2, 0, 0, 0, 0, 0x18]);
    let peer = LinkSpec::new("far0").netns(&b).mac(far).mtu(1400).queues(3).up();
    let spec = LinkSpec::new("near0").mac(MAC).mtu(9000).queues(2).tx_queue_len(77).up();
    let index = a.netlink().create(&spec, &LinkKind::Veth { peer }).unwrap();

    wait_until(Duration::from_secs(5), "both ends run", || link(&a, index).running);
    let near = a.netlink().link("near0").unwrap();
    assert_eq!((near.index, near.mac, near.mtu), (index, MAC, 9000));
    assert_eq!((near.tx_queues, near.rx_queues, near.tx_queue_len), (2, 2, 77));
    assert_eq!(near.kind.as_deref(), Some("veth"));
    assert!(near.up && near.running && near.carrier);
    let there = b.netlink().link("far0").unwrap();
    assert_eq!((there.mac, there.mtu, there.tx_queues, there.up), (far, 1400, 3, true));
    let other = a.netlink().other_end(&near).unwrap();
    assert_eq!((other.name.as_str(), other.index, other.mac), ("far0", there.index, far));
    let bridge = a.netlink().create(&LinkSpec::new("br0"), &LinkKind::Bridge).unwrap();
    assert!(a.netlink().other_end(&link(&a, bridge)).unwrap_err().is_not_found());

    b.netlink().delete(there.index).unwrap();
    assert!(a.netlink().link("near0").unwrap_err().is_not_found());
}

#[test]
fn link_is_created_in_another_namespace_when_its_spec_names_one() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let index = a.netlink().create(&LinkSpec::new("br0").netns(&b), &LinkKind::Bridge).unwrap();
    assert_eq!(b.netlink().link("br0").unwrap().index, index);
    assert!(a.netlink().link("br0").unwrap_err().is_not_found());
}

#[test]
fn link_properties_change_when_set() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let index = veth(&a, "v0", "v1");
    let netlink = a.netlink();
    netlink.set_mtu(index, 4000).unwrap();
    netlink.set_mac(index, MAC).unwrap();
    netlink.set_name(index, "renamed").unwrap();
    netlink.set_tx_queue_len(index, 123).unwrap();
    netlink.set_size_limits(index, SizeLimits::all(40_000)).unwrap();
    let changed = netlink.link("renamed").unwrap();
    assert_eq!((changed.index, changed.mtu, changed.mac), (index, 4000, MAC));
    assert_eq!((changed.tx_queue_len, changed.limits), (123, SizeLimits::all(40_000)));

    let only_gro = SizeLimits { gro: Some(50_000), ..SizeLimits::default() };
    netlink.set_size_limits(index, only_gro).unwrap();
    let limits = link(&a, index).limits;
    assert_eq!((limits.gso, limits.gro), (Some(40_000), Some(50_000)));

    netlink.set_up(index).unwrap();
    let up = link(&a, index);
    assert!(up.up && !up.running && !up.carrier, "the peer is down: {up:?}");
    netlink.set_down(index).unwrap();
    assert!(!link(&a, index).up);

    netlink.move_to(index, &b).unwrap();
    assert!(netlink.link("renamed").unwrap_err().is_not_found());
    assert_eq!(b.netlink().link("renamed").unwrap().mac, MAC);
}

#[test]
fn port_belongs_to_its_bridge_until_released() {
    testkit::require_root!();
    let a = TestHost::new("a");
    let bridge = a.netlink().create(&LinkSpec::new("br0").up(), &LinkKind::Bridge).unwrap();
    let kind = LinkKind::Veth { peer: LinkSpec::new("v1").master(bridge) };
    let port = a.netlink().create(&LinkSpec::new("v0").master(bridge), &kind).unwrap();
    assert_eq!(link(&a, port).master, Some(bridge));
    assert_eq!(link(&a, bridge).kind.as_deref(), Some("bridge"));
    a.netlink().set_master(port, None).unwrap();
    assert_eq!(link(&a, port).master, None);
}

#[test]
fn errors_name_operation_and_object_when_the_kernel_refuses() {
    testkit::require_root!();
    let a = TestHost::new("a");
    let missing = a.netlink().link("nothing0").unwrap_err();
    assert!(missing.is_not_found() && missing.to_string().contains("nothing0"), "{missing}");
    assert!(a.netlink().set_mtu(Ifindex(9999), 1500).unwrap_err().is_not_found());
    let index = veth(&a, "v0", "v1");
    let exists = a.netlink().create(&LinkSpec::new("v0"), &LinkKind::Bridge).unwrap_err();
    assert!(exists.is_exists() && exists.to_string().contains("bridge link v0"), "{exists}");
    let mtu = a.netlink().set_mtu(index, 1).unwrap_err();
    assert!(mtu.to_string().contains("mtu less than device minimum"), "{mtu}");
}

#[test]
fn all_links_are_listed_when_they_fill_many_datagrams() {
    testkit::require_root!();
    let a = TestHost::new("many");
    for number in 0..64 {
        veth(&a, &format!("a{number}"), &format!("b{number}"));
    }
    let mut names: Vec<String> =
        a.netlink().links().unwrap().into_iter().map(|link| link.name).collect();
    names.retain(|name| name.starts_with(['a', 'b']));
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 128);
}

#[test]
fn vxlan_is_refused_with_the_kernels_text_when_its_vni_is_taken() {
    testkit::require_root!();
    let a = TestHost::new("a");
    let kind = LinkKind::Vxlan(VxlanSpec::new(vni(7)));
    let index = a.netlink().create(&LinkSpec::new("vx0"), &kind).unwrap();
    assert_eq!(link(&a, index).kind.as_deref(), Some("vxlan"));
    let error = a.netlink().create(&LinkSpec::new("vx1"), &kind).unwrap_err();
    assert!(matches!(&error, Error::Refused { reason, .. } if reason.contains("VNI")), "{error}");
}

#[test]
fn vxlan_takes_any_network_when_external() {
    testkit::require_root!();
    let a = TestHost::new("a");
    let spec = VxlanSpec { port: 6789, udp_zero_checksum6: true, ..VxlanSpec::external() };
    let index = a.netlink().create(&LinkSpec::new("vx0").up(), &LinkKind::Vxlan(spec)).unwrap();
    assert!(link(&a, index).up);
}

/// Creates a VXLAN device over one end of a link.
fn overlay(host: &TestHost, local: IpAddr, remote: IpAddr, address: &str) {
    let spec = VxlanSpec { local: Some(local), remote: Some(remote), ..VxlanSpec::new(vni(42)) };
    let netlink = host.netlink();
    let index = netlink.create(&LinkSpec::new("vx0").up(), &LinkKind::Vxlan(spec)).unwrap();
    let prefix: IpNet = address.parse().unwrap();
    netlink.add_address(index, prefix, Dad::Skip).unwrap();
}

#[test]
fn packets_cross_the_kernels_vxlan_when_both_hosts_have_one() {
    testkit::require_root!();
    for pick in [|end: &WireEnd| IpAddr::from(end.ip4), |end: &WireEnd| IpAddr::from(end.ip6)] {
        let (a, b) = (TestHost::new("a"), TestHost::new("b"));
        let (end_a, end_b) = pair(&a, &b);
        overlay(&a, pick(&end_a), pick(&end_b), "172.30.0.1/24");
        overlay(&b, pick(&end_b), pick(&end_a), "172.30.0.2/24");

        let receiver = b.run(|| UdpSocket::bind("172.30.0.2:7000")).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let sender = a.run(|| UdpSocket::bind("172.30.0.1:0")).unwrap();
        sender.send_to(b"through", "172.30.0.2:7000").unwrap();
        let mut bytes = [0; 16];
        let (length, peer) = receiver.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..length], peer), (&b"through"[..], sender.local_addr().unwrap()));
        let stats = b.netlink().link("vx0").unwrap().stats;
        assert!(stats.rx_packets >= 1 && stats.rx_bytes >= 7, "{stats:?}");
    }
}
