//! [`UnsetHost`]: a host that lacks settings.

use crate::local::{DeviceDefaults, LocalPorts, Numbers};
use crate::settings;
use crate::tables::{OpenVswitch, Text};
use crate::writes;
use ovsdb::{Replica, Transaction};
use std::time::Instant;

/// The MTU of guests, in bytes, until the tunnels are known. No device is created with it.
const MTU_BYTES: u16 = 1500;

/// A host that cannot join a deployment because the local database lacks its settings. Its bridges
/// and ports are not installed. Tools can write them, and do not wait for the switch.
#[derive(Debug, Default)]
pub struct UnsetHost {
    numbers: Numbers,
    ports: LocalPorts,
    integration: Option<Text>,
}

impl UnsetHost {
    /// The next transaction for the local database; `None` if it is up to date.
    pub fn local_transaction(&mut self, local: &Replica, now: Instant) -> Option<Transaction> {
        let (_, row) = local.rows::<OpenVswitch>().next()?;
        let integration = settings::bridge(&row.external_ids);
        let defaults = DeviceDefaults { mtu_bytes: MTU_BYTES, uplink: "", present: None };
        self.ports = LocalPorts::read(local, &integration, &defaults, &mut self.numbers, now);
        self.integration = Some(integration);
        writes::without_settings(local, &self.ports)
    }

    /// The name of the integration bridge, if there is one.
    pub fn integration_bridge(&self) -> Option<&str> {
        self.integration.as_deref().filter(|_| self.ports.bridge.is_some())
    }

    /// The names of the other bridges.
    pub fn provider_bridges(&self) -> impl Iterator<Item = &str> {
        self.ports.bridges.keys().map(|name| &**name)
    }
}
