//! `weft ofctl`: the flows of a bridge, with the arguments and the output of ovs-ofctl.

use crate::control::replies::{BridgePortRow, FlowLine, FlowsChanged, PacketSent};
use crate::control::{DaemonSelector, FlowChange, Request, Stream, request};
use crate::stdio::Output;
use crate::{Failure, stdio};
use clap::Subcommand;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Show or change the flows of a running bridge, as ovs-ofctl does.
///
/// BRIDGE is a `[[bridge]]` of the network file. docs/ofctl.md describes flows and matches. Changes
/// are not written to the flow file: a reload reads the file again. The output is that of
/// ovs-ofctl, with flows in the form of `weft check --ofctl`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  weft ofctl dump-flows br0
  weft ofctl dump-flows br0 table=1,ip
  weft ofctl add-flow br0 'priority=10,in_port=1 actions=output:2'
  weft ofctl add-flows br0 more.flows
  weft ofctl mod-flows --strict br0 'priority=10,in_port=1 actions=drop'
  weft ofctl del-flows br0 in_port=1
  weft ofctl replace-flows br0 br0.flows
  weft ofctl dump-ports br0
  weft ofctl packet-out br0 'in_port=1 packet=ffffffffffff0200000000010806 actions=flood'

Exit codes: 0 success, 1 no daemon replies, 2 bad usage, a wrong flow, an unknown bridge or port;
nothing has changed.";

#[derive(Subcommand)]
enum Command {
    /// Add a flow, or replace the one with the same table, priority and match
    AddFlow(One),
    /// Apply a file of flows; a line may begin with `modify`, `delete` or another command
    AddFlows(File),
    /// Replace the actions of the flows that a match selects
    ModFlows(Selected),
    /// Delete the flows that a match selects, or all
    DelFlows(Deleted),
    /// Replace all flows by those of a file; equal flows keep their counters
    ReplaceFlows(File),
    /// Print the flows that a match selects, or all
    DumpFlows(Dump),
    /// Print the counters of ports
    DumpPorts(Ports),
    /// Execute actions on a packet as if it had arrived by a port
    PacketOut(Sent),
}

#[derive(clap::Args)]
struct One {
    #[command(flatten)]
    target: DaemonSelector,
    /// The name of the bridge
    bridge: String,
    /// The flow, such as `priority=10,in_port=1 actions=output:2`
    flow: String,
}

#[derive(clap::Args)]
struct File {
    #[command(flatten)]
    target: DaemonSelector,
    /// The name of the bridge
    bridge: String,
    /// The file of flows; - for standard input
    file: PathBuf,
}

#[derive(clap::Args)]
struct Selected {
    #[command(flatten)]
    target: DaemonSelector,
    /// Select only the flow with exactly this match and priority
    #[arg(long)]
    strict: bool,
    /// The name of the bridge
    bridge: String,
    /// The match and the new actions, such as `in_port=1 actions=drop`
    flow: String,
}

#[derive(clap::Args)]
struct Deleted {
    #[command(flatten)]
    target: DaemonSelector,
    /// Select only the flow with exactly this match and priority
    #[arg(long)]
    strict: bool,
    /// The name of the bridge
    bridge: String,
    /// The match, such as `table=1,ip`; all flows without it
    #[arg(value_name = "MATCH", default_value = "")]
    selector: String,
}

#[derive(clap::Args)]
struct Dump {
    #[command(flatten)]
    target: DaemonSelector,
    /// Leave out age and counters
    #[arg(long)]
    no_stats: bool,
    /// The name of the bridge
    bridge: String,
    /// The match, such as `table=1,ip`; all flows without it
    #[arg(value_name = "MATCH", default_value = "")]
    selector: String,
}

#[derive(clap::Args)]
struct Ports {
    #[command(flatten)]
    target: DaemonSelector,
    /// The name of the bridge
    bridge: String,
    /// The number or name of a port; all ports without it
    port: Option<String>,
}

#[derive(clap::Args)]
struct Sent {
    #[command(flatten)]
    target: DaemonSelector,
    /// The name of the bridge
    bridge: String,
    /// Port, packet and actions, such as `in_port=1 packet=0200... actions=resubmit(,0)`
    packet: String,
}

