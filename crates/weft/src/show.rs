//! `weft show`: what a running daemon counts.

use crate::control::{Request, Target, ask};
use crate::{Failure, text};
use ::doctor::choice::Chosen;
use datapath::stats::{Count, Drops, Snapshot};
use std::fmt::Write as _;

/// Show ports, end points, counters and drops by reason of a running switch, and how packets leave it.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  weft show --host h1\n  weft show --host h1 --json | jq .ports"
)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// What is shown, for programs.
#[derive(serde::Serialize)]
struct Shown {
    #[serde(flatten)]
    snapshot: Snapshot,
    chosen: Vec<Chosen>,
}

pub fn show(args: &Args) -> Result<(), Failure> {
    let path = args.target.path()?;
    let snapshot: Snapshot = ask(&path, &Request::Show)?;
    let chosen: Vec<Chosen> = ask(&path, &Request::Chosen)?;
    if args.json {
        let shown = Shown { snapshot, chosen };
        return text::print(&format!("{}\n", serde_json::to_string_pretty(&shown)?));
    }
    text::print(&(describe(&snapshot) + &reasons(&chosen)))
}

/// How packets leave, and why so.
fn reasons(chosen: &[Chosen]) -> String {
    let line = |Chosen { what, how, why }: &Chosen| format!("{what}: {how}; {why}\n");
    chosen.iter().map(line).collect()
}

fn describe(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_text(snapshot, &mut out);
    out
}

fn write_text(snapshot: &Snapshot, out: &mut String) -> std::fmt::Result {
    let seconds = snapshot.uptime_ms / 1000;
    writeln!(
        out,
        "host {}  {} datapath  pid {}  up {seconds} s",
        snapshot.host, snapshot.datapath, snapshot.pid
    )?;
    let uplink = &snapshot.uplink;
    writeln!(out, "uplink {}  {}", uplink.device, uplink.state)?;
    write_counts(out, &uplink.rx, &uplink.tx)?;
    write_drops(out, &uplink.drops)?;
    for port in &snapshot.ports {
        writeln!(
            out,
            "port {} {}  switch {}  {}  {}",
            port.port, port.name, port.logical_switch, port.device, port.state
        )?;
        write_counts(out, &port.rx, &port.tx)?;
        write_drops(out, &port.drops)?;
    }
    for endpoint in &snapshot.endpoints {
        writeln!(
            out,
            "endpoint {} {} -> {}  neighbour {}",
            endpoint.tunnel, endpoint.local, endpoint.remote, endpoint.neighbour
        )?;
        write_counts(out, &endpoint.rx, &endpoint.tx)?;
    }
    Ok(())
}

fn write_counts(out: &mut String, rx: &Count, tx: &Count) -> std::fmt::Result {
    writeln!(
        out,
        "  rx {} frames {} bytes  tx {} frames {} bytes",
        rx.packets, rx.bytes, tx.packets, tx.bytes
    )
}

fn write_drops(out: &mut String, drops: &Drops) -> std::fmt::Result {
    for (reason, count) in drops {
        writeln!(out, "  drop {reason} {count}")?;
    }
    Ok(())
}
