//! Target: encapsulates a guest's frame and decapsulates the result. This must give the segments of
//! the frame, with correct checksums.

use std::ops::RangeInclusive;

use flow::{
    Carrier, DecapOptions, DropReason, Encapsulated, LogicalPorts, LogicalPortsField, PortKey,
    TunnelKey, TunnelType, decap_stt, strip_stt_segment,
};
use packet::stt::{SttLimits, SttProgress, SttReassembler};
use packet::{ChecksumStatus, PacketBuf, SegmentChecksum, Segmenter, verify_checksum};

use crate::offload;
use crate::switch::{KEY, Switch};

/// The lengths of frames that are encapsulated. Shorter frames are malformed. Longer ones do not
/// fit into an IP packet with outer headers, so they are segmented or dropped before encapsulation.
const FRAME_LEN: RangeInclusive<usize> = wire::ethernet::HEADER_LEN..=65_000;

/// Sends `packet` through a tunnel. The bits of `choice` select its type and IP version.
pub fn round_trip(choice: u8, packet: &PacketBuf) {
    let Some(expected) = offload::cut(packet) else { return };
    if !FRAME_LEN.contains(&packet.len()) {
        return;
    }
    let with_endpoints = TunnelType::ALL.into_iter().filter(|tunnel| tunnel.has_endpoints());
    let tunnels: Vec<TunnelType> = with_endpoints.collect();
    let tunnel = tunnels[usize::from(choice >> 1) % tunnels.len()];
    let mut host = Switch::new(tunnel);
    // Only a panic would be a fault: the frame may have any content, so the result is ignored.
    let _ = host.send(packet);
    let endpoint = if choice & 1 == 0 { flow::EndpointId(0) } else { host.add_v6(tunnel) };
    let ports =
        LogicalPorts { ingress: PortKey::new(3), egress: PortKey::new(4).expect("not zero") };
    let key = TunnelKey { datapath: KEY, ports: carries_ports(tunnel).then_some(ports) };
    let mut outer_packet = packet.clone();
    let Ok(outer) = host.endpoints.encap(endpoint, &key, &mut outer_packet) else { return };
    let received = match outer.carrier {
        Carrier::TcpLike => stt_segments(&outer_packet, key),
        _ => segments(&outer, &outer_packet, key),
    };
    assert_eq!(received, expected, "{tunnel}");

    outer.undo(&mut outer_packet);
    if outer.carrier != Carrier::TcpLike {
        assert_eq!(
            (outer_packet.to_vec(), outer_packet.offload),
            (packet.to_vec(), packet.offload)
        );
    }
}

fn carries_ports(tunnel: TunnelType) -> bool {
    tunnel.descriptor().logical_ports != LogicalPortsField::Absent
}

/// The inner frames of the segments of the outer packet.
fn segments(outer: &Encapsulated, packet: &PacketBuf, key: TunnelKey) -> Vec<Vec<u8>> {
    let mut segmenter = Segmenter::new();
    let cut = segmenter
        .segment(packet, outer.outer_len, SegmentChecksum::Complete, |segment| {
            outer.finish_segment(segment.header, segment.payload, segment.index as u32);
        })
        .expect("a packet that is segmented without outer headers is segmented with them");
    cut.map(|(header, payload)| {
        let wire = [header, payload].concat();
        assert_ne!(
            verify_checksum(&PacketBuf::from_bytes(&wire)),
            ChecksumStatus::Invalid,
            "{wire:02x?}"
        );
        let bytes = &wire[outer.tunnel_header..];
        let expected = DecapOptions { key: true, skip_checksum: false };
        let decapped = outer.tunnel.decap(bytes, &expected);
        let decapped = decapped.expect("an encapsulated packet can be decapsulated");
        assert_eq!(decapped.key, key);
        bytes[decapped.inner..].to_vec()
    })
    .collect()
}

/// The inner frames of an STT packet. Its outer packet is segmented like TCP, and reassembled
/// before decapsulation.
fn stt_segments(packet: &PacketBuf, key: TunnelKey) -> Vec<Vec<u8>> {
    let mut reassembler = SttReassembler::new(SttLimits::default());
    let wire = offload::segments(packet).expect("the outer packet can be cut");
    let mut whole = None;
    for segment in &wire {
        assert!(whole.is_none(), "complete before its last segment");
        let mut packet = PacketBuf::from_bytes(segment);
        let read = strip_stt_segment(&mut packet).expect("an emitted segment is valid");
        match reassembler.push(read.key, read.place, &mut packet, 0) {
            Ok(SttProgress::Complete { .. }) => whole = Some(packet),
            Ok(_) => {}
            Err(reason) => panic!("{reason}"),
        }
    }
    let mut inner = whole.expect("all segments were there");
    let read: Result<_, DropReason> = decap_stt(&mut inner);
    assert_eq!(read, Ok(key));
    offload::cut(&inner).expect("the inner frame can be cut as before")
}
