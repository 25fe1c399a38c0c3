//! Runs the test cases of Open vSwitch's `tests/ovsdb-idl.at` with the example `idl` of the `ovsdb`
//! crate instead of `test-ovsdb`.
//!
//! The user passes the path of the sources of Open vSwitch. The cases are written with m4 macros.
//! This module parses the few macros whose cases concern a replica, and runs each case as a shell
//! script.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::run::{cargo, run, target_dir};

/// The options of `cargo xtask ovsdb-idl`.
#[derive(clap::Args)]
pub struct Options {
    /// A source tree of Open vSwitch
    #[arg(long)]
    ovs: PathBuf,
    /// Only cases whose titles contain this text
    title: Option<String>,
    /// The number of cases that must pass; fail if fewer do
    #[arg(long, default_value_t = 0)]
    least: usize,
}

/// A macro whose cases can be run: its name, the positions of its arguments, and the options for
/// the example.
struct Macro {
    name: &'static str,
    setup: usize,
    steps: usize,
    options: &'static str,
    is_clustered: bool,
    /// True if the expected output contains numbers instead of UUIDs.
    hides_uuids: bool,
}

const fn plain(name: &'static str, options: &'static str) -> Macro {
    Macro { name, setup: 1, steps: 2, options, is_clustered: false, hides_uuids: true }
}

const MACROS: [Macro; 5] = [
    plain("OVSDB_CHECK_IDL(", ""),
    plain("OVSDB_CHECK_IDL_C(", ""),
    plain("OVSDB_CHECK_IDL_TRACK(", "-c"),
    Macro {
        // This macro has no setup argument.
        setup: usize::MAX,
        steps: 1,
        hides_uuids: false,
        ..plain("OVSDB_CHECK_IDL_PERS_UUID_INSERT(", "")
    },
    Macro { setup: 2, steps: 3, is_clustered: true, ..plain("OVSDB_CHECK_CLUSTER_IDL(", "") },
];

/// A test case.
struct Case {
    title: String,
    options: &'static str,
    is_clustered: bool,
    hides_uuids: bool,
    /// A transaction that is executed before the program starts, as shell words.
    setup: String,
    /// The steps of the program, as shell words.
    steps: String,
    expected: String,
    /// A command that filters the output.
    filter: String,
}

/// Runs the cases, and prints which of them passed.
pub fn check(options: &Options) -> Result<()> {
    let ovs = options.ovs.canonicalize().with_context(|| options.ovs.display().to_string())?;
    let file = ovs.join("tests/ovsdb-idl.at");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let mut cases = read(&text);
    cases.retain(|case| options.title.as_ref().is_none_or(|title| case.title.contains(title)));
    ensure!(!cases.is_empty(), "{} has no such case", file.display());
    run(&mut cargo(&["build", "--package=ovsdb", "--example=idl"]))?;
    let directory = target_dir().join("ovsdb-idl");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    let bin = directory.join("bin");
    fs::create_dir_all(&bin)?;
    fs::copy(target_dir().join("debug/examples/idl"), bin.join("test-ovsdb"))?;
    let mut failed = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let place = directory.join(number.to_string());
        let difference = run_case(case, &ovs, &bin, &place)?;
        println!("{} {}", if difference.is_none() { "pass" } else { "FAIL" }, case.title);
        failed.extend(difference.map(|difference| (&case.title, difference)));
    }
    for (title, difference) in &failed {
        println!("\n--- {title}\n{difference}");
    }
    let passed = cases.len() - failed.len();
    println!("{passed} of {} cases pass", cases.len());
    if passed < options.least {
        bail!("fewer than {} cases of ovsdb-idl.at pass", options.least);
    }
    Ok(())
}

/// Parses the cases of all macros, in the order of the file.
fn read(text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, _) in text.match_indices("\nOVSDB_CHECK_") {
        let call = &text[at + 1..];
        let Some(known) = MACROS.iter().find(|known| call.starts_with(known.name)) else {
            continue;
        };
        let arguments = arguments(&call[known.name.len()..]);
        let argument = |at: usize| arguments.get(at).cloned().unwrap_or_default();
        cases.push(Case {
            title: argument(0).trim().to_owned(),
            options: known.options,
            is_clustered: known.is_clustered,
            hides_uuids: known.hides_uuids,
            setup: argument(known.setup),
            steps: argument(known.steps),
            expected: argument(known.steps + 1),
            filter: argument(known.steps + 3),
        });
    }
    cases
}

