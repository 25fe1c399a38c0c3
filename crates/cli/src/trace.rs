//! `weft trace`: traces one packet through a pipeline.

mod capture_file;
mod source;

use crate::{Failure, stdio};
use anyhow::{Context, anyhow};
use clap::ValueEnum;
use flow::{PortNo, ct_state};
use pipeline::Assumptions;
use source::TraceSource;
use std::path::PathBuf;
use std::str::FromStr;

/// Trace a packet through the pipeline: each table, the flow it matches, each change, the megaflow.
///
/// SOURCE is a network file, a dump of OVN's southbound database as JSON (`ovsdb-client dump
/// --format=json` or `ovn-sbctl --format=json`), or a file of flows in the syntax of ovs-ofctl.
/// PACKET describes a packet: as a match expression of a logical flow for the first two, as a match
/// of ovs-ofctl for the third. Fields that it does not mention are 0. --pcap reads the packet from
/// a capture file instead.
#[derive(clap::Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "weft trace [OPTIONS] <SOURCE> <PACKET>\n       \
                      weft trace [OPTIONS] <SOURCE> --pcap <FILE> --inport <PORT>"
)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["packet", "pcap"]))]
pub struct Args {
    /// The format of SOURCE [default: from its name, else from its first line]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// With a network file: trace on this host, with the guests of other hosts behind tunnels;
    /// without it all guests are on one host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// With ovs-ofctl flows: the name of a port; may be repeated
    #[arg(long, value_name = "NUMBER=NAME")]
    port: Vec<PortName>,
    /// With ovs-ofctl flows: a flow-based tunnel port, whose end points are all addresses that
    /// flows set `tun_dst` to; may be repeated
    #[arg(long, value_name = "NUMBER=NAME")]
    tunnel_port: Vec<PortName>,
    /// Read the packet from this capture file (pcap or pcapng)
    #[arg(long, value_name = "FILE", requires = "inport")]
    pcap: Option<PathBuf>,
    /// The number of the frame in the capture file, from 1
    #[arg(long, value_name = "N", default_value_t = 1, requires = "pcap",
          value_parser = clap::value_parser!(u64).range(1..))]
    frame: u64,
    /// The port that receives the frame: its name, or with ovs-ofctl flows its number
    #[arg(long, value_name = "PORT", requires = "pcap")]
    inport: Option<String>,
    /// The connection state after a pass through the connection tracker: `new`, `est`, `rel`,
    /// `rpl`, `inv`, `snat`, `dnat`, joined by commas; may be repeated, once for each pass
    /// [default: est]
    #[arg(long, value_name = "STATE")]
    ct: Vec<CtState>,
    /// The member that a `select` action (several next hops) or a load balancer takes, from 0,
    /// instead of the one that the hash of the packet selects
    #[arg(long, value_name = "N")]
    select: Option<usize>,
    /// Print only the result
    #[arg(long, visible_alias = "minimal", conflicts_with = "json")]
    summary: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The network file, southbound database dump or flow file; - for standard input
    source: PathBuf,
    /// The description of the packet
    packet: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  weft trace network.toml 'inport == \"vm1\" && eth.dst == 02:00:00:00:00:02 && ip4 && ip.ttl == 64'
  weft trace network.toml --host h1 --summary 'inport == \"vm1\" && eth.dst == ff:ff:ff:ff:ff:ff'
  ovsdb-client dump --format=json unix:ovnsb_db.sock OVN_Southbound |
    weft trace --format southbound - 'inport == \"lsp1\" && eth.type == 0x806 && arp.op == 1'
  weft trace flows.txt 'in_port=1,tcp,nw_src=10.0.0.1,tp_dst=80'
  weft trace --tunnel-port 10=vxlan flows.txt --pcap packets.pcap --frame 3 --inport 1

Exit codes: 0 traced (also when the packet is dropped), 2 bad usage or invalid input.";

/// The format of SOURCE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// A network file (TOML)
    Network,
    /// A dump of OVN's southbound database (JSON)
    Southbound,
    /// Flows in the syntax of ovs-ofctl
    Ofctl,
}

/// A port of an ovs-ofctl bridge, written `NUMBER=NAME`.
#[derive(Clone, Debug)]
pub struct PortName {
    pub number: PortNo,
    pub name: String,
}

impl FromStr for PortName {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, anyhow::Error> {
        let (number, name) = text.split_once('=').context("expected NUMBER=NAME")?;
        let number = number.parse().with_context(|| format!("invalid port number `{number}`"))?;
        Ok(Self { number: PortNo(number), name: name.to_owned() })
    }
}

/// A connection state: names of bits, joined by `,` or `|`.
#[derive(Clone, Copy, Debug)]
pub struct CtState(u8);

impl FromStr for CtState {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, anyhow::Error> {
        let bit = |name: &str| {
            let known = || format!("`{name}` is no connection state: use new, est, rel, rpl, inv");
            ct_state::from_name(name.trim()).with_context(known)
        };
        let state = text.split([',', '|']).try_fold(0, |state, name| bit(name).map(|b| state | b));
        let state = state? | ct_state::TRACKED;
        if state & ct_state::NEW != 0 && state & ct_state::ESTABLISHED != 0 {
            return Err(anyhow!("a connection is either `new` or `est`"));
        }
        Ok(Self(state))
    }
}

pub fn trace(args: &Args) -> Result<(), Failure> {
    let input = stdio::read_input(&args.source)?;
    let source = TraceSource::load(args, &input)?;
    for warning in &source.warnings {
        eprintln!("weft: warning: {warning}");
    }
    let key = match (&args.packet, &args.pcap, &args.inport) {
        (Some(packet), _, _) => source.packet(packet)?,
        (None, Some(file), Some(inport)) => {
            let in_port = source.in_port(inport)?;
            capture_file::key(file, args.frame, in_port).map_err(Failure::Input)?
        }
        _ => {
            return Err(Failure::Input(anyhow!(
                "cannot trace without a packet: add PACKET, or --pcap and --inport"
            )));
        }
    };
    let ct_states = args.ct.iter().map(|state| state.0).collect();
    let assumed = Assumptions { choice: args.select, ct_states };
    let (mut trace, _) = pipeline::trace(&source.program, &key, &source.learned, &assumed);
    trace.name_endpoints(|endpoint| source.endpoints.get(&endpoint).cloned());
    if args.json {
        stdio::print_json(&trace)
    } else if args.summary {
        stdio::print(&trace.summary().to_string())
    } else {
        stdio::print(&trace.to_string())
    }
}
