//! Applies another network file while the switch runs.
//!
//! The reload first reads and checks the whole file, and refuses changes that need a restart. Then
//! it adds new tunnels, end points and ports, publishes the program, and waits until all megaflows
//! of the old program have been checked or deleted. Last it removes ports, tunnels and end points
//! that the file no longer has. In this order, no megaflow of either program refers to a port or
//! end point that does not exist. Ports and end points that are in both files keep their numbers,
//! sockets, devices and counters.

use super::{Daemon, Deployment, sandbox, saved};
use crate::Failure;
use crate::bridges::FlowFiles;
use crate::control::replies::{ReloadChanges, ReloadReply};
use anyhow::{Context, anyhow};
use datapath::config::{Config, EndpointConfig, PortConfig, TunnelConfig, Underlay};
use flow::{DatapathKey, PortKey};
use network::Network;
use pipeline::{DatapathKind, FdbKey, FdbPort, Program, StateQuery, TunnelInport};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::MacAddr;

/// The reloads of a daemon. Only one is applied at a time.
#[derive(Default)]
pub(super) struct Reloads(Mutex<ReloadState>);

#[derive(Default)]
pub(super) struct ReloadState {
    /// The number of reloads that were applied, or that failed while they were applied.
    applied: u64,
    /// The daemon is stopping: no further reload is applied.
    is_closed: bool,
    /// True if the last change of the underlay succeeded. False at the start, so that the first
    /// change sets the whole underlay.
    pub(super) has_underlay: bool,
    /// For each pool, the port to which a device was attached last.
    pub(super) last_of_pool: HashMap<String, String>,
}

