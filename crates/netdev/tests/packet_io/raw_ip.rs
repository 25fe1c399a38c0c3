use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::batch::MessageBatch;
use netdev::filter::SocketFilter;
use netdev::io_error::IoError;
use netdev::raw_ip::{PROTOCOL_GRE, RawIp, RawTx};
use packet::{Checksum, Gso, GsoKind, Offload};
use testkit::host::{TestHost, WireEnd, pair};
use wire::MacAddr;

use super::frames::{self, big_packet, pattern, wait_for};

fn address(end: &WireEnd, v6: bool) -> IpAddr {
    if v6 { end.ip6.into() } else { end.ip4.into() }
}

/// Opens a socket on `host` and its end of the link, with the filter `filter`.
fn receiver(host: &TestHost, end: &WireEnd, filter: &SocketFilter) -> PacketSocket {
    host.run(|| PacketSocket::open(end.index, filter, PacketOptions::default())).unwrap()
}

#[test]
fn packets_cross_in_batches_with_the_requested_header() {
    testkit::require_root!();
    for v6 in [false, true] {
        let (a, b) = (TestHost::new("a"), TestHost::new("b"));
        let ends = pair(&a, &b);
        let (src, dst) = (address(&ends.0, v6), address(&ends.1, v6));
        let tx = a.run(|| RawIp::open(src, PROTOCOL_GRE)).unwrap();
        let rx = receiver(&b, &ends.1, &SocketFilter::protocol_to(dst, PROTOCOL_GRE));
        let payload = pattern(1400);
        let mut messages = MessageBatch::new();
        for len in 0..40 {
            assert!(messages.push([&[0, 0, 0x65, 0x58][..], &payload[..len * 35]]));
        }
        let to = RawTx { dst, tos: 0xba, ttl: Some(9) };
        assert_eq!(tx.send_batch(&to, &messages).unwrap(), 40);

        let mut packet = big_packet();
        for len in 0..40 {
            wait_for("a packet of the batch", || rx.recv(&mut packet).unwrap());
            let (header, sent) = packet.head()[14..].split_at(if v6 { 40 } else { 20 });
            assert_eq!(sent, [&[0, 0, 0x65, 0x58][..], &payload[..len * 35]].concat());
            if v6 {
                assert_eq!((header[0], header[1] >> 4, header[7]), (0x6b, 0xa, 9));
            } else {
                assert_eq!((header[1], header[6], header[8]), (0xba, 0x40, 9), "TOS, DF, TTL");
            }
        }

        let big = IoSlice::new(&[0; 1481]);
        assert!(matches!(tx.send(&to, &[big]), Err(IoError::TooBig)));
    }
}

/// The type and code of the next ICMP error that `rx` receives.
fn next_icmp_error(rx: &PacketSocket, v6: bool) -> (u8, u8) {
    let mut packet = big_packet();
    wait_for("an ICMP error", || {
        rx.recv(&mut packet).unwrap()?;
        let icmp = if v6 { 54 } else { 34 };
        let (kind, code) = (*packet.head().get(icmp)?, *packet.head().get(icmp + 1)?);
        // Neighbour discovery uses the same protocol.
        (!v6 || kind < 128).then_some((kind, code))
    })
}

/// How many raw sockets `host` has.
fn raw_sockets(host: &TestHost, v6: bool) -> usize {
    let table = if v6 { "/proc/thread-self/net/raw6" } else { "/proc/thread-self/net/raw" };
    let text = host.run(|| std::fs::read_to_string(table)).unwrap();
    text.lines().skip(1).count()
}

#[test]
fn kernel_answers_gre_only_when_nothing_reserves_the_protocol() {
    testkit::require_root!();
    for v6 in [false, true] {
        let (a, b) = (TestHost::new("a"), TestHost::new("b"));
        let ends = pair(&a, &b);
        for key in ["net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"] {
            b.sysctl(key, "0").unwrap();
        }
        let (src, dst) = (address(&ends.0, v6), address(&ends.1, v6));
        let icmp = SocketFilter::protocol_to(src, if v6 { 58 } else { 1 });
        let errors = receiver(&a, &ends.0, &icmp);
        let tx = a.run(|| RawIp::open(src, PROTOCOL_GRE)).unwrap();
        let udp = a.run(|| UdpSocket::bind((src, 0))).unwrap();
        let gre = || tx.send(&RawTx { dst, tos: 0, ttl: None }, &[IoSlice::new(&[0; 40])]).unwrap();
        let (protocol_unreachable, port_unreachable) =
            if v6 { ((4, 1), (1, 4)) } else { ((3, 2), (3, 3)) };

        gre();
        assert_eq!(next_icmp_error(&errors, v6), protocol_unreachable);
        let reserved = b.run(|| RawIp::open(dst, PROTOCOL_GRE)).unwrap();
        gre();
        // A packet that is certainly answered, to prove that the earlier ones were not.
        udp.send_to(b"x", (dst, 9)).unwrap();
        assert_eq!(next_icmp_error(&errors, v6), port_unreachable);
        drop(reserved);
        wait_for("the socket to be closed", || (raw_sockets(&b, v6) == 0).then_some(()));
        gre();
        assert_eq!(next_icmp_error(&errors, v6), protocol_unreachable);
    }
}

