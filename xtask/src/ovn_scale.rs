//! `cargo xtask ovn-scale`: measures the cost of one host in a large OVN deployment, with the stock
//! chassis and with weft. `packaging/ovn-scale.sh` does this in separate namespaces.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::demo::{build_released, commit};
use crate::figures::{Figures, keep};
use crate::packages;

/// The script that creates the network and measures.
const SCRIPT: &str = "packaging/ovn-scale.sh";
/// The time limit, in seconds.
const LIMIT_S: &str = "3600";

/// The options of `cargo xtask ovn-scale`: the size of the deployment.
#[derive(Args)]
pub struct Options {
    /// Logical switches
    #[arg(long, default_value_t = 1000)]
    switches: u32,
    /// Ports of each switch
    #[arg(long, default_value_t = 20)]
    ports: u32,
    /// Routers, over which the switches are spread
    #[arg(long, default_value_t = 50)]
    routers: u32,
    /// How often a new port and a new ACL are measured
    #[arg(long, default_value_t = 50)]
    repeats: u32,
    /// Keep the table in this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// Builds weft, runs the script, and prints a table.
pub fn measure(options: &Options) -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::TEST].concat())?;
    let weft = build_released()?;
    let directory = std::env::temp_dir().join(format!("ovn-scale-{}", std::process::id()));
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let Options { switches, ports, routers, repeats, .. } = options;
    let mut script = Command::new("timeout");
    script.args(["--kill-after=10", LIMIT_S, SCRIPT]).arg(&directory).arg(&weft);
    script.args([switches, ports, routers, repeats].map(u32::to_string));
    let (figures, has_passed) = Figures::of(script, false)?;
    let table = format!(
        "commit {}, cargo xtask ovn-scale --switches {switches} --ports {ports} --routers \
         {routers} --repeats {repeats}\n{}",
        commit().unwrap_or_default(),
        figures.table()
    );
    write!(std::io::stdout(), "\n{table}")?;
    keep(&table, options.log.as_deref(), has_passed, &directory)
}
