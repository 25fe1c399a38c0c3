//! Attaches devices to ports of pools, and detaches them, while the switch runs.
//!
//! The network file lists the ports of a pool, so all hosts know their keys and addresses.
//! Attaching a device therefore changes neither logical flows nor other hosts: only the location of
//! one port in the program changes, and the datapath opens one device. The file in the directory of
//! [`attached`] is written first. If the daemon is killed after that, the next daemon attaches the
//! device, although the requester got no reply. The requester then deletes the port.

use super::Daemon;
use super::attached::{self, Attached};
use super::deployment::{Deployment, list_names};
use crate::control::replies::{AttachedRow, DeletedPort, PoolRow, PoolsReply};
use crate::{Failure, host_config, open_files};
use anyhow::{Result, anyhow, bail};
use datapath::config::{MAX_PORT, PortConfig};
use flow::{DatapathKey, PortKey, PortNo};
use network::{Device, LogicalSwitch, Network, Port, RouterLink};
use pipeline::{PortLocation, PortRole, Program};
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

const NO_NETWORK: &str = "this switch gets its network from OVN, which attaches the devices with \
                          an iface-id; there are no pools";
/// The longest `owner` text of a request, in bytes.
const MAX_OWNER_BYTES: usize = 512;

/// A request to attach a device.
pub(super) struct AttachRequest<'a> {
    /// A pool, or one of its ports.
    pub at: &'a str,
    pub device: &'a str,
    pub owner: &'a str,
    /// Addresses that the port must have.
    pub addresses: &'a [IpAddr],
}

impl Daemon {
    /// The pools on this host, and the attached devices.
    pub(super) fn pools(&self) -> PoolsReply {
        let deployment = self.deployment();
        let states: BTreeMap<u32, String> = match self.datapath.snapshot() {
            Ok(snapshot) => snapshot.ports.into_iter().map(|it| (it.port, it.state)).collect(),
            Err(_) => BTreeMap::new(),
        };
        let mut pools: BTreeMap<&str, PoolRow> = BTreeMap::new();
        let mut attached = Vec::new();
        let ports = deployment.network.as_deref().map(|network| (network, &self.host));
        for (network, switch, port) in ports.into_iter().flat_map(|(network, host)| {
            pool_ports(network, host).map(move |(switch, port)| (network, switch, port))
        }) {
            let Some(pool) = port.pool.as_deref() else { continue };
            let row = pools.entry(pool).or_insert_with(|| PoolRow {
                name: pool.to_owned(),
                logical_switch: switch.name.clone(),
                mtu: switch.mtu,
                ports: 0,
                free: 0,
            });
            row.ports += 1;
            match deployment.attached.get(&port.name) {
                None => row.free += 1,
                Some(here) => {
                    let number = deployment.number_of(&port.name);
                    let state = number.and_then(|number| states.get(&number.0));
                    attached.push(row_of(network, switch, port, here, state.cloned()));
                }
            }
        }
        let pools = pools.into_values().collect();
        // Attached devices whose ports the network file no longer has.
        let known: HashSet<&str> = attached.iter().map(|row| row.port.as_str()).collect();
        let orphaned =
            deployment.attached.iter().filter(|(port, _)| !known.contains(port.as_str()));
        let orphaned: Vec<_> = orphaned
            .map(|(port, it)| AttachedRow {
                port: port.clone(),
                device: it.device.clone(),
                owner: it.owner.clone(),
                ..AttachedRow::default()
            })
            .collect();
        attached.extend(orphaned);
        PoolsReply { host: self.host.clone(), pools, attached }
    }

