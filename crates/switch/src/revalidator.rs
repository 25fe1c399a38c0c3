//! Revalidation: collects counters of megaflows, and deletes or replaces those that are idle or
//! stale.
//!
//! A *sweep* runs periodically and asks the datapath for the counters of all megaflows, in batches.
//! A *revalidation* runs in addition after each change. It reads only the records, and asks the
//! datapath only for stale megaflows.

use crate::carry::Successor;
use crate::enforce::MAX_DELETED;
use crate::engine::{Engine, PublishedProgram, lock};
use crate::fusions::translate_megaflow;
use crate::held::only_solicits;
use crate::origin::{NewOrigin, Origin, Retries};
use crate::records::{Deciseconds, Records, RemovedMegaflow};
use datapath::megaflow::{Megaflow, MegaflowId};
use datapath::provider::{DatapathError, DumpCursor};
use flow::PortNo;
use pipeline::{LearnedTables, Translation};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Megaflow counters requested at a time.
const USAGES: usize = 4096;
/// Megaflows deleted at a time. A deletion waits until no packet is executed by them, so few at a
/// time would take long.
const MEGAFLOWS: usize = 65_536;
/// Records removed at a time, during which they are locked.
const RECORDS: usize = 1024;
/// Megaflows fetched from the datapath at a time. A worker does not forward meanwhile.
const FETCHED: usize = 1024;
/// Megaflows translated at a time, during which learned state is locked.
const TRANSLATIONS: usize = 128;

/// The result of a walk through the records.
#[derive(Default)]
struct WalkResult {
    removed: Vec<RemovedMegaflow>,
    stale: Vec<Stale>,
    /// Origins with counts that were not yet added to their flows.
    counted: Vec<Arc<Origin>>,
    /// A program was published meanwhile: the walk did not visit all records.
    is_cut_short: bool,
}

/// A stale megaflow.
#[derive(Clone, Copy)]
struct Stale {
    id: MegaflowId,
    port: PortNo,
    used: Deciseconds,
    /// It is likely to be carried over to the new program.
    has_successor: bool,
}

/// Sorts stale megaflows so that ports take turns, each with its megaflow used last. So the
/// megaflows of a port are revalidated soon, however many another port has.
fn sort_by_turn(stale: &mut [Stale]) {
    stale.sort_unstable_by_key(|megaflow| (megaflow.port, Reverse(megaflow.used)));
    let mut turns = Vec::with_capacity(stale.len());
    let (mut port, mut turn) = (None, 0_u32);
    for megaflow in &*stale {
        turn = if port == Some(megaflow.port) { turn + 1 } else { 0 };
        port = Some(megaflow.port);
        turns.push((turn, *megaflow));
    }
    turns.sort_by_key(|(turn, _)| *turn);
    stale.iter_mut().zip(turns).for_each(|(place, (_, megaflow))| *place = megaflow);
}

