//! Reassembly of IP datagrams, and fragmenting them again.

use packet::reassembly::{FragmentContext, FragmentDrop, FragmentProgress, HOLD_MS};
use packet::{IpReassembler, PacketBuf, longest_frame, refragment};
use proptest::prelude::*;

const CONTEXT: FragmentContext = FragmentContext { source: 3, zone: 5 };

fn checksummed(mut header: Vec<u8>) -> Vec<u8> {
    let words = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// A frame with the bytes `payload` at `offset` of an IPv4 datagram.
fn v4(ident: u8, offset: usize, more: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&[2; 6][..], &[4; 6], &[8, 0]].concat();
    let [high, low] = ((20 + payload.len()) as u16).to_be_bytes();
    let flags = 0x4000 | u16::from(more) << 13 | (offset / 8) as u16;
    let [a, b] = flags.to_be_bytes();
    let header = vec![0x45, 0, high, low, 9, ident, a, b, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    frame.extend(checksummed(header));
    frame.extend(payload);
    frame
}

fn v6(ident: u8, offset: usize, more: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&[2; 6][..], &[4; 6], &[0x86, 0xdd]].concat();
    let [high, low] = ((16 + payload.len()) as u16).to_be_bytes();
    frame.extend([0x60, 0, 0, 0, high, low, 0, 64]);
    frame.extend([[0xfd; 15].as_slice(), &[1], &[0xfd; 15], &[2]].concat());
    // Hop-by-hop options: six bytes of padding.
    frame.extend([44, 0, 1, 4, 0, 0, 0, 0]);
    let [a, b] = (offset as u16 | u16::from(more)).to_be_bytes();
    frame.extend([17, 0, a, b, 7, 7, 7, ident]);
    frame.extend(payload);
    frame
}

fn frame(is_v6: bool, ident: u8, offset: usize, more: bool, payload: &[u8]) -> PacketBuf {
    let make = if is_v6 { v6 } else { v4 };
    let mut bytes = make(ident, offset, more, payload);
    // Padding of a short frame is no payload.
    bytes.resize(bytes.len().max(60), 0xee);
    PacketBuf::from_bytes(&bytes)
}

/// Fragments of `step` bytes each.
fn cut(is_v6: bool, ident: u8, payload: &[u8], step: usize) -> Vec<PacketBuf> {
    let starts = (0..payload.len()).step_by(step);
    starts
        .map(|from| {
            let to = payload.len().min(from + step);
            frame(is_v6, ident, from, to < payload.len(), &payload[from..to])
        })
        .collect()
}

fn payload_of(packet: &PacketBuf) -> Vec<u8> {
    let at = packet.located().unwrap();
    packet.to_vec()[at.l4.unwrap()..at.l3_end].to_vec()
}

proptest! {
    #[test]
    fn datagram_survives_reassembly_and_is_cut_as_before(
        is_v6 in any::<bool>(),
        payload in prop::collection::vec(any::<u8>(), 20..3000),
        units in 1usize..180,
        order in any::<u64>(),
    ) {
        let sent = cut(is_v6, 1, &payload, units * 8);
        prop_assume!(sent.len() > 1 && sent.len() <= 128);
        let mut reassembler = IpReassembler::default();
        let mut left: Vec<_> = sent.iter().collect();
        let mut random = order;
        let mut whole = None;
        while !left.is_empty() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut next = left.swap_remove((random >> 33) as usize % left.len()).clone();
            let progress = reassembler.push(CONTEXT, &mut next, 0).unwrap();
            let is_complete = progress == FragmentProgress::Complete;
            prop_assert_eq!(is_complete, left.is_empty());
            prop_assert!(is_complete || progress == FragmentProgress::Held);
            whole = Some(next);
        }
        let whole = whole.unwrap();
        prop_assert!(reassembler.is_idle());
        prop_assert_eq!(payload_of(&whole), &payload[..]);
        prop_assert!(longest_frame(&whole) <= sent.iter().map(PacketBuf::len).max().unwrap());
        let mut again = Vec::new();
        refragment(&whole, |fragment| again.push(fragment.to_vec())).unwrap();
        // Compare the frames without padding.
        let bytes = |packet: &PacketBuf| {
            let l3_end = packet.located().unwrap().l3_end;
            packet.to_vec()[..l3_end].to_vec()
        };
        prop_assert_eq!(again, sent.iter().map(bytes).collect::<Vec<_>>());
    }

    #[test]
    fn no_bytes_cause_a_panic(
        is_v6 in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 4),
    ) {
        let mut reassembler = IpReassembler::default();
        for (place, packet) in cut(is_v6, 1, &[5; 64], 16).iter().enumerate() {
            let mut bytes = packet.to_vec();
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            bytes.truncate(bytes.len() - cuts[place].index(8));
            let mut changed = PacketBuf::from_bytes(&bytes);
            if reassembler.push(CONTEXT, &mut changed, 0) == Ok(FragmentProgress::Complete) {
                refragment(&changed, |_| ()).unwrap();
            }
        }
    }
}

