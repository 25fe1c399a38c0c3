//! Encapsulated packets, checked field by field with the parsers of `wire`.

mod common;

use common::{
    GUEST_A, GUEST_B, KEYED, NEXT_HOP, addresses, key, spec, super_packet, table, tcp_frame,
};
use flow::{
    Carrier, DropReason, Dscp, Encapsulated, EndpointTable, EntropySeed, InnerFlow, OuterHeaders,
    Ttl, TunnelKey, TunnelType, decap_stt, strip_stt_segment,
};
use packet::{Checksum, GsoKind, PacketBuf, SegmentChecksum, Segmenter, complete_checksum};
use wire::checksum::Sum;
use wire::{EtherType, EthernetPacket, Ipv4Packet, Ipv6Packet};

fn ip_tunnels() -> Vec<TunnelType> {
    TunnelType::ALL.into_iter().filter(|tunnel| tunnel.has_endpoints()).collect()
}

/// Returns the outer transport bytes, after checking the headers before them.
fn check_outer_ip(frame: &[u8], tunnel: TunnelType, ipv6: bool) -> Vec<u8> {
    let ethernet = EthernetPacket::new_checked(frame).unwrap();
    assert_eq!((ethernet.dst(), ethernet.src()), (NEXT_HOP.destination, NEXT_HOP.source));
    let protocol = tunnel.carrier().protocol().unwrap();
    let (local, remote) = addresses(ipv6);
    if ipv6 {
        let ip = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
        assert_eq!(ethernet.ethertype(), EtherType::IPV6);
        assert_eq!((ip.src(), ip.dst()), (to_v6(local), to_v6(remote)));
        assert_eq!(
            (ip.next_header(), ip.hop_limit(), ip.traffic_class()),
            (protocol, 64, 10 << 2 | 2)
        );
        assert_ne!(ip.flow_label(), 0, "the flow label carries entropy");
        ethernet.payload()[40..].to_vec()
    } else {
        let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
        assert_eq!(ethernet.ethertype(), EtherType::IPV4);
        assert!(ip.verify_checksum());
        assert!(ip.dont_fragment());
        assert_eq!((ip.protocol(), ip.ttl(), ip.tos()), (protocol, 64, 10 << 2 | 2));
        assert_eq!(
            (std::net::IpAddr::V4(ip.src()), std::net::IpAddr::V4(ip.dst())),
            (local, remote)
        );
        assert_eq!(usize::from(ip.total_len()), ethernet.payload().len());
        ethernet.payload()[20..].to_vec()
    }
}

fn to_v6(address: std::net::IpAddr) -> std::net::Ipv6Addr {
    match address {
        std::net::IpAddr::V6(v6) => v6,
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped(),
    }
}

