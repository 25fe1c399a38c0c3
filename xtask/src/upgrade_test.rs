//! `cargo xtask upgrade-test`: replaces one version of weft by another under traffic.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::demo::{as_root, build_released};
use crate::packages;
use crate::run::run;

/// The options of `cargo xtask upgrade-test`.
#[derive(Args)]
pub struct Options {
    /// The program weft of an earlier commit
    old: PathBuf,
    /// The program weft of a later commit
    new: PathBuf,
    /// UDP flows, each with a megaflow of its own
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    flows: u32,
    /// Run only this datapath, kernel or user
    #[arg(long, value_name = "DATAPATH")]
    datapath: Option<String>,
}

/// Interrupts a switch with both datapaths: reload, kill, stop and start, crash loop, downgrade and
/// upgrade.
pub fn test(options: &Options) -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    for program in [&options.old, &options.new] {
        if !program.is_file() {
            bail!("{} is no program: build weft at both commits first", program.display());
        }
    }
    let bench = build_released()?.with_file_name("weft-bench");
    let both = ["kernel", "user"].map(str::to_owned);
    let chosen = options.datapath.as_ref().map_or(both.to_vec(), |one| vec![one.clone()]);
    for datapath in chosen {
        let mut command = as_root(bench.clone());
        command.arg("--weft").arg(&options.new).args(["trust", "interruption", "--old"]);
        command.arg(&options.old).args(["--flows", &options.flows.to_string()]);
        run(command.args(["--datapath", &datapath]))?;
    }
    Ok(())
}
