//! `weft doctor`: checks what this host offers for tunnels, and how to fix what is wrong.

use crate::control::{DaemonSelector, Request, request};
use crate::daemon::no_such_host;
use crate::{Failure, stdio};
use ::doctor::checks;
use ::doctor::diagnose::Diagnosis;
use ::doctor::path::PathFacts;
use ::doctor::report::Report;
use network::Network;
use std::path::PathBuf;

/// Check the network cards, kernel and settings of this host for tunnels.
///
/// Each line says PASS, WARN or FAIL and the value found. WARN and FAIL add why it matters and the
/// command that fixes it. With a network file, the doctor also checks MTUs from the guests to the
/// uplink, and only the tunnel types in use. Nothing is changed without --fix. Without root,
/// checks that need it are skipped and listed.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A device that leads to other hosts; may be repeated [default: the uplink of the network
    /// file, or all network cards that are up]
    #[arg(long, value_name = "DEVICE")]
    nic: Vec<String>,
    /// Apply the fixes that are safe and easy to undo (sysctls, offloads, RPS); prints each change
    /// and the command that undoes it
    #[arg(long)]
    fix: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure the path MTU to this host inside the tunnel, in both directions, and check nothing
    /// else; weft must run on both hosts
    #[arg(long, value_name = "HOST", conflicts_with_all = ["nic", "fix", "network"])]
    path: Option<String>,
    #[command(flatten)]
    target: DaemonSelector,
    /// The network file; --host names this host in it
    #[arg(requires = "host")]
    network: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  weft doctor
  weft doctor --host h1 network.toml
  weft doctor --nic eth0 --json | jq '.findings[] | select(.level != \"pass\")'
  weft doctor --fix
  weft doctor --host h1 --path h2

Exit codes: 0 all checks pass, 1 a WARN (costs performance), 2 a FAIL (loses packets), or bad
usage.";

pub fn doctor(args: &Args) -> Result<(), Failure> {
    let report = match &args.path {
        Some(host) => path(args, host)?,
        None => diagnose(args)?,
    };
    let shown = if args.json {
        format!("{}\n", serde_json::to_string_pretty(&report)?)
    } else {
        report.text()
    };
    stdio::print(&shown)?;
    match report.level().exit_code() {
        0 => Ok(()),
        code => Err(Failure::Findings(code)),
    }
}

/// The path to another host as the running switch measures it.
fn path(args: &Args, host: &str) -> Result<Report, Failure> {
    let path = args.target.path()?;
    let facts: PathFacts = request(&path, &Request::Path { host: host.to_owned() })?;
    Ok(Report { findings: checks::path::findings(&facts), ..Report::default() })
}

fn diagnose(args: &Args) -> Result<Report, Failure> {
    let network = args.network.as_ref().map(Network::load).transpose().map_err(Failure::input)?;
    let named = network.as_ref().zip(args.target.host.as_deref());
    let network = named.map(|(network, name)| {
        let host =
            network.host(name).ok_or_else(|| no_such_host(network, name, "the network file"));
        Ok((network, host?))
    });
    let scope =
        Diagnosis { nics: args.nic.clone(), network: network.transpose().map_err(Failure::Input)? };
    let report = if args.fix { scope.fix() } else { scope.diagnose() };
    report.map_err(|error| match error.is_not_found() {
        true => Failure::input(error),
        false => error.into(),
    })
}
