use netdev::af_packet::{PacketOptions, PacketRx, PacketSocket, VlanTag};
use netdev::filter::SocketFilter;
use netdev::io_error::IoError;
use packet::{Gso, GsoKind, PacketBuf};
use std::net::SocketAddr;
use testkit::host::{TestHost, WireEnd, pair, wait_until};
use wire::MacAddr;

use super::frames::{self, TIMEOUT, big_packet, pattern, tcp_frame, wait_for};

/// A MAC address that no host has, so that neither kernel reacts.
const ELSEWHERE: MacAddr = MacAddr([2, 0xee, 0, 0, 0, 1]);

struct Wire {
    b: TestHost,
    tx: PacketSocket,
    rx: PacketSocket,
    ends: (WireEnd, WireEnd),
    a: TestHost,
}

fn wire(filter: &SocketFilter) -> Wire {
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let ends = pair(&a, &b);
    let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    let tx = a.run(|| PacketSocket::open(ends.0.index, &SocketFilter::nothing(), options)).unwrap();
    let rx = b.run(|| PacketSocket::open(ends.1.index, filter, options)).unwrap();
    Wire { b, tx, rx, ends, a }
}

/// Receives the next frame to [`ELSEWHERE`].
fn next(rx: &PacketSocket, packet: &mut PacketBuf) -> Option<VlanTag> {
    wait_for("a frame", || {
        let got = rx.recv(packet).unwrap()?;
        (packet.head()[0..6] == ELSEWHERE.0).then_some(got.vlan)
    })
}

fn addresses(v6: bool) -> (SocketAddr, SocketAddr) {
    if v6 {
        ("[fd00::1]:1000".parse().unwrap(), "[fd00::2]:7471".parse().unwrap())
    } else {
        ("192.0.2.1:1000".parse().unwrap(), "192.0.2.2:7471".parse().unwrap())
    }
}

#[test]
fn super_packets_arrive_whole_when_tagged_or_not() {
    testkit::require_root!();
    let wire = wire(&SocketFilter::everything());
    let macs = (wire.ends.0.mac, ELSEWHERE);
    let mut packet = big_packet();
    for v6 in [false, true] {
        for tags in [
            &[][..],
            &[(0x8100, 5)],
            &[(0x88a8, 7)],
            &[(0x88a8, 0x2007), (0x8100, 5)],
            &[(0x8100, 1), (0x8100, 2)],
            &[(0x88a8, 1), (0x8100, 2), (0x88a8, 3), (0x8100, 4)],
            &[(0x8100, 1); 7],
        ] {
            for (len, mss) in [(64_000, Some(1400)), (1000, None)] {
                let payload = pattern(len);
                let sent = tcp_frame(macs, tags, addresses(v6), &payload, mss);
                wire.tx.send(&sent).unwrap();
                let vlan = next(&wire.rx, &mut packet);
                assert_eq!(vlan, tags.first().map(|&(tpid, tci)| VlanTag { tpid, tci }));
                // The outer tag is in the metadata, the rest in the frame.
                let mut expected = sent.to_vec();
                if !tags.is_empty() {
                    expected.drain(12..16);
                }
                let what = format!("v6 {v6} tags {tags:x?} mss {mss:?}");
                assert_eq!(packet.to_vec(), expected, "{what}");
                let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
                let gso = mss.map(|size| Gso { kind, size, ecn: false });
                assert_eq!(packet.offload.gso, gso, "{what}");
                let mut shifted = sent.offload;
                if let (packet::Checksum::Partial { start, .. }, false) =
                    (&mut shifted.checksum, tags.is_empty())
                {
                    *start -= 4;
                }
                assert_eq!(packet.offload, shifted, "{what}");
            }
        }
    }
}

#[test]
fn pieces_are_sent_in_order_without_joining_them() {
    testkit::require_root!();
    let wire = wire(&SocketFilter::everything());
    let mut sent = big_packet();
    let mut head = frames::ethernet(ELSEWHERE, wire.ends.0.mac, &[], 0x88b5);
    let payload = pattern(3000);
    let len = head.len();
    head.extend(&payload);
    sent.spare_mut()[..head.len()].copy_from_slice(&head);
    sent.set_ranges(0..len, [len + 100..len + 200, len + 300..len + 1300]);
    wire.tx.send(&sent).unwrap();
    let mut packet = big_packet();
    next(&wire.rx, &mut packet);
    assert_eq!(packet.to_vec(), sent.to_vec());
}

