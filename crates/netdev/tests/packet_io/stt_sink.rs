use std::net::{IpAddr, SocketAddr, TcpListener};

use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use netdev::stt_sink::SttSink;
use testkit::host::{TestHost, WireEnd, pair};

use super::frames::{big_packet, pattern, tcp_frame, wait_for};

const STT_PORT: u16 = 7471;

fn address(end: &WireEnd, v6: bool) -> IpAddr {
    if v6 { end.ip6.into() } else { end.ip4.into() }
}

/// The source port of the next TCP reset that `rx` receives.
fn next_reset(rx: &PacketSocket, v6: bool) -> u16 {
    let mut packet = big_packet();
    wait_for("a TCP reset", || {
        rx.recv(&mut packet).unwrap()?;
        let tcp = packet.head().get(if v6 { 54 } else { 34 }..)?;
        (*tcp.get(13)? & 4 != 0).then(|| u16::from_be_bytes([tcp[0], tcp[1]]))
    })
}

#[test]
fn segments_are_received_but_not_answered_with_a_sink() {
    testkit::require_root!();
    for v6 in [false, true] {
        let (a, b) = (TestHost::new("a"), TestHost::new("b"));
        let ends = pair(&a, &b);
        let (src, dst) = (address(&ends.0, v6), address(&ends.1, v6));
        let open = |host: &TestHost, end: &WireEnd, filter: SocketFilter| {
            host.run(|| PacketSocket::open(end.index, &filter, PacketOptions::default())).unwrap()
        };
        let at_a = open(&a, &ends.0, SocketFilter::protocol_to(src, 6));
        let at_b = open(&b, &ends.1, SocketFilter::tcp_to(dst, STT_PORT));
        let macs = (ends.0.mac, ends.1.mac);
        let send = |port: u16, payload: &[u8], mss| {
            let addresses = (SocketAddr::new(src, 50_000), SocketAddr::new(dst, port));
            at_a.send(&tcp_frame(macs, &[], addresses, payload, mss)).unwrap();
        };
        let payload = pattern(30_000);
        let mut packet = big_packet();

        send(STT_PORT, &payload[..100], None);
        assert_eq!(next_reset(&at_a, v6), STT_PORT, "without a sink the stack answers");
        wait_for("the segment", || at_b.recv(&mut packet).unwrap());

        let sink = b.run(|| SttSink::bind(SocketAddr::new(dst, STT_PORT))).unwrap();
        for (len, mss) in [(100, None), (30_000, Some(1400))] {
            send(STT_PORT, &payload[..len], mss);
            wait_for("the segment", || at_b.recv(&mut packet).unwrap());
            assert!(packet.to_vec().ends_with(&payload[..len]));
            assert_eq!(packet.offload.gso.map(|gso| gso.size), mss);
            // A segment that is certainly answered, to prove that the earlier ones were not.
            send(STT_PORT + 1, b"", None);
            assert_eq!(next_reset(&at_a, v6), STT_PORT + 1);
        }
        let taken = b.run(|| TcpListener::bind((dst, STT_PORT))).unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);

        drop(sink);
        let free = || b.run(|| TcpListener::bind((dst, STT_PORT))).ok();
        wait_for("the port to be free", free);
        send(STT_PORT, b"x", None);
        assert_eq!(next_reset(&at_a, v6), STT_PORT);
    }
}
