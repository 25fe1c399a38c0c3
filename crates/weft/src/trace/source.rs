//! The program that a packet is traced through, of each kind of source.

use super::{Args, Format, PortName};
use crate::line_check::LineFault;
use crate::{Failure, text};
use anyhow::{Context, anyhow};
use flow::{EndpointId, FlowKey, PortNo};
use lflow::parse_packet;
use network::{FarEnd, LogicalSwitch, Network, Placement, Port, load_program, logical_flows};
use ofctl::{self, Bridge, Mentioned, Ports};
use pipeline::{BridgePort, BridgePortKind, InPortNames, LearnedTables, Program};
use southbound::Southbound;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;

/// A program, and what people know of it.
pub struct Source {
    pub program: Program,
    pub learned: LearnedTables,
    /// Where the end points are.
    pub endpoints: BTreeMap<EndpointId, String>,
    /// What was passed over.
    pub warnings: Vec<String>,
    /// The names of ports, where packets are described in the syntax of ovs-ofctl.
    ofctl_ports: Option<Ports>,
}

impl Source {
    pub fn load(args: &Args, text: &str) -> Result<Self, Failure> {
        let format = args.format.unwrap_or_else(|| guess(&args.source, text));
        if args.host.is_some() && format != Format::Network {
            return Err(Failure::Input(anyhow!("--host is for network files")));
        }
        if format != Format::Ofctl && !(args.port.is_empty() && args.tunnel_port.is_empty()) {
            return Err(Failure::Input(anyhow!(
                "--port and --tunnel-port are for ovs-ofctl flows"
            )));
        }
        match format {
            Format::Network => of_network(args, text),
            Format::Southbound => of_southbound(args, text),
            Format::Ofctl => of_flows(args, text),
        }
    }

    fn new(program: Program, learned: LearnedTables) -> Self {
        Self {
            program,
            learned,
            endpoints: BTreeMap::new(),
            warnings: Vec::new(),
            ofctl_ports: None,
        }
    }

    /// The key of a packet that is described in the language of the source.
    pub fn packet(&self, text: &str) -> Result<FlowKey, Failure> {
        let fault = match &self.ofctl_ports {
            None => match parse_packet(text, &self.program) {
                Ok(key) => return Ok(key),
                Err(error) => LineFault::new(text, error),
            },
            Some(ports) => match ofctl::parse_packet_flow(text, ports) {
                Ok(key) => return Ok(key),
                Err(problem) => {
                    LineFault { column: problem.column, width: 1, message: problem.message }
                }
            },
        };
        let excerpt = fault.excerpt(text).replace('\n', "\n    ");
        let LineFault { column, message, .. } = fault;
        Err(Failure::Input(anyhow!("packet, column {column}: {message}\n    {excerpt}")))
    }

    /// A port by its name, or of a bridge also by its number.
    pub fn in_port(&self, name: &str) -> Result<PortNo, Failure> {
        if self.ofctl_ports.is_some()
            && let Ok(number) = name.parse()
        {
            return Ok(PortNo(number));
        }
        InPortNames::of(&self.program).find(name).map_err(Failure::input)
    }
}

/// By the name, and else by what the text begins with.
fn guess(path: &Path, text: &str) -> Format {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => return Format::Network,
        Some("json") => return Format::Southbound,
        _ => {}
    }
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    match first {
        Some(line) if line.starts_with('{') => Format::Southbound,
        // A table, or a key of the top level: TOML has blanks around `=` or quotes behind it; flows have neither.
        Some(line) if line.starts_with('[') || line.contains(" = ") => Format::Network,
        _ => Format::Ofctl,
    }
}

/// An error a line, each with what it is about.
fn lines(what: &str, errors: impl IntoIterator<Item = impl Display>) -> Failure {
    let lines: Vec<_> = errors.into_iter().map(|error| format!("{what}: {error}")).collect();
    Failure::Input(anyhow!(lines.join("\n")))
}