impl Reloads {
    /// Waits until the current reload is applied, and prevents further ones. A reload while the
    /// daemon stops could leave devices behind.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    fn lock(&self) -> MutexGuard<'_, ReloadState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Daemon {
    /// Locks out reloads and other changes of the program.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub(super) fn lock_reloads(&self) -> Result<impl Sized + use<'_>, Failure> {
        self.lock_reload_state()
    }

    /// As [`Self::lock_reloads`].
    ///
    /// # Errors
    /// The daemon is stopping.
    pub(super) fn lock_reload_state(&self) -> Result<MutexGuard<'_, ReloadState>, Failure> {
        let state = self.reloads.lock();
        if state.is_closed {
            return Err(anyhow!("the daemon is stopping, and nothing has changed").into());
        }
        Ok(state)
    }

    /// Applies `file`.
    ///
    /// # Errors
    /// The file is invalid or needs a restart, or a socket cannot be opened: nothing has changed.
    pub(super) fn reload_from(&self, file: &Path) -> Result<ReloadReply, Failure> {
        if self.deployment().network.is_none() {
            let why = "this switch gets its network from OVN: change it there, or restart weft run \
                       with a network file";
            return Err(Failure::Input(anyhow!(why)));
        }
        loop {
            let applied = self.reloads.lock().applied;
            // Reads without the lock, because the file system may hang until the time limit.
            let network = self.reads.load(file)?;
            let flows = self.reads.load_flows(&network, file, &self.host)?;
            let mut state = self.reloads.lock();
            if state.is_closed {
                return Err(anyhow!("the daemon is stopping, and nothing has changed").into());
            }
            if state.applied == applied {
                state.applied += 1;
                return self.apply(file, (network, &flows), &mut state.has_underlay);
            }
            // Another reload was applied meanwhile. It may have read a newer file, so read again.
        }
    }

    /// Applies a network. The caller holds the lock of the reloads.
    fn apply(
        &self,
        file: &Path,
        network: (Network, &FlowFiles),
        has_underlay: &mut bool,
    ) -> Result<ReloadReply, Failure> {
        let old = self.deployment();
        let (new, program) =
            Deployment::new(network, file, &self.host, old.options(), old.leave())?;
        check_applicable(
            (&old.config, old.network.as_deref()),
            (&new.config, new.network.as_deref()),
        )
        .map_err(|why| {
            Failure::Input(anyhow!(
                "{why}; a running switch cannot change that, and nothing was changed: restart \
                 weft run with this file"
            ))
        })?;
        sandbox::require_for_reload(&new.config).map_err(Failure::Input)?;
        let steps = PortSteps::between(&old.config, &new.config);
        let old_program = self.switch.program();
        let datapaths = changes(&names_of(&old_program), &names_of(&program), |name| name.clone());
        let new = Arc::new(new);
        let generation = self.activate(&old, &new, program, &steps, has_underlay)?;
        self.note_timeouts(&new);
        let reloaded = ReloadReply {
            network: file.to_owned(),
            generation,
            ports: steps.ports(),
            endpoints: endpoint_changes(&old.config, &new.config),
            datapaths,
        };
        log(&reloaded);
        Ok(reloaded)
    }

    /// Replaces the running network by `new`. Returns the generation of its program.
    ///
    /// # Errors
    /// A socket cannot be opened: nothing has changed. Or the datapath has ended.
    fn activate(
        &self,
        old: &Deployment,
        new: &Arc<Deployment>,
        mut program: Program,
        steps: &PortSteps,
        has_underlay: &mut bool,
    ) -> Result<u64, Failure> {
        let old_program = self.switch.program();
        program.allocate_zones(old_program.zones());
        let is_same = old.config.underlay == new.config.underlay;
        let must_change = !is_same || !*has_underlay;
        // Set again once this change has succeeded.
        *has_underlay = false;
        if must_change {
            self.add_underlay(&old.config, &new.config)?;
        }
        self.add_ports(steps)?;
        self.forget_invalid_entries(&old_program, &program, new.network.as_deref());
        // Clients must find the names of ports before they see flows that use them.
        *self.deployment.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(new);
        self.datapath.set_punt_limit(new.config.punt_limit)?;
        self.datapath.set_upcall_cpu_percent(new.config.upcall_cpu_percent);
        if let Some(tracker) = self.datapath.tracker() {
            tracker.set_config(new.config.conntrack.clone());
            saved::save_names(tracker, &program, &new.config);
        }
        let generation = self.switch.publish(program.clone());
        // Health checks start after the program is published: their probes enter its switches.
        self.follow_health(new);
        // Again, for addresses learned between the first call and the new program.
        self.forget_invalid_entries(&old_program, &program, new.network.as_deref());
        // Outdated megaflows must be deleted before the ports and end points that they use.
        self.switch.enforce(generation)?;
        if let Some(tracker) = self.datapath.tracker() {
            // The next reload may assign these zones to other ports.
            tracker.flush_zones(&old_program.zones().freed(program.zones()));
        }
        if must_change {
            self.datapath.set_underlay(new.config.underlay.clone())?;
        }
        *has_underlay = true;
        for port in &steps.removed {
            self.datapath.remove_port(port.port)?;
        }
        Ok(generation)
    }

    /// Replaces the running network by a newer state of OVN's network.
    ///
    /// # Errors
    /// As for [`Self::activate`]; or the daemon is stopping.
    pub(super) fn install(&self, new: Deployment, program: Program) -> Result<u64, Failure> {
        let mut state = self.reloads.lock();
        if state.is_closed {
            return Err(anyhow!("the daemon is stopping, and nothing has changed").into());
        }
        let old = self.deployment();
        let steps = PortSteps::between(&old.config, &new.config);
        self.activate(&old, &Arc::new(new), program, &steps, &mut state.has_underlay)
    }

    /// Applies a change of the ports.
    ///
    /// # Errors
    /// As for [`Self::activate`].
    pub(super) fn activate_ports(
        &self,
        old: &Deployment,
        new: &Arc<Deployment>,
        program: Program,
        has_underlay: &mut bool,
    ) -> Result<u64, Failure> {
        let steps = PortSteps::between(&old.config, &new.config);
        self.activate(old, new, program, &steps, has_underlay)
    }

    /// Adds new tunnels and end points, and keeps the old ones for now.
    fn add_underlay(&self, old: &Config, new: &Config) -> Result<(), Failure> {
        let both = merged_underlay(&old.underlay, &new.underlay);
        if let Err(error) = self.datapath.set_underlay(both) {
            self.datapath.set_underlay(old.underlay.clone()).context(format!(
                "{error}; the tunnels of the running configuration are closed too: restart weft run"
            ))?;
            return Err(anyhow!("{error}; the running configuration is unchanged").into());
        }
        Ok(())
    }

    /// Adds new ports, and keeps the removed ones for now.
    fn add_ports(&self, steps: &PortSteps) -> Result<(), Failure> {
        for port in &steps.replaced {
            // The device of the old port must be closed before the new port can open it.
            self.datapath.remove_port(port.port)?;
        }
        for port in &steps.added {
            self.datapath.add_port(port.clone())?;
        }
        Ok(())
    }

    /// Forgets learned addresses that are wrong in the new program: the key of their logical port
    /// now belongs to another port, the port no longer learns, or the new file configures the MAC
    /// address.
    fn forget_invalid_entries(&self, old: &Program, new: &Program, network: Option<&Network>) {
        let moved = |key: DatapathKey, port: FdbPort| {
            let name = |program: &Program| {
                let datapath = program.datapath(key)?;
                let port = match port {
                    FdbPort::Logical(port) => datapath.ports.get(&port)?.name.clone(),
                    FdbPort::Port(port) => datapath.bridge_ports.get(&port)?.name.clone(),
                };
                Some((datapath.name.clone(), datapath.kind, port))
            };
            name(old) != name(new)
        };
        for (key, _) in self.switch.bindings() {
            if moved(key.datapath, FdbPort::Logical(key.port)) {
                self.switch.forget(&StateQuery::MacBinding(key));
            }
        }
        // Clients learned under a datapath key do not apply to another datapath with this key.
        let is_other = |key: DatapathKey| {
            let name = |program: &Program| {
                program.datapath(key).map(|datapath| (datapath.name.clone(), datapath.kind))
            };
            name(old) != name(new)
        };
        for (key, _) in self.switch.affinities() {
            if is_other(key.datapath) {
                self.switch.forget(&StateQuery::Affinity(key));
            }
        }
        for (key, _) in self.switch.next_hops() {
            if is_other(key.datapath) {
                self.switch.forget(&StateQuery::NextHop(key));
            }
        }
        let learning = learning_ports(new);
        let switches = network.map(Network::logical_switches).unwrap_or_default();
        let known: HashSet<(&str, MacAddr)> = switches
            .iter()
            .flat_map(|switch| switch.ports.iter().map(|port| (switch.name.as_str(), port.mac)))
            .collect();
        let is_known = |key: &FdbKey| {
            new.datapath(key.datapath).is_some_and(|d| known.contains(&(d.name.as_str(), key.mac)))
        };
        for (key, place) in self.switch.fdb() {
            let port = match place {
                FdbPort::Logical(port) => Some(port),
                FdbPort::Port(_) => None,
            };
            // Every port of a provider bridge learns.
            let in_provider =
                new.datapath(key.datapath).is_some_and(|it| it.kind == DatapathKind::Provider);
            let learns =
                in_provider || port.is_none_or(|port| learning.contains(&(key.datapath, port)));
            if !learns || is_known(&key) || moved(key.datapath, place) {
                self.switch.forget(&StateQuery::Fdb(key));
            }
        }
    }
}

