//! Arbitrary input: no parser panics, and a view returns only offsets within its bytes.

use proptest::prelude::*;
use wire::checksum::pseudo_v6;
use wire::tunnel::{
    GenevePacket, GeneveRepr, GrePacket, GreRepr, NvgreRepr, SttPacket, SttRepr, SttSegmentPacket,
    SttSegmentRepr, VxlanPacket, VxlanRepr,
};
use wire::vlan::Tags;
use wire::{
    ArpPacket, ArpRepr, EthernetPacket, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr,
    Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, Protocol, TcpPacket, TcpRepr, TooBig, UdpPacket,
    UdpRepr, transport_offset,
};

/// Parses `bytes` with every parser, and returns how many accepted them.
fn read_as_everything(bytes: &[u8]) -> usize {
    let icmpv6 = pseudo_v6([1; 16].into(), [2; 16].into(), Protocol::ICMPV6, bytes.len() as u32);
    let within = |part: &[u8]| assert!(part.len() <= bytes.len());
    let accepted = [
        EthernetPacket::new_checked(bytes).map(|p| within(p.payload())),
        Tags::parse(bytes).map(|tags| within(&bytes[tags.payload_offset()..])),
        transport_offset(bytes).map(|l| within(&bytes[l.l4.unwrap_or(l.l3)..l.l3_end])),
        ArpPacket::new_checked(bytes).and_then(|p| ArpRepr::parse(&p)).map(|_| ()),
        Ipv4Packet::new_checked(bytes).and_then(|p| {
            within(p.payload());
            Ipv4Repr::parse(&p).map(|_| ())
        }),
        Ipv6Packet::new_checked(bytes).and_then(|p| {
            let upper = p.upper()?;
            within(&bytes[upper.offset..p.total_len()]);
            Ipv6Repr::parse(&p).map(|_| ())
        }),
        TcpPacket::new_checked(bytes).and_then(|p| {
            within(p.payload());
            let options = TcpRepr::parse(&p)?.options;
            assert!(
                options.iter().map(|o| o.wire_len()).sum::<usize>() <= options.as_bytes().len()
            );
            Ok(())
        }),
        UdpPacket::new_checked(bytes).map(|p| {
            within(p.payload());
            assert_eq!(p.payload().len() + 8, usize::from(UdpRepr::parse(&p).length));
        }),
        Icmpv4Packet::new_checked(bytes).and_then(|p| Icmpv4Repr::parse(&p)).map(|_| ()),
        TooBig::parse_v4(bytes).map(|_| ()),
        TooBig::parse_v6(bytes).map(|_| ()),
        Icmpv6Packet::new_checked(bytes)
            .and_then(|p| Icmpv6Repr::parse(&p, icmpv6, 255))
            .map(|_| ()),
        VxlanPacket::new_checked(bytes).and_then(|p| VxlanRepr::parse(&p)).map(|_| ()),
        GenevePacket::new_checked(bytes).and_then(|p| {
            within(p.payload());
            GeneveRepr::parse(&p).map(|repr| assert_eq!(repr.header_len(), p.header_len()))
        }),
        GrePacket::new_checked(bytes).and_then(|p| {
            within(p.payload());
            GreRepr::parse(&p).map(|repr| assert_eq!(repr.header_len(), p.header_len()))
        }),
        GrePacket::new_checked(bytes).and_then(|p| NvgreRepr::parse(&p)).map(|_| ()),
        SttSegmentPacket::new_checked(bytes).and_then(|p| {
            let repr = SttSegmentRepr::parse(&p)?;
            assert!(usize::from(repr.offset) + p.payload().len() <= usize::from(repr.frame_len));
            Ok(())
        }),
        SttPacket::new_checked(bytes)
            .and_then(|p| SttRepr::parse(&p, p.payload().len()))
            .map(|_| ()),
    ];
    accepted.iter().filter(|result| result.is_ok()).count()
}

/// The beginnings of real headers, so that mutations reach past the first check.
const SEEDS: [&[u8]; 8] = [
    &[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2],
    &[0x60, 0, 0, 0, 0, 20, 0, 64],
    &[0x60, 0, 0, 0, 0, 20, 44, 64],
    &[0x12, 0xb5, 0x12, 0xb5, 0, 40, 0, 0, 8, 0, 0, 0],
    &[0x05, 0x40, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 0x80, 1, 0, 1, 0, 2, 1, 3, 1, 2, 0, 0, 0, 0],
    &[0xb0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 9],
    &[
        0xc0, 1, 0x1d, 0x2f, 0x08, 0, 0, 0, 0, 0, 0, 1, 0xa0, 0x18, 0xff, 0xff, 0, 0, 0, 0, 2, 4,
        5, 0xb4, 8, 10,
    ],
    &[
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 0x86, 0xdd, 0x60, 0,
        0, 0, 0, 8, 0, 64,
    ],
];

#[test]
fn seeds_reach_past_the_first_check() {
    for seed in SEEDS {
        let bytes = [seed, &[0; 60]].concat();
        assert!(read_as_everything(&bytes) >= 3, "{seed:x?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn nothing_panics_on_mutated_headers(
        seed in prop::sample::select(&SEEDS[..]),
        tail in prop::collection::vec(any::<u8>(), 0..100),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = [seed, &tail].concat();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        read_as_everything(&bytes);
        read_as_everything(&bytes[..cut.index(bytes.len() + 1)]);
    }
}
