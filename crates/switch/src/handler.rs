//! Handles upcalls: translates each packet, answers it, and installs a megaflow if the limits
//! allow.

use crate::engine::{ControllerCopy, Engine, PublishedProgram};
use crate::held::{HoldResult, only_solicits, unknown};
use crate::origin::{MaskNo, NewOrigin, RefusedEvents};
use crate::probe::arrived;
use crate::records::{Deciseconds, InsertResult, Records};
use datapath::cpu_meter::{CpuMeter, PortWork};
use datapath::megaflow::{Megaflow, MegaflowId};
use datapath::provider::DatapathError;
use datapath::upcall::{Answer, Upcall, UpcallReason, WorkerId};
use flow::{Action, Field, FlowKey, FlowMask, Match, PortNo};
use pipeline::{IngressPort, LearnEvent, LearnRefusal, Translation, translate};
use std::sync::{Arc, LazyLock};
use std::time::Instant;
use wire::icmp::nd::{NEIGHBOR_ADVERTISEMENT, NEIGHBOR_SOLICITATION};
use wire::{EtherType, Protocol};

/// The exact-match mask over all fields that a packet carries in its first pass. It is sound for
/// every translation. A megaflow whose own mask would exceed a mask limit gets this mask instead.
static EXACT: LazyLock<FlowMask> = LazyLock::new(|| FlowMask::exact().of_packet());
/// As [`EXACT`], for later passes.
static EXACT_RECIRCULATED: LazyLock<FlowMask> =
    LazyLock::new(|| FlowMask::exact().of_recirculated());

/// The most bytes of a copy for the controller: the controller reads only headers and status lines.
const MAX_COPY: usize = 1514;

/// How often one packet is translated again after a learn event. Each learn event can cause another
/// one in the next translation. The limit ends the loop for a packet whose events alternate.
const MAX_RETRANSLATIONS: usize = 4;

/// The decision about one or more packets of a batch.
pub(crate) struct Decision<'p> {
    worker: WorkerId,
    candidate: NewOrigin<'p>,
    actions: Arc<[Action]>,
    /// The megaflow for the worker; `None` after it was installed or refused.
    pub(crate) megaflow: Option<Box<Megaflow>>,
    /// Packets and bytes of the batch that share the decision. The datapath's counters of the
    /// megaflow do not include them.
    packets: u64,
    bytes: u64,
    /// The identifier of the recorded megaflow; `None` if none was recorded.
    recorded: Option<MegaflowId>,
    /// The megaflow replaces a withdrawn one of an earlier program.
    is_replacement: bool,
}

impl<'p> Decision<'p> {
    /// Makes the decision for a worker's packet with `key`. `translation` contains only learn
    /// events that the learned tables refused.
    pub(crate) fn new(
        published: &'p PublishedProgram,
        worker: WorkerId,
        key: &FlowKey,
        translation: Translation<'p>,
    ) -> Self {
        let Translation { mask, actions, dependencies, is_transient, flows, reads, .. } =
            translation;
        let refused = RefusedEvents::new(translation.learn_events, translation.ingress);
        let actions: Arc<[Action]> = actions.into();
        let condition = Match::new(key, mask);
        Decision {
            worker,
            candidate: NewOrigin::new(published.number, (flows, dependencies, reads), refused),
            megaflow: (!is_transient)
                .then(|| Box::new(Megaflow::new(condition, Arc::clone(&actions)))),
            actions,
            packets: 0,
            bytes: 0,
            recorded: None,
            is_replacement: false,
        }
    }

    /// The actions for the packets.
    pub(crate) const fn actions(&self) -> &Arc<[Action]> {
        &self.actions
    }

    /// True if the decision applies to this upcall as well.
    fn is_for(&self, upcall: &Upcall) -> bool {
        let megaflow = self.megaflow.as_deref();
        self.worker == upcall.worker
            && megaflow.is_some_and(|Megaflow { condition, .. }| {
                // A first pass and a later one never share a megaflow.
                let is_later = condition.mask().get(Field::RecircId) != 0;
                is_later == upcall.recirculated.is_some() && matches(condition, &upcall.key)
            })
    }
}

