//! [`MissPauses`]: refuses the misses of ports that have used up their processor time.
//!
//! The programs have a token bucket of misses for each port. A pause empties it and moves the time
//! up to which it is filled into the future, in the programs' own clock. Until then they drop the
//! port's misses, as `upcall_queue_full`. A program that takes tokens at the same moment may undo a
//! pause. The misses are then punted, userspace charges the port for them, and orders the pause
//! again. An order about a pause that is in force changes nothing.

use crate::abi::{self, weft_drop_key, weft_token_bucket};
use crate::map_error::MapError;
use crate::object::LoadedObject;
use crate::struct_bytes::{struct_bytes, u64_at};
use flow::{DropCounters, DropReason, PortNo};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So long after a pause, a port's refused misses still count as refused for its processor time. A
/// port at its limit is paused again and again.
const AFTER_PAUSE: Duration = Duration::from_secs(1);

/// Pauses of the misses of ports, and how many packets they have cost.
#[derive(Debug)]
pub(crate) struct MissPauses {
    buckets: MapHandle,
    drops: MapHandle,
    ports: Mutex<HashMap<PortNo, PausedPort>>,
}

/// A port that was paused at least once.
#[derive(Clone, Copy, Debug)]
struct PausedPort {
    /// The end of the last pause.
    until: Instant,
    /// The same in the programs' clock, as it was written to the bucket.
    until_ns: u64,
    /// What the programs had counted as `upcall_queue_full` before; `None` if the port has not been
    /// paused recently.
    counted: Option<u64>,
    /// What was counted so during pauses.
    refused: u64,
}

impl PausedPort {
    /// Counts what was refused until `now`, when the programs have counted `count`.
    fn add_refused(&mut self, count: u64, now: Instant) {
        if let Some(counted) = self.counted {
            self.refused += count.saturating_sub(counted);
            self.counted = (!self.is_over(now)).then_some(count);
        }
    }

    /// Whether refused misses no longer count as refused for the port's processor time.
    fn is_over(&self, now: Instant) -> bool {
        now >= self.until + AFTER_PAUSE
    }
}

impl MissPauses {
    pub(crate) fn new(loaded: &LoadedObject) -> Result<Self, MapError> {
        Ok(Self {
            buckets: loaded.map("weft_miss_limit")?,
            drops: loaded.map("weft_drops")?,
            ports: Mutex::default(),
        })
    }

    /// Refuses the misses of a port from `now` on for this time.
    pub(crate) fn pause(
        &self,
        port: PortNo,
        pause: Duration,
        now: Instant,
    ) -> Result<(), MapError> {
        let key = port.0.to_ne_bytes();
        let Some(bucket) = self.buckets.lookup(&key, MapFlags::ANY)? else { return Ok(()) };
        // The time of the port's last miss, unless the bucket is full.
        let last_ns = u64_at(&bucket, offset_of!(weft_token_bucket, at_ns));
        let tokens = u64_at(&bucket, offset_of!(weft_token_bucket, tokens));
        if last_ns == 0 {
            // The port has not missed yet.
            return Ok(());
        }
        let mut ports = self.ports();
        let new = PausedPort { until: now, until_ns: 0, counted: None, refused: 0 };
        let paused = ports.entry(port).or_insert(new);
        let lasts = now < paused.until && last_ns == paused.until_ns;
        if lasts && tokens == 0 {
            // No program has undone it.
            return Ok(());
        }
        if !lasts {
            if paused.counted.is_none() {
                paused.counted = Some(self.counted(port)?);
            }
            paused.until = now + pause;
            paused.until_ns = last_ns.saturating_add(pause.as_nanos() as u64);
        }
        let emptied = struct_bytes!(weft_token_bucket { at_ns: paused.until_ns, tokens: 0 });
        Ok(self.buckets.update(&key, &emptied, MapFlags::ANY)?)
    }

    /// What the programs have counted as `upcall_queue_full`.
    fn counted(&self, port: PortNo) -> Result<u64, MapError> {
        let reason = DropReason::UpcallQueueFull as u64;
        let port = u64::from(port.0) << abi::WEFT_DROP_PORT_SHIFT;
        let key = struct_bytes!(weft_drop_key { port_reason: port | reason });
        let cpus = self.drops.lookup_percpu(&key, MapFlags::ANY)?.unwrap_or_default();
        let counts = cpus.iter().filter_map(|cpu| cpu.first_chunk());
        Ok(counts.map(|count| u64::from_ne_bytes(*count)).sum())
    }

    /// Counts the misses of a port that were refused for its processor time as such.
    pub(crate) fn correct(&self, port: PortNo, drops: &mut DropCounters, now: Instant) {
        let mut ports = self.ports();
        let Some(paused) = ports.get_mut(&port) else { return };
        paused.add_refused(drops.count(DropReason::UpcallQueueFull), now);
        drops.rename(DropReason::UpcallQueueFull, DropReason::UpcallBudget, paused.refused);
    }

    /// Ends the count of what was refused for pauses that are over. To be called often, so that
    /// drops of a later time have their own reason, however rarely they are read.
    pub(crate) fn end_counts(&self, now: Instant) -> Result<(), MapError> {
        let mut ports = self.ports();
        for (port, paused) in ports.iter_mut() {
            if paused.counted.is_some() && paused.is_over(now) {
                paused.add_refused(self.counted(*port)?, now);
            }
        }
        Ok(())
    }

