//! Decapsulation of invalid packets: truncated at every byte, modified, or of another protocol; and
//! of random ones, compared with a naive implementation.

mod common;
mod naive;

use common::{KEYED, key, spec, table, tcp_frame};
use flow::{
    DecapOptions, Decapped, DropReason, TunnelType, decap_stt, propagate_ecn, strip_stt_segment,
};
use packet::{Checksum, PacketBuf};
use proptest::prelude::*;

fn vxlan(bytes: &[u8]) -> Result<Decapped, DropReason> {
    TunnelType::Vxlan.decap(bytes, &KEYED)
}

fn geneve(bytes: &[u8]) -> Result<Decapped, DropReason> {
    TunnelType::Geneve.decap(bytes, &KEYED)
}

fn gre(bytes: &[u8], key: bool, skip_checksum: bool) -> Result<Decapped, DropReason> {
    TunnelType::Gre.decap(bytes, &DecapOptions { key, skip_checksum })
}

/// A tunnelled frame from its tunnel header on (for STT: from the outer Ethernet header on).
fn tunnelled(tunnel: TunnelType) -> Vec<u8> {
    let (mut endpoints, id) = table(&spec(tunnel), false);
    let mut packet = tcp_frame(64);
    packet::complete_checksum(&mut packet).unwrap();
    let outer = endpoints.encap(id, &key(tunnel), &mut packet).unwrap();
    outer.finish(&mut packet);
    if tunnel != TunnelType::Stt {
        packet.pull_front(outer.tunnel_header);
    }
    packet.to_vec()
}

#[test]
fn truncation_is_refused_at_every_byte_of_the_headers() {
    let inner = 14;
    for (tunnel, header) in [(TunnelType::Vxlan, 8), (TunnelType::Geneve, 16)] {
        let bytes = tunnelled(tunnel);
        let decap = |bytes: &[u8]| tunnel.decap(bytes, &KEYED);
        for len in 0..header + inner {
            assert!(decap(&bytes[..len]).is_err(), "{tunnel} {len}");
        }
        assert_eq!(decap(&bytes[..header + inner]).unwrap().inner, header, "{tunnel}");
    }
    let bytes = tunnelled(TunnelType::Gre);
    for len in 0..bytes.len() {
        // The checksum covers the whole packet, so truncation at any byte is detected.
        assert!(gre(&bytes[..len], true, false).is_err(), "gre {len}");
    }
    let bytes = tunnelled(TunnelType::Stt);
    for len in 0..bytes.len() {
        assert!(
            strip_stt_segment(&mut PacketBuf::from_bytes(&bytes[..len])).is_err(),
            "stt segment {len}"
        );
    }
    let mut frame = PacketBuf::from_bytes(&bytes);
    frame.offload.checksum = Checksum::Verified;
    strip_stt_segment(&mut frame).unwrap();
    for len in 0..18 + inner {
        assert!(
            decap_stt(&mut PacketBuf::from_bytes(&frame.head()[..len])).is_err(),
            "stt frame {len}"
        );
    }
}

#[test]
fn vxlan_demands_the_i_flag_and_ignores_reserved_bits() {
    let mut bytes = tunnelled(TunnelType::Vxlan);
    (bytes[0], bytes[1], bytes[7]) = (0xff, 0xff, 0xff);
    assert_eq!(vxlan(&bytes).map(|d| d.key), Ok(key(TunnelType::Vxlan)));
    bytes[0] = 0xf7;
    assert_eq!(vxlan(&bytes), Err(DropReason::VxlanNoVni));
}

