//! Packets that came up: translated, answered, and cached where the limits allow.

use crate::engine::{Engine, Published};
use crate::origin::{Candidate, MaskNo, Refused};
use crate::probe::arrived;
use crate::records::{Entered, Records, Tenths};
use datapath::megaflow::{Megaflow, MegaflowId};
use datapath::provider::DatapathError;
use datapath::upcall::{Answer, Upcall, UpcallReason, WorkerId};
use flow::{Action, FlowKey, FlowMask, Match, PortNo};
use pipeline::{IngressPort, LearnEvent, Translation, translate};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// All that a packet brings: right for whatever its translation has read, and one mask for all.
static EXACT: LazyLock<FlowMask> = LazyLock::new(|| FlowMask::exact().of_packet());

/// A packet is translated so many times more at most: what it teaches may lead it to where it teaches something else, and it may
/// contradict itself.
const MOST_LESSONS: usize = 4;

/// What is done with packets like one of the batch.
pub(crate) struct Decision<'p> {
    worker: WorkerId,
    candidate: Candidate<'p>,
    actions: Arc<[Action]>,
    /// For the worker; `None` once it has been given away, or refused.
    pub(crate) megaflow: Option<Box<Megaflow>>,
    /// How many packets of the batch there are, and their bytes: no megaflow counts them.
    packets: u64,
    bytes: u64,
    /// The megaflow that is on record for it.
    recorded: Option<MegaflowId>,
}

impl<'p> Decision<'p> {
    /// About packets of this worker, of one with `key`. Lessons that are left were refused.
    pub(crate) fn new(
        published: &'p Published,
        worker: WorkerId,
        key: &FlowKey,
        translation: Translation<'p>,
    ) -> Self {
        let Translation { mask, actions, dependencies, learn_events, ingress, flows } = translation;
        let refused = Refused::new(learn_events, ingress);
        let actions: Arc<[Action]> = actions.into();
        let condition = Match::new(key, mask);
        // Of all packets of the megaflow, or two workers with one each would have two origins for it.
        let key = condition.key();
        Decision {
            worker,
            candidate: Candidate::new(published.number, flows, &dependencies, refused, key),
            megaflow: Some(Box::new(Megaflow::new(condition, Arc::clone(&actions)))),
            actions,
            packets: 0,
            bytes: 0,
            recorded: None,
        }
    }

    /// True for packets of which the same is to be done.
    fn is_for(&self, upcall: &Upcall) -> bool {
        let megaflow = self.megaflow.as_deref();
        self.worker == upcall.worker
            && megaflow.is_some_and(|megaflow| matches(&megaflow.condition, &upcall.key))
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
        let mut decisions: Vec<Decision<'_>> = Vec::with_capacity(upcalls.len());
        let mut decided: Vec<(Upcall, usize)> = Vec::with_capacity(upcalls.len());
        for upcall in upcalls.drain(..) {
            if upcall.reason == UpcallReason::Controller {
                self.counters.controller.add(1);
                continue;
            }
            if let Some(probe) = arrived(&upcall) {
                self.counters.probes.add(1);
                if let Some(receiver) = self.probes.get() {
                    // Who asked asks again.
                    let _ = receiver.try_send(probe);
                }
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
        let created = Tenths::of_ms(self.datapath.now_ms());
        // Held until the datapath has the answers: see `Engine`.
        let mut records = self.records();
        let answers = decided.into_iter().filter_map(|(upcall, at)| {
            let decision = decisions.get_mut(at)?;
            let megaflow = decision.megaflow.take();
            let megaflow = megaflow.and_then(|new| {
                self.enter(&mut records, decision, new, (upcall.port, &upcall.key), created)
            });
            let actions = Arc::clone(&decision.actions);
            Some(Answer { upcall, actions, megaflow, decided_by: decision.recorded })
        });
        let answers: Vec<Answer> = answers.collect();
        self.datapath.answer(answers)
    }

    /// The decision about a packet just before that this one shares.
    fn find(&self, decisions: &[Decision<'_>], upcall: &Upcall) -> Option<usize> {
        let at = decisions.iter().rposition(|decision| decision.is_for(upcall))?;
        // A packet in between may have taught something else.
        let candidate = &decisions.get(at)?.candidate;
        let is_current = candidate.asked.is_empty() || candidate.is_current(&self.learned());
        is_current.then_some(at)
    }

    fn decide<'p>(&self, published: &'p Published, upcall: &Upcall, now: Instant) -> Decision<'p> {
        let translation = self.translate_and_learn(published, &upcall.key, now);
        Decision::new(published, upcall.worker, &upcall.key, translation)
    }

    /// Translates; again when the packet has taught something, because what is done with it now is what is to be done with those
    /// that follow. What is left to be learnt was refused.
    fn translate_and_learn<'p>(
        &self,
        published: &'p Published,
        key: &FlowKey,
        now: Instant,
    ) -> Translation<'p> {
        let again = || translate(&published.program, key, &*self.learned(), &mut ());
        let mut translation = again();
        for _ in 0..MOST_LESSONS {
            let Translation { learn_events: lessons, ingress: teacher, .. } = &translation;
            if lessons.is_empty() || self.learn(lessons, *teacher, now) == 0 {
                return translation;
            }
            translation = again();
        }
        // Nobody has refused these: there seems to be no end of them.
        translation.learn_events.clear();
        translation
    }

    /// Learns, and says how much: what is refused is not learnt.
    pub(crate) fn learn(
        &self,
        lessons: &[LearnEvent],
        teacher: IngressPort,
        now: Instant,
    ) -> usize {
        let learnt = {
            let mut learned = self.learned_mut();
            let learnt = lessons.iter().filter(|l| learned.learn(**l, teacher, now).is_ok());
            learnt.count()
        };
        if learnt > 0 {
            self.counters.lessons.add(learnt);
            self.alarm.changed();
        }
        learnt
    }

    /// Puts the megaflow of a decision on record; port and key are those of the first of its packets. `None` when the datapath is not to have it.
    pub(crate) fn enter(
        &self,
        records: &mut Records,
        decision: &mut Decision<'_>,
        mut megaflow: Box<Megaflow>,
        (port, key): (PortNo, &FlowKey),
        now: Tenths,
    ) -> Option<Box<Megaflow>> {
        let mut mask = Some(MaskNo::of(megaflow.condition.mask()));
        if !mask.is_some_and(|mask| records.takes_mask(port, mask)) {
            self.counters.mask_limited.add(1);
            mask = None;
            let condition = Match::new(key, EXACT.clone());
            *megaflow = Megaflow::new(condition, Arc::clone(&decision.actions));
        }
        let candidate = &decision.candidate;
        let (packets, bytes) = (decision.packets, decision.bytes);
        match records.enter(megaflow.id, (port, mask), candidate, now) {
            Entered::Here(origin) => {
                origin.add(packets, bytes);
                self.counters.put.add(1);
                decision.recorded = Some(megaflow.id);
                return Some(megaflow);
            }
            Entered::Outdated => self.counters.outdated.add(1),
            Entered::Full => self.counters.refused.add(1),
        }
        candidate.flows.iter().for_each(|flow| flow.counters.add(packets, bytes));
        None
    }
}

/// As [`Match::matches`], beginning with what connections differ in.
fn matches(condition: &Match, key: &FlowKey) -> bool {
    let words = condition.key().words().iter().zip(key.words()).zip(condition.mask().words());
    words.rev().all(|((a, b), mask)| (a ^ b) & mask == 0)
}
