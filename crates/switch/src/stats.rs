//! The counters of a switch.

use datapath::histogram::{Histogram, HistogramCounts};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of a switch at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct SwitchStats {
    /// The generation of the program, from 1 on; each published program adds 1.
    pub generation: u64,
    /// Recorded megaflows.
    pub megaflows: u64,
    /// Different origins of these: matched flows, and learned state that they read.
    pub origins: u64,
    /// Upcalls answered.
    pub upcalls: u64,
    /// Of these, upcalls that shared the decision of an earlier one in the batch.
    pub reused: u64,
    /// Packet copies for the controller: the health checks. Without any, they are discarded.
    pub controller: u64,
    /// Of these, copies that were dropped because the controller's queue was full.
    #[serde(default)]
    pub controller_lost: u64,
    /// Path MTU probes received: requests, and replies to own ones.
    #[serde(default)]
    pub probes: u64,
    /// Megaflows installed.
    pub put: u64,
    /// Megaflows deleted for any reason.
    pub deleted: u64,
    /// Of these, idle ones.
    pub idle: u64,
    /// Of these, ones that had no record.
    pub strangers: u64,
    /// Recorded megaflows that the datapath did not have.
    pub vanished: u64,
    /// Packets answered without a megaflow because a limit was reached.
    pub refused: u64,
    /// Packets answered without a megaflow because the existing one awaits revalidation.
    pub outdated: u64,
    /// Megaflows made exact-match because a limit of masks was reached.
    pub mask_limited: u64,
    /// Known MAC bindings and stations.
    pub learned: u64,
    /// Learn events accepted.
    pub learn_accepted: u64,
    /// Learn events refused because they contradict a configured entry.
    pub learn_refused_configured: u64,
    /// Learn events refused because their port had reached its limit.
    pub learn_refused_port_full: u64,
    /// Learn events refused because the table was full, or its rest is reserved for other ports.
    pub learn_refused_table_full: u64,
    /// Learn events that no other host is told of, because too many were waiting.
    #[serde(default)]
    pub learn_unreported: u64,
    /// Packets held until the MAC address of their next hop is known.
    #[serde(default)]
    pub held: u64,
    /// Of these, packets that were sent then.
    #[serde(default)]
    pub held_sent: u64,
    /// Of these, packets given up: no address came in time, or newer packets took their place.
    #[serde(default)]
    pub held_lost: u64,
    /// Sweeps over all megaflows.
    pub sweeps: u64,
    /// Megaflows translated again after a change.
    pub revalidated: u64,
    /// Megaflows that a new program left as they are, because nothing has changed for them.
    #[serde(default)]
    pub carried_over: u64,
    /// Megaflows that the self-check compared with the program.
    #[serde(default)]
    pub self_checks: u64,
    /// Of these, wrong ones, which it deleted.
    #[serde(default)]
    pub self_check_faults: u64,
    /// Recorded megaflows that are fused: they do at once what all passes of a packet through the
    /// connection tracker do.
    #[serde(default)]
    pub fused: u64,
    /// Fused megaflows installed.
    #[serde(default)]
    pub fusions: u64,
    /// Fused megaflows deleted because a connection changed.
    #[serde(default)]
    pub fusions_ended: u64,
    /// Proposals to fuse passes that the program does not allow.
    #[serde(default)]
    pub fusions_refused: u64,
    /// The duration of the longest sweep in milliseconds.
    pub longest_sweep_ms: u64,
    /// The time from a packet's upcall to its answer, in nanoseconds.
    #[serde(default)]
    pub upcall_latencies_ns: HistogramCounts,
    /// The durations of sweeps, in nanoseconds.
    #[serde(default)]
    pub sweeps_ns: HistogramCounts,
    /// The durations of revalidations after a change, in nanoseconds.
    #[serde(default)]
    pub revalidations_ns: HistogramCounts,
}

/// A counter that several threads add to.
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

/// The counters of [`SwitchStats`] that no other part of the switch keeps.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub upcalls: Counter,
    pub reused: Counter,
    pub controller: Counter,
    pub controller_lost: Counter,
    pub probes: Counter,
    pub put: Counter,
    pub deleted: Counter,
    pub idle: Counter,
    pub strangers: Counter,
    pub vanished: Counter,
    pub refused: Counter,
    pub outdated: Counter,
    pub mask_limited: Counter,
    pub learn_accepted: Counter,
    pub learn_unreported: Counter,
    pub held: Counter,
    pub held_sent: Counter,
    pub held_lost: Counter,
    pub sweeps: Counter,
    pub revalidated: Counter,
    pub carried_over: Counter,
    pub self_checks: Counter,
    pub self_check_faults: Counter,
    pub fusions: Counter,
    pub fusions_ended: Counter,
    pub fusions_refused: Counter,
    pub longest_sweep_ms: Counter,
    pub upcall_latencies: Histogram,
    pub sweep_durations: Histogram,
    pub revalidation_durations: Histogram,
}

impl Counters {
    pub fn stats(&self) -> SwitchStats {
        SwitchStats {
            upcalls: self.upcalls.value(),
            reused: self.reused.value(),
            controller: self.controller.value(),
            controller_lost: self.controller_lost.value(),
            probes: self.probes.value(),
            put: self.put.value(),
            deleted: self.deleted.value(),
            idle: self.idle.value(),
            strangers: self.strangers.value(),
            vanished: self.vanished.value(),
            refused: self.refused.value(),
            outdated: self.outdated.value(),
            mask_limited: self.mask_limited.value(),
            learn_accepted: self.learn_accepted.value(),
            learn_unreported: self.learn_unreported.value(),
            held: self.held.value(),
            held_sent: self.held_sent.value(),
            held_lost: self.held_lost.value(),
            sweeps: self.sweeps.value(),
            revalidated: self.revalidated.value(),
            carried_over: self.carried_over.value(),
            self_checks: self.self_checks.value(),
            self_check_faults: self.self_check_faults.value(),
            fusions: self.fusions.value(),
            fusions_ended: self.fusions_ended.value(),
            fusions_refused: self.fusions_refused.value(),
            longest_sweep_ms: self.longest_sweep_ms.value(),
            upcall_latencies_ns: self.upcall_latencies.counts(),
            sweeps_ns: self.sweep_durations.counts(),
            revalidations_ns: self.revalidation_durations.counts(),
            ..SwitchStats::default()
        }
    }
}
