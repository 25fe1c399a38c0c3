//! Runs all checks of CI, in order. After a failed step, the later steps still run.

use std::fs;
use std::panic::resume_unwind;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};

use crate::architecture::Architecture;
use crate::run::{Background, run};
use crate::{advisories, book, demo, deps, exact, lint, packages, prose, sbom, test};

/// The totals of the whole run.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    /// The result of each step, in one line.
    steps: Vec<String>,
}

impl Tally {
    /// Announces a step, runs it and records its result.
    fn step(&mut self, name: &str, task: impl FnOnce() -> Result<()>) {
        let passed = self.announce(name, task);
        self.passed += usize::from(passed);
        self.failed += usize::from(!passed);
    }

    fn announce(&mut self, name: &str, task: impl FnOnce() -> Result<()>) -> bool {
        println!("\n=== {name}");
        let (start, used) = (Instant::now(), processor_time());
        let result = task();
        let used = processor_time().saturating_sub(used);
        // Processor time of a background process counts for the step during which the process ends.
        let elapsed = format!("{}, {} of processor time", seconds(start.elapsed()), seconds(used));
        self.end(name, &result, &elapsed)
    }

    /// Prints what a step that ran beside the tests has printed, and notes how it ended.
    fn step_beside(&mut self, name: &str, step: BesideTests) {
        println!("\n=== {name}");
        print!("{}", step.printed);
        let elapsed = format!("{} beside other steps", seconds(step.elapsed));
        let passed = self.end(name, &step.result, &elapsed);
        self.passed += usize::from(passed);
        self.failed += usize::from(!passed);
    }

    fn end(&mut self, name: &str, result: &Result<()>, elapsed: &str) -> bool {
        let line = match result {
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
    ensure!(test::in_ci(), "CI=true is not set: call .ci/run");
    let start = Instant::now();
    let mut tally = Tally::default();
    tally.step("packages", || {
        packages::ensure(&packages::all())?;
        packages::fetch_guest_kernel()
    });
    // The link of the release occupies one processor, so it is built beside all that is compiled.
    let (release, release_start) = (Background::start(demo::release_build()), Instant::now());
    tally.step("format", || lint::fmt(true));
    tally.step("dependencies", deps::check);
    tally.step("licences", || sbom::write(Architecture::Amd64).map(drop));
    tally.step("advisories", advisories::is_checked);
    tally.step("prose", prose::check);
    tally.step("book", book::book);
    tally.step("build, clippy and documentation", test::build_and_check);
    // Tests often wait, and none of this depends on what else runs.
    let beside = thread::spawn(move || count_and_package(release, release_start));
    let mut counts = test::Counts::default();
    let tested = tally.announce("test", || {
        let (all, result) = test::count(&test::Options::default(), true);
        counts = all;
        result
    });
    tally.passed += counts.passed;
    // A run that failed in another way (for example, it did not compile or it skipped tests) counts
    // as one failure.
    tally.failed += if tested { counts.failed } else { counts.failed.max(1) };
    let [release, gate, packages] = beside.join().unwrap_or_else(|panic| resume_unwind(panic));
    tally.step_beside("release", release);
    tally.step_beside("exact gate", gate);
    tally.step_beside("Debian packages", packages);
    // Not beside the tests: one demo or study at a time measures on a host.
    tally.step("demo", || run(Command::new("make").args(["demo", "ARGS=--seconds 0.1"])));

    println!("\n=== {}, {} of processor time", seconds(start.elapsed()), seconds(processor_time()));
    counts.print_panics();
    tally.steps.iter().for_each(|line| println!("{line}"));
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed > 0 {
        bail!("CI failed");
    }
    Ok(())
}

/// The end of a step that ran beside the tests.
struct BesideTests {
    printed: String,
    result: Result<()>,
    elapsed: Duration,
}

impl BesideTests {
    /// Waits for the program of a step that began at `start`.
    fn finish(program: Result<Background>, start: Instant) -> Self {
        let (printed, result) = match program {
            Ok(program) => program.finish(),
            Err(error) => (String::new(), Err(error)),
        };
        Self { printed, result, elapsed: start.elapsed() }
    }
}

/// Waits for the build of the release, counts its instructions, and makes packages of it.
fn count_and_package(release: Result<Background>, release_start: Instant) -> [BesideTests; 3] {
    let release = BesideTests::finish(release, release_start);
    let start = Instant::now();
    if release.result.is_err() {
        let absent = || BesideTests::finish(Err(anyhow!("there is no release")), start);
        return [release, absent(), absent()];
    }
    // `current_exe()` is not used: a new build may have replaced the file, and then its path is
    // wrong.
    let mut deb = Command::new(std::env::args_os().next().unwrap_or_default());
    deb.arg("deb");
    let packages = Background::start(deb);
    let gate = exact::comparison().and_then(Background::start);
    let gate = BesideTests::finish(gate, start);
    [release, gate, BesideTests::finish(packages, start)]
}

/// The processor time of all programs that this one has waited for, and of their descendants:
/// `cutime` and `cstime` in `/proc/self/stat`, in the kernel's ticks of 10 ms.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program name ends with the last parenthesis, and may contain spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(13).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

fn seconds(time: Duration) -> String {
    format!("{:.0} s", time.as_secs_f64())
}