fn outer_pseudo(ipv6: bool, protocol: u8, len: usize) -> Sum {
    let (local, remote) = addresses(ipv6);
    let octets = |address| match address {
        std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
        std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    Sum::of(&octets(local)).bytes(&octets(remote)).u16(protocol.into()).u32(len as u32)
}

/// Decapsulates a packet; returns its tunnel key and inner frame.
fn decapsulate(
    tunnel: TunnelType,
    ipv6: bool,
    outer: &Encapsulated,
    packet: &PacketBuf,
) -> (TunnelKey, PacketBuf) {
    let mut packet = packet.clone();
    if tunnel.carrier() == Carrier::TcpLike {
        let segment = strip_stt_segment(&mut packet).unwrap();
        assert_eq!((segment.place.offset, usize::from(segment.place.total)), (0, packet.len()));
        assert_eq!((segment.key.src, segment.key.dst), addresses(ipv6));
        let key = decap_stt(&mut packet).unwrap();
        return (key, packet);
    }
    packet.pull_front(outer.tunnel_header);
    let decapped = tunnel.decap(packet.head(), &KEYED).unwrap();
    packet.pull_front(decapped.inner);
    (decapped.key, packet)
}

#[test]
fn outer_headers_are_complete_when_a_frame_is_encapsulated() {
    for (tunnel, ipv6) in ip_tunnels().into_iter().flat_map(|t| [(t, false), (t, true)]) {
        let (mut endpoints, id) = table(&spec(tunnel), ipv6);
        let mut packet = tcp_frame(333);
        let before = (packet.to_vec(), packet.offload);
        let outer = endpoints.encap(id, &key(tunnel), &mut packet).unwrap();
        outer.finish(&mut packet);
        let transport = check_outer_ip(packet.head(), tunnel, ipv6);
        if tunnel.carrier() == Carrier::Udp {
            // A device completes the inner checksum last; only then is the outer one correct.
            let mut sent = packet.clone();
            complete_checksum(&mut sent).unwrap();
            let udp = &sent.head()[outer.l4..];
            assert_ne!([udp[6], udp[7]], [0, 0], "{tunnel}: a computed zero is sent as ones");
            assert!(
                outer_pseudo(ipv6, 17, udp.len()).bytes(udp).is_valid(),
                "{tunnel} ipv6={ipv6}"
            );
            assert_eq!(
                transport.len(),
                usize::from(u16::from_be_bytes([transport[4], transport[5]]))
            );
            assert_eq!(outer.source_port, u16::from_be_bytes([transport[0], transport[1]]));
            assert!((49_152..49_216).contains(&outer.source_port));
        }
        let (found, inner) = decapsulate(tunnel, ipv6, &outer, &packet);
        assert_eq!((found, inner.to_vec()), (key(tunnel), before.0.clone()), "{tunnel}");
        outer.undo(&mut packet);
        assert_eq!((packet.to_vec(), packet.offload), before, "{tunnel}: undone");
    }
}

#[test]
fn only_the_tunnel_header_is_written_when_a_socket_writes_the_others() {
    let seed = EntropySeed::new([3; 6]);
    for (tunnel, ipv6) in ip_tunnels().into_iter().flat_map(|t| [(t, false), (t, true)]) {
        // With all optional fields, GRE has the longest header.
        let is_gre = tunnel == TunnelType::Gre;
        let spec = flow::TunnelSpec { sequence: is_gre, ..spec(tunnel) };
        let key = key(tunnel);
        let [whole, behind] = [OuterHeaders::All, OuterHeaders::BehindSocket].map(|headers| {
            let mut packet = tcp_frame(333);
            let before = (packet.to_vec(), packet.offload);
            let (local, remote) = addresses(ipv6);
            let mut endpoints = EndpointTable::with_seed(49_152, 64, seed);
            let id = endpoints.add(&spec, local, remote).unwrap();
            let outer = endpoints.encap_with(id, &key, &mut packet, headers).unwrap();
            assert_eq!((outer.local, outer.remote), (local, remote));
            let bytes = packet.to_vec();
            let (head, inner) = bytes.split_at(outer.outer_len);
            assert_eq!(inner, before.0, "{tunnel}: the frame follows the headers");
            let head = head[outer.tunnel_header..].to_vec();
            outer.undo(&mut packet);
            assert_eq!((packet.to_vec(), packet.offload), before, "{tunnel}: undone");
            (head, outer)
        });
        assert_eq!(whole.0, behind.0, "{tunnel}: the tunnel header");
        let len = if tunnel == TunnelType::Stt { whole.1.outer_len } else { whole.0.len() };
        assert_eq!(behind.1.outer_len, len, "{tunnel}");
        let values = |outer: Encapsulated| (outer.source_port, outer.traffic_class, outer.ttl);
        assert_eq!(values(whole.1), values(behind.1), "{tunnel}");
    }
}

#[test]
fn outer_checksum_is_the_same_with_and_without_reading_the_payload() {
    for tunnel in [TunnelType::Vxlan, TunnelType::Geneve] {
        for payload in [0, 1, 2, 999, 1400] {
            let (mut endpoints, id) = table(&spec(tunnel), false);
            let mut partial = tcp_frame(payload);
            let mut complete = partial.clone();
            complete_checksum(&mut complete).unwrap();
            let sums = [&mut partial, &mut complete].map(|packet| {
                let outer = endpoints.encap(id, &key(tunnel), packet).unwrap();
                outer.finish(packet);
                packet.head()[outer.l4 + 6..outer.l4 + 8].to_vec()
            });
            assert_eq!(sums[0], sums[1], "{tunnel} {payload}");
        }
    }
}

#[test]
fn checksum_is_zero_when_configured_off() {
    let (mut endpoints, id) =
        table(&flow::TunnelSpec { checksum: false, ..spec(TunnelType::Vxlan) }, false);
    let mut packet = tcp_frame(100);
    let outer = endpoints.encap(id, &key(TunnelType::Vxlan), &mut packet).unwrap();
    outer.finish(&mut packet);
    assert_eq!(packet.head()[outer.l4 + 6..outer.l4 + 8], [0, 0]);
}

#[test]
fn every_segment_is_complete_when_a_super_packet_is_cut() {
    for tunnel in [TunnelType::Vxlan, TunnelType::Geneve, TunnelType::Gre] {
        let spec = flow::TunnelSpec { sequence: tunnel == TunnelType::Gre, ..spec(tunnel) };
        let (mut endpoints, id) = table(&spec, false);
        let mut packet = super_packet(5000, 1400);
        let outer = endpoints.encap(id, &key(tunnel), &mut packet).unwrap();
        let mut segmenter = Segmenter::new();
        let segments = segmenter
            .segment(&packet, outer.outer_len, SegmentChecksum::Complete, |segment| {
                outer.finish_segment(segment.header, segment.payload, segment.index as u32);
            })
            .unwrap();
        let frames: Vec<_> = segments.map(|(header, payload)| [header, payload].concat()).collect();
        assert_eq!(frames.len(), 4);
        for (index, frame) in frames.iter().enumerate() {
            let transport = check_outer_ip(frame, tunnel, false);
            if tunnel == TunnelType::Gre {
                let gre = wire::tunnel::GrePacket::new_checked(&transport[..]).unwrap();
                assert!(gre.verify_checksum());
                assert_eq!(gre.sequence(), Some(index as u32));
            } else {
                assert!(outer_pseudo(false, 17, transport.len()).bytes(&transport).is_valid());
            }
        }
        // The next packet continues the sequence numbers.
        let mut next = tcp_frame(10);
        let outer = endpoints.encap(id, &key(tunnel), &mut next).unwrap();
        outer.finish(&mut next);
        if tunnel == TunnelType::Gre {
            let gre = wire::tunnel::GrePacket::new_checked(&next.head()[outer.l4..]).unwrap();
            assert_eq!(gre.sequence(), Some(4));
        }
    }
}

#[test]
fn stt_carries_a_super_packet_whole_and_its_offload_state_with_it() {
    for ipv6 in [false, true] {
        let (mut endpoints, id) = table(&spec(TunnelType::Stt), ipv6);
        let mut packet = super_packet(60_000, 1448);
        let inner = packet.offload;
        let outer = endpoints.encap(id, &key(TunnelType::Stt), &mut packet).unwrap();
        let gso = packet.offload.gso.unwrap();
        let (kind, headers) = if ipv6 { (GsoKind::TcpV6, 60) } else { (GsoKind::TcpV4, 40) };
        assert_eq!((gso.kind, gso.size), (kind, 1500 - headers));
        assert_eq!(
            packet.offload.checksum,
            Checksum::Partial { start: outer.l4 as u16, offset: 16 }
        );
        let mut received = packet.clone();
        strip_stt_segment(&mut received).unwrap();
        assert_eq!(decap_stt(&mut received), Ok(key(TunnelType::Stt)));
        assert_eq!(received.offload, inner, "ipv6={ipv6}");
    }
}

#[test]
fn stt_packet_ids_differ_between_frames() {
    let (mut endpoints, id) = table(&spec(TunnelType::Stt), false);
    let mut ids: Vec<_> = (0..100)
        .map(|_| {
            let mut packet = tcp_frame(10);
            endpoints.encap(id, &key(TunnelType::Stt), &mut packet).unwrap();
            strip_stt_segment(&mut packet).unwrap().key.packet_id
        })
        .collect();
    ids.dedup();
    assert_eq!(ids.len(), 100);
}

#[test]
fn stt_refuses_a_frame_longer_than_an_ip_packet() {
    let (mut endpoints, id) = table(&spec(TunnelType::Stt), false);
    let mut packet = super_packet(65_440, 1448);
    let before = packet.to_vec();
    assert_eq!(
        endpoints.encap(id, &key(TunnelType::Stt), &mut packet).err(),
        Some(DropReason::UnderlayTooBig)
    );
    assert_eq!(packet.to_vec(), before);
    assert!(endpoints.split_limits(id, &packet).is_some());
}

#[test]
fn entropy_is_the_same_for_a_flow_and_falls_back_to_addresses_for_fragments() {
    let seed = EntropySeed::random();
    let one = tcp_frame(10);
    let other_payload = tcp_frame(400);
    assert_eq!(flow_hash_of(&one, &seed), flow_hash_of(&other_payload, &seed));
    let mut other_port = tcp_frame(10);
    other_port.head_mut()[35] ^= 1;
    assert_ne!(flow_hash_of(&one, &seed), flow_hash_of(&other_port, &seed));
    // First and later fragments of one datagram: no ports in either.
    let fragment = |flags: u8, offset: u8, port: u8| {
        let mut packet = tcp_frame(10);
        let head = packet.head_mut();
        (head[20], head[21], head[35]) = (flags, offset, port);
        flow_hash_of(&packet, &seed)
    };
    assert_eq!(fragment(0x20, 0, 1), fragment(0, 185, 2));
}

fn flow_hash_of(packet: &PacketBuf, seed: &EntropySeed) -> u32 {
    InnerFlow::read(packet, seed).hash
}

#[test]
fn dscp_is_fixed_when_configured_and_ecn_is_always_copied() {
    let (mut endpoints, id) =
        table(&flow::TunnelSpec { dscp: Dscp::Fixed(46), ..spec(TunnelType::Vxlan) }, false);
    let mut packet = tcp_frame(10);
    let outer = endpoints.encap(id, &key(TunnelType::Vxlan), &mut packet).unwrap();
    assert_eq!(outer.traffic_class, 46 << 2 | 2);
    let mut arp =
        PacketBuf::from_bytes(&[[0xff; 6].as_slice(), &GUEST_A.0, &[8, 6], &[0; 46]].concat());
    let outer = endpoints.encap(id, &key(TunnelType::Vxlan), &mut arp).unwrap();
    assert_eq!(outer.traffic_class, 46 << 2);
    let _ = GUEST_B;
}

#[test]
fn outer_ttl_is_that_of_the_inner_packet_when_it_is_to_be_inherited() {
    let inner4 = |ttl: u8| {
        let mut packet = tcp_frame(10);
        packet.head_mut()[14 + 8] = ttl;
        packet
    };
    let inner6 = |hop_limit: u8| {
        let mut frame = [&GUEST_B.0[..], &GUEST_A.0, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0]].concat();
        frame.extend([59, hop_limit]);
        frame.extend([0xfd; 32]);
        PacketBuf::from_bytes(&frame)
    };
    let arp =
        || PacketBuf::from_bytes(&[[0xff; 6].as_slice(), &GUEST_A.0, &[8, 6], &[0; 46]].concat());
    for (tunnel, ipv6) in
        ip_tunnels().into_iter().flat_map(|tunnel| [(tunnel, false), (tunnel, true)])
    {
        let inherit = flow::TunnelSpec { ttl: Ttl::Inherit, ..spec(tunnel) };
        let fixed = flow::TunnelSpec { ttl: Ttl::Fixed(9), ..spec(tunnel) };
        for (spec, mut packet, expected) in [
            (inherit, inner4(255), 255),
            (inherit, inner4(1), 1),
            (inherit, inner4(0), 1),
            (inherit, inner6(33), 33),
            (inherit, inner6(0), 1),
            (inherit, arp(), 64),
            (fixed, inner4(255), 9),
            (fixed, inner6(33), 9),
        ] {
            let (mut endpoints, id) = table(&spec, ipv6);
            let outer = endpoints.encap(id, &key(tunnel), &mut packet).unwrap();
            assert_eq!(outer.ttl, expected, "the TTL for sockets: {tunnel}");
            let ip = &packet.head()[14..];
            if ipv6 {
                assert_eq!(Ipv6Packet::new_unchecked(ip).hop_limit(), expected, "{tunnel}");
            } else {
                let ip = Ipv4Packet::new_unchecked(ip);
                assert_eq!((ip.ttl(), ip.verify_checksum()), (expected, true), "{tunnel}");
            }
        }
    }
}

#[test]
fn encap_is_refused_when_headroom_is_short() {
    for tunnel in ip_tunnels() {
        let (mut endpoints, id) = table(&spec(tunnel), false);
        let mut packet = PacketBuf::with_capacity(20, 60);
        packet.set_len(60);
        assert_eq!(
            endpoints.encap(id, &key(tunnel), &mut packet).err(),
            Some(DropReason::Headroom)
        );
        assert_eq!(packet.len(), 60, "{tunnel}");
    }
}