#[test]
fn link_down_is_recoverable_and_deletion_is_not() {
    testkit::require_root!();
    let wire = wire(&SocketFilter::everything());
    let frame = PacketBuf::from_bytes(
        &[frames::ethernet(ELSEWHERE, wire.ends.0.mac, &[], 0x88b5), vec![0; 46]].concat(),
    );
    let mut packet = big_packet();
    wire.tx.send(&frame).unwrap();
    next(&wire.rx, &mut packet);

    wire.b.netlink().set_down(wire.ends.1.index).unwrap();
    wait_for("news of the link", || match wire.rx.recv(&mut packet) {
        Err(IoError::LinkDown) => Some(()),
        Ok(_) => None,
        Err(error) => panic!("{error}"),
    });
    assert!(matches!(wire.rx.send(&frame), Err(IoError::LinkDown)));
    wire.b.netlink().set_up(wire.ends.1.index).unwrap();
    wait_until(TIMEOUT, "a frame after the link came back", || {
        // The carrier of the other end returns slightly later.
        wire.tx.send(&frame).is_ok() && matches!(wire.rx.recv(&mut packet), Ok(Some(_)))
    });

    wire.a.netlink().delete(wire.ends.0.index).unwrap();
    for socket in [&wire.rx, &wire.tx] {
        wait_for("the end of the device", || match socket.recv(&mut packet) {
            Err(IoError::DeviceGone) => Some(()),
            Ok(_) => None,
            Err(error) => panic!("{error}"),
        });
        assert!(matches!(socket.send(&frame), Err(IoError::DeviceGone)));
    }
}

#[test]
fn frames_are_counted_as_dropped_when_the_queue_is_full() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let ends = pair(&a, &b);
    let open = |host: &TestHost, index, filter: &SocketFilter, rx_queue_bytes| {
        let options = PacketOptions { promiscuous: true, rx_queue_bytes, ..Default::default() };
        host.run(|| PacketSocket::open(index, filter, options)).unwrap()
    };
    let tx = open(&a, ends.0.index, &SocketFilter::nothing(), 4096);
    let rx = open(&b, ends.1.index, &SocketFilter::everything(), 4096);
    let frame = tcp_frame((ends.0.mac, ELSEWHERE), &[], addresses(false), &pattern(1000), None);
    for _ in 0..100 {
        tx.send(&frame).unwrap();
    }
    wait_until(TIMEOUT, "drops to be counted", || rx.stats().unwrap().dropped > 0);
    wait_until(TIMEOUT, "all frames to be counted", || rx.stats().unwrap().frames >= 100);
}

#[test]
fn mtu_leaves_room_for_one_customer_tag_only() {
    testkit::require_root!();
    let wire = wire(&SocketFilter::everything());
    let macs = (wire.ends.0.mac, ELSEWHERE);
    let frame = |tags: &[_], ip_len: usize| {
        tcp_frame(macs, tags, addresses(false), &pattern(ip_len - 40), None)
    };
    let mut packet = big_packet();
    let (c_tag, s_tag) = ((0x8100, 5), (0x88a8, 7));
    for (tags, most) in
        [(&[][..], 1500), (&[c_tag], 1500), (&[s_tag], 1496), (&[s_tag, c_tag], 1492)]
    {
        let fits = frame(tags, most);
        wire.tx.send(&fits).unwrap();
        let vlan = next(&wire.rx, &mut packet);
        assert_eq!(packet.len() + 4 * usize::from(vlan.is_some()), fits.len());
        let sent = wire.tx.send(&frame(tags, most + 1));
        assert!(matches!(sent, Err(IoError::TooBig)), "{tags:x?}: {sent:?}");
    }
}

#[test]
fn super_packet_is_refused_when_the_kernel_does_not_know_its_tag() {
    testkit::require_root!();
    let wire = wire(&SocketFilter::vlan_tagged());
    let macs = (wire.ends.0.mac, ELSEWHERE);
    let mut packet = big_packet();
    for tags in [&[(0x9100, 1)][..], &[(0x8100, 1), (0x9100, 2)]] {
        let whole = tcp_frame(macs, tags, addresses(false), &pattern(30_000), Some(1400));
        assert!(matches!(wire.tx.send(&whole), Err(IoError::TooBig)));
        let single = tcp_frame(macs, tags, addresses(false), &pattern(1000), None);
        wire.tx.send(&single).unwrap();
        let stripped = next(&wire.rx, &mut packet).map_or(0, |_| 4);
        assert_eq!(packet.len() + stripped, single.len());
    }
}

