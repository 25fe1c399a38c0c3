//! `weft flows`: the flows of a network.

use crate::{Failure, text};
use anyhow::anyhow;
use network::{Network, logical_flows};
use pipeline::DatapathKind;
use serde_json::json;
use std::path::PathBuf;

/// Print the logical flows that a network file becomes.
///
/// They are in OVN's language and printed as `ovn-sbctl lflow-list` prints flows: each logical switch and router, ingress and
/// egress pipeline. `weft check --flows` reads them back.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  weft flows --logical network.toml\n  weft flows --logical network.toml --datapath web\n  weft flows --logical network.toml --json | jq '.flows[] | select(.stage == \"ls_in_acl\")'"
)]
pub struct Args {
    /// The network file
    #[arg(long, value_name = "FILE", required = true)]
    logical: PathBuf,
    /// Only this logical switch or router
    #[arg(long, value_name = "NAME")]
    datapath: Option<String>,
    /// One JSON object with the datapaths and the flows, each with the line of the file that it comes from
    #[arg(long)]
    json: bool,
}

pub fn flows(args: &Args) -> Result<(), Failure> {
    let network = Network::load(&args.logical).map_err(Failure::input)?;
    let mut logical = logical_flows(&network);
    if let Some(name) = &args.datapath {
        let names: Vec<_> = logical.datapaths.iter().map(|dp| format!("`{}`", dp.name)).collect();
        logical.datapaths.retain(|datapath| datapath.name == *name);
        let Some(datapath) = logical.datapaths.first() else {
            let message = format!(
                "{} has no logical switch or router `{name}`; it has {}",
                args.logical.display(),
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
