//! [`translate_steady()`]: all passes of a packet in one translation.

use super::{Translation, retranslate};
use crate::observer::{AfterTracking, Event, Observer, TrackRequest};
use crate::program::Program;
use crate::state::LearnedState;
use flow::{Field, FlowKey, FlowMask, SteadyPass};

/// The TCP flags that may change a connection, and ACK, which every segment of an established
/// connection has.
const TCP_FLAGS: u128 = 0x17;

/// Translates the packets of a connection that does not change, in all their passes through the
/// connection tracker at once. `known` is the mask of the megaflow when it is translated again.
///
/// The result holds for packets with the addresses, ports and TCP flags of `key`, which are in its
/// mask, as long as the tracker's results for them are those in `passes`. `None` if the program's
/// requests to the tracker differ from `passes`, if it sends the packet nowhere, or if all passes
/// together exceed a limit on steps.
pub fn translate_steady<'p>(
    program: &'p Program,
    key: &FlowKey,
    mut known: FlowMask,
    state: &impl LearnedState,
    passes: &[SteadyPass],
) -> Option<Translation<'p>> {
    known.union(&tuple_mask(key)?);
    let mut tracker = KnownPasses { passes: passes.iter(), differs: false };
    let translation = retranslate(program, key, known, state, &mut tracker);
    let is_complete = !tracker.differs && tracker.passes.len() == 0;
    (is_complete && translation.dropped().is_none() && !translation.is_transient)
        .then_some(translation)
}

/// The bits of a packet that, together with the zone, determine its connection. `None` for packets
/// that cannot be steady.
fn tuple_mask(key: &FlowKey) -> Option<FlowMask> {
    let mut mask = FlowMask::default();
    let addresses = match key.get(Field::EthType) {
        0x0800 => [Field::Ip4Src, Field::Ip4Dst],
        0x86dd => [Field::Ip6Src, Field::Ip6Dst],
        _ => return None,
    };
    let fields = [Field::EthType, Field::IpProto, Field::IpFrag, Field::TpSrc, Field::TpDst];
    fields.into_iter().chain(addresses).for_each(|field| mask.add(field));
    match key.get(Field::IpProto) {
        6 => mask.add_bits(Field::TcpFlags, TCP_FLAGS),
        17 => {}
        _ => return None,
    }
    (key.get(Field::IpFrag) == 0).then_some(mask)
}

/// Supplies known results in place of the tracker.
struct KnownPasses<'a> {
    passes: std::slice::Iter<'a, SteadyPass>,
    /// True if a request of the program differs from the known pass.
    differs: bool,
}

impl Observer for KnownPasses<'_> {
    const ENABLED: bool = false;

    fn event(&mut self, _: Event<'_>) {}

    fn track(&mut self, request: &TrackRequest<'_>) -> AfterTracking {
        match self.passes.next() {
            Some(pass) if is_same_request(pass, request) => AfterTracking::Known(pass.result),
            _ => {
                self.differs = true;
                AfterTracking::Suspend
            }
        }
    }
}

/// Whether the program's request to the tracker is the one of this pass.
fn is_same_request(pass: &SteadyPass, request: &TrackRequest<'_>) -> bool {
    pass.zone == request.zone
        && pass.nat.as_ref() == request.nat
        && pass.commit.as_ref() == request.commit
        && pass.fresh == request.fresh
        && pass.recirculates == request.recirculates
        && (request.is_last_step || !request.recirculates)
}
