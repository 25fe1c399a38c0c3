//! Clamping of the maximum segment size in SYNs.

use crate::frames::{Kind, Spec, wrong_checksum};
use flow::clamp_mss;
use packet::{Checksum, PacketBuf};
use proptest::prelude::*;

/// A SYN with these options, a multiple of four bytes, and a correct checksum.
fn syn(is_v6: bool, options: &[u8], partial: bool) -> PacketBuf {
    let spec = Spec { tcp_flags: 2, payload: Vec::new(), ..Spec::of(Kind::Tcp, is_v6) };
    let mut bytes = spec.build().packet.to_vec();
    let (l3, l4) = (14, if is_v6 { 54 } else { 34 });
    bytes.truncate(l4 + 20);
    bytes.extend(options);
    let len = 20 + options.len();
    bytes[l4 + 12] = (len as u8 / 4) << 4;
    bytes[l4 + 16..l4 + 18].fill(0);
    let pseudo = if is_v6 {
        bytes[l3 + 4..l3 + 6].copy_from_slice(&(len as u16).to_be_bytes());
        bytes[l3 + 8..l3 + 40].to_vec()
    } else {
        bytes[l3 + 2..l3 + 4].copy_from_slice(&(20 + len as u16).to_be_bytes());
        bytes[l3 + 10..l3 + 12].fill(0);
        let sum = !sum(&bytes[l3..l4]);
        bytes[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        bytes[l3 + 12..l3 + 20].to_vec()
    };
    let pseudo = [&pseudo[..], &[0, 6, 0, len as u8]].concat();
    let sum = if partial { sum(&pseudo) } else { !sum(&[&pseudo, &bytes[l4..]].concat()) };
    bytes[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
    let mut packet = PacketBuf::from_bytes(&bytes);
    if partial {
        packet.offload.checksum = Checksum::Partial { start: l4 as u16, offset: 16 };
    }
    packet
}

fn sum(bytes: &[u8]) -> u16 {
    let sum = bytes.chunks(2).fold(0u32, |sum, pair| {
        sum + u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
    });
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

fn options(packet: &PacketBuf, is_v6: bool) -> Vec<u8> {
    packet.head()[if is_v6 { 74 } else { 54 }..].to_vec()
}

/// Options, one after the other.
type Options<'a> = &'a [&'a [u8]];

#[test]
fn size_is_lowered_to_what_frames_carry_wherever_it_stands() {
    let mss = |value: u16| [2, 4, (value >> 8) as u8, value as u8];
    let (is, less) = (mss(1460), mss(1400));
    let cases: [(Options<'_>, Options<'_>); 13] = [
        (&[&is], &[&less]),
        (&[&mss(1401)], &[&less]),
        (&[&less], &[&less]),
        (&[&mss(536)], &[&mss(536)]),
        (&[&mss(0)], &[&mss(0)]),
        // At an odd offset, and after options of all kinds.
        (&[&[1], &is, &[1, 1, 1]], &[&[1], &less, &[1, 1, 1]]),
        (&[&[4, 2, 3, 3, 7, 1], &is, &[1, 1]], &[&[4, 2, 3, 3, 7, 1], &less, &[1, 1]]),
        (&[&[254, 3, 0], &is, &[0]], &[&[254, 3, 0], &less, &[0]]),
        // Two MSS options: a receiver may use either.
        (&[&is, &mss(9000)], &[&less, &less]),
        // After the end of the list, after a malformed option, with a wrong length, beyond the
        // header.
        (&[&[0, 0, 0, 0], &is], &[&[0, 0, 0, 0], &is]),
        (&[&[8, 1, 1, 1], &is], &[&[8, 1, 1, 1], &is]),
        (&[&[2, 3, 0xff, 1]], &[&[2, 3, 0xff, 1]]),
        (&[&[1, 1, 2, 4]], &[&[1, 1, 2, 4]]),
    ];
    for (before, after) in cases {
        let (before, after) = (before.concat(), after.concat());
        for is_v6 in [false, true] {
            for partial in [false, true] {
                let mut packet = syn(is_v6, &before, partial);
                let max_frame_len = 14 + if is_v6 { 60 } else { 40 } + 1400;
                assert_eq!(clamp_mss(&mut packet, max_frame_len), before != after);
                assert_eq!(options(&packet, is_v6), after, "{before:?}");
                assert_eq!(wrong_checksum(&packet, &[]), None, "{before:?} {partial}");
            }
        }
    }
}

#[test]
fn size_is_never_less_than_what_the_least_mtu_leaves() {
    for max_frame_len in [0, 60, 82] {
        let mut packet = syn(false, &[2, 4, 5, 0xb4], false);
        assert!(clamp_mss(&mut packet, max_frame_len));
        assert_eq!(options(&packet, false), [2, 4, 0, 28]);
        assert_eq!(wrong_checksum(&packet, &[]), None);
    }
    assert!(!clamp_mss(&mut syn(false, &[2, 4, 5, 0xb4], false), 100_000));
}

#[test]
fn only_connections_being_opened_are_changed() {
    let clamped = |flags: u8| {
        let mut packet = syn(false, &[2, 4, 5, 0xb4], false);
        packet.head_mut()[34 + 13] = flags;
        clamp_mss(&mut packet, 1000)
    };
    for flags in [0x02, 0x12, 0xc2, 0x52] {
        assert!(clamped(flags), "{flags:#x}");
    }
    for flags in [0x00, 0x10, 0x04, 0x11] {
        assert!(!clamped(flags), "{flags:#x}");
    }
    for (at, value) in [(23, 17), (20, 0x20), (21, 1), (12, 9), (14, 0x55)] {
        let mut packet = syn(false, &[2, 4, 5, 0xb4], false);
        packet.head_mut()[at] = value;
        assert!(!clamp_mss(&mut packet, 1000), "{at}");
    }
}

#[test]
fn wrong_checksum_stays_wrong_by_as_much() {
    for options in [[2, 4, 5, 0xb4, 1, 1, 1, 1], [1, 2, 4, 5, 0xb4, 1, 1, 1]] {
        let mut packet = syn(false, &options, false);
        packet.head_mut()[51] ^= 0x10;
        assert!(clamp_mss(&mut packet, 1000));
        assert_eq!(wrong_checksum(&packet, &[]), Some("transport"));
        packet.head_mut()[51] ^= 0x10;
        assert_eq!(wrong_checksum(&packet, &[]), None);
    }
}

proptest! {
    #[test]
    fn options_of_any_bytes_keep_the_checksum_right(
        words in prop::collection::vec(
            prop::sample::select(
                vec![
                    [2, 4, 5, 0xb4], [1, 2, 4, 9], [0xff, 1, 1, 2], [4, 9, 9, 1], [8, 3, 2, 4],
                    [0, 2, 4, 3]
                ],
            ),
            0..=10,
        ),
        noise in prop::collection::vec((0usize..40, any::<u8>()), 0..4),
        is_v6 in any::<bool>(), partial in any::<bool>(), max_frame_len in 0usize..2000,
    ) {
        let mut before = words.concat();
        for (at, byte) in noise {
            if let Some(place) = before.get_mut(at) {
                *place = byte;
            }
        }
        let mut packet = syn(is_v6, &before, partial);
        let changed = clamp_mss(&mut packet, max_frame_len);
        prop_assert_eq!(wrong_checksum(&packet, &[]), None);
        prop_assert_eq!(changed, options(&packet, is_v6) != before);
        prop_assert!(!clamp_mss(&mut packet, max_frame_len));
    }

    #[test]
    fn any_bytes_are_survived(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120), v6 in any::<bool>(),
        partial in prop::option::of((0u16..130, 0u16..20)), cut in 0usize..120,
    ) {
        let version: &[u8] = if v6 { &[0x86, 0xdd, 0x60] } else { &[8, 0, 0x45] };
        if let Some(place) = bytes.get_mut(12..15) {
            place.copy_from_slice(version);
        }
        if let Some(protocol) = bytes.get_mut(if v6 { 20 } else { 23 }) {
            *protocol = 6;
        }
        let mut packet = PacketBuf::from_bytes(&bytes);
        if cut < bytes.len() {
            packet.set_ranges(0..cut, std::iter::once(cut..bytes.len()));
        }
        if let Some((start, offset)) = partial {
            packet.offload.checksum = Checksum::Partial { start, offset };
        }
        clamp_mss(&mut packet, 500);
    }
}
