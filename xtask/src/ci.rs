//! Runs all checks of CI, in order. After a failed step, the later steps still run.

use std::fs;
use std::panic::resume_unwind;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};

use crate::architecture::Architecture;
use crate::run::{Background, run};
use crate::{advisories, agreement, book, demo, deps, exact, lint, packages, prose, sbom, test};

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

    /// Prints the output of a step that ran in parallel with others, and records its result.
    fn parallel_step(&mut self, name: &str, step: ParallelStep) {
        println!("\n=== {name}");
        print!("{}", step.printed);
        let elapsed = format!("{} in parallel with other steps", seconds(step.elapsed));
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
    // Linking the release occupies only one processor, so it runs in parallel with other
    // compilation.
    let release = Background::start(demo::release_build());
    tally.step("format", || lint::fmt(true));
    tally.step("dependencies", deps::check);
    tally.step("licences", || sbom::write(Architecture::Amd64).map(drop));
    tally.step("advisories", advisories::is_checked);
    tally.step("kept run of the programs", agreement::is_kept);
    tally.step("prose", prose::check);
    tally.step("book", book::book);
    tally.step("build, clippy and documentation", test::build_and_check);
    // Tests often wait, so other steps run in parallel. Their results do not depend on the load.
    let beside = thread::spawn(|| count_and_package(release));
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
    tally.parallel_step("release", release);
    tally.parallel_step("exact gate", gate);
    tally.parallel_step("Debian packages", packages);
    // The demo does not run in parallel with the tests, because only one demo or study can measure
    // on a host at a time.
    let mut demo = Command::new("make");
    // As in the README. Options of a make that started this must not hide a failure.
    demo.args(["demo", "ARGS=--seconds 0.1"]).env_remove("MAKEFLAGS").env_remove("MFLAGS");
    tally.step("demo", || run(&mut demo));

    println!("\n=== {}, {} of processor time", seconds(start.elapsed()), seconds(processor_time()));
    counts.print_panics();
    tally.steps.iter().for_each(|line| println!("{line}"));
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed > 0 {
        bail!("CI failed");
    }
    Ok(())
}

/// The output and result of a step that ran in parallel with others.
struct ParallelStep {
    printed: String,
    result: Result<()>,
    elapsed: Duration,
}

impl ParallelStep {
    /// Waits for the program of a step.
    fn finish(program: Result<Background>) -> Self {
        let (printed, elapsed, result) = match program {
            Ok(program) => program.finish(),
            Err(error) => (String::new(), Duration::ZERO, Err(error)),
        };
        Self { printed, result, elapsed }
    }
}

/// Waits for the build of the release, counts its instructions, and makes packages of it.
fn count_and_package(release: Result<Background>) -> [ParallelStep; 3] {
    let release = ParallelStep::finish(release);
    if release.result.is_err() {
        let absent = || ParallelStep::finish(Err(anyhow!("there is no release")));
        return [release, absent(), absent()];
    }
    // `current_exe()` is not used: a new build may have replaced the file, and then its path is
    // wrong.
    let mut deb = Command::new(std::env::args_os().next().unwrap_or_default());
    deb.arg("deb");
    let packages = Background::start(deb);
    let gate = exact::comparison().and_then(Background::start);
    let gate = ParallelStep::finish(gate);
    [release, gate, ParallelStep::finish(packages)]
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
