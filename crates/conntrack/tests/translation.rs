//! Translated packets have right checksums, and the translation of the reply is the reverse.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use conntrack::{Commit, Config, Headers, Nat, NatKind, NatSpec, Seed, State, Table, Zone};
use flow::PortNo;
use packet::{ChecksumStatus, PacketBuf, complete_checksum, verify_checksum};
use testkit::frames;
use testkit::random::Random;
use wire::checksum::{Sum, pseudo_v6};
use wire::{Icmpv4Packet, Ipv4Packet, Ipv6Packet, Protocol};

use crate::support::{Ends, TcpSegment, frame, headers, icmp, ip, ip_of, udp};

fn spec(random: &mut Random, is_v4: bool) -> NatSpec {
    let address = if is_v4 {
        IpAddr::from(Ipv4Addr::new(192, 0, 2, 9))
    } else {
        IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9))
    };
    let kind = random.pick(&[NatKind::Source, NatKind::Destination]);
    let ports = random.pick(&[None, Some(7777)]);
    NatSpec::new(kind, Some(address..=address), ports.map(|port| port..=port))
}

/// The frame of the reply: addresses and ports are swapped, everything else is the same.
fn answer(frame: &PacketBuf) -> PacketBuf {
    let at = frame.located().unwrap();
    let mut answer = frame.clone();
    let head = answer.head_mut();
    let (src, len) = if head[at.l3] >> 4 == 4 { (at.l3 + 12, 4) } else { (at.l3 + 8, 16) };
    for offset in 0..len {
        head.swap(src + offset, src + len + offset);
    }
    let l4 = at.l4.unwrap();
    head.swap(l4, l4 + 2);
    head.swap(l4 + 1, l4 + 3);
    answer
}

#[test]
fn answer_undoes_the_translation_when_random() {
    let mut random = Random::new(5);
    let mut translated = 0;
    for _ in 0..600 {
        let original = frames::super_packet(&mut random);
        let Some(headers) = Headers::parse(&original) else { continue };
        let Some(tuple) = headers.tuple() else { continue };
        let mut table = Table::new(Config::default(), Seed([1, 2, 3, 4]), 0);
        let tracked = table.track(0, Zone(1), &headers, Nat::Apply);
        let nat = Some(spec(&mut random, tuple.is_v4()));
        let commit = Commit { nat, ..Commit::default() };
        if !tracked.state.contains(State::NEW) {
            continue;
        }
        let tracked = table.commit(0, &tracked, &headers, PortNo(1), &commit).unwrap();
        let mut there = original.clone();
        tracked.translation.unwrap().apply(&mut there).unwrap();
        assert_eq!(there.offload, original.offload, "the packet stays whole");
        assert_checksum(&there);
        let back = answer(&there);
        // Some segments are not ones that a server could send, so only the tuple is looked up.
        let seen = Headers::parse(&back).unwrap().tuple().unwrap();
        let (connection, _) = table.look_up(0, Zone(1), &seen).unwrap();
        assert_eq!((connection.original, connection.reply), (tuple, seen));
        if tuple.protocol() == Protocol::UDP {
            let answer_headers = Headers::parse(&back).unwrap();
            let tracked = table.track(0, Zone(1), &answer_headers, Nat::Apply);
            let mut back = back;
            tracked.translation.unwrap().apply(&mut back).unwrap();
            assert_eq!(answer(&back).to_vec(), original.to_vec());
        }
        translated += 1;
    }
    assert!(translated > 200, "{translated}");
}

/// Checks that the checksum is right after the offload is completed.
fn assert_checksum(packet: &PacketBuf) {
    let mut packet = packet.clone();
    packet.offload.gso = None;
    complete_checksum(&mut packet).unwrap();
    packet.offload = packet::Offload::default();
    assert_eq!(verify_checksum(&packet), ChecksumStatus::Valid);
    let at = packet.located().unwrap();
    if let Ok(ip) = Ipv4Packet::new_checked(&packet.head()[at.l3..]) {
        assert!(ip.verify_checksum());
    }
}

