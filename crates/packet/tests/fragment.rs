//! Fragmentation: reassembled fragments equal the packet, and each fragment follows RFC 791.

use crate::support::{Spec, any_spec, in_snap, naive_sum};
use packet::{Checksum, FragmentError, Fragmenter, PacketBuf, complete_checksum};
use proptest::prelude::*;

/// One fragment, parsed by hand.
#[derive(Debug, PartialEq, Eq)]
struct Fragment {
    link: Vec<u8>,
    header: Vec<u8>,
    offset: usize,
    more: bool,
    data: Vec<u8>,
}

fn parse_fragment(frame: &[u8], l3: usize) -> Fragment {
    let header_len = usize::from(frame[l3] & 15) * 4;
    let header = frame[l3..l3 + header_len].to_vec();
    let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    assert_eq!(frame.len(), l3 + total_len, "no padding");
    assert_eq!(naive_sum(&header), 0xffff, "header checksum");
    let flags = u16::from_be_bytes([header[6], header[7]]);
    Fragment {
        link: frame[..l3].to_vec(),
        offset: usize::from(flags & 0x1fff) * 8,
        more: flags & 0x2000 != 0,
        data: frame[l3 + header_len..].to_vec(),
        header,
    }
}

fn fragments(packet: &PacketBuf, mtu: usize, l3: usize) -> Result<Vec<Fragment>, FragmentError> {
    let mut all = Vec::new();
    let count = Fragmenter::new().fragment(packet, mtu, |fragment| {
        assert!(fragment.headroom() >= PacketBuf::HEADROOM);
        assert_eq!((fragment.offload.checksum, fragment.offload.gso), (Checksum::Unverified, None));
        all.push(parse_fragment(&fragment.to_vec(), l3));
        // Changes to a fragment must not affect the next one.
        fragment.push_front(50).unwrap().fill(0xee);
        fragment.head_mut().fill(0xee);
    })?;
    assert_eq!(count, all.len());
    Ok(all)
}

/// Checks that `fragments` follow each other, and returns their data in one piece.
fn reassemble(fragments: &[Fragment], mtu: usize) -> Vec<u8> {
    let mut data = Vec::new();
    let first = fragments[0].offset;
    for (i, fragment) in fragments.iter().enumerate() {
        assert!(fragment.header.len() + fragment.data.len() <= mtu);
        assert_eq!(fragment.offset, first + data.len());
        assert_eq!(fragment.link, fragments[0].link);
        if i + 1 < fragments.len() {
            assert!(fragment.more);
            // All fragments but the last have the maximum length.
            let room = (mtu - fragment.header.len()) & !7;
            assert_eq!(fragment.data.len(), room);
        }
        data.extend(&fragment.data);
    }
    data
}

/// The header bytes that are equal in all fragments.
fn constant(header: &[u8]) -> (u8, &[u8], &[u8], &[u8]) {
    (header[1], &header[4..6], &header[8..10], &header[12..20])
}