#[test]
fn fragments_are_not_joined_when_datagram_zone_or_source_differ() {
    for is_v6 in [false, true] {
        let [first, last] = &cut(is_v6, 1, &[9; 24], 16)[..] else { panic!() };
        let mut reassembler = IpReassembler::default();
        assert_eq!(reassembler.push(CONTEXT, &mut first.clone(), 0), Ok(FragmentProgress::Held));
        let other = &cut(is_v6, 2, &[9; 24], 16)[1];
        assert_eq!(reassembler.push(CONTEXT, &mut other.clone(), 0), Ok(FragmentProgress::Held));
        for context in
            [FragmentContext { zone: 6, ..CONTEXT }, FragmentContext { source: 4, ..CONTEXT }]
        {
            let progress = reassembler.push(context, &mut last.clone(), 0);
            assert_eq!(progress, Ok(FragmentProgress::Held));
        }
        assert_eq!(reassembler.push(CONTEXT, &mut last.clone(), 0), Ok(FragmentProgress::Complete));
    }
}

#[test]
fn overlap_ends_the_datagram_and_a_repetition_does_not() {
    for is_v6 in [false, true] {
        let [first, last] = &cut(is_v6, 1, &[9; 24], 16)[..] else { panic!() };
        let mut reassembler = IpReassembler::default();
        assert_eq!(reassembler.push(CONTEXT, &mut first.clone(), 0), Ok(FragmentProgress::Held));
        let repeated = reassembler.push(CONTEXT, &mut first.clone(), 0);
        assert_eq!(repeated, Err(FragmentDrop::Overlap));
        assert_eq!(reassembler.take_dropped().count(), 0);
        let mut over = frame(is_v6, 1, 8, false, &[1; 16]);
        assert_eq!(reassembler.push(CONTEXT, &mut over, 0), Err(FragmentDrop::Overlap));
        let lost: Vec<_> = reassembler.take_dropped().collect();
        assert_eq!(lost, [(3, FragmentDrop::Overlap, 1)]);
        // The last fragment begins a datagram that never becomes complete.
        assert_eq!(reassembler.push(CONTEXT, &mut last.clone(), 5), Ok(FragmentProgress::Held));
        reassembler.expire(5 + HOLD_MS - 1);
        assert_eq!(reassembler.take_dropped().count(), 0);
        reassembler.expire(5 + HOLD_MS);
        let lost: Vec<_> = reassembler.take_dropped().collect();
        assert_eq!(lost, [(3, FragmentDrop::Expired, 1)]);
        assert!(reassembler.is_idle());
    }
}

#[test]
fn contradictions_about_the_end_are_overlaps() {
    let last = |offset| frame(false, 1, offset, false, &[1; 8]);
    let mut reassembler = IpReassembler::default();
    assert_eq!(reassembler.push(CONTEXT, &mut last(16), 0), Ok(FragmentProgress::Held));
    assert_eq!(reassembler.push(CONTEXT, &mut last(32), 0), Err(FragmentDrop::Overlap));
    assert_eq!(reassembler.push(CONTEXT, &mut last(16), 0), Ok(FragmentProgress::Held));
    let mut beyond = frame(false, 1, 24, true, &[1; 8]);
    assert_eq!(reassembler.push(CONTEXT, &mut beyond, 0), Err(FragmentDrop::Overlap));
}

