use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use netdev::icmp::TooBigSocket;
use netdev::raw_ip::{PROTOCOL_GRE, RawIp, RawTx};
use netdev::udp::{TxOptions, TxPool, TxUdpBatch};
use netdev::{IpNet, Route};
use testkit::host::{TestHost, WireEnd, pair};
use wire::icmp::Quoted;
use wire::{Protocol, TooBig};

use super::frames::{pattern, tcp_frame, wait_for};

/// A host whose path to another one has an MTU of 1400 after the first router.
struct Path {
    a: TestHost,
    near: WireEnd,
    router: WireEnd,
    local: IpAddr,
    remote: IpAddr,
    _others: (TestHost, TestHost),
}

fn path(v6: bool) -> Path {
    let (a, router, b) = (TestHost::new("a"), TestHost::new("router"), TestHost::new("b"));
    let (near, near_router) = pair(&a, &router);
    let (far_router, far) = pair(&router, &b);
    let ip = |end: &WireEnd| if v6 { IpAddr::V6(end.ip6) } else { IpAddr::V4(end.ip4) };
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        router.sysctl(key, "1").unwrap();
    }
    for key in ["net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"] {
        router.sysctl(key, "0").unwrap();
        b.sysctl(key, "0").unwrap();
    }
    let everywhere: IpAddr =
        if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    for (host, gateway) in [(&a, &near_router), (&b, &far_router)] {
        let destination = IpNet::new(everywhere, 0).unwrap();
        host.netlink().add_route(&Route::via(destination, ip(gateway))).unwrap();
    }
    router.netlink().set_mtu(far_router.index, 1400).unwrap();
    let (local, remote) = (ip(&near), ip(&far));
    Path { a, router: near_router, near, local, remote, _others: (router, b) }
}

#[test]
fn too_big_is_received_for_every_tunnel() {
    testkit::require_root!();
    for v6 in [false, true] {
        let path = path(v6);
        let socket = path.a.run(|| TooBigSocket::open(path.local, Some(path.near.index))).unwrap();
        let wait_for_message = || wait_for("a message", || socket.recv().unwrap());
        let expected = |report: TooBig, protocol, quoted| TooBig {
            mtu: 1400,
            // If the router received a super-packet, the quoted length is longer than one segment.
            quoted_len: report.quoted_len,
            dont_fragment: true,
            local: path.local,
            remote: path.remote,
            protocol,
            quoted,
        };

        // STT first: the kernel ignores messages about it, but learns from those about GRE.
        let options = PacketOptions::default();
        let packets = path
            .a
            .run(|| PacketSocket::open(path.near.index, &SocketFilter::nothing(), options))
            .unwrap();
        let macs = (path.near.mac, path.router.mac);
        let flow = (SocketAddr::new(path.local, 50_000), SocketAddr::new(path.remote, 7471));
        let payload = pattern(20_000);
        let segments = tcp_frame(macs, &[], flow, &payload, Some(1400));
        let ports = Quoted::Ports { src: 50_000, dst: 7471 };
        let report = wait_for("a message", || {
            packets.send(&segments).unwrap();
            socket.recv().unwrap()
        });
        assert_eq!(report, expected(report, Protocol::TCP, ports));
        assert!(report.quoted_len > 1400);
        std::thread::sleep(std::time::Duration::from_millis(50));
        while socket.recv().unwrap().is_some() {}
        let mtu = || path.a.netlink().route_get(path.remote, None).unwrap().mtu;
        assert_eq!(mtu(), 1500, "the kernel has not learned it");

        let gre = path.a.run(|| RawIp::open(path.local, PROTOCOL_GRE)).unwrap();
        let header = [0x20, 0, 0x65, 0x58, 0, 0, 0x12, 0x34];
        let to = RawTx { dst: path.remote, tos: 0, ttl: None };
        gre.send(&to, &[IoSlice::new(&header), IoSlice::new(&payload[..1400])]).unwrap();
        let report = wait_for_message();
        let quoted = Quoted::Gre { start: [0x20, 0, 0x65, 0x58], key: Some(0x1234) };
        assert_eq!(report, expected(report, Protocol::GRE, quoted));
        let ip_len = if v6 { 40 } else { 20 };
        assert_eq!(report.quoted_len, ip_len + header.len() + 1400);
        if v6 {
            assert_eq!(mtu(), 1500, "the kernel does not learn from raw IPv6");
        } else {
            wait_for("the kernel to learn it, too", || (mtu() == 1400).then_some(()));
        }
        // The socket ignores the path MTU that the kernel has learned.
        gre.send(&to, &[IoSlice::new(&header), IoSlice::new(&payload[..1400])]).unwrap();
        wait_for_message();
        assert_eq!(socket.ignored(), 0);
    }
}

#[test]
fn too_big_of_vxlan_is_recognised_and_other_messages_are_skipped() {
    testkit::require_root!();
    for v6 in [false, true] {
        let path = path(v6);
        let socket = path.a.run(|| TooBigSocket::open(path.local, None)).unwrap();
        let pool = path.a.run(|| TxPool::new(path.local, TxOptions::default())).unwrap();
        // Answered by "port unreachable", which in IPv4 has the same ICMP type.
        let udp = path.a.run(|| UdpSocket::bind((path.local, 0))).unwrap();
        for _ in 0..70 {
            udp.send_to(b"x", (path.remote, 9)).unwrap();
        }
        let dst = SocketAddr::new(path.remote, 4789);
        let train = TxUdpBatch { dst, entropy: 5, tos: 0, ttl: None, gso_size: Some(1400) };
        pool.send(&train, &[IoSlice::new(&pattern(13_000))]).unwrap();
        let report = wait_for("a message", || socket.recv().unwrap());
        let quoted = Quoted::Ports { src: pool.ports().0 + 5, dst: 4789 };
        let (local, remote) = (path.local, path.remote);
        let expected = TooBig {
            mtu: 1400,
            quoted_len: report.quoted_len,
            dont_fragment: true,
            local,
            remote,
            protocol: Protocol::UDP,
            quoted,
        };
        assert_eq!(report, expected);
        assert_eq!(socket.ignored() > 0, !v6, "{}", socket.ignored());
    }
}

#[test]
fn socket_is_refused_when_the_address_is_not_local() {
    testkit::require_root!();
    let host = TestHost::new("a");
    for address in ["192.0.2.1", "2001:db8::1"] {
        let error = host.run(|| TooBigSocket::open(address.parse().unwrap(), None)).unwrap_err();
        assert_eq!(error.errno(), Some(99), "{error}");
    }
}
