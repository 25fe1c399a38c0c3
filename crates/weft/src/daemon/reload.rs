//! Going over to another network file while the switch runs.
//!
//! First everything is looked at; what cannot be applied to a running daemon is refused before anything is changed. Then, in
//! this order: new tunnels and end points, new ports, the program, the megaflows of the old one, and last the removal of what is
//! not there any more. So no decision of either program leads to something that does not exist. Ports and end points that stay keep their numbers, sockets,
//! devices and counters, and megaflows of theirs are only looked at again.

use super::{Daemon, Deployed};
use crate::Failure;
use crate::control::answers::{Changes, Reloaded};
use anyhow::{Context, anyhow};
use datapath::config::{Config, EndpointConfig, PortConfig, TunnelConfig, Underlay};
use flow::{DatapathKey, PortKey};
use network::Network;
use pipeline::{FdbKey, FdbPort, Program, StateQuery, TunnelInport};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use wire::MacAddr;

impl Daemon {
    /// Goes over to a network file.
    ///
    /// # Errors
    /// A file that is wrong, or cannot be applied: nothing has changed. Sockets that cannot be opened: nothing has changed.
    pub(super) fn reload_from(&self, file: &Path) -> Result<Reloaded, Failure> {
        let _one = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.in_use();
        let (new, program) = Deployed::load(file, &self.host, old.means(), old.numbers.clone())?;
        refuse(&old, &new).map_err(Failure::Input)?;
        let steps = Steps::between(&old.config, &new.config);
        let old_program = self.switch.program();
        let datapaths = changes(&names_of(&old_program), &names_of(&program), |name| name.clone());
        self.add(&old.config, &new.config, &steps)?;
        self.forget_moved(&old_program, &program, &new.network);
        let new = Arc::new(new);
        // Names before the flows that speak of them.
        *self.in_use.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&new);
        let generation = self.switch.publish(program.clone());
        // Once more, for what was learnt in between.
        self.forget_moved(&old_program, &program, &new.network);
        // What was decided by the old program goes before what it leads to.
        self.switch.revalidate()?;
        self.datapath.set_underlay(new.config.underlay.clone())?;
        for port in &steps.removed {
            self.datapath.remove_port(port.port)?;
        }
        let reloaded = Reloaded {
            network: file.to_owned(),
            generation,
            ports: steps.ports(),
            endpoints: endpoint_changes(&old.config, &new.config),
            datapaths,
        };
        say(&reloaded);
        Ok(reloaded)
    }

    /// Adds what is new, beside what was there.
    fn add(&self, old: &Config, new: &Config, steps: &Steps) -> Result<(), Failure> {
        let both = both(&old.underlay, &new.underlay);
        if let Err(error) = self.datapath.set_underlay(both) {
            // What was open before can be opened again.
            self.datapath.set_underlay(old.underlay.clone()).context(format!(
                "{error}; and what was there before the reload is not there any more"
            ))?;
            return Err(anyhow!("nothing was changed: {error}").into());
        }
        for port in &steps.replaced {
            // Its device has to be free before it can be opened anew.
            self.datapath.remove_port(port.port)?;
        }
        for port in &steps.added {
            self.datapath.add_port(port.clone())?;
        }
        Ok(())
    }

    /// Forgets what was learnt of logical ports whose keys stand for others now, or that teach no more, and of MAC addresses that
    /// are a guest's in the file now.
    fn forget_moved(&self, old: &Program, new: &Program, network: &Network) {
        let moved = |key: DatapathKey, port: Option<PortKey>| {
            let name = |program: &Program| {
                let datapath = program.datapath(key)?;
                let port = match port {
                    Some(port) => Some(datapath.ports.get(&port)?.name.clone()),
                    None => None,
                };
                Some((datapath.name.clone(), datapath.kind, port))
            };
            name(old) != name(new)
        };
        for (key, _) in self.switch.bindings() {
            if moved(key.datapath, Some(key.port)) {
                self.switch.forget(&StateQuery::MacBinding(key));
            }
        }
        let teaching = teaching(new);
        let known: HashSet<(&str, MacAddr)> = network
            .logical_switches()
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
            let teaches = port.is_none_or(|port| teaching.contains(&(key.datapath, port)));
            if !teaches || is_known(&key) || moved(key.datapath, port) {
                self.switch.forget(&StateQuery::Fdb(key));
            }
        }
    }
}

