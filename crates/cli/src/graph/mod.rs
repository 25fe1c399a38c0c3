//! `weft graph`: a picture of a network.

mod dot;
mod layout;
mod picture;
mod svg;
pub mod topology;

use crate::control::replies::TunnelsReply;
use crate::control::{DaemonSelector, Request, request};
use crate::daemon::FileReads;
use crate::{Failure, rates, stdio};
use anyhow::{Context, anyhow};
use datapath::stats::{EndpointStats, Snapshot};
use picture::{Live, Picture};
use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use topology::Topology;

/// Draw a network: logical switches, routers and load balancers, hosts and tunnels.
///
/// With a network file, no switch has to run. Without one, the picture shows a running switch: its
/// part of the network, which ports are up, traffic, and dropped packets with their reasons. Ports
/// of other hosts have no state, because a daemon knows only its own.
///
/// From the left: routers and load balancers; switches with their ports; hosts with their uplink
/// and the devices of guests; tunnel types. A line joins a port with its device. SVG shows all
/// addresses of a port when the pointer is on it. With more than 300 ports, those of a switch on
/// one host are one row.
///
/// The traffic is counted since the switch started, or within the given interval.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// The language of the picture
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Write the picture to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Draw the ports of a switch on one host as one row
    #[arg(long)]
    brief: bool,
    /// Show rates, measured for this many seconds: 1 to 60
    #[arg(long, value_name = "SECONDS", conflicts_with = "network",
          value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: Option<u64>,
    /// The network file; without one, a running switch is drawn
    #[arg(value_name = "NETWORK", conflicts_with_all = ["host", "control"])]
    network: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  weft graph -o network.svg network.toml
  weft graph --format dot network.toml | dot -Tpdf -o network.pdf
  weft graph --host h1 -o now.svg
  weft graph --host h1 --interval 5 -o now.svg

Exit codes: 0 success, 1 no daemon replies or the file cannot be written, 2 bad usage or an
invalid network file.";

/// A graphics language.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
enum Format {
    /// Scalable Vector Graphics, for browsers and documents
    #[default]
    Svg,
    /// The language of Graphviz
    Dot,
}

pub fn graph(args: &Args) -> Result<(), Failure> {
    let picture = match &args.network {
        Some(file) => {
            let network = FileReads::new().load(file)?;
            let topology = Topology::of_network(&network, |_| None);
            let name = file.file_name().unwrap_or(file.as_os_str()).display().to_string();
            Picture::new(name, &topology, args.brief, None)
        }
        None => live_picture(args)?,
    };
    let text = match args.format {
        Format::Svg => svg::draw(&picture),
        Format::Dot => dot::draw(&picture),
    };
    match &args.output {
        None => stdio::print(&text),
        Some(path) => fs::write(path, text)
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Failure::from),
    }
}

/// The picture of a running switch.
fn live_picture(args: &Args) -> Result<Picture, Failure> {
    let path = args.target.path()?;
    let topology: Topology = request(&path, &Request::Topology)?;
    let mut snapshot: Snapshot = request(&path, &Request::Show)?;
    let mut tunnels: TunnelsReply = request(&path, &Request::Tunnels)?;
    let mut interval_s = None;
    if let Some(seconds) = args.interval {
        let (earlier, earlier_ends) = (snapshot, tunnels);
        std::thread::sleep(Duration::from_secs(seconds));
        snapshot = request(&path, &Request::Show)?;
        tunnels = request(&path, &Request::Tunnels)?;
        if !rates::is_same_run(&snapshot, &earlier) {
            return Err(anyhow!(
                "cannot measure rates: the daemon was restarted in the meantime; repeat the command"
            )
            .into());
        }
        let took_ms = snapshot.uptime_ms.saturating_sub(earlier.uptime_ms);
        interval_s = Some(took_ms.max(1) as f64 / 1000.0);
        rates::subtract(&mut snapshot, &earlier);
        subtract_endpoints(&mut tunnels, &earlier_ends);
    }
    let title = match args.interval {
        None => format!("host {}, up {} s", snapshot.host, snapshot.uptime_ms / 1000),
        Some(seconds) => format!("host {}, traffic within {seconds} s", snapshot.host),
    };
    let live = Live { snapshot: &snapshot, tunnels: &tunnels, interval_s };
    Ok(Picture::new(title, &topology, args.brief, Some(&live)))
}

/// Subtracts the counters of the earlier reply from those of the end points.
fn subtract_endpoints(tunnels: &mut TunnelsReply, earlier: &TunnelsReply) {
    let key = |stats: &EndpointStats| (stats.tunnel.clone(), stats.local, stats.remote);
    let before: HashMap<(String, IpAddr, IpAddr), &EndpointStats> =
        earlier.endpoints.iter().map(|end| (key(&end.stats), &end.stats)).collect();
    for end in &mut tunnels.endpoints {
        if let Some(before) = before.get(&key(&end.stats)) {
            end.stats.rx = rates::added(end.stats.rx, before.rx);
            end.stats.tx = rates::added(end.stats.tx, before.tx);
        }
    }
}

#[cfg(test)]
mod tests;