    /// Attaches a device. If the same owner has attached it already, nothing changes.
    ///
    /// # Errors
    /// No such port is free, or the device is in use; the datapath has ended.
    pub(super) fn add_port(&self, request: &AttachRequest<'_>) -> Result<AttachedRow, Failure> {
        let mut state = self.lock_reload_state()?;
        let old = self.deployment();
        let network = old.network.as_ref().ok_or_else(|| Failure::Input(anyhow!(NO_NETWORK)))?;
        let after = state.last_of_pool.get(request.at).map_or("", String::as_str);
        let (switch, port, is_new) =
            choose(network, &self.host, &old, request, after).map_err(Failure::Input)?;
        let attached =
            Attached { device: request.device.to_owned(), owner: request.owner.to_owned() };
        if is_new {
            let (new, number) = old.with_device(switch, port, &attached).map_err(Failure::Input)?;
            let mut program = self.switch.program();
            let key = datapath_of(&program, &switch.name)?;
            place(&mut program, (key, port.key), Some(number));
            attached::save(&self.attached_folder, &port.name, &attached)?;
            let (new, has_underlay) = (Arc::new(new), &mut state.has_underlay);
            if let Err(error) = self.activate_ports(&old, &new, program, has_underlay) {
                // An error of `forget` is ignored: the first error says more.
                let _ = attached::forget(&self.attached_folder, &port.name);
                return Err(error);
            }
            if let Some(pool) = &port.pool {
                state.last_of_pool.insert(pool.to_string(), port.name.clone());
            }
            messages::log!(DEVICE_ATTACHED, port = %port.name, device = request.device, "attached");
        }
        Ok(row_of(network, switch, port, &attached, None))
    }

    /// Detaches the device of `port`, or all devices of `owner`. It is no error if there is none.
    ///
    /// # Errors
    /// The datapath has ended.
    pub(super) fn delete_ports(
        &self,
        port: Option<&str>,
        owner: Option<&str>,
    ) -> Result<DeletedPort, Failure> {
        let mut state = self.lock_reload_state()?;
        let old = self.deployment();
        if port.is_none() && owner.is_none() {
            let why = "name the port or the owner of what to detach";
            return Err(Failure::Input(anyhow!(why)));
        }
        let is_selected = |(name, attached): &(&String, &Attached)| {
            port.is_none_or(|port| port == name.as_str())
                && owner.is_none_or(|owner| owner == attached.owner)
        };
        let names: Vec<String> =
            old.attached.iter().filter(is_selected).map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return Ok(DeletedPort { removed: names });
        }
        let (new, numbers) = old.without_devices(&names);
        let mut program = self.switch.program();
        for number in numbers {
            if let Some(place_of) = program.port_role(number).and_then(PortRole::logical_port) {
                place(&mut program, place_of, None);
            }
            program.remove_port_role(number);
        }
        self.activate_ports(&old, &Arc::new(new), program, &mut state.has_underlay)?;
        // Tries all files before it returns the first error.
        let forgotten: Vec<_> =
            names.iter().map(|name| attached::forget(&self.attached_folder, name)).collect();
        forgotten.into_iter().collect::<Result<()>>()?;
        messages::log!(DEVICE_DETACHED, "detached {}", names.join(", "));
        Ok(DeletedPort { removed: names })
    }
}

impl Daemon {
    /// Detaches the devices whose files were removed before this daemon listened.
    ///
    /// # Errors
    /// As for [`Self::delete_ports`].
    pub fn detach_forgotten(&self) -> Result<(), Failure> {
        let deployment = self.deployment();
        let is_gone = |port: &&String| !attached::is_known(&self.attached_folder, port);
        for port in deployment.attached.keys().filter(is_gone) {
            self.delete_ports(Some(port), None)?;
        }
        Ok(())
    }
}

impl Deployment {
    /// Fails if an attached device is also the uplink, or the device of another port.
    pub(super) fn check_devices(&self) -> Result<()> {
        for (port, Attached { device, .. }) in &self.attached {
            let other = |it: &&PortConfig| {
                it.name != *port && it.device.own_name() == Some(device.as_str())
            };
            let ports = &self.config.ports;
            if !ports.iter().any(|it| it.name == *port) {
                continue;
            }
            let user = match ports.iter().find(other) {
                Some(other) => format!("port {} has it", other.name),
                None if self.config.uplink == *device => "it is the uplink".to_owned(),
                None => continue,
            };
            bail!(
                "{device} is attached to port {port}, but in the network file {user}: use another \
                 device, or detach it (`weft port del {port}`, or without a daemon remove its file \
                 beside the control socket)"
            );
        }
        Ok(())
    }

