use std::net::UdpSocket;

use netdev::io_error::IoError;
use netdev::tap::Tap;
use netdev::{Dad, IpNet, TunQueues};
use packet::{Checksum, GsoKind, PacketBuf};
use testkit::host::TestHost;
use wire::MacAddr;

use super::frames::{self, big_packet, pattern, wait_for};

/// A guest whose interface `tap0` is up with 10.99.0.1/24.
fn guest() -> (TestHost, Tap) {
    let host = TestHost::new("tap");
    let tap = host.run(|| Tap::open("tap0")).unwrap();
    let index = host.netlink().index_of("tap0").unwrap();
    assert_eq!(host.run(|| tap.ifindex()).unwrap(), index);
    assert_eq!(tap.name().unwrap(), "tap0");
    let prefix = IpNet::new([10, 99, 0, 1].into(), 24).unwrap();
    host.netlink().add_address(index, prefix, Dad::Skip).unwrap();
    host.netlink().set_up(index).unwrap();
    (host, tap)
}

/// Receives the next frame of the guest with this ethertype.
fn next(tap: &Tap, packet: &mut PacketBuf, ethertype: u16) {
    wait_for("a frame of the guest", || {
        tap.recv(packet).unwrap()?;
        (packet.head()[12..14] == ethertype.to_be_bytes()).then_some(())
    });
}

/// Answers the guest's ARP request for 10.99.0.2 and returns the guest's MAC address.
fn answer_arp(tap: &Tap, mac: MacAddr) -> MacAddr {
    let mut packet = big_packet();
    next(tap, &mut packet, 0x0806);
    let request = packet.to_vec();
    let guest = MacAddr(request[6..12].try_into().unwrap());
    let mut reply = frames::ethernet(guest, mac, &[], 0x0806);
    reply.extend([0, 1, 8, 0, 6, 4, 0, 2]);
    reply.extend(mac.0);
    reply.extend(&request[38..42]);
    reply.extend(&request[22..32]);
    tap.send(&PacketBuf::from_bytes(&reply)).unwrap();
    guest
}

#[test]
fn udp_crosses_the_tap_in_both_directions_from_any_thread() {
    testkit::require_root!();
    let (host, tap) = guest();
    let socket = host.run(|| UdpSocket::bind("10.99.0.1:7000")).unwrap();
    socket.set_read_timeout(Some(frames::TIMEOUT)).unwrap();
    let mac = MacAddr([2, 0, 0, 0, 0, 9]);
    socket.send_to(b"out", "10.99.0.2:9000").unwrap();
    let guest_mac = answer_arp(&tap, mac);

    let mut packet = big_packet();
    next(&tap, &mut packet, 0x0800);
    assert_eq!(&packet.head()[42..], b"out");
    assert_eq!(packet.offload.checksum, Checksum::Partial { start: 34, offset: 6 });

    // The reply, in two pieces and with a partial checksum.
    let (src, dst) = ("10.99.0.2".parse().unwrap(), "10.99.0.1".parse().unwrap());
    let mut bytes = frames::ethernet(guest_mac, mac, &[], 0x0800);
    bytes.extend(frames::ip(src, dst, 17, 10));
    bytes.extend([0x23, 0x28, 0x1b, 0x58, 0, 10]);
    bytes.extend(frames::fold(frames::pseudo_header_sum(src, dst, 17, 10)).to_be_bytes());
    let head = bytes.len();
    bytes.extend(b"..in");
    let mut packet = big_packet();
    packet.spare_mut()[..bytes.len()].copy_from_slice(&bytes);
    packet.set_ranges(0..head, std::iter::once(head + 2..head + 4));
    packet.offload.checksum = Checksum::Partial { start: 34, offset: 6 };
    tap.send(&packet).unwrap();
    let mut got = [0; 16];
    let (len, from) = socket.recv_from(&mut got).unwrap();
    assert_eq!((&got[..len], from), (&b"in"[..], "10.99.0.2:9000".parse().unwrap()));
}

#[test]
fn udp_train_stays_unsegmented_from_the_guest() {
    testkit::require_root!();
    let (host, tap) = guest();
    if !tap.udp_segmentation() {
        return;
    }
    let socket = host.run(|| UdpSocket::bind("10.99.0.1:7000")).unwrap();
    socket.send_to(b"first", "10.99.0.2:9000").unwrap();
    answer_arp(&tap, MacAddr([2, 0, 0, 0, 0, 9]));
    let mut packet = big_packet();
    next(&tap, &mut packet, 0x0800);
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::UdpGsoSegment, &1000).unwrap();
    socket.send_to(&pattern(10_500), "10.99.0.2:9000").unwrap();
    next(&tap, &mut packet, 0x0800);
    let gso = packet.offload.gso.unwrap();
    assert_eq!((gso.kind, gso.size, packet.len()), (GsoKind::UdpL4, 1000, 42 + 10_500));
    assert_eq!(packet.head()[42..], pattern(10_500));
}

