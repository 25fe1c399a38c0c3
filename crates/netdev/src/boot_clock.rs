//! The time since the host was booted, which goes on while it sleeps and while no process runs.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The time since the host was booted.
pub fn now() -> Duration {
    // The clock exists since Linux 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}
