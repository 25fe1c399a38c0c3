//! Frames that are too long for their path: the action in each case, and that resized frames fit.

use crate::support::{ACK, PSH, Spec, any_spec, in_snap};
use packet::{
    Checksum, Fit, Fragmenter, PacketBuf, Resize, SegmentChecksum, Segmenter, first_segment, fit,
    wire_len,
};
use proptest::prelude::*;

fn spec(v6: bool, udp: bool, df: bool, payload: usize) -> Spec {
    Spec { v6, udp, df, payload: (0..payload).map(|i| i as u8).collect(), ..Spec::default() }
}

#[test]
fn fit_returns_the_actions_of_the_table() {
    const MAX: usize = 1414;
    let (v4, v6) = (false, true);
    let (tcp, udp) = (false, true);
    let (df, may) = (true, false);
    // IP version, transport, don't fragment, payload, segment size => action.
    for (version, transport, dont_fragment, payload, gso, expected) in [
        (v4, tcp, df, 1348, None, Fit::Fits),
        (v4, tcp, df, 1349, None, Fit::TooBig { mtu: 1400 }),
        (v4, tcp, may, 1349, None, Fit::Fragment { mtu: 1400 }),
        (v4, udp, may, 1373, None, Fit::Fragment { mtu: 1400 }),
        (v4, udp, df, 1373, None, Fit::TooBig { mtu: 1400 }),
        (v4, udp, df, 1372, None, Fit::Fits),
        (v6, tcp, may, 1329, None, Fit::TooBig { mtu: 1400 }),
        (v6, udp, may, 1353, None, Fit::TooBig { mtu: 1400 }),
        (v4, tcp, df, 60_000, Some(1348), Fit::Fits),
        (v4, tcp, df, 60_000, Some(1349), Fit::TooBig { mtu: 1400 }),
        (v4, tcp, df, 1348, Some(5000), Fit::Fits),
        (v4, tcp, may, 60_000, Some(1448), Fit::Resize(Resize::Segments(1348))),
        (v4, udp, may, 60_000, Some(1448), Fit::Fragment { mtu: 1400 }),
        (v4, udp, df, 60_000, Some(1448), Fit::TooBig { mtu: 1400 }),
        (v6, tcp, df, 60_000, Some(1428), Fit::TooBig { mtu: 1400 }),
        (v6, udp, df, 60_000, Some(1428), Fit::TooBig { mtu: 1400 }),
    ] {
        let case = (version, transport, dont_fragment, payload, gso);
        let packet = spec(version, transport, dont_fragment, payload).packet(gso);
        assert_eq!(fit(&packet, MAX), expected, "{case:?}");
    }
}

#[test]
fn reported_mtu_excludes_the_tags_of_the_frame() {
    let spec = Spec { tags: vec![0x88a8, 0x8100], ..spec(false, false, true, 3000) };
    assert_eq!(fit(&spec.packet(None), 1414), Fit::TooBig { mtu: 1392 });
    let spec = Spec { v6: true, ..spec };
    assert_eq!(
        fit(&spec.packet(None), 20),
        Fit::TooBig { mtu: 0 },
        "the ICMPv6 error will say 1280"
    );
}

#[test]
fn frame_never_fits_when_no_sender_can_be_notified() {
    let arp = PacketBuf::from_bytes(&[[2; 12].as_slice(), &[8, 6], &[0; 1500]].concat());
    assert_eq!(fit(&arp, 1400), Fit::Never);
    let mut packet = spec(false, false, true, 3000).packet(None);
    packet.head_mut()[14] = 0x55;
    assert_eq!(fit(&packet, 1414), Fit::Never, "malformed");
    // 68 bytes is the minimum MTU of IPv4.
    for df in [true, false] {
        assert_eq!(fit(&spec(false, true, df, 3000).packet(None), 81), Fit::Never);
        assert_ne!(fit(&spec(false, true, df, 3000).packet(None), 82), Fit::Never);
    }
}

#[test]
fn padding_is_removed_when_the_packet_fits_without_it() {
    for df in [true, false] {
        let spec = spec(false, false, df, 1000);
        let mut packet = spec.packet(None);
        packet.append(&[0; 1000]);
        let len = spec.frame().len();
        assert_eq!(fit(&packet, 1414), Fit::Resize(Resize::Truncate(len)));
        Resize::Truncate(len).apply(&mut packet);
        assert!(crate::support::same(&packet, &spec.packet(None)));
    }
}

