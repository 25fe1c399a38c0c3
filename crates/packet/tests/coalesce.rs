//! Coalescing (GRO), which must be the inverse of segmentation.

use std::ops::Range;

use crate::support::{ACK, CWR, FIN, PSH, SYN, Spec, any_spec, same};
use packet::{Checksum, Coalescer, PacketBuf, coalesce_ranges};
use proptest::prelude::*;

/// One buffer with all frames and gaps between them, like received tunnel datagrams.
fn train(frames: &[Vec<u8>]) -> (PacketBuf, Vec<Range<usize>>) {
    let mut bytes = Vec::new();
    let mut ranges = Vec::new();
    for frame in frames {
        bytes.extend([0xee; 9]);
        ranges.push(bytes.len()..bytes.len() + frame.len());
        bytes.extend(frame);
    }
    (PacketBuf::from_bytes(&bytes), ranges)
}

/// The packets that coalescing makes of a buffer with these frames.
fn coalesced(frames: &[Vec<u8>], verified: bool) -> Vec<PacketBuf> {
    let (mut packet, ranges) = train(frames);
    let headroom = packet.headroom();
    let mut rest = &ranges[..];
    let mut out = Vec::new();
    while !rest.is_empty() {
        packet.reset(headroom);
        let taken = coalesce_ranges(&mut packet, rest, verified);
        out.push(packet.clone());
        rest = &rest[taken..];
    }
    out
}

/// The packets of a coalescer that receives the frames one by one.
fn pushed(frames: &[Vec<u8>], checksum: Checksum) -> Vec<PacketBuf> {
    let mut coalescer = Coalescer::new(8);
    let mut out = Vec::new();
    for frame in frames {
        let mut packet = PacketBuf::from_bytes(frame);
        packet.offload.checksum = checksum;
        coalescer.push((), packet, |(), packet| out.push(packet));
    }
    coalescer.flush(|(), packet| out.push(packet));
    assert!(coalescer.is_empty());
    out
}

fn frames(specs: &[Spec]) -> Vec<Vec<u8>> {
    specs.iter().map(Spec::frame).collect()
}

/// True if two segments are joined. Checks that both entry points agree.
fn joined(first: &Spec, second: &Spec) -> bool {
    let frames = frames(&[first.clone(), second.clone()]);
    let one = coalesced(&frames, false);
    let other = pushed(&frames, Checksum::Unverified);
    assert_eq!(one.len(), other.len());
    if one.len() == 2 {
        // Packets that are not joined are unchanged. Packets of different flows may be reordered.
        for packets in [&one, &other] {
            let bytes: Vec<_> = packets.iter().map(PacketBuf::to_vec).collect();
            assert!(bytes.contains(&frames[0]) && bytes.contains(&frames[1]));
        }
    }
    one.len() == 1
}

fn pair() -> (Spec, Spec) {
    let segments = Spec { payload: vec![3; 200], ..Spec::default() }.segments(100);
    (segments[0].clone(), segments[1].clone())
}

#[test]
fn segments_are_joined_when_in_order() {
    let (first, second) = pair();
    assert!(joined(&first, &second));
    for v6 in [false, true] {
        let spec =
            Spec { v6, payload: vec![9; 250], flags: ACK | PSH | FIN | CWR, ..Spec::default() };
        let frames = frames(&spec.segments(100));
        let want = spec.packet(Some(100));
        let out = coalesced(&frames, false);
        assert_eq!(out.len(), 1);
        assert!(same(&out[0], &want));
        assert!(same(&pushed(&frames, Checksum::Unverified)[0], &want));
    }
}

