//! The command line of weft: nothing but wiring.
#![forbid(unsafe_code)]

mod bench;
mod capture;
mod check;
mod clock;
mod control;
mod daemon;
mod doctor;
mod fdb;
mod flows;
mod limits;
mod line_check;
mod logging;
mod monitor;
mod numbers;
mod pcap;
mod plan;
mod ports;
mod reload;
mod rights;
mod run;
mod show;
mod stop;
mod table;
mod text;
mod trace;
mod tunnels;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A software edge switch for network virtualization: guests' frames over VXLAN, Geneve, GRE, STT, VLAN and QinQ.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  weft doctor                            what this host does for tunnels, and what is wrong with it
  weft demo                              two hosts in namespaces, all six tunnels, one table
  weft bench run all --quick             the published studies, repeated on this machine
  weft run --host h1 network.toml        the switch of host h1
  weft show --host h1                    its ports, end points, counters and drops
  weft show --host h1 --json             the same for programs
  weft flows --host h1                   cached decisions, and the logical flows that they come from
  weft monitor --drops --host h1         what is not delivered, as it happens, and why
  weft capture vm1 --host h1 -w -        the frames of a guest, for tcpdump
  weft reload network.toml --host h1     another network, without a restart
  weft stop --host h1                    end it; in the kernel, what is cached goes on
  weft flows --logical network.toml      what the network becomes, in OVN's language
  weft check --expr -                    is this a match of a logical flow?
  weft trace network.toml PACKET         what the switch does with a packet, and why

Exit codes: 0 success, 1 something failed while working, 2 bad usage, bad input or missing rights.";

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Show(show::Args),
    Ports(ports::Args),
    Fdb(fdb::Args),
    Tunnels(tunnels::Args),
    Flows(flows::Args),
    Monitor(monitor::Args),
    Capture(capture::Args),
    Reload(reload::Args),
    Stop(stop::Args),
    Check(check::Args),
    Trace(trace::Args),
    Demo(bench::Demo),
    Doctor(doctor::Args),
    Bench(bench::Bench),
}

/// What a command ends with when it does not succeed.
enum Failure {
    /// It failed while working: exit code 1.
    Work(anyhow::Error),
    /// Bad input or missing rights; nothing was done: exit code 2.
    Input(anyhow::Error),
    /// It has found something, and said so: this exit code.
    Found(u8),
    /// Nobody reads the output any more, `head` for one: success.
    Unread,
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
        Command::Ports(args) => ports::ports(&args),
        Command::Fdb(args) => fdb::fdb(&args),
        Command::Tunnels(args) => tunnels::tunnels(&args),
        Command::Flows(args) => flows::flows(&args),
        Command::Monitor(args) => monitor::monitor(&args),
        Command::Capture(args) => capture::capture(&args),
        Command::Reload(args) => reload::reload(&args),
        Command::Stop(args) => stop::stop(&args),
        Command::Check(args) => check::check(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Demo(args) => bench::demo(args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Bench(args) => bench::bench(args),
    };
    let (code, error) = match result {
        Ok(()) | Err(Failure::Unread) => return ExitCode::SUCCESS,
        Err(Failure::Found(code)) => return ExitCode::from(code),
        Err(Failure::Work(error)) => (1, error),
        Err(Failure::Input(error)) => (2, error),
    };
    eprintln!("weft: {}", sentence(&error));
    ExitCode::from(code)
}

/// The error and its causes. Some name their cause in their own text, which is not to be read twice.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_are_told_once_when_an_error_names_its_own() {
        let device = netdev::Error::os("look up link eth0", std::io::Error::from_raw_os_error(19));
        let error = Err::<(), _>(device).context("cannot run").unwrap_err();
        let expected = "cannot run: look up link eth0: No such device (os error 19)";
        assert_eq!(sentence(&error), expected);
    }
}
