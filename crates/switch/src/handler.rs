//! Packets that came up: translated, answered, and cached where the limits allow.

use crate::engine::{Engine, Published};
use crate::origin::{Candidate, MaskNo};
use crate::records::{Entered, Records, Tenths};
use datapath::megaflow::{Megaflow, MegaflowId};
use datapath::provider::DatapathError;
use datapath::upcall::{Answer, Upcall, UpcallReason, WorkerId};
use flow::{Action, FlowKey, FlowMask, Match};
use pipeline::{Translation, translate};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// All that a packet brings: right for whatever its translation has read, and one mask for all.
static EXACT: LazyLock<FlowMask> = LazyLock::new(|| FlowMask::exact().of_packet());

/// What is done with packets like one of the batch.
struct Decision<'p> {
    worker: WorkerId,
    candidate: Candidate<'p>,
    megaflow: Megaflow,
    /// The whole key of the packet.
    key: FlowKey,
    /// How many packets of the batch there are, and their bytes: no megaflow counts them.
    packets: u64,
    bytes: u64,
    /// False once the megaflow is given to the worker, or refused.
    is_new: bool,
    /// The megaflow that is on record for it.
    recorded: Option<MegaflowId>,
}

impl Decision<'_> {
    fn count(&self) {
        self.candidate.flows.iter().for_each(|flow| flow.counters.add(self.packets, self.bytes));
    }
}

impl Engine {
    /// Answers packets that came up, at `now`, and leaves `upcalls` empty. All of them are translated by one generation of the
    /// program; what is learnt from one is known to the next.
    ///
    /// # Errors
    /// The datapath has ended.
    pub fn handle(&self, upcalls: &mut Vec<Upcall>, now: Instant) -> Result<(), DatapathError> {
        let published = self.published();
        let mut decisions: Vec<Decision<'_>> = Vec::new();
        let mut decided: Vec<(Upcall, usize)> = Vec::with_capacity(upcalls.len());
        for upcall in upcalls.drain(..) {
            if upcall.reason == UpcallReason::Controller {
                self.counters.controller.add(1);
                continue;
            }
            let at = self.find(&decisions, &upcall).unwrap_or_else(|| {
                decisions.push(self.decide(&published, &upcall, now));
                decisions.len() - 1
            });
            if let Some(decision) = decisions.get_mut(at) {
                decision.packets += 1;
                decision.bytes += upcall.packet.len() as u64;
            }
            decided.push((upcall, at));
        }
        if decided.is_empty() {
            return Ok(());
        }
        self.counters.upcalls.add(decided.len());
        self.counters.reused.add(decided.len() - decisions.len());
        decisions.iter().for_each(Decision::count);
        let created = Tenths::of_ms(self.datapath.now_ms());
        // Held until the datapath has the answers: see `Engine`.
        let mut records = self.records();
        let answers = decided.into_iter().filter_map(|(upcall, at)| {
            let decision = decisions.get_mut(at)?;
            let megaflow = self.enter(&mut records, decision, created).map(Box::new);
            let actions = Arc::clone(&decision.megaflow.actions);
            Some(Answer { upcall, actions, megaflow, decided_by: decision.recorded })
        });
        let answers: Vec<Answer> = answers.collect();
        self.datapath.answer(answers)
    }

    /// The decision about a packet just before that this one shares.
    fn find(&self, decisions: &[Decision<'_>], upcall: &Upcall) -> Option<usize> {
        let at = decisions.iter().rposition(|decision| {
            decision.worker == upcall.worker && matches(&decision.megaflow.condition, &upcall.key)
        })?;
        // A packet in between may have taught something else.
        let candidate = &decisions.get(at)?.candidate;
        let is_current = candidate.asked.is_empty() || candidate.is_current(&self.learned());
        is_current.then_some(at)
    }

    fn decide<'p>(&self, published: &'p Published, upcall: &Upcall, now: Instant) -> Decision<'p> {
        let mut translation = self.translate_and_learn(published, &upcall.key, now);
        let actions: Arc<[Action]> = std::mem::take(&mut translation.actions).into();
        let mask = MaskNo::of(&translation.mask);
        let whose = (upcall.port, mask);
        Decision {
            worker: upcall.worker,
            candidate: Candidate::new(whose, published.number, &translation, &upcall.key),
            megaflow: Megaflow::new(Match::new(&upcall.key, translation.mask), actions),
            key: upcall.key.clone(),
            packets: 0,
            bytes: 0,
            is_new: true,
            recorded: None,
        }
    }

    /// Translates; once more when the packet has taught something, because what it does now is what the packets that follow are
    /// to do.
    fn translate_and_learn<'p>(
        &self,
        published: &'p Published,
        key: &FlowKey,
        now: Instant,
    ) -> Translation<'p> {
        let first = translate(&published.program, key, &*self.learned(), &mut ());
        if first.lessons.is_empty() {
            return first;
        }
        let learnt = {
            let mut learned = self.learned_mut();
            first.lessons.iter().filter(|lesson| learned.learn(**lesson, now)).count()
        };
        if learnt == 0 {
            return first;
        }
        self.counters.lessons.add(learnt);
        self.alarm.changed();
        translate(&published.program, key, &*self.learned(), &mut ())
    }

    /// Puts the megaflow of a decision on record. `None` when the datapath is not to have it.
    fn enter(
        &self,
        records: &mut Records,
        decision: &mut Decision<'_>,
        now: Tenths,
    ) -> Option<Megaflow> {
        if !std::mem::replace(&mut decision.is_new, false) {
            return None;
        }
        let candidate = &mut decision.candidate;
        // Nothing is looked up among the decisions any more.
        let condition = std::mem::take(&mut decision.megaflow.condition);
        let mut megaflow = Megaflow { condition, ..decision.megaflow.clone() };
        if !records.takes_mask(candidate.port, candidate.mask) {
            self.counters.mask_limited.add(1);
            candidate.mask = MaskNo::EXACT;
            let condition = Match::new(&decision.key, EXACT.clone());
            megaflow = Megaflow::new(condition, megaflow.actions);
        }
        match records.enter(megaflow.id, candidate, now) {
            Entered::New | Entered::Again => {
                self.counters.put.add(1);
                decision.recorded = Some(megaflow.id);
                return Some(megaflow);
            }
            Entered::Outdated => self.counters.outdated.add(1),
            Entered::Full => self.counters.refused.add(1),
        }
        None
    }
}

/// As [`Match::matches`], beginning with what connections differ in.
fn matches(condition: &Match, key: &FlowKey) -> bool {
    let words = condition.key().words().iter().zip(key.words()).zip(condition.mask().words());
    words.rev().all(|((a, b), mask)| (a ^ b) & mask == 0)
}
