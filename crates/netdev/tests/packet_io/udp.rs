use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use netdev::io_error::IoError;
use netdev::udp::{RxUdpBatch, TxOptions, TxPool, TxUdpBatch, UdpOptions, UdpUnderlay};
use netdev::{IpNet, Route};
use packet::PacketBuf;
use testkit::host::{TestHost, WireEnd, pair};

use super::frames::{big_packet, pattern, wait_for};

/// IP protocol number.
const UDP: u8 = 17;

struct Underlay {
    tx: TxPool,
    rx: UdpUnderlay,
    dst: SocketAddr,
    ends: (WireEnd, WireEnd),
    a: TestHost,
    b: TestHost,
}

fn underlay(v6: bool, rx: UdpOptions, tx: TxOptions) -> Underlay {
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let ends = pair(&a, &b);
    let ip = |end: &WireEnd| if v6 { IpAddr::V6(end.ip6) } else { IpAddr::V4(end.ip4) };
    let dst = SocketAddr::new(ip(&ends.1), 4789);
    let tx = a.run(|| TxPool::new(ip(&ends.0), tx)).unwrap();
    let rx = b.run(|| UdpUnderlay::bind(dst, rx)).unwrap();
    Underlay { tx, rx, dst, ends, a, b }
}

fn to(dst: SocketAddr, gso_size: Option<u16>) -> TxUdpBatch {
    TxUdpBatch { dst, entropy: 70, tos: 0, ttl: None, gso_size }
}

/// Receives until `len` bytes have arrived; returns them and the metadata of each UDP batch.
fn collect(rx: &UdpUnderlay, len: usize) -> (Vec<u8>, Vec<RxUdpBatch>) {
    let (mut bytes, mut trains) = (Vec::new(), Vec::new());
    let mut packet = big_packet();
    wait_for("the train", || {
        while let Some(train) = rx.recv(&mut packet).unwrap() {
            assert_eq!(train.len, packet.len());
            bytes.extend(packet.to_vec());
            trains.push(train);
        }
        (bytes.len() >= len).then_some(())
    });
    (bytes, trains)
}

#[test]
fn train_arrives_unsegmented_with_its_tos() {
    testkit::require_root!();
    for v6 in [false, true] {
        let u = underlay(v6, UdpOptions::default(), TxOptions::default());
        let payload = pattern(64_000);
        let (head, tail) = payload.split_at(50);
        let train = TxUdpBatch { tos: 0xb9, ttl: Some(33), ..to(u.dst, Some(1400)) };
        let sent = u.tx.send(&train, &[IoSlice::new(head), IoSlice::new(tail)]).unwrap();
        assert_eq!(sent, 64_000);
        let (bytes, trains) = collect(&u.rx, 64_000);
        assert_eq!(bytes, payload);
        assert_eq!(trains.len(), 1);
        let (base, count) = u.tx.ports();
        assert_eq!((trains[0].gso_size, trains[0].tos), (Some(1400), 0xb9));
        assert_eq!(trains[0].source.port(), base + 70 % count);
        assert_eq!(count, 64);
    }
}

#[test]
fn longest_train_arrives_and_a_longer_one_is_too_big() {
    testkit::require_root!();
    for v6 in [false, true] {
        let u = underlay(v6, UdpOptions::default(), TxOptions::default());
        let payload = pattern(65_508);
        let send =
            |len: usize, size| u.tx.send(&to(u.dst, Some(size)), &[IoSlice::new(&payload[..len])]);
        assert_eq!(send(65_507, 1400).unwrap(), 65_507);
        assert_eq!(collect(&u.rx, 65_507).0, payload[..65_507]);
        if !v6 {
            assert!(matches!(send(65_508, 1400), Err(IoError::TooBig)));
        }
        assert!(matches!(send(65_000, 1473), Err(IoError::TooBig)), "a datagram over the MTU");
        let most = u.tx.max_segments();
        assert!(most >= 64);
        assert_eq!(send(most * 100, 100).unwrap(), most * 100);
        assert!(matches!(send(most * 100 + 1, 100), Err(IoError::TooBig)), "too many datagrams");
        let single = u.tx.send(&to(u.dst, None), &[IoSlice::new(&payload[..1473])]);
        assert!(matches!(single, Err(IoError::TooBig)));
    }
}

