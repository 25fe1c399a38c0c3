//! Adopts the megaflows of an earlier process: translates them again before their packets raise
//! upcalls.
//!
//! A datapath that outlives its switch reports the matches of its megaflows. Each match is
//! translated like a packet of which only the matched bits are known. The result is as valid under
//! the current program as that of an upcall, and it is installed if the translation read only these
//! bits. Otherwise the current program distinguishes packets that the old megaflow did not, and
//! they raise upcalls.

use crate::engine::{Engine, PublishedProgram};
use crate::handler::Decision;
use crate::records::Deciseconds;
use datapath::provider::DatapathError;
use datapath::upcall::WorkerId;
use flow::{Action, Field, Match, PortNo};
use pipeline::{Translation, retranslate, translate};
use std::time::Instant;

/// Megaflows installed at a time.
const BATCH: usize = 256;

impl Engine {
    /// Translates megaflows given by their matches, the newest last, and installs the results.
    /// Returns how many were installed. The matches are iterated twice, in batches.
    ///
    /// All learn events are applied first: a cached megaflow shows that such packets were received.
    /// As always, the last event about a station or binding wins.
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
            if let Some(Translation { learn_events, ingress, .. }) =
                self.translate_match(&published, &condition)
                && !learn_events.is_empty()
            {
                self.learn(&learn_events, ingress, now);
            }
        }
        let (mut adopted, mut conditions) = (0, conditions);
        loop {
            let some: Vec<Match> = conditions.by_ref().take(BATCH).collect();
            if some.is_empty() {
                return Ok(adopted);
            }
            let decisions = some.iter().filter_map(|condition| {
                let translation = self.translate_match(&published, condition)?;
                // Learn events that are left were refused above; packets may raise them again.
                let is_learned = translation.learn_events.is_empty();
                let decision = Decision::new(&published, WorkerId(0), condition.key(), translation);
                // Tracked packets raise an upcall instead. Otherwise the match of each fused
                // megaflow would give a megaflow that serves a single connection, and whose packets
                // are punted.
                let is_tracked = decision.actions().iter().any(|it| matches!(it, Action::Ct(_)));
                (is_learned && !is_tracked).then_some((condition, decision))
            });
            let decisions: Vec<_> = decisions.collect();
            let created = Deciseconds::of_ms(self.datapath.now_ms());
            // The lock is held until the datapath has the megaflows, so that records and datapath
            // agree.
            let mut records = self.records();
            let megaflows = decisions.into_iter().filter_map(|(condition, mut decision)| {
                let megaflow = decision.megaflow.take()?;
                let key = condition.key();
                let port = PortNo(key.get(Field::InPort) as u32);
                let entered = self.record_megaflow(
                    &mut records,
                    &mut decision,
                    megaflow,
                    (port, key),
                    created,
                );
                entered.map(|megaflow| *megaflow)
            });
            let megaflows: Vec<_> = megaflows.collect();
            adopted += megaflows.len();
            self.datapath.put(megaflows)?;
        }
    }

    /// The translation for all packets that meet a match; `None` if it depends on further bits.
    fn translate_match<'p>(
        &self,
        published: &'p PublishedProgram,
        condition: &Match,
    ) -> Option<Translation<'p>> {
        let (program, key, known) = (&published.program, condition.key(), condition.mask());
        let learned = self.learned();
        let translation = translate(program, key, &*learned, &mut ());
        if known.covers(&translation.mask) {
            return Some(translation);
        }
        // A translation can read different bits for the same result. Here it should use known bits.
        let translation = retranslate(program, key, known.clone(), &*learned, &mut ());
        known.covers(&translation.mask).then_some(translation)
    }
}
