//! Runs all tests, and reports which of them were skipped.
//!
//! A test that needs root or a package is an ordinary `#[test]`. If this is missing, the test skips
//! itself and reports it (crate `testkit`, module `report`). The report is a file that contains the
//! lines `SKIPPED test: why`, `PEER name: what`, and `LACKING what: why` (a tested component lacks
//! a feature for which there are tests). The variable `WEFT_TEST_REPORT` contains its path.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::packages;
use crate::run::{Background, cargo, run, show, succeeded, target_dir};

/// The options of `cargo xtask test`.
#[derive(Args, Default)]
pub struct Options {
    /// Install nothing and do not become root: tests that need either are skipped, and listed
    #[arg(long)]
    no_root: bool,
    /// Arguments of `cargo test`, for example -p wire
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Options {
    fn selects_package(&self) -> bool {
        self.arguments.iter().any(|word| word.starts_with("-p") || word.starts_with("--package"))
    }
}

/// The modules of end-to-end tests that check how packets are forwarded. They run a second time
/// with the user datapath.
const WITH_BOTH_DATAPATHS: [&str; 7] =
    ["overlay::", "kernel_vxlan::", "ovs::", "ovn::", "dissect::", "refusals::", "commands::"];
/// Tests of these modules that do not run a second time. They choose the datapath themselves, or
/// they test programs and files rather than packets. Or they test messages from the physical
/// network or health checks, which both datapaths pass to the daemon and send in the same way.
const WITH_ONE_RUN: [&str; 19] = [
    "commands::counters::",
    "commands::faults::",
    "commands::graph::",
    "commands::log::",
    "commands::reload::reload_fails_and_the_switch_goes_on_when_the_file_is_a_pipe",
    "commands::support::",
    "commands::top::",
    "ovn::announced::",
    "ovn::devices::",
    "ovn::health::",
    "ovn::killed_host_stays_in_the_deployment",
    "ovn::learned::",
    "ovn::localnet::programs_forward_to_",
    "ovn::openflow::",
    "ovn::tools::",
    "refusals::checksums::",
    "refusals::guards::",
    "refusals::hidden::",
    "refusals::strangers::",
];

/// The variable that tells the test harness how many tests to run at the same time.
const THREADS: &str = "RUST_TEST_THREADS";

/// The number of tests. `passed` does not include skipped tests, although the test harness counts
/// them as passed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    /// The first lines of each failed test's panic message.
    panics: Vec<Vec<String>>,
    /// True if the last line belonged to the last element of `panics`.
    in_panic: bool,
}

/// The lines that the tests wrote to their report, without duplicates and sorted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    skipped: BTreeSet<String>,
    peers: BTreeSet<String>,
    lacking: BTreeSet<String>,
}

/// Whether this process may create namespaces and devices, directly or with sudo.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Root {
    Already,
    BySudo,
    Unreachable,
}

/// Determines whether root is available. Asks for sudo's password if there is a terminal.
pub fn root() -> Root {
    if fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
        return Root::Already;
    }
    let sudo = |option: &str| {
        let mut command = Command::new("sudo");
        command.arg(option).stdout(Stdio::null());
        if option == "-n" {
            command.arg("true").stderr(Stdio::null());
        }
        command.status().is_ok_and(|status| status.success())
    };
    if sudo("-n") || (std::io::stdin().is_terminal() && sudo("-v")) {
        Root::BySudo
    } else {
        Root::Unreachable
    }
}

/// True in CI (`CI=true`). There, a skipped test is a failure, and crates are checked when they are
/// compiled.
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Runs the tests.
pub fn test(options: &Options) -> Result<()> {
    let (_, result) = count(options, in_ci());
    result
}

/// Runs the tests. Returns the counts, and an error if a test failed or (with `skips_fail`) was
/// skipped.
pub fn count(options: &Options, skips_fail: bool) -> (Counts, Result<()>) {
    let mut counts = Counts::default();
    let result = run_tests(options, skips_fail, &mut counts);
    (counts, result)
}

fn run_tests(options: &Options, skips_fail: bool, counts: &mut Counts) -> Result<()> {
    let root = if options.no_root { Root::Unreachable } else { root() };
    if !options.no_root {
        packages::ensure(&[&packages::BUILD[..], &packages::TEST].concat())?;
        packages::fetch_guest_kernel()?;
    }
    let tests = Tests { root, report: fresh_report()? };
    let end = if options.arguments.is_empty() {
        tests.run_all(counts)
    } else {
        let mut words = vec!["--no-fail-fast"];
        if !options.selects_package() {
            words.push("--workspace");
        }
        words.extend(options.arguments.iter().map(String::as_str));
        run_counted(&mut tests.command(&words, test_threads())?, counts)
    };

    let report = Report::parse(&fs::read_to_string(&tests.report).context("the test report")?);
    counts.passed = counts.passed.saturating_sub(report.skipped.len());
    report.print(counts);
    end?;
    if skips_fail && !report.skipped.is_empty() {
        bail!("{} tests were skipped, and CI=true forbids that", report.skipped.len());
    }
    Ok(())
}

