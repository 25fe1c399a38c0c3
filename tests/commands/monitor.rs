//! `weft monitor`, in a network with a router, an access control list and port security.

use super::call::Watch;
use super::capture::frames_of;
use super::routed::{FAR, GATEWAY_MAC, NEAR, Routed};
use crate::common::frames::{FrameSocket, contains, frame, note};
use crate::common::{Daemon, GUEST_DEVICE, Guest, traffic};
use serde_json::{Value, json};
use std::net::IpAddr;
use testkit::require_root;
use wire::MacAddr;

#[test]
fn drops_and_captures_are_right_in_a_routed_network() {
    require_root!();
    let routed = Routed::start();
    let (near, far) = (routed.near(), &routed.lab.guests[1]);
    let seen = FrameSocket::open(&far.netns, GUEST_DEVICE);
    traffic::ping(&near.netns, FAR.into());
    let is_request = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 1 && frame[34] == 8;
    let frames = seen.until("an echo request", is_request);
    assert_eq!(
        frames.last().map(|frame| frame[22]),
        Some(63),
        "the router has taken one off the TTL"
    );
    traffic::ping(&far.netns, NEAR.into());
    traffic::ping(&near.netns, [10, 0, 2, 1].into());

    // The receiver's host evaluates this access control list.
    let socket = traffic_socket(near);
    let dns = || {
        socket.send_to(b"?", (IpAddr::from(FAR), 53)).expect("a datagram is sent");
    };
    let row = routed.dropped(1, &["--reason", "flow_drop", "--port", "tunnel geneve"], dns);
    let place = format!("{}:{}", routed.lab.network_file().display(), routed.acl_line);
    assert_eq!(row["flow"]["source"], place, "{row}");
    assert_eq!(row["flow"]["stage"], "ls_out_acl");
    assert_eq!(row["flow"]["match"], "udp.dst == 53");
    let packet = row["packet"].as_str().expect("the headers");
    assert!(packet.contains("ip4_src=10.0.1.10") && packet.contains("tp_dst=53"), "{packet}");
    assert!(packet.contains("ip_ttl=63"), "it was routed: {packet}");

    // The sender's host evaluates port security.
    let wire = FrameSocket::open(&near.netns, GUEST_DEVICE);
    let unknown_mac = MacAddr([2, 0, 0, 0, 9, 9]);
    let forged = || wire.send(&note(GATEWAY_MAC, unknown_mac, "forged"));
    let row = routed.dropped(0, &["--port", "g1"], forged);
    assert_eq!((&row["port"], &row["reason"]), (&json!("g1"), &json!("flow_drop")));
    assert_eq!(row["flow"]["stage"], "ls_in_apply_port_sec");

    // Malformed packets are reported, too.
    let broken = || wire.send(&frame(GATEWAY_MAC, near.mac, 0x0800, b"no IP"));
    let row = routed.dropped(0, &["--reason", "malformed"], broken);
    assert_eq!((&row["packet"], &row["flow"]), (&json!(""), &Value::Null));

    // A capture of the guest with `--outer` includes its routed packets, whose tunnel key is that
    // of the other logical switch.
    let file = routed.lab.dir.path().join("routed.pcap");
    let path = file.to_str().expect("a path of ASCII");
    let args = ["g1", "--outer", "--count", "2", "-w", path];
    let mut capture = Watch::capture(&routed.lab.control(0), &args);
    traffic::ping(&near.netns, FAR.into());
    assert_eq!(capture.end().0, Some(0));
    for frame in frames_of(&file) {
        let there = contains(&frame, [NEAR, FAR].concat());
        let back = contains(&frame, [FAR, NEAR].concat());
        assert!(there != back, "both addresses, in one order");
    }
    routed.daemons.into_iter().for_each(Daemon::stop);
}

fn traffic_socket(guest: &Guest) -> std::net::UdpSocket {
    let bind = || std::net::UdpSocket::bind((IpAddr::from([0, 0, 0, 0]), 0));
    guest.netns.run(bind).expect("a UDP socket")
}
