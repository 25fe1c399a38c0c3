//! The Internet checksum, compared with a naive implementation.

use proptest::prelude::*;
use wire::Protocol;
use wire::checksum::{
    InnerSegment, Sum, checksum, combine, local_offload, pseudo_v4, pseudo_v6, update_bytes,
    update_u16, update_udp,
};

/// RFC 1071, one word at a time.
fn naive(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Equal as ones-complement numbers: 0 and 0xffff are both zero.
fn same(a: u16, b: u16) -> bool {
    a % 0xffff == b % 0xffff
}

#[test]
fn sum_is_that_of_rfc_1071_example() {
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(Sum::of(&bytes).fold(), 0xddf2);
    assert_eq!(checksum(&bytes), !0xddf2);
}

#[test]
fn sum_is_right_when_all_words_carry() {
    for len in [0, 1, 7, 8, 63, 64, 65, 1448, 65_535] {
        let bytes = vec![0xff; len];
        assert_eq!(Sum::of(&bytes).fold(), naive(&bytes), "{len} bytes of 0xff");
    }
}

#[test]
fn udp_checksum_is_sent_as_ffff_when_it_computes_to_zero() {
    let sum = Sum::of(&[0xff, 0xff]);
    assert_eq!((sum.checksum(), sum.udp_checksum()), (0, 0xffff));
    assert_eq!(Sum::of(&[0x12, 0x34]).udp_checksum(), !0x1234);
}

#[test]
fn udp_update_keeps_none_and_never_makes_it() {
    assert_eq!(update_udp(0, |_| 0x1234), 0, "no checksum stays no checksum");
    assert_eq!(update_udp(7, |_| 0), 0xffff, "a computed zero is not none");
}

#[test]
fn update_is_that_of_rfc_1624_example() {
    // RFC 1624 section 4: equation 2 of RFC 1141 gives 0xffff here; the correct result is 0.
    assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
}

proptest! {
    #[test]
    fn sum_equals_naive_for_any_bytes_and_alignment(
        bytes in prop::collection::vec(any::<u8>(), 0..700), skip in 0_usize..9,
    ) {
        let bytes = &bytes[skip.min(bytes.len())..];
        prop_assert_eq!(Sum::of(bytes).fold(), naive(bytes));
    }

    #[test]
    fn sum_of_pieces_equals_sum_of_whole(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..90), 0..9),
    ) {
        let whole = pieces.concat();
        let by_bytes = pieces.iter().fold(Sum::new(), |sum, piece| sum.bytes(piece));
        prop_assert_eq!(by_bytes.fold(), naive(&whole));
        let by_sums = pieces.iter().fold(
            Sum::new(), |sum, piece| sum.piece(naive(piece), piece.len()),
        );
        prop_assert_eq!(by_sums.fold(), naive(&whole));
    }

    #[test]
    fn combine_equals_sum_of_both(
        a in prop::collection::vec(any::<u8>(), 0..50),
        b in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        prop_assert_eq!(combine(naive(&a), a.len(), naive(&b)), naive(&[a, b].concat()));
    }

    #[test]
    fn integers_sum_as_their_bytes(
        prefix in prop::collection::vec(any::<u8>(), 0..4), a: u16, b: u32,
    ) {
        let bytes = [&prefix[..], &a.to_be_bytes(), &b.to_be_bytes()].concat();
        prop_assert_eq!(Sum::of(&prefix).u16(a).u32(b).fold(), naive(&bytes));
    }

    #[test]
    fn pseudo_headers_sum_as_their_bytes(
        v4: [[u8; 4]; 2], v6: [[u8; 16]; 2], protocol: u8, len: u16, long: u32,
    ) {
        let bytes = [&v4[0][..], &v4[1], &[0, protocol], &len.to_be_bytes()].concat();
        prop_assert_eq!(
            pseudo_v4(v4[0].into(), v4[1].into(), Protocol(protocol), len).fold(), naive(&bytes)
        );
        let bytes = [&v6[0][..], &v6[1], &long.to_be_bytes(), &[0, 0, 0, protocol]].concat();
        prop_assert_eq!(
            pseudo_v6(v6[0].into(), v6[1].into(), Protocol(protocol), long).fold(), naive(&bytes)
        );
    }

    #[test]
    fn updates_equal_recomputation(
        mut bytes in prop::collection::vec(any::<u8>(), 8..80), at in 0_usize..40, new: u32,
    ) {
        bytes[0] |= 1; // real headers are not all zero, so their sum is never 0
        let at = (at * 2 + 2).min((bytes.len() - 4) & !1);
        let old: [u8; 4] = bytes[at..at + 4].try_into().unwrap();
        let before = !naive(&bytes);
        bytes[at..at + 4].copy_from_slice(&new.to_be_bytes());
        let after = !naive(&bytes);
        prop_assert_eq!(update_bytes(before, &old, &new.to_be_bytes()), after);
        let (high, low) = (
            u16::from_be_bytes([old[0], old[1]]), u16::from_be_bytes([old[2], old[3]]),
        );
        let halves = update_u16(update_u16(before, high, (new >> 16) as u16), low, new as u16);
        prop_assert!(same(halves, after), "{halves:#x} {after:#x}");
    }

    #[test]
    fn prefix_changes_equal_recomputation(
        old in prop::collection::vec(any::<[u8; 2]>(), 0..30),
        new in prop::collection::vec(any::<[u8; 2]>(), 0..30),
        rest in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let (old, new) = (old.concat(), new.concat());
        let before = !naive(&[&old[..], &rest].concat());
        let after = !naive(&[&new[..], &rest].concat());
        prop_assert!(same(update_bytes(before, &old, &new), after));
    }

    /// Local checksum offload never reads the payload, and the outer checksum is still correct: for
    /// complete and partial inner checksums, at odd offsets, and with padding after the inner
    /// packet.
    #[test]
    fn local_offload_equals_full_sum(
        before in prop::collection::vec(any::<u8>(), 8..90),
        mut segment in prop::collection::vec(any::<u8>(), 20..300),
        trailer in prop::collection::vec(any::<u8>(), 0..9),
        addresses: [u32; 4],
    ) {
        let len = segment.len();
        let inner = pseudo_v4(addresses[0].into(), addresses[1].into(), Protocol::TCP, len as u16);
        let partial = inner.fold(); // what a guest leaves in the field
        segment[16..18].fill(0);
        let complete = inner.bytes(&segment).checksum();
        segment[16..18].copy_from_slice(&complete.to_be_bytes());

        let total = (before.len() + len + trailer.len()) as u16;
        let outer = pseudo_v4(addresses[2].into(), addresses[3].into(), Protocol::UDP, total);
        let full = outer.bytes(&before).bytes(&segment).bytes(&trailer);
        let offloaded = local_offload(
            outer, &before, InnerSegment { pseudo: partial, len }, &trailer,
        );
        prop_assert!(same(offloaded.fold(), full.fold()));
        prop_assert_eq!(offloaded.udp_checksum(), full.udp_checksum());
    }
}
