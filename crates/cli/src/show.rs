//! `weft show`: the state and counters of a running switch.

use crate::control::{DaemonSelector, Request, request};
use crate::{Failure, stdio};
use ::doctor::choice::Decision;
use datapath::stats::{
    BackendHealth, ConnectionStats, Drops, EndpointStats, HealthStats, LogStats, PacketCount,
    PathMtuReport, PathMtuReports, PrivilegeStats, Snapshot,
};
use std::fmt::Write as _;

/// Show ports, end points, counters and drops of a running switch.
///
/// The last lines name the datapath and say how packets of each tunnel type and port are segmented,
/// each with the reason.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output with --json.
#[derive(serde::Serialize)]
struct ShowOutput {
    #[serde(flatten)]
    snapshot: Snapshot,
    decisions: Vec<Decision>,
}

const EXAMPLES: &str = "\
Examples:
  weft show --host h1
  weft show --host h1 --json | jq .ports
  weft show --host h1 --json | jq '.decisions[] | select(.what == \"datapath\")'

Exit codes: 0 success, 1 no daemon replies, 2 bad usage.";

pub fn show(args: &Args) -> Result<(), Failure> {
    let path = args.target.path()?;
    let snapshot: Snapshot = request(&path, &Request::Show)?;
    let decisions: Vec<Decision> = request(&path, &Request::Decisions)?;
    if args.json {
        return stdio::print_json(&ShowOutput { snapshot, decisions });
    }
    stdio::print(&(describe(&snapshot) + &reasons(&decisions)))
}

/// One line for each decision.
fn reasons(decisions: &[Decision]) -> String {
    let line = |Decision { what, how, why }: &Decision| format!("{what}: {how}; {why}\n");
    decisions.iter().map(line).collect()
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
    write_reports(out, "  ", &uplink.path_mtu_reports)?;
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
            "endpoint {} {} -> {}  neighbour {}{}",
            endpoint.tunnel,
            endpoint.local,
            endpoint.remote,
            endpoint.neighbour,
            if endpoint.refused {
                "  refused: its route does not lead over the uplink"
            } else {
                ""
            }
        )?;
        write_counts(out, &endpoint.rx, &endpoint.tx)?;
        write_path_mtu(out, endpoint)?;
    }
    let ConnectionStats { connections, limit } = snapshot.connections;
    writeln!(out, "connections {connections} of at most {limit}")?;
    write_health(out, &snapshot.health)?;
    write_log(out, snapshot.log)?;
    write_privileges(out, &snapshot.privileges)
}

/// The backends of load balancers with health checks.
fn write_health(out: &mut String, health: &HealthStats) -> std::fmt::Result {
    for BackendHealth { balancer, backend, port, kind, status, failure } in &health.backends {
        write!(out, "backend {backend}  ")?;
        if !balancer.is_empty() {
            write!(out, "load balancer {balancer}  ")?;
        }
        write!(out, "port {port}  {kind} {status}")?;
        match failure {
            Some(failure) => writeln!(out, ": {failure}")?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

/// The privileges that the daemon still has.
fn write_privileges(out: &mut String, privileges: &PrivilegeStats) -> std::fmt::Result {
    let PrivilegeStats { capabilities, no_new_privs, seccomp, landlock } = privileges;
    let on = |is_on: &bool| if *is_on { "on" } else { "off" };
    writeln!(
        out,
        "privileges: {}  no_new_privs {}  seccomp {}  landlock {landlock}",
        capabilities.join(" "),
        on(no_new_privs),
        on(seccomp)
    )
}

/// The path MTU of an end point, if a router has reported a lower one or probes have found it.
fn write_path_mtu(out: &mut String, endpoint: &EndpointStats) -> std::fmt::Result {
    let Some(PathMtuReport { router, age_s, .. }) = endpoint.path_mtu_report else { return Ok(()) };
    let mtu = endpoint.path_mtu;
    match router {
        Some(router) => writeln!(out, "  path MTU {mtu}  reported by {router} {age_s} s ago"),
        None => writeln!(out, "  path MTU {mtu}  found by probes {age_s} s ago"),
    }
}

/// The numbers of ICMP reports of path MTUs, if any were received.
pub fn write_reports(out: &mut String, indent: &str, reports: &PathMtuReports) -> std::fmt::Result {
    if reports.believed != 0 {
        writeln!(out, "{indent}path MTU reports believed {}", reports.believed)?;
    }
    for (reason, count) in &reports.ignored {
        writeln!(out, "{indent}path MTU reports ignored {reason} {count}")?;
    }
    Ok(())
}

/// The numbers of messages that are missing in the log, if any are.
fn write_log(out: &mut String, log: LogStats) -> std::fmt::Result {
    let LogStats { over_rate, not_written, limited } = log;
    if log == LogStats::default() {
        return Ok(());
    }
    writeln!(
        out,
        "log: {over_rate} ACL records over their rate limit, {limited} other messages over theirs, \
         {not_written} not written"
    )
}

fn write_counts(out: &mut String, rx: &PacketCount, tx: &PacketCount) -> std::fmt::Result {
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