/// The logical ports behind which MAC addresses are learnt.
fn teaching(program: &Program) -> HashSet<(DatapathKey, PortKey)> {
    let mut teaching = HashSet::new();
    for (key, datapath) in program.datapaths() {
        let Some(unknown) = datapath.multicast.get(&PortKey::UNKNOWN) else { continue };
        teaching.extend(unknown.members.iter().map(|&port| (key, port)));
        match &datapath.tunnel_inport {
            TunnelInport::None => {}
            TunnelInport::Shared(port) => {
                teaching.insert((key, *port));
            }
            TunnelInport::ByHost(hosts) => teaching.extend(hosts.values().map(|&port| (key, port))),
        }
    }
    teaching
}

/// What a running daemon cannot go over to.
fn refuse(old: &Deployed, new: &Deployed) -> anyhow::Result<()> {
    let Config { host, uplink, .. } = &old.config;
    const RESTART: &str =
        "a running switch cannot change that: nothing was changed; restart `weft run`";
    if *uplink != new.config.uplink {
        let now = &new.config.uplink;
        return Err(anyhow!("the uplink of {host} is {uplink}, and {now} in the file; {RESTART}"));
    }
    let address = |deployed: &Deployed| {
        let network = &deployed.network;
        network.host(host).and_then(|host| host.underlay(network.underlay_family()))
    };
    // Without tunnels nothing has used it.
    if let (Some(was), now) = (address(old), address(new))
        && now != Some(was)
        && !old.config.underlay.tunnels.is_empty()
    {
        let now = now.map_or("none".to_owned(), |now| now.to_string());
        let what = format!("the underlay address of {host} is {was}, and {now} in the file");
        return Err(anyhow!("{what}; {RESTART}"));
    }
    Ok(())
}

/// Links, tunnels and end points of both, as far as they can be there at the same time: two local ends of one tunnel type cannot, a group beside them can.
fn both(old: &Underlay, new: &Underlay) -> Underlay {
    let mut both = new.clone();
    let stay: Vec<_> = old.links.iter().filter(|link| !new.links.contains(link)).copied().collect();
    both.links.extend(stay);
    both.tagged_mtu_bytes = both.tagged_mtu_bytes.max(old.tagged_mtu_bytes);
    let stay: Vec<_> = old
        .tunnels
        .iter()
        .filter(|tunnel| {
            let place = |tunnel: &TunnelConfig| (tunnel.port, tunnel.group);
            new.tunnels.iter().all(|other| place(other) != place(tunnel))
        })
        .copied()
        .collect();
    both.tunnels.extend(stay);
    let here: HashSet<_> = new.endpoints.iter().map(|endpoint| endpoint.id).collect();
    let fits = |endpoint: &&EndpointConfig| {
        !here.contains(&endpoint.id)
            && both.tunnels.iter().any(|tunnel| tunnel.spec == endpoint.spec)
    };
    let stay: Vec<_> = old.endpoints.iter().filter(fits).copied().collect();
    both.endpoints.extend(stay);
    both
}

/// What has to be done with ports.
#[derive(Debug, Default)]
struct Steps {
    /// Removed before others are added.
    replaced: Vec<PortConfig>,
    /// Added, those that replace others too.
    added: Vec<PortConfig>,
    /// Removed in the end.
    removed: Vec<PortConfig>,
    kept: usize,
}

impl Steps {
    fn between(old: &Config, new: &Config) -> Self {
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
        let wanted: HashSet<_> = steps.added.iter().map(device).collect();
        for port in &old.ports {
            if after.get(&port.port) == Some(&port) {
                continue;
            }
            if after.contains_key(&port.port) || wanted.contains(&device(port)) {
                steps.replaced.push(port.clone());
            } else {
                steps.removed.push(port.clone());
            }
        }
        steps
    }

    fn ports(&self) -> Changes {
        let names = |ports: &[PortConfig]| -> HashSet<String> {
            ports.iter().map(|port| port.name.clone()).collect()
        };
        let (added, mut gone) = (names(&self.added), names(&self.replaced));
        gone.extend(names(&self.removed));
        Changes {
            added: sorted(added.difference(&gone)),
            changed: sorted(added.intersection(&gone)),
            removed: sorted(gone.difference(&added)),
            kept: self.kept,
        }
    }
}

/// What two ports cannot both have.
fn device(port: &PortConfig) -> String {
    port.device.to_string()
}

fn sorted<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut names: Vec<_> = names.cloned().collect();
    names.sort();
    names
}