#[test]
fn impossible_fragments_are_malformed_and_whole_packets_stay() {
    let mut reassembler = IpReassembler::default();
    for mut wrong in [
        // Not a multiple of eight.
        frame(false, 1, 0, true, &[1; 9]),
        frame(true, 1, 0, true, &[1; 9]),
        // Empty.
        frame(false, 1, 8, false, &[]),
        // Beyond the longest packet.
        frame(false, 1, 65_528, false, &[1; 8]),
    ] {
        assert_eq!(reassembler.push(CONTEXT, &mut wrong, 0), Err(FragmentDrop::Malformed));
    }
    for is_v6 in [false, true] {
        let whole = frame(is_v6, 1, 0, false, &[1; 40]);
        let mut packet = whole.clone();
        assert_eq!(reassembler.push(CONTEXT, &mut packet, 0), Ok(FragmentProgress::Whole));
        assert_eq!((packet.to_vec(), packet.refragment), (whole.to_vec(), None));
        assert!(refragment(&packet, |_| panic!("it was never reassembled")).is_err());
    }
    assert!(reassembler.is_idle());
}

#[test]
fn memory_of_one_source_is_limited() {
    let mut reassembler = IpReassembler::default();
    let mut held = 0;
    let refused = (0..=u16::MAX).find(|number| {
        let mut bytes = v4(1, 8, true, &[1; 1024]);
        // Another source address makes another datagram. The header checksum is not verified.
        bytes[14 + 12..14 + 14].copy_from_slice(&number.to_be_bytes());
        let progress = reassembler.push(CONTEXT, &mut PacketBuf::from_bytes(&bytes), 0);
        held += usize::from(progress == Ok(FragmentProgress::Held));
        progress == Err(FragmentDrop::Memory)
    });
    assert!(refused.is_some() && held < 1024, "{held}");
    let other = FragmentContext { source: 4, ..CONTEXT };
    let mut packet = frame(false, 1, 0, true, &[1; 8]);
    assert_eq!(reassembler.push(other, &mut packet, 0), Ok(FragmentProgress::Held));
    reassembler.expire(HOLD_MS);
    assert!(reassembler.push(CONTEXT, &mut frame(false, 1, 0, true, &[1; 8]), HOLD_MS).is_ok());
}

#[test]
fn many_sources_leave_memory_for_another_one() {
    let mut reassembler = IpReassembler::default();
    let mut bytes = v4(1, 8, true, &[1; 1024]);
    for source in 0..64 {
        let context = FragmentContext { source, ..CONTEXT };
        let refused = (0..2048_u16).find(|number| {
            bytes[14 + 12..14 + 14].copy_from_slice(&number.to_be_bytes());
            let progress = reassembler.push(context, &mut PacketBuf::from_bytes(&bytes), 0);
            progress == Err(FragmentDrop::Memory)
        });
        assert!(refused.is_some(), "{source}");
    }
    let other = FragmentContext { source: 64, ..CONTEXT };
    let mut packet = frame(false, 1, 0, true, &[1; 8]);
    assert_eq!(reassembler.push(other, &mut packet, 0), Ok(FragmentProgress::Held));
}

#[test]
fn congestion_of_a_fragment_marks_the_datagram() {
    for is_v6 in [false, true] {
        let [first, last] = &cut(is_v6, 1, &[9; 24], 16)[..] else { panic!() };
        let mut bytes = last.to_vec();
        if is_v6 {
            bytes[15] |= 0x30
        } else {
            bytes[15] |= 3
        };
        let mut reassembler = IpReassembler::default();
        let _ = reassembler.push(CONTEXT, &mut PacketBuf::from_bytes(&bytes), 0);
        let mut whole = first.clone();
        assert_eq!(reassembler.push(CONTEXT, &mut whole, 0), Ok(FragmentProgress::Complete));
        let marked = if is_v6 { whole.head()[15] >> 4 } else { whole.head()[15] };
        assert_eq!(marked & 3, 3);
    }
}