#[test]
fn single_datagrams_cross_when_received_as_a_batch() {
    testkit::require_root!();
    for zero_checksum in [false, true] {
        for v6 in [false, true] {
            let rx =
                UdpOptions { zero_checksum_v6: zero_checksum, gro: false, ..Default::default() };
            let u = underlay(v6, rx, TxOptions { zero_checksum, ..Default::default() });
            let payload = pattern(100);
            for i in 0..40 {
                let pieces = [&payload[..i], &payload[50..=50 + i]].map(IoSlice::new);
                assert_eq!(u.tx.send(&to(u.dst, None), &pieces).unwrap(), 2 * i + 1);
            }
            let mut packets: Vec<_> = (0..64).map(|_| PacketBuf::with_capacity(256, 200)).collect();
            let mut trains = [RxUdpBatch::EMPTY; 64];
            let mut next = 0;
            wait_for("the batch", || {
                let count = u.rx.recv_batch(&mut packets, &mut trains).unwrap();
                for (packet, train) in packets.iter().zip(&trains).take(count) {
                    let expected = [&payload[..next], &payload[50..=50 + next]].concat();
                    assert_eq!((packet.to_vec(), train.len), (expected, 2 * next + 1));
                    assert_eq!((train.gso_size, train.tos), (None, 0));
                    next += 1;
                }
                (next == 40).then_some(())
            });
            // A UDP batch is still sent, with a checksum.
            assert_eq!(u.tx.send(&to(u.dst, Some(50)), &[IoSlice::new(&payload)]).unwrap(), 100);
            assert_eq!(collect(&u.rx, 100).0, payload);
        }
    }
}

#[test]
fn destination_is_unreachable_when_there_is_no_route() {
    testkit::require_root!();
    let u = underlay(false, UdpOptions::default(), TxOptions::default());
    let nowhere = "198.51.100.1:4789".parse().unwrap();
    let error = u.tx.send(&to(nowhere, None), &[IoSlice::new(b"x")]).unwrap_err();
    assert!(matches!(error, IoError::Unreachable), "{error}");
}

#[test]
fn pool_uses_the_next_run_when_a_port_is_taken() {
    testkit::require_root!();
    let u = underlay(false, UdpOptions::default(), TxOptions::default());
    let (base, count) = u.tx.ports();
    let pool = || u.a.run(|| TxPool::new(u.ends.0.ip4.into(), TxOptions::default())).unwrap();
    assert_eq!(pool().ports(), (base, count), "pools share");
    drop(u.tx);
    let _other = wait_for("the port to be free", || {
        u.a.run(|| UdpSocket::bind((u.ends.0.ip4, base + 5))).ok()
    });
    assert_eq!(pool().ports(), (base + 6, count));
    let none = TxOptions { base_port_hint: 65_500, ..TxOptions::default() };
    let error = u.a.run(|| TxPool::new(u.ends.0.ip4.into(), none)).unwrap_err();
    assert!(error.to_string().contains("64 UDP source ports"), "{error}");
}

