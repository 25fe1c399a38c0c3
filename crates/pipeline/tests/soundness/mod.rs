//! Mask soundness, on random programs and packets.
//!
//! A megaflow serves every packet that agrees with the translated one on the bits of the mask. So a
//! translation of any such packet must give the same actions, make the same queries and hit the
//! same flows. The actions must also do what the translation reported: executed on the packet, they
//! send the headers that the observer saw.
//!
//! A packet that passes the connection tracker is translated once more for each pass, with the
//! connection state in its key. All passes together must send what one translation sends that
//! assumes this state and does not stop at the tracker.
//!
//! `WEFT_CASES` is the number of packets; `cargo xtask soundness` sets it to ten million. A failure
//! prints the seed; set `WEFT_SEED` to it to repeat the failure.

mod bridge;
mod carry;
mod clients;
mod execute;
mod program;

use execute::{SentPacket, execute_actions};
use flow::{
    Action, Field, FlowKey, FlowMask, PACKET_WORDS, Rewrite, SteadyPass, TrackResult, WORDS,
};
use pipeline::{
    AfterTracking, Event, LearnedTables, Observer, Program, TrackRequest, Translation, translate,
    translate_steady,
};
use std::collections::BTreeSet;
use std::net::IpAddr;
use testkit::random::{Random, environment};

/// Packets for each program.
const PACKETS: u64 = 64;
/// Other packets of the same megaflow, for each packet.
const SIBLINGS: usize = 4;
/// TCP and UDP variants of each tracked packet.
const STREAMS: usize = 2;

/// Records the packets that are sent.
#[derive(Default)]
struct SentRecorder {
    sent: Vec<SentPacket>,
    /// The `ct_state` to assume; `None` to stop at the connection tracker.
    ct_state: Option<u8>,
}

impl Observer for SentRecorder {
    fn track(&mut self, _: &TrackRequest<'_>) -> AfterTracking {
        self.ct_state.map_or(AfterTracking::Suspend, AfterTracking::Assume)
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            // Tags of a link are pushed and popped without changing the key.
            Event::Output { port, .. } if port.0 >= program::UPLINK => {}
            Event::Output { port, key, .. } => self.sent.push(SentPacket::new(port.0, key)),
            Event::Encap { endpoint, key, .. } => self.sent.push(SentPacket::new(!endpoint.0, key)),
            _ => {}
        }
    }
}

