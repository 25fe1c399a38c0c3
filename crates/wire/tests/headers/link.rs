//! Ethernet and VLAN.

use etherparse::PacketBuilder;
use proptest::prelude::*;
use wire::ethernet::{EtherType, EthernetPacket, EthernetRepr};
use wire::vlan::{Tag, Tags};
use wire::{Layer, MacAddr, ParseError, VlanId};

use crate::{dirty, refuses_every_truncation};

const DST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SRC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x06];

/// A frame with the given bytes after its addresses.
fn frame(tail: &[u8]) -> Vec<u8> {
    [&HEADER[..12], tail].concat()
}

#[test]
fn ethernet_is_read_and_emitted_as_the_standard_lays_it_out() {
    let repr = EthernetRepr { dst: DST, src: SRC, ethertype: EtherType::ARP };
    let packet = EthernetPacket::new_checked(&HEADER[..]).unwrap();
    assert_eq!(EthernetRepr::parse(&packet), repr);
    let mut bytes = dirty(16);
    repr.emit(&mut EthernetPacket::new_unchecked(&mut bytes));
    assert_eq!(bytes, [&HEADER[..], &[0xa5, 0xa5]].concat());
    assert_eq!(EthernetPacket::new_checked(&bytes).unwrap().payload(), [0xa5, 0xa5]);
}

#[test]
fn ethernet_is_refused_when_truncated() {
    refuses_every_truncation(&HEADER, EthernetPacket::new_checked);
}

#[test]
fn vlan_tpids_8100_88a8_and_9100_are_tags_and_others_are_not() {
    for (tpid, tagged) in
        [(0x8100, true), (0x88a8, true), (0x9100, true), (0x9200, false), (0x0800, false)]
    {
        let [a, b] = u16::to_be_bytes(tpid);
        let tags = Tags::parse(&frame(&[a, b, 0x61, 0x23, 0x08, 0x00])).unwrap();
        let expected = Tag { tpid: EtherType(tpid), pcp: 3, dei: false, vid: 0x123 };
        assert_eq!(tags.outer(), tagged.then_some(expected), "{tpid:#x}");
        assert_eq!(tags.ethertype(), if tagged { EtherType::IPV4 } else { EtherType(tpid) });
    }
}

#[test]
fn vlan_is_none_when_the_vid_is_0_or_reserved() {
    let tags = Tags::parse(&frame(&[0x81, 0x00, 0xf0, 0x00, 0x86, 0xdd])).unwrap();
    let tag = tags.outer().unwrap();
    assert_eq!(tag, Tag { tpid: EtherType::VLAN, pcp: 7, dei: true, vid: 0 });
    assert_eq!(tag.vlan(), None);
    assert_eq!(Tag { vid: 4095, ..tag }.vlan(), None, "4095 is reserved");
    assert_eq!(Tag { vid: 7, ..tag }.vlan(), VlanId::new(7));
}

#[test]
fn vlan_two_tags_are_located_and_a_third_is_payload() {
    let three =
        [0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0x20, 0xc8, 0x91, 0x00, 0x00, 0x01, 0x08, 0x00];
    let tags = Tags::parse(&frame(&three)).unwrap();
    assert_eq!((tags.outer().unwrap().vid, tags.inner().unwrap().vid), (100, 200));
    assert_eq!((tags.count(), tags.ethertype()), (2, EtherType::VLAN_9100));
    assert_eq!(tags.payload_offset(), 22);
}

#[test]
fn vlan_is_refused_when_truncated() {
    let bytes = frame(&[0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0x20, 0xc8, 0x08, 0x00]);
    refuses_every_truncation(&bytes, Tags::parse);
    assert_eq!(Tags::parse(&bytes[..17]), Err(ParseError::truncated(Layer::Vlan, 6, 5)));
}

proptest! {
    #[test]
    fn ethernet_round_trips(dst: [u8; 6], src: [u8; 6], ethertype: u16) {
        let (dst, src) = (MacAddr(dst), MacAddr(src));
        let repr = EthernetRepr { dst, src, ethertype: EtherType(ethertype) };
        let mut bytes = dirty(repr.header_len());
        repr.emit(&mut EthernetPacket::new_unchecked(&mut bytes));
        prop_assert_eq!(EthernetRepr::parse(&EthernetPacket::new_checked(&bytes).unwrap()), repr);
    }

    #[test]
    fn tag_round_trips_through_bytes(
        tci: u16, tpid in prop::sample::select(vec![0x8100, 0x88a8, 0x9100]),
    ) {
        let tag = Tag::from_tci(EtherType(tpid), tci);
        prop_assert_eq!(tag.tci(), tci);
        let tags = Tags::parse(&frame(&[&tag.to_bytes()[..], &[0x08, 0x00]].concat())).unwrap();
        prop_assert_eq!(tags.outer(), Some(tag));
    }

    #[test]
    fn double_tags_agree_with_etherparse(outer in 0_u16..4096, inner in 0_u16..4096) {
        let mut bytes = Vec::new();
        PacketBuilder::ethernet2(SRC.0, DST.0)
            .double_vlan(outer.try_into().unwrap(), inner.try_into().unwrap())
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9)
            .udp(1, 2)
            .write(&mut bytes, b"x")
            .unwrap();
        let tags = Tags::parse(&bytes).unwrap();
        prop_assert_eq!(tags.outer().map(|t| (t.tpid, t.vid)), Some((EtherType::QINQ, outer)));
        prop_assert_eq!(tags.inner().map(|t| (t.tpid, t.vid)), Some((EtherType::VLAN, inner)));
        prop_assert_eq!(tags.ethertype(), EtherType::IPV4);
        let ethernet = EthernetPacket::new_checked(&bytes).unwrap();
        prop_assert_eq!(
            (ethernet.dst(), ethernet.src(), ethernet.ethertype()), (DST, SRC, EtherType::QINQ)
        );
    }
}
