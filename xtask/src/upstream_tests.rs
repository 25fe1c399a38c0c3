//! Runs test suites of OVN and Open vSwitch with weft, for the tasks `ovn-system-tests` and
//! `ovs-traffic-tests`.
//!
//! The user passes the path of a source tree, of which nothing is compiled. autom4te generates the
//! shell script of the tests from it. Scripts in `packaging/` act as the programs that weft
//! replaces, such as ovs-vswitchd. Each test runs in separate namespaces
//! (`packaging/system-test.sh`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::demo::commit;
use crate::run::{run, target_dir};

/// The script that runs one test.
const SCRIPT: &str = "packaging/system-test.sh";

/// The options that the tasks have in common.
#[derive(Args)]
pub struct RunOptions {
    /// Arguments of `weft run`, such as `--datapath=user`
    #[arg(long, value_name = "ARGUMENTS", default_value = "", allow_hyphen_values = true)]
    weft: String,
    /// Seconds that a test may take
    #[arg(long, value_name = "SECONDS", default_value_t = 150)]
    limit: u32,
    /// How many tests run at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Write the table of results to this file
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// The number of tests that must pass; fail if fewer do
    #[arg(long, default_value_t = 0)]
    least: usize,
}

/// A test of a suite.
pub struct Test {
    /// Its number in the table of results.
    pub place: usize,
    /// Its number in the script of the suite, as `testsuite --list` shows it.
    pub number: usize,
    pub title: String,
}

/// The result of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Pass,
    Fail,
    Skip,
}

impl Outcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Skip => "skip",
        }
    }
}

/// The text around a table of results.
pub struct Report<'a> {
    pub title: &'a str,
    /// The task of xtask that runs the tests.
    pub task: &'a str,
    /// How the environment of the tests differs from what they expect.
    pub note: &'a str,
    /// The file with the reasons why tests fail, by title.
    pub reasons: &'a str,
}

/// The script of a test suite, and the directory in which it runs.
pub struct Suite {
    base: PathBuf,
    script: PathBuf,
    /// The environment variables of each test.
    environment: Vec<(&'static str, &'static str)>,
}

impl Suite {
    /// Creates a directory for a test suite, with the macros and tests in `sources`.
    pub fn new(name: &str, sources: &Path) -> Result<Self> {
        // The tests create Unix sockets there. Linux limits their paths to 107 bytes.
        let base = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        for directory in ["bin", "tests", "m4"] {
            fs::create_dir_all(base.join(directory))?;
        }
        for directory in ["tests", "m4"] {
            let from = sources.join(directory);
            for entry in fs::read_dir(&from).with_context(|| from.display().to_string())? {
                let path = entry?.path();
                if path.extension().is_some_and(|end| end == "at" || end == "m4") {
                    let name = path.file_name().unwrap_or_default();
                    fs::copy(&path, base.join(directory).join(name))?;
                }
            }
        }
        let script = base.join("testsuite");
        Ok(Self { base, script, environment: Vec::new() })
    }

    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Sets an environment variable for each test.
    pub fn set(&mut self, name: &'static str, value: &'static str) {
        self.environment.push((name, value));
    }

    /// Generates the script from the file `main` in the sources of `project`, whose version is read
    /// from `configure.ac`.
    pub fn build(&self, project: &str, sources: &Path, main: &str) -> Result<()> {
        let configure = fs::read_to_string(sources.join("configure.ac"))?;
        let package = package(project, &version(project, &configure));
        fs::write(self.base.join("package.m4"), package)?;
        let mut command = Command::new("autom4te");
        command.args(["--language=autotest", "-I", ".", "-o", "testsuite", main]);
        run(command.current_dir(&self.base))?;
        let atlocal = fs::read_to_string(sources.join("tests/atlocal.in"))?;
        fs::write(self.base.join("atlocal"), configured(&atlocal))?;
        Ok(())
    }

