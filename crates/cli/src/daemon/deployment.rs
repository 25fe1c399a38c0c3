//! [`Deployment`]: the configuration of one host, compiled from its network file or from OVN.

use super::attached::AttachedPorts;
use super::health::{CheckKey, FROM_UNDERLAY, PlannedCheck};
use crate::bridges::{self, FlowFiles, HostBridges};
use crate::host_config::{self, HostConfig};
use crate::host_numbers::HostNumbers;
use crate::{Failure, open_files};
use anyhow::anyhow;
use chassis::{Installation, Settings};
use datapath::config::{Config, PortConfig, UPCALL_CPU_PERCENT, Underlay, Workers};
use datapath::stats::Snapshot;
use doctor::choice::OuterChecksum;
use doctor::facts::NicFacts;
use flow::{Carrier, PortNo, TunnelType};
use network::{BackendCheck, Host, Network, Placement, TunnelOptions, UnderlayFamily};
use pipeline::Program;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The arrival port of a health check whose backend has no device: no packet can arrive there.
const NO_PORT: u32 = u32::MAX - 1;

/// A network, the datapath configuration that follows from it on this host, and the names of ports
/// and hosts for output.
pub struct Deployment {
    /// The network file; `None` if OVN is the control plane.
    pub network: Option<Arc<Network>>,
    /// The settings of the tunnels.
    pub tunnel_options: TunnelOptions,
    /// The IP version of outer headers.
    pub family: UnderlayFamily,
    pub config: Config,
    pub numbers: HostNumbers,
    /// The bridges and their present flows.
    pub bridges: Mutex<HostBridges>,
    /// The devices that are attached to ports of pools. The network file may no longer have such a
    /// port.
    pub attached: AttachedPorts,
    /// Whether UDP tunnels send outer checksums if the network file does not set it.
    pub checksum: OuterChecksum,
    options: ForwardingOptions,
    port_names: HashMap<PortNo, String>,
    /// The names of the ports' logical switches, if the configuration does not have them.
    switch_names: HashMap<PortNo, String>,
    /// Names of the hosts by their underlay addresses.
    hosts: HashMap<IpAddr, String>,
}

/// The state that a deployment passes to its successor after a reload or restart.
#[derive(Default)]
pub struct Previous {
    /// The numbers of ports and end points, which they keep.
    pub numbers: HostNumbers,
    /// The bridges. Their flows keep their counters.
    pub bridges: HostBridges,
    /// The attached devices, which stay attached.
    pub attached: AttachedPorts,
    /// The failed backends, with the names of their load balancers. They get no new connections.
    pub offline: BTreeSet<(String, SocketAddr)>,
}

/// The settings of forwarding that come from the command line, not from the network file.
#[derive(Debug, Clone, Copy)]
pub struct ForwardingOptions {
    /// Forwarding threads.
    pub workers: Workers,
    /// Outer source ports over which the flows of guests are spread.
    pub source_ports: u16,
    /// Maximum number of megaflows.
    pub megaflows: usize,
    /// True for the kernel datapath.
    pub use_kernel: bool,
}

impl Deployment {
    /// Compiles a network for one host, with the flow files of its bridges. Errors name the `file`
    /// of the network.
    ///
    /// # Errors
    /// The host is unknown, a flow file is invalid, or the limit on open files is too low.
    pub fn new(
        (mut network, flows): (Network, &FlowFiles),
        file: &Path,
        host: &str,
        options: ForwardingOptions,
        previous: Previous,
    ) -> Result<(Self, Program), Failure> {
        let name = file.display().to_string();
        network.set_offline(&previous.offline);
        let host = find_host(&network, host, &name)?;
        let ForwardingOptions { workers, source_ports, megaflows, use_kernel } = options;
        // The uplink may not exist yet. The choice then assumes no offloads.
        let uplink = NicFacts::read_offloads(&host.uplink).ok();
        let checksum =
            OuterChecksum::choose(uplink.as_ref(), network.underlay_family(), use_kernel);
        let mut numbers = previous.numbers;
        let HostConfig { config, mut program, mut bridges } =
            host_config::build(&network, host, &name, checksum.on, &mut numbers, |port| {
                previous.attached.get(port).map(|attached| attached.device.clone())
            })
            .map_err(Failure::Input)?;
        bridges::load(&mut bridges, flows, &previous.bridges, &mut program)?;
        let config = Config { workers, entropy_ports: source_ports, megaflows, ..config };
        open_files::require(&config).map_err(Failure::Input)?;
        let port_names = config.ports.iter().map(|port| (port.port, port.name.clone())).collect();
        let address =
            |host: &Host| Some((host.underlay(network.underlay_family())?, host.name.clone()));
        let hosts = network.hosts().iter().filter_map(address).collect();
        let deployment = Self {
            tunnel_options: *network.options(),
            family: network.underlay_family(),
            network: Some(Arc::new(network)),
            config,
            numbers,
            bridges: Mutex::new(bridges),
            attached: previous.attached,
            checksum,
            options,
            port_names,
            switch_names: HashMap::new(),
            hosts,
        };
        deployment.check_devices().map_err(Failure::Input)?;
        Ok((deployment, program))
    }

