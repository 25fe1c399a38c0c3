//! `cargo xtask ovn-system-tests`: runs OVN's own system tests (`tests/system-ovn.at`) with weft
//! instead of ovs-vswitchd and ovn-controller.
//!
//! The user passes the paths of the sources of OVN and Open vSwitch, of which nothing is compiled.
//! autom4te generates the shell script of the tests, and all other programs are from Debian's
//! packages.
//!
//! The expectations of the tests are not changed. weft has no OpenFlow tables, so tests that read
//! them fail. With `--without-openflow`, the statements that call ovs-ofctl are left out. That run
//! shows how the packets of those tests are forwarded, and does not replace the other run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::packages;
use crate::run::{cargo, run};
use crate::upstream_tests::{Report, RunOptions, Suite, Test, read_list};

/// The script that acts as ovs-vswitchd and ovn-controller, and runs weft.
const CHASSIS: &str = "packaging/ovn-system-chassis.py";
/// The underlay address in the tests.
const UNDERLAY: &str = "169.0.0.1/24";
const REPORT: Report<'_> = Report {
    title: "OVN's system tests",
    task: "ovn-system-tests",
    note: "\
`tests/system-ovn.at` of OVN runs unchanged, with the macros of the userspace datapath. One process,
weft, stands for ovs-vswitchd and ovn-controller: a script answers as ovs-vswitchd once ovn-controller
was told to exit. It writes weft's log to the log files of both, in which the tests look for warnings, and
what ACLs log in the module `acl_log`. That a backend is offline is no warning there, as with ovn-controller.
The log says that the datapath has `ct_zero_snat`, without which tests are skipped.
The host has a device with the underlay address that the tests name. `nc` is ncat. `ping6` ignores `-v`,
with which that of Debian 12 writes to standard error. Each test runs once, with parallelization=no and
ovn_monitor_all=yes.",
    reasons: "packaging/ovn-system-tests.reasons",
};
const WITHOUT_OPENFLOW: &str = "OVN's system tests without OpenFlow";
/// The suffix of the titles of the tests that are run. Each test exists in four variants. This one
/// matches weft, which replicates the whole database; ovn-northd is not tested.
const VARIANT: &str = " -- ovn-northd -- parallelization=no -- ovn_monitor_all=yes";

/// A script for the tests' command `ping6`. It removes the option `-v`, because the ping of Debian
/// 12 then writes a line to standard error, unlike earlier releases.
pub const PING6: &str = "#!/bin/sh\n[ \"$1\" != -v ] || shift\nexec /usr/bin/ping -6 \"$@\"\n";

/// The options of `cargo xtask ovn-system-tests`.
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
    #[command(flatten)]
    run: RunOptions,
}

/// Runs the tests, and prints a table.
pub fn test(options: &Options) -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::OVN_SYSTEM_TESTS].concat())?;
    run(&mut cargo(&["build", "--package", "weft"]))?;
    let suite = suite(options)?;
    let mut tests = variant(&suite.list()?);
    tests.retain(|test| options.title.as_ref().is_none_or(|title| test.title.contains(title)));
    ensure!(!tests.is_empty(), "{} has no such test", options.ovn.display());
    let title = if options.without_openflow { WITHOUT_OPENFLOW } else { REPORT.title };
    suite.run(&tests, &options.run, &Report { title, ..REPORT })
}

/// Builds the test suite from the sources in the options.
fn suite(options: &Options) -> Result<Suite> {
    let [ovn, ovs] = [&options.ovn, &options.ovs]
        .map(|path| path.canonicalize().with_context(|| path.display().to_string()));
    let (ovn, ovs) = (ovn?, ovs?);
    let mut suite = Suite::new("ovn-system", &ovn)?;
    if options.without_openflow {
        leave_out_openflow(&suite.base().join("tests/system-ovn.at"))?;
    }
    suite.build("ovn", &ovn, "tests/system-userspace-testsuite.at")?;
    suite.configure(&ovn, &ovs)?;
    for program in ["ovs-vswitchd", "ovn-controller"] {
        suite.link(program, CHASSIS)?;
    }
    suite.program("ping6", PING6)?;
    // The tests expect a netcat that ends when its input ends.
    suite.link("nc", "/usr/bin/ncat")?;
    suite.set("UNDERLAY", UNDERLAY);
    Ok(suite)
}

fn leave_out_openflow(path: &Path) -> Result<()> {
    Ok(fs::write(path, without_openflow(&fs::read_to_string(path)?))?)
}

/// The tests of [`VARIANT`], numbered from 1.
fn variant(list: &str) -> Vec<Test> {
    let tests = read_list(list)
        .filter_map(|(number, _, title)| Some((number, title.strip_suffix(VARIANT)?.to_owned())));
    tests.zip(1..).map(|((number, title), place)| Test { place, number, title }).collect()
}

/// Replaces each statement that calls ovs-ofctl by one without effect.
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
        let tests = variant(list);
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
}
