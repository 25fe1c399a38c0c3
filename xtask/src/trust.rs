//! `cargo xtask trust`: builds weft, then replaces this process by `weft bench trust`.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};
use clap::Args;

use crate::demo::{as_root, build_released};
use crate::packages;

/// All arguments are passed to `weft bench trust`.
#[derive(Args)]
pub struct Options {
    /// Arguments of `weft bench trust`, for example --seconds 5; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds weft and replaces this process by the trust scenarios, so that Ctrl-C reaches them and
/// their exit code is kept.
pub fn trust(options: &Options) -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    let mut command = as_root(build_released()?);
    command.args(["bench", "trust"]).args(&options.arguments);
    Err(command.exec()).context("cannot start weft")
}
