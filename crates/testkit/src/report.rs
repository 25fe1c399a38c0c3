//! Records which tests were skipped, and which real programs other tests ran against.
//!
//! A test that lacks root or a package returns early after [`skip`]. A test that exchanged frames
//! with another implementation calls [`peer`]. Both print a line, and append it to the file in the
//! environment variable `WEFT_TEST_REPORT`, because the test harness hides the output of passing
//! tests. `cargo xtask test` sets the variable, lists the lines at the end, and fails on a skip
//! when `CI=true`.
//!
//! ```no_run
//! # use testkit::report;
//! fn a_ping_crosses_the_tunnel() {
//!     if report::lacks_root("a_ping_crosses_the_tunnel") {
//!         return;
//!     }
//!     report::peer("linux-vxlan", "IPv4 ping in both directions");
//! }
//! ```

use netdev::capability::{self, Capability};
use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

/// The capabilities that root tests use.
const NEEDED: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_SYS_ADMIN];

/// Records that `test` was skipped, and why.
pub fn skip(test: &str, why: &str) {
    record(&format!("SKIPPED {test}: {why}"));
}

/// Records that a test ran against the real implementation `name`, and what it exchanged with it.
pub fn peer(name: &str, what: &str) {
    record(&format!("PEER {name}: {what}"));
}

/// Records that the tested code lacks the ability `what`, and why. So this was not tested.
pub fn lacking(what: &str, why: &str) {
    record(&format!("LACKING {what}: {why}"));
}

/// Returns true, and records a [`skip`], when this process may not create network namespaces and
/// devices.
#[must_use]
pub fn lacks_root(test: &str) -> bool {
    let lacks = capability::missing(&NEEDED);
    if let Some(capability) = lacks {
        skip(test, &format!("needs root ({capability})"));
    }
    lacks.is_some()
}

/// Returns true, and records a [`skip`] that names the Debian `package`, when the program `name` is
/// not installed.
#[must_use]
pub fn lacks_program(test: &str, name: &str, package: &str) -> bool {
    let lacks = find_program(name).is_none();
    if lacks {
        skip(test, &format!("needs {name} of the Debian package {package}"));
    }
    lacks
}

/// Finds the program `name` in `PATH`, or in system directories that a user's `PATH` often lacks.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Prints a line and appends it to the report. It is one write, because tests run in parallel.
fn record(line: &str) {
    println!("{line}");
    let Some(path) = env::var_os("WEFT_TEST_REPORT") else { return };
    let line = format!("{}\n", line.replace('\n', " "));
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("{}: {error}", PathBuf::from(path).display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_when_installed() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-of-weft").is_none());
    }
}