#[test]
fn packets_of_one_megaflow_have_one_translation() {
    let cases = environment("WEFT_CASES", 30_000);
    let first = environment("WEFT_SEED", 1);
    let seeds = first..first + cases.div_ceil(PACKETS);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut seen = Coverage::default();
    std::thread::scope(|scope| {
        let share = |thread| {
            let seeds = seeds.clone().skip(thread).step_by(threads);
            move || seeds.map(check_program).fold(Coverage::default(), Coverage::and)
        };
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(share(thread))).collect();
        for thread in running {
            match thread.join() {
                Ok(part) => seen = std::mem::take(&mut seen).and(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    seen.assert_not_trivial();
}

/// Checks packets on the program of this seed: a logical network for an even seed, else a bridge.
fn check_program(seed: u64) -> Coverage {
    let logical = seed.is_multiple_of(2);
    let mut random = Random::new(seed);
    let mut seen = Coverage::default();
    let (program, learned) = program::program(&mut random, logical);
    for _ in 0..PACKETS {
        let mut key = program::packet(&mut random, logical);
        let mut check = |key: &FlowKey, random: &mut Random| {
            check_passes(&program, &learned, key, random, &mut seen)
                .unwrap_or_else(|fault| panic!("WEFT_SEED={seed}: {fault}"))
        };
        // Few packets are both tracked and of a protocol whose passes can be fused.
        if check(&key, &mut random) > 1 && matches!(key.get(Field::EthType), 0x0800 | 0x86dd) {
            for _ in 0..STREAMS {
                key.set(Field::IpFrag, 0);
                key.set(Field::IpProto, random.pick(&[6, 17]));
                check(&key, &mut random);
            }
        }
    }
    seen
}

/// The coverage of the test cases, so that the test fails when it becomes trivial.
#[derive(Default)]
struct Coverage {
    cases: u64,
    sent: u64,
    several_copies: u64,
    changed: u64,
    served: u64,
    unread_bits: u64,
    hits: u64,
    later_passes: u64,
    compared_passes: u64,
    fused: u64,
}

impl Coverage {
    fn and(mut self, other: Self) -> Self {
        self.cases += other.cases;
        self.sent += other.sent;
        self.several_copies += other.several_copies;
        self.changed += other.changed;
        self.served += other.served;
        self.unread_bits += other.unread_bits;
        self.hits += other.hits;
        self.later_passes += other.later_passes;
        self.compared_passes += other.compared_passes;
        self.fused += other.fused;
        self
    }

    fn note(&mut self, key: &FlowKey, translation: &Translation<'_>, sent: &BTreeSet<SentPacket>) {
        self.cases += 1;
        self.sent += u64::from(!sent.is_empty());
        self.several_copies += u64::from(sent.len() > 1);
        self.changed += u64::from(sent.iter().any(|sent| sent.differs_from(key)));
        let is_served = |action: &flow::Action| matches!(action, flow::Action::Serve { .. });
        self.served += u64::from(translation.actions.iter().any(is_served));
        self.hits += translation.flows.len() as u64;
        let packet_bits: u32 =
            flow::FlowMask::exact().of_packet().words().iter().map(|w| w.count_ones()).sum();
        let read_bits: u32 = translation.mask.words().iter().map(|w| w.count_ones()).sum();
        self.unread_bits += u64::from(packet_bits - read_bits);
    }

    fn assert_not_trivial(&self) {
        let share = |part: u64| part as f64 / self.cases as f64;
        assert!(share(self.sent) > 0.2, "few packets are sent: {}", share(self.sent));
        assert!(
            share(self.several_copies) > 0.03,
            "few have copies: {}",
            share(self.several_copies)
        );
        assert!(share(self.changed) > 0.15, "few are changed: {}", share(self.changed));
        assert!(share(self.served) > 0.005, "few are served: {}", share(self.served));
        assert!(
            share(self.unread_bits) > 200.0,
            "few bits are unread: {}",
            share(self.unread_bits)
        );
        assert!(share(self.later_passes) > 0.05, "few are tracked: {}", share(self.later_passes));
        assert!(
            self.compared_passes * 50 > self.cases,
            "few are compared: {}",
            self.compared_passes
        );
        assert!(share(self.fused) > 0.0008, "few are fused: {}", share(self.fused));
        assert!(share(self.hits) > 2.0, "few flows are hit: {}", share(self.hits));
    }
}

/// The maximum number of passes of a packet that are checked, including those of copies.
const MAX_PASSES: usize = 24;

/// Checks all passes of a packet, one by one and together. Returns their number.
fn check_passes(
    program: &Program,
    learned: &LearnedTables,
    key: &FlowKey,
    random: &mut Random,
    seen: &mut Coverage,
) -> Result<usize, String> {
    let ct_state: u8 = 0x20 | random.pick(&[0x01, 0x02, 0x0a, 0x10, 0x04]);
    let mut sent = BTreeSet::new();
    let mut waiting = vec![key.clone()];
    // The translations keep the saved states alive.
    let mut passes: Vec<Translation<'_>> = Vec::new();
    while let Some(key) = waiting.pop() {
        let (translation, sent_here, next) = check(program, learned, &key, random, seen)?;
        sent.extend(sent_here);
        let zones: Vec<u16> = zones_of(&translation.actions);
        for (mut pass, zone) in next.into_iter().zip(zones) {
            // The datapath restores the metadata, and extracts the headers anew.
            let [metadata, _] = PACKET_WORDS;
            pass.words_mut()[metadata.clone()].copy_from_slice(&key.words()[metadata]);
            pass.set(Field::CtState, ct_state.into());
            pass.set(Field::CtZone, zone.into());
            waiting.push(pass);
        }
        passes.push(translation);
        if passes.len() > MAX_PASSES {
            return Ok(passes.len());
        }
    }
    seen.later_passes += passes.len() as u64 - 1;
    check_fused(program, learned, (key, &passes, ct_state, &sent), random, seen)?;
    // Limits apply to each pass, so a packet that exceeds one cannot be compared.
    let is_whole = |translation: &Translation<'_>| !is_aborted(translation);
    let mut recorder = SentRecorder { ct_state: Some(ct_state), ..SentRecorder::default() };
    let inline = translate(program, key, learned, &mut recorder);
    if passes.len() == 1 || !is_whole(&inline) || !passes.iter().all(is_whole) {
        return Ok(passes.len());
    }
    seen.compared_passes += 1;
    let expected: BTreeSet<SentPacket> = recorder.sent.into_iter().collect();
    if sent != expected {
        let passes: Vec<_> =
            passes.iter().map(|pass| flow::ShowActions(&pass.actions).to_string()).collect();
        return Err(format!("{key}\n passes {passes:#?} send\n {sent:?}\n inline {expected:?}"));
    }
    Ok(passes.len())
}

/// Checks that the fused megaflow of a packet does what its passes do, one by one, and that its
/// mask is sound.
fn check_fused(
    program: &Program,
    learned: &LearnedTables,
    (key, passes, ct_state, sent): (&FlowKey, &[Translation<'_>], u8, &BTreeSet<SentPacket>),
    random: &mut Random,
    seen: &mut Coverage,
) -> Result<(), String> {
    let actions = passes.iter().flat_map(|pass| &pass.actions);
    let tracked: Vec<SteadyPass> = actions
        .filter_map(|action| {
            let flow::Action::Ct(action) = action else { return None };
            let result = TrackResult { state: ct_state, ..TrackResult::default() };
            Some(SteadyPass {
                zone: action.zone,
                nat: action.nat,
                commit: action.commit,
                fresh: action.fresh,
                recirculates: action.recirculation.is_some(),
                result,
            })
        })
        .collect();
    let fuse = |key: &FlowKey, tracked: &[SteadyPass]| {
        translate_steady(program, key, FlowMask::default(), learned, tracked)
    };
    let Some(fused) = fuse(key, &tracked).filter(|_| !tracked.is_empty()) else { return Ok(()) };
    seen.fused += 1;
    let show = |translation: &Translation<'_>| flow::ShowActions(&translation.actions).to_string();
    let (fused_sent, rest) = execute_actions(&fused.actions, key);
    if !rest.is_empty() || fused_sent != *sent {
        let passes: Vec<_> = passes.iter().map(show).collect();
        return Err(format!(
            "{key}\n passes {passes:#?} send\n {sent:?}\n fused {}\n {fused_sent:?}",
            show(&fused)
        ));
    }
    check_fused_mask(key, (&tracked, &fused), &fuse, random)?;
    // The reference executor performs no NAT, so for these results only the masks are checked.
    let translated: Vec<SteadyPass> = tracked
        .into_iter()
        .map(|pass| SteadyPass { result: random_result(&pass.result, key, random), ..pass })
        .collect();
    match fuse(key, &translated) {
        Some(fused) => check_fused_mask(key, (&translated, &fused), &fuse, random),
        None => Ok(()),
    }
}

/// A result with a random mark and label, and a random translation of addresses.
fn random_result(result: &TrackResult, key: &FlowKey, random: &mut Random) -> TrackResult {
    let v4 = key.get(Field::EthType) == 0x0800;
    let address = |random: &mut Random| {
        let word = random.word();
        let ip: IpAddr = match v4 {
            true => (word as u32).to_be_bytes().into(),
            false => u128::from(word).to_be_bytes().into(),
        };
        random.once_in(2).then_some(ip)
    };
    let (src, dst) = (address(random), address(random));
    let port = |random: &mut Random| {
        let port = random.word() as u16;
        random.once_in(2).then_some(port)
    };
    let (src_port, dst_port) = (port(random), port(random));
    let mark = random.below(4) as u32;
    let label = random.below(4) as u128;
    TrackResult { mark, label, rewrite: Rewrite { src, dst, src_port, dst_port }, ..*result }
}

/// Fuses these passes of a packet.
type Fuse<'f, 'p> = dyn Fn(&FlowKey, &[SteadyPass]) -> Option<Translation<'p>> + 'f;

/// Checks that the fused megaflow is right for packets that agree on the bits of its mask.
fn check_fused_mask<'p>(
    key: &FlowKey,
    (tracked, fused): (&[SteadyPass], &Translation<'p>),
    fuse: &Fuse<'_, 'p>,
    random: &mut Random,
) -> Result<(), String> {
    let show = |translation: &Translation<'_>| flow::ShowActions(&translation.actions).to_string();
    for _ in 0..SIBLINGS {
        let sibling = sibling(key, fused, random);
        let other = fuse(&sibling, tracked);
        if other.as_ref().is_none_or(|other| {
            other.actions != fused.actions || other.dependencies != fused.dependencies
        }) {
            let other = other.as_ref().map(show);
            return Err(format!(
                "fused mask {}\n {key}\n  -> {}\n {sibling}\n  -> {other:?}",
                fused.mask,
                show(fused)
            ));
        }
    }
    Ok(())
}

/// The zones of the actions that begin another pass, in the order of [`execute_actions`].
fn zones_of(actions: &[flow::Action]) -> Vec<u16> {
    let nested = actions.iter().map(|action| match action {
        flow::Action::Ct(action) if action.recirculation.is_some() => vec![action.zone],
        flow::Action::Clone(actions) | flow::Action::Reply { actions, .. } => zones_of(actions),
        flow::Action::CheckLength { larger, otherwise, .. } => {
            [zones_of(larger), zones_of(otherwise)].concat()
        }
        flow::Action::Serve { answered, otherwise, .. } => {
            answered.iter().chain([otherwise]).flat_map(|list| zones_of(list)).collect()
        }
        _ => Vec::new(),
    });
    nested.flatten().collect()
}

/// True for a translation that has exceeded a limit.
fn is_aborted(translation: &Translation<'_>) -> bool {
    use flow::DropReason::{TranslationDepth, TranslationSteps};
    matches!(translation.dropped(), Some(TranslationSteps | TranslationDepth))
}

type Checked<'p> = (Translation<'p>, BTreeSet<SentPacket>, Vec<FlowKey>);

fn check<'p>(
    program: &'p Program,
    learned: &LearnedTables,
    key: &FlowKey,
    random: &mut Random,
    seen: &mut Coverage,
) -> Result<Checked<'p>, String> {
    let mut recorder = SentRecorder::default();
    let translation = translate(program, key, learned, &mut recorder);
    if !sends_or_drops(&translation.actions) {
        let actions = flow::ShowActions(&translation.actions);
        return Err(format!(
            "{key}\n {actions}\n neither sends nor drops it, so nothing is counted"
        ));
    }
    // An aborted translation sends nothing, even if it has reported output before.
    let aborted = is_aborted(&translation);
    let reported: BTreeSet<SentPacket> =
        if aborted { BTreeSet::new() } else { recorder.sent.into_iter().collect() };
    let (sent, passes) = execute_actions(&translation.actions, key);
    if sent != reported {
        let actions = flow::ShowActions(&translation.actions);
        return Err(format!("{key}\n {actions}\n sends    {sent:?}\n reported {reported:?}"));
    }
    seen.note(key, &translation, &sent);
    for _ in 0..SIBLINGS {
        let sibling = sibling(key, &translation, random);
        let other = translate(program, &sibling, learned, &mut ());
        let same = other.actions == translation.actions
            && other.dependencies == translation.dependencies
            && other.learn_events == translation.learn_events
            && other.ingress == translation.ingress
            && other.flows.iter().map(|f| f.id).eq(translation.flows.iter().map(|f| f.id));
        if !same {
            return Err(format!(
                "mask {}\n {key}\n  -> {}\n {sibling}\n  -> {}",
                translation.mask,
                flow::ShowActions(&translation.actions),
                flow::ShowActions(&other.actions),
            ));
        }
    }
    Ok((translation, sent, passes))
}

/// True if every path through the actions sends the packet or drops it with a reason.
fn sends_or_drops(actions: &[Action]) -> bool {
    actions.iter().any(|action| match action {
        Action::Output(_) | Action::Encap { .. } | Action::Drop(_) | Action::Controller => true,
        Action::Ct(action) => action.recirculation.is_some(),
        Action::Clone(actions) | Action::Reply { actions, .. } => sends_or_drops(actions),
        Action::CheckLength { larger, otherwise, .. } => {
            sends_or_drops(larger) && sends_or_drops(otherwise)
        }
        Action::Serve { answered, otherwise, .. } => {
            sends_or_drops(otherwise) && answered.iter().all(|actions| sends_or_drops(actions))
        }
        _ => false,
    })
}

/// Another packet that agrees on all bits read. Its other bits are flipped (some or all), or taken
/// from another random packet.
fn sibling(key: &FlowKey, translation: &Translation<'_>, random: &mut Random) -> FlowKey {
    let other = match random.below(3) {
        0 => {
            let logical = random.once_in(2);
            program::packet(random, logical)
        }
        1 => {
            let mut all = FlowKey::default();
            (0..WORDS).for_each(|at| all.words_mut()[at] = !key.words()[at]);
            all
        }
        _ => {
            let mut some = key.clone();
            for _ in 0..=random.below(3) {
                some.words_mut()[random.below(WORDS)] ^= 1 << random.below(64);
            }
            some
        }
    };
    // Packets in a first pass and packets in a later one never share a megaflow.
    let exact = FlowMask::exact();
    let is_first = key.get(Field::RecircId) == 0;
    let valid = if is_first { exact.of_packet() } else { exact.of_recirculated() };
    let mut sibling = key.clone();
    for at in 0..WORDS {
        let free = valid.words()[at] & !translation.mask.words()[at];
        sibling.words_mut()[at] = key.words()[at] & !free | other.words()[at] & free;
    }
    sibling
}
