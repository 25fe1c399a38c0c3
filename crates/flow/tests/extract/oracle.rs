//! Random frames: the key agrees with `etherparse`, and does not depend on bits that no field
//! covers.

use crate::frame::{
    ARP, Frame, IPV4, IPV6, arp, ethernet, extension, icmp, in_snap, ipv4, ipv6, neighbour, sctp,
    tcp, udp,
};
use crate::{PORT, key_of, key_with};
use etherparse::{
    Icmpv4Slice, Icmpv6Slice, Ipv6ExtensionSlice, LinkExtSlice, LinkSlice, NetSlice, SlicedPacket,
    TcpSlice, UdpSlice,
};
use flow::{Field as F, FlowKey, extract};
use packet::PacketBuf;
use proptest::prelude::*;
use std::borrow::Cow;

fn mac(bytes: [u8; 6]) -> u128 {
    bytes.iter().fold(0, |mac, &byte| mac << 8 | u128::from(byte))
}

/// The frame as Ethernet II if it has a SNAP header, which `etherparse` does not parse; otherwise
/// the frame itself. `None` for a frame with a wrong length or with more than two tags, one of them
/// possibly after the SNAP header.
fn as_ethernet_ii(frame: &[u8]) -> Option<Cow<'_, [u8]>> {
    let word = |at: usize| frame.get(at..at + 2).map(|word| u16::from_be_bytes([word[0], word[1]]));
    let is_tag = |at| matches!(word(at), Some(0x8100 | 0x88a8 | 0x9100));
    let at = (0..).map(|number| 12 + 4 * number).find(|at| !is_tag(*at))?;
    let (length, llc) = (usize::from(word(at)?), at + 2);
    if at > 20 {
        return None;
    }
    let has_snap = frame[llc..].starts_with(&[0xaa, 0xaa, 3, 0, 0, 0]);
    if length >= 0x600 || !has_snap || word(llc + 6).is_none_or(|ethertype| ethertype < 0x600) {
        return Some(Cow::Borrowed(frame));
    }
    let payload = frame.get(llc..llc + length)?.get(6..).filter(|rest| rest.len() >= 2)?;
    (!is_tag(llc + 6)).then(|| Cow::Owned([&frame[..at], payload].concat()))
}

/// The key according to `etherparse`; `None` for a frame that it or [`as_ethernet_ii`] refuses.
fn expected(frame: &[u8]) -> Option<FlowKey> {
    let frame = &*as_ethernet_ii(frame)?;
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(LinkSlice::Ethernet2(link)) = sliced.link else { panic!("an Ethernet frame") };
    let mut fields = vec![(F::EthDst, mac(link.destination())), (F::EthSrc, mac(link.source()))];
    let mut ethertype = link.ether_type().0;
    let places = [(F::VlanTpid, F::VlanTci), (F::VlanInnerTpid, F::VlanInnerTci)];
    for (tag, (tpid, tci)) in sliced.link_exts.iter().zip(places) {
        let LinkExtSlice::Vlan(tag) = tag else { panic!("no other extension is built") };
        let vid = u128::from(tag.vlan_identifier().value());
        let pcp = u128::from(tag.priority_code_point().value());
        fields.extend([(tpid, ethertype.into()), (tci, pcp << 13 | 0x1000 | vid)]);
        ethertype = tag.ether_type().0;
    }
    fields.push((F::EthType, if ethertype < 0x600 { 0x5ff } else { ethertype.into() }));
    match sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let offset = header.fragments_offset().value();
            fields.extend([
                (F::Ip4Src, header.source_addr().to_bits().into()),
                (F::Ip4Dst, header.destination_addr().to_bits().into()),
                (F::IpProto, header.protocol().0.into()),
                (F::IpDscp, header.dcp().value().into()),
                (F::IpEcn, header.ecn().value().into()),
                (F::IpTtl, header.ttl().into()),
                (F::IpFrag, fragment(offset, header.more_fragments())),
            ]);
            if offset == 0 {
                fields.extend(transport(header.protocol().0, ip.payload().payload, false)?);
            }
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let mut found = (0, false);
            for extension in ip.extensions().clone() {
                if let Ipv6ExtensionSlice::Fragment(f) = extension {
                    found = (f.fragment_offset().value(), f.more_fragments());
                }
            }
            let payload = ip.payload();
            fields.extend([
                (F::Ip6Src, header.source_addr().to_bits()),
                (F::Ip6Dst, header.destination_addr().to_bits()),
                (F::Ip6Label, header.flow_label().value().into()),
                (F::IpProto, payload.ip_number.0.into()),
                (F::IpDscp, header.dscp().value().into()),
                (F::IpEcn, header.ecn().value().into()),
                (F::IpTtl, header.hop_limit().into()),
                (F::IpFrag, fragment(found.0, found.1)),
            ]);
            if found.0 == 0 {
                fields.extend(transport(payload.ip_number.0, payload.payload, true)?);
            }
        }
        Some(NetSlice::Arp(arp)) => {
            let arp = arp.to_packet().try_eth_ipv4().ok()?;
            fields.extend([
                (F::ArpOp, arp.operation.0.into()),
                (F::ArpSha, mac(arp.sender_mac)),
                (F::ArpSpa, arp.sender_ipv4_addr().to_bits().into()),
                (F::ArpTha, mac(arp.target_mac)),
                (F::ArpTpa, arp.target_ipv4_addr().to_bits().into()),
            ]);
        }
        None => {}
    }
    Some(key_with(&fields))
}