#[test]
fn segments_stay_apart_when_a_header_field_differs() {
    let (first, second) = pair();
    type Change = fn(&mut Spec);
    let changes: &[(&str, Change)] = &[
        ("sequence gap", |s| s.seq += 1),
        ("repeated", |s| s.seq -= 100),
        ("ack", |s| s.ack += 1),
        ("window", |s| s.window += 1),
        ("timestamp", |s| s.options[7] += 1),
        ("options length", |s| s.options.extend([1; 4])),
        ("port", |s| s.ports.0 += 1),
        ("tos", |s| s.tos = 1),
        ("ttl", |s| s.ttl -= 1),
        ("id gap", |s| s.id += 1),
        ("id repeated", |s| s.id -= 1),
        ("df", |s| s.df = false),
        ("tag", |s| s.tags.push(0x8100)),
        ("family", |s| s.v6 = true),
        ("syn", |s| s.flags |= SYN),
        ("rst", |s| s.flags |= 4),
        ("urg", |s| s.flags |= 0x20),
        ("ece", |s| s.flags |= 0x40),
        ("cwr in the middle", |s| s.flags |= CWR),
        ("longer than the first", |s| s.payload.push(1)),
        ("empty", |s| s.payload.clear()),
        ("ip options", |s| s.ip_extra = 8),
        ("udp", |s| s.udp = true),
    ];
    for (name, change) in changes {
        let mut other = second.clone();
        change(&mut other);
        assert!(!joined(&first, &other), "{name}");
    }
}

#[test]
fn segments_stay_apart_when_ethernet_headers_differ() {
    let (mut first, mut second) = pair();
    first.tags.push(0x8100);
    second.tags.push(0x8100);
    assert!(joined(&first, &second));
    // The two addresses, and the VLAN.
    for at in [5, 11, 15] {
        let mut frames = frames(&[first.clone(), second.clone()]);
        frames[1][at] ^= 1;
        assert_eq!(coalesced(&frames, false).len(), 2);
        assert_eq!(pushed(&frames, Checksum::Unverified).len(), 2);
    }
}

#[test]
fn segments_stay_apart_when_the_first_ends_the_run() {
    for flags in [PSH, FIN, SYN, 4, 0x20] {
        let (mut first, mut second) = pair();
        first.flags |= flags;
        second.flags |= flags & !(PSH | FIN);
        assert!(!joined(&first, &second), "{flags}");
    }
    let three = Spec { payload: vec![1; 300], ..Spec::default() }.segments(100);
    let mut short = three.clone();
    short[1].payload.pop();
    short[2].seq -= 1;
    assert_eq!(coalesced(&frames(&short), false).len(), 2);
    let mut pushed_early = three.clone();
    pushed_early[1].flags |= PSH;
    assert_eq!(coalesced(&frames(&pushed_early), false).len(), 2);
}

#[test]
fn ids_may_stay_zero_when_df_is_set() {
    let mut segments = Spec { id: 0, payload: vec![1; 300], ..Spec::default() }.segments(100);
    for segment in &mut segments {
        segment.id = 0;
    }
    assert_eq!(coalesced(&frames(&segments), false).len(), 1);
    // The sequences 0, 0, 2 and 0, 1, 0 are neither constant nor incrementing.
    segments[2].id = 2;
    assert_eq!(coalesced(&frames(&segments), false).len(), 2);
    segments[1].id = 1;
    segments[2].id = 0;
    assert_eq!(coalesced(&frames(&segments), false).len(), 2);
    for segment in &mut segments {
        segment.id = 0;
        segment.df = false;
    }
    assert_eq!(coalesced(&frames(&segments), false).len(), 3);
}

#[test]
fn segment_passes_untouched_when_its_checksum_is_wrong() {
    let segments = Spec { payload: vec![1; 500], ..Spec::default() }.segments(100);
    for bad in 0..5 {
        let mut frames = frames(&segments);
        *frames[bad].last_mut().unwrap() ^= 1;
        for out in [coalesced(&frames, false), pushed(&frames, Checksum::Unverified)] {
            let alone = out.iter().find(|p| p.to_vec() == frames[bad]).unwrap();
            assert_eq!(alone.offload, packet::Offload::default());
            let total: usize = out.iter().map(|p| p.len() - segments[0].header_len()).sum();
            assert_eq!(total, 500, "no byte is lost");
            let expected = if bad == 0 || bad == 4 { 2 } else { 3 };
            assert_eq!(out.len(), expected);
        }
        assert_eq!(coalesced(&frames, true).len(), 1, "it was verified before");
        assert_eq!(pushed(&frames, Checksum::Verified).len(), 1, "it was verified before");
    }
}

