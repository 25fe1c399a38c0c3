//! The regression gate: instructions in an emulated machine, against the committed baseline.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::demo::build_released;
use crate::packages::{self, GUEST_KERNEL};
use crate::run::{run, target_dir};

/// What our contenders cost, as committed.
const BASELINE: &str = "docs/results/exact-baseline.json";
/// What to do with the counts.
#[derive(Args, Default)]
pub struct Options {
    /// Write the baseline anew in place of comparing with it
    #[arg(long)]
    update: bool,
}

/// Builds weft, counts all of its contenders, and compares them with the baseline. A count above
/// its tolerance is named.
pub fn gate(options: &Options) -> Result<()> {
    packages::ensure(&packages::all())?;
    packages::fetch_guest_kernel()?;
    let mut command = Command::new(build_released()?);
    command.args(["bench", "exact", "--ours", "--short", "--kernel", GUEST_KERNEL]);
    if !options.update {
        return run(command.args(["--baseline", BASELINE]));
    }
    // The committed baseline stays until everything is counted.
    let counted = target_dir().join("exact-baseline.json");
    run(command.arg("--json").arg(&counted))?;
    fs::copy(&counted, BASELINE).with_context(|| format!("cannot write {BASELINE}"))?;
    Ok(())
}
