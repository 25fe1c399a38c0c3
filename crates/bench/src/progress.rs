//! What is being done, for a person who waits: a bar on a terminal, a line for each trial elsewhere, nothing when quiet.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often the bar moves while a step lasts.
const TICK: Duration = Duration::from_millis(120);
const TEMPLATE: &str = "{spinner} [{elapsed}, {eta} left] {bar:20} {pos}/{len} {wide_msg}";

/// Progress of a demo or a study, on standard error.
pub(crate) struct Progress {
    bar: ProgressBar,
    lines: bool,
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
        Self { bar, lines: !quiet && !terminal }
    }

    /// The beginning of a trial.
    pub(crate) fn trial(&self, what: &str) {
        if self.lines {
            eprintln!("{what}");
        }
    }

    /// The beginning of a step of a trial.
    pub(crate) fn step(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// There is more to do than was said at the start.
    pub(crate) fn more(&self, steps: usize) {
        self.bar.inc_length(steps as u64);
    }

    /// The end of a trial.
    pub(crate) fn done(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