    /// The deployment for a network from OVN on the host with this uplink.
    ///
    /// # Errors
    /// The limit on open files is too low.
    pub fn of_chassis(
        installation: &Installation,
        settings: &Settings,
        uplink: &str,
        options: ForwardingOptions,
    ) -> Result<Self, Failure> {
        let ForwardingOptions { workers, source_ports, megaflows, use_kernel } = options;
        let family = UnderlayFamily::of(settings.encap_ip);
        let facts = NicFacts::read_offloads(uplink).ok();
        let checksum = OuterChecksum::choose(facts.as_ref(), family, use_kernel);
        let mut tunnel_options = TunnelOptions::default();
        for tunnel in TunnelType::ALL.into_iter().filter(|tunnel| tunnel.carrier() == Carrier::Udp)
        {
            tunnel_options.of_mut(tunnel).checksum = Some(settings.checksum);
        }
        let (tunnels, endpoints) = (installation.tunnels.clone(), installation.endpoints.clone());
        let config = Config {
            uplink: uplink.to_owned(),
            underlay: Underlay { tunnels, endpoints, ..Underlay::default() },
            ports: installation.ports.clone(),
            workers,
            entropy_ports: source_ports,
            megaflows,
            upcall_cpu_percent: settings.upcall_cpu_percent.unwrap_or(UPCALL_CPU_PERCENT),
            ..host_config::without_network(&settings.hostname)
        };
        open_files::require(&config).map_err(Failure::Input)?;
        let mut port_names: HashMap<PortNo, String> =
            config.ports.iter().map(|port| (port.port, port.name.clone())).collect();
        let mut switch_names = HashMap::new();
        for (&number, (port, switch)) in &installation.names {
            port_names.insert(number, port.clone());
            switch_names.insert(number, switch.clone());
        }
        Ok(Self {
            network: None,
            tunnel_options,
            family,
            config,
            numbers: HostNumbers::default(),
            bridges: Mutex::default(),
            attached: AttachedPorts::new(),
            checksum,
            options,
            port_names,
            switch_names,
            hosts: installation.hosts.iter().map(|(ip, name)| (*ip, name.clone())).collect(),
        })
    }

    /// Sets the names of ports and logical switches that the datapath does not know.
    pub fn name_ports(&self, snapshot: &mut Snapshot) {
        for port in &mut snapshot.ports {
            let number = PortNo(port.port);
            if let Some(switch) = self.switch_names.get(&number) {
                port.name = self.port_name(number);
                port.logical_switch.clone_from(switch);
            }
        }
    }

    /// The state that the next deployment starts with.
    pub fn leave(&self) -> Previous {
        let bridges = self.bridges.lock().unwrap_or_else(PoisonError::into_inner);
        Previous {
            numbers: self.numbers.clone(),
            bridges: bridges.clone(),
            attached: self.attached.clone(),
            offline: self.offline(),
        }
    }

    /// The backends that get no new connections.
    pub(super) fn offline(&self) -> BTreeSet<(String, SocketAddr)> {
        let balancers = self.network.iter().flat_map(|network| network.load_balancers());
        balancers
            .flat_map(|it| it.offline.iter().map(|backend| (it.name.clone(), *backend)))
            .collect()
    }

    /// The health checks of the network file.
    pub(super) fn checks(&self) -> BTreeMap<CheckKey, PlannedCheck> {
        let Some(network) = &self.network else { return BTreeMap::new() };
        let Some(host) = network.host(&self.config.host) else { return BTreeMap::new() };
        let planned = network.backend_checks(host.index).into_iter().map(|it| {
            let BackendCheck { balancer, backend, port, is_local, entry, mut check } = it;
            check.arrival = match is_local {
                // Without a device, no answer can arrive.
                true => self.number_of(&port).map_or(NO_PORT, |number| number.0),
                false => FROM_UNDERLAY,
            };
            let key = CheckKey::Backend(balancer.clone(), backend);
            (key, PlannedCheck { balancer, port, entry: (entry, None), check })
        });
        planned.collect()
    }

