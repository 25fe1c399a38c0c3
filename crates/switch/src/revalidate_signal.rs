//! [`RevalidateSignal`]: wakes the revalidator thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Why the revalidator wakes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WakeReason {
    /// The next periodic sweep is due.
    Due,
    /// The program or learned state has changed.
    Changed,
    /// A connection with fused megaflows has changed.
    ConnectionChanged,
    /// The switch stops.
    Stop,
}

/// A signal that may be raised from any thread.
#[derive(Debug, Default)]
pub(crate) struct RevalidateSignal {
    state: Mutex<PendingWakeUps>,
    raised: Condvar,
}

#[derive(Debug, Default)]
struct PendingWakeUps {
    changed: bool,
    connection_changed: bool,
    stopped: bool,
}

impl RevalidateSignal {
    /// Reports a change of the program or of learned state.
    pub fn changed(&self) {
        let mut state = self.lock();
        if !state.changed {
            state.changed = true;
            drop(state);
            self.raised.notify_all();
        }
    }

    /// Reports a change of a connection with fused megaflows.
    pub fn connection_changed(&self) {
        let mut state = self.lock();
        if !state.connection_changed {
            state.connection_changed = true;
            drop(state);
            self.raised.notify_all();
        }
    }

    /// Stops the revalidator.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.raised.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Waits until `due`. A reported change ends the wait earlier, but not before `earliest`.
    pub fn wait(&self, due: Instant, earliest: Instant) -> WakeReason {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let has_changed = state.changed || state.connection_changed;
            let until = if has_changed { due.min(earliest) } else { due };
            if state.stopped {
                return WakeReason::Stop;
            }
            if now >= until {
                // A sweep and a revalidation also handle changed connections.
                state.connection_changed = false;
                let is_whole = std::mem::take(&mut state.changed);
                return match is_whole {
                    _ if now >= due => WakeReason::Due,
                    true => WakeReason::Changed,
                    false => WakeReason::ConnectionChanged,
                };
            }
            let waited = self.raised.wait_timeout(state, until - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, PendingWakeUps> {
        // A panic cannot leave the flags inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