pub fn ofctl(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::AddFlow(One { target, bridge, flow }) => {
            change(&target, bridge, FlowChange::Add, flow, "add-flow")
        }
        Command::AddFlows(file) => change_by_file(file, FlowChange::Lines),
        Command::ReplaceFlows(file) => change_by_file(file, FlowChange::Replace),
        Command::ModFlows(Selected { target, strict, bridge, flow }) => {
            let kind = if strict { FlowChange::ModifyStrict } else { FlowChange::Modify };
            change(&target, bridge, kind, flow, "mod-flows")
        }
        Command::DelFlows(Deleted { target, strict, bridge, selector }) => {
            let kind = if strict { FlowChange::DeleteStrict } else { FlowChange::Delete };
            change(&target, bridge, kind, selector, "del-flows")
        }
        Command::DumpFlows(dump) => dump_flows(dump),
        Command::DumpPorts(ports) => dump_ports(ports),
        Command::PacketOut(Sent { target, bridge, packet }) => {
            let query = Request::PacketOut { bridge, text: packet };
            let _: PacketSent = request(&target.path()?, &query)?;
            Ok(())
        }
    }
}

fn change_by_file(file: File, kind: FlowChange) -> Result<(), Failure> {
    let File { target, bridge, file } = file;
    let text = stdio::read_input(&file)?;
    // The path is made absolute, because commands with another working directory show it.
    let source = match file == Path::new("-") {
        true => stdio::display_name(&file),
        false => std::path::absolute(&file)?.display().to_string(),
    };
    change(&target, bridge, kind, text, &source)
}

/// Like ovs-ofctl, a change that succeeds prints nothing.
fn change(
    target: &DaemonSelector,
    bridge: String,
    change: FlowChange,
    text: String,
    source: &str,
) -> Result<(), Failure> {
    let source = source.to_owned();
    let query = Request::ChangeFlows { bridge, change, text, source };
    let _: FlowsChanged = request(&target.path()?, &query)?;
    Ok(())
}

fn dump_flows(dump: Dump) -> Result<(), Failure> {
    let Dump { target, no_stats, bridge, selector } = dump;
    let query = Request::BridgeFlows { bridge, selector, statistics: !no_stats };
    let (_, stream): (Value, _) = Stream::open(&target.path()?, &query)?;
    let mut out = Output::new();
    let _: Value = stream.all(|FlowLine { line }| out.write(&format!("{line}\n")))?;
    out.flush()
}

fn dump_ports(ports: Ports) -> Result<(), Failure> {
    let Ports { target, bridge, port } = ports;
    let query = Request::BridgePorts { bridge, port };
    let rows: Vec<BridgePortRow> = request(&target.path()?, &query)?;
    stdio::print(&describe_ports(&rows))
}

/// The counters in the format of ovs-ofctl, with `?` for counters that the switch does not have.
fn describe_ports(rows: &[BridgePortRow]) -> String {
    let mut text = format!("OFPST_PORT reply (xid=0x2): {} ports\n", rows.len());
    for BridgePortRow { number, rx, tx, drops, name: _ } in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  port {number:2}: rx pkts={}, bytes={}, drop={drops}, errs=?, frame=?, over=?, crc=?\n\
             \x20          tx pkts={}, bytes={}, drop=?, errs=?, coll=?",
            rx.packets, rx.bytes, tx.packets, tx.bytes
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::stats::PacketCount;

    /// The output of ovs-ofctl 3.1, with other numbers.
    #[test]
    fn ports_are_printed_as_ovs_ofctl_prints_them() {
        let count = |packets, bytes| PacketCount { packets, bytes };
        let row = |number, name: &str| BridgePortRow {
            number,
            name: name.to_owned(),
            rx: count(3, 294),
            tx: count(2, 196),
            drops: 1,
        };
        let text = "\
OFPST_PORT reply (xid=0x2): 2 ports
  port  1: rx pkts=3, bytes=294, drop=1, errs=?, frame=?, over=?, crc=?
           tx pkts=2, bytes=196, drop=?, errs=?, coll=?
  port 12: rx pkts=3, bytes=294, drop=1, errs=?, frame=?, over=?, crc=?
           tx pkts=2, bytes=196, drop=?, errs=?, coll=?
";
        assert_eq!(describe_ports(&[row(1, "web"), row(12, "db")]), text);
    }
}
