//! `weft diff`: what a reload from one network file to another would change.

use crate::bridges::FlowFiles;
use crate::control::replies::ReloadChanges;
use crate::daemon::FileReads;
use crate::daemon::preview::{HostPreview, NamedNetwork, Step};
use crate::{Failure, stdio};
use network::logical::LogicalDatapath;
use network::{DatapathKey, LogicalNetwork, Network, PortKey, logical_flows};
use pipeline::DatapathKind;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Show what a reload from one network file to another would change, and which traffic it would
/// interrupt.
///
/// Both files are checked first. For each host: whether `weft reload` applies the new file or
/// `weft run` must be restarted, and which ports, tunnels, end points and bridges differ. For the
/// whole network: which ports move, and how many logical flows of which switch or router differ.
///
/// A reload stops traffic at changed ports, tunnels and end points for the moment in which their
/// device or socket is opened again, and at removed ones for good. A restart is described in
/// docs/operating.md.
///
/// No switch has to run, and nothing is changed. Devices that `weft port add` has attached to
/// pools are not considered.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only this host; may be repeated. Default: all hosts of both files
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// List each logical flow that is new (+) or gone (-)
    #[arg(long)]
    flows: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The current network file
    old: PathBuf,
    /// The network file that a reload would apply
    new: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  weft diff /etc/weft/network.toml network.toml
  weft diff --host h1 --flows old.toml new.toml
  weft diff --json old.toml new.toml | jq '.hosts[] | select(.step == \"restart\") | .host'

Exit codes: 0 no host that is shown must be restarted, 1 some host must, 2 bad usage or an invalid
file. Hosts that only one file has must be started or stopped; that does not count.";

/// All differences.
#[derive(Serialize)]
struct Difference {
    hosts: Vec<HostPreview>,
    /// Ports that both files have, with another host, switch or key.
    moved_ports: Vec<String>,
    /// Switches and routers that both files have, with another key in tunnels.
    renumbered: Vec<String>,
    /// Switches and routers whose logical flows differ.
    datapaths: Vec<DatapathDifference>,
    address_sets: ReloadChanges,
    port_groups: ReloadChanges,
    load_balancers: ReloadChanges,
}

/// How the logical flows of a switch or router differ.
#[derive(Serialize)]
struct DatapathDifference {
    name: String,
    /// `switch` or `router`.
    kind: &'static str,
    added: Vec<String>,
    removed: Vec<String>,
}

pub fn diff(args: &Args) -> Result<(), Failure> {
    let reads = FileReads::new();
    let ((old, was), (new, now)) = (read(&reads, &args.old)?, read(&reads, &args.new)?);
    let is_same = network::has_same_content(&was, &now);
    let names: BTreeSet<_> = if args.host.is_empty() {
        let hosts = [&old, &new].into_iter().flat_map(|read| read.network.hosts());
        hosts.map(|host| host.name.clone()).collect()
    } else {
        args.host.iter().cloned().collect()
    };
    let mut hosts = Vec::new();
    for name in names {
        let flow_files = |read: &NamedNetwork, path: &Path| -> Result<FlowFiles, Failure> {
            reads.load_flows(&read.network, path, &name)
        };
        let flows = (flow_files(&old, &args.old)?, flow_files(&new, &args.new)?);
        hosts.push(HostPreview::new((&old, &new), (&flows.0, &flows.1), &name, is_same)?);
    }
    let difference = Difference::new(hosts, &old.network, &new.network);
    if args.json {
        stdio::print_json(&difference)?;
    } else {
        stdio::print(&difference.describe(args.flows))?;
    }
    match difference.hosts.iter().any(|host| host.step == Step::Restart) {
        true => Err(Failure::Findings(1)),
        false => Ok(()),
    }
}

/// A network file, checked, and its content.
fn read(reads: &FileReads, path: &Path) -> Result<(NamedNetwork, Vec<u8>), Failure> {
    let file = path.display().to_string();
    let bytes = reads.read(path)?;
    let network = Network::parse_bytes(&bytes, &file).map_err(Failure::input)?;
    Ok((NamedNetwork { file, network }, bytes))
}

impl Difference {
    fn new(hosts: Vec<HostPreview>, old: &Network, new: &Network) -> Self {
        let (before, after) = (logical_flows(old), logical_flows(new));
        let (old_balancers, new_balancers) = (load_balancers(&before), load_balancers(&after));
        Self {
            hosts,
            moved_ports: ReloadChanges::between(&places(old), &places(new)).changed,
            renumbered: ReloadChanges::between(&keys(&before), &keys(&after)).changed,
            datapaths: DatapathDifference::between(&before, &after),
            address_sets: ReloadChanges::between(&before.address_sets, &after.address_sets),
            port_groups: ReloadChanges::between(&before.port_groups, &after.port_groups),
            load_balancers: ReloadChanges::between(&old_balancers, &new_balancers),
        }
    }

    /// The text for a terminal. `with_flows`: with each logical flow that differs.
    fn describe(&self, with_flows: bool) -> String {
        let mut text: String = self.hosts.iter().map(describe_host).collect();
        let mut shared = String::new();
        for (what, names) in
            [("moved ports", &self.moved_ports), ("other tunnel keys", &self.renumbered)]
        {
            if !names.is_empty() {
                let _ = writeln!(shared, "  {what:<22}{}", names.join(", "));
            }
        }
        for DatapathDifference { name, kind, added, removed } in &self.datapaths {
            let (new, gone) = (added.len(), removed.len());
            let _ = writeln!(shared, "  {kind} {name}: {new} logical flows added, {gone} removed");
            if with_flows {
                let lines = |sign: char, flows: &[String]| -> String {
                    flows.iter().map(|flow| format!("    {sign}{flow}\n")).collect()
                };
                shared += &(lines('-', removed) + &lines('+', added));
            }
        }
        for (what, changes) in [
            ("address sets", &self.address_sets),
            ("port groups", &self.port_groups),
            ("load balancers", &self.load_balancers),
        ] {
            shared += &line(what, changes);
        }
        if !shared.is_empty() {
            text += &format!("all hosts\n{shared}");
        }
        text
    }
}

