//! ECN through tunnels.

use wire::ecn::{Decap, Ecn, EcnAnomaly, decap, decap_frame, encap};
use wire::{Ipv4Packet, Ipv6Packet, transport_offset};

const ALL: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce];

#[test]
fn rfc_6040_decap_table_holds_in_full() {
    use EcnAnomaly::{Dangerous, Unused};
    const fn ok(ecn: Ecn) -> Decap {
        Decap { ecn: Some(ecn), anomaly: EcnAnomaly::None }
    }
    const fn odd(ecn: Option<Ecn>, anomaly: EcnAnomaly) -> Decap {
        Decap { ecn, anomaly }
    }
    // Rows: inner field; columns: outer Not-ECT, ECT(0), ECT(1), CE (RFC 6040 figure 4).
    let not = odd(Some(Ecn::NotEct), Dangerous);
    let table = [
        [ok(Ecn::NotEct), not, not, odd(None, Dangerous)],
        [ok(Ecn::Ect0), ok(Ecn::Ect0), ok(Ecn::Ect1), ok(Ecn::Ce)],
        [ok(Ecn::Ect1), odd(Some(Ecn::Ect1), Unused), ok(Ecn::Ect1), ok(Ecn::Ce)],
        [ok(Ecn::Ce), ok(Ecn::Ce), odd(Some(Ecn::Ce), Dangerous), ok(Ecn::Ce)],
    ];
    for (inner, row) in ALL.into_iter().zip(table) {
        for (outer, expected) in ALL.into_iter().zip(row) {
            assert_eq!(decap(inner, outer), expected, "inner {inner:?}, outer {outer:?}");
        }
    }
}

#[test]
fn rfc_6040_outer_ce_with_inner_not_ect_is_a_drop() {
    assert_eq!(decap(Ecn::NotEct, Ecn::Ce).ecn, None);
}

#[test]
fn rfc_6040_normal_mode_copies_the_inner_field_and_keeps_the_outer_dscp() {
    for tos in 0..=255_u8 {
        assert_eq!(encap(0xb9, tos), 0xb8 | (tos & 3));
        assert_eq!(Ecn::of(tos).put_in(tos), tos);
    }
}

/// A frame with an empty IPv4 or IPv6 packet and the given type of service or traffic class.
fn frame(v6: bool, tos: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if v6 {
        frame.extend([0x86, 0xdd, 0x60 | (tos >> 4), tos << 4, 0, 0, 0, 0, 17, 64]);
        frame.extend([1; 32]);
    } else {
        frame.extend([
            0x08, 0, 0x45, tos, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
    }
    frame
}

#[test]
fn decap_changes_the_inner_field_and_keeps_the_ipv4_checksum_right() {
    for (inner, outer) in ALL.into_iter().flat_map(|inner| ALL.map(|outer| (inner, outer))) {
        for v6 in [false, true] {
            let mut frame = frame(v6, inner.put_in(0xb8));
            let before = frame.clone();
            let located = transport_offset(&frame).unwrap();
            let result = decap_frame(&mut frame, &located, outer);
            assert_eq!(result, decap(inner, outer));
            let Some(ecn) = result.ecn else {
                assert_eq!(frame, before, "a packet to be dropped is left alone");
                continue;
            };
            let tos = if v6 {
                Ipv6Packet::new_checked(&frame[14..]).unwrap().traffic_class()
            } else {
                let packet = Ipv4Packet::new_checked(&frame[14..]).unwrap();
                assert!(packet.verify_checksum());
                packet.tos()
            };
            assert_eq!(tos, ecn.put_in(0xb8));
        }
    }
}

#[test]
fn decap_passes_frames_that_are_not_ip() {
    let mut frame = vec![0xff; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x06]);
    let before = frame.clone();
    let located = transport_offset(&frame).unwrap();
    assert!(decap_frame(&mut frame, &located, Ecn::Ce).ecn.is_some());
    assert_eq!(frame, before);
}
