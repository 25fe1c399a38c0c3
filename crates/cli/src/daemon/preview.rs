//! Computes the effects of a reload on a host, without a running switch.

use super::no_such_host;
use super::reload::{PortSteps, changes, check_applicable, endpoint_changes};
use super::sandbox;
use crate::bridges::FlowFiles;
use crate::control::replies::ReloadChanges;
use crate::host_config::{self, HostConfig};
use crate::host_numbers::HostNumbers;
use crate::{Failure, bridges};
use datapath::config::{Config, TunnelConfig};
use network::Network;
use serde::Serialize;

/// A parsed network file, with its name.
pub struct NamedNetwork {
    /// The name of the file in errors.
    pub file: String,
    pub network: Network,
}

/// The command that must be run on a host to apply the new network file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// None: both files have the same content.
    None,
    /// `weft reload` applies the new file.
    Reload,
    /// `weft reload` would refuse the new file: `weft run` must be restarted with it.
    Restart,
    /// Only the new file has the host: start `weft run` there.
    Start,
    /// Only the old file has the host: stop `weft run` there.
    Stop,
}

/// The difference of two network files for one host.
#[derive(Debug, Serialize)]
pub struct HostPreview {
    pub host: String,
    pub step: Step,
    /// Why a reload is refused; `None` unless the step is [`Step::Restart`].
    pub reason: Option<String>,
    pub ports: ReloadChanges,
    pub tunnels: ReloadChanges,
    pub endpoints: ReloadChanges,
    /// Bridges, with their flow files.
    pub bridges: ReloadChanges,
}

impl HostPreview {
    /// Compares two networks for the host of this name. `flows` are the flow files of its bridges,
    /// in the old and in the new network. `is_same` is true if both network files have the same
    /// content.
    ///
    /// # Errors
    /// Neither network has the host, or a network cannot be compiled for it.
    pub fn new(
        (old, new): (&NamedNetwork, &NamedNetwork),
        flows: (&FlowFiles, &FlowFiles),
        host: &str,
        is_same: bool,
    ) -> Result<Self, Failure> {
        // If the file does not set outer checksums, each host chooses them by its NIC. That choice
        // is unknown without the host, so both are compared, and a difference in either one counts.
        let with = Self::compare((old, new), flows, host, true)?;
        let without = Self::compare((old, new), flows, host, false)?;
        let mut preview = if with.tunnels.any() || with.endpoints.any() { with } else { without };
        if preview.step == Step::None && (!is_same || preview.bridges.any()) {
            preview.step = Step::Reload;
        }
        Ok(preview)
    }

    /// Compares both networks with outer checksums on or off. Sets the step to [`Step::None`] if a
    /// reload would not be refused.
    fn compare(
        (old, new): (&NamedNetwork, &NamedNetwork),
        flows: (&FlowFiles, &FlowFiles),
        host: &str,
        checksum: bool,
    ) -> Result<Self, Failure> {
        let mut numbers = HostNumbers::default();
        let before = compiled(old, flows.0, host, checksum, &mut numbers)?;
        let after = compiled(new, flows.1, host, checksum, &mut numbers)?;
        let (before, after) = match (before, after) {
            (Some(before), Some(after)) => (before, after),
            (None, Some(_)) => return Ok(Self::only(host, Step::Start)),
            (Some(_), None) => return Ok(Self::only(host, Step::Stop)),
            (None, None) => {
                return Err(Failure::Input(no_such_host(&new.network, host, &new.file)));
            }
        };
        let (was, now) = (&before.config, &after.config);
        let refused = check_applicable((was, Some(&old.network)), (now, Some(&new.network)));
        let reason = refused.err().map(|why| why.to_string()).or_else(|| {
            let further = sandbox::further_needed(was, now)?;
            Some(format!("the new file needs {further}, which the daemon gave up at its start"))
        });
        Ok(Self {
            step: if reason.is_some() { Step::Restart } else { Step::None },
            reason,
            ports: PortSteps::between(was, now).ports(),
            tunnels: changes(&tunnels(was), &tunnels(now), |(name, _)| name.clone()),
            endpoints: endpoint_changes(was, now),
            bridges: changes(
                &bridge_texts(&before, flows.0),
                &bridge_texts(&after, flows.1),
                |(name, _)| name.clone(),
            ),
            ..Self::only(host, Step::None)
        })
    }

    fn only(host: &str, step: Step) -> Self {
        let none = ReloadChanges::default;
        let host = host.to_owned();
        let (ports, tunnels, endpoints, bridges) = (none(), none(), none(), none());
        Self { host, step, reason: None, ports, tunnels, endpoints, bridges }
    }

    /// The ports, tunnels and end points whose traffic is interrupted: while their device or socket
    /// is opened again, or permanently.
    pub fn interrupted(&self) -> Vec<String> {
        let of = |what: &str, changes: &ReloadChanges| -> Vec<String> {
            let names = changes.changed.iter().chain(&changes.removed);
            names.map(|name| format!("{what} {name}")).collect()
        };
        [of("port", &self.ports), of("tunnel", &self.tunnels), of("end point", &self.endpoints)]
            .concat()
    }
}

/// The configuration of a host; `None` if the network does not have it.
fn compiled(
    NamedNetwork { file, network }: &NamedNetwork,
    flows: &FlowFiles,
    host: &str,
    checksum: bool,
    numbers: &mut HostNumbers,
) -> Result<Option<HostConfig>, Failure> {
    let Some(host) = network.host(host) else { return Ok(None) };
    let mut built = host_config::build(network, host, file, checksum, numbers, |_| None)
        .map_err(Failure::Input)?;
    bridges::load(&mut built.bridges, flows, &Default::default(), &mut built.program)?;
    Ok(Some(built))
}

/// The tunnels of a host with their names.
fn tunnels(config: &Config) -> Vec<(String, TunnelConfig)> {
    let name = |tunnel: &TunnelConfig| match tunnel.group {
        None => tunnel.spec.tunnel.name().to_owned(),
        Some(group) => format!("{} group {group}", tunnel.spec.tunnel.name()),
    };
    config.underlay.tunnels.iter().map(|tunnel| (name(tunnel), *tunnel)).collect()
}

/// The bridges of a host by name, with the texts of their flow files.
fn bridge_texts<'a>(built: &HostConfig, flows: &'a FlowFiles) -> Vec<(String, Option<&'a str>)> {
    let text = |name: &String| flows.get(name).map(|file| file.text.as_str());
    built.bridges.keys().map(|name| (name.clone(), text(name))).collect()
}
