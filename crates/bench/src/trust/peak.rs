//! Records which resources a switch uses during an attack.

use std::time::{Duration, Instant};

use super::attack::Attack;
use super::test_bed::{TestBed, number};
use crate::Result;

/// How often the switch's counters are read.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The highest resource use of the switch.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakUsage {
    /// Megaflows in all caches.
    pub megaflows: u64,
    /// Megaflow masks.
    pub masks: u64,
    /// The connections opened by A's port, and by tunnels of the other host. Only with a SYN flood.
    pub connections: [u64; 2],
    /// Resident bytes after the warm-up.
    pub warm_bytes: u64,
    /// The connections opened by A's port until the end of the warm-up.
    pub warm_connections: u64,
    /// Resident bytes since then.
    pub late_bytes: u64,
}

impl PeakUsage {
    /// Ends the warm-up: from now on, growth of memory counts.
    pub fn end_warm_up(&mut self) {
        self.warm_bytes = std::mem::take(&mut self.late_bytes);
        self.warm_connections = self.connections[0];
    }

    /// Waits for `duration`, and records the highest resource use of the switch of the first host.
    ///
    /// # Errors
    /// A daemon does not respond or has ended.
    pub fn watch(
        &mut self,
        bed: &mut TestBed<'_>,
        attack: Attack,
        duration: Duration,
    ) -> Result<()> {
        let end = Instant::now() + duration;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            bed.pass(left.min(CHECK_INTERVAL))?;
            let counters = bed.counters(0)?;
            self.megaflows = self.megaflows.max(number(&counters, "/megaflows/megaflows"));
            self.masks = self.masks.max(number(&counters, "/megaflows/masks"));
            self.late_bytes = self.late_bytes.max(bed.footprint(0)?.resident_bytes);
            if attack == Attack::SynFlood {
                let attacker = bed.lab().guest(0, 0).name();
                for (host, port) in [attacker.as_str(), "tunnel"].into_iter().enumerate() {
                    let connections = bed.port_connections(host, port)?;
                    self.connections[host] = self.connections[host].max(connections);
                }
            }
        }
    }
}
