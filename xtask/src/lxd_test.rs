//! `cargo xtask lxd-test`: LXD with its OVN network type on the stock chassis, and on weft in its
//! place. `packaging/lxd-test.sh` runs once for each, in namespaces of its own.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::demo::commit;
use crate::packages;
use crate::run::{cargo, run, show, target_dir};

/// What makes the network, the containers and their checks.
const SCRIPT: &str = "packaging/lxd-test.sh";
/// The longest run for one chassis, in seconds.
const LIMIT_S: &str = "420";

/// What to test.
#[derive(Args)]
pub struct Options {
    /// Test only this chassis
    #[arg(long)]
    chassis: Option<Chassis>,
    /// Keep the table in this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// What serves the host in OVN.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Chassis {
    /// ovn-controller, and ovs-vswitchd with the userspace datapath
    Stock,
    /// weft with the kernel datapath
    Weft,
    /// weft with the user datapath
    WeftUser,
}

impl Chassis {
    const ALL: [Self; 3] = [Self::Stock, Self::Weft, Self::WeftUser];

    const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Weft => "weft",
            Self::WeftUser => "weft-user",
        }
    }

    /// The arguments of the script behind the directory.
    fn arguments(self, weft: &Path) -> Vec<String> {
        let weft = weft.display().to_string();
        match self {
            Self::Stock => Vec::new(),
            Self::Weft => vec![weft, "--datapath=kernel".to_owned()],
            Self::WeftUser => vec![weft, "--datapath=user".to_owned()],
        }
    }
}

/// What one run has found: the checks, in order, with whether they passed.
struct Outcome {
    chassis: Chassis,
    checks: Vec<(String, bool)>,
    seconds: u64,
    has_passed: bool,
}

/// Builds weft, runs the script for each chassis, and prints a table.
pub fn test(options: &Options) -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::LXD_TEST].concat())?;
    run(&mut cargo(&["build", "--package", "weft"]))?;
    let weft = std::path::absolute(target_dir())?.join("debug/weft");
    // LXD's sockets are in there, and their paths have a limit.
    let base = std::env::temp_dir().join(format!("lxd-test-{}", std::process::id()));
    let all: Vec<_> = match options.chassis {
        Some(chassis) => vec![chassis],
        None => Chassis::ALL.to_vec(),
    };
    let mut outcomes = Vec::new();
    for chassis in all {
        let directory = base.join(chassis.name());
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        outcomes.push(walk(chassis, &directory, &weft)?);
    }
    let table = table(&outcomes)?;
    write!(std::io::stdout(), "\n{table}")?;
    if let Some(path) = &options.log {
        fs::write(path, &table).with_context(|| path.display().to_string())?;
    }
    if !outcomes.iter().all(|outcome| outcome.has_passed) {
        bail!("LXD does not work as it should; the logs are in {}", base.display());
    }
    fs::remove_dir_all(&base).with_context(|| base.display().to_string())
}

fn walk(chassis: Chassis, directory: &Path, weft: &Path) -> Result<Outcome> {
    let kind = if chassis == Chassis::Stock { "stock" } else { "weft" };
    let mut script = Command::new("timeout");
    script.args(["--kill-after=10", LIMIT_S, SCRIPT, kind]).arg(directory);
    script.args(chassis.arguments(weft)).stdin(Stdio::null()).stdout(Stdio::piped());
    show(&script);
    let start = Instant::now();
    let mut running = script.spawn().context("cannot start timeout")?;
    let said = running.stdout.take().context("the script has no output")?;
    let mut checks = Vec::new();
    for line in BufReader::new(said).lines() {
        let line = line.context("cannot read the output of the script")?;
        writeln!(std::io::stdout(), "{line}")?;
        if let Some(name) = line.strip_prefix("ok ") {
            checks.push((name.to_owned(), true));
        } else if let Some(name) = line.strip_prefix("FAILED ") {
            checks.push((name.to_owned(), false));
        }
    }
    let has_passed = running.wait()?.success() && checks.iter().all(|(_, passed)| *passed);
    Ok(Outcome { chassis, checks, seconds: start.elapsed().as_secs(), has_passed })
}

/// A row for each check, and a column for each chassis.
fn table(outcomes: &[Outcome]) -> Result<String> {
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%MZ"]).output().context("date")?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    let mut lines =
        vec![format!("{date}, commit {}, cargo xtask lxd-test", commit().unwrap_or_default())];
    let cells = |what: &str, cell: &dyn Fn(&Outcome) -> String| {
        let cells = outcomes.iter().map(|outcome| format!("{:<10}", cell(outcome)));
        let row = format!("{what:<50}{}", cells.collect::<String>());
        row.trim_end().to_owned()
    };
    lines.push(cells("check", &|outcome| outcome.chassis.name().to_owned()));
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in outcomes.iter().flat_map(|outcome| &outcome.checks) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    for name in names {
        lines.push(cells(name, &|outcome| {
            let found = outcome.checks.iter().find(|(known, _)| known == name);
            found.map_or("-", |(_, passed)| if *passed { "pass" } else { "FAIL" }).to_owned()
        }));
    }
    lines.push(cells("duration", &|outcome| format!("{} s", outcome.seconds)));
    Ok(lines.join("\n") + "\n")
}