#[test]
fn geneve_refuses_control_packets_and_unknown_critical_options() {
    let good = tunnelled(TunnelType::Geneve);
    let altered = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        geneve(&bytes)
    };
    assert_eq!(altered(1, 0xc0), Err(DropReason::GeneveControl));
    assert_eq!(altered(0, 0x42), Err(DropReason::MalformedTunnel), "version 1");
    assert_eq!(altered(2, 0x08), Err(DropReason::TunnelProtocol));
    assert_eq!(altered(8, 0x7f), Err(DropReason::GeneveCriticalOption));
    // The same unknown option without the critical bit is accepted; the logical ports are then
    // unknown.
    let mut bytes = good.clone();
    (bytes[1], bytes[8], bytes[10]) = (0, 0x7f, 0x01);
    assert_eq!(geneve(&bytes).map(|d| d.key.ports), Ok(None));
    // An egress port of 0 names no port.
    let mut bytes = good;
    (bytes[14], bytes[15]) = (0, 0);
    assert_eq!(geneve(&bytes), Err(DropReason::UnknownLogicalPort));
}

#[test]
fn gre_demands_its_key_where_keyed_and_none_where_not() {
    let keyed = tunnelled(TunnelType::Gre);
    assert_eq!(gre(&keyed, false, false), Err(DropReason::UnknownDatapath));
    let mut corrupt = keyed.clone();
    *corrupt.last_mut().unwrap() ^= 1;
    assert_eq!(gre(&corrupt, true, false), Err(DropReason::GreChecksum));
    let plain = [&[0, 0, 0x65, 0x58][..], tcp_frame(64).head()].concat();
    assert_eq!(gre(&plain, true, false), Err(DropReason::GreNoKey));
    assert_eq!(gre(&plain, false, false).map(|d| d.inner), Ok(4));
    let ip = [&[0, 0, 0x08, 0x00][..], &[0; 64]].concat();
    assert_eq!(gre(&ip, false, false), Err(DropReason::TunnelProtocol));
}

#[test]
fn nvgre_demands_its_key_and_neither_checksum_nor_sequence_number() {
    let bytes = tunnelled(TunnelType::Nvgre);
    let nvgre = |bytes: &[u8]| TunnelType::Nvgre.decap(bytes, &DecapOptions::default());
    assert_eq!(bytes[..7], [0x20, 0, 0x65, 0x58, 0x12, 0x34, 0x56], "flags, type, VSID");
    assert_eq!(nvgre(&bytes).map(|d| (d.key, d.inner)), Ok((key(TunnelType::Nvgre), 8)));
    let mut other_flow = bytes.clone();
    other_flow[7] ^= 0xff;
    assert_eq!(nvgre(&other_flow).map(|d| d.key), Ok(key(TunnelType::Nvgre)), "FlowID");
    let fields = [0; 4];
    for (flags, reason) in [
        (0xa0, DropReason::MalformedTunnel),
        (0x30, DropReason::MalformedTunnel),
        (0, DropReason::GreNoKey),
    ] {
        let altered = [&[flags], &bytes[1..8], &fields, &bytes[8..]].concat();
        assert_eq!(nvgre(&altered), Err(reason), "{flags:#x}");
    }
    let ip = [&[0x20, 0, 0x08, 0x00][..], &[0; 64]].concat();
    assert_eq!(nvgre(&ip), Err(DropReason::TunnelProtocol));
    for len in 0..8 + 14 {
        assert!(nvgre(&bytes[..len]).is_err(), "{len}");
    }
}

#[test]
fn nvgre_packets_of_one_flow_have_one_flow_id_and_those_of_many_flows_many() {
    let (mut endpoints, id) = table(&spec(TunnelType::Nvgre), false);
    let mut flow_id = |port: u8| {
        let mut packet = tcp_frame(10);
        packet.head_mut()[35] = port;
        let outer = endpoints.encap(id, &key(TunnelType::Nvgre), &mut packet).unwrap();
        assert_eq!(packet.head()[outer.tunnel_header + 7], outer.source_port as u8);
        packet.head()[outer.tunnel_header + 7]
    };
    assert_eq!(flow_id(1), flow_id(1));
    let ids: std::collections::BTreeSet<u8> = (0..=255).map(flow_id).collect();
    assert!(ids.len() > 32, "of 64: {ids:?}");
}

