//! What a reload would do on a host, found without a running switch.

use super::no_such_host;
use super::reload::{PortSteps, changes, check_applicable, endpoint_changes};
use crate::bridges::FlowFiles;
use crate::control::replies::ReloadChanges;
use crate::host_config::{self, HostConfig};
use crate::host_numbers::HostNumbers;
use crate::{Failure, bridges};
use datapath::config::{Config, TunnelConfig};
use network::Network;
use serde::Serialize;

/// A network file that was read, with its name.
pub struct NamedNetwork {
    /// The name of the file in errors.
    pub file: String,
    pub network: Network,
}

/// What must be done on a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Nothing that the host has differs.
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
    /// in the old and in the new network.
    ///
    /// # Errors
    /// Neither network has the host, or one does not fit it.
    pub fn new(
        (old, new): (&NamedNetwork, &NamedNetwork),
        flows: (&FlowFiles, &FlowFiles),
        host: &str,
    ) -> Result<Self, Failure> {
        let mut numbers = HostNumbers::default();
        let before = compiled(old, flows.0, host, &mut numbers)?;
        let after = compiled(new, flows.1, host, &mut numbers)?;
        let (before, after) = match (before, after) {
            (Some(before), Some(after)) => (before, after),
            (None, Some(_)) => return Ok(Self::only(host, Step::Start)),
            (Some(_), None) => return Ok(Self::only(host, Step::Stop)),
            (None, None) => {
                return Err(Failure::Input(no_such_host(&new.network, host, &new.file)));
            }
        };
        let (was, now) = (&before.config, &after.config);
        let mut preview = Self {
            ports: PortSteps::between(was, now).ports(),
            tunnels: changes(&tunnels(was), &tunnels(now), |(name, _)| name.clone()),
            endpoints: endpoint_changes(was, now),
            bridges: changes(
                &bridge_texts(&before, flows.0),
                &bridge_texts(&after, flows.1),
                |(name, _)| name.clone(),
            ),
            ..Self::only(host, Step::None)
        };
        let refused = check_applicable((was, Some(&old.network)), (now, Some(&new.network)));
        if let Err(refused) = refused {
            preview.step = Step::Restart;
            preview.reason = Some(refused.to_string());
        } else if differs(was, now) || preview.bridges.any() {
            preview.step = Step::Reload;
        }
        Ok(preview)
    }

    fn only(host: &str, step: Step) -> Self {
        let none = ReloadChanges::default;
        let host = host.to_owned();
        let (ports, tunnels, endpoints, bridges) = (none(), none(), none(), none());
        Self { host, step, reason: None, ports, tunnels, endpoints, bridges }
    }

    /// The ports whose traffic stops: for the moment in which their device is opened again, or for
    /// good.
    pub fn interrupted(&self) -> impl Iterator<Item = &String> {
        self.ports.changed.iter().chain(&self.ports.removed)
    }
}

/// The configuration of a host; `None` if the network does not have it.
fn compiled(
    NamedNetwork { file, network }: &NamedNetwork,
    flows: &FlowFiles,
    host: &str,
    numbers: &mut HostNumbers,
) -> Result<Option<HostConfig>, Failure> {
    let Some(host) = network.host(host) else { return Ok(None) };
    // The outer checksum follows from the uplink's NIC where the file has none: the same before
    // and after.
    let mut built =
        host_config::build(network, host, file, true, numbers, |_| None).map_err(Failure::Input)?;
    bridges::load(&mut built.bridges, flows, &Default::default(), &mut built.program)?;
    Ok(Some(built))
}

/// Whether anything differs that comes from the network file.
fn differs(was: &Config, now: &Config) -> bool {
    was.ports != now.ports || was.underlay != now.underlay || was.punt_limit != now.punt_limit
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
