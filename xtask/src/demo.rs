//! The demo: builds weft, then replaces this process by `weft demo`.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::packages;
use crate::run::{cargo, run, target_dir};
use crate::test::{Root, root};

/// All arguments are passed to `weft demo`.
#[derive(Args)]
pub struct Options {
    /// Arguments of `weft demo`, for example --seconds 1
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds weft and replaces this process by its demo, so that Ctrl-C and the exit code are the
/// demo's own.
pub fn demo(options: &Options) -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    build_released()?;
    let arguments: Vec<&str> = options.arguments.iter().map(String::as_str).collect();
    Err(command(&arguments).exec()).context("cannot start weft")
}

/// The command that runs the demo of the released weft, with sudo if the user may use it.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = as_root(released());
    command.arg("demo").args(arguments);
    command
}

/// Builds `weft`, `weft-bench` and `weft-cni` with the release profile. Returns the path of `weft`;
/// the others are in the same directory. All tasks build the same set, so that no task rebuilds for
/// another one.
pub fn build_released() -> Result<PathBuf> {
    run(&mut release_build())?;
    Ok(released())
}

/// The command that [`build_released`] runs.
pub fn release_build() -> Command {
    let mut build = cargo(&["build", "--release"]);
    build.args(["--package", "weft", "--package", "bench", "--package", "cni"]);
    if let Some(commit) = commit() {
        // Reports contain the commit, because a figure can only be reproduced with its commit.
        build.env("WEFT_COMMIT", commit);
    }
    build
}

/// The path of the `weft` that [`release_build`] makes.
pub fn released() -> PathBuf {
    target_dir().join("release/weft")
}

/// The command that runs `program` as root, with sudo if the user may use it. If root is
/// unavailable, the program itself reports what is missing and how to get it.
pub fn as_root(program: PathBuf) -> Command {
    match root() {
        Root::Already | Root::Unreachable => Command::new(program),
        Root::BySudo => {
            let mut sudo = Command::new("sudo");
            sudo.arg(program);
            sudo
        }
    }
}

/// The commit of the work tree, followed by `-dirty` if the tree has changes; `None` outside of a
/// repository.
pub fn commit() -> Option<String> {
    let describe = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
    let output = Command::new("git").args(describe).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
