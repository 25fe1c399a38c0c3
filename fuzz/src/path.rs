//! Checks packets that exceed the MTU of their path.

use flow::{ReplyAddresses, clamp_mss, too_big};
use packet::{Fit, Fragmenter, PacketBuf, fit, wire_len};
use wire::{EtherType, Ipv4Packet, MacAddr, TooBig};

/// Sends a packet over a path that carries frames of at most `max_frame_len` bytes.
pub fn enter(packet: &PacketBuf, max_frame_len: usize) {
    let mut packet = packet.clone();
    let len = packet.len();
    clamp_mss(&mut packet, max_frame_len);
    assert!(!clamp_mss(&mut packet, max_frame_len), "there is nothing left to clamp");
    assert_eq!(packet.len(), len);
    match fit(&packet, max_frame_len) {
        Fit::Fits => assert!(wire_len(&packet) <= max_frame_len),
        Fit::Resize(resize) => {
            resize.apply(&mut packet);
            assert!(wire_len(&packet) <= max_frame_len);
        }
        Fit::Fragment { mtu } => fragment(&packet, mtu, max_frame_len),
        Fit::TooBig { mtu } => answer(&packet, mtu),
        Fit::Never => {}
    }
}

fn fragment(packet: &PacketBuf, mtu: u16, max_frame_len: usize) {
    let l3 = wire::transport_offset(packet.head()).expect("a whole packet").l3;
    let mut payload: Vec<u8> = Vec::new();
    let done = Fragmenter::new().fragment(packet, mtu.into(), |fragment| {
        assert!(fragment.len() <= max_frame_len);
        let ip = Ipv4Packet::new_checked(&fragment.head()[l3..]).expect("a whole fragment");
        assert!(ip.verify_checksum());
        payload.extend(ip.payload());
    });
    if done.is_ok() && packet.offload == Default::default() {
        let ip = Ipv4Packet::new_checked(&packet.head()[l3..]).expect("a whole packet");
        assert_eq!(payload, ip.payload());
    }
}

/// Checks that a tunnel end point would accept the ICMP message which is sent to the guest.
fn answer(packet: &PacketBuf, mtu: u16) {
    let back = ReplyAddresses { eth_dst: MacAddr([2; 6]), eth_src: MacAddr([4; 6]), tags: &[] };
    let Ok(answer) = too_big(packet, mtu, &back) else { return };
    let at = wire::transport_offset(answer.head()).expect("a whole answer");
    let parsed = if at.ethertype == EtherType::IPV4 {
        assert!(answer.len() <= 14 + 576);
        TooBig::parse_v4(&answer.head()[at.l3..])
    } else {
        assert!(answer.len() <= 14 + 1280);
        TooBig::parse_v6(&answer.head()[at.l4.expect("ICMPv6")..])
    };
    let parsed = parsed.expect("an answer that can be read");
    let reported_mtu = if at.ethertype == EtherType::IPV4 { mtu } else { mtu.max(1280) };
    assert_eq!(parsed.path_mtu(), Some(reported_mtu));
}