    /// Forgets a port that was removed.
    pub(crate) fn forget(&self, port: PortNo) {
        self.ports().remove(&port);
    }

    fn ports(&self) -> MutexGuard<'_, HashMap<PortNo, PausedPort>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{MapSizes, load};
    use flow::EntropySeed;

    const PORT: PortNo = PortNo(3);
    const SECOND: Duration = Duration::from_secs(1);
    const SECOND_NS: u64 = 1_000_000_000;

    fn pauses() -> MissPauses {
        let loaded = load(MapSizes::new(16, 16), &EntropySeed::random()).expect("programs");
        MissPauses::new(&loaded).expect("the maps are there")
    }

    /// Writes a bucket as a program does.
    fn take_tokens(pauses: &MissPauses, at_ns: u64, tokens: u64) {
        let bucket = struct_bytes!(weft_token_bucket { at_ns: at_ns, tokens: tokens });
        pauses.buckets.update(&PORT.0.to_ne_bytes(), &bucket, MapFlags::ANY).expect("written");
    }

    fn bucket(pauses: &MissPauses) -> (u64, u64) {
        let bucket = pauses.buckets.lookup(&PORT.0.to_ne_bytes(), MapFlags::ANY);
        let bucket = bucket.expect("it can be read").expect("arrays have all entries");
        let field = |at| u64_at(&bucket, at);
        (field(offset_of!(weft_token_bucket, at_ns)), field(offset_of!(weft_token_bucket, tokens)))
    }

    #[test]
    fn pause_empties_the_bucket_and_is_renewed_only_after_a_program_has_undone_it() {
        testkit::require_root!();
        let (pauses, start) = (pauses(), Instant::now());
        pauses.pause(PORT, SECOND, start).expect("written");
        assert_eq!(bucket(&pauses), (0, 0), "the port has not missed yet");
        take_tokens(&pauses, 5000, 7);
        pauses.pause(PORT, SECOND, start).expect("written");
        assert_eq!(bucket(&pauses), (5000 + SECOND_NS, 0));
        pauses.pause(PORT, 2 * SECOND, start + SECOND / 2).expect("written");
        assert_eq!(bucket(&pauses), (5000 + SECOND_NS, 0), "it is in force");
        take_tokens(&pauses, 5000 + SECOND_NS, 6);
        pauses.pause(PORT, SECOND, start + SECOND / 2).expect("written");
        assert_eq!(bucket(&pauses), (5000 + SECOND_NS, 0), "only the tokens were undone");
        take_tokens(&pauses, 6000, 6);
        pauses.pause(PORT, SECOND, start + SECOND / 2).expect("written");
        assert_eq!(bucket(&pauses), (6000 + SECOND_NS, 0), "it was undone");
        // After its end, the next one begins at the time in the bucket.
        pauses.pause(PORT, SECOND, start + 2 * SECOND).expect("written");
        assert_eq!(bucket(&pauses), (6000 + 2 * SECOND_NS, 0));
    }

    /// Drops misses as a program does.
    fn drop_misses(pauses: &MissPauses, all: u64) {
        let port = u64::from(PORT.0) << abi::WEFT_DROP_PORT_SHIFT;
        let reason = DropReason::UpcallQueueFull as u64;
        let key = struct_bytes!(weft_drop_key { port_reason: port | reason });
        let mut cpus = vec![vec![0; 8]; libbpf_rs::num_possible_cpus().expect("a number")];
        cpus[0] = all.to_ne_bytes().to_vec();
        pauses.drops.update_percpu(&key, &cpus, MapFlags::ANY).expect("written");
    }

    /// The drops for the budget, when the programs have counted this many misses.
    fn corrected(pauses: &MissPauses, all: u64, now: Instant) -> u64 {
        let mut drops = DropCounters::default();
        drops.add(DropReason::UpcallQueueFull, all);
        pauses.correct(PORT, &mut drops, now);
        assert_eq!(
            drops.count(DropReason::UpcallQueueFull) + drops.count(DropReason::UpcallBudget),
            all
        );
        drops.count(DropReason::UpcallBudget)
    }

    #[test]
    fn misses_that_are_dropped_long_after_a_pause_keep_their_reason() {
        testkit::require_root!();
        let (pauses, start) = (pauses(), Instant::now());
        take_tokens(&pauses, 5000, 7);
        drop_misses(&pauses, 10);
        pauses.pause(PORT, SECOND, start).expect("written");
        drop_misses(&pauses, 30);
        pauses.end_counts(start + SECOND).expect("read");
        drop_misses(&pauses, 35);
        let over = start + SECOND + AFTER_PAUSE;
        pauses.end_counts(over).expect("read");
        drop_misses(&pauses, 1000);
        // The counters are read for the first time.
        assert_eq!(corrected(&pauses, 1000, over + 60 * SECOND), 25);
        pauses.pause(PORT, SECOND, over + 60 * SECOND).expect("written");
        assert_eq!(corrected(&pauses, 1007, over + 61 * SECOND), 32);
    }
}