    /// Writes `atconfig`, a file that `configure` would generate. It contains directories for the
    /// tests.
    pub fn configure(&self, sources: &Path, ovs: &Path) -> Result<()> {
        let (sources, ovs, base) = (sources.display(), ovs.display(), self.base.display());
        let text = format!(
            "at_testdir='tests'\nabs_builddir='{base}/tests'\nat_srcdir='{sources}/tests'\n\
             abs_srcdir='{sources}/tests'\nat_top_srcdir='{sources}'\nabs_top_srcdir='{sources}'\n\
             at_top_build_prefix='{base}/'\nabs_top_builddir='{base}'\nat_top_builddir='{base}'\n\
             AUTOTEST_PATH='{base}/bin'\nSHELL=/bin/bash\novs_srcdir='{ovs}'\n\
             PATH={base}/bin:/usr/sbin:/usr/bin:/sbin:/bin\nexport PATH\n"
        );
        Ok(fs::write(self.base.join("atconfig"), text)?)
    }

    /// Links `program` as `name` in the first directory of the tests' PATH.
    pub fn link(&self, name: &str, program: &str) -> Result<()> {
        let program = std::path::absolute(program)?;
        Ok(std::os::unix::fs::symlink(program, self.base.join("bin").join(name))?)
    }

    /// Writes the shell script `text` as `name` to the first directory of the tests' PATH.
    pub fn program(&self, name: &str, text: &str) -> Result<()> {
        let path = self.base.join("bin").join(name);
        fs::write(&path, text)?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?)
    }

    /// The output of `testsuite --list`.
    pub fn list(&self) -> Result<String> {
        let output = Command::new(&self.script).arg("--list").current_dir(&self.base).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs tests, prints a table of results, and writes it to the file that `options` names.
    ///
    /// # Errors
    /// A program cannot be started, or fewer than `options.least` tests pass.
    pub fn run(&self, tests: &[Test], options: &RunOptions, report: &Report<'_>) -> Result<()> {
        let start = Instant::now();
        let outcomes = self.outcomes(tests, options)?;
        let reasons = fs::read_to_string(report.reasons).context(report.reasons.to_owned())?;
        let minutes = start.elapsed().as_secs().div_ceil(60);
        let table = table(tests, &outcomes, &read_reasons(&reasons), (report, minutes));
        print!("\n{table}");
        if let Some(path) = &options.table {
            fs::write(path, &table).with_context(|| path.display().to_string())?;
        }
        println!("the logs are in {}", self.base.display());
        let passed = outcomes.values().filter(|outcome| **outcome == Outcome::Pass).count();
        if passed < options.least {
            bail!("fewer than {} tests pass", options.least);
        }
        Ok(())
    }

    fn outcomes(&self, tests: &[Test], options: &RunOptions) -> Result<BTreeMap<usize, Outcome>> {
        let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        std::thread::scope(|scope| {
            let worker = || -> Result<()> {
                while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begin = Instant::now();
                    let outcome = self.run_one(test, options)?;
                    let Test { place, title, .. } = test;
                    let seconds = begin.elapsed().as_secs();
                    println!("{} {seconds:>3} s {place:>3} {title}", outcome.name());
                    let mut outcomes = outcomes.lock().unwrap_or_else(|error| error.into_inner());
                    outcomes.insert(*place, outcome);
                }
                Ok(())
            };
            let workers: Vec<_> = (0..options.jobs.max(1)).map(|_| scope.spawn(worker)).collect();
            let joined = workers.into_iter().map(|worker| {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect::<Result<Vec<()>>>()
        })?;
        Ok(outcomes.into_inner().unwrap_or_else(|error| error.into_inner()))
    }

    /// Runs a test in a separate directory.
    fn run_one(&self, test: &Test, options: &RunOptions) -> Result<Outcome> {
        let directory = self.base.join(test.place.to_string());
        fs::create_dir(&directory)?;
        for name in ["atconfig", "atlocal"] {
            fs::copy(self.base.join(name), directory.join(name))?;
        }
        let output = fs::File::create(directory.join("output"))?;
        let mut script = Command::new("timeout");
        script.args(["--kill-after=5", &options.limit.to_string(), SCRIPT]).arg(&directory);
        script.arg(&self.script).arg(test.number.to_string());
        script.env("WEFT", std::path::absolute(target_dir().join("debug/weft"))?);
        script.env("WEFT_ARGUMENTS", &options.weft);
        script.envs(self.environment.iter().copied());
        script.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let status = script.status().context("cannot start timeout")?;
        let output = fs::read_to_string(directory.join("output")).unwrap_or_default();
        let is_skipped = output.contains("1 test was skipped") || output.contains(" skipped (");
        Ok(match status.success() {
            true if is_skipped => Outcome::Skip,
            true => Outcome::Pass,
            false => Outcome::Fail,
        })
    }
}

/// Parses the output of `testsuite --list`: number, place `FILE:LINE` and title of each test.
pub fn read_list(list: &str) -> impl Iterator<Item = (usize, &str, &str)> {
    list.lines().filter_map(|line| {
        let (number, rest) = line.split_once(": ")?;
        let (place, title) = rest.split_once(char::is_whitespace)?;
        Some((number.trim().parse().ok()?, place, title.trim()))
    })
}

/// The version in `configure.ac`.
fn version(project: &str, configure: &str) -> String {
    let start = configure.split(&format!("AC_INIT({project},")).nth(1).unwrap_or_default();
    start.split(',').next().unwrap_or_default().trim().to_owned()
}

fn package(project: &str, version: &str) -> String {
    format!(
        "m4_define([AT_PACKAGE_NAME], [{project}])\n\
         m4_define([AT_PACKAGE_TARNAME], [{project}])\n\
         m4_define([AT_PACKAGE_VERSION], [{version}])\n\
         m4_define([AT_PACKAGE_STRING], [{project} {version}])\n\
         m4_define([AT_PACKAGE_BUGREPORT], [])\nm4_define([AT_PACKAGE_URL], [])\n"
    )
}

/// The text of `atlocal.in`, with the values that `configure` would insert.
fn configured(text: &str) -> String {
    [
        ("@HAVE_OPENSSL@", "no"),
        ("@OPENSSL_SUPPORTS_SNI@", "no"),
        ("@HAVE_UNBOUND@", "no"),
        ("@EGREP@", "grep -E"),
        ("@PYTHON3@", "python3"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// Parses lines of the form `TITLE: REASON`, in which the title contains no colon.
fn read_reasons(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(": ")).collect()
}

fn table(
    tests: &[Test],
    outcomes: &BTreeMap<usize, Outcome>,
    reasons: &BTreeMap<&str, &str>,
    (report, minutes): (&Report<'_>, u64),
) -> String {
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%MZ"]).output();
    let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let count = |wanted| outcomes.values().filter(|outcome| **outcome == wanted).count();
    let Report { title, task, note, .. } = report;
    let mut text = format!(
        "# {title}\n\n{}, commit {}, `cargo xtask {task}`, {minutes} min.\n\n\
         {} pass, {} fail, {} are skipped, of {}.\n\n{note}\n\n\
         | number | test | result | reason |\n|---|---|---|---|\n",
        date.unwrap_or_default(),
        commit().unwrap_or_default(),
        count(Outcome::Pass),
        count(Outcome::Fail),
        count(Outcome::Skip),
        tests.len(),
    );
    for test in tests {
        let Some(outcome) = outcomes.get(&test.place) else { continue };
        let reason = match outcome {
            Outcome::Pass => "",
            _ => reasons.get(test.title.as_str()).copied().unwrap_or("not examined"),
        };
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "| {} | {} | {} | {reason} |", test.place, test.title, outcome.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_found_by_its_title() {
        let reasons = read_reasons("# comment: x\nLB - IPv6: reads tables: 45\n");
        assert_eq!(reasons.get("LB - IPv6"), Some(&"reads tables: 45"));
        assert_eq!(reasons.len(), 1);
    }

    #[test]
    fn version_is_found_when_another_project_is_mentioned() {
        let text = "AC_INIT(ovn, 23.03.1, bugs@ovn)\nAC_INIT(openvswitch, 3.1.0, bugs@ovs)\n";
        assert_eq!(version("openvswitch", text), "3.1.0");
        assert_eq!(version("ovn", text), "23.03.1");
    }
}
