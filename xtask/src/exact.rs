//! The regression gate: compares instruction counts from an emulated machine with the committed
//! baseline.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::demo::{build_released, released};
use crate::packages::{self, GUEST_KERNEL};
use crate::run::{run, target_dir};

/// The committed instruction counts of weft's contenders.
const BASELINE: &str = "docs/results/exact-baseline.json";
/// The options of `cargo xtask exact-gate`.
#[derive(Args, Default)]
pub struct Options {
    /// Write the baseline anew in place of comparing with it
    #[arg(long)]
    update: bool,
}

/// Builds weft, counts the contenders in the baseline, and compares. The error lists counts above
/// their tolerance. With `update`, counts all contenders of the gate and writes a new baseline.
pub fn gate(options: &Options) -> Result<()> {
    packages::ensure(&packages::all())?;
    packages::fetch_guest_kernel()?;
    build_released()?;
    if !options.update {
        return run(&mut comparison()?);
    }
    let mut command = count();
    command.arg("--ours");
    // The committed baseline is replaced only after everything has been counted.
    let counted = target_dir().join("exact-baseline.json");
    run(command.arg("--json").arg(&counted))?;
    fs::copy(&counted, BASELINE).with_context(|| format!("cannot write {BASELINE}"))?;
    Ok(())
}

/// The command that counts the contenders in the baseline and compares. It needs a release that has
/// been built before.
pub fn comparison() -> Result<Command> {
    let mut command = count();
    for contender in contenders_of_baseline()? {
        command.args(["--contender", &contender]);
    }
    command.args(["--baseline", BASELINE]);
    Ok(command)
}

fn count() -> Command {
    let mut command = Command::new(released());
    command.args(["bench", "exact", "--short", "--kernel", GUEST_KERNEL]);
    command
}

fn contenders_of_baseline() -> Result<Vec<String>> {
    let text = fs::read_to_string(BASELINE).context(BASELINE)?;
    let baseline: Value = serde_json::from_str(&text).context(BASELINE)?;
    let rows = baseline["rows"].as_array().with_context(|| format!("{BASELINE} has no rows"))?;
    let names = rows.iter().map(|row| row["contender"].as_str().map(str::to_owned));
    names.collect::<Option<_>>().with_context(|| format!("{BASELINE}: a row has no contender"))
}
