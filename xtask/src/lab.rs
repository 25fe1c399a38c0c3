//! Tasks in labs of namespaces: build weft and the lab, then become the lab.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};
use clap::Args;

use crate::demo::{as_root, build_released};
use crate::packages;
use crate::run::target_dir;

/// Everything is handed to `weft-lab`.
#[derive(Args)]
pub struct Options {
    /// Arguments of the task, for example --seconds 5; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds weft and the lab, and replaces this process by `task` of the lab, so that Ctrl-C and the exit code are its own.
pub fn run_in_lab(task: &str, options: &Options) -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    build_released(&["weft", "bench"])?;
    let programs = target_dir().join("release");
    let mut command = as_root(programs.join("weft-lab"));
    command.arg(task).arg("--weft").arg(programs.join("weft")).args(&options.arguments);
    Err(command.exec()).context("cannot start weft-lab")
}
