//! ICMP "packet too big" and "fragmentation needed".

use std::net::IpAddr;

use proptest::prelude::*;
use wire::checksum::checksum;
use wire::icmp::Quoted;
use wire::icmp::too_big::{MIN_MTU_V4, MIN_MTU_V6};
use wire::{Layer, ParseError, ParseErrorKind, Protocol, TooBig};

/// An IPv4 header from 192.0.2.1 to 198.51.100.2.
fn ip4(protocol: u8, total_len: u16, fragment: u16) -> Vec<u8> {
    let [a, b] = total_len.to_be_bytes();
    let [c, d] = fragment.to_be_bytes();
    let mut ip = vec![0x45, 0, a, b, 0, 7, c, d, 64, protocol, 0, 0];
    ip.extend([192, 0, 2, 1, 198, 51, 100, 2]);
    ip
}

/// The IPv4 packet with a router's error about `quoted`.
fn v4(mtu: u16, quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(quoted);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    [ip4(1, 20 + message.len() as u16, 0), message].concat()
}

/// The ICMPv6 message of a router about `quoted`. The kernel would have verified its checksum.
fn v6(mtu: u32, quoted: &[u8]) -> Vec<u8> {
    [&[2, 0, 0xde, 0xad][..], &mtu.to_be_bytes(), quoted].concat()
}