/// The logical ports behind which the switch learns MAC addresses.
fn learning_ports(program: &Program) -> HashSet<(DatapathKey, PortKey)> {
    let mut ports = HashSet::new();
    for (key, datapath) in program.datapaths() {
        let Some(unknown) = datapath.multicast.get(&PortKey::UNKNOWN) else { continue };
        ports.extend(unknown.members.iter().map(|&port| (key, port)));
        match &datapath.tunnel_inport {
            TunnelInport::None => {}
            TunnelInport::Shared(port) => {
                ports.insert((key, *port));
            }
            TunnelInport::ByHost(hosts) => ports.extend(hosts.values().map(|&port| (key, port))),
        }
    }
    ports
}

/// Refuses changes that need a restart: another uplink, underlay address or size of the connection
/// table. Takes both networks, each with the configuration compiled from it for one host. The error
/// names the difference.
pub(super) fn check_applicable(
    (old, old_network): (&Config, Option<&Network>),
    (new, new_network): (&Config, Option<&Network>),
) -> anyhow::Result<()> {
    let Config { host, uplink, .. } = old;
    if *uplink != new.uplink {
        let now = &new.uplink;
        return Err(anyhow!("the uplink of {host} is {uplink}, but {now} in the file"));
    }
    let [was, now] = [old, new].map(|config| config.conntrack.limits.connections);
    if was != now {
        return Err(anyhow!("the limit of connections of {host} is {was}, but {now} in the file"));
    }
    let address = |network: Option<&Network>| {
        let network = network?;
        network.host(host).and_then(|host| host.underlay(network.underlay_family()))
    };
    // Without tunnels no socket is bound to the address, so it may change.
    if let (Some(was), now) = (address(old_network), address(new_network))
        && now != Some(was)
        && !old.underlay.tunnels.is_empty()
    {
        let now = now.map_or("none".to_owned(), |now| now.to_string());
        return Err(anyhow!("the underlay address of {host} is {was}, but {now} in the file"));
    }
    Ok(())
}