#[test]
fn datagram_is_sent_whole_when_the_kernel_has_learned_a_path_mtu() {
    testkit::require_root!();
    for v6 in [false, true] {
        let (a, router, b) = (TestHost::new("a"), TestHost::new("router"), TestHost::new("b"));
        let (near, near_router) = pair(&a, &router);
        let (far_router, far) = pair(&router, &b);
        let ip = |end: &WireEnd| if v6 { IpAddr::V6(end.ip6) } else { IpAddr::V4(end.ip4) };
        for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            router.sysctl(key, "1").unwrap();
        }
        for (host, gateway) in [(&a, &near_router), (&b, &far_router)] {
            let everywhere: IpAddr =
                if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
            let destination = IpNet::new(everywhere, 0).unwrap();
            host.netlink().add_route(&Route::via(destination, ip(gateway))).unwrap();
        }
        router.netlink().set_mtu(far_router.index, 1400).unwrap();
        let (local, dst) = (ip(&near), SocketAddr::new(ip(&far), 4789));
        let tx = a.run(|| TxPool::new(local, TxOptions::default())).unwrap();
        let payload = pattern(13_000);
        let pieces = [IoSlice::new(&payload)];
        let path_mtu = || a.netlink().route_get(dst.ip(), None).unwrap().mtu;
        assert_eq!(path_mtu(), 1500);
        wait_for("the kernel to learn it", || {
            tx.send(&to(dst, Some(1400)), &pieces).unwrap();
            (path_mtu() == 1400).then_some(())
        });
        // Anybody can forge such a message, so these sockets ignore it.
        tx.send(&to(dst, Some(1400)), &pieces).unwrap();
        let filter = SocketFilter::protocol_to(dst.ip(), UDP);
        let open = || PacketSocket::open(near_router.index, &filter, PacketOptions::default());
        let seen = router.run(open).unwrap();
        tx.send(&to(dst, None), &[IoSlice::new(&payload[..1450])]).unwrap();
        let mut packet = big_packet();
        wait_for("the datagram", || seen.recv(&mut packet).unwrap());
        let ip_len = if v6 { 40 } else { 20 };
        assert_eq!(packet.len(), 14 + ip_len + 8 + 1450, "no fragment");
        assert!(v6 || packet.head()[20] == 0x40, "DF is set");
        let long = [IoSlice::new(&payload[..1500])];
        assert!(matches!(tx.send(&to(dst, None), &long), Err(IoError::TooBig)));
        let rx = b.run(|| UdpUnderlay::bind(dst, UdpOptions::default())).unwrap();
        tx.send(&to(dst, Some(1300)), &pieces).unwrap();
        assert_eq!(collect(&rx, payload.len()).0, payload);
    }
}

#[test]
fn datagrams_are_counted_as_dropped_when_the_queue_is_full() {
    testkit::require_root!();
    let rx = UdpOptions { rx_queue_bytes: 4096, gro: false, ..UdpOptions::default() };
    let u = underlay(false, rx, TxOptions::default());
    for _ in 0..20 {
        u.tx.send(&to(u.dst, None), &[IoSlice::new(&pattern(1400))]).unwrap();
    }
    wait_for("drops to be counted", || (u.rx.dropped().unwrap() > 0).then_some(()));
}

#[test]
fn train_is_reported_as_lost_when_it_does_not_fit() {
    testkit::require_root!();
    let u = underlay(false, UdpOptions::default(), TxOptions::default());
    for _ in 0..2 {
        u.tx.send(&to(u.dst, Some(1000)), &[IoSlice::new(&pattern(5000))]).unwrap();
    }
    let mut small = [PacketBuf::with_capacity(PacketBuf::HEADROOM, 2000)];
    wait_for("the train", || match u.rx.recv(&mut small[0]) {
        Ok(got) => got.map(|_| panic!("it cannot fit")),
        Err(IoError::Truncated) => Some(()),
        Err(error) => panic!("{error}"),
    });
    let mut trains = [RxUdpBatch::EMPTY];
    wait_for("the train", || {
        (u.rx.recv_batch(&mut small, &mut trains).unwrap() == 1).then_some(())
    });
    assert_eq!((trains[0].len, small[0].len(), u.rx.malformed()), (0, 0, 1));
}

