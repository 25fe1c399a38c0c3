//! `weft tunnels`: the tunnel end points of a running switch.

use crate::control::replies::TunnelsReply;
use crate::control::{DaemonSelector, Request, request};
use crate::table::{Align, Table};
use crate::{Failure, show, stdio};
use datapath::stats::{EndpointStats, PathMtuReport};
use std::fmt::Write as _;

/// Show the tunnels of a running switch: end points, neighbours, path MTU and traffic.
///
/// NEIGHBOUR is `resolved` or `unresolved` where weft writes the outer Ethernet header itself
/// (STT), and `kernel` where the kernel routes the outer packet. `refused` follows if packets of
/// the end point are dropped, because `authenticate = "reverse-path"` is set and the route to it
/// does not lead over the uplink. PATH MTU is in bytes of outer IP packet: the configured MTU of
/// the underlay, or a smaller one that a router has reported. REPORTED BY is the sender of that
/// ICMP message and its age. RX and TX count frames of guests.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft tunnels --host h1
  weft tunnels --host h1 --json | jq '.endpoints[] | select(.neighbour == \"unresolved\")'

Exit codes: 0 success, 1 no daemon replies, 2 bad usage.";

pub fn tunnels(args: &Args) -> Result<(), Failure> {
    let tunnels: TunnelsReply = request(&args.target.path()?, &Request::Tunnels)?;
    if args.json {
        return stdio::print_json(&tunnels);
    }
    stdio::print(&describe(&tunnels))
}

fn describe(tunnels: &TunnelsReply) -> String {
    use Align::{Left, Right};
    let mut out = format!("uplink {}  {}\n", tunnels.uplink, tunnels.uplink_state);
    // Writing to a String cannot fail.
    if let Some(tags) = &tunnels.tags {
        let (rx, tx) = (&tags.rx, &tags.tx);
        let _ = writeln!(
            out,
            "tagged frames  rx {} frames {} bytes  tx {} frames {} bytes",
            rx.packets, rx.bytes, tx.packets, tx.bytes
        );
    }
    for end in &tunnels.local {
        let port = if end.port == 0 { String::new() } else { format!(" port {}", end.port) };
        let _ = writeln!(out, "{} at {}{port}", end.tunnel, end.local);
    }
    let _ = show::write_reports(&mut out, "", &tunnels.path_mtu_reports);
    if tunnels.endpoints.is_empty() {
        return out;
    }
    let mut table = Table::new([
        ("TYPE", Left),
        ("LOCAL", Left),
        ("REMOTE", Left),
        ("HOST", Left),
        ("NEIGHBOUR", Left),
        ("PATH MTU", Right),
        ("REPORTED BY", Left),
        ("RX PACKETS", Right),
        ("RX BYTES", Right),
        ("TX PACKETS", Right),
        ("TX BYTES", Right),
    ]);
    for end in &tunnels.endpoints {
        let stats = &end.stats;
        table.row([
            stats.tunnel.clone(),
            stats.local.to_string(),
            stats.remote.to_string(),
            end.host.clone().unwrap_or_default(),
            neighbour(stats),
            stats.path_mtu.to_string(),
            stats.path_mtu_report.as_ref().map_or_else(String::new, reporter),
            stats.rx.packets.to_string(),
            stats.rx.bytes.to_string(),
            stats.tx.packets.to_string(),
            stats.tx.bytes.to_string(),
        ]);
    }
    let _ = write!(out, "\n{table}");
    out
}

/// The state of the neighbour, and whether packets of the end point are dropped.
fn neighbour(stats: &EndpointStats) -> String {
    let refused = if stats.refused { ", refused" } else { "" };
    format!("{}{refused}", stats.neighbour)
}

/// The sender and the age of a path MTU report.
fn reporter(report: &PathMtuReport) -> String {
    let router = report.router.map_or_else(|| "probes".to_owned(), |router| router.to_string());
    format!("{router} {} s ago", report.age_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::replies::{LocalEnd, RemoteEnd, TaggedCounters};
    use datapath::stats::{PacketCount, PathMtuReports};

    #[test]
    fn describe_lists_end_points_with_their_hosts() {
        let local = [192, 0, 2, 1].into();
        let router = [192, 0, 2, 9].into();
        let stats = EndpointStats {
            tunnel: "geneve".to_owned(),
            local,
            remote: [192, 0, 2, 2].into(),
            neighbour: "kernel".to_owned(),
            refused: false,
            path_mtu: 1400,
            path_mtu_report: Some(PathMtuReport { mtu: 1400, router: Some(router), age_s: 12 }),
            rx: PacketCount { packets: 1, bytes: 98 },
            tx: PacketCount::default(),
        };
        let tunnels = TunnelsReply {
            uplink: "eth0".to_owned(),
            uplink_state: "up".to_owned(),
            tags: Some(TaggedCounters {
                rx: PacketCount::default(),
                tx: PacketCount { packets: 2, bytes: 120 },
            }),
            local: vec![LocalEnd { tunnel: "geneve".to_owned(), local, port: 6081 }],
            endpoints: vec![RemoteEnd { host: Some("h2".to_owned()), stats }],
            path_mtu_reports: PathMtuReports {
                least_path_mtu: 1280,
                believed: 1,
                ignored: [("wrong_source_port".to_owned(), 3)].into(),
            },
        };
        let text = "\
uplink eth0  up
tagged frames  rx 0 frames 0 bytes  tx 2 frames 120 bytes
geneve at 192.0.2.1 port 6081
path MTU reports believed 1
path MTU reports ignored wrong_source_port 3

TYPE    LOCAL      REMOTE     HOST  NEIGHBOUR  PATH MTU  REPORTED BY         RX PACKETS  RX BYTES  TX PACKETS  TX BYTES
geneve  192.0.2.1  192.0.2.2  h2    kernel         1400  192.0.2.9 12 s ago           1        98           0         0
";
        assert_eq!(describe(&tunnels), text);
    }
}