#[test]
fn frames_are_received_in_batches_with_their_offload_state() {
    testkit::require_root!();
    let wire = wire(&SocketFilter::vlan_tagged());
    let sent: Vec<_> = (0..40)
        .map(|i| {
            let (len, mss) = if i % 2 == 0 { (i, None) } else { (i * 1000 + 1, Some(1000)) };
            let tags = [(0x8100, i as u16)];
            tcp_frame((wire.ends.0.mac, ELSEWHERE), &tags, addresses(false), &pattern(len), mss)
        })
        .collect();
    for packet in &sent {
        wire.tx.send(packet).unwrap();
    }
    let mut packets: Vec<_> = (0..16).map(|_| big_packet()).collect();
    let mut about = [PacketRx::default(); 16];
    let mut next = 0;
    wait_for("all frames", || {
        let count = wire.rx.recv_batch(&mut packets, &mut about).unwrap();
        for (packet, about) in packets.iter().zip(&about).take(count) {
            let mut expected = sent[next].to_vec();
            expected.drain(12..16);
            assert_eq!(about.vlan, Some(VlanTag { tpid: 0x8100, tci: next as u16 }));
            assert_eq!((packet.to_vec(), packet.offload.gso), (expected, sent[next].offload.gso));
            next += 1;
        }
        (next == sent.len()).then_some(())
    });
    assert_eq!(wire.rx.recv_batch(&mut packets, &mut about).unwrap(), 0);
}

#[test]
fn frame_is_reported_as_lost_when_it_does_not_fit() {
    testkit::require_root!();
    let wire = wire(&SocketFilter::vlan_tagged());
    let frame = tcp_frame(
        (wire.ends.0.mac, ELSEWHERE),
        &[(0x8100, 1)],
        addresses(false),
        &pattern(500),
        None,
    );
    for _ in 0..2 {
        wire.tx.send(&frame).unwrap();
    }
    let mut small = [PacketBuf::with_capacity(PacketBuf::HEADROOM, 100)];
    wait_for("the frame", || match wire.rx.recv(&mut small[0]) {
        Ok(got) => got.map(|_| panic!("it cannot fit")),
        Err(IoError::Truncated) => Some(()),
        Err(error) => panic!("{error}"),
    });
    let mut about = [PacketRx::default()];
    wait_for("the frame", || {
        (wire.rx.recv_batch(&mut small, &mut about).unwrap() == 1).then_some(())
    });
    assert_eq!((small[0].len(), wire.rx.malformed()), (0, 1));
}

#[test]
fn socket_works_when_opened_before_the_link_is_up() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let ends = pair(&a, &b);
    b.netlink().set_down(ends.1.index).unwrap();
    let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    let rx =
        b.run(|| PacketSocket::open(ends.1.index, &SocketFilter::everything(), options)).unwrap();
    let tx =
        a.run(|| PacketSocket::open_name(&ends.0.name, &SocketFilter::nothing(), options)).unwrap();
    let mut packet = big_packet();
    assert!(matches!(rx.recv(&mut packet), Err(IoError::LinkDown)));
    b.netlink().set_up(ends.1.index).unwrap();
    let frame = tcp_frame((ends.0.mac, ELSEWHERE), &[], addresses(false), b"x", None);
    wait_until(TIMEOUT, "a frame", || {
        tx.send(&frame).is_ok() && matches!(rx.recv(&mut packet), Ok(Some(_)))
    });
}

/// A UDP datagram from the port `port`, between addresses that no host has.
fn datagram(port: u16, payload: u8, src: MacAddr, reversed: bool) -> PacketBuf {
    let (mut a, mut b) = (("192.0.2.1", port), ("198.51.100.1", 53));
    if reversed {
        std::mem::swap(&mut a, &mut b);
    }
    let mut bytes = frames::ethernet(ELSEWHERE, src, &[], 0x0800);
    bytes.extend(frames::ip(a.0.parse().unwrap(), b.0.parse().unwrap(), 17, 9));
    bytes.extend([a.1.to_be_bytes(), b.1.to_be_bytes(), [0, 9], [0, 0]].concat());
    bytes.push(payload);
    PacketBuf::from_bytes(&bytes)
}

