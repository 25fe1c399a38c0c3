//! The command line of `weft-bench`: one module for each group of subcommands.

mod crosscheck;
mod demo;
mod exact;
mod remote;
mod reports;
mod studies;
mod trust;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::Error;

/// Measure weft on this machine: the demo, the published studies, and exact instruction counts.
///
/// Hosts, guests and switches are network namespaces of this machine. Nothing else is touched, and
/// everything is removed afterwards, also after a failure and after Ctrl-C.
#[derive(Parser)]
#[command(name = "weft-bench", version, after_help = EXAMPLES)]
struct Cli {
    /// The `weft` program to measure [default: the one beside this program, else the one in PATH]
    #[arg(long, value_name = "PATH")]
    weft: Option<PathBuf>,
    #[command(subcommand)]
    task: Task,
}

const EXAMPLES: &str = "\
Examples:
  weft-bench demo                          two hosts in namespaces, every tunnel, one table
  weft-bench list                          the studies, their scenarios and the contenders
  weft-bench run all --quick --out bench   the published studies, repeated on this machine
  weft-bench exact --contender bridge      instructions a message costs, in an emulated machine
  weft-bench trust kill --kills 5          kill the daemon under traffic, and check the recovery
  weft-bench serve                         on one host, and on another:
  weft-bench client 192.0.2.2              load the path between two real hosts

Exit codes: 0 success, 1 a measurement failed, 2 bad usage, bad input or missing rights.";

#[derive(Subcommand)]
enum Task {
    Demo(demo::Args),
    List(studies::List),
    Run(studies::Run),
    Exact(exact::Args),
    Compare(reports::Compare),
    Report(reports::Report),
    Join(reports::Join),
    Findings(reports::Findings),
    Crosscheck(crosscheck::Args),
    Trust(trust::Args),
    Serve(remote::Serve),
    Client(remote::Client),
    /// Measure inside the emulated machine of `exact`
    #[command(hide = true)]
    Inside(exact::Inside),
}

/// Why a command ended early.
struct Failure {
    exit_code: u8,
    message: String,
}

impl Failure {
    /// A measurement failed.
    fn work(message: impl fmt::Display) -> Self {
        Self { exit_code: 1, message: message.to_string() }
    }

    /// Invalid input or missing privileges. Nothing was measured.
    fn input(message: impl fmt::Display) -> Self {
        Self { exit_code: 2, message: message.to_string() }
    }

    /// The reader of standard output, such as `head`, has closed it. This is a success without a
    /// message.
    fn output_closed() -> Self {
        Self { exit_code: 0, message: String::new() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if error.is_missing() { Self::input(error) } else { Self::work(error) }
    }
}

/// Runs the command that the arguments of this process name.
pub fn main() -> ExitCode {
    let Cli { weft, task } = Cli::parse();
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    log.with_target(false).with_ansi(false).init();
    // A load with many connections needs as many open files. Without the privilege to raise the
    // limit, such a load fails with its own message.
    if let Err(error) = netdev::limits::raise_open_files() {
        tracing::warn!("{error}");
    }
    match run(task, weft) {
        Ok(()) | Err(Failure { exit_code: 0, .. }) => ExitCode::SUCCESS,
        Err(Failure { exit_code, message }) => {
            eprintln!("weft-bench: {message}");
            ExitCode::from(exit_code)
        }
    }
}

/// Writes `text` to standard output. `print!` would panic when the reader has closed it.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::output_closed()),
        result => result
            .map_err(|error| Failure::work(format!("cannot write to standard output: {error}"))),
    }
}

/// The definition of all commands and options, from which reference documentation can be made.
pub fn command() -> clap::Command {
    Cli::command()
}

fn run(task: Task, weft: Option<PathBuf>) -> Result<(), Failure> {
    let weft = || weft.map_or_else(find_weft, Ok);
    match task {
        Task::Demo(args) => demo::demo(args, weft()?),
        Task::List(_) => studies::list(&weft()?),
        Task::Run(args) => studies::run(args, weft()?),
        Task::Exact(args) => exact::exact(&args, weft()?),
        Task::Inside(args) => exact::inside(&args, &weft()?),
        Task::Compare(args) => reports::compare(&args),
        Task::Report(args) => reports::report(&args),
        Task::Join(args) => reports::join(&args),
        Task::Findings(args) => reports::findings(&args),
        Task::Crosscheck(args) => crosscheck::crosscheck(&args),
        Task::Trust(args) => trust::trust(&args, weft()?),
        Task::Serve(args) => remote::serve(&args),
        Task::Client(args) => remote::client(&args),
    }
}

/// The program `weft` in the directory of this program, else the first one in PATH.
fn find_weft() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(|directory| directory.join("weft"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|directory| directory.join("weft"));
    let found = beside.into_iter().chain(in_path).find(|program| program.is_file());
    found.ok_or_else(|| {
        Failure::input(
            "cannot find the program weft: it is neither beside weft-bench nor in PATH; install \
             it, or name it with --weft PATH",
        )
    })
}

/// Seconds of a measurement, 0.05 to 600.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number from 0.05 to 600".to_owned()),
    }
}

/// The commit that this program was built from, if the build knew it.
fn commit() -> Option<String> {
    option_env!("WEFT_COMMIT").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        command().debug_assert();
    }
}
