//! Compiles a network file, which is the same on every host, into the configuration of one host.

use crate::bridges::{self, HostBridges};
use crate::host_numbers::{EndpointName, HostNumbers, PortName};
use anyhow::{Context, Result, bail};
use datapath::config::{
    Config, DeviceConfig, EndpointConfig, GuestConfig, LinkConfig, MAX_PORT, PUNT_LIMIT,
    PortConfig, PortPeer, TunnelConfig, UPCALL_CPU_PERCENT, Underlay, Workers,
};
use datapath::number_pool::NumberPool;
use datapath::solicit::SolicitLimits;
use datapath::upcall::UpcallLimits;
use flow::{EndpointId, PortNo, TagLink, Ttl, TunnelSpec, TunnelType};
use network::{
    Bridge, BridgePort, Device, Host, HostIndex, IpNet, LogicalSwitch, Network, Placement, Port,
    RemoteEnd, load_program, logical_flows,
};
use pipeline::Program;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;
use wire::MacAddr;

/// Default number of outer source ports per tunnel address; each one is a socket.
pub const ENTROPY_PORTS: u16 = 64;
/// The first outer source port: the start of the dynamic range (RFC 6335).
const ENTROPY_BASE: u16 = 49_152;
/// Default maximum number of megaflows.
pub const MEGAFLOWS: usize = 200_000;

/// The configuration of one host.
#[derive(Debug)]
pub struct HostConfig {
    /// Ports, tunnels and end points.
    pub config: Config,
    /// The pipeline.
    pub program: Program,
    /// The bridges, without flows. They are not yet in the program.
    pub bridges: HostBridges,
}

/// Compiles the configuration of `host`. `file_name` appears in the sources of logical flows.
/// `checksum` is the default for outer checksums of UDP tunnels, used if the file does not set
/// them. Ports and end points that have a number in `numbers` keep it; new ones are added.
/// `attached` returns the interface that is attached to a port of a pool.
///
/// # Errors
/// The host has too many ports, or a host lacks an underlay address.
pub fn build(
    network: &Network,
    host: &Host,
    file_name: &str,
    checksum: bool,
    numbers: &mut HostNumbers,
    attached: impl Fn(&str) -> Option<String>,
) -> Result<HostConfig> {
    let now = Instant::now();
    let mut builder = UnderlayBuilder {
        network,
        host,
        checksum,
        underlay: Underlay::default(),
        known: HashMap::new(),
        numbers: &mut numbers.endpoints,
        now,
        error: None,
    };
    let mut ports: Vec<PortConfig> = Vec::new();
    let number = |switch: &LogicalSwitch, port: &Port| {
        let later = || attached(&port.name).map(|name| Device::Interface { name });
        let device = port.device.clone().or_else(later)?;
        let name = (switch.name.clone(), port.name.clone());
        let number = PortNo(numbers.ports.number(name, now));
        ports.push(port_config(number, switch, port, &device));
        Some(number)
    };
    let end_point = |tunnel, far| builder.end_point(tunnel, far);
    let placement = Placement::of_host(network, host.index, number, end_point);
    builder.join_groups();
    let bridges = add_bridges(network, host, (&mut numbers.ports, now), &mut ports)?;
    if let Some(error) = builder.error {
        return Err(error);
    }
    if ports.iter().any(|port| port.port > MAX_PORT) {
        bail!(
            "host {} has too many ports: a switch numbers at most {MAX_PORT}; move some to \
             another host",
            host.name
        );
    }
    let program = load_program(&logical_flows(network), &placement, file_name)
        .context("weft generated an invalid logical flow: please report this as a bug")?
        .program();
    let mut underlay = builder.underlay;
    numbers.release_unused(now);
    let link = |&link: &TagLink| LinkConfig { port: Placement::tunnel_port(link.tunnel()), link };
    underlay.links = placement.links.iter().map(link).collect();
    underlay.least_path_mtu_bytes = network.least_path_mtu();
    underlay.checks_reverse_path = network.checks_reverse_path();
    underlay.tagged_mtu_bytes = placement.tagged_mtu_bytes(network);
    let uplink = host.uplink.clone();
    let punt_limit = network.punt_limit().unwrap_or(PUNT_LIMIT);
    let upcall_cpu_percent = network.upcall_cpu_percent().unwrap_or(UPCALL_CPU_PERCENT);
    let conntrack = limiting_guests(network.connections().clone());
    let config = Config {
        uplink,
        underlay,
        ports,
        punt_limit,
        upcall_cpu_percent,
        conntrack,
        ..without_network(&host.name)
    };
    Ok(HostConfig { config, program, bridges })
}