    /// A copy of this deployment with one more attached device, and the datapath port of the
    /// device.
    fn with_device(
        &self,
        switch: &LogicalSwitch,
        port: &Port,
        attached: &Attached,
    ) -> Result<(Self, PortNo)> {
        let mut numbers = self.numbers.clone();
        let name = (switch.name.clone(), port.name.clone());
        let number = PortNo(numbers.ports.number(name, Instant::now()));
        if number > MAX_PORT {
            bail!("the host has too many ports: a switch numbers at most {MAX_PORT}");
        }
        let mut config = self.config.clone();
        let device = Device::Interface { name: attached.device.clone() };
        config.ports.push(host_config::port_config(number, switch, port, &device));
        open_files::require(&config)?;
        let mut attached_ports = self.attached.clone();
        attached_ports.insert(port.name.clone(), attached.clone());
        Ok((self.changed(config, numbers, attached_ports), number))
    }

    /// A copy of this deployment without the devices of these ports, and their former datapath
    /// ports.
    fn without_devices(&self, names: &[String]) -> (Self, Vec<PortNo>) {
        let (mut numbers, mut attached) = (self.numbers.clone(), self.attached.clone());
        let mut config = self.config.clone();
        let is_gone = |port: &PortConfig| names.contains(&port.name);
        // A port outside the pools can have the name of a removed pool port. It keeps its device.
        let gone: Vec<PortConfig> = config
            .ports
            .extract_if(.., |port| is_gone(port) && self.is_in_pool(&port.name))
            .collect();
        for port in &gone {
            let name = (port.logical_switch.clone(), port.name.clone());
            numbers.ports.release(&name, Instant::now());
        }
        attached.retain(|name, _| !names.contains(name));
        let gone = gone.iter().map(|port| port.port).collect();
        (self.changed(config, numbers, attached), gone)
    }

    fn is_in_pool(&self, name: &str) -> bool {
        let switches = self.network.iter().flat_map(|network| network.logical_switches());
        switches.filter_map(|switch| switch.port_named(name)).any(|port| port.pool.is_some())
    }

    pub(super) fn number_of(&self, name: &str) -> Option<PortNo> {
        self.config.ports.iter().find(|port| port.name == name).map(|port| port.port)
    }
}

/// The ports of pools on a host.
fn pool_ports<'n>(
    network: &'n Network,
    host: &str,
) -> impl Iterator<Item = (&'n LogicalSwitch, &'n Port)> {
    let ports = network.host(host).map(|host| network.ports_on(host.index));
    ports.into_iter().flatten().filter(|(_, port)| port.pool.is_some())
}