proptest! {
    #[test]
    fn fragments_make_the_packet_when_put_together(
        spec in any_spec(3000),
        mtu in 68usize..2000,
        in_pieces in any::<bool>(),
        padding in 0usize..20,
    ) {
        let spec = Spec { v6: false, df: false, ..spec };
        let mut packet = spec.packet(None);
        let expected = spec.frame();
        if in_pieces {
            packet = with_nonlinear_payload(&packet, spec.header_len());
        } else {
            packet.append(&vec![0xee; padding]);
        }
        let all = fragments(&packet, mtu, spec.l3()).unwrap();
        let whole = parse_fragment(&expected, spec.l3());
        prop_assert_eq!(reassemble(&all, mtu), whole.data);
        prop_assert!(!all[all.len() - 1].more);
        for fragment in &all {
            prop_assert_eq!(constant(&fragment.header), constant(&whole.header));
        }
        prop_assert_eq!(&all[0].link, &whole.link);
    }

    #[test]
    fn fragments_of_fragments_belong_to_the_same_datagram(
        payload in prop::collection::vec(any::<u8>(), 600..3000),
        first in 300usize..600,
        second in 68usize..300,
    ) {
        let spec = Spec { df: false, udp: true, payload, ..Spec::default() };
        let packet = spec.packet(None);
        let whole = parse_fragment(&spec.frame(), 14);
        let (mut data, mut last) = (Vec::new(), true);
        let mut once = Vec::new();
        Fragmenter::new().fragment(&packet, first, |fragment| once.push(fragment.clone())).unwrap();
        for fragment in &once {
            let again = fragments(fragment, second, 14).unwrap();
            prop_assert_eq!(again[0].offset, data.len());
            data.extend(reassemble(&again, second));
            last = again[again.len() - 1].more;
            prop_assert_eq!(last, parse_fragment(&fragment.to_vec(), 14).more);
        }
        prop_assert_eq!((data, last), (whole.data, false));
    }

    #[test]
    fn segments_of_a_super_packet_are_fragmented_one_by_one(
        spec in any_spec(4000),
        size in 200u16..1500,
        mtu in 100usize..1000,
    ) {
        let spec = Spec { v6: false, df: false, ..spec };
        let packet = spec.packet(Some(size));
        let all = fragments(&packet, mtu, spec.l3()).unwrap();
        let mut datagrams: Vec<Vec<Fragment>> = Vec::new();
        for fragment in all {
            match datagrams.last_mut() {
                Some(last) if last[0].header[4..6] == fragment.header[4..6] => last.push(fragment),
                _ => datagrams.push(vec![fragment]),
            }
        }
        let segments = spec.segments(size.into());
        prop_assert_eq!(datagrams.len(), segments.len());
        for (fragments, segment) in datagrams.iter().zip(segments) {
            let whole = parse_fragment(&segment.frame(), spec.l3());
            prop_assert_eq!(reassemble(fragments, mtu), whole.data);
        }
    }

    #[test]
    fn fragmentation_does_not_panic_on_arbitrary_bytes(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200), mtu in 0usize..200,
        partial in prop::option::of((0u16..200, 0u16..20)),
        first in prop::sample::select(vec![0x45u8, 0x46, 0x4f, 0x60]),
    ) {
        if bytes.len() > 17 {
            bytes[12..15].copy_from_slice(&[8, 0, first]);
            bytes[16] = 0;
        }
        let mut packet = PacketBuf::from_bytes(&bytes);
        if let Some((start, offset)) = partial {
            packet.offload.checksum = Checksum::Partial { start, offset };
        }
        let mut len = 0;
        let result = Fragmenter::new().fragment(&packet, mtu, |fragment| len += fragment.len());
        prop_assert_eq!(result.is_ok(), len > 0);
    }
}

/// The same packet with its payload in buffer fragments after the linear part.
fn with_nonlinear_payload(packet: &PacketBuf, header_len: usize) -> PacketBuf {
    let bytes = packet.to_vec();
    let mut copy = PacketBuf::with_capacity(256, bytes.len() * 2 + 100);
    copy.spare_mut()[..header_len].copy_from_slice(&bytes[..header_len]);
    let (mut ranges, mut at) = (Vec::new(), header_len + 7);
    for piece in bytes[header_len..].chunks(333) {
        copy.spare_mut()[at..at + piece.len()].copy_from_slice(piece);
        ranges.push(at..at + piece.len());
        at += piece.len() + 7;
    }
    copy.set_ranges(0..header_len, ranges);
    copy.offload = packet.offload;
    copy
}

#[test]
fn fragments_have_their_own_length_when_the_packet_has_a_snap_header() {
    for tags in [vec![], vec![0x8100], vec![0x88a8, 0x8100]] {
        let payload = (0..1000).map(|i| i as u8).collect();
        let spec = Spec { udp: true, df: false, tags: tags.clone(), payload, ..Spec::default() };
        let collect = |packet: &PacketBuf| {
            let mut frames = Vec::new();
            let done = Fragmenter::new().fragment(packet, 500, |f| frames.push(f.to_vec()));
            assert_eq!(done, Ok(3));
            frames
        };
        let frame = spec.frame();
        let plain = collect(&PacketBuf::from_bytes(&frame));
        let snap = collect(&PacketBuf::from_bytes(&in_snap(&frame, tags.len())));
        let expected: Vec<_> = plain.iter().map(|frame| in_snap(frame, tags.len())).collect();
        assert_eq!(snap, expected);
    }
}

