//! Going through the megaflows: what they have counted, which are idle, and which are out of date.
//!
//! A *sweep* asks the datapath for all usages, in portions. A *revalidation* looks only at the records, and is done besides
//! whenever something has changed; when nothing is out of date the datapath is not asked for anything.

use crate::engine::{Engine, Published, lock};
use crate::origin::{Candidate, Origin, Retries};
use crate::records::{Records, Removed, Tenths};
use datapath::megaflow::{Megaflow, MegaflowId};
use datapath::provider::{DatapathError, DumpCursor};
use pipeline::{Translation, retranslate};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Usages asked for at a time.
const USAGES: usize = 4096;
/// Megaflows deleted at a time.
const MEGAFLOWS: usize = 1024;
/// Megaflows translated again at a time, while lessons wait.
const TRANSLATIONS: usize = 128;

/// What going through the records finds.
#[derive(Default)]
struct Found {
    removed: Vec<Removed>,
    stale: Vec<MegaflowId>,
    /// Origins that have counted something.
    counted: Vec<Arc<Origin>>,
}

/// What a revalidation makes of a megaflow.
enum Verdict<'p> {
    /// It is right, with this origin.
    Right(Candidate<'p>),
    /// It is right with other actions.
    Changed(Candidate<'p>, Box<Megaflow>),
    /// It decides for packets that are no longer treated alike, or its packets have something to teach.
    Wrong,
}

impl Engine {
    /// Goes through all megaflows: counts, deletes the idle, and revalidates. What was learnt long before `now` is forgotten. To be called
    /// once in every [`Limits::revalidate`](crate::Limits::revalidate).
    ///
    /// # Errors
    /// The datapath has ended, or does not answer; the next sweep makes good for it.
    pub fn sweep(&self, now: Instant) -> Result<(), DatapathError> {
        let begin = Instant::now();
        let mut round = lock(&self.round);
        *round = round.wrapping_add(1);
        self.learned_mut().expire(now);
        self.collect_usage()?;
        let published = self.published();
        let mut found = self.look_through(&published, *round, true);
        let removed = std::mem::take(&mut found.removed);
        self.push_counts(&found.counted, now);
        self.delete(removed)?;
        self.revalidate_these(&published, &found.stale)?;
        self.records().tidy();
        self.counters.sweeps.add(1);
        self.counters.longest_sweep_ms.at_least(begin.elapsed().as_millis() as u64);
        Ok(())
    }

    /// Revalidates what is out of date. To be called when something has changed, beside the sweeps.
    ///
    /// # Errors
    /// The datapath has ended, or does not answer; the next sweep makes good for it.
    pub fn revalidate(&self) -> Result<(), DatapathError> {
        let mut round = lock(&self.round);
        *round = round.wrapping_add(1);
        let published = self.published();
        let found = self.look_through(&published, *round, false);
        self.revalidate_these(&published, &found.stale)
    }

    /// Notes what the datapath has counted, and deletes what is in it and not on record.
    fn collect_usage(&self) -> Result<(), DatapathError> {
        self.records().begin_sweep();
        let mut strangers = Vec::new();
        let mut next = Some(DumpCursor::default());
        while let Some(from) = next {
            let (usages, after) = self.datapath.usage(from, USAGES)?;
            let mut records = self.records();
            let unknown = usages.iter().filter(|(id, usage)| !records.note(*id, usage));
            strangers.extend(unknown.map(|(id, _)| *id));
            next = after;
        }
        for strangers in strangers.chunks(MEGAFLOWS) {
            self.counters.strangers.add(strangers.len());
            self.counters.deleted.add(strangers.len());
            self.datapath.delete(strangers.to_vec())?;
        }
        Ok(())
    }

    /// Goes through the records. In a sweep, takes those out that are idle or have vanished, and tries refused lessons again for which
    /// there is room now.
    fn look_through(&self, published: &Published, round: u32, sweep: bool) -> Found {
        let now = Tenths::of_ms(self.datapath.now_ms());
        let (mut found, mut retries) = (Found::default(), Retries::default());
        for number in 0.. {
            let mut records = self.records();
            let limits = &self.limits;
            let idle_limit =
                if records.is_nearly_full() { limits.idle_when_full } else { limits.idle };
            let (mut idle, mut vanished) = (Vec::new(), Vec::new());
            let learned = self.learned();
            let Some(part) = records.part(number) else { break };
            for (record, origin) in part {
                if sweep && records.has_vanished(record) {
                    vanished.push(record.id);
                } else if sweep && now.since(record.used) >= idle_limit {
                    idle.push(record.id);
                } else if origin.is_stale(published.number, &learned, round)
                    || sweep && origin.tries_again(&learned, &mut retries)
                {
                    found.stale.push(record.id);
                }
                if sweep && origin.has_pending() {
                    found.counted.push(Arc::clone(origin));
                }
            }
            drop(learned);
            self.counters.idle.add(idle.len());
            self.counters.vanished.add(vanished.len());
            found.removed.extend(take_out(&mut records, &idle));
            // These the datapath has not: nothing is to be deleted.
            drop(take_out(&mut records, &vanished));
        }
        found
    }

    /// Tells flows what was counted, and that what their packets rest on is in use.
    fn push_counts(&self, counted: &[Arc<Origin>], now: Instant) {
        for some in counted.chunks(TRANSLATIONS) {
            // Of the records with one origin, the first brings everything.
            let hit: Vec<_> = some.iter().filter(|origin| origin.flush()).collect();
            let mut confirmed = hit.iter().flat_map(|origin| &origin.asked).peekable();
            if confirmed.peek().is_some() {
                let mut learned = self.learned_mut();
                for asked in confirmed.filter(|asked| asked.confirms) {
                    learned.refresh(&asked.dependency.query, now);
                }
            }
        }
    }

    /// Translates again what is out of date, for no longer than until the next sweep is due. What is left then is deleted: that is always
    /// right.
    fn revalidate_these(
        &self,
        published: &Published,
        stale: &[MegaflowId],
    ) -> Result<(), DatapathError> {
        let end = Instant::now() + self.limits.revalidate;
        for some in stale.chunks(TRANSLATIONS) {
            if Instant::now() >= end {
                break;
            }
            self.judge(published, &self.datapath.get(some.to_vec())?)?;
        }
        // Those that the datapath did not have, too.
        for some in stale.chunks(MEGAFLOWS) {
            let removed = {
                let mut records = self.records();
                let is_stale = |id: &&MegaflowId| {
                    records.origin(**id).is_some_and(|origin| origin.is_known_stale())
                };
                let left: Vec<_> = some.iter().filter(is_stale).copied().collect();
                take_out(&mut records, &left)
            };
            self.delete(removed)?;
        }
        Ok(())
    }

    /// Translates megaflows again, and does what follows. That they are on record still is certain: only sweeps and revalidations take
    /// megaflows out, and there is one at a time.
    fn judge(&self, published: &Published, stale: &[Megaflow]) -> Result<(), DatapathError> {
        self.counters.revalidated.add(stale.len());
        let verdicts: Vec<Verdict<'_>> = {
            let learned = self.learned();
            let translate = |megaflow: &Megaflow| {
                let (key, known) = (megaflow.condition.key(), megaflow.condition.mask().clone());
                let translation = retranslate(&published.program, key, known, &*learned, &mut ());
                verdict(published.number, megaflow, translation)
            };
            stale.iter().map(translate).collect()
        };
        let (mut put, mut wrong) = (Vec::new(), Vec::new());
        let removed = {
            let mut records = self.records();
            for (megaflow, verdict) in stale.iter().zip(verdicts) {
                match verdict {
                    Verdict::Right(candidate) => records.replace(megaflow.id, &candidate),
                    Verdict::Changed(candidate, changed) => {
                        records.replace(megaflow.id, &candidate);
                        put.push(*changed);
                    }
                    Verdict::Wrong => wrong.push(megaflow.id),
                }
            }
            take_out(&mut records, &wrong)
        };
        if !put.is_empty() {
            self.counters.put.add(put.len());
            self.datapath.put(put)?;
        }
        self.delete(removed)
    }

    /// Deletes what was taken out of the records, and counts its last packets.
    fn delete(&self, removed: Vec<Removed>) -> Result<(), DatapathError> {
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
        Ok(())
    }
}

fn take_out(records: &mut Records, ids: &[MegaflowId]) -> Vec<Removed> {
    ids.iter().filter_map(|id| records.remove(*id)).collect()
}

/// What a new translation says about a megaflow. Its key stands for all packets that it serves, as long as the translation has read
/// no other bits than those in which they agree.
fn verdict<'p>(generation: u64, megaflow: &Megaflow, translation: Translation<'p>) -> Verdict<'p> {
    let condition = &megaflow.condition;
    // A packet of it has to come up: only packets teach.
    let teaches = !translation.learn_events.is_empty();
    if teaches || !condition.mask().covers(&translation.mask) {
        return Verdict::Wrong;
    }
    let Translation { actions, flows, dependencies, .. } = translation;
    let candidate = Candidate::new(generation, flows, &dependencies, None, condition.key());
    if *actions == *megaflow.actions {
        return Verdict::Right(candidate);
    }
    let changed = Megaflow { actions: actions.into(), ..megaflow.clone() };
    Verdict::Changed(candidate, Box::new(changed))
}
