//! What the revalidator waits for.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Why the waiting has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// It is time for the next sweep.
    Due,
    /// Something has changed.
    Changed,
    /// Everything ends.
    Stop,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    changed: bool,
    stopped: bool,
}

impl Alarm {
    /// Something has changed.
    pub fn changed(&self) {
        let mut state = self.lock();
        if !state.changed {
            state.changed = true;
            drop(state);
            self.bell.notify_all();
        }
    }

    /// Everything ends.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.bell.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Waits until `due`, or until something has changed, but for that until `earliest` at least.
    pub fn wait(&self, due: Instant, earliest: Instant) -> Call {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let until = if state.changed { due.min(earliest) } else { due };
            if state.stopped {
                return Call::Stop;
            }
            if now >= until {
                state.changed = false;
                return if now >= due { Call::Due } else { Call::Changed };
            }
            let waited = self.bell.wait_timeout(state, until - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Two flags are always whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