fn endpoint_changes(old: &Config, new: &Config) -> Changes {
    let name =
        |endpoint: &EndpointConfig| format!("{} {}", endpoint.spec.tunnel.name(), endpoint.remote);
    changes(&old.underlay.endpoints, &new.underlay.endpoints, |endpoint| name(endpoint))
}

/// The names of the logical switches and routers of a program.
fn names_of(program: &Program) -> Vec<String> {
    program.datapaths().map(|(_, datapath)| datapath.name.clone()).collect()
}

/// What has become of things that have names.
fn changes<T: PartialEq>(old: &[T], new: &[T], name: impl Fn(&T) -> String) -> Changes {
    let before: HashMap<String, &T> = old.iter().map(|thing| (name(thing), thing)).collect();
    let after: HashMap<String, &T> = new.iter().map(|thing| (name(thing), thing)).collect();
    let only = |here: &HashMap<String, &T>, there: &HashMap<String, &T>| {
        sorted(here.keys().filter(|name| !there.contains_key(*name)))
    };
    let changed =
        before.iter().filter(|(name, thing)| after.get(*name).is_some_and(|now| now != *thing));
    let changed = sorted(changed.map(|(name, _)| name));
    let (added, removed) = (only(&after, &before), only(&before, &after));
    let kept = after.len() - added.len() - changed.len();
    Changes { added, changed, removed, kept }
}

fn say(reloaded: &Reloaded) {
    let Reloaded { network, generation, ports, endpoints, .. } = reloaded;
    tracing::info!(
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
    use crate::numbers::Numbers;
    use crate::plan;
    use network::Network;

    const HOSTS: &str = "tunnel = \"geneve\"\n\
        [[host]]\nname = \"h1\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.1\"]\n\
        [[host]]\nname = \"h2\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.2\"]\n\
        [[host]]\nname = \"h3\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.3\"]\n";

    /// `SWITCH/PORT@HOST=DEVICE` each.
    fn config(numbers: &mut Numbers, options: &str, ports: &[&str]) -> Config {
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
        plan::plan(&network, network.host("h1").unwrap(), "n.toml", true, numbers).unwrap().config
    }

    #[test]
    fn ports_that_stay_are_not_touched_and_devices_are_free_before_others_want_them() {
        let mut numbers = Numbers::default();
        let old =
            config(&mut numbers, "", &["a/p1@h1=t1", "a/p2@h1=t2", "b/p3@h1=t3", "b/p4@h1=t4"]);
        // p2 is gone, p3 has another device, p4's device is p5's now, and p1 has more ports before it.
        let new =
            config(&mut numbers, "", &["c/p0@h1=t0", "a/p1@h1=t1", "b/p3@h1=t9", "b/p5@h1=t4"]);
        let steps = Steps::between(&old, &new);
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
    fn port_in_another_switch_is_another_port() {
        let mut numbers = Numbers::default();
        let old = config(&mut numbers, "", &["a/p1@h1=t1", "b/p2@h1=t2"]);
        let new = config(&mut numbers, "", &["a/p2@h1=t2", "b/p1@h1=t1"]);
        let before: HashSet<_> = old.ports.iter().map(|port| port.port).collect();
        assert!(new.ports.iter().all(|port| !before.contains(&port.port)));
        let steps = Steps::between(&old, &new);
        assert_eq!((steps.replaced.len(), steps.added.len(), steps.removed.len()), (2, 2, 0));
        assert_eq!(steps.ports().changed, ["p1", "p2"]);
    }

    #[test]
    fn tunnels_of_both_are_there_in_between_unless_they_are_of_one_type() {
        let mut numbers = Numbers::default();
        let ports = ["a/p1@h1=t1", "a/p2@h2=t2"];
        let old = config(&mut numbers, "", &ports);
        let new = config(&mut numbers, "", &["a/p1@h1=t1", "a/p3@h3=t3"]);
        let between = both(&old.underlay, &new.underlay);
        assert_eq!((between.tunnels.len(), between.endpoints.len()), (1, 2));
        assert_eq!(endpoint_changes(&old, &new).added, ["geneve 192.0.2.3"]);
        assert_eq!(endpoint_changes(&old, &new).removed, ["geneve 192.0.2.2"]);

        let other = config(&mut numbers, "tunnel_options.geneve.udp_port = 6082", &ports);
        let between = both(&old.underlay, &other.underlay);
        assert_eq!(between, other.underlay, "both would be Geneve");
        assert_eq!(endpoint_changes(&old, &other).changed, ["geneve 192.0.2.2"]);
    }
}