/// An IPv6 header from 2001:db8::1 to 2001:db8::2.
fn ip6(next: u8, payload_len: u16) -> Vec<u8> {
    let [a, b] = payload_len.to_be_bytes();
    let mut ip = vec![0x60, 0, 0, 0, a, b, next, 64];
    for last in [1, 2] {
        ip.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    ip
}

const VXLAN: [u8; 8] = [0xc0, 0, 0x12, 0xb5, 5, 0xc0, 0, 0];
const DF: u16 = 0x4000;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn message_names_the_flow_when_it_quotes_a_tunnel_packet() {
    let ports = Quoted::Ports { src: 0xc000, dst: 4789 };
    for (protocol, transport, quoted) in [
        (17, &VXLAN[..], ports),
        (6, &VXLAN, ports),
        (47, &[0, 0, 0x65, 0x58, 1, 2, 3, 4], Quoted::Gre { key: None }),
        (47, &[0x20, 0, 0x65, 0x58, 1, 2, 3, 4], Quoted::Gre { key: Some(0x0102_0304) }),
        (
            47,
            &[0xa0, 0, 0x65, 0x58, 9, 9, 0, 0, 1, 2, 3, 4],
            Quoted::Gre { key: Some(0x0102_0304) },
        ),
        (47, &[0xa0, 0, 0x65, 0x58, 9, 9, 0, 0, 1, 2, 3], Quoted::Gre { key: None }),
        (50, &VXLAN, Quoted::Other),
        (17, &VXLAN[..7], Quoted::Other),
    ] {
        let read = TooBig::parse_v4(&v4(1400, &[&ip4(protocol, 1500, DF)[..], transport].concat()));
        let (local, remote) = (address("192.0.2.1"), address("198.51.100.2"));
        let protocol = Protocol(protocol);
        assert_eq!(read, Ok(TooBig { mtu: 1400, local, remote, protocol, quoted }));

        let read = TooBig::parse_v6(&v6(1400, &[&ip6(protocol.0, 1460)[..], transport].concat()));
        let (local, remote) = (address("2001:db8::1"), address("2001:db8::2"));
        assert_eq!(read, Ok(TooBig { mtu: 1400, local, remote, protocol, quoted }));
    }
}

#[test]
fn ports_are_unknown_when_a_later_fragment_is_quoted() {
    let quoted = [&ip4(17, 1500, 100)[..], &VXLAN].concat();
    assert_eq!(TooBig::parse_v4(&v4(1400, &quoted)).unwrap().quoted, Quoted::Other);
    let fragment = [17, 0, 0x10, 0, 0, 0, 0, 1];
    let quoted = [&ip6(44, 1460)[..], &fragment, &VXLAN].concat();
    let read = TooBig::parse_v6(&v6(1400, &quoted)).unwrap();
    assert_eq!((read.protocol, read.quoted), (Protocol::UDP, Quoted::Other));
}

#[test]
fn mtu_is_a_common_one_when_an_old_router_names_none() {
    for (len, mtu) in [
        (65_535, 32_000),
        (1500, 1492),
        (1493, 1492),
        (1492, 1006),
        (577, 508),
        (296, 68),
        (69, 68),
    ] {
        let read = TooBig::parse_v4(&v4(0, &[&ip4(17, len, DF)[..], &VXLAN].concat()));
        assert_eq!(read.map(|read| read.mtu), Ok(mtu), "{len}");
    }
}

#[test]
fn mtu_is_held_to_what_it_can_be() {
    let mtu_v4 = |mtu, len| {
        TooBig::parse_v4(&v4(mtu, &[&ip4(17, len, DF)[..], &VXLAN].concat())).map(|read| read.mtu)
    };
    let impossible = Err(ParseError::field(Layer::Icmpv4, "MTU"));
    assert_eq!(mtu_v4(1499, 1500), Ok(1499));
    assert_eq!(mtu_v4(1500, 1500), impossible, "it would have fitted");
    assert_eq!(mtu_v4(9, 1500), Ok(MIN_MTU_V4));
    assert_eq!(mtu_v4(9, 68), impossible);
    assert_eq!(mtu_v4(0, 68), impossible);

    let mtu_v6 = |mtu, len| {
        TooBig::parse_v6(&v6(mtu, &[&ip6(17, len)[..], &VXLAN].concat())).map(|read| read.mtu)
    };
    let impossible = Err(ParseError::field(Layer::Icmpv6, "MTU"));
    assert_eq!(mtu_v6(1280, 1460), Ok(MIN_MTU_V6));
    assert_eq!(mtu_v6(1279, 1460), impossible);
    assert_eq!(mtu_v6(1500, 1460), impossible);
    assert_eq!(mtu_v6(1400 | 1 << 16, 1460), impossible);
}

#[test]
fn message_is_refused_when_it_is_another_one_or_damaged() {
    let quoted = [&ip4(17, 1500, DF)[..], &VXLAN].concat();
    let good = v4(1400, &quoted);
    let parse = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        TooBig::parse_v4(&bytes).unwrap_err()
    };
    assert_eq!(parse(9, 17), ParseError::field(Layer::Ipv4, "protocol"));
    assert_eq!(parse(6, 0x20), ParseError::field(Layer::Ipv4, "protocol"), "a fragment");
    assert_eq!(parse(27, 0).kind, ParseErrorKind::BadChecksum);
    // Type and code changed, and the checksum with them.
    for (kind, code) in [(3, 3), (11, 0)] {
        let mut bytes = good.clone();
        bytes[20..24].copy_from_slice(&[kind, code, 0, 0]);
        let sum = checksum(&bytes[20..]);
        bytes[22..24].copy_from_slice(&sum.to_be_bytes());
        let expected = ParseError::field(Layer::Icmpv4, "type");
        assert_eq!(TooBig::parse_v4(&bytes), Err(expected));
    }
    let expected = ParseError::field(Layer::Icmpv6, "type");
    assert_eq!(TooBig::parse_v6(&[1; 60]), Err(expected));
    crate::refuses_every_truncation(&good, TooBig::parse_v4);
    let header = v6(1400, &ip6(17, 1460));
    crate::refuses_every_truncation(&header, TooBig::parse_v6);
}

proptest! {
    #[test]
    fn whatever_is_read_is_within_bounds(
        mtu in any::<u32>(), mut quoted in prop::collection::vec(any::<u8>(), 0..120),
        version in prop::sample::select(vec![0x45, 0x4f, 0x60]),
        protocol in prop::sample::select(vec![6, 17, 44, 47, 0, 43]),
    ) {
        if let [first, .., _, _, _, _, _] = &mut quoted[..] {
            *first = version;
        }
        if let Some(next) = quoted.get_mut(if version == 0x60 { 6 } else { 9 }) {
            *next = protocol;
        }
        if let Ok(read) = TooBig::parse_v4(&v4(mtu as u16, &quoted)) {
            prop_assert!(
                read.mtu >= MIN_MTU_V4 && read.mtu < u16::from_be_bytes([quoted[2], quoted[3]])
            );
        }
        for mtu in [mtu, mtu % 3000] {
            if let Ok(read) = TooBig::parse_v6(&v6(mtu, &quoted)) {
                prop_assert!(read.mtu >= MIN_MTU_V6);
                let payload_len = usize::from(u16::from_be_bytes([quoted[4], quoted[5]]));
                prop_assert!(usize::from(read.mtu) < 40 + payload_len);
            }
        }
    }
}