#[test]
fn length_of_ieee_802_3_follows_when_padding_is_removed() {
    for tags in [vec![], vec![0x88a8, 0x8100]] {
        let spec = Spec { tags: tags.clone(), ..spec(false, true, true, 1000) };
        let mut packet =
            PacketBuf::from_bytes(&in_snap(&[&spec.frame()[..], &[0; 400]].concat(), tags.len()));
        let expected = in_snap(&spec.frame(), tags.len());
        let Fit::Resize(resize) = fit(&packet, 1414) else { panic!("it fits without padding") };
        resize.apply(&mut packet);
        assert_eq!(packet.to_vec(), expected);
    }
}

#[test]
fn resized_segments_have_the_maximum_length() {
    let spec = spec(false, false, false, 10_000);
    let segments = |size| Fit::Resize(Resize::Segments(size));
    let mut packet = spec.packet(Some(1448));
    assert_eq!(fit(&packet, 1414), segments(1348));
    Resize::Segments(1348).apply(&mut packet);
    assert_eq!((packet.offload.gso.unwrap().size, wire_len(&packet)), (1348, 1414));
    assert_eq!(fit(&packet, 1414), Fit::Fits);
    // The minimum segment size, and one byte less.
    assert_eq!(fit(&spec.packet(Some(1448)), spec.header_len() + 30), segments(30));
    let long = Spec { ip_extra: 40, ..spec };
    let headers = long.header_len();
    assert_eq!(fit(&long.packet(Some(1448)), headers + 8), segments(8));
    let mtu = (headers + 7 - 14) as u16;
    assert_eq!(fit(&long.packet(Some(1448)), headers + 7), Fit::Fragment { mtu });
}

#[test]
fn first_segment_equals_that_of_the_segmenter() {
    for (v6, udp) in [(false, false), (false, true), (true, false), (true, true)] {
        for size in [1000, 4000] {
            let spec = Spec { flags: ACK | PSH, ..spec(v6, udp, true, 3000) };
            let first = first_segment(&spec.packet(Some(size))).unwrap();
            assert_eq!(first.to_vec(), spec.segments(size.into())[0].frame());
            assert_eq!((first.offload.checksum, first.offload.gso), (Checksum::Verified, None));
        }
        let spec = spec(v6, udp, true, 300);
        assert_eq!(first_segment(&spec.packet(None)).unwrap().to_vec(), spec.frame());
    }
    let mut broken = spec(false, false, true, 3000).packet(Some(1000));
    broken.offload.checksum = Checksum::Unverified;
    assert!(first_segment(&broken).is_err());
}

proptest! {
    #[test]
    fn frames_that_fit_are_within_the_limit(
        spec in any_spec(5000),
        size in prop::option::of(1u16..3000),
        max in 60usize..3000,
        padding in 0usize..2000,
    ) {
        let mut packet = spec.packet(size);
        if size.is_none() {
            packet.append(&vec![0; padding]);
        }
        let verdict = fit(&packet, max);
        if let Fit::Resize(resize) = verdict {
            resize.apply(&mut packet);
        }
        let longest = || {
            let mut segmenter = Segmenter::new();
            let segments = segmenter.segment(&packet, 0, SegmentChecksum::Complete, |_| {});
            segments.unwrap().map(|(header, payload)| header.len() + payload.len()).max().unwrap()
        };
        match verdict {
            Fit::Fits | Fit::Resize(_) => prop_assert!(longest() <= max),
            Fit::Fragment { mtu } => {
                prop_assert!(!spec.v6 && !spec.df && longest() > max);
                let mut lengths = Vec::new();
                Fragmenter::new().fragment(&packet, mtu.into(), |f| lengths.push(f.len())).unwrap();
                prop_assert!(lengths.iter().all(|&len| len <= max));
            }
            Fit::TooBig { mtu } => {
                prop_assert!((spec.v6 || spec.df) && longest() > max);
                prop_assert_eq!(usize::from(mtu), max.saturating_sub(spec.l3()));
            }
            Fit::Never => prop_assert!(!spec.v6 && max < spec.l3() + 68),
        }
    }

    #[test]
    fn fit_does_not_panic_on_arbitrary_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..200), max in 0usize..200,
        gso in prop::option::of((0u16..200, any::<u16>(), 0usize..3)),
    ) {
        let mut packet = PacketBuf::from_bytes(&bytes);
        if let Some((start, size, kind)) = gso {
            let kinds = [packet::GsoKind::TcpV4, packet::GsoKind::TcpV6, packet::GsoKind::UdpL4];
            packet.offload.checksum = Checksum::Partial { start, offset: 16 };
            packet.offload.gso = Some(packet::Gso { kind: kinds[kind], size, ecn: false });
        }
        if let Fit::Resize(resize) = fit(&packet, max) {
            resize.apply(&mut packet);
            prop_assert!(wire_len(&packet) <= max);
        }
        let _ = first_segment(&packet);
    }
}