/// The bridges of a host, without flows. Adds their ports to `ports`.
fn add_bridges(
    network: &Network,
    host: &Host,
    (numbers, now): (&mut NumberPool<PortName>, Instant),
    ports: &mut Vec<PortConfig>,
) -> Result<HostBridges> {
    let mut bridges = HostBridges::new();
    for (key, bridge) in network.bridges_on(host.index) {
        let added = bridges::without_flows(key, bridge, |port| {
            let name = (bridge.name.clone(), port.name.clone());
            let number = PortNo(numbers.number(name, now));
            ports.push(bridge_port_config(number, bridge, port));
            number
        })
        .with_context(|| format!("bridge {}", bridge.name))?;
        bridges.insert(bridge.name.clone(), added);
    }
    Ok(bridges)
}

/// The configuration of a host without uplink, ports and tunnels.
pub fn without_network(host: &str) -> Config {
    Config {
        host: host.to_owned(),
        uplink: String::new(),
        uplink_port: Placement::UPLINK,
        underlay: Underlay::default(),
        ports: Vec::new(),
        entropy_base: ENTROPY_BASE,
        entropy_ports: ENTROPY_PORTS,
        workers: Workers::default(),
        megaflows: MEGAFLOWS,
        upcalls: UpcallLimits::default(),
        punt_limit: PUNT_LIMIT,
        upcall_cpu_percent: UPCALL_CPU_PERCENT,
        solicit: SolicitLimits::default(),
        conntrack: limiting_guests(network::default_connections()),
    }
}

/// The options of connection tracking, with the limit per port restricted to guests' ports.
fn limiting_guests(mut connections: conntrack::Config) -> conntrack::Config {
    connections.limits.limited_ports = (PortNo(1), MAX_PORT);
    connections
}

/// The configuration of a port of a logical switch.
pub fn port_config(
    number: PortNo,
    switch: &LogicalSwitch,
    port: &Port,
    device: &Device,
) -> PortConfig {
    PortConfig {
        port: number,
        name: port.name.clone(),
        logical_switch: switch.name.clone(),
        device: device_config(device, switch.mtu, (Some(port.mac), &port.addresses)),
        peer: PortPeer::Guest,
    }
}

fn bridge_port_config(number: PortNo, bridge: &Bridge, port: &BridgePort) -> PortConfig {
    PortConfig {
        port: number,
        name: port.name.clone(),
        logical_switch: bridge.name.clone(),
        device: device_config(&port.device, bridge.mtu, (port.mac, &port.addresses)),
        peer: match &port.device {
            Device::Interface { .. } => PortPeer::ByDevice,
            Device::Tap { .. } | Device::Vm { .. } => PortPeer::Guest,
        },
    }
}

fn device_config(
    device: &Device,
    mtu: u16,
    (mac, addresses): (Option<MacAddr>, &[IpNet]),
) -> DeviceConfig {
    match device {
        Device::Tap { name, netns } => DeviceConfig::Tap {
            name: name.clone(),
            mtu,
            guest: netns.as_ref().zip(mac).map(|(netns, mac)| GuestConfig {
                netns: netns.clone(),
                mac,
                addresses: addresses.to_vec(),
            }),
        },
        Device::Vm { name, queues } => {
            DeviceConfig::Vm { name: name.clone(), mtu, multi_queue: *queues > 1 }
        }
        Device::Interface { name } => {
            DeviceConfig::Interface { name: name.clone(), mtu: Some(mtu) }
        }
    }
}

