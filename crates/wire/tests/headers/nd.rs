//! Neighbour discovery.

use std::net::Ipv6Addr;

use proptest::prelude::*;
use wire::checksum::{Sum, pseudo_v6};
use wire::icmp::nd::NdPrefix;
use wire::{
    Icmpv6Packet, Icmpv6Repr, Layer, MacAddr, NdOption, NdOptions, NdRepr, ParseError,
    ParseErrorKind, Protocol,
};

use crate::dirty;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const TARGET: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
/// Source link-layer address, then a nonce (type 14, RFC 3971), which this codec does not decode.
const OPTIONS: [u8; 16] = [1, 1, 2, 0, 0, 0, 0, 1, 14, 1, 1, 2, 3, 4, 5, 6];

fn pseudo(len: usize) -> Sum {
    pseudo_v6([1; 16].into(), [2; 16].into(), Protocol::ICMPV6, len as u32)
}

/// A solicitation with a correct checksum and these option bytes.
fn solicitation(options: &[u8]) -> Vec<u8> {
    signed([&[135, 0, 0, 0, 0, 0, 0, 0][..], &TARGET, options].concat())
}

fn signed(mut message: Vec<u8>) -> Vec<u8> {
    message[2..4].fill(0);
    let checksum = pseudo(message.len()).bytes(&message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

fn parse_at(bytes: &[u8], hop_limit: u8) -> Result<NdRepr<'_>, ParseError> {
    let packet = Icmpv6Packet::new_checked(bytes)?;
    match Icmpv6Repr::parse(&packet, pseudo(bytes.len()), hop_limit)? {
        Icmpv6Repr::Nd(nd) => Ok(nd),
        other => panic!("not neighbour discovery: {other:?}"),
    }
}

fn parse(bytes: &[u8]) -> Result<NdRepr<'_>, ParseError> {
    parse_at(bytes, 255)
}

#[test]
fn nd_solicitation_is_read_and_emitted_as_the_rfc_lays_it_out() {
    let mut scratch = [0xa5; 32];
    let nonce = NdOption::Unknown { kind: 14, data: &[1, 2, 3, 4, 5, 6] };
    let options = NdOptions::write(&[NdOption::SourceLinkLayer(MAC), nonce], &mut scratch).unwrap();
    assert_eq!(options.as_bytes(), OPTIONS);
    let repr = NdRepr::NeighborSolicitation { target: TARGET.into(), options };
    let expected = solicitation(&OPTIONS);
    assert_eq!(parse(&expected), Ok(repr));
    assert_eq!(repr.options().source_link_layer(), Some(MAC));
    assert_eq!(repr.options().target_link_layer(), None);

    let mut bytes = dirty(41);
    Icmpv6Repr::Nd(repr).emit(&mut Icmpv6Packet::new_unchecked(&mut bytes), pseudo(40));
    assert_eq!(bytes, [&expected[..], &[0xa5]].concat());
}

#[test]
fn nd_is_refused_when_truncated() {
    for bytes in [
        solicitation(&[]),
        signed([&[134, 0, 0, 0, 64, 0xc0, 7, 8][..], &[0; 8]].concat()),
        signed([&[136, 0, 0, 0, 0xe0, 0, 0, 0][..], &TARGET].concat()),
        signed([&[137, 0, 0, 0, 0, 0, 0, 0][..], &TARGET, &[3; 16]].concat()),
    ] {
        parse(&bytes).unwrap();
        for len in 8..bytes.len() {
            let cut = signed(bytes[..len].to_vec());
            let expected = ParseError::truncated(Layer::Nd, bytes.len(), len);
            assert_eq!(parse(&cut), Err(expected));
        }
    }
}

#[test]
fn nd_is_refused_when_a_router_forwarded_it() {
    let bytes = solicitation(&[]);
    assert_eq!(parse_at(&bytes, 254), Err(ParseError::field(Layer::Nd, "hop limit")));
}

#[test]
fn nd_is_refused_with_a_code_or_a_multicast_target() {
    let mut bytes = solicitation(&[]);
    bytes[1] = 1;
    assert_eq!(parse(&signed(bytes)), Err(ParseError::field(Layer::Nd, "code")));
    for kind in [135, 136] {
        let mut bytes = solicitation(&[]);
        (bytes[0], bytes[8]) = (kind, 0xff);
        assert_eq!(parse(&signed(bytes)), Err(ParseError::field(Layer::Nd, "target address")));
    }
}

