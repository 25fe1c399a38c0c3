//! Targets: decapsulates frames of the underlay and forwards them to the guests.
//!
//! Mutated frames may have invalid outer headers. The tunnel header is then expected at a fixed
//! offset, so that every frame reaches the decapsulator.

use flow::{
    DecapOptions, Decapped, DropReason, OuterIp, TunnelInfo, TunnelKey, TunnelType, decap_stt,
    propagate_ecn, strip_stt_segment,
};
use packet::{Checksum, PacketBuf};
use std::net::Ipv4Addr;
use wire::tunnel::{
    GenevePacket, GeneveRepr, GrePacket, GreRepr, SttPacket, SttRepr, SttSegmentPacket,
    SttSegmentRepr, VxlanPacket, VxlanRepr,
};
use wire::{ParseError, Protocol};

use crate::headers::{self, assert_round_trip};
use crate::switch::{Outcome, Switch};

const KEYED: DecapOptions = DecapOptions { key: true, skip_checksum: false };
const UDP_HEADER_LEN: usize = 8;
/// The offset of the transport header in an IPv4 packet without options.
const IPV4_L4: usize = 14 + 20;
/// The offset of the traffic class in an IPv4 packet.
const IPV4_TOS: usize = 14 + 1;

/// VXLAN (RFC 7348).
pub fn vxlan(frame: &[u8]) -> Outcome {
    let bytes = behind(frame, UDP_HEADER_LEN);
    let header = VxlanPacket::new_checked(bytes).and_then(|packet| VxlanRepr::parse(&packet));
    if let Ok(repr) = header {
        assert_round_trip!(VxlanPacket, bytes, repr, VxlanRepr::parse);
    }
    let decapped =
        checked(TunnelType::Vxlan.decap(bytes, &KEYED), header.map(|repr| repr.vni.value()))?;
    deliver(TunnelType::Vxlan, traffic_class(frame), bytes, decapped)
}

/// Geneve (RFC 8926).
pub fn geneve(frame: &[u8]) -> Outcome {
    let bytes = behind(frame, UDP_HEADER_LEN);
    let packet = GenevePacket::new_checked(bytes);
    let header = packet.and_then(|packet| GeneveRepr::parse(&packet));
    if let Ok(repr) = header {
        assert_round_trip!(GenevePacket, bytes, repr, GeneveRepr::parse);
        let options: usize = repr.options.iter().map(|option| option.wire_len()).sum();
        assert_eq!(options, repr.options.as_bytes().len());
    }
    let decapped =
        checked(TunnelType::Geneve.decap(bytes, &KEYED), header.map(|repr| repr.vni.value()))?;
    deliver(TunnelType::Geneve, traffic_class(frame), bytes, decapped)
}

/// GRE with key (RFC 2784, RFC 2890).
pub fn gre(frame: &[u8]) -> Outcome {
    let mut bytes = behind(frame, 0).to_vec();
    // Mutated packets rarely have a correct checksum, so it is fixed.
    if GrePacket::new_checked(&bytes[..]).is_ok_and(|packet| packet.checksum().is_some()) {
        GrePacket::new_unchecked(&mut bytes[..]).fill_checksum();
    }
    let header = GrePacket::new_checked(&bytes[..]).and_then(|packet| GreRepr::parse(&packet));
    if let Ok(repr) = header {
        // The checksum is not part of the parsed header, because it also covers the payload. So it
        // is computed again.
        let reparse = |packet: &GrePacket<&[u8]>| {
            let mut summed = packet.into_inner().to_vec();
            if packet.checksum().is_some() {
                GrePacket::new_unchecked(&mut summed[..]).fill_checksum();
            }
            GrePacket::new_checked(&summed[..]).and_then(|packet| GreRepr::parse(&packet))
        };
        assert_round_trip!(GrePacket, bytes, repr, reparse);
    }
    let key = header.map(|repr| repr.key.unwrap_or_default());
    let decapped = checked(TunnelType::Gre.decap(&bytes, &KEYED), key)?;
    deliver(TunnelType::Gre, traffic_class(frame), &bytes, decapped)
}

