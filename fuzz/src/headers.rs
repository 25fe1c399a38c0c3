//! Target: parses every header of a frame with the crate `wire`.
//!
//! Emitting a parsed header and parsing the result must give the same header.

use wire::checksum::{Sum, pseudo_v6};
use wire::{
    ArpPacket, ArpRepr, EtherType, EthernetPacket, EthernetRepr, Fragment, Icmpv4Packet,
    Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, Protocol,
    TcpPacket, TcpRepr, UdpPacket, UdpRepr,
};

/// Emits `$repr` into a copy of `$bytes`, whose header is overwritten before, and parses it again.
macro_rules! assert_round_trip {
    ($packet:ident, $bytes:expr, $repr:expr, $parse:expr) => {{
        let repr = $repr;
        let mut copy = $bytes.to_vec();
        copy[..repr.header_len()].fill(0xa5);
        repr.emit(&mut $packet::new_unchecked(&mut copy[..]));
        let again = $packet::new_checked(&copy[..]).expect("an emitted header is whole");
        assert_eq!($parse(&again).expect("an emitted header is valid"), repr);
    }};
}

pub(crate) use assert_round_trip;

/// Parses all headers of a frame. Returns the number of valid ones.
pub fn frame(bytes: &[u8]) -> usize {
    let Ok(ethernet) = EthernetPacket::new_checked(bytes) else { return 0 };
    let repr = EthernetRepr::parse(&ethernet);
    assert_round_trip!(EthernetPacket, bytes, repr, |packet: &EthernetPacket<_>| Ok::<_, ()>(
        EthernetRepr::parse(packet)
    ));
    let Ok(tags) = wire::vlan::Tags::parse(bytes) else { return 1 };
    assert_located(bytes, tags.count());
    let (ethertype, payload) = match wire::transport_offset(bytes) {
        Ok(located) if located.has_snap() => {
            (located.ethertype, &bytes[located.l3..located.l3_end])
        }
        _ => (tags.ethertype(), &bytes[tags.payload_offset()..]),
    };
    let inner = match ethertype {
        EtherType::ARP => arp(payload),
        EtherType::IPV4 => ipv4(payload),
        EtherType::IPV6 => ipv6(payload),
        _ => 0,
    };
    1 + usize::from(tags.count() > 0) + inner
}

/// Checks that [`wire::transport_offset`] agrees with the header types, and returns increasing
/// offsets.
fn assert_located(bytes: &[u8], tags: usize) {
    let Ok(located) = wire::transport_offset(bytes) else { return };
    assert_eq!(usize::from(located.vlan_tags), tags);
    let l4 = located.l4.unwrap_or(located.l3);
    assert!(14 <= located.l3 && located.l3 <= l4 && l4 <= located.l3_end);
    assert!(located.l3_end <= bytes.len());
}

fn arp(bytes: &[u8]) -> usize {
    let Ok(packet) = ArpPacket::new_checked(bytes) else { return 0 };
    let Ok(repr) = ArpRepr::parse(&packet) else { return 0 };
    let mut copy = [0xa5; wire::arp::PACKET_LEN];
    repr.emit(&mut ArpPacket::new_unchecked(&mut copy[..]));
    assert_eq!(
        ArpPacket::new_checked(&copy[..]).and_then(|packet| ArpRepr::parse(&packet)),
        Ok(repr)
    );
    1
}

fn ipv4(bytes: &[u8]) -> usize {
    let Ok(packet) = Ipv4Packet::new_checked(bytes) else { return 0 };
    let payload = packet.payload();
    assert_eq!(payload.len(), usize::from(packet.payload_len()));
    let inner = match (packet.fragment(), packet.protocol()) {
        (Fragment::Whole, Protocol::TCP) => tcp(payload),
        (Fragment::Whole, Protocol::UDP) => udp(payload),
        (Fragment::Whole, Protocol::ICMP) => icmpv4(payload),
        _ => 0,
    };
    // Mutated headers rarely have a correct checksum. Fixing it lets the fuzzer reach the code
    // after the check.
    let mut summed = bytes.to_vec();
    Ipv4Packet::new_unchecked(&mut summed[..]).fill_checksum();
    let Ok(repr) = Ipv4Packet::new_checked(&summed[..]).and_then(|p| Ipv4Repr::parse(&p)) else {
        return inner;
    };
    assert_round_trip!(Ipv4Packet, summed, repr, Ipv4Repr::parse);
    usize::from(packet.verify_checksum()) + inner
}

