//! [`MissPauses`]: refuses the misses of ports that have used up their processor time.
//!
//! The programs have a token bucket of misses for each port. A pause empties it and moves the time
//! up to which it is filled into the future, in the programs' own clock. Until then they drop the
//! port's misses, as `upcall_queue_full`. A program that takes tokens at the same moment may undo a
//! pause. The misses are then punted, userspace charges the port for them, and pauses it again.

use crate::abi::{self, weft_drop_key, weft_token_bucket};
use crate::map_error::MapError;
use crate::object::LoadedObject;
use crate::struct_bytes::struct_bytes;
use flow::{DropCounters, DropReason, PortNo};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::{Mutex, PoisonError};
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
    /// What the programs had counted as `upcall_queue_full` before; `None` if the port has not been
    /// paused recently.
    counted: Option<u64>,
    /// What was counted so during pauses.
    refused: u64,
}

impl MissPauses {
    pub(crate) fn new(loaded: &LoadedObject) -> Result<Self, MapError> {
        Ok(Self {
            buckets: loaded.map("weft_miss_limit")?,
            drops: loaded.map("weft_drops")?,
            ports: Mutex::default(),
        })
    }

    /// Refuses the misses of a port for this time.
    pub(crate) fn pause(&self, port: PortNo, pause: Duration) -> Result<(), MapError> {
        let key = port.0.to_ne_bytes();
        let Some(bucket) = self.buckets.lookup(&key, MapFlags::ANY)? else { return Ok(()) };
        let at = bucket.get(offset_of!(weft_token_bucket, at_ns)..);
        // The time of the port's last miss, unless the bucket is full.
        let last_ns = at.and_then(<[u8]>::first_chunk).map_or(0, |at| u64::from_ne_bytes(*at));
        if last_ns == 0 {
            // The port has not missed yet.
            return Ok(());
        }
        let at_ns = last_ns.saturating_add(pause.as_nanos() as u64);
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let paused =
            ports.entry(port).or_insert(PausedPort { until: now, counted: None, refused: 0 });
        paused.until = now + pause;
        if paused.counted.is_none() {
            paused.counted = Some(self.counted(port)?);
        }
        let emptied = struct_bytes!(weft_token_bucket { at_ns: at_ns, tokens: 0 });
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
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(paused) = ports.get_mut(&port) else { return };
        let count = drops.count(DropReason::UpcallQueueFull);
        if let Some(counted) = paused.counted {
            paused.refused += count.saturating_sub(counted);
            paused.counted = Some(count).filter(|_| now < paused.until + AFTER_PAUSE);
        }
        drops.rename(DropReason::UpcallQueueFull, DropReason::UpcallBudget, paused.refused);
    }

    /// Forgets a port that was removed.
    pub(crate) fn forget(&self, port: PortNo) {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).remove(&port);
    }
}
