//! Mask soundness, on random programs and packets.
//!
//! A megaflow serves every packet that agrees with the translated one on the bits of the mask. So a
//! translation of any such packet must give the same actions, make the same queries and hit the
//! same flows. The actions must also do what the translation reported: executed on the packet, they
//! send the headers that the observer saw.
//!
//! `WEFT_CASES` is the number of packets; `cargo xtask soundness` sets it to ten million. A failure
//! prints the seed; set `WEFT_SEED` to it to repeat the failure.

mod execute;
mod program;

use execute::{SentPacket, execute_actions};
use flow::{FlowKey, WORDS};
use pipeline::{Event, LearnedTables, Observer, Program, Translation, translate};
use std::collections::BTreeSet;
use testkit::random::{Random, environment};

/// Packets for one program.
const PACKETS: u64 = 64;
/// Other packets of the same megaflow, for each packet.
const SIBLINGS: usize = 4;

#[derive(Default)]
struct SentRecorder(Vec<SentPacket>);

impl Observer for SentRecorder {
    fn event(&mut self, event: Event<'_>) {
        match event {
            // Tags of a link are pushed and popped without changing the key.
            Event::Output { port, .. } if port.0 >= program::UPLINK => {}
            Event::Output { port, key, .. } => self.0.push(SentPacket::new(port.0, key)),
            Event::Encap { endpoint, key, .. } => self.0.push(SentPacket::new(!endpoint.0, key)),
            _ => {}
        }
    }
}

#[test]
fn packets_of_one_megaflow_have_one_translation() {
    let cases = environment("WEFT_CASES", 60_000);
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
        let key = program::packet(&mut random, logical);
        check(&program, &learned, &key, &mut random, &mut seen)
            .unwrap_or_else(|fault| panic!("WEFT_SEED={seed}: {fault}"));
    }
    seen
}

/// What the cases covered, so that the test fails when it becomes trivial.
#[derive(Default)]
struct Coverage {
    cases: u64,
    sent: u64,
    several_copies: u64,
    changed: u64,
    unread_bits: u64,
    hits: u64,
}

impl Coverage {
    fn and(mut self, other: Self) -> Self {
        self.cases += other.cases;
        self.sent += other.sent;
        self.several_copies += other.several_copies;
        self.changed += other.changed;
        self.unread_bits += other.unread_bits;
        self.hits += other.hits;
        self
    }

    fn note(&mut self, key: &FlowKey, translation: &Translation<'_>, sent: &BTreeSet<SentPacket>) {
        self.cases += 1;
        self.sent += u64::from(!sent.is_empty());
        self.several_copies += u64::from(sent.len() > 1);
        self.changed += u64::from(sent.iter().any(|sent| sent.differs_from(key)));
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
        assert!(
            share(self.unread_bits) > 200.0,
            "few bits are unread: {}",
            share(self.unread_bits)
        );
        assert!(share(self.hits) > 2.0, "few flows are hit: {}", share(self.hits));
    }
}

fn check(
    program: &Program,
    learned: &LearnedTables,
    key: &FlowKey,
    random: &mut Random,
    seen: &mut Coverage,
) -> Result<(), String> {
    let mut recorder = SentRecorder::default();
    let translation = translate(program, key, learned, &mut recorder);
    if translation.actions.is_empty() {
        return Err(format!("no action for {key}"));
    }
    // An aborted translation sends nothing, also if it has reported output before.
    let aborted = matches!(
        translation.dropped(),
        Some(flow::DropReason::TranslationSteps | flow::DropReason::TranslationDepth)
    );
    let reported: BTreeSet<SentPacket> =
        if aborted { BTreeSet::new() } else { recorder.0.into_iter().collect() };
    let sent = execute_actions(&translation.actions, key);
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
    Ok(())
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
    let valid = flow::FlowMask::exact().of_packet();
    let mut sibling = key.clone();
    for at in 0..WORDS {
        let free = valid.words()[at] & !translation.mask.words()[at];
        sibling.words_mut()[at] = key.words()[at] & !free | other.words()[at] & free;
    }
    sibling
}
