//! Progress on standard error: a bar on a terminal, a line for each trial elsewhere, and nothing
//! when quiet. Both forms estimate the remaining time.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often the bar is redrawn while a step lasts.
const TICK: Duration = Duration::from_millis(120);
const TEMPLATE: &str = "{spinner} [{elapsed}, {eta} left] {bar:20} {pos}/{len} {wide_msg}";

/// Progress of a demo, a study or a count, on standard error.
pub(crate) struct Progress {
    bar: ProgressBar,
    lines: bool,
    begin: Instant,
    steps: AtomicUsize,
    at_once: usize,
    done: AtomicUsize,
}

impl Progress {
    pub(crate) fn start(steps: usize, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if quiet || !terminal {
            ProgressBar::hidden()
        } else {
            let bar = ProgressBar::new(steps as u64);
            if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
            bar
        };
        let (begin, steps, done) = (Instant::now(), AtomicUsize::new(steps), AtomicUsize::new(0));
        Self { bar, lines: !quiet && !terminal, begin, steps, at_once: 1, done }
    }

    /// Sets how many steps run at the same time. No estimate is shown before that many have ended.
    pub(crate) fn at_once(mut self, steps: usize) -> Self {
        self.at_once = steps;
        self
    }

    /// A trial begins.
    pub(crate) fn trial(&self, what: &str) {
        if self.lines {
            let steps = self.steps.load(Ordering::Relaxed);
            let done = self.done.load(Ordering::Relaxed);
            let known = done >= self.at_once.min(steps);
            let left = left(self.begin.elapsed(), done, steps).filter(|_| known);
            let left = left.map_or_else(String::new, |left| format!(", {} left", duration(left)));
            // One call, so that lines of several threads do not mix.
            let line = format!("{what}{left}\n");
            eprint!("{line}");
        }
    }

    /// A step of a trial begins.
    pub(crate) fn step(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Adds steps that were not known at the start.
    pub(crate) fn more(&self, steps: usize) {
        self.steps.fetch_add(steps, Ordering::Relaxed);
        self.bar.inc_length(steps as u64);
    }

    /// A trial has ended.
    pub(crate) fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.bar.inc(1);
    }

    /// Hides the bar while `print` writes to the terminal.
    pub(crate) fn suspended<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

/// The remaining time of `steps`, if the first `done` of them took `elapsed`; `None` before the
/// first is done.
fn left(elapsed: Duration, done: usize, steps: usize) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(steps.saturating_sub(done) as f64 / done as f64))
}

/// Formats a duration, such as `7 min 5 s`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().round() as u64;
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_steps_are_estimated_by_the_ones_that_are_done() {
        let left = |done| left(Duration::from_secs(90), done, 4).map(duration);
        assert_eq!(left(0), None);
        assert_eq!(left(1).as_deref(), Some("4 min 30 s"));
        assert_eq!(left(4).as_deref(), Some("0 s"));
    }
}
