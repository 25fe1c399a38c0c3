use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use netdev::udp::{RxUdpBatch, TxOptions, TxPool, TxUdpBatch, UdpOptions, UdpUnderlay};
use testkit::host::{TestHost, pair};

use super::frames::{big_packet, pattern, wait_for};

const PORT: u16 = 4789;

/// Two multicast groups.
fn groups(v6: bool) -> (SocketAddr, SocketAddr) {
    let (group, other): (IpAddr, IpAddr) = if v6 {
        ("ff05::4789".parse().unwrap(), "ff05::4790".parse().unwrap())
    } else {
        ("239.1.2.3".parse().unwrap(), "239.1.2.4".parse().unwrap())
    };
    (SocketAddr::new(group, PORT), SocketAddr::new(other, PORT))
}

#[test]
fn datagrams_to_a_group_are_received_only_by_its_members() {
    testkit::require_root!();
    for v6 in [false, true] {
        let (a, b) = (TestHost::new("a"), TestHost::new("b"));
        // No route leads to the group: `set_multicast_uplink` selects one of the two links.
        let (decoy, _) = pair(&a, &TestHost::new("nowhere"));
        let ends = pair(&a, &b);
        assert_ne!(decoy.index, ends.0.index);
        let local: IpAddr = if v6 { ends.0.ip6.into() } else { ends.0.ip4.into() };
        let remote: IpAddr = if v6 { ends.1.ip6.into() } else { ends.1.ip4.into() };
        let (group, other) = groups(v6);
        let options = UdpOptions { ttl: true, ..UdpOptions::default() };
        let join = |host: &TestHost, group, index| {
            host.run(|| UdpUnderlay::join(group, index, options)).unwrap()
        };
        let (member, of_other) = (join(&b, group, ends.1.index), join(&b, other, ends.1.index));
        let own = join(&a, group, ends.0.index);
        let unicast = b.run(|| UdpUnderlay::bind(SocketAddr::new(remote, PORT), options)).unwrap();
        let pool = a.run(|| TxPool::new(local, TxOptions::default())).unwrap();
        pool.set_multicast_uplink(ends.0.index).unwrap();

        let train =
            TxUdpBatch { dst: group, entropy: 3, tos: 0xb8, ttl: Some(9), gso_size: Some(1400) };
        let payload = pattern(10_000);
        assert_eq!(pool.send(&train, &[IoSlice::new(&payload)]).unwrap(), 10_000);
        let to = |dst, payload: &[u8]| {
            let train = TxUdpBatch { dst, gso_size: None, ..train };
            pool.send(&train, &[IoSlice::new(payload)]).unwrap();
        };
        to(other, b"other");
        to(SocketAddr::new(remote, PORT), b"unicast");

        let mut packet = big_packet();
        let mut receive = |socket: &UdpUnderlay| -> (Vec<u8>, RxUdpBatch) {
            let train = wait_for("a datagram", || socket.recv(&mut packet).unwrap());
            (packet.to_vec(), train)
        };
        let (bytes, received) = receive(&member);
        assert_eq!(bytes, payload);
        let source = SocketAddr::new(local, pool.ports().0 + 3);
        assert_eq!(
            (received.source, received.gso_size, received.ttl),
            (source, Some(1400), Some(9))
        );
        assert_eq!(receive(&of_other).0, b"other");
        assert_eq!(receive(&unicast).0, b"unicast");
        for silent in [&member, &of_other, &unicast, &own] {
            assert_eq!(silent.recv(&mut packet).unwrap(), None);
        }
        // Dropping leaves the group, so that another socket can join.
        drop(member);
        wait_for("the group to be free", || {
            b.run(|| UdpUnderlay::join(group, ends.1.index, options)).ok()
        });
    }
}

#[test]
fn join_is_refused_when_group_or_interface_is_invalid() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let ends = pair(&a, &b);
    let join = |group: SocketAddr, index| {
        a.run(|| UdpUnderlay::join(group, index, UdpOptions::default())).unwrap_err()
    };
    let error = join(SocketAddr::new(ends.1.ip4.into(), PORT), ends.0.index);
    assert!(matches!(error, netdev::Error::Invalid { .. }), "{error}");
    for v6 in [false, true] {
        let (group, _) = groups(v6);
        assert!(join(group, netdev::Ifindex(77)).is_not_found());
        let local: IpAddr = if v6 { ends.0.ip6.into() } else { ends.0.ip4.into() };
        let pool = a.run(|| TxPool::new(local, TxOptions::default())).unwrap();
        let error = pool.set_multicast_uplink(netdev::Ifindex(77)).unwrap_err();
        assert!(error.to_string().contains("by interface 77"), "{error}");
    }
}