/// TCP segments of one flow, in Ethernet over GRE, with completed checksums.
fn gre_segments(count: u32, payload_len: usize) -> Vec<Vec<u8>> {
    let (src, dst): (SocketAddr, SocketAddr) =
        ("192.0.2.1:80".parse().unwrap(), "192.0.2.2:8080".parse().unwrap());
    let segment = |i: u32| {
        let mut tcp = frames::tcp(src, dst, &vec![i as u8; payload_len]);
        tcp[4..8].copy_from_slice(&(1 + i * payload_len as u32).to_be_bytes());
        tcp[13] = 0x10;
        let sum = !frames::fold(frames::sum(&tcp, 0));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let macs = (MacAddr([2; 6]), MacAddr([4; 6]));
        let ethernet = frames::ethernet(macs.0, macs.1, &[], 0x0800);
        let ip = frames::ip(src.ip(), dst.ip(), 6, tcp.len());
        [vec![0, 0, 0x65, 0x58], ethernet, ip, tcp].concat()
    };
    (0..count).map(segment).collect()
}

#[test]
fn merged_gre_keeps_its_offload_state_when_received_by_a_packet_socket() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let ends = pair(&a, &b);
    // The sending veth has no TCP segmentation; otherwise the receiving one does not merge.
    let kinds = ["", "6", "-ecn", "-mangleid"];
    let tso = kinds.map(|kind| format!("tx-tcp{kind}-segmentation"));
    let off: Vec<_> = tso.iter().map(|name| (name.as_str(), false)).collect();
    assert_eq!(a.ethtool().unwrap().set_features(&ends.0.name, &off).unwrap(), []);
    assert_eq!(b.ethtool().unwrap().set_features(&ends.1.name, &[("rx-gro", true)]).unwrap(), []);
    // A long GRO flush timeout, so that merging is certain.
    let patience = "cd /sys/class/net/eth0 && echo 100000000 > gro_flush_timeout && echo 1000 > \
                    napi_defer_hard_irqs";
    let set = Command::new("ip")
        .args(["netns", "exec", b.name().unwrap(), "sh", "-c", patience])
        .status()
        .unwrap();
    assert!(set.success());

    let (src, dst) = (address(&ends.0, false), address(&ends.1, false));
    let tx = a.run(|| RawIp::open(src, PROTOCOL_GRE)).unwrap();
    let rx = receiver(&b, &ends.1, &SocketFilter::protocol_to(dst, PROTOCOL_GRE));
    let segments = gre_segments(20, 1000);
    let mut messages = MessageBatch::new();
    for segment in &segments {
        assert!(messages.push([&segment[..]]));
    }
    let to = RawTx { dst, tos: 0, ttl: None };
    let mut packet = big_packet();
    // Resolve the neighbour first: nothing is merged before that.
    wait_for("all segments merged", || {
        assert_eq!(tx.send_batch(&to, &messages).unwrap(), 20);
        std::thread::sleep(Duration::from_millis(150));
        while rx.recv(&mut packet).unwrap().is_some() && packet.len() < 20_000 {}
        (packet.len() > 20_000).then_some(())
    });
    assert_eq!(packet.len(), 14 + 20 + 4 + 14 + 40 + 20_000);
    // Without the outer headers, the offload state describes the inner frame.
    packet.pull_front(14 + 20 + 4);
    let gso = Gso { kind: GsoKind::TcpV4, size: 1000, ecn: false };
    let checksum = Checksum::Partial { start: 34, offset: 16 };
    assert_eq!(packet.offload, Offload { checksum, gso: Some(gso) });
}
