//! What a switch counts.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// Everything a switch counts, at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct SwitchStats {
    /// The number of the program's generation: 1 at first, one more with every program published.
    pub generation: u64,
    /// Megaflows on record.
    pub megaflows: u64,
    /// How many different origins they have: flows that decided, and answers that these rest on.
    pub origins: u64,
    /// Packets that came up and were answered.
    pub upcalls: u64,
    /// Of these, packets for which the answer to one just before did.
    pub reused: u64,
    /// Copies for a controller, which there is not.
    pub controller: u64,
    /// Probes of other hosts, and answers to own ones.
    #[serde(default)]
    pub probes: u64,
    /// Megaflows that the datapath was given.
    pub put: u64,
    /// Megaflows deleted, for whatever reason.
    pub deleted: u64,
    /// Of these, those that no packet had hit for long.
    pub idle: u64,
    /// Of these, those that nobody knew of.
    pub strangers: u64,
    /// Megaflows that the datapath has lost, or never took.
    pub vanished: u64,
    /// Packets answered without a megaflow, because there were too many.
    pub refused: u64,
    /// Packets answered without a megaflow, because the one that is there waits for its revalidation.
    pub outdated: u64,
    /// Packets cached one by one, because their port had too many masks, or all together.
    pub mask_limited: u64,
    /// Bindings and stations known.
    pub learned: u64,
    /// Lessons learnt.
    pub lessons: u64,
    /// Lessons refused because what is configured says otherwise.
    pub lessons_configured: u64,
    /// Lessons refused because their port had taught as much as one port may.
    pub lessons_port_full: u64,
    /// Lessons refused because there was no room left, or only for ports that have taught less.
    pub lessons_table_full: u64,
    /// Times that all megaflows were gone through.
    pub sweeps: u64,
    /// Megaflows translated again because something had changed.
    pub revalidated: u64,
    /// The longest that going through all megaflows took, in milliseconds.
    pub longest_sweep_ms: u64,
}

/// A count that several threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
    }

    pub fn at_least(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts of [`SwitchStats`] that nobody else keeps.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub upcalls: Counter,
    pub reused: Counter,
    pub controller: Counter,
    pub probes: Counter,
    pub put: Counter,
    pub deleted: Counter,
    pub idle: Counter,
    pub strangers: Counter,
    pub vanished: Counter,
    pub refused: Counter,
    pub outdated: Counter,
    pub mask_limited: Counter,
    pub lessons: Counter,
    pub sweeps: Counter,
    pub revalidated: Counter,
    pub longest_sweep_ms: Counter,
}

impl Counters {
    pub fn stats(&self) -> SwitchStats {
        SwitchStats {
            upcalls: self.upcalls.value(),
            reused: self.reused.value(),
            controller: self.controller.value(),
            put: self.put.value(),
            deleted: self.deleted.value(),
            idle: self.idle.value(),
            strangers: self.strangers.value(),
            vanished: self.vanished.value(),
            refused: self.refused.value(),
            outdated: self.outdated.value(),
            mask_limited: self.mask_limited.value(),
            lessons: self.lessons.value(),
            sweeps: self.sweeps.value(),
            revalidated: self.revalidated.value(),
            longest_sweep_ms: self.longest_sweep_ms.value(),
            ..SwitchStats::default()
        }
    }
}
