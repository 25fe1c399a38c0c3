//! The self-check: compares megaflows that the datapath holds with the program.
//!
//! A megaflow serves every packet that agrees with it on the bits of its mask. So the program must
//! decide the same for a packet whose other bits are arbitrary, and must read no bit that the mask
//! lacks. Some faults would otherwise stay until the megaflow is idle: a mask that is too wide,
//! actions that nobody has revalidated, a damaged entry in a map of the kernel. They would give one
//! guest's packets the treatment of another's.
//!
//! Each sweep checks the next megaflows, so all of them are checked in turn. It checks so many that
//! a round takes [`ROUND`], but stops when it has used its share of a processor ([`SHARE`]). It
//! checks one in any case.

use crate::engine::{Engine, PublishedProgram, lock};
use crate::fusions::translate_megaflow;
use crate::revalidator::remove_records;
use datapath::megaflow::{Megaflow, MegaflowId};
use datapath::provider::{DatapathError, DumpCursor};
use flow::{Field, FlowKey, FlowMask, Match, ShowActions};
use pipeline::{LearnedState, Program};
use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant};

/// Megaflows read from the datapath at a time.
const CHECKED: usize = 64;
/// The time in which all megaflows are checked, if [`SHARE`] suffices.
const ROUND: Duration = Duration::from_secs(30);
/// Checks take at most this part of the time of one processor: a hundredth.
const SHARE: u32 = 100;

/// Where the next check begins, and the source of its random numbers.
#[derive(Debug, Default)]
pub(crate) struct SelfCheck {
    at: DumpCursor,
    /// Megaflows checked in this round, and in the last one. Each copy of a worker counts.
    in_round: usize,
    in_last_round: usize,
    random: ahash::RandomState,
    drawn: u64,
}

/// The fault of a megaflow.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// The entry in the fast path differs from what was installed.
    Damaged,
    /// The program reads bits that the mask lacks.
    MaskTooBroad(Box<FlowMask>),
    /// The program returns other actions.
    OtherActions(Vec<flow::Action>),
    /// The program tracks the packets of a fused megaflow differently.
    OtherPasses,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged => write!(f, "its entry in the fast path is not what was put there"),
            Self::MaskTooBroad(read) => {
                write!(
                    f,
                    "its mask lacks bits of {}",
                    Match::new(&FlowKey::default(), (**read).clone())
                )
            }
            Self::OtherActions(actions) => {
                write!(f, "the program says actions={}", ShowActions(actions))
            }
            Self::OtherPasses => write!(f, "the program tracks its packets in another way"),
        }
    }
}

impl SelfCheck {
    /// Counts checked megaflows, and moves on to `next`, or to the beginning of the next round.
    fn advance(&mut self, checked: usize, next: Option<DumpCursor>) {
        self.in_round += checked;
        if next.is_none() {
            self.in_last_round = std::mem::take(&mut self.in_round);
        }
        self.at = next.unwrap_or_default();
    }

    /// A packet that the megaflow serves. The bits outside its mask are random.
    fn packet(&mut self, condition: &Match) -> FlowKey {
        let exact = FlowMask::exact();
        // Megaflows of a first pass and of a later one are in different caches, and packets of a
        // first pass have no connection state.
        let is_first = condition.key().get(Field::RecircId) == 0;
        let valid = if is_first { exact.of_packet() } else { exact.of_recirculated() };
        let mut packet = condition.key().clone();
        let masks = valid.words().iter().zip(condition.mask().words());
        for (word, (valid, mask)) in packet.words_mut().iter_mut().zip(masks) {
            self.drawn += 1;
            *word |= self.random.hash_one(self.drawn) & valid & !mask;
        }
        packet
    }
}

/// Compares a megaflow with the decision of the program for one of its packets. The mask of a
/// megaflow that was carried over to this program is that of an earlier translation: it is right
/// for all packets, but a new translation may read other bits.
fn fault_of(
    program: &Program,
    learned: &impl LearnedState,
    megaflow: &Megaflow,
    (packet, is_carried): (&FlowKey, bool),
) -> Option<Fault> {
    let mask = megaflow.condition.mask();
    let Some(translation) = translate_megaflow(program, megaflow, packet, learned) else {
        return Some(Fault::OtherPasses);
    };
    // Neither is a fault: a megaflow stays when its learn event is refused, and its saved state may
    // end first.
    if !translation.learn_events.is_empty() || translation.is_transient {
        return None;
    }
    if !is_carried && !mask.covers(&translation.mask) {
        return Some(Fault::MaskTooBroad(Box::new(mask.missing_bits(&translation.mask))));
    }
    (*translation.actions != *megaflow.actions).then_some(Fault::OtherActions(translation.actions))
}

