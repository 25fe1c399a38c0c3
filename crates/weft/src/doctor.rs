//! `weft doctor`: what this host can do for tunnels, what is wrong with it, and how to mend it.

use crate::control::{Request, Target, ask};
use crate::{Failure, text};
use ::doctor::examine::Subject;
use ::doctor::judge;
use ::doctor::path::PathFacts;
use ::doctor::report::Report;
use anyhow::anyhow;
use network::{Host, Network};
use std::path::PathBuf;

/// Look at this host's network cards, kernel and settings: what they do for tunnels, what is wrong, how it is mended.
///
/// Every line says PASS, WARN or FAIL and the value seen; behind WARN and FAIL stand why it matters and the command that mends it.
/// With a network file, MTUs are looked at from the guests to the uplink, and only the tunnels in use count. Nothing is changed
/// without --fix. Without root, what needs it is left out and said so.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  weft doctor\n  weft doctor --host h1 network.toml\n  weft doctor --nic eth0 --json | jq '.findings[] | select(.level != \"pass\")'\n  weft doctor --fix\n  weft doctor --host h1 --path h2\n\nExit codes: 0 nothing is wrong, 1 something costs more than it has to, 2 something loses packets, or bad usage."
)]
pub struct Args {
    /// A device that leads to other hosts; may be repeated [default: the uplink in the network file, or hardware that is up]
    #[arg(long, value_name = "DEVICE")]
    nic: Vec<String>,
    /// Change what is safe to change and as easily changed back: sysctls, offloads, RPS; says what was done and how to undo it
    #[arg(long)]
    fix: bool,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Find out how long packets may be on the way to that host, in both directions, inside the tunnel of the running switch; it
    /// has to be a host of the network file on which weft runs, too. Nothing else is looked at
    #[arg(long, value_name = "HOST", conflicts_with_all = ["nic", "fix", "network"])]
    path: Option<String>,
    #[command(flatten)]
    target: Target,
    /// The network file; --host says which of its hosts this one is
    #[arg(requires = "host")]
    network: Option<PathBuf>,
}

pub fn doctor(args: &Args) -> Result<(), Failure> {
    let report = match &args.path {
        Some(host) => path(args, host)?,
        None => examine(args)?,
    };
    let shown = if args.json {
        format!("{}\n", serde_json::to_string_pretty(&report)?)
    } else {
        report.text()
    };
    text::print(&shown)?;
    match report.level().exit_code() {
        0 => Ok(()),
        code => Err(Failure::Found(code)),
    }
}

/// The way to another host, as the running switch finds it.
fn path(args: &Args, host: &str) -> Result<Report, Failure> {
    let request = Request::Path { host: host.to_owned() };
    let facts: PathFacts = ask(&args.target.path()?, &request)?;
    Ok(Report { findings: judge::path::findings(&facts), ..Report::default() })
}

fn examine(args: &Args) -> Result<Report, Failure> {
    let network = args.network.as_ref().map(Network::load).transpose().map_err(Failure::input)?;
    let named = network.as_ref().zip(args.target.host.as_deref());
    let network = named.map(|(network, name)| Ok((network, host_of(network, name)?)));
    let subject =
        Subject { nics: args.nic.clone(), network: network.transpose().map_err(Failure::Input)? };
    let examined = if args.fix { subject.mend() } else { subject.examine() };
    examined.map_err(|error| match error.is_not_found() {
        true => Failure::input(error),
        false => error.into(),
    })
}

fn host_of<'n>(network: &'n Network, name: &str) -> Result<&'n Host, anyhow::Error> {
    network.host(name).ok_or_else(|| {
        let names: Vec<_> = network.hosts().iter().map(|host| host.name.as_str()).collect();
        anyhow!("the network file has no host {name:?}; it has {}", names.join(", "))
    })
}
