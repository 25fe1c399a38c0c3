//! Every header of a frame, by the parsers of crate `wire`.
//!
//! What a parser accepts, it must be able to emit, and to read again as the same value.

use wire::{
    EtherType, EthernetPacket, EthernetRepr, Fragment, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr,
    Protocol, TcpPacket, TcpRepr, UdpPacket, UdpRepr,
};

/// Emits `$repr` over a copy of `$bytes` whose header has been wiped, and reads it again.
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

/// Reads all headers of a frame; returns how many were valid.
pub fn frame(bytes: &[u8]) -> usize {
    let Ok(ethernet) = EthernetPacket::new_checked(bytes) else { return 0 };
    let repr = EthernetRepr::parse(&ethernet);
    assert_round_trip!(EthernetPacket, bytes, repr, |p: &EthernetPacket<_>| Ok::<_, ()>(
        EthernetRepr::parse(p)
    ));
    let Ok(tags) = wire::vlan::Tags::parse(bytes) else { return 1 };
    let payload = &bytes[tags.payload_offset()..];
    let tagged = usize::from(tags.count() > 0);
    assert_located(bytes, tags.count());
    1 + tagged
        + match tags.ethertype() {
            EtherType::IPV4 => ipv4(payload),
            EtherType::IPV6 => ipv6(payload),
            _ => 0,
        }
}

/// The one walk to the transport header agrees with the views, and keeps the order it promises.
fn assert_located(bytes: &[u8], tags: usize) {
    let Ok(located) = wire::transport_offset(bytes) else { return };
    assert_eq!(usize::from(located.vlan_tags), tags);
    let l4 = located.l4.unwrap_or(located.l3);
    assert!(14 <= located.l3 && located.l3 <= l4 && l4 <= located.l3_end);
    assert!(located.l3_end <= bytes.len());
}

fn ipv4(bytes: &[u8]) -> usize {
    let Ok(packet) = Ipv4Packet::new_checked(bytes) else { return 0 };
    let payload = packet.payload();
    assert_eq!(payload.len(), usize::from(packet.payload_len()));
    let whole = packet.fragment() == Fragment::Whole;
    let inner = if whole { transport(packet.protocol(), payload) } else { 0 };
    // A mutated header hardly ever has the right checksum, and everything behind the check deserves to be reached.
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
            transport(upper.protocol, &bytes[upper.offset..packet.total_len()])
        }
        _ => 0,
    };
    let Ok(repr) = Ipv6Repr::parse(&packet) else { return inner };
    assert_round_trip!(Ipv6Packet, bytes, repr, Ipv6Repr::parse);
    1 + inner
}

fn transport(protocol: Protocol, bytes: &[u8]) -> usize {
    match protocol {
        Protocol::TCP => tcp(bytes),
        Protocol::UDP => udp(bytes),
        _ => 0,
    }
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
