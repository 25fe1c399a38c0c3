//! `weft demo` and `weft bench`: start the program `weft-bench`, which is installed separately.

use crate::Failure;
use anyhow::{Context, anyhow};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the measurement program.
const PROGRAM: &str = "weft-bench";

/// Measure weft with the published studies, on this machine: see `weft bench --help`
///
/// This starts the program weft-bench with the same arguments.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Bench {
    /// Arguments of weft-bench
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Compare every tunnel with the Linux bridge, in namespaces of this machine: see `weft demo
/// --help`
///
/// This starts the program weft-bench with the argument demo and the same arguments.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Demo {
    /// Arguments of weft-bench demo
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub fn bench(args: Bench) -> Result<(), Failure> {
    start(args.arguments)
}

pub fn demo(args: Demo) -> Result<(), Failure> {
    start([OsString::from("demo")].into_iter().chain(args.arguments))
}

/// Replaces this process by `weft-bench`, so that `weft-bench` receives the signals and sets the
/// exit code. It finds this `weft` by its own path and measures it.
fn start(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let program = find(&own).ok_or_else(|| {
        Failure::Input(anyhow!(
            "cannot find the program {PROGRAM}: it is neither beside {} nor in PATH; install it \
             there, or build it with `cargo build --release --package bench`",
            own.display()
        ))
    })?;
    let error = Command::new(&program).arg("--weft").arg(own).args(arguments).exec();
    Err(Failure::Runtime(anyhow!(error).context(format!("cannot start {}", program.display()))))
}

/// Finds `weft-bench` in the directory of the program `own`, otherwise in PATH.
fn find(own: &Path) -> Option<PathBuf> {
    let beside = own.with_file_name(PROGRAM);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|directory| directory.join(PROGRAM));
    [beside].into_iter().chain(in_path).find(|program| program.is_file())
}
