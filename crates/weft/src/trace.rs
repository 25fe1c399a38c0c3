//! `weft trace`: what the program of a switch does with one packet, and why.

mod capture;
mod source;

use crate::{Failure, text};
use anyhow::{Context, anyhow};
use clap::ValueEnum;
use flow::PortNo;
use source::Source;
use std::path::PathBuf;
use std::str::FromStr;

/// Show what the switch does with a packet: each table, the flow that it hit, each change, and the megaflow.
///
/// SOURCE is a network file, a dump of OVN's southbound database as JSON (`ovsdb-client dump --format=json` or
/// `ovn-sbctl --format=json`), or a file of flows in the syntax of ovs-ofctl. PACKET describes a packet: as a match of a logical
/// flow, for the first two; as ovs-ofctl writes matches, for the third. What it does not mention is 0. Or the packet is a
/// frame of a capture.
#[derive(clap::Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "weft trace [OPTIONS] <SOURCE> <PACKET>\n       weft trace [OPTIONS] <SOURCE> --pcap <FILE> --inport <PORT>"
)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["packet", "pcap"]))]
pub struct Args {
    /// What SOURCE is, where its name and its beginning do not say
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Of a network file: as this host sees it, with the guests of others behind tunnels; without it, as if all guests were
    /// on one host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Of ovs-ofctl flows: the name of a port; ports without one are called by their numbers; may be repeated
    #[arg(long, value_name = "NUMBER=NAME")]
    port: Vec<PortName>,
    /// Of ovs-ofctl flows: a port that leads into tunnels, to every address that a flow sets `tun_dst` to; may be repeated
    #[arg(long, value_name = "NUMBER=NAME")]
    tunnel_port: Vec<PortName>,
    /// A file of captured frames, pcap or pcapng, instead of PACKET
    #[arg(long, value_name = "FILE", requires = "inport")]
    pcap: Option<PathBuf>,
    /// Which frame of the capture, from 1
    #[arg(long, value_name = "N", default_value_t = 1, requires = "pcap", value_parser = clap::value_parser!(u64).range(1..))]
    frame: u64,
    /// The port that the frame comes in by: its name, or its number in ovs-ofctl flows
    #[arg(long, value_name = "PORT", requires = "pcap")]
    inport: Option<String>,
    /// Which of the choices of a `select` (several next hops) is taken, from 0, instead of that of the packet's hash
    #[arg(long, value_name = "N")]
    select: Option<usize>,
    /// Only what becomes of the packet
    #[arg(long, visible_alias = "minimal", conflicts_with = "json")]
    summary: bool,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// A network file, a dump of a southbound database, or flows; - for standard input
    source: PathBuf,
    /// The packet
    packet: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  weft trace network.toml 'inport == \"vm1\" && eth.dst == 02:00:00:00:00:02 && ip4.dst == 10.0.0.2 && ip.ttl == 64'
  weft trace network.toml --host h1 --summary 'inport == \"vm1\" && eth.dst == ff:ff:ff:ff:ff:ff'
  ovsdb-client dump --format=json unix:ovnsb_db.sock OVN_Southbound |
    weft trace --format southbound - 'inport == \"lsp1\" && eth.type == 0x806 && arp.op == 1'
  weft trace flows.txt 'in_port=1,tcp,nw_src=10.0.0.1,tp_dst=80'
  weft trace --tunnel-port 10=vxlan flows.txt --pcap packets.pcap --frame 3 --inport 1

Exit codes: 0 traced, even to a drop; 2 bad input.";

/// What a source is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// network.toml
    Network,
    /// A dump of OVN's southbound database, as JSON
    Southbound,
    /// Flows in the syntax of ovs-ofctl
    Ofctl,
}

/// `NUMBER=NAME`
#[derive(Clone, Debug)]
pub struct PortName {
    pub number: PortNo,
    pub name: String,
}

impl FromStr for PortName {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, anyhow::Error> {
        let (number, name) = text.split_once('=').context("expected NUMBER=NAME")?;
        let number = number.parse().with_context(|| format!("`{number}` is not a port number"))?;
        Ok(Self { number: PortNo(number), name: name.to_owned() })
    }
}

pub fn trace(args: &Args) -> Result<(), Failure> {
    let text = text::read(&args.source)?;
    let source = Source::load(args, &text)?;
    for warning in &source.warnings {
        eprintln!("weft: warning: {warning}");
    }
    let key = match (&args.packet, &args.pcap, &args.inport) {
        (Some(packet), _, _) => source.packet(packet)?,
        (None, Some(file), Some(inport)) => {
            let in_port = source.in_port(inport)?;
            capture::key(file, args.frame, in_port).map_err(Failure::Input)?
        }
        _ => return Err(Failure::Input(anyhow!("expected a packet, or --pcap and --inport"))),
    };
    let (mut trace, _) = pipeline::trace(&source.program, &key, &source.learned, args.select);
    trace.name_endpoints(|endpoint| source.endpoints.get(&endpoint).cloned());
    if args.json {
        text::print(&format!("{}\n", serde_json::to_string_pretty(&trace)?))
    } else if args.summary {
        text::print(&trace.summary().to_string())
    } else {
        text::print(&trace.to_string())
    }
}
