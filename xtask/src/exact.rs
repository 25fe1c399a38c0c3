//! The regression gate: instructions in an emulated machine, against the committed baseline.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::demo::{build_released, released};
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

/// Builds weft, counts the contenders of the baseline, and compares. A count above its tolerance is
/// named. With `update`, counts all contenders of the gate.
pub fn gate(options: &Options) -> Result<()> {
    packages::ensure(&packages::all())?;
    packages::fetch_guest_kernel()?;
    build_released()?;
    if !options.update {
        return run(&mut comparison()?);
    }
    let mut command = count();
    command.arg("--ours");
    // The committed baseline stays until everything is counted.
    let counted = target_dir().join("exact-baseline.json");
    run(command.arg("--json").arg(&counted))?;
    fs::copy(&counted, BASELINE).with_context(|| format!("cannot write {BASELINE}"))?;
    Ok(())
}

/// The command that counts the contenders of the baseline and compares, with a release that was
/// built before.
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