#[test]
fn segments_stay_apart_when_ip_checksum_is_wrong() {
    let (first, second) = pair();
    for bad in 0..2 {
        let mut frames = frames(&[first.clone(), second.clone()]);
        frames[bad][24] ^= 1;
        assert_eq!(coalesced(&frames, true).len(), 2);
        assert_eq!(pushed(&frames, Checksum::Verified).len(), 2);
    }
}

#[test]
fn padding_is_dropped_when_frames_are_padded() {
    for len in [8, 9] {
        let spec = Spec { options: vec![], payload: (0..len).collect(), ..Spec::default() };
        let mut frames = frames(&spec.segments(3));
        for frame in &mut frames {
            frame.resize(60, 0xdd);
        }
        for out in [coalesced(&frames, false), pushed(&frames, Checksum::Unverified)] {
            assert_eq!(out.len(), 1);
            assert!(same(&out[0], &spec.packet(Some(3))));
        }
    }
}

#[test]
fn run_stops_when_ip_length_would_pass_65535() {
    let mut specs = Vec::new();
    for i in 0..50u16 {
        let mut spec = Spec { payload: vec![1; 1400], ..Spec::default() };
        spec.id += i;
        spec.seq += u32::from(i) * 1400;
        specs.push(spec);
    }
    let frames = frames(&specs);
    for out in [coalesced(&frames, false), pushed(&frames, Checksum::Unverified)] {
        // 52 header bytes and 46 segments of 1400 bytes are 64,452 bytes.
        let lens: Vec<usize> = out.iter().map(|p| p.len() - 66).collect();
        assert_eq!(lens, [46 * 1400, 4 * 1400]);
        assert_eq!(out[0].head()[16..18], 64_452u16.to_be_bytes());
    }
}

#[test]
fn segment_is_joined_when_ip_length_is_65535_exactly() {
    for (len, joins) in [(1495, true), (1496, false)] {
        let first = Spec { options: vec![], payload: vec![1; 64_000], ..Spec::default() };
        let mut second = Spec { payload: vec![2; len], ..first.clone() };
        second.id += 1;
        second.seq += 64_000;
        assert_eq!(joined(&first, &second), joins);
    }
}

#[test]
fn segments_stay_apart_when_ipv6_has_more_than_options() {
    let spec = Spec { v6: true, ip_extra: 8, payload: vec![1; 200], ..Spec::default() };
    let options = frames(&spec.segments(100));
    assert_eq!(coalesced(&options, true).len(), 1);
    // A routing, an atomic fragment and an authentication header of the same length.
    for (protocol, second_byte) in [(43, 0), (44, 0), (51, 0)] {
        let mut frames = options.clone();
        for frame in &mut frames {
            frame[20] = protocol;
            frame[55] = second_byte;
            frame[56..62].fill(0);
        }
        assert_eq!(coalesced(&frames, true).len(), 2, "{protocol}");
        assert_eq!(pushed(&frames, Checksum::Verified).len(), 2, "{protocol}");
    }
}

#[test]
fn ranges_are_truncated_when_outside_the_buffer() {
    let frame = Spec::default().frame();
    let (mut packet, mut ranges) = train(std::slice::from_ref(&frame));
    ranges.push(ranges[0].end..ranges[0].end + 500);
    ranges.push(usize::MAX - 5..usize::MAX);
    let headroom = packet.headroom();
    let lens: Vec<usize> = (0..3)
        .map(|i| {
            packet.reset(headroom);
            assert_eq!(coalesce_ranges(&mut packet, &ranges[i..], false), 1);
            packet.len()
        })
        .collect();
    assert_eq!(lens, [frame.len(), 0, 0]);
    assert_eq!(coalesce_ranges(&mut packet, &[], false), 0);
}

#[test]
fn single_frame_is_verified_when_the_device_verified_it() {
    let frame = Spec::default().frame();
    for (verified, checksum) in [(true, Checksum::Verified), (false, Checksum::Unverified)] {
        let out = coalesced(std::slice::from_ref(&frame), verified);
        assert_eq!((out[0].offload.checksum, out[0].to_vec()), (checksum, frame.clone()));
    }
}

