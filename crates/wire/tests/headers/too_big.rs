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
    let gre = |start, key| Quoted::Gre { start, key };
    let teb = |flags| [flags, 0, 0x65, 0x58];
    for (protocol, transport, quoted) in [
        (17, &VXLAN[..], ports),
        (6, &VXLAN, ports),
        (47, &[0, 0, 0x65, 0x58, 1, 2, 3, 4], gre(teb(0), None)),
        (47, &[0x20, 0, 0x65, 0x58, 1, 2, 3, 4], gre(teb(0x20), Some(0x0102_0304))),
        (47, &[0xa0, 0, 0x65, 0x58, 9, 9, 0, 0, 1, 2, 3, 4], gre(teb(0xa0), Some(0x0102_0304))),
        (47, &[0xa0, 0, 0x65, 0x58, 9, 9, 0, 0, 1, 2, 3], gre(teb(0xa0), None)),
        (50, &VXLAN, Quoted::Other),
        (17, &VXLAN[..7], Quoted::Other),
    ] {
        let (local, remote) = (address("192.0.2.1"), address("198.51.100.2"));
        let expected = TooBig {
            mtu: 1400,
            quoted_len: 1500,
            dont_fragment: true,
            local,
            remote,
            protocol: Protocol(protocol),
            quoted,
        };
        let read = TooBig::parse_v4(&v4(1400, &[&ip4(protocol, 1500, DF)[..], transport].concat()));
        assert_eq!(read, Ok(expected));

        let read = TooBig::parse_v6(&v6(1400, &[&ip6(protocol, 1460)[..], transport].concat()));
        let (local, remote) = (address("2001:db8::1"), address("2001:db8::2"));
        assert_eq!(read, Ok(TooBig { local, remote, ..expected }));
    }
    let without = [&ip4(17, 1500, 0)[..], &VXLAN].concat();
    assert!(!TooBig::parse_v4(&v4(1400, &without)).unwrap().dont_fragment);
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
fn path_mtu_is_within_the_bounds_of_the_rfcs() {
    let mtu_v4 = |mtu, len| {
        let read = TooBig::parse_v4(&v4(mtu, &[&ip4(17, len, DF)[..], &VXLAN].concat()));
        read.unwrap().path_mtu()
    };
    assert_eq!(mtu_v4(1499, 1500), Some(1499));
    assert_eq!(mtu_v4(1500, 1500), None, "it would have fitted");
    assert_eq!(mtu_v4(9, 1500), Some(MIN_MTU_V4));
    assert_eq!(mtu_v4(9, 68), None);
    assert_eq!(mtu_v4(0, 68), None);

    let mtu_v6 = |mtu, len| {
        let read = TooBig::parse_v6(&v6(mtu, &[&ip6(17, len)[..], &VXLAN].concat()));
        read.unwrap().path_mtu()
    };
    assert_eq!(mtu_v6(1280, 1460), Some(MIN_MTU_V6));
    assert_eq!(mtu_v6(1279, 1460), None);
    assert_eq!(mtu_v6(1500, 1460), None);
    assert_eq!(mtu_v6(1400 | 1 << 16, 1460), None);
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
        if let Ok(mtu) = TooBig::parse_v4(&v4(mtu as u16, &quoted)).map(|read| read.path_mtu()) {
            let len = u16::from_be_bytes([quoted[2], quoted[3]]);
            prop_assert!(mtu.is_none_or(|mtu| mtu >= MIN_MTU_V4 && mtu < len));
        }
        for mtu in [mtu, mtu % 3000] {
            if let Ok(mtu) = TooBig::parse_v6(&v6(mtu, &quoted)).map(|read| read.path_mtu()) {
                let len = 40 + usize::from(u16::from_be_bytes([quoted[4], quoted[5]]));
                prop_assert!(mtu.is_none_or(|mtu| mtu >= MIN_MTU_V6 && usize::from(mtu) < len));
            }
        }
    }
}