/// Builds all tests.
pub fn build() -> Result<()> {
    run(&mut cargo_for_tests(&["test", "--workspace", "--no-run"])?)
}

/// Builds all targets of all crates, with warnings as errors. In CI, this includes the warnings of
/// clippy and rustdoc.
pub fn build_and_check() -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    let build = cargo_for_tests(&["build", "--workspace", "--all-targets", "--color", "never"])?;
    let (printed, _, result) = Background::start(build)?.finish();
    print!("{printed}");
    result?;
    ensure!(!printed.lines().any(|line| line.starts_with("warning")), "there are warnings");
    Ok(())
}

/// A cargo command that uses the output of [`build_and_check`]. In CI, a script compiles the crates
/// of the workspace, and cargo would rebuild all of them if it were called without that script.
pub fn cargo_for_tests(arguments: &[&str]) -> Result<Command> {
    let mut command = cargo(arguments);
    if in_ci() {
        let script = fs::canonicalize("scripts/check-crate.sh")?;
        command.env("RUSTC_WORKSPACE_WRAPPER", script);
    }
    Ok(command)
}

/// How test programs are started.
struct Tests {
    root: Root,
    report: PathBuf,
}

impl Tests {
    /// Builds all tests and runs them. The end-to-end tests wait for a third of their time, so the
    /// other tests run in parallel. The output of those is printed after all have ended.
    fn run_all(&self, counts: &mut Counts) -> Result<()> {
        build()?;
        let threads = test_threads();
        // A pattern that excludes "e2e": names whose second character is not 2.
        let others = ["--workspace", "--no-fail-fast", "--lib", "--bins", "--test", "?[!2]*"];
        let documentation = ["--workspace", "--doc"];
        // With `--workspace`, dependencies have the same features as in the build, so they are not
        // compiled again.
        let end_to_end = ["--workspace", "--test", "e2e", "--"];
        // By default, these tests use the kernel datapath if the host supports it.
        let mut with_default = self.command(&end_to_end, threads)?;
        let skipped = WITH_ONE_RUN.map(|name| ["--skip", name]);
        let with_user = [&end_to_end[..], &WITH_BOTH_DATAPATHS, skipped.as_flattened()].concat();
        // Few other tests run in parallel with these, which wait for two thirds of their time. So
        // there are more threads.
        let mut with_user = self.command(&with_user, 2 * threads)?;
        with_user.env("WEFT_TEST_DATAPATH", "user");
        let beside =
            [self.command(&others, threads * 3 / 4)?, self.command(&documentation, threads / 2)?];
        let (mut end, beside) = std::thread::scope(|scope| {
            let beside = scope.spawn(|| {
                let finish = |command| Background::start(command).map(Background::finish);
                beside.into_iter().map(finish).collect::<Vec<_>>()
            });
            let end = run_counted(&mut with_default, counts);
            let end = end.and(run_counted(&mut with_user, counts));
            (end, beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        for finished in beside {
            let (printed, _, result) = finished?;
            print!("{printed}");
            printed.lines().for_each(|line| counts.add_line(line));
            end = end.and(result);
        }
        end
    }

    /// A command that runs up to `threads` tests at the same time.
    fn command(&self, words: &[&str], threads: usize) -> Result<Command> {
        let mut command = cargo_for_tests(&["test"])?;
        command.args(words).env("WEFT_TEST_REPORT", &self.report);
        if std::env::var_os(THREADS).is_none() {
            command.env(THREADS, threads.max(1).to_string());
        }
        if self.root == Root::BySudo {
            // Builds run as the user; only the test programs run as root.
            command.env(runner_variable()?, "sudo --preserve-env");
        }
        Ok(command)
    }
}

/// How many tests run at the same time. This is more than the number of CPUs, because end-to-end
/// tests wait for a third of their time. The variable [`THREADS`] overrides it for each test
/// program.
fn test_threads() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from)
}

/// Creates an empty report. Its path is absolute, so that tests can use it in any directory.
fn fresh_report() -> Result<PathBuf> {
    fs::create_dir_all(target_dir())?;
    let path = fs::canonicalize(target_dir())?.join("test-report.txt");
    fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The variable that tells cargo to start programs for this host through another program.
fn runner_variable() -> Result<String> {
    let triple = host_triple()?.to_uppercase().replace('-', "_");
    Ok(format!("CARGO_TARGET_{triple}_RUNNER"))
}

/// The target triple of this host.
pub fn host_triple() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start rustc")?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("rustc -vV names no host")
}

/// Runs `cargo test`, prints its output, and adds its results to `counts`.
fn run_counted(command: &mut Command, counts: &mut Counts) -> Result<()> {
    show(command);
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            counts.add_line(&line);
        }
    }
    let status = child.wait()?;
    succeeded(command, status)
}