    /// The arrival of a packet in the terms of health checks: a guest's port, or the underlay.
    pub(super) fn arrival(&self, port: PortNo) -> u32 {
        let is_guest = self.port_names.contains_key(&port);
        if is_guest { port.0 } else { FROM_UNDERLAY }
    }

    /// A copy of this deployment with other ports.
    pub fn changed(&self, config: Config, numbers: HostNumbers, attached: AttachedPorts) -> Self {
        let port_names = config.ports.iter().map(|port| (port.port, port.name.clone())).collect();
        Self {
            network: self.network.clone(),
            tunnel_options: self.tunnel_options,
            family: self.family,
            config,
            numbers,
            bridges: Mutex::new(self.leave().bridges),
            attached,
            checksum: self.checksum.clone(),
            options: self.options,
            port_names,
            switch_names: self.switch_names.clone(),
            hosts: self.hosts.clone(),
        }
    }

    /// The options with which this deployment was created.
    pub fn options(&self) -> ForwardingOptions {
        self.options
    }

    /// The name of a datapath port: the port in the network file, `uplink DEVICE` or
    /// `tunnel TYPE`.
    pub fn port_name(&self, port: PortNo) -> String {
        if let Some(name) = self.port_names.get(&port) {
            return name.clone();
        }
        if port == Placement::UPLINK {
            return format!("uplink {}", self.config.uplink);
        }
        match self.tunnel_ports().find(|(number, _)| *number == port) {
            Some((_, tunnel)) => format!("tunnel {tunnel}"),
            None => format!("port {port}"),
        }
    }

    /// The datapath ports that represent tunnels. VLAN and QinQ have one for every link.
    fn tunnel_ports(&self) -> impl Iterator<Item = (PortNo, TunnelType)> {
        let Underlay { tunnels, links, .. } = &self.config.underlay;
        let tunnels = tunnels.iter().map(|tunnel| (tunnel.port, tunnel.spec.tunnel));
        tunnels.chain(links.iter().map(|link| (link.port, link.link.tunnel())))
    }

    /// The guest port named `name` on this host.
    ///
    /// # Errors
    /// A message that lists the ports of this host.
    pub fn port(&self, name: &str) -> Result<&PortConfig, String> {
        let ports = &self.config.ports;
        ports.iter().find(|port| self.port_name(port.port) == name).ok_or_else(|| {
            let names: Vec<_> = ports.iter().map(|port| self.port_name(port.port)).collect();
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            format!(
                "no port `{name}` on host {}: use one of {}",
                self.config.host,
                list_names(&names)
            )
        })
    }

    /// The port named `name`: of a guest, of a tunnel, or the uplink.
    ///
    /// # Errors
    /// As [`Self::port`].
    pub fn any_port(&self, name: &str) -> Result<PortNo, String> {
        let others = self.tunnel_ports().map(|(port, _)| port);
        let mut others = others.chain([Placement::UPLINK]);
        match others.find(|&port| self.port_name(port) == name) {
            Some(port) => Ok(port),
            None => self.port(name).map(|port| port.port),
        }
    }

    /// The host with this underlay address.
    pub fn host_at(&self, address: IpAddr) -> Option<&str> {
        self.hosts.get(&address).map(String::as_str)
    }
}

/// Names for a message: at most 20, then how many more there are.
pub fn list_names(names: &[&str]) -> String {
    const MAX_NAMES: usize = 20;
    match names {
        [] => "none".to_owned(),
        names if names.len() <= MAX_NAMES => names.join(", "),
        names => format!("{} and {} more", names[..MAX_NAMES].join(", "), names.len() - MAX_NAMES),
    }
}

fn find_host<'n>(network: &'n Network, name: &str, file: &str) -> Result<&'n Host, Failure> {
    network.host(name).ok_or_else(|| Failure::Input(no_such_host(network, name, file)))
}

/// The error for a host name that the network file does not have.
pub fn no_such_host(network: &Network, name: &str, file: &str) -> anyhow::Error {
    let names: Vec<_> = network.hosts().iter().map(|host| host.name.as_str()).collect();
    anyhow!("{file} has no host {name:?}: use one of {}", list_names(&names))
}