/// Collects the tunnels and end points that the switches of a host need.
struct UnderlayBuilder<'a> {
    network: &'a Network,
    host: &'a Host,
    /// Whether UDP tunnels send outer checksums if the file does not set it.
    checksum: bool,
    underlay: Underlay,
    /// The end points so far, by tunnel type and remote side.
    known: HashMap<(TunnelType, RemoteEnd), EndpointId>,
    numbers: &'a mut NumberPool<EndpointName>,
    now: Instant,
    /// The first error. It is kept here, because the callback that finds it cannot return an error.
    error: Option<anyhow::Error>,
}

impl UnderlayBuilder<'_> {
    fn end_point(&mut self, tunnel: TunnelType, far: RemoteEnd) -> Option<EndpointId> {
        if let Some(&number) = self.known.get(&(tunnel, far)) {
            return Some(number);
        }
        let spec = self.tunnel_spec(tunnel)?;
        let added = match far {
            RemoteEnd::Host(other) => self.add_host(&spec, other),
            RemoteEnd::Group(group) => self.add_end_point(&self.group_spec(spec), group),
        };
        match added {
            Ok(number) => {
                self.known.insert((tunnel, far), number);
                Some(number)
            }
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    /// Adds the end point of another host and the tunnel that leads to it.
    fn add_host(&mut self, spec: &TunnelSpec, other: HostIndex) -> Result<EndpointId> {
        let remote = self.address_of(&self.network[other])?;
        let id = self.add_end_point(spec, remote)?;
        let least = self.network.least_path_mtu_between(self.host.index, other);
        if least != self.network.least_path_mtu() {
            self.underlay.least_path_mtus.insert(remote, least);
        }
        self.add_tunnel(spec, None)?;
        Ok(id)
    }

    /// Joins the multicast groups of the switches that have ports on this host and on others.
    fn join_groups(&mut self) {
        let network = self.network;
        for (switch, _) in network.ports_on(self.host.index) {
            let Some(group) = switch.group else { continue };
            if !self.known.contains_key(&(switch.tunnel, RemoteEnd::Group(group))) {
                continue;
            }
            let Some(spec) = self.tunnel_spec(switch.tunnel) else { continue };
            if let Err(error) = self.add_tunnel(&self.group_spec(spec), Some(group)) {
                self.error.get_or_insert(error);
            }
        }
    }

    fn add_end_point(&mut self, spec: &TunnelSpec, remote: IpAddr) -> Result<EndpointId> {
        let local = self.address_of(self.host)?;
        let id = EndpointId(self.numbers.number((*spec, local, remote), self.now));
        self.underlay.endpoints.push(EndpointConfig { id, spec: *spec, local, remote });
        Ok(id)
    }

    /// Adds a tunnel socket for the address of this host, or for a multicast group.
    fn add_tunnel(&mut self, spec: &TunnelSpec, group: Option<IpAddr>) -> Result<()> {
        let (port, local) = (Placement::tunnel_port(spec.tunnel), self.address_of(self.host)?);
        let tunnel = TunnelConfig { port, spec: *spec, local, group };
        if !self.underlay.tunnels.contains(&tunnel) {
            self.underlay.tunnels.push(tunnel);
        }
        Ok(())
    }

    /// The specification for a multicast group. It has the TTL of the option `group_ttl`.
    fn group_spec(&self, spec: TunnelSpec) -> TunnelSpec {
        TunnelSpec { ttl: Ttl::Fixed(self.network.options().of(spec.tunnel).group_ttl), ..spec }
    }

    fn address_of(&self, host: &Host) -> Result<IpAddr> {
        let family = self.network.underlay_family();
        host.underlay(family).with_context(|| {
            let name = &host.name;
            format!("host {name} has no {family} underlay address: add one to its `underlay`")
        })
    }

    /// The specification of a tunnel type; `None` for VLAN and QinQ, which have no end points.
    fn tunnel_spec(&self, tunnel: TunnelType) -> Option<TunnelSpec> {
        let options = self.network.options();
        let settings = options.of(tunnel);
        let spec = TunnelSpec {
            checksum: settings.checksum.unwrap_or(self.checksum),
            path_mtu_bytes: self.network.underlay_mtu(),
            clamp_mss: options.clamp_mss,
            ..TunnelSpec::new(tunnel, settings)
        };
        tunnel.has_endpoints().then_some(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        Network::parse(text, "network.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn port(name: &str, host: &str, mac: u8) -> String {
        format!(
            "[[logical_switch.port]]\nname = \"{name}\"\nhost = \"{host}\"\n\
             mac = \"02:00:00:00:00:{mac:02x}\"\n\
             device = {{ tap = \"{name}\" }}\n"
        )
    }

    /// The number with commas between groups of three digits.
    fn thousands(number: usize) -> String {
        match number {
            0..1000 => number.to_string(),
            _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
        }
    }

    #[test]
    fn network_toml_manual_states_the_default_limits() {
        let manual = include_str!("../../../docs/network-toml.md");
        let switch::Config { limits, learn } = switch::Config::default();
        let UpcallLimits { packets, bytes, segments } = UpcallLimits::default();
        let SolicitLimits { again_after, neighbours } = SolicitLimits::default();
        assert_eq!(again_after.as_secs(), 1);
        let (stations, age) = (learn.fdb, learn.max_age.as_secs());
        assert_eq!((limits.megaflows, stations), (MEGAFLOWS, learn.mac_bindings));
        let (total, per_port) = (thousands(stations.total), thousands(stations.per_port));
        let masks = (limits.masks_per_port, thousands(limits.masks));
        for limit in [
            format!("| megaflows | {};", thousands(MEGAFLOWS)),
            format!("| {} per port, {} in total;", masks.0, masks.1),
            format!(
                "| {packets}, {} MiB or {} segments per port |",
                bytes >> 20,
                thousands(segments)
            ),
            format!("| {total} each, {per_port} per port;"),
            format!("| one request per second and address, {neighbours} addresses per port |"),
            format!("forgotten {age} seconds after"),
        ] {
            assert!(manual.contains(&limit), "{limit}");
        }
    }

    #[test]
    fn no_tunnel_is_needed_when_a_switch_is_on_one_host() {
        let text = "tunnel = \"vxlan\"\n[[host]]\nname = \"h1\"\nuplink = \"eth0\"\nunderlay = []\n\
                    [[logical_switch]]\nname = \"blue\"\nvni = 5\n"
            .to_owned()
            + &port("a", "h1", 1) + &port("b", "h1", 2);
        let network = network(&text);
        let config = build(
            &network,
            &network.hosts()[0],
            "network.toml",
            true,
            &mut HostNumbers::default(),
            |_| None,
        )
        .unwrap()
        .config;
        assert_eq!(
            (config.ports.len(), config.underlay.tunnels.len(), config.underlay.endpoints.len()),
            (2, 0, 0)
        );
    }

    #[test]
    fn remote_host_has_one_end_point_per_tunnel_type() {
        let hosts = (1..4).map(|n| {
            format!("[[host]]\nname = \"h{n}\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.{n}\"]\n")
        });
        let switch = |name: &str, tunnel: &str, vni: u8| {
            format!("[[logical_switch]]\nname = \"{name}\"\nvni = {vni}\ntunnel = \"{tunnel}\"\n")
        };
        let text = hosts.collect::<String>()
            + &switch("blue", "geneve", 1)
            + &port("a", "h1", 1)
            + &port("b", "h2", 2)
            + &port("c", "h2", 3)
            + &port("d", "h3", 4)
            + &switch("green", "geneve", 2)
            + &port("e", "h1", 5)
            + &port("f", "h2", 6)
            + &switch("red", "stt", 1)
            + &port("g", "h1", 7)
            + &port("h", "h3", 8)
            + &switch("elsewhere", "gre", 1)
            + &port("i", "h2", 9)
            + &port("j", "h3", 10);
        let network = network(&text);
        let config = build(
            &network,
            &network.hosts()[0],
            "network.toml",
            true,
            &mut HostNumbers::default(),
            |_| None,
        )
        .unwrap()
        .config;
        assert_eq!(config.underlay.tunnels.len(), 2, "geneve and stt; gre has no port here");
        assert_eq!(config.underlay.endpoints.len(), 3, "geneve to h2 and h3, stt to h3");
        assert_eq!(config.ports.iter().map(|p| p.port.0).collect::<Vec<_>>(), [1, 2, 3]);
    }
}
