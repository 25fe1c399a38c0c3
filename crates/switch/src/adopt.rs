//! Megaflows that another process has left: decided anew, before their packets come up.
//!
//! A datapath that outlives its switch hands over the conditions of the megaflows that it had. Each is translated as a packet would be
//! of which no more is known than the condition says: what comes of it is as right as what comes of an upcall, by the program of
//! now. It is taken only if it rests on nothing else. Otherwise there are packets of it that are to be told from others by now, and they
//! come up.

use crate::engine::{Engine, Published};
use crate::handler::Decision;
use crate::records::Tenths;
use datapath::provider::DatapathError;
use datapath::upcall::WorkerId;
use flow::{Field, Match, PortNo};
use pipeline::{Translation, retranslate, translate};
use std::time::Instant;

/// Megaflows put at a time.
const BATCH: usize = 256;

impl Engine {
    /// Decides about megaflows of which only the conditions are known, the newest last, and puts them. Returns how many were put. The
    /// conditions are gone through twice, a portion of them at a time.
    ///
    /// What their packets taught is learnt first, of all of them: that they were cached shows that somebody sent them, and what is
    /// taught last holds, as ever.
    ///
    /// # Errors
    /// The datapath has ended.
    pub fn adopt(
        &self,
        conditions: impl Iterator<Item = Match> + Clone,
        now: Instant,
    ) -> Result<usize, DatapathError> {
        let published = self.published();
        for condition in conditions.clone() {
            if let Some(Translation { learn_events: lessons, ingress: teacher, .. }) =
                self.decided(&published, &condition)
                && !lessons.is_empty()
            {
                self.learn(&lessons, teacher, now);
            }
        }
        let (mut adopted, mut conditions) = (0, conditions);
        loop {
            let some: Vec<Match> = conditions.by_ref().take(BATCH).collect();
            if some.is_empty() {
                return Ok(adopted);
            }
            let decisions = some.iter().filter_map(|condition| {
                let translation = self.decided(&published, condition)?;
                // What is still to be learnt was refused, and is for packets to teach.
                let is_settled = translation.learn_events.is_empty();
                let decision = Decision::new(&published, WorkerId(0), condition.key(), translation);
                is_settled.then_some((condition, decision))
            });
            let decisions: Vec<_> = decisions.collect();
            let created = Tenths::of_ms(self.datapath.now_ms());
            // Held until the datapath has the megaflows: see `Engine`.
            let mut records = self.records();
            let megaflows = decisions.into_iter().filter_map(|(condition, mut decision)| {
                let megaflow = decision.megaflow.take()?;
                let key = condition.key();
                let port = PortNo(key.get(Field::InPort) as u32);
                let entered =
                    self.enter(&mut records, &mut decision, megaflow, (port, key), created);
                entered.map(|megaflow| *megaflow)
            });
            let megaflows: Vec<_> = megaflows.collect();
            adopted += megaflows.len();
            self.datapath.put(megaflows)?;
        }
    }

    /// What is done with all packets that meet a condition; `None` when it takes more to tell.
    fn decided<'p>(&self, published: &'p Published, condition: &Match) -> Option<Translation<'p>> {
        let (program, key, known) = (&published.program, condition.key(), condition.mask());
        let learned = self.learned();
        let translation = translate(program, key, &*learned, &mut ());
        if known.covers(&translation.mask) {
            return Some(translation);
        }
        // By what is known already it may be told as well.
        let translation = retranslate(program, key, known.clone(), &*learned, &mut ());
        known.covers(&translation.mask).then_some(translation)
    }
}