fn describe_host(preview: &HostPreview) -> String {
    let HostPreview { host, reason, ports, tunnels, endpoints, bridges, .. } = preview;
    let step = match preview.step {
        Step::None => "nothing differs".to_owned(),
        Step::Reload => "weft reload applies the new file".to_owned(),
        Step::Restart => {
            format!("weft run must be restarted: {}", reason.as_deref().unwrap_or_default())
        }
        Step::Start => "only the new file has this host: start weft run there".to_owned(),
        Step::Stop => "only the old file has this host: stop weft run there".to_owned(),
    };
    let mut text = format!("host {host}: {step}\n");
    for (what, changes) in
        [("ports", ports), ("tunnels", tunnels), ("end points", endpoints), ("bridges", bridges)]
    {
        text += &line(what, changes);
    }
    let interrupted = preview.interrupted();
    if !interrupted.is_empty() {
        let _ = writeln!(text, "  traffic stops at      {}", interrupted.join(", "));
    }
    text
}

/// A line about the changes of one type of item; empty without a change.
fn line(what: &str, changes: &ReloadChanges) -> String {
    if changes.any() { format!("  {what:<22}{}\n", changes.summary()) } else { String::new() }
}

/// The host, switch and key of each port.
fn places(network: &Network) -> BTreeMap<String, (String, String, PortKey)> {
    let mut places = BTreeMap::new();
    for host in network.hosts() {
        for (switch, port) in network.ports_on(host.index) {
            let place = (host.name.clone(), switch.name.clone(), port.key);
            places.insert(port.name.clone(), place);
        }
    }
    places
}

/// The keys of switches and routers: in the pipeline, and in tunnels if different.
fn keys(logical: &LogicalNetwork) -> BTreeMap<String, (DatapathKey, Option<DatapathKey>)> {
    let key = |datapath: &LogicalDatapath| {
        let keys = (datapath.key, datapath.tunnel_key);
        (format!("{} {}", kind_of(datapath), datapath.name), keys)
    };
    logical.datapaths.iter().map(key).collect()
}

fn kind_of(datapath: &LogicalDatapath) -> &'static str {
    match datapath.kind {
        DatapathKind::Router => "router",
        _ => "switch",
    }
}

/// A text for each load balancer with everything that affects its decisions, by name.
fn load_balancers(logical: &LogicalNetwork) -> BTreeMap<String, String> {
    let with_key = |key| logical.datapaths.iter().find(|datapath| datapath.key == key);
    let mut described = BTreeMap::new();
    for (balancer, keys) in &logical.load_balancers {
        let switches: BTreeSet<_> =
            keys.iter().filter_map(|&key| Some(&with_key(key)?.name)).collect();
        let lflow::LoadBalancer { protocol, vips, hairpin_sources, .. } = balancer;
        let text = format!("{switches:?} {protocol:?} {vips:?} {hairpin_sources:?}");
        described.insert(balancer.name.clone(), text);
    }
    described
}

impl DatapathDifference {
    fn between(old: &LogicalNetwork, new: &LogicalNetwork) -> Vec<Self> {
        let (mut before, after) = (flows_by_datapath(old), flows_by_datapath(new));
        let mut differences = Vec::new();
        for (datapath, flows) in after {
            let was = before.remove(&datapath).unwrap_or_default();
            differences.extend(Self::of(datapath, &was, &flows));
        }
        for (datapath, flows) in before {
            differences.extend(Self::of(datapath, &flows, &BTreeMap::new()));
        }
        differences.sort_by(|one, other| (one.kind, &one.name).cmp(&(other.kind, &other.name)));
        differences
    }

    fn of((kind, name): (&'static str, String), old: &Flows, new: &Flows) -> Option<Self> {
        let only = |here: &Flows, there: &Flows| -> Vec<String> {
            let further = |(flow, &count): (&String, &usize)| {
                let more = count.saturating_sub(there.get(flow).copied().unwrap_or(0));
                std::iter::repeat_n(flow.clone(), more)
            };
            here.iter().flat_map(further).collect()
        };
        let (added, removed) = (only(new, old), only(old, new));
        let differs = !added.is_empty() || !removed.is_empty();
        differs.then_some(Self { name, kind, added, removed })
    }
}

/// Logical flows as text, each with how often it occurs.
type Flows = BTreeMap<String, usize>;

/// The logical flows by kind and name of their switch or router. Line numbers are left out, so that
/// moved lines do not count as changes.
fn flows_by_datapath(logical: &LogicalNetwork) -> BTreeMap<(&'static str, String), Flows> {
    let names: BTreeMap<_, _> = logical
        .datapaths
        .iter()
        .map(|datapath| (datapath.key, (kind_of(datapath), datapath.name.clone())))
        .collect();
    let mut all: BTreeMap<_, Flows> =
        names.values().map(|name| (name.clone(), Flows::new())).collect();
    for flow in &logical.flows {
        let text = flow.to_string().trim_start().to_owned();
        for key in flow.datapaths.iter() {
            let flows = names.get(key).and_then(|name| all.get_mut(name));
            if let Some(flows) = flows {
                *flows.entry(text.clone()).or_default() += 1;
            }
        }
    }
    all
}
