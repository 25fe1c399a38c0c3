//! `cargo xtask ovs-traffic-tests`: runs the tests of connection tracking in Open vSwitch's
//! `tests/system-traffic.at`, with weft instead of ovs-vswitchd.
//!
//! The tests are not changed. `packaging/ovs-traffic-switch.py` explains how their commands control
//! weft.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::packages;
use crate::run::{cargo, run};
use crate::upstream_tests::{Report, RunOptions, Suite, Test, read_list};

/// The script that acts as ovs-vswitchd and ovs-ofctl, and runs weft.
const SWITCH: &str = "packaging/ovs-traffic-switch.py";
/// The file that contains the tests.
const FILE: &str = "system-traffic.at:";
const REPORT: Report<'_> = Report {
    title: "Open vSwitch's tests of connection tracking",
    task: "ovs-traffic-tests",
    note: "\
`tests/system-traffic.at` of Open vSwitch 3.1 runs unchanged, with the macros of the kernel datapath.
ovsdb-server, ovs-vsctl and ovs-appctl are those of Open vSwitch. A script stands for ovs-vswitchd: it
follows the database, writes a network file with the same bridges and ports, and reloads weft. It
answers ovs-appctl with what weft says at its control socket, and it writes weft's log to the log of
ovs-vswitchd, in which the tests look for warnings. Internal ports are TAP devices, patch ports are veth
devices. Another script calls `weft ofctl` for ovs-ofctl. The ovs-ofctl of Open vSwitch writes the flows
that it prints in the words of the OpenFlow version, and the heading of that version is put in front.
`modprobe` does nothing, because
weft needs none of the modules that the tests load. `nc` is ncat, and `ping6` ignores `-v`, with which
that of Debian 12 writes to standard error. Tests whose titles do not mention connection tracking are
left out.",
    reasons: "packaging/ovs-traffic-tests.reasons",
};

/// The options of `cargo xtask ovs-traffic-tests`.
#[derive(Args)]
pub struct Options {
    /// A source tree of Open vSwitch
    #[arg(long)]
    ovs: PathBuf,
    /// Only tests whose titles contain this text
    #[arg(default_value = "conntrack")]
    title: String,
    #[command(flatten)]
    run: RunOptions,
}

/// Runs the tests, and prints a table.
pub fn test(options: &Options) -> Result<()> {
    let programs = [&packages::OVN_SYSTEM_TESTS[..], &packages::OVS_TRAFFIC_TESTS].concat();
    packages::ensure(&[&packages::BUILD[..], &programs].concat())?;
    run(&mut cargo(&["build", "--package", "weft"]))?;
    let ovs = options.ovs.canonicalize().with_context(|| options.ovs.display().to_string())?;
    let suite = Suite::new("ovs-traffic", &ovs)?;
    suite.build("openvswitch", &ovs, "tests/system-kmod-testsuite.at")?;
    suite.configure(&ovs, &ovs)?;
    for program in ["ovs-vswitchd", "ovs-ofctl"] {
        suite.link(program, SWITCH)?;
    }
    suite.link("nc", "/usr/bin/ncat")?;
    suite.program("ping6", crate::ovn_system_tests::PING6)?;
    suite.program("modprobe", "#!/bin/sh\nexit 0\n")?;
    let tests = wanted(&suite.list()?, &options.title);
    ensure!(!tests.is_empty(), "{} has no such test", options.ovs.display());
    suite.run(&tests, &options.run, &REPORT)
}

/// The tests in the file whose titles contain `title`.
fn wanted(list: &str, title: &str) -> Vec<Test> {
    let tests = read_list(list).filter(|(_, place, _)| place.starts_with(FILE));
    let numbered =
        tests.map(|(number, _, title)| Test { place: number, number, title: title.to_owned() });
    numbered.filter(|test| test.title.contains(title)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wanted_tests_of_the_file_remain() {
        let list = " NUM: FILE-NAME:LINE     TEST-GROUP-NAME\n      KEYWORDS\n\n\
            \x20 58: system-traffic.at:2235 conntrack - controller\n      conntrack\n\
            \x20 59: system-traffic.at:7303 IGMP - flood\n\
            \x20 60: system-interface.at:1 conntrack - elsewhere\n";
        let tests = wanted(list, "conntrack");
        let tests: Vec<_> = tests.iter().map(|test| (test.number, test.title.as_str())).collect();
        assert_eq!(tests, [(58, "conntrack - controller")]);
    }
}
