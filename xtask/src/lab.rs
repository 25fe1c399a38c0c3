//! Tasks in labs of namespaces: build weft and the lab, then become the lab.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};
use clap::Args;

use crate::demo::{as_root, commit};
use crate::packages;
use crate::run::{cargo, run, target_dir};

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
    let mut build = cargo(&["build", "--release", "--package", "weft", "--package", "bench"]);
    if let Some(commit) = commit() {
        // For the report: a figure without its commit cannot be repeated.
        build.env("WEFT_COMMIT", commit);
    }
    run(&mut build)?;
    let programs = target_dir().join("release");
    let mut command = as_root(programs.join("weft-lab"));
    command.arg(task).arg("--weft").arg(programs.join("weft")).args(&options.arguments);
    Err(command.exec()).context("cannot start weft-lab")
}
