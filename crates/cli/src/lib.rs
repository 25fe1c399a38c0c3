//! The command line of weft. Each subcommand is a module; the logic is in the other crates.
#![forbid(unsafe_code)]

mod bench;
mod bridges;
mod capture;
mod check;
mod clock;
mod control;
mod ct;
mod daemon;
mod diff;
mod doctor;
mod fdb;
mod flows;
mod graph;
mod host_config;
mod host_numbers;
mod line_check;
mod log_queue;
mod logging;
mod metrics;
mod monitor;
mod ofctl;
mod open_files;
mod pcap;
mod port;
mod ports;
mod privileges;
mod rates;
#[cfg(test)]
mod reference;
mod reload;
mod run;
mod service_manager;
mod show;
mod stdio;
mod stop;
mod support;
mod table;
mod top;
mod trace;
mod tunnels;
mod units;

/// What the fuzz targets call.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::control::{Request, parse_request};
}

use clap::{Parser, Subcommand};
use flow::TunnelType;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "weft", version, about = about(), after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The description of weft for `--help`, with the names of all tunnel types.
fn about() -> String {
    let tunnels = TunnelType::ALL.map(TunnelType::name).join(", ");
    format!(
        "A software edge switch for network virtualization. It carries the frames of guests \
         between hosts by these tunnel types: {tunnels}"
    )
}

const EXAMPLES: &str = "\
Examples:
  weft doctor                         check the NICs, kernel and settings of this host
  weft demo                           compare all tunnel types on two hosts made of namespaces
  weft bench run all --quick          repeat the published studies on this machine
  weft run --host h1 network.toml     run the switch of host h1
  weft show --host h1                 show ports, end points, counters and drops
  weft show --host h1 --json          the same as JSON
  weft flows --host h1                show megaflows and the logical flows behind them
  weft ct --host h1                   show tracked connections
  weft ofctl dump-flows br0           show the flows of a bridge, as ovs-ofctl does
  weft top --host h1                  watch rates, drops and processor time
  weft monitor --drops --host h1      watch dropped packets and the reasons
  weft capture vm1 --host h1 -w -     capture the frames of a guest for tcpdump
  weft port add pods veth1 --host h1  attach an interface to a port of a pool
  weft reload network.toml --host h1  apply a changed network file without a restart
  weft diff old.toml new.toml         show what a reload would change
  weft graph -o now.svg --host h1     draw the network with the state of ports and tunnels
  weft stop --host h1                 stop the daemon; the kernel keeps forwarding cached flows
  weft flows --logical network.toml   print the logical flows of a network file
  weft check --expr -                 check match expressions
  weft support --host h1              collect what is needed to find a fault
  weft trace network.toml PACKET      trace a packet through the pipeline

Exit codes: 0 success, 1 runtime failure, 2 bad usage, invalid input or missing privileges.";

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Show(show::Args),
    Ports(ports::Args),
    Port(port::Args),
    Fdb(fdb::Args),
    Tunnels(tunnels::Args),
    Ct(ct::Args),
    Flows(flows::Args),
    Graph(graph::Args),
    Top(top::Args),
    Ofctl(ofctl::Args),
    Monitor(monitor::Args),
    Capture(capture::Args),
    Reload(reload::Args),
    Stop(stop::Args),
    Check(check::Args),
    Diff(diff::Args),
    Trace(trace::Args),
    Demo(bench::Demo),
    Doctor(doctor::Args),
    Support(support::Args),
    Bench(bench::Bench),
}

/// Why a command did not succeed.
enum Failure {
    /// A valid command failed: exit code 1.
    Runtime(anyhow::Error),
    /// Invalid input or missing privileges; nothing was changed: exit code 2.
    Input(anyhow::Error),
    /// The command has printed findings, and exits with this code.
    Findings(u8),
    /// The reader of standard output, such as `head`, has closed it: exit code 0.
    OutputClosed,
}

impl Failure {
    /// Invalid input or missing privileges.
    fn input(error: impl Into<anyhow::Error>) -> Self {
        Self::Input(error.into())
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Runtime(error.into())
    }
}

/// Runs the command that the arguments of this process name, and returns its exit code.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Show(args) => show::show(&args),
        Command::Ports(args) => ports::ports(&args),
        Command::Port(args) => port::port(&args),
        Command::Fdb(args) => fdb::fdb(&args),
        Command::Tunnels(args) => tunnels::tunnels(&args),
        Command::Ct(args) => ct::ct(&args),
        Command::Flows(args) => flows::flows(&args),
        Command::Graph(args) => graph::graph(&args),
        Command::Top(args) => top::top(&args),
        Command::Ofctl(args) => ofctl::ofctl(args),
        Command::Monitor(args) => monitor::monitor(&args),
        Command::Capture(args) => capture::capture(&args),
        Command::Reload(args) => reload::reload(&args),
        Command::Stop(args) => stop::stop(&args),
        Command::Check(args) => check::check(&args),
        Command::Diff(args) => diff::diff(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Demo(args) => bench::demo(args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Support(args) => support::support(&args),
        Command::Bench(args) => bench::bench(args),
    };
    let (code, error) = match result {
        Ok(()) | Err(Failure::OutputClosed) => (0, None),
        Err(Failure::Findings(code)) => (code, None),
        Err(Failure::Runtime(error)) => (1, Some(error)),
        Err(Failure::Input(error)) => (2, Some(error)),
    };
    if let Some(error) = error {
        logging::print_last(&stdio::printable(&format!("weft: {}", one_line(&error))));
    }
    logging::flush();
    ExitCode::from(code)
}

/// The error and its causes, separated by colons. Skips a cause that the text already contains:
/// some errors include their cause in their own message.
fn one_line(error: &anyhow::Error) -> String {
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
    fn one_line_has_each_cause_once() {
        let device = netdev::Error::os("look up link eth0", std::io::Error::from_raw_os_error(19));
        let error = Err::<(), _>(device).context("cannot run").unwrap_err();
        let expected = "cannot run: look up link eth0: No such device (os error 19)";
        assert_eq!(one_line(&error), expected);
    }
}
