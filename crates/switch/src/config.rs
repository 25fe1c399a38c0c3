//! The configuration of a switch.

use pipeline::LearnLimits;
use std::time::Duration;

/// The configuration of a switch.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The limits of the megaflow cache and of held packets.
    pub limits: Limits,
    /// The limits of learned state.
    pub learn: LearnLimits,
}

/// The limits of the megaflow cache and of held packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most megaflows. One port may have no more than remain free, so that a flooding port
    /// leaves room for the others.
    pub megaflows: usize,
    /// The most different masks of one port's megaflows. Beyond that, the port's megaflows are
    /// exact-match and share one additional mask.
    pub masks_per_port: usize,
    /// The most different masks of all megaflows, without the exact-match one. A port may add no
    /// more new masks than remain free. A packet that raises an upcall was compared with all masks:
    /// 1,024 of them take about 10 µs, as long as a few translations.
    pub masks: usize,
    /// A megaflow without a packet for this time is deleted.
    pub idle: Duration,
    /// The same for megaflows whose first packet was ARP or neighbour discovery, unless `idle` is
    /// longer. Guests confirm a neighbour in use every 15 to 45 s. The eBPF programs can then
    /// forward such a request, and its reply, also while no daemon runs.
    pub idle_neighbours: Duration,
    /// The most megaflows of one port to which `idle_neighbours` applies.
    pub neighbours_per_port: usize,
    /// Replaces `idle` for all megaflows while the cache is more than 7/8 full.
    pub idle_when_full: Duration,
    /// The interval of revalidation. No stale megaflow survives longer.
    pub revalidate: Duration,
    /// The number of threads that translate packets; at least one.
    pub upcall_workers: usize,
    /// The most packets that are held until the MAC address of their next hop is known.
    pub held_packets: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            megaflows: 200_000,
            masks_per_port: 256,
            masks: 1024,
            idle: Duration::from_secs(10),
            idle_neighbours: Duration::from_secs(120),
            neighbours_per_port: 4096,
            idle_when_full: Duration::from_secs(1),
            revalidate: Duration::from_millis(500),
            upcall_workers: 1,
            held_packets: 256,
        }
    }
}