#[test]
fn packet_is_unchanged_when_it_fits() {
    let spec = Spec { tags: vec![0x88a8, 0x8100], ..Spec::default() };
    let len = spec.frame().len() - spec.l3();
    let mut frames = Vec::new();
    for df in [true, false] {
        let spec = Spec { df, ..spec.clone() };
        let fragmented =
            Fragmenter::new().fragment(&spec.packet(None), len, |f| frames.push(f.to_vec()));
        assert_eq!(fragmented, Ok(1));
        assert_eq!(frames.pop(), Some(spec.frame()));
    }
}

#[test]
fn options_are_copied_according_to_their_copied_flag() {
    // Record route (not copied), no operation, stream identifier (copied), end of options, and more
    // bytes.
    let options = [7, 7, 4, 1, 2, 3, 4, 1, 0x88, 4, 9, 9, 0, 7, 7, 7];
    let copied = [1, 1, 1, 1, 1, 1, 1, 1, 0x88, 4, 9, 9, 0, 7, 7, 7];
    // An option with an invalid length ends the option list.
    let broken = [7, 3, 5, 0x88, 1, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];
    let broken_copied = [1, 1, 1, 0x88, 1, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];
    let overlong = [7, 4, 5, 0, 7, 13, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];
    let overlong_copied = [1, 1, 1, 1, 7, 13, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];
    for (options, later) in
        [(options, copied), (broken, broken_copied), (overlong, overlong_copied)]
    {
        let spec = Spec { df: false, ip_extra: 16, ..Spec::default() };
        let mut packet = spec.packet(None);
        packet.head_mut()[34..50].copy_from_slice(&options);
        let all = fragments(&packet, 84, 14).unwrap();
        assert!(all.len() > 2);
        for (i, fragment) in all.iter().enumerate() {
            let expected = if i == 0 { &options } else { &later };
            assert_eq!(fragment.header[20..], expected[..], "fragment {i}");
        }
    }
}

#[test]
fn packet_is_refused_when_it_cannot_or_must_not_be_fragmented() {
    let refuse = |spec: Spec, mtu| {
        let called = |_: &mut PacketBuf| panic!("no fragment may be produced");
        Fragmenter::new().fragment(&spec.packet(None), mtu, called).unwrap_err()
    };
    let spec = Spec { df: false, ..Spec::default() };
    assert_eq!(refuse(Spec::default(), 100), FragmentError::DontFragment);
    assert_eq!(refuse(Spec { v6: true, ..spec.clone() }, 100), FragmentError::NotIpv4);
    assert_eq!(refuse(spec.clone(), 27), FragmentError::MtuTooSmall(27));
    assert_eq!(refuse(spec.clone(), 0), FragmentError::MtuTooSmall(0));

    let mut packet = spec.packet(None);
    packet.head_mut()[20..22].copy_from_slice(&0x1ff8_u16.to_be_bytes());
    let refused =
        Fragmenter::new().fragment(&packet, 100, |_| panic!("no fragment may be produced"));
    assert_eq!(refused, Err(FragmentError::BeyondDatagram));
    let mut packet = spec.packet(None);
    packet.offload.checksum = Checksum::Partial { start: 14, offset: 10 };
    let refused =
        Fragmenter::new().fragment(&packet, 100, |_| panic!("no fragment may be produced"));
    assert!(matches!(refused, Err(FragmentError::Offload(_))), "{refused:?}");
    let mut packet = spec.packet(Some(50));
    packet.offload.checksum = Checksum::Unverified;
    let refused =
        Fragmenter::new().fragment(&packet, 100, |_| panic!("no fragment may be produced"));
    assert!(matches!(refused, Err(FragmentError::Offload(_))), "{refused:?}");
}

#[test]
fn checksum_is_completed_when_its_field_is_in_a_later_fragment() {
    // With 60 header bytes, each fragment has 8 payload bytes, so the third has the TCP checksum.
    let spec = Spec { df: false, ip_extra: 40, ..Spec::default() };
    let all = fragments(&spec.packet(None), 68, 14).unwrap();
    let mut whole = spec.packet(None);
    complete_checksum(&mut whole).unwrap();
    assert_eq!(all[2].data, whole.head()[14 + 60 + 16..][..8]);
    assert_eq!(reassemble(&all, 68), whole.head()[14 + 60..]);
}
