//! [`LocalPorts`]: the interfaces of the integration bridge in the local database, and which of
//! them become ports of the switch.

use crate::settings::Settings;
use crate::tables::{Bridge, Interface, OpenVswitch, Port, Text, index};
use datapath::config::{DeviceConfig, MAX_PORT};
use datapath::number_pool::NumberPool;
use flow::PortNo;
use ovsdb::{Atom, Replica, Uuid};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// OpenFlow's number of a bridge's own interface (`OFPP_LOCAL`).
const LOCAL_PORT: i64 = OF_BRIDGE as i64;
const OF_BRIDGE: u32 = 65534;
/// The types of interfaces that can be ports.
const OWN_KINDS: [&str; 3] = ["system", "internal", "tap"];
/// The value of `ofport` for an interface that cannot be used.
const NO_PORT: i64 = -1;

/// The interfaces of all bridges.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LocalPorts {
    /// The row of Open_vSwitch.
    pub root: Option<Uuid>,
    /// The integration bridge.
    pub bridge: Option<Uuid>,
    /// `next_cfg` of Open_vSwitch.
    pub next_cfg: i64,
    /// The interfaces, by row.
    pub interfaces: BTreeMap<Uuid, LocalInterface>,
    /// Those with a port, by the logical port that they name (`iface-id`).
    pub logical: BTreeMap<Text, Uuid>,
}

/// An interface of a bridge.
#[derive(Clone, PartialEq, Debug)]
pub struct LocalInterface {
    /// Its name, which is that of its device.
    pub name: Text,
    /// The logical port that it names.
    pub logical_port: Option<Text>,
    /// The port, or why there is none.
    pub state: InterfaceState,
}

/// What the kernel says about the device of an interface. An interface without a device has the
/// default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceFacts {
    /// The MAC address.
    pub mac: Option<Text>,
    /// The interface index.
    pub ifindex: Option<i64>,
    /// The MTU, in bytes.
    pub mtu: Option<i64>,
    /// Administratively up.
    pub is_up: Option<bool>,
    /// It has a carrier.
    pub has_carrier: Option<bool>,
}

impl DeviceFacts {
    /// The values of `admin_state` and `link_state`.
    pub(crate) fn states(&self) -> [Option<Text>; 2] {
        let text = |is_up: Option<bool>| is_up.map(|up| if up { "up" } else { "down" }.into());
        [text(self.is_up), text(self.has_carrier)]
    }
}

/// What became of an interface.
#[derive(Clone, PartialEq, Debug)]
pub enum InterfaceState {
    /// A port of the switch.
    Port {
        /// The number.
        port: PortNo,
        /// The device.
        device: DeviceConfig,
    },
    /// The own interface of a bridge. It has no device.
    OfBridge,
    /// It is not used, because of this.
    Refused(String),
}

impl LocalInterface {
    /// The value of the column `ofport`.
    pub fn ofport(&self) -> i64 {
        match &self.state {
            InterfaceState::Port { port, .. } => port.0.into(),
            InterfaceState::OfBridge => LOCAL_PORT,
            InterfaceState::Refused(_) => NO_PORT,
        }
    }

    /// The value of the column `error`.
    pub fn error(&self) -> Option<Text> {
        match &self.state {
            InterfaceState::Refused(why) => Some(why.as_str().into()),
            InterfaceState::Port { .. } | InterfaceState::OfBridge => None,
        }
    }
}

impl LocalPorts {
    /// Reads the interfaces of all bridges. Interfaces keep their number in `numbers`. `mtu_bytes`
    /// is the MTU of guests whose interface requests none.
    pub fn read(
        replica: &Replica,
        settings: &Settings,
        mtu_bytes: u16,
        numbers: &mut NumberPool<Text>,
        now: Instant,
    ) -> Self {
        let mut ports = Self::default();
        let Some((root, row)) = replica.rows::<OpenVswitch>().next() else { return ports };
        (ports.root, ports.next_cfg) = (Some(root), row.next_cfg);
        ports.keep_numbers(replica, numbers, now);
        for uuid in row.bridges {
            let Some(bridge) = replica.get::<Bridge>(uuid) else { continue };
            let is_own = bridge.name == settings.bridge;
            ports.bridge = ports.bridge.or(is_own.then_some(uuid));
            let rows = bridge.ports.iter().filter_map(|&port| replica.get::<Port>(port));
            let members: BTreeSet<Uuid> = rows.flat_map(|port| port.interfaces).collect();
            for uuid in members {
                let Some(row) = replica.get::<Interface>(uuid) else { continue };
                let state = if row.name == bridge.name {
                    InterfaceState::OfBridge
                } else if is_own {
                    state(&row, mtu_bytes, numbers, now)
                } else {
                    InterfaceState::Refused(format!(
                        "weft serves the integration bridge {} only: bridge {} stays without ports",
                        settings.bridge, bridge.name
                    ))
                };
                ports.add(uuid, &row, state);
            }
        }
        numbers.release_unused(now);
        ports
    }

