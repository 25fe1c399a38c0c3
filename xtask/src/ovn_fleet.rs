//! `cargo xtask ovn-fleet`: measures many chassis of weft without a datapath at a southbound
//! cluster of three servers. `packaging/ovn-fleet.py` does this in separate namespaces.

use std::fs;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::demo::{build_released, commit};
use crate::figures::{Figures, keep};
use crate::packages;

/// The script that creates the network, starts the chassis and measures.
const SCRIPT: &str = "packaging/ovn-fleet.py";
/// The time limit, in seconds.
const LIMIT_S: &str = "3600";

/// The options of `cargo xtask ovn-fleet`: the size of the deployment.
#[derive(Args)]
pub struct Options {
    /// Chassis of weft
    #[arg(long, default_value_t = 200)]
    chassis: u32,
    /// Logical switches
    #[arg(long, default_value_t = 200)]
    switches: u32,
    /// Ports of each switch
    #[arg(long, default_value_t = 20)]
    ports: u32,
    /// ACLs that are added, each until the last chassis confirms it
    #[arg(long, default_value_t = 20)]
    changes: u32,
    /// How often the leader is killed
    #[arg(long, default_value_t = 3)]
    kills: u32,
    /// Chassis of ovn-controller, and of weft beside them; 0 leaves both out
    #[arg(long, default_value_t = 20)]
    peers: u32,
    /// How many chassis start at a time
    #[arg(long, default_value_t = 10)]
    together: u32,
    /// How long all chassis may take to start
    #[arg(long, default_value_t = 600)]
    seconds: u32,
    /// Leave out the measurement with `ovn-monitor-all`, which needs 80 MB for each chassis
    #[arg(long)]
    without_all: bool,
    /// Print nothing but the figures, as JSON
    #[arg(long)]
    json: bool,
    /// Keep the table in this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// Builds weft, runs the script, and prints a table.
pub fn measure(options: &Options) -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::TEST].concat())?;
    let weft = build_released()?;
    let directory = std::env::temp_dir().join(format!("ovn-fleet-{}", std::process::id()));
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let Options { chassis, switches, ports, changes, kills, peers, together, seconds, .. } =
        options;
    let settings = [
        ("--chassis", chassis),
        ("--switches", switches),
        ("--ports", ports),
        ("--changes", changes),
        ("--kills", kills),
        ("--peers", peers),
        ("--together", together),
        ("--seconds", seconds),
    ];
    let settings = settings.map(|(name, value)| format!("{name}={value}"));
    let mut script = Command::new("timeout");
    // With --foreground, Ctrl-C also reaches the script.
    script.args(["--foreground", "--kill-after=10", LIMIT_S, SCRIPT]).arg(&directory).arg(&weft);
    script.args(&settings).arg("--hang");
    if !options.without_all {
        script.arg("--all");
    }
    let (figures, has_passed) = Figures::of(script, options.json)?;
    let commit = commit().unwrap_or_default();
    let command = format!("cargo xtask ovn-fleet {}", settings.join(" "));
    let table = format!("commit {commit}, {command}\n{}", figures.table());
    if options.json {
        writeln!(stdout(), "{}", figures.json(&commit, &command))?;
    } else {
        write!(stdout(), "\n{table}")?;
    }
    keep(&table, options.log.as_deref(), has_passed, &directory)
}