/// The union of both underlays. Two tunnels of one type cannot be open at once, so a changed tunnel
/// is included only in its new form. A multicast group can be open together with its tunnel.
fn merged_underlay(old: &Underlay, new: &Underlay) -> Underlay {
    let mut both = new.clone();
    let kept: Vec<_> = old.links.iter().filter(|link| !new.links.contains(link)).copied().collect();
    both.links.extend(kept);
    both.tagged_mtu_bytes = both.tagged_mtu_bytes.max(old.tagged_mtu_bytes);
    let kept: Vec<_> = old
        .tunnels
        .iter()
        .filter(|tunnel| {
            let socket = |tunnel: &TunnelConfig| (tunnel.port, tunnel.group);
            new.tunnels.iter().all(|other| socket(other) != socket(tunnel))
        })
        .copied()
        .collect();
    both.tunnels.extend(kept);
    let here: HashSet<_> = new.endpoints.iter().map(|endpoint| endpoint.id).collect();
    let fits = |endpoint: &&EndpointConfig| {
        !here.contains(&endpoint.id)
            && both.tunnels.iter().any(|tunnel| tunnel.spec == endpoint.spec)
    };
    let kept: Vec<_> = old.endpoints.iter().filter(fits).copied().collect();
    both.endpoints.extend(kept);
    both
}

/// The ports that a reload removes and adds.
#[derive(Debug, Default)]
pub(super) struct PortSteps {
    /// Removed first, because a new port needs their number or device.
    replaced: Vec<PortConfig>,
    /// Added, including the new forms of replaced ports.
    added: Vec<PortConfig>,
    /// Removed last.
    removed: Vec<PortConfig>,
    /// How many ports are the same in both files.
    kept: usize,
}

impl PortSteps {
    pub(super) fn between(old: &Config, new: &Config) -> Self {
        let before: HashMap<_, _> = old.ports.iter().map(|port| (port.port, port)).collect();
        let after: HashMap<_, _> = new.ports.iter().map(|port| (port.port, port)).collect();
        let mut steps = Self::default();
        for port in &new.ports {
            if before.get(&port.port) == Some(&port) {
                steps.kept += 1;
            } else {
                steps.added.push(port.clone());
            }
        }
        let added_devices: HashSet<_> = steps.added.iter().map(device).collect();
        for port in &old.ports {
            if after.get(&port.port) == Some(&port) {
                continue;
            }
            if after.contains_key(&port.port) || added_devices.contains(&device(port)) {
                steps.replaced.push(port.clone());
            } else {
                steps.removed.push(port.clone());
            }
        }
        steps
    }

    pub(super) fn ports(&self) -> ReloadChanges {
        let names = |ports: &[PortConfig]| -> HashSet<String> {
            ports.iter().map(|port| port.name.clone()).collect()
        };
        let (added, mut gone) = (names(&self.added), names(&self.replaced));
        gone.extend(names(&self.removed));
        ReloadChanges {
            added: sorted(added.difference(&gone)),
            changed: sorted(added.intersection(&gone)),
            removed: sorted(gone.difference(&added)),
            kept: self.kept,
        }
    }
}

/// The device of a port. Two ports cannot open the same device at once.
fn device(port: &PortConfig) -> String {
    port.device.to_string()
}

fn sorted<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut names: Vec<_> = names.cloned().collect();
    names.sort_unstable();
    names
}

pub(super) fn endpoint_changes(old: &Config, new: &Config) -> ReloadChanges {
    let name =
        |endpoint: &EndpointConfig| format!("{} {}", endpoint.spec.tunnel.name(), endpoint.remote);
    changes(&old.underlay.endpoints, &new.underlay.endpoints, |endpoint| name(endpoint))
}

/// The names of the logical switches and routers of a program.
fn names_of(program: &Program) -> Vec<String> {
    program.datapaths().map(|(_, datapath)| datapath.name.clone()).collect()
}

/// Compares two lists of items that have unique names.
pub(super) fn changes<T: PartialEq>(
    old: &[T],
    new: &[T],
    name: impl Fn(&T) -> String,
) -> ReloadChanges {
    let before: BTreeMap<_, _> = old.iter().map(|item| (name(item), item)).collect();
    let after: BTreeMap<_, _> = new.iter().map(|item| (name(item), item)).collect();
    ReloadChanges::between(&before, &after)
}