    /// Gives interfaces without a number the one that the database has, from an earlier run. So
    /// the cached flows of that run stay right.
    fn keep_numbers(&self, replica: &Replica, numbers: &mut NumberPool<Text>, now: Instant) {
        let rows = replica.rows::<Interface>().filter_map(|(_, row)| {
            let number = row.ofport.and_then(|number| u32::try_from(number).ok())?;
            (1..=MAX_PORT.0).contains(&number).then_some((number, row))
        });
        // In ascending order, because each number is above those before.
        let known: BTreeMap<u32, Interface> = rows
            .filter(|(_, row)| row.kind.is_empty() || OWN_KINDS.contains(&&*row.kind))
            .collect();
        for (number, row) in known.into_iter().filter(|(number, _)| *number != OF_BRIDGE) {
            numbers.prefer(&row.name, number, now);
        }
    }

    fn add(&mut self, uuid: Uuid, row: &Interface, mut state: InterfaceState) {
        let is_port = matches!(state, InterfaceState::Port { .. });
        let logical_port = row.external_ids.get("iface-id").filter(|_| is_port).cloned();
        if let Some(name) = &logical_port {
            match self.logical.entry(name.clone()) {
                Entry::Vacant(place) => drop(place.insert(uuid)),
                Entry::Occupied(_) => {
                    state = InterfaceState::Refused(format!(
                        "another interface has iface-id={name} as well: give each its own"
                    ));
                }
            }
        }
        let logical_port = logical_port.filter(|_| matches!(state, InterfaceState::Port { .. }));
        self.interfaces
            .insert(uuid, LocalInterface { name: row.name.clone(), logical_port, state });
    }

    /// The port and device of a logical port.
    pub fn of_logical(&self, name: &str) -> Option<(PortNo, &DeviceConfig)> {
        match &self.interfaces.get(self.logical.get(name)?)?.state {
            InterfaceState::Port { port, device } => Some((*port, device)),
            InterfaceState::OfBridge | InterfaceState::Refused(_) => None,
        }
    }

    /// The logical ports whose port or device differs between `self` and `other`.
    pub fn changed(&self, other: &Self) -> BTreeSet<Text> {
        let names = self.logical.keys().chain(other.logical.keys());
        let changed = names.filter(|name| self.of_logical(name) != other.of_logical(name));
        changed.cloned().collect()
    }
}

fn state(
    row: &Interface,
    mtu_bytes: u16,
    numbers: &mut NumberPool<Text>,
    now: Instant,
) -> InterfaceState {
    let requested = row.mtu_request.and_then(|mtu| u16::try_from(mtu).ok());
    let (name, mtu) = (row.name.to_string(), requested.unwrap_or(mtu_bytes));
    let device = match &*row.kind {
        "" | "system" => DeviceConfig::Interface { name, mtu },
        "internal" => DeviceConfig::Tap { name, guest: None, mtu },
        "tap" => DeviceConfig::Vm { name, mtu },
        kind => {
            return InterfaceState::Refused(format!(
                "weft has no interfaces of type {kind} on the integration bridge"
            ));
        }
    };
    let port = PortNo(numbers.number(row.name.clone(), now));
    if port > MAX_PORT || port.0 == OF_BRIDGE {
        return InterfaceState::Refused(format!("a switch numbers at most {MAX_PORT} ports"));
    }
    InterfaceState::Port { port, device }
}

/// The bridge with this name.
pub(crate) fn bridge_named(replica: &Replica, name: &str) -> Option<Uuid> {
    let by_name = replica.table("Bridge")?.index(index::NAME)?;
    by_name.find_atom(Atom::String(name.into())).map(|row| row.uuid()).next()
}