#[test]
fn flows_are_kept_apart_when_interleaved() {
    let flows: Vec<Vec<Spec>> = (0..3u16)
        .map(|i| {
            Spec { ports: (i, 9), v6: i == 2, payload: vec![i as u8; 300], ..Spec::default() }
                .segments(100)
        })
        .collect();
    let mut interleaved = Vec::new();
    for i in 0..3 {
        for flow in &flows {
            interleaved.push(flow[i].frame());
        }
    }
    let out = pushed(&interleaved, Checksum::Unverified);
    assert_eq!(out.len(), 3);
    assert!(out.iter().all(|p| p.offload.gso.is_some()));
}

#[test]
fn keys_are_kept_apart_when_flows_are_alike() {
    let (first, second) = pair();
    let mut coalescer = Coalescer::new(8);
    let mut out = Vec::new();
    coalescer.push(1, PacketBuf::from_bytes(&first.frame()), |k, _| out.push(k));
    coalescer.push(2, PacketBuf::from_bytes(&second.frame()), |k, _| out.push(k));
    coalescer.flush(|k, p| {
        assert_eq!(p.offload.gso, None);
        out.push(k);
    });
    assert_eq!(out, [1, 2]);
}

#[test]
fn flow_is_flushed_first_when_something_cannot_be_joined() {
    let segments = Spec { payload: vec![1; 300], ..Spec::default() }.segments(100);
    let mut pure_ack = segments[2].clone();
    pure_ack.payload.clear();
    let arp = [&[0xff; 12][..], &[8, 6], &[0; 46]].concat();
    let mut fragment = segments[2].frame();
    fragment[20] = 0x20;
    for (other, flushes) in [(pure_ack.frame(), true), (fragment, true), (arp, false)] {
        let mut coalescer = Coalescer::new(8);
        let mut out = Vec::new();
        for frame in [&segments[0].frame(), &segments[1].frame(), &other] {
            coalescer.push((), PacketBuf::from_bytes(frame), |(), p| out.push(p.to_vec()));
        }
        assert_eq!(out.last(), Some(&other));
        assert_eq!(out.len(), if flushes { 2 } else { 1 });
        assert_eq!(coalescer.is_empty(), flushes);
    }
}

#[test]
fn oldest_flow_is_emitted_when_there_are_too_many() {
    let mut coalescer = Coalescer::new(2);
    let mut out = Vec::new();
    for i in 0..4u16 {
        let spec = Spec { ports: (i, 9), ..Spec::default() };
        let joined = coalescer
            .push((), PacketBuf::from_bytes(&spec.frame()), |(), p| out.push(p.head()[35]));
        assert!(joined.is_none());
    }
    assert_eq!(out, [0, 1]);
}

#[test]
fn buffer_is_returned_when_its_packet_was_joined() {
    let (first, second) = pair();
    let mut coalescer = Coalescer::new(2);
    assert!(coalescer.push((), PacketBuf::from_bytes(&first.frame()), |(), _| ()).is_none());
    assert!(coalescer.push((), PacketBuf::from_bytes(&second.frame()), |(), _| ()).is_some());
}

#[test]
fn partial_packet_is_not_joined_when_its_checksum_start_is_wrong() {
    let (first, second) = pair();
    let mut coalescer = Coalescer::new(2);
    let mut out = Vec::new();
    for spec in [first, second] {
        let mut packet = spec.packet(None);
        packet.offload.checksum = Checksum::Partial { start: 20, offset: 16 };
        coalescer.push((), packet, |(), p| out.push(p.offload));
    }
    assert_eq!(out.len(), 2);
    assert!(out.iter().all(|o| o.checksum == Checksum::Partial { start: 20, offset: 16 }));
}

#[test]
fn partial_packets_are_joined_without_checksum_verification() {
    let spec = Spec { payload: vec![5; 250], ..Spec::default() };
    let mut coalescer = Coalescer::new(2);
    let mut out = Vec::new();
    for segment in spec.segments(100) {
        coalescer.push((), segment.packet(None), |(), p| out.push(p));
    }
    coalescer.flush(|(), p| out.push(p));
    assert_eq!(out.len(), 1);
    assert!(same(&out[0], &spec.packet(Some(100))));
}

/// Changes a spec so that its segments may be joined.
fn coalescable(mut spec: Spec) -> Spec {
    spec.udp = false;
    spec.flags &= FIN | PSH | CWR | ACK | 0x40;
    if !spec.v6 {
        spec.ip_extra = 0;
    }
    spec
}

