//! The command line of weft: nothing but wiring.
#![forbid(unsafe_code)]

mod control;
mod demo;
mod logging;
mod plan;
mod run;
mod show;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A software edge switch for network virtualization: guests' frames over VXLAN, Geneve, GRE, STT, VLAN and QinQ.
#[derive(Parser)]
#[command(version, about, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  weft demo                              two hosts in namespaces, all six tunnels, one table
  weft run --host h1 network.toml        the switch of host h1
  weft show --host h1                    its ports, end points, counters and drops
  weft show --host h1 --json             the same for programs

Exit codes: 0 success, 1 something failed while working, 2 bad usage, bad input or missing rights.";

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Show(show::Args),
    Demo(demo::Args),
}

/// What a command ends with when it does not succeed.
enum Failure {
    /// It failed while working: exit code 1.
    Work(anyhow::Error),
    /// Bad input or missing rights; nothing was done: exit code 2.
    Input(anyhow::Error),
}

impl Failure {
    /// Bad input or missing rights.
    fn input(error: impl Into<anyhow::Error>) -> Self {
        Self::Input(error.into())
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Work(error.into())
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Show(args) => show::show(&args),
        Command::Demo(args) => demo::demo(args),
    };
    let (code, error) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Work(error)) => (1, error),
        Err(Failure::Input(error)) => (2, error),
    };
    eprintln!("weft: {error:#}");
    ExitCode::from(code)
}
