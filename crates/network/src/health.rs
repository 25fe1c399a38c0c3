//! Health checks of backends: their senders, their addresses, and the path of the replies.
//!
//! Each host checks the backends of the load balancers in its program, those on other hosts
//! included. A check leaves from a logical port of its host, which has no device. All hosts use the
//! same source address in a network, so a backend sends its replies to one MAC address,
//! `0a:57:45:46:00:00`. The destination port of a reply identifies the host that sent the check.

use crate::logical::{DatapathKeys, LogicalPort};
use crate::placement::hosts_on_switches;
use crate::{HostIndex, LogicalSwitch, Network, SwitchIndex};
use flow::{PortKey, PortNo};
use services::health::{Check, Kind as CheckKind};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use wire::MacAddr;

/// The most hosts. Each has its own range of source ports.
pub(crate) const MAX_HOSTS: usize = 512;
/// Source ports of a host, a power of two.
const PORTS_OF_HOST: u16 = 64;
/// The first source port of the first host's range.
const FIRST_PORT: u16 = 0x8000;
/// The port key of the first host's logical port. It appears in no tunnel.
const FIRST_KEY: u16 = 40_000;
/// The datapath port by which checks in the first switch enter the program. No device has it.
const FIRST_ENTRY: u32 = 0xfffe_0000;
/// The most switches whose guests can be checked.
pub(crate) const MAX_SWITCHES: usize = 0xff00;
const PREFIX: [u8; 4] = [0x0a, 0x57, 0x45, 0x46];

/// True for a MAC address of health checks.
pub(crate) fn is_monitor_mac(mac: MacAddr) -> bool {
    mac.0.starts_with(&PREFIX)
}

/// The MAC addresses of health checks in the language of logical flows.
pub(crate) const MACS: &str = "0a:57:45:46:00:00/ff:ff:ff:ff:00:00";
/// The MAC address that backends resolve the source address to.
pub(crate) const COMMON_MAC: MacAddr = MacAddr([0x0a, 0x57, 0x45, 0x46, 0, 0]);

/// The source MAC address of the checks of a host.
pub(crate) fn mac_of(host: HostIndex) -> MacAddr {
    let [a, b, c, d] = PREFIX;
    // The cast is lossless: there are at most `MAX_HOSTS`.
    let [high, low] = (host.value() as u16 + 1).to_be_bytes();
    MacAddr([a, b, c, d, high, low])
}

/// The logical port of a host in a switch. Names in the file cannot contain a slash.
pub(crate) fn port_name(network: &Network, switch: &LogicalSwitch, host: HostIndex) -> String {
    format!("{}//health/{}", switch.name, network[host].name)
}

/// The key of the logical port of a host.
pub(crate) fn port_key(host: HostIndex) -> Option<PortKey> {
    PortKey::new(FIRST_KEY.checked_add(u16::try_from(host.value()).ok()?)?)
}

/// The datapath port by which checks of a switch enter the program.
pub(crate) fn entry(switch: usize) -> PortNo {
    // The cast is lossless: there are at most `MAX_SWITCHES`.
    PortNo(FIRST_ENTRY + switch as u32)
}

/// The match for TCP destination ports of replies to a host.
pub(crate) fn is_answer_to(host: HostIndex) -> String {
    let bits = PORTS_OF_HOST.trailing_zeros();
    format!("tcp.dst[{bits}..15] == {}", (FIRST_PORT >> bits) + host.value() as u16)
}

/// The switches with backends that are checked, and the source addresses there.
pub(crate) fn monitored(network: &Network) -> BTreeMap<usize, BTreeSet<std::net::IpAddr>> {
    let mut monitored: BTreeMap<usize, BTreeSet<_>> = BTreeMap::new();
    let checks = network.load_balancers().iter().filter_map(|balancer| balancer.health.as_ref());
    for target in checks.flat_map(|checks| &checks.targets) {
        monitored.entry(target.switch.value()).or_default().insert(target.source);
    }
    monitored
}

