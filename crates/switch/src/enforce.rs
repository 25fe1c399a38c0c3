//! Publishing a program, and putting it in force for cached packets.
//!
//! A new program takes effect in two steps. [`Engine::publish`] makes it the program of all
//! translations. It carries over the megaflows that do not depend on the change. The others
//! continue to serve packets, while the revalidator confirms those that are still right. So
//! established flows are not disturbed. [`Engine::enforce`] waits for the revalidator for a limited
//! time. Then it deletes the megaflows that were not confirmed. If there are very many, it
//! withdraws all megaflows of earlier epochs at once, and the revalidator puts the right ones back.
//! Their packets become upcalls.
//!
//! The records know the generation before which megaflows are withdrawn. So an upcall may replace a
//! withdrawn megaflow, although its record names an origin of the old program.

use crate::engine::{Engine, PublishedProgram, lock};
use crate::revalidator::remove_records;
use datapath::provider::DatapathError;
use pipeline::Program;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long megaflows of the old program may serve packets after a publication. With the time that
/// it takes to withdraw them, it is below the revalidation interval of 500 ms.
const CONFIRMATION: Duration = Duration::from_millis(400);

/// The most megaflows that are deleted one by one: estimated at less than 100 ms, not measured.
/// Withdrawing takes the same time for any number.
pub(crate) const MAX_DELETED: usize = 32_768;

/// The latest program under which the revalidator has checked all megaflows.
#[derive(Debug, Default)]
pub(crate) struct Confirmed {
    generation: Mutex<u64>,
    raised: Condvar,
}

impl Confirmed {
    /// Notes that all megaflows were checked under this generation of the program.
    pub fn raise(&self, generation: u64) {
        let mut latest = lock(&self.generation);
        if *latest < generation {
            *latest = generation;
            self.raised.notify_all();
        }
    }

    /// Waits until all megaflows were checked under this generation or a later one, or until
    /// `end`.
    fn wait(&self, generation: u64, end: Instant) {
        let mut latest = lock(&self.generation);
        while *latest < generation {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.raised.wait_timeout(latest, left);
            latest = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Engine {
    /// Publishes another program and returns the number of its generation. Translations in progress
    /// finish with the old program, but their megaflows are not installed. The revalidator, which
    /// is woken, checks the existing megaflows.
    pub fn publish(&self, program: Program) -> u64 {
        let mut records = self.records();
        let mut published = lock(&self.published);
        let number = published.number + 1;
        let new = Arc::new(PublishedProgram { number, since: Instant::now(), program });
        let old = std::mem::replace(&mut *published, Arc::clone(&new));
        drop(published);
        // With the records locked, no megaflow of the old program can get into the new epoch.
        records.begin_epoch(number);
        // Fails only if the datapath has ended, which its other callers report.
        let _ = self.datapath.begin_epoch();
        drop(records);
        {
            // A sweep or revalidation that runs ends early, because of the new epoch.
            let _round = lock(&self.round);
            self.carry_over(&old, &new);
            self.records().end_carrying(number);
        }
        self.revalidate_signal.changed();
        // Dropped outside the locks, because that takes long for a large program.
        drop(old);
        number
    }

    /// Puts a published program in force. It waits until the revalidator has checked all megaflows,
    /// up to 400 ms after the publication. Then it deletes those that were not confirmed, or
    /// withdraws all if they are many.
    ///
    /// # Errors
    /// As [`Engine::withdraw_unconfirmed`].
    pub fn enforce(&self, generation: u64) -> Result<(), DatapathError> {
        let since = lock(&self.published).since;
        self.confirmed.wait(generation, since + CONFIRMATION);
        let removed = {
            let mut records = self.records();
            let unconfirmed = records.unconfirmed();
            if unconfirmed.len() > MAX_DELETED {
                drop(records);
                return self.withdraw_unconfirmed();
            }
            records.enforce();
            remove_records(&mut records, &unconfirmed)
        };
        self.delete(removed)
    }

    /// Withdraws all megaflows that were not put or confirmed since the last publication, also
    /// those that were carried over: the revalidator puts them again. When this has returned, no
    /// packet is forwarded by a decision of an earlier program, except packets that were being
    /// executed.
    ///
    /// # Errors
    /// The datapath has ended, or does not answer. The revalidator continues nevertheless.
    pub fn withdraw_unconfirmed(&self) -> Result<(), DatapathError> {
        let mut records = self.records();
        self.datapath.withdraw_unconfirmed()?;
        records.withdraw_unconfirmed();
        drop(records);
        // Megaflows that were carried over are stale now.
        self.revalidate_signal.changed();
        Ok(())
    }
}