fn of_network(args: &Args, text: &str) -> Result<Source, Failure> {
    let file = text::name(&args.source);
    let network = Network::parse(text, &file).map_err(Failure::input)?;
    let mut endpoints = BTreeMap::new();
    let placement = match &args.host {
        None => Placement::of_all(&network),
        Some(name) => {
            let host = network.host(name).ok_or_else(|| {
                let names: Vec<_> = network.hosts().iter().map(|host| host.name.as_str()).collect();
                Failure::Input(anyhow!("{file} has no host {name:?}; it has {}", names.join(", ")))
            })?;
            let mut numbers = BTreeMap::new();
            let mut ports = 0;
            let number = |_: &LogicalSwitch, _: &Port| {
                ports += 1;
                PortNo(ports)
            };
            Placement::of_host(&network, host.index, number, |tunnel, far| {
                let next = EndpointId(numbers.len() as u32 + 1);
                let number = *numbers.entry((tunnel, far)).or_insert(next);
                let (name, address) = match far {
                    FarEnd::Host(host) => {
                        let host = &network[host];
                        (host.name.as_str(), host.underlay(network.underlay_family()))
                    }
                    FarEnd::Group(group) => ("all", Some(group)),
                };
                let address = address.map_or(String::new(), |address| format!(", {address}"));
                endpoints.insert(number, format!("{name} ({}{address})", tunnel.name()));
                Some(number)
            })
        }
    };
    let loader = load_program(&logical_flows(&network), &placement, &file)?;
    Ok(Source { endpoints, ..Source::new(loader.program(), LearnedTables::default()) })
}

fn of_southbound(args: &Args, text: &str) -> Result<Source, Failure> {
    let file = text::name(&args.source);
    let database = Southbound::parse(text).with_context(|| file.clone()).map_err(Failure::Input)?;
    let network = database.network().map_err(|errors| lines(&file, errors))?;
    let warnings = network.warnings;
    Ok(Source { warnings, ..Source::new(network.loader.program(), network.learned) })
}

/// Every port that a flow mentions is there; those that have no name are called by their numbers.
fn of_flows(args: &Args, text: &str) -> Result<Source, Failure> {
    let named = |kind: BridgePortKind| {
        move |port: &PortName| {
            (port.number, BridgePort { name: port.name.clone(), kind: kind.clone() })
        }
    };
    let devices = args.port.iter().map(named(BridgePortKind::Device));
    let declared: BTreeSet<PortNo> =
        args.port.iter().chain(&args.tunnel_port).map(|port| port.number).collect();
    // End points are known when the flows are read, and flows are read when the names of ports are known.
    let with_ports = |endpoints: &BTreeMap<EndpointId, String>, mentioned: &Mentioned| {
        let endpoints = mentioned.remotes.iter().copied().zip(endpoints.keys().copied()).collect();
        let tunnels = args.tunnel_port.iter().map(named(BridgePortKind::Tunnel { endpoints }));
        let mut bridge = Bridge::new("flows", devices.clone().chain(tunnels))?;
        for &number in mentioned.ports.difference(&declared) {
            bridge.add_port(number, Bridge::device(&format!("port{number}")))?;
        }
        Ok::<_, ofctl::PortError>(bridge)
    };
    let file = text::name(&args.source);
    let mut bridge = with_ports(&BTreeMap::new(), &Mentioned::default()).map_err(Failure::input)?;
    bridge.apply(text, &file, 0).map_err(Failure::input)?;
    let mentioned = Mentioned::by(&bridge);
    let addresses = mentioned.remotes.iter().map(ToString::to_string);
    let endpoints = (1..).map(EndpointId).zip(addresses).collect();
    let mut bridge = with_ports(&endpoints, &mentioned).map_err(Failure::input)?;
    bridge.apply(text, &file, 0).map_err(Failure::input)?;
    let source = Source::new(bridge.program().clone(), LearnedTables::default());
    Ok(Source { endpoints, ofctl_ports: Some(bridge.ports().clone()), ..source })
}
