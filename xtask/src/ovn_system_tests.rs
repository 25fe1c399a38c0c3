//! `cargo xtask ovn-system-tests`: OVN's own system tests (`tests/system-ovn.at`) with weft in the
//! place of ovs-vswitchd and ovn-controller.
//!
//! The sources of OVN and Open vSwitch are given by path, and nothing of them is built: autom4te
//! makes the shell script of the tests, and Debian's packages give all programs besides the two.
//! Each test runs in namespaces of its own (`packaging/ovn-system-test.sh`).
//!
//! No expectation is changed. weft has no OpenFlow tables, so tests that read them fail. With
//! `--without-openflow`, the statements that call ovs-ofctl are left out. That run shows what
//! packets do in those tests, and is no substitute for the other.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::demo::commit;
use crate::packages;
use crate::run::{cargo, run, target_dir};

/// What runs one test.
const SCRIPT: &str = "packaging/ovn-system-test.sh";
/// weft under the names of the two programs.
const CHASSIS: &str = "packaging/ovn-system-chassis.py";
/// Why tests fail, by title.
const REASONS: &str = "packaging/ovn-system-tests.reasons";
/// What the environment of the tests has in place of what they expect.
const NOTE: &str = "\
`tests/system-ovn.at` of OVN runs unchanged, with the macros of the userspace datapath. One process,
weft, stands for ovs-vswitchd and ovn-controller: a script answers as ovs-vswitchd once ovn-controller
was told to exit. It writes weft's log to the log files of both, in which the tests look for warnings.
The host has a device with the underlay address that the tests name. `nc` is ncat. `ping6` ignores `-v`,
with which that of Debian 12 writes to standard error. Each test runs once, with parallelization=no and
ovn_monitor_all=yes.";
/// Each test exists four times. weft replicates the whole database, and northd is not tested.
const VARIANT: &str = " -- ovn-northd -- parallelization=no -- ovn_monitor_all=yes";

/// The ping of Debian 12 writes a line to standard error with `-v`, that of earlier releases does
/// not.
const PING6: &str = "#!/bin/sh\n[ \"$1\" != -v ] || shift\nexec /usr/bin/ping -6 \"$@\"\n";

/// What to test.
#[derive(Args)]
pub struct Options {
    /// A source tree of OVN
    #[arg(long)]
    ovn: PathBuf,
    /// A source tree of Open vSwitch
    #[arg(long)]
    ovs: PathBuf,
    /// Only tests whose titles contain this text
    title: Option<String>,
    /// Leave out the statements that read or write OpenFlow tables
    #[arg(long)]
    without_openflow: bool,
    /// Arguments of `weft run`, such as `--datapath=user`
    #[arg(long, value_name = "ARGUMENTS", default_value = "", allow_hyphen_values = true)]
    weft: String,
    /// Seconds that a test may take
    #[arg(long, value_name = "SECONDS", default_value_t = 150)]
    limit: u32,
    /// How many tests run at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Keep the table in this file
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// The number of tests that must pass; fail if fewer do
    #[arg(long, default_value_t = 0)]
    least: usize,
}

/// A test of the suite.
struct Test {
    /// Its number among the tests of this variant, from 1.
    place: usize,
    /// Its number in the script.
    number: usize,
    title: String,
}

/// How a test has ended.
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

/// Runs the tests, and prints a table.
pub fn test(options: &Options) -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::OVN_SYSTEM_TESTS].concat())?;
    run(&mut cargo(&["build", "--package", "weft"]))?;
    // Sockets are in there, and their paths have a limit.
    let base = std::env::temp_dir().join(format!("ovn-system-{}", std::process::id()));
    let suite = Suite::build(options, &base)?;
    let tests = suite.tests(options.title.as_deref())?;
    ensure!(!tests.is_empty(), "{} has no such test", options.ovn.display());
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let worker = || -> Result<()> {
            while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                let begin = Instant::now();
                let outcome = suite.run(test, options)?;
                let seconds = begin.elapsed().as_secs();
                println!("{} {:>3} s  {:>2} {}", outcome.name(), seconds, test.place, test.title);
                let mut outcomes = outcomes.lock().unwrap_or_else(|error| error.into_inner());
                outcomes.insert(test.place, outcome);
            }
            Ok(())
        };
        let workers: Vec<_> = (0..options.jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        let joined = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect::<Result<Vec<()>>>()
    })?;
    let outcomes = outcomes.into_inner().unwrap_or_else(|error| error.into_inner());
    let reasons = fs::read_to_string(REASONS).with_context(|| REASONS.to_owned())?;
    let minutes = start.elapsed().as_secs().div_ceil(60);
    let table = table(&tests, &outcomes, &read_reasons(&reasons), (options, minutes));
    print!("\n{table}");
    if let Some(path) = &options.table {
        fs::write(path, &table).with_context(|| path.display().to_string())?;
    }
    println!("the logs are in {}", base.display());
    let passed = outcomes.values().filter(|outcome| **outcome == Outcome::Pass).count();
    if passed < options.least {
        bail!("fewer than {} of OVN's system tests pass", options.least);
    }
    Ok(())
}