fn log(reloaded: &ReloadReply) {
    let ReloadReply { network, generation, ports, endpoints, .. } = reloaded;
    messages::log!(
        RELOADED,
        generation,
        "reloaded {}: ports: {}; end points: {}",
        network.display(),
        ports.summary(),
        endpoints.summary()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_config;
    use crate::host_numbers::HostNumbers;
    use network::Network;

    const HOSTS: &str = "tunnel = \"geneve\"\n\
        [[host]]\nname = \"h1\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.1\"]\n\
        [[host]]\nname = \"h2\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.2\"]\n\
        [[host]]\nname = \"h3\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.3\"]\n";

    /// The configuration of host h1 for ports written as `SWITCH/PORT@HOST=DEVICE`.
    fn config(numbers: &mut HostNumbers, options: &str, ports: &[&str]) -> Config {
        let mut text = format!("{options}\n{HOSTS}");
        let mut last = "";
        let mut vni = 0;
        for (number, port) in (1..).zip(ports) {
            let (switch, rest) = port.split_once('/').unwrap();
            let (name, rest) = rest.split_once('@').unwrap();
            let (host, device) = rest.split_once('=').unwrap();
            if switch != last {
                (last, vni) = (switch, vni + 1);
                text += &format!("[[logical_switch]]\nname = \"{switch}\"\nvni = {vni}\n");
            }
            text += &format!(
                "[[logical_switch.port]]\nname = \"{name}\"\nhost = \"{host}\"\n\
                 mac = \"02:00:00:00:00:{number:02x}\"\ndevice = {{ tap = \"{device}\" }}\n"
            );
        }
        let network = Network::parse(&text, "n.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let host = network.host("h1").unwrap();
        host_config::build(&network, host, "n.toml", true, numbers, |_| None).unwrap().config
    }

    #[test]
    fn unchanged_ports_are_kept_and_devices_are_freed_before_reuse() {
        let mut numbers = HostNumbers::default();
        let old =
            config(&mut numbers, "", &["a/p1@h1=t1", "a/p2@h1=t2", "b/p3@h1=t3", "b/p4@h1=t4"]);
        // p2 is removed, p3 gets another device, p5 replaces p4 and uses its device, and p0 is
        // inserted before p1.
        let new =
            config(&mut numbers, "", &["c/p0@h1=t0", "a/p1@h1=t1", "b/p3@h1=t9", "b/p5@h1=t4"]);
        let steps = PortSteps::between(&old, &new);
        let names = |ports: &[PortConfig]| -> Vec<String> {
            ports.iter().map(|port| port.name.clone()).collect()
        };
        assert_eq!(names(&steps.replaced), ["p3", "p4"]);
        assert_eq!(names(&steps.added), ["p0", "p3", "p5"]);
        assert_eq!(names(&steps.removed), ["p2"]);
        let changes = steps.ports();
        assert_eq!(changes.added, ["p0", "p5"]);
        assert_eq!(changes.changed, ["p3"]);
        assert_eq!(changes.removed, ["p2", "p4"]);
        assert_eq!(changes.kept, 1);
    }

    #[test]
    fn port_is_replaced_when_it_moves_to_another_switch() {
        let mut numbers = HostNumbers::default();
        let old = config(&mut numbers, "", &["a/p1@h1=t1", "b/p2@h1=t2"]);
        let new = config(&mut numbers, "", &["a/p2@h1=t2", "b/p1@h1=t1"]);
        let before: HashSet<_> = old.ports.iter().map(|port| port.port).collect();
        assert!(new.ports.iter().all(|port| !before.contains(&port.port)));
        let steps = PortSteps::between(&old, &new);
        assert_eq!((steps.replaced.len(), steps.added.len(), steps.removed.len()), (2, 2, 0));
        assert_eq!(steps.ports().changed, ["p1", "p2"]);
    }

    #[test]
    fn old_and_new_tunnels_coexist_unless_they_have_the_same_type() {
        let mut numbers = HostNumbers::default();
        let ports = ["a/p1@h1=t1", "a/p2@h2=t2"];
        let old = config(&mut numbers, "", &ports);
        let new = config(&mut numbers, "", &["a/p1@h1=t1", "a/p3@h3=t3"]);
        let between = merged_underlay(&old.underlay, &new.underlay);
        assert_eq!((between.tunnels.len(), between.endpoints.len()), (1, 2));
        assert_eq!(endpoint_changes(&old, &new).added, ["geneve 192.0.2.3"]);
        assert_eq!(endpoint_changes(&old, &new).removed, ["geneve 192.0.2.2"]);

        let other = config(&mut numbers, "tunnel_options.geneve.udp_port = 6082", &ports);
        let between = merged_underlay(&old.underlay, &other.underlay);
        assert_eq!(between, other.underlay, "both would be Geneve");
        assert_eq!(endpoint_changes(&old, &other).changed, ["geneve 192.0.2.2"]);
    }
}