/// Chooses the port for a device: its present one, or a free one. A pool assigns its ports in turn,
/// so that a released address stays unused for as long as possible.
fn choose<'n>(
    network: &'n Network,
    host: &str,
    deployment: &Deployment,
    request: &AttachRequest<'_>,
    after: &str,
) -> Result<(&'n LogicalSwitch, &'n Port, bool)> {
    let AttachRequest { at, device, owner, addresses } = *request;
    if let Some(problem) = network::interface_problem(device) {
        bail!(problem);
    }
    if owner.chars().any(char::is_control) {
        bail!("the owner has control characters: leave them out");
    }
    if owner.len() > MAX_OWNER_BYTES {
        bail!("the owner has {} bytes; {MAX_OWNER_BYTES} are possible", owner.len());
    }
    let is_named = |port: &Port| port.name == at || port.pool.as_deref() == Some(at);
    let named: Vec<_> = pool_ports(network, host).filter(|(_, port)| is_named(port)).collect();
    if named.is_empty() {
        let mut pools: Vec<&str> =
            pool_ports(network, host).filter_map(|(_, port)| port.pool.as_deref()).collect();
        pools.dedup();
        bail!(
            "no pool `{at}` on host {host}, and no port of one: use one of {}",
            list_names(&pools)
        );
    }
    let has_addresses = |port: &Port| {
        addresses.iter().all(|address| port.addresses.iter().any(|net| net.addr() == *address))
    };
    let fitting: Vec<_> = named.into_iter().filter(|(_, port)| has_addresses(port)).collect();
    if fitting.is_empty() {
        let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        bail!(
            "no port of `{at}` on host {host} has the address {}: take addresses of the pool; \
             `weft port list` shows its range",
            texts.join(" and ")
        );
    }
    if let Some((port, it)) = deployment.attached.iter().find(|(_, it)| it.device == device) {
        let same = fitting.iter().find(|(_, fitting)| fitting.name == *port);
        return match same {
            Some((switch, fitting)) if it.owner == owner => Ok((switch, fitting, false)),
            _ => bail!("{device} is attached to port {port} already: detach it first"),
        };
    }
    let is_used = |port: &&PortConfig| port.device.own_name() == Some(device);
    if deployment.config.uplink == device || deployment.config.ports.iter().any(|it| is_used(&it)) {
        bail!("{device} is the uplink, or a port of the network file has it: use another device");
    }
    let free = |(_, port): &&(_, &Port)| !deployment.attached.contains_key(&port.name);
    let begin = fitting.iter().position(|(_, port)| port.name == after).map_or(0, |last| last + 1);
    let (before, behind) = fitting.split_at(begin);
    match behind.iter().chain(before).find(free) {
        Some((switch, port)) => Ok((switch, port, true)),
        None if fitting.len() == 1 => {
            bail!("port {} has a device already: detach it first", fitting[0].1.name)
        }
        None => bail!(
            "all {} ports of `{at}` on host {host} are in use: raise `count` of the pool",
            fitting.len()
        ),
    }
}

fn datapath_of(program: &Program, switch: &str) -> Result<DatapathKey> {
    let found = program.datapaths().find(|(_, datapath)| datapath.name == switch);
    found.map(|(key, _)| key).ok_or_else(|| anyhow!("the program has no logical switch {switch}"))
}

/// Sets the datapath port of a logical port in the program. `None` unbinds the logical port.
fn place(program: &mut Program, (key, port): (DatapathKey, PortKey), number: Option<PortNo>) {
    if let Some(number) = number {
        program.set_port_role(number, PortRole::Vif { datapath: key, port });
    }
    let Some(datapath) = program.datapath_mut(key) else { return };
    if let Some(logical) = datapath.ports.get_mut(&port) {
        logical.location = number.map_or(PortLocation::Unbound, PortLocation::Local);
    }
    if let Some(flood) = datapath.multicast.get_mut(&PortKey::FLOOD) {
        flood.members.retain(|member| *member != port);
        flood.members.extend(number.map(|_| port));
    }
}

fn row_of(
    network: &Network,
    switch: &LogicalSwitch,
    port: &Port,
    attached: &Attached,
    state: Option<String>,
) -> AttachedRow {
    AttachedRow {
        port: port.name.clone(),
        pool: port.pool.as_deref().unwrap_or_default().to_owned(),
        logical_switch: switch.name.clone(),
        device: attached.device.clone(),
        owner: attached.owner.clone(),
        mac: port.mac.to_string(),
        addresses: port.addresses.iter().map(ToString::to_string).collect(),
        gateways: gateways(network, switch, port).iter().map(ToString::to_string).collect(),
        mtu: switch.mtu,
        state,
    }
}

/// The gateways of a port: for each IP network of the port, the address of one router in it.
fn gateways(network: &Network, switch: &LogicalSwitch, port: &Port) -> Vec<IpAddr> {
    let routers = network.logical_routers().iter().flat_map(|router| &router.ports);
    let here = routers.filter(|router| match router.link {
        RouterLink::Switch { switch: at, .. } => network[at].name == switch.name,
        RouterLink::Router { .. } => false,
    });
    let nets: Vec<_> = here.flat_map(|router| &router.addresses).collect();
    let gateway = |own: &network::IpNet| {
        nets.iter().map(|net| net.addr()).find(|gateway| own.contains(gateway))
    };
    port.addresses.iter().filter_map(gateway).collect()
}
