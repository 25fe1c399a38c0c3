//! What is being done, for a person who waits: a bar on a terminal, a line for each trial elsewhere, nothing when quiet. Both say how long
//! the rest takes.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often the bar moves while a step lasts.
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

    /// So many steps are done at the same time: until as many have ended, those that have say nothing of how long one takes.
    pub(crate) fn at_once(mut self, steps: usize) -> Self {
        self.at_once = steps;
        self
    }

    /// The beginning of a trial.
    pub(crate) fn trial(&self, what: &str) {
        if self.lines {
            let steps = self.steps.load(Ordering::Relaxed);
            let done = self.done.load(Ordering::Relaxed);
            let known = done >= self.at_once.min(steps);
            let left = left(self.begin.elapsed(), done, steps).filter(|_| known);
            let left = left.map_or_else(String::new, |left| format!(", {} left", duration(left)));
            // In one piece: what else is printed, by whichever thread, comes before or behind it.
            let line = format!("{what}{left}\n");
            eprint!("{line}");
        }
    }

    /// The beginning of a step of a trial.
    pub(crate) fn step(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// There is more to do than was said at the start.
    pub(crate) fn more(&self, steps: usize) {
        self.steps.fetch_add(steps, Ordering::Relaxed);
        self.bar.inc_length(steps as u64);
    }

    /// The end of a trial.
    pub(crate) fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.bar.inc(1);
    }

    /// Has `print` write to the terminal without the bar in its way.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

/// How long the rest of `steps` takes when `done` of them have taken `elapsed`; not known before the first is done.
fn left(elapsed: Duration, done: usize, steps: usize) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(steps.saturating_sub(done) as f64 / done as f64))
}

/// `7 min 5 s`.
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
    fn rest_is_as_slow_as_what_is_done() {
        let left = |done| left(Duration::from_secs(90), done, 4).map(duration);
        assert_eq!(left(0), None);
        assert_eq!(left(1).as_deref(), Some("4 min 30 s"));
        assert_eq!(left(4).as_deref(), Some("0 s"));
    }
}