impl Engine {
    /// Answers all upcalls in `upcalls`, which is empty afterwards. One generation of the program
    /// translates the whole batch. A translation sees the state that was learned from earlier
    /// packets of the batch. `now` is the time of learn events.
    ///
    /// # Errors
    /// The datapath has ended.
    pub fn handle(&self, upcalls: &mut Vec<Upcall>, now: Instant) -> Result<(), DatapathError> {
        let mut meter = CpuMeter::started();
        let published = self.published();
        let mut decisions: Vec<Decision<'_>> = Vec::with_capacity(upcalls.len());
        let mut decided: Vec<(Upcall, usize)> = Vec::with_capacity(upcalls.len());
        for upcall in upcalls.drain(..) {
            meter.begin_packet(upcall.port);
            match &upcall.reason {
                UpcallReason::Miss => {}
                UpcallReason::Controller => {
                    self.counters.controller.add(1);
                    self.copy_to_controller(&upcall);
                    continue;
                }
                UpcallReason::Fuse(proposal) => {
                    self.fuse(&published, &upcall, proposal);
                    continue;
                }
            }
            if let Some(probe) = arrived(&upcall) {
                self.counters.probes.add(1);
                if let Some(receiver) = self.probes.get() {
                    // If the queue is full, the probe is lost, and its sender retries on timeout.
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
        meter.end_packets();
        if decided.is_empty() {
            self.datapath.charge_upcalls(meter.finish());
            return Ok(());
        }
        let created = Deciseconds::of_ms(self.datapath.now_ms());
        // This lock is held until the datapath has the answers, so that the records list exactly
        // the megaflows of the datapath.
        let mut records = self.records();
        if records.is_superseded(published.number) {
            // A newer program came into force meanwhile. It decides about these packets.
            drop(records);
            upcalls.extend(decided.into_iter().map(|(upcall, _)| upcall));
            self.datapath.charge_upcalls(&without(meter.finish(), upcalls));
            return self.handle(upcalls, now);
        }
        for (upcall, at) in &decided {
            let Some(decision) = decisions.get_mut(*at) else { continue };
            if self.hold(decision, upcall, now) {
                // The next packet must raise an upcall, so that it can be held as well.
                decision.megaflow = None;
            }
        }
        self.counters.upcalls.add(decided.len());
        self.counters.reused.add(decided.len() - decisions.len());
        let mut replaced = Vec::new();
        let answers = decided.into_iter().filter_map(|(upcall, at)| {
            let decision = decisions.get_mut(at)?;
            let megaflow = decision.megaflow.take();
            let megaflow = megaflow.and_then(|new| {
                self.record_megaflow(
                    &mut records,
                    decision,
                    new,
                    (upcall.port, &upcall.key),
                    created,
                )
            });
            if decision.is_replacement {
                replaced.extend(megaflow.as_deref().cloned());
            }
            let actions = Arc::clone(&decision.actions);
            Some(Answer { upcall, actions, megaflow, decided_by: decision.recorded })
        });
        let answers: Vec<Answer> = answers.collect();
        if !replaced.is_empty() {
            // All copies of a megaflow must have the same actions, also those of other workers.
            self.datapath.put(replaced)?;
        }
        self.answer(answers)?;
        drop(records);
        self.datapath.charge_upcalls(meter.finish());
        self.handle_released(now)
    }

    /// Handles packets whose next hop has become known.
    ///
    /// # Errors
    /// As [`handle`](Self::handle).
    pub(crate) fn handle_released(&self, now: Instant) -> Result<(), DatapathError> {
        let mut released = self.held.take_ready();
        if released.is_empty() {
            return Ok(());
        }
        self.counters.held_sent.add(released.len());
        self.handle(&mut released, now)
    }

    /// Holds a copy of a packet whose next hop is being requested. Returns true if there was room
    /// for it.
    fn hold(&self, decision: &Decision<'_>, upcall: &Upcall, now: Instant) -> bool {
        if self.limits.held_packets == 0 || !only_solicits(&decision.actions) {
            return false;
        }
        let queries = decision.candidate.state_reads.iter().map(|read| read.query);
        let Some(query) = unknown(queries, &self.learned()) else { return false };
        let HoldResult { evicted, had_room } = self.held.hold(query, upcall, now);
        self.counters.held.add(1);
        self.counters.held_lost.add(evicted);
        had_room
    }

    /// Passes a copy to the controller, unless its queue is full or there is none.
    fn copy_to_controller(&self, upcall: &Upcall) {
        let Some(receiver) = self.controller.get() else { return };
        let frame = upcall.packet.head();
        let frame = frame.get(..MAX_COPY).unwrap_or(frame).to_vec();
        if receiver.try_send(ControllerCopy { port: upcall.port, frame }).is_err() {
            self.counters.controller_lost.add(1);
        }
    }

    /// Passes answers to the datapath, and counts how long their packets have waited for them.
    fn answer(&self, answers: Vec<Answer>) -> Result<(), DatapathError> {
        let raised: Vec<Instant> = answers.iter().map(|answer| answer.upcall.raised).collect();
        self.datapath.answer(answers)?;
        let now = Instant::now();
        for raised in raised {
            self.counters.upcall_latencies.add_duration(now.saturating_duration_since(raised));
        }
        Ok(())
    }

    /// The index of an earlier decision of this batch that applies to `upcall`.
    fn find(&self, decisions: &[Decision<'_>], upcall: &Upcall) -> Option<usize> {
        let at = decisions.iter().rposition(|decision| decision.is_for(upcall))?;
        // A later packet of the batch may have changed state that the decision depends on.
        let candidate = &decisions.get(at)?.candidate;
        let is_current = candidate.state_reads.is_empty() || candidate.is_current(&self.learned());
        is_current.then_some(at)
    }

    fn decide<'p>(
        &self,
        published: &'p PublishedProgram,
        upcall: &Upcall,
        now: Instant,
    ) -> Decision<'p> {
        let translation = self.translate_and_learn(published, &upcall.key, now);
        Decision::new(published, upcall.worker, &upcall.key, translation)
    }

    /// Translates a packet and applies its learn events. If the switch learned something, it
    /// translates the packet again: later packets will see the learned state, so the megaflow must
    /// depend on it. The result contains only learn events that were refused.
    fn translate_and_learn<'p>(
        &self,
        published: &'p PublishedProgram,
        key: &FlowKey,
        now: Instant,
    ) -> Translation<'p> {
        let translate_once = || translate(&published.program, key, &*self.learned(), &mut ());
        let mut translation = translate_once();
        for _ in 0..MAX_RETRANSLATIONS {
            let Translation { learn_events, ingress, .. } = &translation;
            if learn_events.is_empty() || self.learn(learn_events, *ingress, now) == 0 {
                return translation;
            }
            translation = translate_once();
        }
        // The limit is reached, because each translation raised another event. These events were
        // not refused, so they are removed.
        translation.learn_events.clear();
        translation
    }