/// The result of translating a megaflow again.
enum Revalidation<'p> {
    /// Its actions are still right; this is its new origin.
    Keep(NewOrigin<'p>),
    /// Nothing that it depends on has changed.
    Carry(&'p Successor),
    /// Its match is still right, and it has other actions.
    Replace(NewOrigin<'p>, Box<Megaflow>),
    /// Its packets need different actions now, or cause learn events.
    Delete,
}

/// The changes of a revalidation to the datapath.
#[derive(Default)]
struct Changes {
    put: Vec<Megaflow>,
    confirmed: Vec<MegaflowId>,
    deleted: Vec<MegaflowId>,
    /// Confirm megaflows in the datapath that are still right. So many are stale that the datapath
    /// may have to withdraw all unconfirmed ones.
    confirms: bool,
}

impl Changes {
    /// Records the result for a megaflow. An upcall may have replaced a withdrawn one meanwhile.
    fn add(&mut self, records: &mut Records, megaflow: Megaflow, result: Revalidation<'_>) {
        let Some(origin) = records.origin(megaflow.id).filter(|origin| origin.is_known_stale())
        else {
            return;
        };
        let origin = Arc::clone(origin);
        let is_withdrawn = records.is_withdrawn(&origin);
        let candidate = match result {
            Revalidation::Carry(successor) if !is_withdrawn => {
                let origin = successor.origin(&origin, records);
                return records.set_origin(megaflow.id, origin);
            }
            Revalidation::Carry(successor) => {
                let candidate = successor.candidate(&origin);
                candidate.in_epoch(successor.generation)
            }
            Revalidation::Keep(candidate) if is_withdrawn || self.confirms => candidate,
            Revalidation::Keep(candidate) => candidate.in_epoch(origin.epoch),
            Revalidation::Replace(candidate, changed) => {
                records.replace(megaflow.id, &candidate);
                return self.put.push(*changed);
            }
            Revalidation::Delete => return self.deleted.push(megaflow.id),
        };
        records.replace(megaflow.id, &candidate);
        if is_withdrawn {
            self.put.push(megaflow);
        } else if self.confirms {
            self.confirmed.push(megaflow.id);
        }
    }
}
impl Engine {
    /// Collects the counters of all megaflows, deletes idle ones, revalidates stale ones, checks a
    /// few others, and expires learned state. To be called once in every
    /// [`Limits::revalidate`](crate::Limits::revalidate).
    ///
    /// # Errors
    /// The datapath has ended, or does not answer; the next sweep does the rest.
    pub fn sweep(&self, now: Instant) -> Result<(), DatapathError> {
        let begin = Instant::now();
        let mut round = lock(&self.round);
        *round = round.wrapping_add(1);
        self.learned_mut().expire(now);
        self.end_outdated_fusions()?;
        if !self.collect_usage()? {
            // The megaflows have to be confirmed under a new program soon. The next sweep collects
            // counters.
            return Ok(());
        }
        let published = self.published();
        let mut found = self.walk_records(&published, *round, true);
        let removed = std::mem::take(&mut found.removed);
        self.push_counts(&found.counted, now);
        self.delete(removed)?;
        if found.is_cut_short {
            return Ok(());
        }
        self.revalidate_megaflows(&published, found.stale)?;
        self.self_check(&published)?;
        self.records().remove_unused();
        self.counters.sweeps.add(1);
        let took = begin.elapsed();
        self.counters.longest_sweep_ms.at_least(took.as_millis() as u64);
        self.counters.sweep_durations.add_duration(took);
        Ok(())
    }

    /// Revalidates stale megaflows. To be called after each change of the program or of learned
    /// state.
    ///
    /// # Errors
    /// The datapath has ended, or does not answer; the next sweep does the rest.
    pub fn revalidate(&self) -> Result<(), DatapathError> {
        let begin = Instant::now();
        let mut round = lock(&self.round);
        *round = round.wrapping_add(1);
        self.end_outdated_fusions()?;
        let published = self.published();
        let found = self.walk_records(&published, *round, false);
        if found.is_cut_short {
            return Ok(());
        }
        self.revalidate_megaflows(&published, found.stale)?;
        self.counters.revalidation_durations.add_duration(begin.elapsed());
        Ok(())
    }

    /// Adds the datapath's counters to the records, and deletes megaflows without a record. Ends
    /// early and returns false if a program is published meanwhile.
    fn collect_usage(&self) -> Result<bool, DatapathError> {
        let published = self.published().number;
        self.records().begin_sweep();
        let (mut unrecorded, mut in_use) = (Vec::new(), Vec::new());
        let mut next = Some(DumpCursor::default());
        while let Some(from) = next {
            let (usages, after) = self.datapath.usage(from, USAGES)?;
            let mut records = self.records();
            if records.is_outdated(published) {
                return Ok(false);
            }
            let unknown =
                usages.iter().filter(|(id, usage)| !records.add_usage(*id, usage, &mut in_use));
            unrecorded.extend(unknown.map(|(id, _)| *id));
            drop(records);
            if !in_use.is_empty()
                && let Some(tracker) = self.datapath.tracker()
            {
                tracker.prolong(in_use.drain(..));
            }
            next = after;
        }
        for unrecorded in unrecorded.chunks(MEGAFLOWS) {
            self.counters.strangers.add(unrecorded.len());
            self.counters.deleted.add(unrecorded.len());
            self.datapath.delete(unrecorded.to_vec())?;
        }
        Ok(true)
    }

    /// Walks the records and finds the stale megaflows. A sweep also removes the records of idle
    /// and vanished megaflows, and retries refused learn events for which there is room now.
    fn walk_records(&self, published: &PublishedProgram, round: u32, sweep: bool) -> WalkResult {
        let now = Deciseconds::of_ms(self.datapath.now_ms());
        let (mut found, mut retries) = (WalkResult::default(), Retries::default());
        for number in 0.. {
            let mut records = self.records();
            if !records.may_search(published.number) {
                found.is_cut_short = true;
                break;
            }
            let limits = &self.limits;
            let is_nearly_full = records.is_nearly_full();
            let idle_limit = if is_nearly_full { limits.idle_when_full } else { limits.idle };
            let idle_neighbours = limits.idle.max(limits.idle_neighbours);
            let is_idle = |id, idle| {
                idle >= idle_limit
                    && (is_nearly_full || idle >= idle_neighbours || !records.is_kept_longer(id))
            };
            let (mut idle, mut vanished) = (Vec::new(), Vec::new());
            let learned = self.learned();
            let Some(chunk) = records.chunk(number) else { break };
            for (record, origin) in chunk {
                if sweep && records.has_vanished(record) {
                    vanished.push(record.id);
                } else if sweep && is_idle(record.id, now.since(record.used)) {
                    idle.push(record.id);
                } else if origin.is_stale(published.number, &learned, round)
                    || sweep && origin.retries_learning(&learned, &mut retries)
                {
                    let (id, port, used) = (record.id, record.port, record.used);
                    let successor = origin.successor.get();
                    let has_successor =
                        successor.is_some_and(|it| it.generation == published.number);
                    found.stale.push(Stale { id, port, used, has_successor });
                }
                if sweep && origin.has_pending() {
                    found.counted.push(Arc::clone(origin));
                }
            }
            drop(learned);
            self.counters.idle.add(idle.len());
            self.counters.vanished.add(vanished.len());
            found.removed.extend(remove_records(&mut records, &idle));
            // The datapath does not have the vanished ones, so it need not delete them.
            let vanished = remove_records(&mut records, &vanished);
            drop(records);
            self.end_fusions(&vanished);
        }
        found
    }

    /// Adds pending counts to the flows, and refreshes learned state that is in use.
    fn push_counts(&self, counted: &[Arc<Origin>], now: Instant) {
        for some in counted.chunks(TRANSLATIONS) {
            // Several records may share an origin: the first call flushes it.
            let hit: Vec<_> = some.iter().filter(|origin| origin.flush()).collect();
            let mut confirmed = hit.iter().flat_map(|origin| &origin.state_reads).peekable();
            if confirmed.peek().is_some() {
                let mut learned = self.learned_mut();
                for read in confirmed.filter(|read| read.confirms) {
                    learned.refresh(&read.query, now);
                }
            }
        }
    }

    /// Translates stale megaflows again, until the next sweep is due at most. Those that remain are
    /// deleted, which is always safe; or left to the next sweep, if the datapath does not execute
    /// them. Ends early if a newer program is published, or if megaflows are withdrawn: the next
    /// revalidation finds all again.
    fn revalidate_megaflows(
        &self,
        published: &PublishedProgram,
        mut stale: Vec<Stale>,
    ) -> Result<(), DatapathError> {
        let end = Instant::now() + self.limits.revalidate;
        sort_by_turn(&mut stale);
        let without_successor = stale.iter().filter(|megaflow| !megaflow.has_successor).count();
        let withdrawn = self.records().withdrawn();
        let confirms = without_successor > MAX_DELETED;
        for some in stale.chunks(FETCHED) {
            if Instant::now() >= end {
                break;
            }
            let ids = some.iter().map(|megaflow| megaflow.id).collect();
            let mut fetched = self.datapath.get(ids)?.into_iter();
            while fetched.len() > 0 && Instant::now() < end {
                {
                    let records = self.records();
                    if records.is_outdated(published.number) || records.withdrawn() != withdrawn {
                        return Ok(());
                    }
                }
                let batch = fetched.by_ref().take(TRANSLATIONS).collect();
                self.revalidate_batch(published, batch, confirms)?;
            }
        }
        // This includes records of megaflows that the datapath did not have.
        let mut removed = Vec::new();
        for some in stale.chunks(RECORDS) {
            let mut records = self.records();
            if records.is_outdated(published.number) {
                break;
            }
            let ids = some.iter().map(|megaflow| megaflow.id);
            let left: Vec<_> = ids.filter(|id| records.is_executed_stale(*id)).collect();
            removed.extend(remove_records(&mut records, &left));
        }
        self.delete(removed)?;
        // Megaflows of a program that is outdated by now do not matter.
        self.confirmed.raise(published.number);
        Ok(())
    }

    /// Translates megaflows again, if that is necessary, and keeps, replaces or deletes each.
    fn revalidate_batch(
        &self,
        published: &PublishedProgram,
        stale: Vec<Megaflow>,
        confirms: bool,
    ) -> Result<(), DatapathError> {
        self.counters.revalidated.add(stale.len());
        let origins: Vec<Option<Arc<Origin>>> = {
            let records = self.records();
            stale.iter().map(|megaflow| records.origin(megaflow.id).cloned()).collect()
        };
        let results: Vec<Revalidation<'_>> = {
            let learned = self.learned();
            let all = stale.iter().zip(&origins);
            all.map(|(megaflow, origin)| {
                revalidate_megaflow(published, megaflow, origin.as_deref(), &learned)
            })
            .collect()
        };
        let mut changes = Changes { confirms, ..Changes::default() };
        let removed = {
            // The lock is held until the datapath has the changes, so that it agrees with the
            // records.
            let mut records = self.records();
            if records.is_outdated(published.number) {
                return Ok(());
            }
            for (megaflow, result) in stale.into_iter().zip(results) {
                changes.add(&mut records, megaflow, result);
            }
            self.counters.put.add(changes.put.len());
            if !changes.put.is_empty() {
                self.datapath.put(changes.put)?;
            }
            if !changes.confirmed.is_empty() {
                self.datapath.confirm(changes.confirmed)?;
            }
            remove_records(&mut records, &changes.deleted)
        };
        self.delete(removed)
    }

    /// Deletes all megaflows. The next packets raise upcalls, which install them again.
    ///
    /// # Errors
    /// The datapath has ended, or does not answer.
    pub fn delete_megaflows(&self) -> Result<(), DatapathError> {
        let _round = lock(&self.round);
        let mut removed = Vec::new();
        for number in 0.. {
            let mut records = self.records();
            let Some(chunk) = records.chunk(number) else { break };
            let ids: Vec<MegaflowId> = chunk.map(|(record, _)| record.id).collect();
            removed.extend(remove_records(&mut records, &ids));
        }
        self.delete(removed)
    }

    /// Deletes megaflows whose records were removed, and adds their final counters.
    pub(crate) fn delete(&self, removed: Vec<RemovedMegaflow>) -> Result<(), DatapathError> {
        for some in removed.chunks(MEGAFLOWS) {
            self.counters.deleted.add(some.len());
            let ids = some.iter().map(|removed| removed.id).collect();
            let mut last: HashMap<MegaflowId, datapath::megaflow::Usage, ahash::RandomState> =
                HashMap::default();
            for (id, usage) in self.datapath.delete(ids)? {
                let sum = last.entry(id).or_default();
                sum.packets = sum.packets.wrapping_add(usage.packets);
                sum.bytes = sum.bytes.wrapping_add(usage.bytes);
            }
            for removed in some {
                if let Some(usage) = last.get(&removed.id) {
                    removed.count(usage);
                }
            }
            for removed in some {
                removed.origin.flush();
            }
        }
        self.end_fusions(&removed);
        Ok(())
    }
}

pub(crate) fn remove_records(records: &mut Records, ids: &[MegaflowId]) -> Vec<RemovedMegaflow> {
    ids.iter().filter_map(|id| records.remove(*id)).collect()
}

/// Translates a megaflow again, unless its origin shows that this is not necessary.
fn revalidate_megaflow<'p>(
    published: &'p PublishedProgram,
    megaflow: &Megaflow,
    origin: Option<&'p Origin>,
    learned: &LearnedTables,
) -> Revalidation<'p> {
    if let Some(successor) = origin.and_then(|origin| origin.successor.get())
        && successor.is_of(published.number, megaflow)
        && origin.is_some_and(|origin| origin.has_read_current(learned))
    {
        return Revalidation::Carry(successor);
    }
    let packet = megaflow.condition.key();
    match translate_megaflow(&published.program, megaflow, packet, learned) {
        Some(translation) => compare(published.number, megaflow, translation),
        None => Revalidation::Delete,
    }
}