/// The checks of backends in a switch: source address, backend and protocol.
pub(crate) fn probes(
    network: &Network,
    switch: usize,
) -> BTreeSet<(std::net::IpAddr, SocketAddr, &'static str)> {
    let checks = network.load_balancers().iter().filter_map(|balancer| balancer.health.as_ref());
    let probes = checks.flat_map(|health| {
        let protocol = if matches!(health.kind, CheckKind::Udp) { "udp" } else { "tcp" };
        let here = health.targets.iter().filter(|target| target.switch.value() == switch);
        here.map(move |target| (target.source, target.backend, protocol))
    });
    probes.collect()
}

/// The hosts whose programs have a switch: those with guests or routers in its connected part.
pub(crate) fn hosts_of(network: &Network, switch: usize) -> BTreeSet<HostIndex> {
    let connectivity = network.connectivity();
    let part = connectivity.part_of_switch(switch);
    let on_switches = hosts_on_switches(network).into_iter().enumerate();
    let here = on_switches.filter(|(index, _)| connectivity.part_of_switch(*index) == part);
    here.flat_map(|(_, hosts)| hosts).collect()
}

/// The check of a backend by one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackendCheck {
    /// The name of the load balancer.
    pub balancer: String,
    /// The backend.
    pub backend: SocketAddr,
    /// The name of the backend's logical port.
    pub port: String,
    /// The backend is on this host.
    pub is_local: bool,
    /// The datapath port by which probes enter the program. No device has this port.
    pub entry: PortNo,
    /// The check itself. Its `arrival` is 0.
    pub check: Check,
}

impl Network {
    /// The checks that a host sends.
    pub fn backend_checks(&self, host: HostIndex) -> Vec<BackendCheck> {
        let connectivity = self.connectivity();
        let on_switches = hosts_on_switches(self);
        let parts: BTreeSet<usize> = (0..on_switches.len())
            .filter(|&index| on_switches[index].contains(&host))
            .map(|index| connectivity.part_of_switch(index))
            .collect();
        let mut checks = Vec::new();
        for balancer in self.load_balancers() {
            let Some(health) = &balancer.health else { continue };
            let in_switch =
                |switch: &SwitchIndex| parts.contains(&connectivity.part_of_switch(switch.value()));
            let is_here = balancer.switches.iter().any(in_switch)
                || balancer.routers.iter().any(|router| self[*router].home == Some(host));
            for target in health.targets.iter().filter(|_| is_here) {
                let Some(guest) = self[target.switch].port(target.port) else { continue };
                // The cast is lossless: there are at most `MAX_HOSTS`.
                let first_port = FIRST_PORT + PORTS_OF_HOST * host.value() as u16;
                checks.push(BackendCheck {
                    balancer: balancer.name.clone(),
                    backend: target.backend,
                    port: guest.name.clone(),
                    is_local: guest.host == host,
                    entry: entry(target.switch.value()),
                    check: Check {
                        backend: target.backend,
                        backend_mac: target.mac,
                        source: target.source,
                        source_mac: mac_of(host),
                        first_port,
                        port_count: PORTS_OF_HOST,
                        arrival: 0,
                        kind: health.kind.clone(),
                        timing: health.timing,
                    },
                });
            }
        }
        checks
    }

    /// Sets the backends that get no new connections, each with the name of its load balancer.
    pub fn set_offline(&mut self, offline: &BTreeSet<(String, SocketAddr)>) {
        for balancer in &mut self.load_balancers {
            let is_offline = |backend: &&SocketAddr| {
                balancer.health.is_some() && offline.contains(&(balancer.name.clone(), **backend))
            };
            balancer.offline = balancer.backends.iter().filter(is_offline).copied().collect();
        }
    }
}

/// The logical ports of hosts in a switch.
pub(crate) fn logical_ports(network: &Network, index: usize) -> Vec<LogicalPort> {
    let switch = &network[SwitchIndex(index)];
    let port = |host: HostIndex| {
        let name = port_name(network, switch, host);
        Some(LogicalPort { name, key: port_key(host)?, peer: None, security: None })
    };
    hosts_of(network, index).into_iter().filter_map(port).collect()
}

/// The keys of the switches in the program.
pub(crate) fn key_of(keys: &DatapathKeys, switch: usize) -> flow::DatapathKey {
    keys.switch(SwitchIndex(switch))
}
