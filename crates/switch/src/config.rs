//! What a switch is given to begin with.

use pipeline::LearnLimits;
use std::time::Duration;

/// How a switch behaves.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// How much it may cache, and for how long.
    pub limits: Limits,
    /// How much it may learn, and for how long.
    pub learn: LearnLimits,
}

/// How much a switch may cache, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Megaflows. One port may have as many as are still free besides, so that one that floods leaves room for others.
    pub megaflows: usize,
    /// Different masks of one port's megaflows. Beyond that, its packets are cached one by one, all with one more mask.
    pub masks_per_port: usize,
    /// Different masks of all megaflows, not counting that one. A port may bring as many as are still free besides, and any that
    /// is there already. A packet that comes up has been compared with all of them: 1,024 take about 10 µs, as long as a
    /// few translations.
    pub masks: usize,
    /// After this time without a packet a megaflow is deleted.
    pub idle: Duration,
    /// The same when more than 7/8 of all megaflows are there.
    pub idle_when_full: Duration,
    /// How often all megaflows are gone through. Nothing that is out of date is there for longer.
    pub revalidate: Duration,
    /// Threads that translate packets; at least one.
    pub upcall_workers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            megaflows: 200_000,
            masks_per_port: 256,
            masks: 1024,
            idle: Duration::from_secs(10),
            idle_when_full: Duration::from_secs(1),
            revalidate: Duration::from_millis(500),
            upcall_workers: 1,
        }
    }
}