/// The script of the tests, and where they run.
struct Suite {
    base: PathBuf,
    script: PathBuf,
}

impl Suite {
    /// Makes the script in `base`, from the sources that the options name.
    fn build(options: &Options, base: &Path) -> Result<Self> {
        let [ovn, ovs] = [&options.ovn, &options.ovs]
            .map(|path| path.canonicalize().with_context(|| path.display().to_string()));
        let (ovn, ovs) = (ovn?, ovs?);
        for directory in ["bin", "tests", "m4"] {
            fs::create_dir_all(base.join(directory))?;
        }
        for directory in ["tests", "m4"] {
            for entry in fs::read_dir(ovn.join(directory)).context("the sources of OVN")? {
                let path = entry?.path();
                if path.extension().is_some_and(|end| end == "at" || end == "m4") {
                    let name = path.file_name().unwrap_or_default();
                    fs::copy(&path, base.join(directory).join(name))?;
                }
            }
        }
        if options.without_openflow {
            let path = base.join("tests/system-ovn.at");
            fs::write(&path, without_openflow(&fs::read_to_string(&path)?))?;
        }
        let version = version(&fs::read_to_string(ovn.join("configure.ac"))?);
        fs::write(base.join("package.m4"), package(&version))?;
        let script = base.join("testsuite");
        let mut command = Command::new("autom4te");
        command.args(["--language=autotest", "-I", ".", "-o", "testsuite"]);
        run(command.arg("tests/system-userspace-testsuite.at").current_dir(base))?;
        for program in ["ovs-vswitchd", "ovn-controller"] {
            let link = base.join("bin").join(program);
            std::os::unix::fs::symlink(std::path::absolute(CHASSIS)?, link)?;
        }
        let ping6 = base.join("bin/ping6");
        fs::write(&ping6, PING6)?;
        fs::set_permissions(&ping6, fs::Permissions::from_mode(0o755))?;
        // The tests expect that netcat ends with its input.
        std::os::unix::fs::symlink("/usr/bin/ncat", base.join("bin/nc"))?;
        fs::write(base.join("atconfig"), atconfig(&ovn, &ovs, base))?;
        let atlocal = fs::read_to_string(ovn.join("tests/atlocal.in"))?;
        fs::write(base.join("atlocal"), configured(&atlocal))?;
        Ok(Self { base: base.to_owned(), script })
    }

    /// The tests of the variant.
    fn tests(&self, title: Option<&str>) -> Result<Vec<Test>> {
        let mut list = Command::new(&self.script);
        let output = list.arg("--list").current_dir(&self.base).output()?;
        let mut tests = read_list(&String::from_utf8_lossy(&output.stdout));
        tests.retain(|test| title.is_none_or(|title| test.title.contains(title)));
        Ok(tests)
    }

    /// Runs a test in a directory of its own.
    fn run(&self, test: &Test, options: &Options) -> Result<Outcome> {
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
        script.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let status = script.status().context("cannot start timeout")?;
        let said = fs::read_to_string(directory.join("output")).unwrap_or_default();
        let is_skipped = said.contains("1 test was skipped") || said.contains(" skipped (");
        Ok(match status.success() {
            true if is_skipped => Outcome::Skip,
            true => Outcome::Pass,
            false => Outcome::Fail,
        })
    }
}

/// Reads the output of `testsuite --list`.
fn read_list(list: &str) -> Vec<Test> {
    let lines = list.lines().filter_map(|line| {
        let (number, rest) = line.split_once(": ")?;
        let title = rest.split_once(char::is_whitespace)?.1.trim();
        Some((number.trim().parse().ok()?, title.strip_suffix(VARIANT)?.to_owned()))
    });
    let numbered = lines.zip(1..);
    numbered.map(|((number, title), place)| Test { place, number, title }).collect()
}

/// Replaces each statement that calls ovs-ofctl by one that does nothing.
fn without_openflow(text: &str) -> String {
    /// The longest statement, in lines.
    const MAX_LINES: usize = 25;
    const MACROS: [&str; 4] =
        ["OVS_WAIT_UNTIL([", "OVS_WAIT_WHILE([", "AT_CHECK([", "AT_CHECK_UNQUOTED(["];
    let lines: Vec<&str> = text.lines().collect();
    let (mut kept, mut at) = (String::new(), 0);
    while let Some(line) = lines.get(at) {
        let start = line.trim_start();
        let is_macro = MACROS.iter().any(|name| start.starts_with(name));
        let is_command = ["ovs-ofctl", "check ovs-ofctl", "on_exit 'ovs-ofctl"]
            .iter()
            .any(|name| start.starts_with(name));
        let len = match is_macro {
            true => (1..=MAX_LINES).find(|len| {
                lines.get(at..at + len).is_some_and(|lines| is_balanced(&lines.join("\n")))
            }),
            false => Some(1),
        };
        let len = len.unwrap_or(1);
        let statement = lines.get(at..at + len).unwrap_or_default().join("\n");
        let is_dropped = is_command || is_macro && statement.contains("ovs-ofctl");
        kept += if is_dropped { ":" } else { &statement };
        kept.push('\n');
        at += len;
    }
    kept
}

