//! All that CI checks. A failed step does not hide what the later ones would say.
//!
//! Tests wait for a third of their time, and a build ends with one crate at a time. So steps that
//! measure no time run beside them, at the lowest priority.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::run::{run, target_dir};
use crate::{demo, deps, lint, packages, prose, test};

/// The steps beside the others, one after another: the name of each and its task of `cargo xtask`.
/// The exact gate counts instructions, which do not depend on the load of the machine.
const BESIDE: [(&str, &str); 4] = [
    ("release", "dist"),
    ("exact gate", "exact-gate"),
    ("fuzz smoke", "fuzz-smoke"),
    ("book", "book"),
];

/// A step of [`BESIDE`] that has ended.
struct Ended {
    name: &'static str,
    result: Result<()>,
    took: Duration,
    log: String,
}

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
        self.note(name, &result, start.elapsed());
        result.is_ok()
    }

    /// Prints what a step that ran beside the others printed, and notes how it ended.
    fn add(&mut self, ended: &Ended) {
        println!("\n=== {}, beside the steps above", ended.name);
        println!("{}", ended.log.trim_end());
        self.note(ended.name, &ended.result, ended.took);
        self.passed += usize::from(ended.result.is_ok());
        self.failed += usize::from(ended.result.is_err());
    }

    fn note(&mut self, name: &str, result: &Result<()>, took: Duration) {
        let took = seconds(took);
        let line = match result {
            Ok(()) => format!("{name}: ok, {took}"),
            Err(error) => format!("{name}: FAILED, {took}: {error:#}"),
        };
        println!("=== {line}");
        self.steps.push(line);
    }
}

/// Runs the steps of [`BESIDE`].
fn run_beside() -> Vec<Ended> {
    let step = |(name, task): (&'static str, &str)| {
        let start = Instant::now();
        let log = target_dir().join(format!("ci-{task}.log"));
        let result = run_logged(task, &log);
        let log = fs::read(&log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        Ended { name, result, took: start.elapsed(), log }
    };
    BESIDE.into_iter().map(step).collect()
}

/// Runs a task of `cargo xtask` as a process of the lowest priority. Its output goes to `log`.
fn run_logged(task: &str, log: &Path) -> Result<()> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(std::env::current_exe()?).arg(task);
    command.stdout(file.try_clone()?).stderr(file);
    let status = command.status().context("cannot start nice")?;
    ensure!(status.success(), "cargo xtask {task} failed ({status})");
    Ok(())
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
    let beside = thread::spawn(run_beside);
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
    match beside.join() {
        Ok(all) => all.iter().for_each(|ended| tally.add(ended)),
        Err(_) => tally.step("the steps beside the others", || bail!("their thread panicked")),
    }
    tally.step("demo", || run(&mut demo::prepare(&["--seconds".to_owned(), "1".to_owned()])?));

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