fn ipv6(bytes: &[u8]) -> usize {
    let Ok(packet) = Ipv6Packet::new_checked(bytes) else { return 0 };
    let inner = match packet.upper() {
        Ok(upper) if upper.fragmentation() == Fragment::Whole => {
            let payload = &bytes[upper.offset..packet.total_len()];
            match upper.protocol {
                Protocol::TCP => tcp(payload),
                Protocol::UDP => udp(payload),
                Protocol::ICMPV6 => {
                    let len = payload.len() as u32;
                    let pseudo = pseudo_v6(packet.src(), packet.dst(), upper.protocol, len);
                    icmpv6(payload, pseudo, packet.hop_limit())
                }
                _ => 0,
            }
        }
        _ => 0,
    };
    let Ok(repr) = Ipv6Repr::parse(&packet) else { return inner };
    assert_round_trip!(Ipv6Packet, bytes, repr, Ipv6Repr::parse);
    1 + inner
}

/// The message with a correct checksum.
fn summed(bytes: &[u8], pseudo: Sum) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    if let Some(field) = copy.get_mut(2..4) {
        field.fill(0);
        let checksum = pseudo.bytes(&copy).checksum();
        copy[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    copy
}

fn icmpv4(bytes: &[u8]) -> usize {
    let message = summed(bytes, Sum::new());
    let Ok(packet) = Icmpv4Packet::new_checked(&message[..]) else { return 0 };
    let Ok(repr) = Icmpv4Repr::parse(&packet) else { return 0 };
    let mut copy = vec![0xa5; repr.message_len()];
    repr.emit(&mut Icmpv4Packet::new_unchecked(&mut copy[..]));
    let again = Icmpv4Packet::new_checked(&copy[..]).expect("an emitted message is whole");
    assert_eq!(Icmpv4Repr::parse(&again), Ok(repr));
    1
}

fn icmpv6(bytes: &[u8], pseudo: Sum, hop_limit: u8) -> usize {
    let message = summed(bytes, pseudo);
    let Ok(packet) = Icmpv6Packet::new_checked(&message[..]) else { return 0 };
    let Ok(repr) = Icmpv6Repr::parse(&packet, pseudo, hop_limit) else { return 0 };
    let mut copy = vec![0xa5; repr.message_len()];
    repr.emit(&mut Icmpv6Packet::new_unchecked(&mut copy[..]), pseudo);
    let again = Icmpv6Packet::new_checked(&copy[..]).expect("an emitted message is whole");
    assert_eq!(Icmpv6Repr::parse(&again, pseudo, hop_limit), Ok(repr));
    1
}

fn tcp(bytes: &[u8]) -> usize {
    let Ok(packet) = TcpPacket::new_checked(bytes) else { return 0 };
    assert_eq!(packet.header_len() + packet.payload().len(), bytes.len());
    let Ok(repr) = TcpRepr::parse(&packet) else { return 0 };
    let options: usize = repr.options.iter().map(|option| option.wire_len()).sum();
    assert!(options <= packet.option_bytes().len());
    assert_round_trip!(TcpPacket, bytes, repr, TcpRepr::parse);
    1
}

fn udp(bytes: &[u8]) -> usize {
    let Ok(packet) = UdpPacket::new_checked(bytes) else { return 0 };
    assert_eq!(8 + packet.payload().len(), usize::from(packet.length()));
    let repr = UdpRepr::parse(&packet);
    assert_round_trip!(UdpPacket, bytes, repr, |p: &UdpPacket<_>| Ok::<_, ()>(UdpRepr::parse(p)));
    1
}
