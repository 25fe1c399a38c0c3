//! `weft flows`: the megaflows of a running switch, and logical flows of a switch or a network
//! file.

mod cached;

use crate::control::replies::ProgramRow;
use crate::control::{DaemonSelector, Request, Stream};
use crate::stdio::Output;
use crate::{Failure, stdio};
use anyhow::anyhow;
use cached::Sort;
use network::{Network, logical_flows};
use pipeline::DatapathKind;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Show the megaflows of a running switch, or logical flows.
///
/// A megaflow is a cached decision for all packets that match its key and mask. Each is shown with
/// its actions, counters and the logical flows that decided, with stage, priority and line of the
/// network file. The list is not a snapshot: a megaflow that changes meanwhile may appear twice.
/// --sort collects the whole list first.
///
/// --logical FILE prints the logical flows of a network file in OVN's language, in the format of
/// `ovn-sbctl lflow-list`; `weft check --flows` can read it. --logical without a file prints the
/// logical flows of a running switch, with counters.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// Show logical flows: of this network file, or without FILE of a running switch
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    logical: Option<Option<PathBuf>>,
    /// With --logical: only flows of this logical switch or router
    #[arg(long, value_name = "NAME", requires = "logical")]
    datapath: Option<String>,
    /// Only megaflows of packets received on this port
    #[arg(long, value_name = "NAME", conflicts_with = "logical")]
    port: Option<String>,
    /// Only megaflows with at least this many packets
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "logical")]
    min_packets: u64,
    /// Sort megaflows in descending order
    #[arg(long, value_name = "BY", conflicts_with = "logical")]
    sort: Option<Sort>,
    /// Leave out the logical flows that decided
    #[arg(long, conflicts_with = "logical")]
    brief: bool,
    /// Print JSON: one object for a file, one object per line for a running switch (the last line
    /// of megaflows is {"totals": ...})
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft flows --host h1
  weft flows --host h1 --port vm1 --sort packets --brief | head
  weft flows --host h1 --json | jq 'select(.actions | startswith(\"drop\")) | {port, match}'
  weft flows --host h1 --logical --datapath web
  weft flows --logical network.toml
  weft flows --logical network.toml --json | jq '.flows[] | select(.stage == \"ls_in_acl\")'

Exit codes: 0 success, 1 no daemon replies, 2 bad usage, an invalid file, an unknown port or
datapath.";

pub fn flows(args: &Args) -> Result<(), Failure> {
    match &args.logical {
        None => cached::show(args),
        Some(None) => of_program(args),
        Some(Some(file)) if args.target.is_named() => Err(Failure::Input(anyhow!(
            "cannot show the flows of both {} and a running switch: leave out the file, or --host \
             and --control",
            file.display()
        ))),
        Some(Some(file)) => of_file(args, file),
    }
}

/// Prints the logical flows of a running switch with their counters.
fn of_program(args: &Args) -> Result<(), Failure> {
    let request = Request::Program { datapath: args.datapath.clone() };
    let (_, stream): (Value, _) = Stream::open(&args.target.path()?, &request)?;
    let mut out = Output::new();
    let mut heading = (Vec::new(), String::new());
    let _: Value = stream.all(|row: ProgramRow| {
        if args.json {
            return out.json(&row);
        }
        let section = (row.datapaths.clone(), row.pipeline.clone());
        if section != heading {
            let names = row.datapaths.join(", ");
            out.write(&format!("Datapaths: {names}  Pipeline: {}\n", row.pipeline))?;
            heading = section;
        }
        out.write(&program_line(&row))
    })?;
    out.flush()
}

fn program_line(row: &ProgramRow) -> String {
    let ProgramRow { table, packets, bytes, flow, .. } = row;
    let (stage, priority, source) = (&flow.stage, flow.priority, stdio::file_name(&flow.source));
    format!(
        "  packets={packets:<8} bytes={bytes:<10} table={table:<2}({stage:<20}), \
         priority={priority:<5}, {source}, match=({}), action=({})\n",
        flow.condition, flow.actions
    )
}

fn of_file(args: &Args, file: &Path) -> Result<(), Failure> {
    let network = Network::load(file).map_err(Failure::input)?;
    let mut logical = logical_flows(&network);
    if let Some(name) = &args.datapath {
        let names: Vec<_> = logical.datapaths.iter().map(|dp| format!("`{}`", dp.name)).collect();
        logical.datapaths.retain(|datapath| datapath.name == *name);
        let Some(datapath) = logical.datapaths.first() else {
            let message = format!(
                "{} has no logical switch or router `{name}`: use one of {}",
                file.display(),
                names.join(", ")
            );
            return Err(Failure::Input(anyhow!(message)));
        };
        let key = datapath.key;
        logical.flows.retain(|flow| flow.datapaths.contains(&key));
    }
    if !args.json {
        return stdio::print(&logical.to_string());
    }
    let datapaths: Vec<_> = logical
        .datapaths
        .iter()
        .map(|datapath| {
            let (key, name, line) = (datapath.key.0, &datapath.name, datapath.line.0);
            let kind = match datapath.kind {
                DatapathKind::Router => "router",
                _ => "switch",
            };
            json!({ "key": key, "name": name, "kind": kind, "line": line })
        })
        .collect();
    let object = json!({ "datapaths": datapaths, "flows": logical.flows });
    stdio::print_json(&object)
}
