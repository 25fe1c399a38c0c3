//! [`Deployed`]: what a switch is made from: a network file as one host sees it.

use crate::numbers::Numbers;
use crate::plan::{self, Plan};
use crate::{Failure, limits, rights};
use anyhow::anyhow;
use datapath::config::{Config, DeviceConfig, PortConfig, Underlay, Workers};
use doctor::choice::OuterChecksum;
use doctor::facts::NicFacts;
use flow::{PortNo, TunnelType};
use netdev::capability::Capability;
use network::{Host, Network, Placement};
use pipeline::Program;
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

/// See the module.
pub struct Deployed {
    pub network: Network,
    pub config: Config,
    pub numbers: Numbers,
    /// What was chosen where the file says nothing.
    pub checksum: OuterChecksum,
    means: Means,
    port_names: HashMap<PortNo, String>,
    /// The names of the other hosts by their addresses.
    hosts: HashMap<IpAddr, String>,
}

/// What a switch has to work with; that is the command line's to say, not the network file's.
#[derive(Debug, Clone, Copy)]
pub struct Means {
    /// Threads that forward.
    pub workers: Workers,
    /// Outer source ports that tell the flows of guests apart.
    pub source_ports: u16,
    /// Megaflows, at most.
    pub megaflows: usize,
    /// Programs in the kernel forward.
    pub by_kernel: bool,
}

impl Deployed {
    /// Reads and checks a network file, for a switch with these means. What has a number in `numbers` keeps it.
    pub fn load(
        file: &Path,
        host: &str,
        means: Means,
        mut numbers: Numbers,
    ) -> Result<(Self, Program), Failure> {
        let network = Network::load(file).map_err(Failure::input)?;
        let name = file.display().to_string();
        let host = find_host(&network, host, &name)?;
        let Means { workers, source_ports, megaflows, by_kernel } = means;
        // It may not be there yet.
        let uplink = NicFacts::read(&host.uplink).ok();
        let checksum = OuterChecksum::choose(uplink.as_ref(), network.underlay_family(), by_kernel);
        let Plan { config, program } =
            plan::plan(&network, host, &name, checksum.on, &mut numbers).map_err(Failure::Input)?;
        let config = Config { workers, entropy_ports: source_ports, megaflows, ..config };
        check_rights(&config).map_err(Failure::Input)?;
        limits::check(&config).map_err(Failure::Input)?;
        let port_names = config.ports.iter().map(|port| (port.port, port.name.clone())).collect();
        let address =
            |host: &Host| Some((host.underlay(network.underlay_family())?, host.name.clone()));
        let hosts = network.hosts().iter().filter_map(address).collect();
        Ok((Self { network, config, numbers, checksum, means, port_names, hosts }, program))
    }

    /// What it was loaded with.
    pub fn means(&self) -> Means {
        self.means
    }

    /// What a port of the datapath is called.
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

    /// The ports by which frames come from the underlay; of tags, once for every link.
    fn tunnel_ports(&self) -> impl Iterator<Item = (PortNo, TunnelType)> {
        let Underlay { tunnels, links, .. } = &self.config.underlay;
        let tunnels = tunnels.iter().map(|tunnel| (tunnel.port, tunnel.spec.tunnel));
        tunnels.chain(links.iter().map(|link| (link.port, link.link.tunnel())))
    }

    /// The port of that name on this host.
    ///
    /// # Errors
    /// There is none; says which there are.
    pub fn port(&self, name: &str) -> Result<&PortConfig, String> {
        let ports = &self.config.ports;
        ports.iter().find(|port| port.name == name).ok_or_else(|| {
            let names: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
            format!("{} has no port `{name}`; it has {}", self.config.host, enumerate(&names))
        })
    }

    /// The port of that name, or of those that are no guest's.
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

    /// The host with that address.
    pub fn host_at(&self, address: IpAddr) -> Option<&str> {
        self.hosts.get(&address).map(String::as_str)
    }
}

/// Names for people; not all of very many.
pub fn enumerate(names: &[&str]) -> String {
    const MOST: usize = 20;
    match names {
        [] => "none".to_owned(),
        names if names.len() <= MOST => names.join(", "),
        names => format!("{} and {} more", names[..MOST].join(", "), names.len() - MOST),
    }
}

fn find_host<'n>(network: &'n Network, name: &str, file: &str) -> Result<&'n Host, Failure> {
    network.host(name).ok_or_else(|| {
        let names: Vec<_> = network.hosts().iter().map(|host| host.name.as_str()).collect();
        Failure::Input(anyhow!("{file} has no host {name:?}; it has {}", enumerate(&names)))
    })
}

/// What lacks here would otherwise show as one port or socket after the other that cannot be opened.
fn check_rights(config: &Config) -> anyhow::Result<()> {
    let enters =
        |port: &PortConfig| matches!(port.device, DeviceConfig::Tap { guest: Some(_), .. });
    let mut needed = vec![Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];
    if config.ports.iter().any(enters) {
        needed.push(Capability::CAP_SYS_ADMIN);
    }
    rights::check(&format!("the switch of {}", config.host), &needed)
}