const fn fragment(offset: u16, more: bool) -> u128 {
    match (offset, more) {
        (0, false) => 0,
        (0, true) => 1,
        _ => 3,
    }
}

fn transport(protocol: u8, bytes: &[u8], v6: bool) -> Option<Vec<(F, u128)>> {
    let ports = |source: u16, destination: u16| {
        vec![(F::TpSrc, source.into()), (F::TpDst, destination.into())]
    };
    let message = |kind: u8, code: u8| vec![(F::IcmpType, kind.into()), (F::IcmpCode, code.into())];
    Some(match (protocol, v6) {
        (6, _) => {
            let tcp = TcpSlice::from_slice(bytes).ok()?;
            let flags = [
                tcp.fin(),
                tcp.syn(),
                tcp.rst(),
                tcp.psh(),
                tcp.ack(),
                tcp.urg(),
                tcp.ece(),
                tcp.cwr(),
                tcp.ns(),
            ];
            let bits = flags.iter().rev().fold(0, |bits, &flag| bits << 1 | u128::from(flag));
            // `etherparse` has no accessor for the three reserved bits.
            let reserved = u128::from(tcp.slice()[12] & 0x0e) << 8;
            let mut fields = ports(tcp.source_port(), tcp.destination_port());
            fields.push((F::TcpFlags, reserved | bits));
            fields
        }
        (17, _) => {
            let udp = UdpSlice::from_slice_lax(bytes).ok()?;
            ports(udp.source_port(), udp.destination_port())
        }
        (132, _) => {
            let &[a, b, c, d, _, _, _, _, _, _, _, _] = bytes.first_chunk()?;
            ports(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
        }
        (1, false) => {
            let icmp = Icmpv4Slice::from_slice(bytes).ok()?;
            message(icmp.type_u8(), icmp.code_u8())
        }
        (58, true) => {
            let icmp = Icmpv6Slice::from_slice(bytes).ok()?;
            let mut fields = message(icmp.type_u8(), icmp.code_u8());
            if let (135 | 136, 0) = (icmp.type_u8(), icmp.code_u8()) {
                let (target, options) = icmp.payload().split_first_chunk()?;
                fields.push((F::NdTarget, u128::from_be_bytes(*target)));
                fields.extend(link_layer(icmp.type_u8(), options)?);
            }
            fields
        }
        _ => vec![],
    })
}

/// The link-layer address option, by a plain loop: options of these frames have 8 or 16 bytes.
fn link_layer(kind: u8, options: &[u8]) -> Option<Vec<(F, u128)>> {
    let (wanted, field) = if kind == 135 { (1, F::NdSll) } else { (2, F::NdTll) };
    let (mut at, mut found) = (0, vec![]);
    while at < options.len() {
        if options[at] == wanted {
            found.push((field, mac(options[at + 2..at + 8].try_into().unwrap())));
        }
        at += 8 * usize::from(options[at + 1]);
    }
    (at == options.len() && found.len() <= 1).then_some(found)
}

/// ND options: none, one of 16 bytes, source, target, or both.
fn options() -> impl Strategy<Value = Vec<u8>> {
    let one = prop::sample::select(vec![
        [14, 2, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9].to_vec(),
        vec![1, 1, 2, 3, 4, 5, 6, 7],
        vec![2, 1, 8, 9, 10, 11, 12, 13],
    ]);
    prop::collection::vec(one, 0..4).prop_map(|options| options.concat())
}

/// A protocol number, and its header with some payload.
fn layer4() -> impl Strategy<Value = (u8, Frame)> {
    let payload = prop::collection::vec(any::<u8>(), 0..40);
    let words = (0_usize..=10).prop_map(|words| vec![1; words * 4]);
    (0..9, any::<[u8; 2]>(), words, options(), payload).prop_map(
        |(kind, [a, b], tcp_options, nd_options, payload)| {
            let (protocol, header) = match kind {
                0 | 1 => (6, tcp(u16::from_be_bytes([a & 15, b]), &tcp_options)),
                2 => (17, udp(payload.len())),
                3 => (132, sctp()),
                // `etherparse` refuses timestamp messages (13 and 14) whose length is not the
                // specified one.
                4 => (1, icmp(if matches!(a, 13 | 14) { 8 } else { a }, b)),
                5 => (58, icmp(a.min(134), b)),
                6 => return (58, neighbour(135 + (a & 1), &nd_options)),
                7 => (89, Frame::default().free([5; 8])),
                _ => (0xff, Frame::default().free([5; 1])),
            };
            (protocol, header.payload(payload))
        },
    )
}

fn network() -> impl Strategy<Value = (u16, Frame)> {
    let v4_fragment = prop_oneof![Just(0), Just(0x4000), Just(0x2000), any::<u16>()];
    let v6_fragment =
        prop_oneof![Just(None), Just(Some(0)), Just(Some(1)), any::<u16>().prop_map(Some)];
    let words = (0_usize..=10).prop_map(|words| vec![1; words * 4]);
    let kinds = prop::collection::vec(prop::sample::select(vec![60, 43, 51]), 0..3);
    prop_oneof![
        4 => (layer4(), v4_fragment, words).prop_map(|((protocol, l4), fragment, options)| {
            (IPV4, ipv4(protocol, fragment, &options, l4))
        }),
        4 => (layer4(), v6_fragment, kinds, any::<[bool; 2]>()).prop_map(
            |((protocol, l4), fragment, mut kinds, [hop_by_hop, near])| {
                let (mut next, mut rest) = (protocol, l4);
                kinds.dedup();
                if let Some(fragment) = fragment {
                    (next, rest) = (44, extension(44, next, fragment).then(rest));
                }
                for kind in kinds {
                    (next, rest) = (kind, extension(kind, next, 0).then(rest));
                }
                if hop_by_hop {
                    (next, rest) = (0, extension(0, next, 0).then(rest));
                }
                (IPV6, ipv6(next, if near { 255 } else { 7 }, rest))
            }
        ),
        1 => any::<u16>().prop_map(|operation| (ARP, arp(operation))),
        1 => (0_u16..=0x5ff).prop_map(|length| {
            (length, Frame::default().read([0xaa; 8]).payload([0xaa]))
        }),
        1 => Just((0x88cc, Frame::default().payload([0xaa; 9]))),
    ]
}

fn frames() -> impl Strategy<Value = Frame> {
    let tpid = prop::sample::select(vec![0x8100, 0x88a8, 0x9100]);
    let tags = prop_oneof![8 => 0_usize..3, 1 => 3_usize..6];
    let tags = tags.prop_flat_map(move |tags| {
        prop::collection::vec((tpid.clone(), any::<u16>()), tags..=tags)
    });
    let padding = prop::collection::vec(any::<u8>(), 0..30);
    let snap = prop_oneof![3 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)];
    (tags, network(), padding, snap).prop_map(|(tags, (ethertype, network), padding, snap)| {
        let frame = match snap {
            Some(more) if ethertype >= 0x600 => {
                in_snap(&tags, ethertype, network, more.index(padding.len() + 1))
            }
            _ => ethernet(&tags, ethertype).then(network),
        };
        frame.payload(padding)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn keys_agree_with_etherparse_when_frames_are_well_formed(frame in frames()) {
        let expected = expected(&frame.bytes);
        prop_assert_eq!(key_of(&frame.bytes).ok(), expected);
    }

    #[test]
    fn keys_do_not_depend_on_bits_that_no_field_covers(
        frame in frames(),
        noise in prop::collection::vec(any::<u8>(), 256),
    ) {
        let bits = frame.bytes.iter().zip(&frame.read).zip(&noise);
        let changed: Vec<_> = bits.map(|((byte, read), noise)| byte ^ (noise & !read)).collect();
        prop_assert_eq!(key_of(&changed), key_of(&frame.bytes));
    }

    #[test]
    fn keys_do_not_depend_on_how_the_payload_is_stored(
        frame in frames(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut packet = PacketBuf::from_bytes(&frame.bytes);
        let (len, headers) = (frame.len(), frame.headers);
        let cut = headers + cut.index(len - headers + 1);
        packet.set_ranges(0..headers, [headers..cut, cut..len]);
        prop_assert_eq!(extract(&packet, PORT, None), key_of(&frame.bytes));
    }

    #[test]
    fn keys_agree_with_etherparse_or_are_refused_when_bytes_change(
        frame in frames(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        len in any::<prop::sample::Index>(),
    ) {
        let mut bytes = frame.bytes;
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(bytes.len() - len.index(bytes.len()).saturating_sub(bytes.len() / 2));
        let Ok(key) = key_of(&bytes) else { return Ok(()) };
        // `etherparse` parses MACsec, jumbograms, the authentication header in
        // IPv4, and the payload of later IPv6 fragments. Extraction differs there on purpose.
        const MACSEC: u16 = 0x88e5;
        let Some(bytes) = as_ethernet_ii(&bytes) else { panic!("{key:?} of {bytes:02x?}") };
        let at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let ethertype = key.get(F::EthType) as u16;
        prop_assume!(ethertype != MACSEC);
        let tags = [F::VlanTci, F::VlanInnerTci].into_iter().filter(|&tci| key.get(tci) > 0);
        let l3 = 14 + 4 * tags.count();
        prop_assume!(ethertype != IPV6 || at(l3 + 4) != 0);
        prop_assume!(ethertype != IPV4 || key.get(F::IpProto) != 51);
        let protocol = key.get(F::IpProto);
        prop_assume!(ethertype != IPV6 || !matches!(protocol, 43 | 44 | 51 | 60 | 135 | 139 | 140));
        let sliced = SlicedPacket::from_ethernet(&bytes).ok();
        if let Some(expected) = sliced.and_then(|_| expected(&bytes)) {
            prop_assert_eq!(key, expected);
        }
    }

    #[test]
    fn any_bytes_have_a_key_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        look in 0_usize..7,
    ) {
        let mut frame = bytes;
        let looks: [&[u8]; 7] = [
            &[],
            &[8, 0, 0x45, 0, 0, 40],
            &[8, 6, 0, 1, 8, 0, 6, 4],
            &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 60, 0],
            &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 58],
            &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 60, 44],
            &[0x81, 0, 0, 1, 8, 0, 0x45, 0, 0, 60],
        ];
        if let Some(place) = frame.get_mut(12..12 + looks[look].len()) {
            place.copy_from_slice(looks[look]);
        }
        if let Ok(key) = key_of(&frame) {
            prop_assert_eq!(key.get(F::EthDst), mac(frame[..6].try_into().unwrap()));
            prop_assert!(key.get(F::IpFrag) != 2 && key.words()[12..24] == [0; 12]);
        }
    }
}