proptest! {
    #[test]
    fn coalescing_segments_is_identity_when_rules_allow(
        spec in any_spec(3000).prop_map(coalescable), size in 1u16..1500, verified in any::<bool>(),
    ) {
        let mut spec = spec;
        // The packet has more than one segment.
        spec.payload.resize(spec.payload.len() + usize::from(size) + 1, 0x42);
        let frames = frames(&spec.segments(size.into()));
        let want = spec.packet(Some(size));
        let ranges = coalesced(&frames, verified);
        prop_assert_eq!(ranges.len(), 1);
        prop_assert!(same(&ranges[0], &want));
        let checksum = if verified { Checksum::Verified } else { Checksum::Unverified };
        let one_by_one = pushed(&frames, checksum);
        prop_assert_eq!(one_by_one.len(), 1);
        prop_assert!(same(&one_by_one[0], &want));
    }

    /// Segmenting the joined packets restores the input bytes of each flow, in order.
    #[test]
    fn nothing_is_lost_or_reordered_when_traffic_is_mixed(
        specs in prop::collection::vec(
            (any_spec(400).prop_map(coalescable), 50usize..200, 0u16..3, any::<u8>()), 1..5),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>())),
        max_flows in 1usize..4,
    ) {
        let mut queues: Vec<Vec<Vec<u8>>> = specs.iter().map(|(spec, size, port, flags)| {
            let (tags, options) = (vec![], vec![]);
            let spec = Spec { ports: (*port, 9), v6: false, tags, options, ..spec.clone() };
            let mut segments = spec.segments(*size);
            segments[0].flags |= flags & SYN;
            frames(&segments)
        }).collect();
        let mut input = Vec::new();
        for pick in order {
            let queue = pick.index(queues.len());
            if !queues[queue].is_empty() {
                input.push(queues[queue].remove(0));
            }
        }
        input.extend(queues.into_iter().flatten());
        if let Some((frame, byte)) = damage {
            let frame = frame.index(input.len());
            let byte = 14 + byte.index(input[frame].len() - 14);
            input[frame][byte] ^= 0x10;
        }
        let mut coalescer = Coalescer::new(max_flows);
        let mut out = Vec::new();
        for frame in &input {
            coalescer.push((), PacketBuf::from_bytes(frame), |(), p| out.push(p));
        }
        coalescer.flush(|(), p| out.push(p));
        prop_assert_eq!(by_flow(resegment(&out)), by_flow(input.clone()));
        prop_assert_eq!(resegment(&coalesced(&input, false)), input);
    }

    #[test]
    fn coalescing_does_not_panic_on_arbitrary_frames(
        specs in prop::collection::vec(any_spec(100), 1..6), verified in any::<bool>(),
        changes in prop::collection::vec((0usize..6, 0usize..130, any::<u8>()), 0..8),
        cuts in prop::collection::vec(0usize..200, 6),
        junk in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut frames = frames(&specs);
        for (frame, at, value) in changes {
            if let Some(byte) = frames.get_mut(frame).and_then(|f| f.get_mut(at)) {
                *byte = value;
            }
        }
        for (frame, cut) in frames.iter_mut().zip(cuts) {
            frame.truncate(cut);
        }
        frames.push(junk);
        let out = coalesced(&frames, verified);
        prop_assert!(out.len() <= frames.len());
        prop_assert!(pushed(&frames, Checksum::Verified).len() <= frames.len());
    }
}

/// The frames that the packets become on the wire. Segmentation increments the IP identification,
/// like the input frames.
fn resegment(packets: &[PacketBuf]) -> Vec<Vec<u8>> {
    let mut segmenter = packet::Segmenter::new();
    let mut out = Vec::new();
    for packet in packets {
        let segments =
            segmenter.segment(packet, 0, packet::SegmentChecksum::Complete, |_| {}).unwrap();
        out.extend(segments.map(|(header, payload)| [header, payload].concat()));
    }
    out
}

/// Sorts the frames by protocol, addresses and ports, which have the same offsets in all frames.
/// Keeps the order within each flow.
fn by_flow(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort_by_key(|frame| (frame[23], frame[26..38].to_vec()));
    frames
}