    /// Applies learn events; returns how many were accepted.
    pub(crate) fn learn(&self, events: &[LearnEvent], ingress: IngressPort, now: Instant) -> usize {
        let mut accepted = 0;
        for event in events {
            let result = self.learned_mut().learn(*event, ingress, now);
            accepted += usize::from(result.is_ok());
            if result.is_ok() {
                self.held.release(&event.query(), now);
            }
            // A control plane may change entries that it has configured, so it gets these events as
            // well.
            let is_kept = matches!(result, Ok(()) | Err(LearnRefusal::Configured));
            if is_kept && !self.journal.add(*event, ingress) {
                self.counters.learn_unreported.add(1);
            }
        }
        if accepted > 0 {
            self.counters.learn_accepted.add(accepted);
            self.revalidate_signal.changed();
        }
        accepted
    }

    /// Records the megaflow of a decision and returns it for installation. `port` and `key` are
    /// those of its first packet. Returns `None` if the megaflow must not be installed.
    pub(crate) fn record_megaflow(
        &self,
        records: &mut Records,
        decision: &mut Decision<'_>,
        mut megaflow: Box<Megaflow>,
        (port, key): (PortNo, &FlowKey),
        now: Deciseconds,
    ) -> Option<Box<Megaflow>> {
        let mut mask = Some(MaskNo::of(megaflow.condition.mask()));
        if !mask.is_some_and(|mask| records.may_add_mask(port, mask)) {
            if megaflow.fusion.is_some() {
                return None;
            }
            self.counters.mask_limited.add(1);
            mask = None;
            let is_first = megaflow.condition.mask().get(Field::RecircId) == 0;
            let exact = if is_first { &EXACT } else { &EXACT_RECIRCULATED };
            let condition = Match::new(key, FlowMask::clone(exact));
            *megaflow = Megaflow::new(condition, Arc::clone(&decision.actions));
        }
        let candidate = &decision.candidate;
        let (packets, bytes) = (decision.packets, decision.bytes);
        let inserted = records.insert(megaflow.id, (port, mask), candidate, now);
        let is_replacement = matches!(inserted, InsertResult::Replaced(_));
        match inserted {
            InsertResult::Recorded(origin) | InsertResult::Replaced(origin) => {
                origin.add(packets, bytes);
                self.counters.put.add(1);
                decision.recorded = Some(megaflow.id);
                decision.is_replacement = is_replacement;
                if mask.is_some() && is_neighbour_discovery(key) {
                    records.keep_longer(megaflow.id, port);
                }
                return Some(megaflow);
            }
            InsertResult::Conflict => self.counters.outdated.add(1),
            InsertResult::Full => self.counters.refused.add(1),
        }
        candidate.flows.iter().for_each(|flow| flow.counters.add(packets, bytes));
        None
    }
}

/// What was done, without counting packets that will be handled again. The time for them counts.
fn without(work: &[PortWork], repeated: &[Upcall]) -> Vec<PortWork> {
    let again = |port| repeated.iter().filter(|upcall| upcall.port == port).count() as u32;
    let once = |work: &PortWork| work.packets.saturating_sub(again(work.port));
    work.iter().map(|work| PortWork { packets: once(work), ..*work }).collect()
}

/// Whether a packet is ARP, a neighbour solicitation or a neighbour advertisement.
fn is_neighbour_discovery(key: &FlowKey) -> bool {
    let is = |field, value: u16| key.get(field) == value.into();
    let is_icmp_type = |kind: u8| is(Field::IcmpType, kind.into());
    is(Field::EthType, EtherType::ARP.0)
        || is(Field::IpProto, Protocol::ICMPV6.0.into())
            && (is_icmp_type(NEIGHBOR_SOLICITATION) || is_icmp_type(NEIGHBOR_ADVERTISEMENT))
}

/// Like [`Match::matches`], but compares the last words first: they hold the transport ports, in
/// which connections of one guest differ.
fn matches(condition: &Match, key: &FlowKey) -> bool {
    let words = condition.key().words().iter().zip(key.words()).zip(condition.mask().words());
    words.rev().all(|((a, b), mask)| (a ^ b) & mask == 0)
}
