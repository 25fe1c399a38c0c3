//! The time since the host booted (CLOCK_BOOTTIME): it includes suspend, and is the same for all
//! processes.

use std::fs;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The time since the host was booted.
pub fn now() -> Duration {
    // The clock exists since Linux 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// A number that differs after each boot; 0 if the kernel does not report a boot ID.
pub fn boot() -> u64 {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}