#[test]
fn link_down_is_recoverable_and_deletion_is_not() {
    testkit::require_root!();
    let (host, tap) = guest();
    let index = host.netlink().index_of("tap0").unwrap();
    let frame = PacketBuf::from_bytes(&[0; 60]);
    tap.send(&frame).unwrap();
    host.netlink().set_down(index).unwrap();
    assert!(matches!(tap.send(&frame), Err(IoError::LinkDown)));
    let mut packet = big_packet();
    while tap.recv(&mut packet).unwrap().is_some() {}
    host.netlink().set_up(index).unwrap();
    tap.send(&frame).unwrap();

    host.netlink().delete(index).unwrap();
    assert!(frames::is_readable(&tap, 1000), "the event loop is notified");
    assert!(matches!(tap.send(&frame), Err(IoError::DeviceGone)));
    assert!(matches!(tap.recv(&mut packet), Err(IoError::DeviceGone)));
}

#[test]
fn device_is_gone_with_the_namespace_it_was_moved_to() {
    testkit::require_root!();
    let (host, tap) = guest();
    let elsewhere = TestHost::new("elsewhere");
    host.netlink().move_to(host.netlink().index_of("tap0").unwrap(), &elsewhere).unwrap();
    assert!(elsewhere.netlink().index_of("tap0").is_ok());
    drop(elsewhere);
    let mut packet = big_packet();
    wait_for("the end of the device", || match tap.recv(&mut packet) {
        Ok(_) => None,
        Err(IoError::DeviceGone) => Some(()),
        Err(error) => panic!("{error}"),
    });
}

#[test]
fn interface_disappears_when_the_tap_is_dropped() {
    testkit::require_root!();
    let (host, tap) = guest();
    drop(tap);
    wait_for("the end of the interface", || {
        host.netlink().index_of("tap0").is_err_and(|error| error.is_not_found()).then_some(())
    });
}

#[test]
fn open_is_refused_when_the_name_is_invalid_or_taken() {
    testkit::require_root!();
    let (host, _tap) = guest();
    for name in ["a-name-too-long-", "a/b", "a\0b"] {
        let error = host.run(|| Tap::open(name)).unwrap_err();
        assert!(matches!(error, netdev::Error::Invalid { .. }), "{error}");
    }
    let error = host.run(|| Tap::open("tap0")).unwrap_err();
    assert_eq!(error.errno(), Some(16), "{error}");
}

#[test]
fn queues_share_a_guests_frames_by_flow() {
    testkit::require_root!();
    let host = TestHost::new("tap");
    let queues = host.run(|| Tap::open_queues("tap%d", 3)).unwrap();
    let names: Vec<_> = queues.iter().map(|queue| queue.name().unwrap()).collect();
    assert_eq!(names, ["tap0"; 3]);
    let index = host.netlink().index_of("tap0").unwrap();
    let prefix = IpNet::new([10, 99, 0, 1].into(), 24).unwrap();
    host.netlink().add_address(index, prefix, Dad::Skip).unwrap();
    host.netlink().set_neighbour(index, "10.99.0.2".parse().unwrap(), MacAddr([2; 6])).unwrap();
    host.netlink().set_up(index).unwrap();

    let sockets: Vec<_> =
        (0..60).map(|_| host.run(|| UdpSocket::bind("10.99.0.1:0")).unwrap()).collect();
    for round in 0..3_u8 {
        for socket in &sockets {
            socket.send_to(&[round], "10.99.0.2:9000").unwrap();
        }
    }
    // For each source port: the queue and the payload of each datagram, in order.
    let mut received = std::collections::BTreeMap::<u16, Vec<(usize, u8)>>::new();
    let mut packet = big_packet();
    wait_for("all datagrams", || {
        for (index, queue) in queues.iter().enumerate() {
            while queue.recv(&mut packet).unwrap().is_some() {
                let frame = packet.head();
                if frame[12..14] == [8, 0] && frame[23] == 17 {
                    let port = u16::from_be_bytes([frame[34], frame[35]]);
                    received.entry(port).or_default().push((index, frame[42]));
                }
            }
        }
        (received.values().map(Vec::len).sum::<usize>() == 180).then_some(())
    });
    for flow in received.values() {
        let queue = flow[0].0;
        assert_eq!(flow[..], [(queue, 0), (queue, 1), (queue, 2)]);
    }
    for queue in 0..3 {
        assert!(received.values().any(|flow| flow[0].0 == queue), "queue {queue} has nothing");
    }

    // A frame reaches the guest through any queue.
    for queue in &queues {
        queue.send(&PacketBuf::from_bytes(&[0; 60])).unwrap();
    }
    let (first, rest) = queues.split_first().unwrap();
    assert_eq!(rest.len(), 2);
    let error = host.run(|| Tap::open("tap0")).unwrap_err();
    assert_eq!(error.errno(), Some(22), "{error}");
    assert_eq!(host.run(|| first.ifindex()).unwrap(), index);
    let mut queues = queues;
    queues.truncate(1);
    assert!(host.netlink().index_of("tap0").is_ok(), "one queue keeps it");
    queues.clear();
    assert!(host.netlink().index_of("tap0").unwrap_err().is_not_found());
}