fn is_balanced(text: &str) -> bool {
    let count = |wanted: char| text.chars().filter(|character| *character == wanted).count();
    count('(') <= count(')') && count('[') <= count(']')
}

/// The version in `configure.ac`.
fn version(configure: &str) -> String {
    let start = configure.split("AC_INIT(ovn,").nth(1).unwrap_or_default();
    start.split(',').next().unwrap_or_default().trim().to_owned()
}

fn package(version: &str) -> String {
    format!(
        "m4_define([AT_PACKAGE_NAME], [ovn])\nm4_define([AT_PACKAGE_TARNAME], [ovn])\n\
         m4_define([AT_PACKAGE_VERSION], [{version}])\n\
         m4_define([AT_PACKAGE_STRING], [ovn {version}])\n\
         m4_define([AT_PACKAGE_BUGREPORT], [])\nm4_define([AT_PACKAGE_URL], [])\n"
    )
}

/// What `configure` would tell the tests about directories.
fn atconfig(ovn: &Path, ovs: &Path, base: &Path) -> String {
    let (ovn, ovs, base) = (ovn.display(), ovs.display(), base.display());
    format!(
        "at_testdir='tests'\nabs_builddir='{base}/tests'\nat_srcdir='{ovn}/tests'\n\
         abs_srcdir='{ovn}/tests'\nat_top_srcdir='{ovn}'\nabs_top_srcdir='{ovn}'\n\
         at_top_build_prefix='{base}/'\nabs_top_builddir='{base}'\nat_top_builddir='{base}'\n\
         AUTOTEST_PATH='{base}/bin'\nSHELL=/bin/bash\novs_srcdir='{ovs}'\n\
         PATH={base}/bin:/usr/sbin:/usr/bin:/sbin:/bin\nexport PATH\n"
    )
}

/// `atlocal.in` as `configure` would write it.
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

/// Reads lines of the form `TITLE: REASON`, in which the title has no colon.
fn read_reasons(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(": ")).collect()
}

fn table(
    tests: &[Test],
    outcomes: &BTreeMap<usize, Outcome>,
    reasons: &BTreeMap<&str, &str>,
    (options, minutes): (&Options, u64),
) -> String {
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%MZ"]).output();
    let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let count = |wanted| outcomes.values().filter(|outcome| **outcome == wanted).count();
    let mut text = format!(
        "# OVN's system tests{}\n\n{}, commit {}, `cargo xtask ovn-system-tests`, {minutes} min.\n\n\
         {} pass, {} fail, {} are skipped, of {}.\n\n{NOTE}\n\n| number | test | result | reason |\n|---|---|---|---|\n",
        if options.without_openflow { " without OpenFlow" } else { "" },
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
    fn tests_of_one_variant_are_numbered_when_a_list_is_read() {
        let list = " NUM: FILE-NAME:LINE     TEST-GROUP-NAME\n      KEYWORDS\n\n\
            \x20  3: system-ovn.at:3    A, B: C -- ovn-northd -- parallelization=no -- ovn_monitor_all=yes\n\
            \x20     ovnnat\n\
            \x20  4: system-ovn.at:3    A, B: C -- ovn-northd -- parallelization=no -- ovn_monitor_all=no\n\
            \x20  7: system-ovn.at:182  D -- ovn-northd -- parallelization=no -- ovn_monitor_all=yes\n";
        let tests = read_list(list);
        let tests: Vec<_> =
            tests.iter().map(|test| (test.place, test.number, test.title.as_str())).collect();
        assert_eq!(tests, [(1, 3, "A, B: C"), (2, 7, "D")]);
    }

    #[test]
    fn only_statements_that_call_ovs_ofctl_are_left_out() {
        let text = "a\nOVS_WAIT_UNTIL([\ntest $(ovs-ofctl dump-flows br | \\\n grep x) -eq 1\n])\n\
            AT_CHECK([ping], [0], [dnl\n3 packets\n])\n  check ovs-ofctl add-flow br x\nb\n";
        let kept = "a\n:\nAT_CHECK([ping], [0], [dnl\n3 packets\n])\n:\nb\n";
        assert_eq!(without_openflow(text), kept);
    }

    #[test]
    fn reason_is_found_by_its_title() {
        let reasons = read_reasons("# comment: x\nLB - IPv6: reads tables: 45\n");
        assert_eq!(reasons.get("LB - IPv6"), Some(&"reads tables: 45"));
        assert_eq!(reasons.len(), 1);
    }
}