/// The arguments of a macro call, without their quotes.
fn arguments(call: &str) -> Vec<String> {
    let mut arguments = vec![String::new()];
    let mut depth = 0;
    for character in call.chars() {
        match character {
            ')' if depth == 0 => break,
            ',' if depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        if let Some(argument) = arguments.last_mut() {
            argument.push(character);
        }
    }
    // An argument is quoted once for the call, and once more for the macro that it is passed to.
    let plain = |argument: &String| {
        let argument = unquote(&unquote(argument.trim()));
        argument.replace("@<:@", "[").replace("@:>@", "]").replace("@%:@", "#")
    };
    arguments.iter().map(plain).collect()
}

/// Removes the outermost brackets.
fn unquote(text: &str) -> String {
    let mut plain = String::new();
    let mut depth = 0;
    for character in text.chars() {
        match character {
            '[' => {
                depth += 1;
                if depth == 1 {
                    continue;
                }
            }
            ']' => {
                depth -= 1;
                if depth == 0 {
                    continue;
                }
            }
            _ => {}
        }
        plain.push(character);
    }
    plain
}

/// Runs a case. Returns the difference between the output and the expectation, if there is one.
fn run_case(case: &Case, ovs: &Path, bin: &Path, place: &Path) -> Result<Option<String>> {
    fs::create_dir_all(place)?;
    let script = script(case, ovs);
    fs::write(place.join("script"), &script)?;
    fs::write(place.join("expected"), case.expected.trim_start_matches('\n'))?;
    let paths = std::env::var("PATH").unwrap_or_default();
    let bin = bin.canonicalize()?;
    let mut command = Command::new("bash");
    command.arg("script").current_dir(place).stdin(Stdio::null());
    command.env("PATH", format!("{}:{paths}:/usr/sbin", bin.display()));
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
        command.env(variable, place.canonicalize()?);
    }
    let output = command.output().context("cannot start bash")?;
    if output.status.success() {
        return Ok(None);
    }
    let text = [output.stdout, output.stderr].concat();
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

/// The shell script of a case. It succeeds if the output is as expected.
fn script(case: &Case, ovs: &Path) -> String {
    let schema = ovs.join("tests/idltest.ovsschema");
    let schema = schema.display();
    let common = "-vconsole:off -vsyslog:off --detach --no-chdir";
    let servers = if case.is_clustered {
        format!(
            "ovsdb-tool create-cluster s1.db {schema} unix:s1.raft\n\
             for i in 2 3; do ovsdb-tool join-cluster s$i.db idltest unix:s$i.raft unix:s1.raft; done\n\
             for i in 1 2 3; do\n\
             ovsdb-server {common} --log-file=s$i.log --pidfile=s$i.pid --unixctl=s$i.ctl \
             --remote=ptcp:0:127.0.0.1 --remote=punix:s$i.ovsdb s$i.db\n\
             ovsdb-client -t 20 wait unix:s$i.ovsdb idltest connected\n\
             eval TCP_PORT_$i=$(sed -n 's/.*listening on port \\([0-9]*\\)$/\\1/p' s$i.log)\n\
             done\n\
             remotes=tcp:127.0.0.1:$TCP_PORT_1,tcp:127.0.0.1:$TCP_PORT_2,tcp:127.0.0.1:$TCP_PORT_3\n\
             remote=tcp:127.0.0.1:$TCP_PORT_1\n"
        )
    } else {
        format!(
            "ovsdb-tool create db {schema}\n\
             ovsdb-server {common} --log-file=server.log --pidfile=server.pid --unixctl=ctl \
             --remote=punix:socket db\n\
             remotes=unix:socket\nremote=unix:socket\n"
        )
    };
    let setup = match case.setup.trim() {
        "" => String::new(),
        words => format!("ovsdb-client transact $remotes {words} > setup\n"),
    };
    let filter = match case.filter.trim() {
        "" => String::new(),
        filter => format!("| {filter}"),
    };
    let uuids = match case.hides_uuids {
        true => format!("| python3 {}", ovs.join("tests/uuidfilt.py").display()),
        false => String::new(),
    };
    format!(
        "set -e\nexport LC_ALL=C.UTF-8\n\
         trap 'kill $(cat *.pid 2>/dev/null) 2>/dev/null' EXIT\n\
         exec 2> errors\n{servers}{setup}\
         timeout 40 test-ovsdb -t30 {} idl $remote {} > stdout 2> stderr \
         || {{ cat stdout stderr; exit 1; }}\n\
         sort stdout {uuids} {filter} > found\n\
         diff -u expected found\n",
        case.options,
        case.steps.trim().trim_end_matches('\\'),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\nOVSDB_CHECK_IDL([a case, with a comma],\n  [['[\"db\", {\"a\": [1]}]']],\n  \
        [['set 0 b 1' \\\n 'reconnect']],\n  [[000: ia=[1 2]\n001: done\n]],\n  [word],\n  \
        [[grep -v @<:@]])\nOVSDB_CHECK_OTHER([x])\n";

    #[test]
    fn case_is_read_when_its_arguments_are_quoted_twice() {
        let cases = read(TEXT);
        assert_eq!(cases.len(), 1);
        let case = &cases[0];
        assert_eq!(case.title, "a case, with a comma");
        assert_eq!(case.setup, "'[\"db\", {\"a\": [1]}]'");
        assert_eq!(case.steps, "'set 0 b 1' \\\n 'reconnect'");
        assert_eq!(case.expected, "000: ia=[1 2]\n001: done\n");
        assert_eq!(case.filter, "grep -v [");
    }
}