#[test]
fn bind_is_refused_when_the_port_is_taken() {
    testkit::require_root!();
    let u = underlay(false, UdpOptions::default(), TxOptions::default());
    let error = u.b.run(|| UdpUnderlay::bind(u.dst, UdpOptions::default())).unwrap_err();
    assert!(error.to_string().starts_with("bind UDP 10."), "{error}");
    assert_eq!(u.rx.local_addr().unwrap(), u.dst);
}

#[test]
fn group_shares_a_port_by_sender_and_refuses_other_sockets() {
    testkit::require_root!();
    for v6 in [false, true] {
        let u =
            underlay(v6, UdpOptions { gro: false, ..UdpOptions::default() }, TxOptions::default());
        let (dst, taken) = (SocketAddr::new(u.dst.ip(), 6081), u.dst);
        let bind =
            |local, count| u.b.run(|| UdpUnderlay::bind_group(local, UdpOptions::default(), count));
        let group = bind(dst, 3).unwrap();
        assert_eq!(group.len(), 3);
        for count in [1, 2] {
            for local in [dst, taken] {
                let error = bind(local, count).unwrap_err();
                assert_eq!(error.errno(), Some(98), "{error}");
            }
        }
        let error = bind(dst, 0).unwrap_err();
        assert!(matches!(error, netdev::Error::Invalid { .. }), "{error}");

        let (base, count) = u.tx.ports();
        for round in 0..3_u32 {
            for entropy in 0..u32::from(count) {
                let train = TxUdpBatch { entropy, ..to(dst, None) };
                u.tx.send(&train, &[IoSlice::new(&round.to_be_bytes())]).unwrap();
            }
        }
        // Each source port is received by one socket, in order.
        let mut received = vec![Vec::new(); count.into()];
        let (mut packet, mut total) = (big_packet(), [0; 3]);
        wait_for("all datagrams", || {
            for (index, socket) in group.iter().enumerate() {
                while let Some(train) = socket.recv(&mut packet).unwrap() {
                    assert_eq!(train.ttl, None);
                    received[usize::from(train.source.port() - base)]
                        .push((index, packet.to_vec()));
                    total[index] += 1;
                }
            }
            (total.iter().sum::<usize>() == 3 * usize::from(count)).then_some(())
        });
        for of_port in &received {
            let index = of_port[0].0;
            let expected = [0, 1, 2].map(|round: u32| (index, round.to_be_bytes().to_vec()));
            assert_eq!(of_port[..], expected);
        }
        assert!(total.iter().all(|&n| n > 0), "{total:?}");
    }
}

#[test]
fn trains_stay_unsegmented_with_their_ttl_when_a_group_receives_them() {
    testkit::require_root!();
    for v6 in [false, true] {
        let u = underlay(v6, UdpOptions::default(), TxOptions::default());
        let dst = SocketAddr::new(u.dst.ip(), 6081);
        let options = UdpOptions { ttl: true, ..UdpOptions::default() };
        let group = u.b.run(|| UdpUnderlay::bind_group(dst, options, 2)).unwrap();
        let payload = pattern(30_000);
        let train = TxUdpBatch { ttl: Some(33), tos: 0xb9, ..to(dst, Some(1400)) };
        u.tx.send(&train, &[IoSlice::new(&payload)]).unwrap();
        let mut packet = big_packet();
        let train = wait_for("the train", || {
            group.iter().find_map(|socket| socket.recv(&mut packet).unwrap())
        });
        assert_eq!(packet.to_vec(), payload);
        assert_eq!((train.gso_size, train.ttl, train.tos), (Some(1400), Some(33), 0xb9));
        let mut packets = [big_packet()];
        let mut trains = [RxUdpBatch::EMPTY];
        u.tx.send(&TxUdpBatch { ttl: Some(7), ..to(dst, None) }, &[IoSlice::new(&[1])]).unwrap();
        wait_for("the datagram", || {
            let count =
                group.iter().map(|socket| socket.recv_batch(&mut packets, &mut trains).unwrap());
            (count.sum::<usize>() == 1).then_some(())
        });
        assert_eq!(trains[0].ttl, Some(7));
    }
}