/// Compares a megaflow with its new translation. The translation holds for all packets of the
/// megaflow if it has read only bits that the megaflow's mask has.
fn compare<'p>(
    generation: u64,
    megaflow: &Megaflow,
    translation: Translation<'p>,
) -> Revalidation<'p> {
    let condition = &megaflow.condition;
    // Only packets cause learning, so a packet must raise an upcall.
    let learns = !translation.learn_events.is_empty();
    // Its saved state is gone, so no packet hits it any more; or the state of its next pass cannot
    // be saved.
    let is_transient = translation.is_transient;
    if learns || is_transient || !condition.mask().covers(&translation.mask) {
        return Revalidation::Delete;
    }
    let Translation { actions, flows, dependencies, reads, .. } = translation;
    let candidate = NewOrigin::new(generation, (flows, dependencies, reads), None);
    if *actions == *megaflow.actions {
        return Revalidation::Keep(candidate);
    }
    // Packets are held until their next hop is known, so they must raise upcalls.
    if only_solicits(&actions) {
        return Revalidation::Delete;
    }
    let changed = Megaflow { actions: actions.into(), ..megaflow.clone() };
    Revalidation::Replace(candidate, Box::new(changed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_take_turns_when_stale_megaflows_are_sorted() {
        let stale = |port, used_ms, id| Stale {
            id: MegaflowId(id),
            port: PortNo(port),
            used: Deciseconds::of_ms(used_ms),
            has_successor: false,
        };
        let mut all: Vec<_> = (0..1000).map(|id| stale(1, id * 100, id)).collect();
        all.extend([stale(7, 100, 5000), stale(7, 900, 5001), stale(3, 0, 6000)]);
        sort_by_turn(&mut all);
        let first: Vec<_> = all.iter().take(6).map(|megaflow| megaflow.id.0).collect();
        assert_eq!(first, [999, 6000, 5001, 998, 5000, 997]);
        assert_eq!(all.len(), 1003);
    }
}