#[test]
fn single_queue_tap_can_be_opened_by_others_and_zero_queues_are_refused() {
    testkit::require_root!();
    let host = TestHost::new("tap");
    let queues = host.run(|| Tap::open_queues("tap0", 1)).unwrap();
    assert_eq!(queues.len(), 1);
    let error = host.run(|| Tap::open_queues("tap0", 2)).unwrap_err();
    assert_eq!(error.errno(), Some(22), "{error}");
    for count in [0, 257] {
        let error = host.run(|| Tap::open_queues("tap1", count)).unwrap_err();
        assert!(matches!(error, netdev::Error::Invalid { .. }), "{error}");
    }
    assert_eq!(host.run(|| Tap::open_queues("tap1", 256)).unwrap().len(), 256);
}

#[test]
fn persistent_tap_stays_until_it_is_deleted() {
    testkit::require_root!();
    let host = TestHost::new("tap");
    host.run(|| Tap::create_persistent("tap7", false)).unwrap();
    // An interface left by a killed process is taken over.
    host.run(|| Tap::create_persistent("tap7", false)).unwrap();
    assert!(host.netlink().index_of("tap7").is_ok());
    assert!(host.run(|| Tap::delete_persistent("tap7")).unwrap(), "nobody has it open");
    assert!(host.netlink().index_of("tap7").unwrap_err().is_not_found());
}

#[test]
fn persistent_tap_is_not_deleted_while_a_program_has_it_open() {
    testkit::require_root!();
    let host = TestHost::new("tap");
    host.run(|| Tap::create_persistent("tap7", false)).unwrap();
    let machine = host.run(|| Tap::open("tap7")).unwrap();
    host.run(|| Tap::create_persistent("tap7", false)).unwrap();
    assert!(!host.run(|| Tap::delete_persistent("tap7")).unwrap(), "the machine has it open");
    drop(machine);
    assert!(host.netlink().index_of("tap7").is_ok(), "the machine may open it again");
    wait_for("the deletion", || host.run(|| Tap::delete_persistent("tap7")).unwrap().then_some(()));
}

#[test]
fn persistent_tap_is_refused_when_the_name_is_used_by_another_device() {
    testkit::require_root!();
    let host = TestHost::new("tap");
    for several in [false, true] {
        let error = host.run(|| Tap::create_persistent("lo", several)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "create TAP lo: the name is used by an interface that is not a TAP: \
             remove that interface, or choose another name"
        );
    }
}

#[test]
fn persistent_tap_for_several_queues_is_left_to_the_program_that_has_them() {
    testkit::require_root!();
    let host = TestHost::new("tap");
    let create = |several| host.run(|| Tap::create_persistent("tap7", several));
    let queues_now = || host.netlink().link("tap7").unwrap().tun_queues.unwrap();
    create(false).unwrap();
    assert_eq!(queues_now(), TunQueues { is_multi_queue: false, open: 0 });
    // No program has it open, so it can be replaced.
    create(true).unwrap();
    assert_eq!(queues_now(), TunQueues { is_multi_queue: true, open: 0 });
    let machine = host.run(|| Tap::open_queues("tap7", 4)).unwrap();
    // Opening one more queue, even briefly, would divert frames from the machine.
    create(true).unwrap();
    assert!(!host.run(|| Tap::delete_persistent("tap7")).unwrap(), "the machine has it open");
    assert_eq!(queues_now(), TunQueues { is_multi_queue: true, open: 4 });
    let error = create(false).unwrap_err().to_string();
    let expected = "create TAP tap7: a program has it open with several queues, but one would be \
                    needed: stop that program";
    assert_eq!(error, expected);
    drop(machine);
    wait_for("the end of the queues", || (queues_now().open == 0).then_some(()));
    create(false).unwrap();
    let machine = host.run(|| Tap::open("tap7")).unwrap();
    let error = create(true).unwrap_err().to_string();
    assert!(error.contains("open with one queue, but several would be needed"), "{error}");
    drop(machine);
    wait_for("the deletion", || host.run(|| Tap::delete_persistent("tap7")).unwrap().then_some(()));
    assert!(host.netlink().index_of("tap7").unwrap_err().is_not_found());
}
