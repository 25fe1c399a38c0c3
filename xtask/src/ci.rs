//! All that CI checks, in order. A failed step does not hide what the later ones would say.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::run::run;
use crate::{book, deb, demo, deps, exact, lint, packages, prose, test};

/// The sum of the whole run.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    /// A line for each step.
    steps: Vec<String>,
}

impl Tally {
    /// Announces a step, runs it and notes how it ended.
    fn step(&mut self, name: &str, task: impl FnOnce() -> Result<()>) {
        let passed = self.announce(name, task);
        self.passed += usize::from(passed);
        self.failed += usize::from(!passed);
    }

    fn announce(&mut self, name: &str, task: impl FnOnce() -> Result<()>) -> bool {
        println!("\n=== {name}");
        let start = Instant::now();
        let result = task();
        let elapsed = seconds(start.elapsed());
        let line = match &result {
            Ok(()) => format!("{name}: ok, {elapsed}"),
            Err(error) => format!("{name}: FAILED, {elapsed}: {error:#}"),
        };
        println!("=== {line}");
        self.steps.push(line);
        result.is_ok()
    }
}

/// Runs every check. The last line, `N passed, N failed`, counts every test, and every other step
/// as one.
pub fn ci() -> Result<()> {
    let start = Instant::now();
    let mut tally = Tally::default();
    tally.step("packages", || packages::ensure(&packages::all()));
    tally.step("format", || lint::fmt(true));
    tally.step("dependencies", deps::check);
    tally.step("prose", prose::check);
    tally.step("book", book::book);
    tally.step("clippy", lint::clippy);
    tally.step("documentation", lint::doc);
    let mut counts = test::Counts::default();
    let tested = tally.announce("test", || {
        let (all, result) = test::count(&test::Options::default(), true);
        counts = all;
        result
    });
    tally.passed += counts.passed;
    // A run that failed in some other way (it did not compile, it skipped tests) counts as one
    // failure.
    tally.failed += if tested { counts.failed } else { counts.failed.max(1) };
    tally.step("Debian packages", || deb::deb().map(drop));
    tally.step("exact gate", || exact::gate(&exact::Options::default()));
    tally.step("demo", || run(&mut demo::prepare(&["--seconds".to_owned(), "0.3".to_owned()])?));

    println!("\n=== {}", seconds(start.elapsed()));
    tally.steps.iter().for_each(|line| println!("{line}"));
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed > 0 {
        bail!("CI failed");
    }
    Ok(())
}

fn seconds(time: Duration) -> String {
    format!("{:.0} s", time.as_secs_f64())
}
