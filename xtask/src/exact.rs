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
/// Of the user datapath one over UDP with options and one without any tunnel header; of the kernel datapath one for each way to write and
/// to read outer headers. It is the fast path of most packets, and counted apart: nearly all of a message's cost is the kernel's own.
const SHORT: [&str; 6] = [
    "weft-user-geneve",
    "weft-user-vlan",
    "weft-kernel-vxlan",
    "weft-kernel-geneve",
    "weft-kernel-gre",
    "weft-kernel-vlan",
];
/// STT has no programs in the kernel.
const OURS: [&str; 11] = [
    "weft-user-vxlan",
    "weft-user-geneve",
    "weft-user-gre",
    "weft-user-stt",
    "weft-user-vlan",
    "weft-user-qinq",
    "weft-kernel-vxlan",
    "weft-kernel-geneve",
    "weft-kernel-gre",
    "weft-kernel-vlan",
    "weft-kernel-qinq",
];

/// What to count.
#[derive(Args)]
pub struct Options {
    /// Six of our contenders only, as CI does
    #[arg(long)]
    short: bool,
    /// Write the baseline anew in place of comparing with it
    #[arg(long, conflicts_with = "short")]
    update: bool,
}

impl Options {
    /// What CI does.
    pub const fn short() -> Self {
        Self { short: true, update: false }
    }
}

/// Builds weft, counts, and compares; the row that is too dear is named.
pub fn gate(options: &Options) -> Result<()> {
    packages::ensure(&packages::all())?;
    packages::fetch_guest_kernel()?;
    let mut command = Command::new(build_released()?);
    command.args(["bench", "exact", "--short", "--kernel", GUEST_KERNEL]);
    let contenders: &[&str] = if options.short { &SHORT } else { &OURS };
    contenders.iter().for_each(|contender| {
        command.args(["--contender", contender]);
    });
    if !options.update {
        return run(command.args(["--baseline", BASELINE]));
    }
    // The committed one stays until all are counted.
    let counted = target_dir().join("exact-baseline.json");
    run(command.arg("--json").arg(&counted))?;
    fs::copy(&counted, BASELINE).context(BASELINE)?;
    Ok(())
}