/// An ICMP error about the translated packet, from the destination's side of the NAT.
fn error_about(packet: &[u8], len: usize) -> Vec<u8> {
    let quoted = &packet[..len.min(packet.len())];
    let tuple = headers(packet).tuple().unwrap();
    let ends = Ends { src: tuple.dst(), dst: tuple.src() };
    let (protocol, kind) = if tuple.is_v4() { (Protocol::ICMP, 3) } else { (Protocol::ICMPV6, 1) };
    ip(ends, protocol, icmp(kind, 1, [0; 4], quoted), 7)
}

#[test]
fn error_quotes_the_packet_that_the_client_sent() {
    let mut random = Random::new(6);
    for case in 0..1000 {
        let v6 = random.once_in(2);
        let ends = if v6 {
            Ends { src: frames::ip6(&mut random).into(), dst: frames::ip6(&mut random).into() }
        } else {
            Ends { src: frames::ip4(&mut random).into(), dst: frames::ip4(&mut random).into() }
        };
        if ends.src == ends.dst {
            continue;
        }
        let (protocol, l4) = match case % 3 {
            0 => (Protocol::UDP, udp([5000, 53], random.below(60))),
            1 => {
                let segment = TcpSegment {
                    ports: [5000, 80],
                    flags: 2,
                    payload_len: random.below(60),
                    ..TcpSegment::default()
                };
                (Protocol::TCP, segment.bytes())
            }
            _ if v6 => (Protocol::ICMPV6, icmp(128, 0, [0, 9, 0, 1], &[1; 20])),
            _ => (Protocol::ICMP, icmp(8, 0, [0, 9, 0, 1], &[1; 20])),
        };
        let sent = ip(ends, protocol, l4, 3);
        let mut table = Table::new(Config::default(), Seed([1, 2, 3, 4]), 0);
        let parsed = headers(&sent);
        let tracked = table.track(0, Zone(1), &parsed, Nat::Apply);
        let nat = Some(spec(&mut random, !v6));
        let commit = Commit { nat, ..Commit::default() };
        let tracked = table.commit(0, &tracked, &parsed, PortNo(1), &commit).unwrap();
        let mut there = frame(&sent);
        tracked.translation.unwrap().apply(&mut there).unwrap();
        let header_len = if v6 { 40 } else { 20 };
        // Eight bytes of transport header are the least that a router quotes (RFC 792).
        let len = header_len + random.pick(&[8, 20, 24, 500]);
        let error = error_about(ip_of(&there), len);
        let tracked = table.track(0, Zone(1), &headers(&error), Nat::Apply);
        assert!(tracked.state.contains(State::REL | State::RPL), "{}", tracked.state);
        let mut back = frame(&error);
        tracked.translation.unwrap().apply(&mut back).unwrap();
        let back = ip_of(&back);
        assert_eq!(headers_dst(back), ends.src, "the client receives it");
        let quote = &back[header_len + 8..];
        assert_eq!(quote, &sent[..quote.len()], "the quote is what the client sent");
        assert_icmp_checksum(back);
    }
}

fn headers_dst(packet: &[u8]) -> IpAddr {
    match Ipv4Packet::new_checked(packet) {
        Ok(ip) => ip.dst().into(),
        Err(_) => Ipv6Packet::new_checked(packet).unwrap().dst().into(),
    }
}

fn assert_icmp_checksum(packet: &[u8]) {
    if let Ok(ip) = Ipv4Packet::new_checked(packet) {
        assert!(ip.verify_checksum());
        assert!(Icmpv4Packet::new_checked(ip.payload()).unwrap().verify_checksum());
        return;
    }
    let ip = Ipv6Packet::new_checked(packet).unwrap();
    let message = ip.payload();
    let pseudo = pseudo_v6(ip.src(), ip.dst(), Protocol::ICMPV6, message.len() as u32);
    assert!(Sum::bytes(pseudo, message).is_valid());
}
