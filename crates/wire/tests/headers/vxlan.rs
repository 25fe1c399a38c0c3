//! VXLAN.

use proptest::prelude::*;
use wire::tunnel::{VxlanPacket, VxlanRepr};
use wire::{Layer, ParseError, Vni};

use crate::{dirty, refuses_every_truncation};

const HEADER: [u8; 8] = [0x08, 0, 0, 0, 0x12, 0x34, 0x56, 0];

fn parse(bytes: &[u8]) -> Result<VxlanRepr, ParseError> {
    VxlanRepr::parse(&VxlanPacket::new_checked(bytes)?)
}

#[test]
fn vxlan_is_read_and_emitted_as_the_rfc_lays_it_out() {
    let repr = VxlanRepr { vni: Vni::new(0x12_3456).unwrap() };
    assert_eq!(parse(&HEADER), Ok(repr));
    let mut bytes = dirty(9);
    repr.emit(&mut VxlanPacket::new_unchecked(&mut bytes));
    assert_eq!(bytes, [&HEADER[..], &[0xa5]].concat());
    assert_eq!(VxlanPacket::new_checked(&bytes).unwrap().payload(), [0xa5]);
}

#[test]
fn vxlan_is_refused_without_the_i_flag() {
    let mut bytes = [0xff; 8];
    bytes[0] = !0x08;
    assert_eq!(parse(&bytes), Err(ParseError::field(Layer::Vxlan, "I flag")));
}

#[test]
fn vxlan_is_refused_when_truncated() {
    refuses_every_truncation(&HEADER, parse);
}

proptest! {
    #[test]
    fn vxlan_reserved_bits_are_ignored_on_receive_and_zero_when_sent(
        noise: [u8; 8], vni in 0_u32..=Vni::MAX,
    ) {
        let repr = VxlanRepr { vni: Vni::new(vni).unwrap() };
        let mut bytes = noise;
        bytes[0] |= 0x08;
        bytes[4..7].copy_from_slice(&repr.vni.to_be_bytes());
        prop_assert_eq!(parse(&bytes), Ok(repr));
        repr.emit(&mut VxlanPacket::new_unchecked(&mut bytes));
        prop_assert_eq!((&bytes[..4], bytes[7]), (&[0x08, 0, 0, 0][..], 0));
        let mut packet = VxlanPacket::new_unchecked(&mut bytes);
        packet.set_vni(Vni::new(1).unwrap());
        prop_assert_eq!(bytes, [8, 0, 0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn vxlan_round_trips(vni in 0_u32..=Vni::MAX) {
        let repr = VxlanRepr { vni: Vni::new(vni).unwrap() };
        let mut bytes = dirty(repr.header_len());
        repr.emit(&mut VxlanPacket::new_unchecked(&mut bytes));
        prop_assert_eq!(parse(&bytes), Ok(repr));
    }
}
