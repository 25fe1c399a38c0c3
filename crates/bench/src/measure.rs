//! The cost of a run: processor time and underlay frames, as differences of two snapshots.

use std::time::{Duration, Instant};

use netdev::cpu::{CpuTimes, ticks_per_second};

use crate::Result;
use crate::lab::WireCounters;
use crate::stats::ratio;

/// All counters at one instant.
#[derive(Clone, Debug)]
pub struct Snapshot {
    at: Instant,
    cpu: CpuTimes,
    wire: WireCounters,
    received: Vec<u64>,
}

impl Snapshot {
    /// The processor times now, together with the underlay counters `wire` and the bytes `received`
    /// on each connection.
    ///
    /// # Errors
    /// The kernel's processor times cannot be read.
    pub fn now(wire: WireCounters, received: Vec<u64>) -> Result<Self> {
        Ok(Self { at: Instant::now(), cpu: CpuTimes::now()?, wire, received })
    }
}

/// The differences between two snapshots.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Usage {
    /// Length of the interval.
    pub seconds: f64,
    /// Payload bits per second over all connections, in 10^9.
    pub gbps: f64,
    /// Payload bytes that each connection's receiver read.
    pub connection_bytes: Vec<u64>,
    /// Busy share of all processors of the machine, 0 to 1.
    pub cpu_busy: f64,
    /// Busy processor time in seconds, summed over the processors.
    pub cpu_seconds: f64,
    /// Busy processor seconds for 10^9 payload bits.
    pub cpu_seconds_per_gbit: f64,
    /// Share of the machine's time that the hypervisor took (steal time), 0 to 1.
    pub cpu_steal: f64,
    /// Frames per second on the underlay, both directions; a super-packet counts as one.
    pub wire_frames_per_second: f64,
    /// Bytes per second on the underlay, both directions.
    pub wire_bytes_per_second: f64,
    /// Frames that the underlay devices dropped.
    pub wire_dropped: u64,
}

impl Usage {
    /// The differences from `start` to `end`.
    pub fn between(start: &Snapshot, end: &Snapshot) -> Self {
        let elapsed = end.at.saturating_duration_since(start.at).max(Duration::from_micros(1));
        let seconds = elapsed.as_secs_f64();
        let cpu = end.cpu - start.cpu;
        let connection_bytes: Vec<u64> =
            end.received.iter().zip(&start.received).map(|(e, s)| e.saturating_sub(*s)).collect();
        let gbit = connection_bytes.iter().sum::<u64>() as f64 * 8.0 / 1e9;
        let cpu_seconds = cpu.busy() as f64 / ticks_per_second() as f64;
        let per_second = |end: u64, start: u64| end.saturating_sub(start) as f64 / seconds;
        Self {
            seconds,
            gbps: gbit / seconds,
            connection_bytes,
            cpu_busy: cpu.utilisation(),
            cpu_seconds,
            cpu_seconds_per_gbit: ratio(cpu_seconds, gbit).unwrap_or(0.0),
            cpu_steal: ratio(cpu.steal as f64, cpu.total() as f64).unwrap_or(0.0),
            wire_frames_per_second: per_second(end.wire.frames, start.wire.frames),
            wire_bytes_per_second: per_second(end.wire.bytes, start.wire.bytes),
            wire_dropped: end.wire.dropped.saturating_sub(start.wire.dropped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_the_difference_when_counters_grow() {
        let at = Instant::now();
        let start = Snapshot {
            at,
            cpu: CpuTimes { user: 100, idle: 100, ..CpuTimes::default() },
            wire: WireCounters { frames: 10, bytes: 1000, dropped: 1 },
            received: vec![0, 500],
        };
        let end = Snapshot {
            at: at + Duration::from_secs(2),
            cpu: CpuTimes { user: 250, idle: 150, steal: 50, ..CpuTimes::default() },
            wire: WireCounters { frames: 30, bytes: 5000, dropped: 4 },
            received: vec![1_000_000_000, 500],
        };
        let usage = Usage::between(&start, &end);
        assert_eq!(usage.connection_bytes, [1_000_000_000, 0]);
        assert!((usage.gbps - 4.0).abs() < 1e-9);
        assert!((usage.cpu_busy - 0.6).abs() < 1e-9 && (usage.cpu_steal - 0.2).abs() < 1e-9);
        assert!((usage.cpu_seconds * ticks_per_second() as f64 - 150.0).abs() < 1e-9);
        assert_eq!((usage.wire_frames_per_second, usage.wire_dropped), (10.0, 3));
    }
}
