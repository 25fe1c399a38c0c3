//! Loads the pipeline that a packet is traced through.

use super::{Args, Format, PortName};
use crate::daemon::no_such_host;
use crate::line_check::LineFault;
use crate::{Failure, stdio};
use anyhow::{Context, anyhow};
use flow::{EndpointId, FlowKey, PortNo};
use lflow::parse_packet;
use network::{LogicalSwitch, Network, Placement, Port, RemoteEnd, load_program, logical_flows};
use ofctl::{self, Bridge, FlowReferences, Ports};
use pipeline::{BridgePort, BridgePortKind, InPortNames, LearnedTables, Program};
use southbound::Southbound;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;

/// A pipeline and the names that its packets and output use.
pub struct TraceSource {
    pub program: Program,
    pub learned: LearnedTables,
    /// Descriptions of the tunnel end points.
    pub endpoints: BTreeMap<EndpointId, String>,
    /// Warnings about parts of the source that were skipped.
    pub warnings: Vec<String>,
    /// The port names of an ovs-ofctl bridge; `None` for logical flows.
    ofctl_ports: Option<Ports>,
}

impl TraceSource {
    pub fn load(args: &Args, text: &str) -> Result<Self, Failure> {
        let format = args.format.unwrap_or_else(|| detect_format(&args.source, text));
        if args.host.is_some() && format != Format::Network {
            return Err(Failure::Input(anyhow!(
                "--host applies to network files only: remove it, or add --format network"
            )));
        }
        if format != Format::Ofctl && !(args.port.is_empty() && args.tunnel_port.is_empty()) {
            return Err(Failure::Input(anyhow!(
                "--port and --tunnel-port apply to ovs-ofctl flows only: remove them, or add \
                 --format ofctl"
            )));
        }
        match format {
            Format::Network => load_network(args, text),
            Format::Southbound => load_southbound(args, text),
            Format::Ofctl => load_flows(args, text),
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

    /// Parses the description of a packet in the language of the source.
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

    /// Finds a port by its name, or on a bridge also by its number.
    pub fn in_port(&self, name: &str) -> Result<PortNo, Failure> {
        if self.ofctl_ports.is_some()
            && let Ok(number) = name.parse()
        {
            return Ok(PortNo(number));
        }
        InPortNames::of(&self.program).find(name).map_err(Failure::input)
    }
}

/// Detects the format by the file name extension, otherwise by the first line.
fn detect_format(path: &Path, text: &str) -> Format {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => return Format::Network,
        Some("json") => return Format::Southbound,
        _ => {}
    }
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    match first {
        Some(line) if line.starts_with('{') => Format::Southbound,
        // A TOML table or key. Flows have no spaces around `=`.
        Some(line) if line.starts_with('[') || line.contains(" = ") => Format::Network,
        _ => Format::Ofctl,
    }
}

/// Joins errors, one per line, each after the name of the file.
fn join_errors(file: &str, errors: impl IntoIterator<Item = impl Display>) -> Failure {
    let lines: Vec<_> = errors.into_iter().map(|error| format!("{file}: {error}")).collect();
    Failure::Input(anyhow!(lines.join("\n")))
}

fn load_network(args: &Args, text: &str) -> Result<TraceSource, Failure> {
    let file = stdio::display_name(&args.source);
    let network = Network::parse(text, &file).map_err(Failure::input)?;
    let mut endpoints = BTreeMap::new();
    let placement = match &args.host {
        None => Placement::of_all(&network),
        Some(name) => {
            let host = network
                .host(name)
                .ok_or_else(|| Failure::Input(no_such_host(&network, name, &file)))?;
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
                    RemoteEnd::Host(host) => {
                        let host = &network[host];
                        (host.name.as_str(), host.underlay(network.underlay_family()))
                    }
                    RemoteEnd::Group(group) => ("all", Some(group)),
                };
                let address = address.map_or(String::new(), |address| format!(", {address}"));
                endpoints.insert(number, format!("{name} ({}{address})", tunnel.name()));
                Some(number)
            })
        }
    };
    let loader = load_program(&logical_flows(&network), &placement, &file)?;
    Ok(TraceSource { endpoints, ..TraceSource::new(loader.program(), LearnedTables::default()) })
}

fn load_southbound(args: &Args, text: &str) -> Result<TraceSource, Failure> {
    let file = stdio::display_name(&args.source);
    let database = Southbound::parse(text).with_context(|| file.clone()).map_err(Failure::Input)?;
    let network = database.network().map_err(|errors| join_errors(&file, errors))?;
    let warnings = network.warnings;
    Ok(TraceSource { warnings, ..TraceSource::new(network.loader.program(), network.learned) })
}

/// Builds a bridge that has every port that its flows mention. Ports without a name are called
/// `port` and their number.
fn load_flows(args: &Args, text: &str) -> Result<TraceSource, Failure> {
    let named = |kind: BridgePortKind| {
        move |port: &PortName| {
            let PortName { number, name } = port.clone();
            (number, BridgePort { name, number, kind: kind.clone() })
        }
    };
    let devices = args.port.iter().map(named(BridgePortKind::Device));
    let declared: BTreeSet<PortNo> =
        args.port.iter().chain(&args.tunnel_port).map(|port| port.number).collect();
    // The flows are parsed twice: their tunnel addresses become end points of the tunnel ports, but
    // parsing needs the names of all ports.
    let with_ports = |endpoints: &BTreeMap<EndpointId, String>, references: &FlowReferences| {
        let endpoints = references.remotes.iter().copied().zip(endpoints.keys().copied()).collect();
        let tunnels = args.tunnel_port.iter().map(named(BridgePortKind::Tunnel { endpoints }));
        let mut bridge = Bridge::new("flows", devices.clone().chain(tunnels))?;
        for &number in references.ports.difference(&declared) {
            let (number, port) = Bridge::device(number, &format!("port{number}"));
            bridge.add_port(number, port)?;
        }
        Ok::<_, ofctl::PortError>(bridge)
    };
    let file = stdio::display_name(&args.source);
    let mut bridge =
        with_ports(&BTreeMap::new(), &FlowReferences::default()).map_err(Failure::input)?;
    bridge.apply(text, &file, 0).map_err(Failure::input)?;
    let references = FlowReferences::of(&bridge);
    let addresses = references.remotes.iter().map(ToString::to_string);
    let endpoints = (1..).map(EndpointId).zip(addresses).collect();
    let mut bridge = with_ports(&endpoints, &references).map_err(Failure::input)?;
    bridge.apply(text, &file, 0).map_err(Failure::input)?;
    let source = TraceSource::new(bridge.program().clone(), LearnedTables::default());
    Ok(TraceSource { endpoints, ofctl_ports: Some(bridge.ports().clone()), ..source })
}