impl Counts {
    /// Prints the panic messages of all failed tests at the end. CI's output may be cut in the
    /// middle, and failures are hard to find in it.
    pub fn print_panics(&self) {
        self.panics.iter().flatten().for_each(|line| println!("{line}"));
    }

    /// Processes an output line of a test program. Adds the numbers of a line like `test result:
    /// FAILED. 3 passed; 1 failed; 0 ignored`, and keeps panic messages.
    fn add_line(&mut self, line: &str) {
        /// The location of a panic, its message, both values of a comparison, and one spare line.
        const MAX_LINES: usize = 5;
        if let Some((thread, _)) = line.split_once(" panicked at ")
            && thread.starts_with("thread '")
        {
            // A property test panics at each shrinking step. The last panic is that of its smallest
            // input.
            let is_same = |panic: &mut Vec<String>| {
                panic.first().is_some_and(|first| first.starts_with(thread))
            };
            self.panics.pop_if(is_same);
            self.panics.push(Vec::new());
            self.in_panic = true;
        }
        let is_end = ["stack backtrace:", "note: "].iter().any(|end| line.starts_with(end));
        self.in_panic &= !line.is_empty() && !is_end;
        if self.in_panic
            && let Some(panic) = self.panics.last_mut()
            && panic.len() < MAX_LINES
        {
            panic.push(line.to_owned());
        }
        let Some(result) = line.strip_prefix("test result: ") else { return };
        for part in result.split_once(". ").map_or("", |(_, counts)| counts).split("; ") {
            match part.split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

impl Report {
    fn parse(text: &str) -> Self {
        let pick = |kind: &str| {
            text.lines().filter_map(|line| line.strip_prefix(kind)).map(str::to_owned).collect()
        };
        Self { skipped: pick("SKIPPED "), peers: pick("PEER "), lacking: pick("LACKING ") }
    }

    fn print(&self, counts: &Counts) {
        println!();
        if self.peers.is_empty() {
            println!("Real peers run against: none");
        } else {
            println!("Real peers run against:");
            self.peers.iter().for_each(|peer| println!("  {peer}"));
        }
        if !self.lacking.is_empty() {
            println!("Not done by what was tested, and not tested:");
            self.lacking.iter().for_each(|what| println!("  {what}"));
        }
        if !self.skipped.is_empty() {
            println!("Skipped tests:");
            self.skipped.iter().for_each(|test| println!("  {test}"));
        }
        counts.print_panics();
        println!(
            "{} passed, {} failed, {} skipped",
            counts.passed,
            counts.failed,
            self.skipped.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_added_up_when_tests_fail() {
        let mut counts = Counts::default();
        for line in [
            "running 5 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: of mine ... ok",
        ] {
            counts.add_line(line);
        }
        assert_eq!(counts, Counts { passed: 7, failed: 2, ..Counts::default() });
    }

    #[test]
    fn panics_are_kept_without_their_backtraces() {
        let first = ["thread 'a::b' (7) panicked at a.rs:1:9:", "waited 20s in vain: a frame"];
        let second = [
            "thread 'a::c' (8) panicked at a.rs:2:9:",
            "assertion `left == right` failed",
            "  left: 1500",
            " right: 1400",
        ];
        let mut counts = Counts::default();
        let larger = ["thread 'a::c' (8) panicked at a.rs:3:9:", "a larger input"];
        let after = ["stack backtrace:", "   0: main", "", "note: none"];
        let lines = first.iter().chain(&after).chain(&larger).chain(&second);
        lines.chain(&["", "failures:"]).for_each(|line| counts.add_line(line));
        assert_eq!(counts.panics, [&first[..], &second]);
    }

    #[test]
    fn report_names_each_line_once_when_repeated() {
        let report = Report::parse(
            "PEER ovs: gre\nSKIPPED a: root\nPEER ovs: gre\nnoise\nLACKING stt: no helper\n",
        );
        assert_eq!(report.lacking, BTreeSet::from(["stt: no helper".to_owned()]));
        assert_eq!(report.peers, BTreeSet::from(["ovs: gre".to_owned()]));
        assert_eq!(report.skipped, BTreeSet::from(["a: root".to_owned()]));
    }
}