impl Engine {
    /// Checks the next megaflows of the datapath, and deletes those that are wrong. To be called in
    /// a sweep: no revalidation changes megaflows meanwhile.
    pub(crate) fn self_check(&self, published: &PublishedProgram) -> Result<(), DatapathError> {
        let end = Instant::now() + self.limits.revalidate / SHARE;
        let all = self.records().len().max(lock(&self.self_check).in_last_round);
        let share = self.limits.revalidate.as_secs_f64() / ROUND.as_secs_f64();
        // Nearly all pages of a large datapath are full. A small one is checked page by page, too,
        // because each page costs the workers that hold its megaflows.
        let pages = (all as f64 * share / CHECKED as f64).ceil() as usize;
        for _ in 0..pages.max(1) {
            let is_round_over = self.check_next(published, end)?;
            if is_round_over || Instant::now() >= end {
                break;
            }
        }
        Ok(())
    }

    /// Checks the megaflows of the next page until `end`, and at least one of them. Returns whether
    /// the round is over.
    fn check_next(
        &self,
        published: &PublishedProgram,
        end: Instant,
    ) -> Result<bool, DatapathError> {
        let mut check = lock(&self.self_check);
        let from = check.at;
        let (held, mut next) = self.datapath.dump(from, CHECKED)?;
        let held: Vec<(Megaflow, FlowKey)> = held
            .into_iter()
            .map(|(megaflow, _)| {
                let packet = check.packet(&megaflow.condition);
                (megaflow, packet)
            })
            .collect();
        let damaged = self.damaged(&held)?;
        let (all, mut checked, mut suspects) = (held.len(), 0, Vec::new());
        {
            let learned = self.learned();
            for (megaflow, packet) in held {
                let is_damaged = damaged.contains(&megaflow.id);
                let fault = || fault_of(&published.program, &*learned, &megaflow, (&packet, false));
                if is_damaged || fault().is_some() {
                    suspects.push((megaflow, packet));
                }
                checked += 1;
                if Instant::now() >= end {
                    break;
                }
            }
        }
        if checked < all {
            // The next sweep goes on behind the last one that was checked.
            (_, next) = self.datapath.dump(from, checked)?;
        }
        check.advance(checked, next);
        self.counters.self_checks.add(checked);
        drop(check);
        if !suspects.is_empty() {
            self.delete_wrong(published, from, suspects)?;
        }
        Ok(next.is_none())
    }

    fn damaged(&self, held: &[(Megaflow, FlowKey)]) -> Result<HashSet<MegaflowId>, DatapathError> {
        let ids: Vec<_> = held.iter().map(|(megaflow, _)| megaflow.id).collect();
        Ok(self.datapath.damaged(&ids)?.into_iter().collect())
    }

    /// Checks the suspects again, and deletes those that are certainly wrong. During the first
    /// check, the program, learned state or the datapath may have changed.
    fn delete_wrong(
        &self,
        published: &PublishedProgram,
        from: DumpCursor,
        mut suspects: Vec<(Megaflow, FlowKey)>,
    ) -> Result<(), DatapathError> {
        let mut wrong = Vec::new();
        let removed = {
            // The datapath changes only while this lock is held.
            let mut records = self.records();
            if records.is_outdated(published.number) {
                return Ok(());
            }
            let (held, _) = self.datapath.dump(from, CHECKED)?;
            suspects.retain(|(suspect, _)| held.iter().any(|(held, _)| held == suspect));
            let damaged = self.damaged(&suspects)?;
            let learned = self.learned();
            for (megaflow, packet) in &suspects {
                let Some(origin) = records.origin(megaflow.id) else { continue };
                if !origin.is_current(published.number, &learned) {
                    continue;
                }
                let fault = if damaged.contains(&megaflow.id) {
                    Some(Fault::Damaged)
                } else {
                    let packet = (packet, origin.is_carried);
                    fault_of(&published.program, &*learned, megaflow, packet)
                };
                wrong.extend(fault.map(|fault| (megaflow, packet, fault)));
            }
            let ids: Vec<_> = wrong.iter().map(|(megaflow, ..)| megaflow.id).collect();
            remove_records(&mut records, &ids)
        };
        self.counters.self_check_faults.add(wrong.len());
        if let Some((megaflow, packet, fault)) = wrong.first() {
            messages::log!(
                WRONG_MEGAFLOW,
                faults = wrong.len(),
                generation = published.number,
                "self-check: deleted a wrong megaflow: {fault}. Please report this line. \
                 Megaflow: {}, actions={}. Packet: {packet}",
                megaflow.condition,
                ShowActions(&megaflow.actions),
            );
        }
        self.delete(removed)
    }
}
