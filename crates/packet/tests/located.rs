//! The cached header locations equal those of a fresh parse after any change of the frame.

use crate::support::{any_spec, in_snap};
use packet::{
    Fit, PacketBuf, complete_checksum, complete_crc32c, complete_misplaced_checksum, fit,
    infer_partial,
};
use proptest::prelude::*;
use wire::transport_offset_in;

/// A change of a frame, or a use of its header locations.
#[derive(Clone, Copy, Debug)]
enum Step {
    Push(usize),
    Pull(usize),
    PushHeader(usize, usize),
    Write(usize, u8),
    Append(usize),
    Truncate(usize),
    Scatter(usize),
    SetLen(usize),
    Linearize,
    Settle,
    Complete,
    Infer,
    Locate(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_usize..60).prop_map(Step::Push),
        (0_usize..60).prop_map(Step::Pull),
        (0_usize..8, 0_usize..20).prop_map(|(len, gap)| Step::PushHeader(len, gap)),
        (0_usize..70, any::<u8>()).prop_map(|(at, byte)| Step::Write(at, byte)),
        (0_usize..9).prop_map(Step::Append),
        (0_usize..90).prop_map(Step::Truncate),
        (0_usize..90).prop_map(Step::Scatter),
        (0_usize..90).prop_map(Step::SetLen),
        Just(Step::Linearize),
        Just(Step::Settle),
        Just(Step::Complete),
        Just(Step::Infer),
        (0_usize..60).prop_map(Step::Locate),
    ]
}

fn apply(step: Step, packet: &mut PacketBuf) {
    match step {
        Step::Push(len) => {
            if let Ok(bytes) = packet.push_front(len) {
                bytes.fill(0x81);
            }
        }
        Step::Pull(len) => packet.pull_front(len),
        Step::PushHeader(len, gap) => {
            if let Ok(bytes) = packet.push_front_header(&[0x45; 8], len, gap) {
                bytes.fill(8);
            }
        }
        Step::Write(at, byte) => {
            if let Some(place) = packet.head_mut().get_mut(at) {
                *place = byte;
            }
        }
        Step::Append(len) => packet.append(&[0x99; 9][..len]),
        Step::Truncate(len) => packet.truncate(len),
        Step::Scatter(head) => {
            let len = packet.head().len();
            let head = head.min(len);
            packet.set_ranges(0..head, std::iter::once(head..len));
        }
        Step::SetLen(len) => packet.set_len(len),
        Step::Linearize => packet.linearize(),
        Step::Settle => {
            let _ = complete_misplaced_checksum(packet);
        }
        Step::Complete => {
            let _ = complete_checksum(packet);
            complete_crc32c(packet);
        }
        Step::Infer => {
            infer_partial(packet);
            if let Fit::Resize(resize) = fit(packet, 60) {
                resize.apply(packet);
            }
        }
        Step::Locate(outer_len) => drop(packet.located_behind(outer_len)),
    }
}

fn agrees(packet: &PacketBuf, outer_len: usize) -> Result<(), TestCaseError> {
    let frame = packet.head().get(outer_len..).unwrap_or_default();
    let walked = transport_offset_in(frame, packet.len().saturating_sub(outer_len));
    prop_assert_eq!(packet.located_behind(outer_len), walked);
    Ok(())
}

proptest! {
    #[test]
    fn located_headers_equal_a_fresh_parse_after_any_change(
        spec in any_spec(100),
        gso in proptest::option::of(1_u16..50),
        has_snap: bool,
        steps in prop::collection::vec((any_step(), any::<bool>(), 0_usize..30), 1..12),
    ) {
        let mut packet = spec.packet(gso);
        if has_snap {
            packet = PacketBuf::from_bytes(&in_snap(&packet.to_vec(), spec.tags.len()));
        }
        agrees(&packet, 0)?;
        for (step, looks_behind, outer_len) in steps {
            apply(step, &mut packet);
            agrees(&packet, if looks_behind { outer_len } else { 0 })?;
        }
    }

    #[test]
    fn located_headers_stay_cached_after_a_header_is_pushed(
        spec in any_spec(100),
        len in 1_usize..60,
    ) {
        let mut packet = spec.packet(None);
        let located = packet.located();
        packet.push_front(len).unwrap().fill(0);
        prop_assert_eq!(packet.located_behind(len), located);
        packet.pull_front(len);
        prop_assert_eq!(packet.located(), located);
    }
}