#[test]
fn group_shares_frames_by_flow_and_ignores_the_hosts_own() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let ends = pair(&a, &b);
    let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    let open = |count| {
        b.run(|| {
            PacketSocket::open_group(ends.1.index, &SocketFilter::everything(), options, count)
        })
    };
    let tx = a.run(|| PacketSocket::open(ends.0.index, &SocketFilter::nothing(), options)).unwrap();
    let other =
        b.run(|| PacketSocket::open(ends.1.index, &SocketFilter::nothing(), options)).unwrap();
    let mut groups = Vec::new();
    for count in [3, 4] {
        // Two groups on one interface are independent.
        groups.push(open(count).unwrap());
        let group = &groups[groups.len() - 1];
        let mut packet = big_packet();
        for port in 1000..1100 {
            for (round, reversed) in [(0, false), (1, false), (2, true)] {
                tx.send(&datagram(port, round, ends.0.mac, reversed)).unwrap();
            }
        }
        // Frames that the host sends itself come before the last frame.
        for socket in group.iter().chain([&other]) {
            socket.send(&datagram(999, 9, ends.1.mac, false)).unwrap();
        }
        tx.send(&datagram(2000, 0, ends.0.mac, false)).unwrap();
        let mut received = std::collections::BTreeMap::<u16, Vec<(usize, u8)>>::new();
        wait_for("all frames", || {
            for (index, socket) in group.iter().enumerate() {
                while socket.recv(&mut packet).unwrap().is_some() {
                    let frame = packet.head();
                    if frame[0..6] == ELSEWHERE.0 {
                        let reversed = usize::from(frame[34..36] == [0, 53]) * 2;
                        let at = 34 + reversed;
                        let port = u16::from_be_bytes([frame[at], frame[at + 1]]);
                        received.entry(port).or_default().push((index, frame[42]));
                    }
                }
            }
            received.contains_key(&2000).then_some(())
        });
        received.remove(&2000);
        assert_eq!(received.len(), 100, "none of the port 999");
        for flow in received.values() {
            let socket = flow[0].0;
            assert_eq!(flow[..], [(socket, 0), (socket, 1), (socket, 2)]);
        }
        for socket in 0..group.len() {
            assert!(received.values().any(|flow| flow[0].0 == socket), "{socket} has nothing");
        }
    }
}

#[test]
fn group_keeps_its_filter_and_survives_a_link_that_goes_down() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let ends = pair(&a, &b);
    let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    let open = |filter: &SocketFilter, count| {
        b.run(|| PacketSocket::open_group(ends.1.index, filter, options, count))
    };
    for count in [0, 257] {
        let error = open(&SocketFilter::everything(), count).unwrap_err();
        assert!(matches!(error, netdev::Error::Invalid { .. }), "{error}");
    }
    let group = open(&SocketFilter::vlan_tagged(), 2).unwrap();
    let tx = a.run(|| PacketSocket::open(ends.0.index, &SocketFilter::nothing(), options)).unwrap();
    let mut packet = big_packet();
    let mut recv = || {
        group.iter().find_map(|socket| match socket.recv(&mut packet) {
            Ok(got) => got,
            Err(IoError::LinkDown) => None,
            Err(error) => panic!("{error}"),
        })
    };
    let tagged = tcp_frame((ends.0.mac, ELSEWHERE), &[(0x8100, 5)], addresses(false), b"x", None);
    for _ in 0..2 {
        wait_for("a frame that the filter accepts", || {
            let _ = tx.send(&datagram(1000, 0, ends.0.mac, false));
            let _ = tx.send(&tagged);
            recv().map(|got| assert_eq!(got.vlan, Some(VlanTag { tpid: 0x8100, tci: 5 })))
        });
        b.netlink().set_down(ends.1.index).unwrap();
        b.netlink().set_up(ends.1.index).unwrap();
    }
}

#[test]
fn sctp_arrives_with_crc_when_the_sender_left_it_to_the_interface() {
    testkit::require_root!();
    let wire = wire(&SocketFilter::everything());
    let (src, dst) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
    let mut bytes = frames::ethernet(ELSEWHERE, wire.ends.0.mac, &[], 0x0800);
    let message = [0, 1, 0, 2, 1, 2, 3, 4, 0, 0, 0, 0, 11, 0, 0, 4];
    bytes.extend(frames::ip(src, dst, 132, message.len()));
    bytes.extend(message);
    let mut sent = PacketBuf::from_bytes(&bytes);
    sent.offload.checksum = packet::Checksum::Partial { start: 34, offset: 8 };
    wire.tx.send(&sent).unwrap();
    let mut packet = big_packet();
    next(&wire.rx, &mut packet);
    let crc = wire::Crc32c::new().bytes(&message).checksum();
    bytes[42..46].copy_from_slice(&crc);
    assert_eq!(packet.to_vec()[..bytes.len()], bytes);
    assert_eq!(packet.offload.checksum, packet::Checksum::Verified);
}