#[test]
fn nd_option_is_refused_when_malformed() {
    let refused = |options: &[u8], len| {
        let expected = ParseError { layer: Layer::Nd, kind: ParseErrorKind::BadLength(len) };
        assert_eq!(parse(&solicitation(options)), Err(expected), "{options:?}");
    };
    refused(&[1, 0, 2, 0, 0, 0, 0, 1], 0); // would loop
    refused(&[1, 2, 2, 0, 0, 0, 0, 1], 16); // beyond the end
    refused(&[1], 1); // type without length
    refused(&[&[1, 2][..], &[0; 14]].concat(), 16); // no MAC address is that long
    let mut prefix = [0; 32];
    prefix[..3].copy_from_slice(&[3, 4, 129]);
    assert_eq!(parse(&solicitation(&prefix)), Err(ParseError::field(Layer::Nd, "prefix length")));
}

#[test]
fn nd_options_are_not_written_when_they_cannot_be() {
    let unknown = |data| NdOption::Unknown { kind: 14, data };
    assert!(NdOptions::write(&[unknown(&[0; 7])], &mut [0; 64]).is_err(), "not a multiple of 8");
    assert!(NdOptions::write(&[unknown(&[0; 14])], &mut [0; 8]).is_err(), "no room");
    assert!(
        NdOptions::write(&[unknown(&[0; 2046])], &mut [0; 4096]).is_err(),
        "more than 255 units"
    );
    assert!(NdOptions::write(&[unknown(&[0; 2038])], &mut [0; 4096]).is_ok());
}

fn any_option() -> impl Strategy<Value = NdOption<'static>> {
    let prefix = (0_u8..=128, any::<[bool; 2]>(), any::<[u32; 2]>(), any::<u128>()).prop_map(
        |(len, [on_link, autonomous], [valid_lifetime_s, preferred_lifetime_s], prefix)| {
            let prefix = Ipv6Addr::from(prefix);
            NdPrefix { len, on_link, autonomous, valid_lifetime_s, preferred_lifetime_s, prefix }
        },
    );
    prop_oneof![
        any::<[u8; 6]>().prop_map(|mac| NdOption::SourceLinkLayer(MacAddr(mac))),
        any::<[u8; 6]>().prop_map(|mac| NdOption::TargetLinkLayer(MacAddr(mac))),
        any::<u32>().prop_map(NdOption::Mtu),
        prefix.prop_map(NdOption::Prefix),
        (6_u8..).prop_map(|kind| NdOption::Unknown { kind, data: &[9; 14] }),
    ]
}

proptest! {
    #[test]
    fn nd_round_trips(
        list in prop::collection::vec(any_option(), 0..4), kind in 0..5, flags: [bool; 3],
        bytes: [u8; 2], lifetime_s: u16, times: [u32; 2], addresses: [u128; 2],
    ) {
        let mut scratch = [0xa5; 256];
        let options = NdOptions::write(&list, &mut scratch).unwrap();
        prop_assert_eq!(options.iter().collect::<Vec<_>>(), list);
        let [target, destination] = addresses.map(|a| Ipv6Addr::from(a >> 8)); // never multicast
        let [router, solicited, replace] = flags;
        let repr = match kind {
            0 => NdRepr::RouterSolicitation { options },
            1 => NdRepr::RouterAdvertisement {
                hop_limit: bytes[0], flags: bytes[1], lifetime_s, reachable_ms: times[0],
                retransmit_ms: times[1], options,
            },
            2 => NdRepr::NeighborSolicitation { target, options },
            3 => NdRepr::NeighborAdvertisement { router, solicited, replace, target, options },
            _ => NdRepr::Redirect { target, destination, options },
        };
        let len = repr.message_len();
        let mut bytes = dirty(len);
        Icmpv6Repr::Nd(repr).emit(&mut Icmpv6Packet::new_unchecked(&mut bytes), pseudo(len));
        prop_assert_eq!(parse(&bytes), Ok(repr));
    }

    #[test]
    fn nd_options_never_panic_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(options) = NdOptions::new(&bytes) {
            prop_assert_eq!(options.iter().map(|o| o.wire_len()).sum::<usize>(), bytes.len());
        }
    }
}
