use std::net::SocketAddr;

use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use packet::PacketBuf;
use testkit::host::{TestHost, WireEnd, pair};
use wire::MacAddr;

use super::frames::{self, big_packet, tcp_frame, wait_for};

/// Sends frames to a socket with `filter`, each with a different last byte, and returns the bytes
/// of those that pass. The last frame must pass.
fn passed(
    filter: impl Fn(&WireEnd) -> SocketFilter,
    frames: impl Fn(&WireEnd) -> Vec<Vec<u8>>,
) -> Vec<u8> {
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let ends = pair(&a, &b);
    let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    let tx = a.run(|| PacketSocket::open(ends.0.index, &SocketFilter::nothing(), options)).unwrap();
    let filter = filter(&ends.1);
    let rx = b.run(|| PacketSocket::open(ends.1.index, &filter, options)).unwrap();
    let frames = frames(&ends.1);
    for (i, frame) in frames.iter().enumerate() {
        let mut bytes = frame.clone();
        bytes.resize(bytes.len().max(14), 0);
        bytes.extend([0xbe, 0xef, i as u8]);
        tx.send(&PacketBuf::from_bytes(&bytes)).unwrap();
    }
    let mut passed = Vec::new();
    let mut packet = big_packet();
    wait_for("the last frame", || {
        rx.recv(&mut packet).unwrap()?;
        if let [.., 0xbe, 0xef, i] = *packet.head() {
            passed.push(i);
        }
        (passed.last() == Some(&(frames.len() as u8 - 1))).then_some(())
    });
    passed
}

#[test]
fn only_tagged_frames_pass_when_filtered_by_tag() {
    testkit::require_root!();
    let frame = |b: &WireEnd, tags: &[(u16, u16)]| {
        [frames::ethernet(b.mac, MacAddr([2; 6]), tags, 0x88b5), vec![0; 46]].concat()
    };
    let passed = passed(
        |_| SocketFilter::vlan_tagged(),
        |b| {
            vec![
                frame(b, &[]),
                frame(b, &[(0x8100, 1)]),
                frame(b, &[(0x88a8, 1), (0x8100, 2)]),
                frame(b, &[(0x9100, 1)]),
                frame(b, &[(0x9200, 1)]),
                frames::ethernet(b.mac, MacAddr([2; 6]), &[], 0x0800),
                frame(b, &[(0x8100, 0)]),
            ]
        },
    );
    assert_eq!(passed, [1, 2, 3, 6]);
}

/// Test frames; `SocketFilter::tcp_to` port 7471 accepts the first and the last two.
fn tcp_cases(end: &WireEnd, v6: bool) -> Vec<Vec<u8>> {
    let ip = |host: u8| -> std::net::IpAddr {
        if v6 {
            let mut octets = end.ip6.octets();
            octets[15] = host;
            octets.into()
        } else {
            let mut octets = end.ip4.octets();
            octets[3] = host;
            octets.into()
        }
    };
    let frame = |mac, tags: &[(u16, u16)], host, port| {
        let to = (SocketAddr::new(ip(1), 5), SocketAddr::new(ip(host), port));
        tcp_frame((MacAddr([2; 6]), mac), tags, to, b"", None).to_vec()
    };
    let good = frame(end.mac, &[], 2, 7471);
    let patched = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let mut cases = vec![
        good.clone(),
        frame(end.mac, &[], 2, 7472),
        frame(end.mac, &[], 3, 7471),
        frame(end.mac, &[(0x8100, 1)], 2, 7471),
        frame(MacAddr([2; 6]), &[], 2, 7471),
        // A truncated frame.
        good[..30].to_vec(),
        // UDP.
        patched(if v6 { 20 } else { 23 }, 17),
    ];
    if v6 {
        // A hop-by-hop header before TCP.
        let mut extended = patched(20, 0);
        extended.splice(54..54, [6, 0, 1, 4, 0, 0, 0, 0]);
        cases.push(extended);
        cases.push(good.clone());
    } else {
        // A first and a later fragment.
        cases.extend([patched(20, 0x20), patched(21, 1)]);
        // An IP header with options.
        let mut options = patched(14, 0x46);
        options.splice(34..34, [1, 1, 1, 0]);
        cases.push(options);
    }
    cases.push(good);
    cases
}

#[test]
fn only_whole_segments_to_the_port_pass_when_filtered_by_port() {
    testkit::require_root!();
    for v6 in [false, true] {
        let address = |end: &WireEnd| if v6 { end.ip6.into() } else { end.ip4.into() };
        let passed =
            passed(|end| SocketFilter::tcp_to(address(end), 7471), |end| tcp_cases(end, v6));
        let expected: &[u8] = if v6 { &[0, 8, 9] } else { &[0, 9, 10] };
        assert_eq!(passed, expected, "v6 {v6}");
    }
}

#[test]
fn only_the_protocol_passes_when_filtered_by_protocol() {
    testkit::require_root!();
    for v6 in [false, true] {
        let address = |end: &WireEnd| if v6 { end.ip6.into() } else { end.ip4.into() };
        let passed =
            passed(|end| SocketFilter::protocol_to(address(end), 6), |end| tcp_cases(end, v6));
        // Fragments pass: the receiver refuses and counts them.
        let expected: &[u8] = if v6 { &[0, 1, 8, 9] } else { &[0, 1, 7, 8, 9, 10] };
        assert_eq!(passed, expected, "v6 {v6}");
    }
}
