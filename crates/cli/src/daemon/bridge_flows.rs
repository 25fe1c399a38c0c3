//! Answers the requests about bridges: prints and changes their flows, and removes flows whose
//! timeout has passed.

use super::deployment::{Deployment, list_names};
use super::{Daemon, saved};
use crate::Failure;
use crate::bridges::{HostBridge, HostBridges, now_ms};
use crate::control::replies::{BridgePortRow, FlowLine, FlowsChanged, PacketSent};
use crate::control::{Connection, FlowChange};
use anyhow::{Context, anyhow};
use ofctl::{BridgeError, Problem};
use serde_json::json;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often flows are checked for passed timeouts. Timeouts are in seconds.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Wakes the thread that removes flows whose timeout has passed.
#[derive(Default)]
pub(super) struct ExpiryTimer {
    has_timeouts: Mutex<bool>,
    changed: Condvar,
}

impl ExpiryTimer {
    /// Sets whether any flow has a timeout, and wakes the thread.
    fn set(&self, has_timeouts: bool) {
        *lock(&self.has_timeouts) = has_timeouts;
        self.changed.notify_all();
    }

    /// Waits until some flow has a timeout.
    fn wait(&self) {
        let guard = lock(&self.has_timeouts);
        let waited = self.changed.wait_while(guard, |has_timeouts| !*has_timeouts);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Starts the thread that removes flows whose timeout has passed. It sleeps while no flow has a
/// timeout.
pub(super) fn start_expiry(daemon: &Arc<Daemon>) -> io::Result<()> {
    let (timer, weak) = (Arc::clone(&daemon.expiry), Arc::downgrade(daemon));
    daemon.note_timeouts(&daemon.deployment());
    let run = move || {
        loop {
            timer.wait();
            std::thread::sleep(EXPIRY_INTERVAL);
            let Some(daemon) = weak.upgrade() else { return };
            // Fails only if the daemon is stopping or the datapath has ended.
            if daemon.expire_flows().is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("timeouts".to_owned()).spawn(run).map(drop)
}

impl Daemon {
    /// Streams the flows of a bridge.
    pub(super) fn bridge_flows(
        &self,
        bridge: &str,
        (selector, statistics): (&str, bool),
        client: &mut Connection,
    ) -> io::Result<()> {
        let deployment = self.deployment();
        let lines = {
            let bridges = lock(&deployment.bridges);
            let found = find(&bridges, bridge, &self.host).and_then(|found| {
                let selector = found.flows.selector(selector, false);
                Ok((found, selector.map_err(|problem| problem_text(&problem))?))
            });
            match found {
                Ok((found, selector)) => found.flows.dump_flows(&selector, statistics, now_ms()),
                Err(error) => return client.reject(&error),
            }
        };
        client.ok(&json!({}))?;
        lines.into_iter().try_for_each(|line| client.row(&FlowLine { line }))?;
        client.end(&json!({}))
    }

    /// Answers with the counters of the ports of a bridge.
    pub(super) fn bridge_ports(
        &self,
        bridge: &str,
        port: Option<&str>,
        client: &mut Connection,
    ) -> io::Result<()> {
        let deployment = self.deployment();
        let ports: Vec<_> = {
            let bridges = lock(&deployment.bridges);
            match find(&bridges, bridge, &self.host) {
                Ok(found) => found.flows.bridge_ports().map(|(n, p)| (n, p.clone())).collect(),
                Err(error) => return client.reject(&error),
            }
        };
        let is_selected = |number: u32, name: &str| {
            port.is_none_or(|port| port == name || port.parse() == Ok(number))
        };
        let selected: Vec<_> =
            ports.iter().filter(|(n, port)| is_selected(n.0, &port.name)).collect();
        if let (Some(port), true) = (port, selected.is_empty()) {
            let known: Vec<_> = ports.iter().map(|(_, port)| port.name.as_str()).collect();
            let known = list_names(&known);
            return client.reject(&format!(
                "bridge {bridge} has no port `{port}`: use a number, or one of {known}"
            ));
        }
        let snapshot = match self.datapath.snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => return client.fail(&error.to_string()),
        };
        let row = |(number, port): &(flow::PortNo, pipeline::BridgePort)| {
            let stats = snapshot.ports.iter().find(|stats| stats.port == port.number.0)?;
            let (name, drops) = (port.name.clone(), stats.drops.values().sum());
            Some(BridgePortRow { number: number.0, name, rx: stats.rx, tx: stats.tx, drops })
        };
        client.ok(&selected.into_iter().filter_map(row).collect::<Vec<_>>())
    }

    /// Changes the flows of a bridge. The megaflows that the change does not affect stay.
    ///
    /// # Errors
    /// The text is invalid, and nothing has changed; or the datapath has ended.
    pub(super) fn change_flows(
        &self,
        bridge: &str,
        change: FlowChange,
        text: &str,
        source: &str,
    ) -> Result<FlowsChanged, Failure> {
        let _reloads = self.lock_reloads()?;
        let deployment = self.deployment();
        let mut bridges = lock(&deployment.bridges);
        find(&bridges, bridge, &self.host).map_err(|error| Failure::Input(anyhow!(error)))?;
        let found = bridges.get_mut(bridge).context("the bridge is gone")?;
        let now = now_ms();
        let changed = match change.command() {
            Some(command) => found.flows.apply_line(command, text, source, now),
            None if change == FlowChange::Replace => {
                found.flows.replace(text, source, now).map(drop)
            }
            None => found.flows.apply(text, source, now).map(drop),
        };
        changed.map_err(|error| Failure::Input(anyhow!(change_error(&error, change))))?;
        let generation = self.publish_bridge(found, &deployment)?;
        let flows = found.flows.len();
        drop(bridges);
        self.note_timeouts(&deployment);
        Ok(FlowsChanged { flows, generation })
    }

    /// Executes actions on a packet as if it had arrived by a port of a bridge.
    ///
    /// # Errors
    /// The text is invalid, the port does not exist, or the datapath has ended.
    pub(super) fn packet_out(&self, bridge: &str, text: &str) -> Result<PacketSent, Failure> {
        let _reloads = self.lock_reloads()?;
        let deployment = self.deployment();
        let mut bridges = lock(&deployment.bridges);
        find(&bridges, bridge, &self.host).map_err(|error| Failure::Input(anyhow!(error)))?;
        let found = bridges.get_mut(bridge).context("the bridge is gone")?;
        let parsed = found.flows.packet_out(text);
        let (packet, has_new_zones) = parsed
            .map_err(|error| Failure::Input(anyhow!(change_error(&error, FlowChange::Add))))?;
        if has_new_zones {
            self.publish_bridge(found, &deployment)?;
        }
        let number = packet.in_port;
        let port = found.flows.bridge_ports().find(|(bridge_port, _)| *bridge_port == number);
        let Some((_, port)) = port else {
            return Err(Failure::Input(anyhow!("bridge {bridge} has no port {number}")));
        };
        let port = port.number;
        drop(bridges);
        self.switch.execute_ops(&packet.frame, port, &packet.ops)?;
        Ok(PacketSent { bytes: packet.frame.len() })
    }

    /// Removes the flows whose timeout has passed.
    ///
    /// # Errors
    /// The daemon is stopping, or the datapath has ended.
    fn expire_flows(&self) -> Result<(), Failure> {
        let _reloads = self.lock_reloads()?;
        let deployment = self.deployment();
        let mut bridges = lock(&deployment.bridges);
        for bridge in bridges.values_mut().filter(|bridge| bridge.flows.has_timeouts()) {
            if bridge.flows.expire(now_ms()) > 0 {
                self.publish_bridge(bridge, &deployment)?;
            }
        }
        drop(bridges);
        self.note_timeouts(&deployment);
        Ok(())
    }

    /// Publishes a program with the present flows of a bridge. Returns the generation of the
    /// program.
    fn publish_bridge(&self, bridge: &HostBridge, deployment: &Deployment) -> Result<u64, Failure> {
        let old = self.switch.program();
        let mut program = old.clone();
        bridge.flows.update(&mut program, bridge.key);
        program.allocate_zones(old.zones());
        if let Some(tracker) = self.datapath.tracker() {
            saved::save_names(tracker, &program, &deployment.config);
        }
        let generation = self.switch.publish(program.clone());
        self.switch.enforce(generation)?;
        if let Some(tracker) = self.datapath.tracker() {
            tracker.flush_zones(&old.zones().freed(program.zones()));
        }
        Ok(generation)
    }

    /// Tells the expiry thread whether any flow of the bridges has a timeout.
    pub(super) fn note_timeouts(&self, deployment: &Deployment) {
        let bridges = lock(&deployment.bridges);
        self.expiry.set(bridges.values().any(|bridge| bridge.flows.has_timeouts()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bridge of this name.
///
/// # Errors
/// A message that lists the bridges of this host.
fn find<'b>(bridges: &'b HostBridges, name: &str, host: &str) -> Result<&'b HostBridge, String> {
    bridges.get(name).ok_or_else(|| {
        let known: Vec<_> = bridges.keys().map(String::as_str).collect();
        match known.is_empty() {
            true => format!(
                "no bridge `{name}` on host {host}: the network file has no [[bridge]] for it"
            ),
            false => {
                format!("no bridge `{name}` on host {host}: use one of {}", list_names(&known))
            }
        }
    })
}

/// The error text for a flow on the command line, which has only one line.
fn problem_text(problem: &Problem) -> String {
    format!("column {}: {}", problem.column, problem.message)
}

/// Errors in a file name its lines. The error in a flow of the command line names only the column.
fn change_error(error: &BridgeError, change: FlowChange) -> String {
    match error {
        BridgeError::Problems(problems) if change.command().is_some() => {
            problems.problems.iter().map(problem_text).collect::<Vec<_>>().join("; ")
        }
        error => error.to_string(),
    }
}