/// STT, with frames in one segment (draft-davie-stt).
pub fn stt(frame: &[u8]) -> Outcome {
    let bytes = behind(frame, 0);
    let segment = SttSegmentPacket::new_checked(bytes);
    if let Ok(repr) = segment.and_then(|packet| SttSegmentRepr::parse(&packet)) {
        assert_round_trip!(SttSegmentPacket, bytes, repr, SttSegmentRepr::parse);
    }
    let mut packet = PacketBuf::from_bytes(frame);
    // A mutated packet rarely has a correct checksum, so it is not verified.
    packet.offload.checksum = Checksum::Verified;
    if strip_stt_segment(&mut packet).is_err() {
        packet = PacketBuf::from_bytes(bytes.get(20..).unwrap_or_default());
    }
    stt_header(packet.head());
    let key = decap_stt(&mut packet)?;
    propagate_ecn(traffic_class(frame), &mut packet)?;
    forward(TunnelType::Stt, traffic_class(frame), key, &mut packet)
}

fn stt_header(bytes: &[u8]) {
    let parse = |packet: &SttPacket<&[u8]>| {
        SttRepr::parse(packet, packet.into_inner().len() - wire::tunnel::stt::FRAME_HEADER_LEN)
    };
    if let Ok(repr) = SttPacket::new_checked(bytes).and_then(|packet| parse(&packet)) {
        assert_round_trip!(SttPacket, bytes, repr, parse);
    }
}

/// Frames with one or two VLAN tags, on a host with VLAN and on a host with QinQ.
pub fn tagged(frame: &[u8]) -> Outcome {
    let forward = |tunnel| Switch::new(tunnel).forward_tagged(&mut PacketBuf::from_bytes(frame));
    forward(TunnelType::Vlan).or_else(|_| forward(TunnelType::QinQ))
}

/// The part of `frame` that starts `skip` bytes after the beginning of the transport header.
fn behind(frame: &[u8], skip: usize) -> &[u8] {
    let l4 = wire::transport_offset(frame).ok().and_then(|located| located.l4).unwrap_or(IPV4_L4);
    frame.get(l4 + skip..).unwrap_or_default()
}

fn traffic_class(frame: &[u8]) -> u8 {
    frame.get(IPV4_TOS).copied().unwrap_or_default()
}

/// Checks that an accepted packet has a valid header, and that its tunnel key is the one in the
/// header.
fn checked(
    outcome: Result<Decapped, DropReason>,
    key: Result<u32, ParseError>,
) -> Result<Decapped, DropReason> {
    if let Ok(decapped) = &outcome {
        assert_eq!(key, Ok(decapped.key.datapath.0));
    }
    outcome
}

/// Forwards the inner frame to the guests.
fn deliver(tunnel: TunnelType, traffic_class: u8, bytes: &[u8], decapped: Decapped) -> Outcome {
    let mut packet = PacketBuf::from_bytes(bytes);
    packet.pull_front(decapped.inner);
    headers::frame(packet.head());
    propagate_ecn(traffic_class, &mut packet)?;
    forward(tunnel, traffic_class, decapped.key, &mut packet)
}

fn forward(
    tunnel: TunnelType,
    traffic_class: u8,
    key: TunnelKey,
    packet: &mut PacketBuf,
) -> Outcome {
    let address = |host| Ipv4Addr::new(192, 0, 2, host).into();
    let outer = OuterIp {
        source: address(2),
        destination: address(1),
        protocol: Protocol::UDP,
        traffic_class,
        ttl: 64,
        dont_fragment: true,
    };
    Switch::new(tunnel).forward(&TunnelInfo::new(tunnel, &outer, &key), packet)
}