#[test]
fn stt_segment_is_refused_when_its_checksum_is_wrong() {
    let (mut endpoints, id) = table(&spec(TunnelType::Stt), false);
    let mut packet = tcp_frame(64);
    endpoints.encap(id, &key(TunnelType::Stt), &mut packet).unwrap();
    packet::complete_checksum(&mut packet).unwrap();
    let mut good = PacketBuf::from_bytes(packet.head());
    assert!(strip_stt_segment(&mut good).is_ok());
    let mut bytes = packet.to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    assert_eq!(
        strip_stt_segment(&mut PacketBuf::from_bytes(&bytes)),
        Err(DropReason::OuterChecksum)
    );
}

#[test]
fn outer_ip_header_is_refused_when_damaged_or_a_fragment() {
    let (mut endpoints, id) = table(&spec(TunnelType::Gre), false);
    let mut packet = tcp_frame(64);
    endpoints.encap(id, &key(TunnelType::Gre), &mut packet).unwrap();
    let good = packet.to_vec();
    let strip = |bytes: &[u8]| flow::strip_outer(&mut PacketBuf::from_bytes(bytes));
    let outer = strip(&good).unwrap();
    assert_eq!((outer.source, outer.destination), common::addresses(false));
    let mut damaged = good.clone();
    damaged[14 + 15] ^= 4; // another source address
    assert_eq!(strip(&damaged), Err(DropReason::OuterChecksum));
    // The kernel does not receive such packets either.
    let mut snap = good.clone();
    let length = (6 + good[12..].len()) as u16;
    snap.splice(12..12, [length.to_be_bytes().to_vec(), vec![0xaa, 0xaa, 3, 0, 0, 0]].concat());
    assert_eq!(strip(&snap), Err(DropReason::Malformed));
    let mut fragment = good;
    fragment[14 + 6] = 0x20;
    assert_eq!(strip(&fragment), Err(DropReason::OuterFragment));
}

#[test]
fn congestion_is_carried_inward_or_the_packet_dropped() {
    let ce = |inner_tos: u8| {
        let mut frame = tcp_frame(10);
        frame.head_mut()[15] = inner_tos;
        let result = propagate_ecn(3, &mut frame);
        result.map(|()| frame.head()[15])
    };
    assert_eq!(ce(2), Ok(3));
    assert_eq!(ce(1), Ok(3));
    assert_eq!(ce(3), Ok(3));
    assert_eq!(ce(0), Err(DropReason::EcnNotCapable));
}

proptest! {
    #[test]
    fn decapsulators_never_panic_on_any_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..200), keyed: bool,
    ) {
        let _ = vxlan(&bytes);
        let _ = geneve(&bytes);
        let _ = gre(&bytes, keyed, false);
        let _ = strip_stt_segment(&mut PacketBuf::from_bytes(&bytes));
        let _ = decap_stt(&mut PacketBuf::from_bytes(&bytes));
    }

    #[test]
    fn decapsulators_never_panic_on_altered_packets(
        which in 0..4_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let tunnels = [TunnelType::Vxlan, TunnelType::Geneve, TunnelType::Gre, TunnelType::Stt];
        let tunnel = tunnels[which];
        let mut bytes = tunnelled(tunnel);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let decapped = match tunnel {
            TunnelType::Vxlan => vxlan(&bytes),
            TunnelType::Geneve => geneve(&bytes),
            TunnelType::Gre => gre(&bytes, true, false),
            _ => {
                let mut packet = PacketBuf::from_bytes(&bytes);
                packet.offload.checksum = Checksum::Verified;
                if strip_stt_segment(&mut packet).is_ok() && decap_stt(&mut packet).is_ok() {
                    prop_assert!(packet.len() >= 14);
                }
                return Ok(());
            }
        };
        if let Ok(decapped) = decapped {
            prop_assert!(decapped.inner + 14 <= bytes.len());
        }
    }
}
