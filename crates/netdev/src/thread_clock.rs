//! The processor time that this thread has used.

use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The processor time that this thread has used since it was started, in the kernel and in
/// userspace. Reading it is a system call.
pub fn now() -> Duration {
    // The clock exists since Linux 2.6.12.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
