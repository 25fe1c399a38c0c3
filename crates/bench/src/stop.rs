//! The flag that ends a run early. Every wait of this crate polls it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netdev::signal::Signals;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Error, Result};

/// How often a wait polls the flag.
const POLL: Duration = Duration::from_millis(10);

/// A flag that a signal or another thread raises, and that stays raised. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A flag that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag that SIGINT, SIGTERM and SIGHUP raise instead of ending this process. Call this
    /// before any other thread starts.
    ///
    /// # Errors
    /// The signals cannot be blocked, or no thread can be started to wait for them.
    pub fn on_signals() -> Result<Self> {
        let signals = Signals::take()?;
        let stop = Self::new();
        let raised = stop.clone();
        let wait = move || {
            while !raised.is_raised() {
                let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
                // The result of poll is ignored: the next line reads the pending signal, if any.
                let _ = poll(&mut fds, PollTimeout::NONE);
                match signals.read() {
                    Ok(None) => {}
                    Ok(Some(signal)) => {
                        tracing::info!(?signal, "stopping");
                        raised.raise();
                    }
                    Err(error) => {
                        tracing::error!(%error, "stopping: signals can no longer be read");
                        raised.raise();
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("signals".into()).spawn(wait);
        thread.map_err(Error::io("start a thread for signals"))?;
        Ok(stop)
    }

    /// Raises the flag.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True once the flag is raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`Error::Interrupted`] once the flag is raised.
    pub fn check(&self) -> Result<()> {
        if self.is_raised() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Sleeps for `duration`.
    ///
    /// # Errors
    /// [`Error::Interrupted`] as soon as the flag is raised.
    pub fn sleep(&self, duration: Duration) -> Result<()> {
        let end = Instant::now() + duration;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(POLL));
        }
    }

    /// Polls `ready` until it returns a value; `what` names the awaited event.
    ///
    /// # Errors
    /// [`Error::Deadline`] after `limit`, [`Error::Interrupted`] once the flag is raised, or the
    /// error of `ready`.
    pub fn wait_for<T>(
        &self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let end = Instant::now() + limit;
        loop {
            if let Some(value) = ready()? {
                return Ok(value);
            }
            if Instant::now() >= end {
                let (what, detail) = (what.to_owned(), String::new());
                return Err(Error::Deadline { what, limit, detail });
            }
            self.sleep(POLL)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_ends_at_once_when_the_flag_is_raised() {
        let stop = Stop::new();
        stop.raise();
        assert!(stop.sleep(Duration::from_secs(3600)).is_err_and(|e| e.is_interrupted()));
    }

    #[test]
    fn wait_fails_with_the_deadline_when_nothing_happens() {
        let wait = |ready| {
            Stop::new()
                .wait_for("the event", Duration::from_millis(1), || Ok(ready))
                .map_err(|e| e.to_string())
        };
        assert_eq!(wait(Some(7)), Ok(7));
        assert_eq!(wait(None), Err("the event did not happen within 0.0 s".into()));
    }
}
