//! `weft flows`: what a running switch has cached, and the flows of a program or of a network file.

mod cached;

use crate::control::answers::ProgramRow;
use crate::control::{Request, Stream, Target};
use crate::text::Output;
use crate::{Failure, text};
use anyhow::anyhow;
use cached::Sort;
use network::{Network, logical_flows};
use pipeline::DatapathKind;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Show the megaflows of a running switch, or the logical flows of its program or of a network file.
///
/// A megaflow is a cached decision: which packets (with masks), what is done with them, how many there were, and the logical flows that
/// decided, each with its stage, priority and line of the network file. They are listed as they are found, some twice when
/// they change meanwhile; --sort collects them first.
///
/// --logical FILE prints what a network file becomes, in OVN's language and as `ovn-sbctl lflow-list` prints flows, which
/// `weft check --flows` reads back; --logical without a file the program of a running switch, with counters.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Logical flows: of this network file, or of a running switch
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    logical: Option<Option<PathBuf>>,
    /// With --logical: only this logical switch or router
    #[arg(long, value_name = "NAME", requires = "logical")]
    datapath: Option<String>,
    /// Only megaflows of packets that come in by this port
    #[arg(long, value_name = "NAME", conflicts_with = "logical")]
    port: Option<String>,
    /// Only megaflows with so many packets
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "logical")]
    min_packets: u64,
    /// Those with most packets, most bytes, or the oldest first
    #[arg(long, value_name = "BY", conflicts_with = "logical")]
    sort: Option<Sort>,
    /// Without the logical flows that decided
    #[arg(long, conflicts_with = "logical")]
    brief: bool,
    /// JSON: of a file one object; of a running switch an object a line (for megaflows the last one is {"totals": ...})
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft flows --host h1
  weft flows --host h1 --port vm1 --sort packets --brief | head
  weft flows --host h1 --json | jq 'select(.actions | startswith(\"drop\")) | {port, match, flow: .flows[-1].source}'
  weft flows --host h1 --logical --datapath web
  weft flows --logical network.toml
  weft flows --logical network.toml --json | jq '.flows[] | select(.stage == \"ls_in_acl\")'

Exit codes: 0 shown, 1 no daemon answers, 2 bad usage, a file that is wrong, no such port or datapath.";

pub fn flows(args: &Args) -> Result<(), Failure> {
    match &args.logical {
        None => cached::show(args),
        Some(None) => of_program(args),
        Some(Some(file)) if args.target.is_named() => Err(Failure::Input(anyhow!(
            "expected either a network file ({}) or a running switch, not both",
            file.display()
        ))),
        Some(Some(file)) => of_file(args, file),
    }
}

/// The flows of a running switch's program, with what they have counted.
fn of_program(args: &Args) -> Result<(), Failure> {
    let request = Request::Program { datapath: args.datapath.clone() };
    let (_, stream): (Value, _) = Stream::open(&args.target.path()?, &request)?;
    let mut out = Output::new();
    let mut last = (Vec::new(), String::new());
    let _: Value = stream.all(|row: ProgramRow| {
        if args.json {
            return out.json(&row);
        }
        let place = (row.datapaths.clone(), row.pipeline.clone());
        if place != last {
            let names = row.datapaths.join(", ");
            out.write(&format!("Datapaths: {names}  Pipeline: {}\n", row.pipeline))?;
            last = place;
        }
        out.write(&program_line(&row))
    })?;
    out.flush()
}

fn program_line(row: &ProgramRow) -> String {
    let ProgramRow { table, packets, bytes, flow, .. } = row;
    let (stage, priority, source) = (&flow.stage, flow.priority, text::file_name(&flow.source));
    format!(
        "  packets={packets:<8} bytes={bytes:<10} table={table:<2}({stage:<20}), priority={priority:<5}, {source}, \
         match=({}), action=({})\n",
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
                "{} has no logical switch or router `{name}`; it has {}",
                file.display(),
                names.join(", ")
            );
            return Err(Failure::Input(anyhow!(message)));
        };
        let key = datapath.key;
        logical.flows.retain(|flow| flow.datapaths.contains(&key));
    }
    if !args.json {
        return text::print(&logical.to_string());
    }
    let datapaths: Vec<_> = logical
        .datapaths
        .iter()
        .map(|datapath| {
            let (key, name, line) = (datapath.key.0, &datapath.name, datapath.line.0);
            let kind = match datapath.kind {
                DatapathKind::Router => "router",
                DatapathKind::Switch | DatapathKind::Bridge => "switch",
            };
            json!({ "key": key, "name": name, "kind": kind, "line": line })
        })
        .collect();
    let object = json!({ "datapaths": datapaths, "flows": logical.flows });
    text::print(&format!("{}\n", serde_json::to_string_pretty(&object)?))
}
