//! [`LocalPorts`]: the interfaces of the integration bridge in the local database, and which of
//! them become ports of the switch.

use crate::provider::{ProviderBridge, port_vlans};
use crate::tables::{Bridge, Interface, OpenVswitch, Port, Text, index};
use datapath::config::{DeviceConfig, MAX_PORT};
use datapath::number_pool::NumberPool;
use flow::{DatapathKey, PortNo};
use ovsdb::{Atom, Replica, Uuid};
use pipeline::PortVlans;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// The number of the integration bridge's own interface, as in OpenFlow (`OFPP_LOCAL`).
const OF_BRIDGE: PortNo = PortNo(65534);
/// The types of interfaces that can be ports.
const OWN_KINDS: [&str; 4] = ["system", "internal", "tap", "patch"];
/// The value of `ofport` for an interface that cannot be used.
const NO_PORT: i64 = -1;
/// The MTU of devices that weft creates for a provider bridge, in bytes.
const PROVIDER_MTU: u16 = 1500;

/// The numbers of ports and of provider bridges.
#[derive(Debug)]
pub struct Numbers {
    ports: NumberPool<Text>,
    bridges: NumberPool<Text>,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { ports: NumberPool::starting_at(1), bridges: NumberPool::starting_at(0) }
    }
}

/// The inputs, other than their rows, that determine the devices of interfaces.
#[derive(Clone, Copy, Debug)]
pub struct DeviceDefaults<'a> {
    /// The MTU of guests whose interface requests none, in bytes.
    pub mtu_bytes: u16,
    /// The device of the tunnels, which cannot be a port.
    pub uplink: &'a str,
    /// The names of all devices, and of those that weft has created; `None` if they are not known.
    pub present: Option<(&'a BTreeSet<Text>, &'a BTreeSet<Text>)>,
}

/// The interfaces of all bridges.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LocalPorts {
    /// The row of Open_vSwitch.
    pub root: Option<Uuid>,
    /// The integration bridge.
    pub bridge: Option<Uuid>,
    /// `next_cfg` of Open_vSwitch.
    pub next_cfg: i64,
    /// The bridges other than the integration bridge.
    pub bridges: BTreeMap<Text, ProviderBridge>,
    /// The interfaces, by row.
    pub interfaces: BTreeMap<Uuid, LocalInterface>,
    /// Those with a port and a device, by the logical port that they name (`iface-id`).
    pub logical: BTreeMap<Text, Uuid>,
}

/// An interface of a bridge.
#[derive(Clone, PartialEq, Debug)]
pub struct LocalInterface {
    /// Its name, which is that of its device.
    pub name: Text,
    /// Its bridge.
    pub bridge: Text,
    /// The other end of a patch port.
    pub peer: Option<Text>,
    /// The logical port that it names.
    pub logical_port: Option<Text>,
    /// True if weft does not create its device, and the device does not exist. The interface has no
    /// port until the device appears.
    pub lacks_device: bool,
    /// The port, or why there is none.
    pub state: InterfaceState,
}

/// The kernel's state of an interface's device. An interface without a device has the default.
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
    /// The counters of its port; `None` without a port.
    pub counters: Option<PortCounters>,
}

/// The counters of a port, for the column `statistics`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Frames received from the device, and their bytes.
    pub rx: (u64, u64),
    /// Frames sent to the device, and their bytes.
    pub tx: (u64, u64),
    /// Frames from the device that were dropped, and frames that could not be sent to it.
    pub dropped: u64,
}

impl PortCounters {
    /// The value of the column `statistics`. `rx_dropped` also counts frames that could not be
    /// sent.
    pub(crate) fn statistics(&self) -> BTreeMap<Text, i64> {
        let Self { rx: (rx_packets, rx_bytes), tx: (tx_packets, tx_bytes), dropped } = *self;
        let pairs = [
            ("rx_packets", rx_packets),
            ("rx_bytes", rx_bytes),
            ("rx_dropped", dropped),
            ("tx_packets", tx_packets),
            ("tx_bytes", tx_bytes),
        ];
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        pairs.into_iter().map(|(key, value)| (key.into(), number(value))).collect()
    }
}

impl DeviceFacts {
    /// The values of `admin_state` and `link_state`.
    pub(crate) fn states(&self) -> [Option<Text>; 2] {
        let text = |is_up: Option<bool>| is_up.map(|up| if up { "up" } else { "down" }.into());
        [text(self.is_up), text(self.has_carrier)]
    }
}

/// The use of an interface by the switch.
#[derive(Clone, PartialEq, Debug)]
pub enum InterfaceState {
    /// A port of the switch.
    Port {
        /// The number.
        port: PortNo,
        /// The device.
        device: DeviceConfig,
    },
    /// A patch port. It has a number, but no device.
    Patch(PortNo),
    /// The interface is not used, for this reason.
    Refused(String),
}

impl LocalInterface {
    /// The value of the column `ofport`.
    pub fn ofport(&self) -> i64 {
        match &self.state {
            _ if self.lacks_device => NO_PORT,
            InterfaceState::Port { port, .. } | InterfaceState::Patch(port) => port.0.into(),
            InterfaceState::Refused(_) => NO_PORT,
        }
    }

    /// The value of the column `error`.
    pub fn error(&self) -> Option<Text> {
        match &self.state {
            InterfaceState::Refused(why) => Some(why.as_str().into()),
            _ if self.lacks_device => Some(format!("there is no device {}", self.name).into()),
            _ => None,
        }
    }
}

impl LocalPorts {
    /// Reads the interfaces of all bridges, of which one is `integration`. `numbers` keeps the
    /// number of each interface. `defaults` has the other inputs that determine their devices.
    pub fn read(
        replica: &Replica,
        integration: &Text,
        defaults: &DeviceDefaults<'_>,
        numbers: &mut Numbers,
        now: Instant,
    ) -> Self {
        let mut ports = Self::default();
        let Some((root, row)) = replica.rows::<OpenVswitch>().next() else { return ports };
        (ports.root, ports.next_cfg) = (Some(root), row.next_cfg);
        ports.keep_numbers(replica, &mut numbers.ports, now);
        let mut bridges: Vec<_> = row.bridges.into_iter().collect();
        // Sorted by name, so that a restarted host gives the same bridges the same numbers.
        bridges.sort_by_cached_key(|&uuid| replica.get::<Bridge>(uuid).map(|row| row.name));
        for uuid in bridges {
            let Some(bridge) = replica.get::<Bridge>(uuid) else { continue };
            if bridge.name == *integration {
                ports.bridge = ports.bridge.or(Some(uuid));
            } else {
                let number = numbers.bridges.number(bridge.name.clone(), now);
                let key = DatapathKey(DatapathKey::FIRST_LOCAL.0.saturating_add(number));
                ports.bridges.insert(bridge.name.clone(), ProviderBridge::new(key));
            }
            ports.read_bridge(replica, &bridge, defaults, numbers, now);
        }
        ports.check_patches(integration);
        numbers.ports.release_unused(now);
        numbers.bridges.release_unused(now);
        ports
    }

    fn read_bridge(
        &mut self,
        replica: &Replica,
        bridge: &Bridge,
        defaults: &DeviceDefaults<'_>,
        numbers: &mut Numbers,
        now: Instant,
    ) {
        for port in bridge.ports.iter().filter_map(|&port| replica.get::<Port>(port)) {
            let members = port
                .interfaces
                .iter()
                .filter_map(|&uuid| Some((uuid, replica.get::<Interface>(uuid)?)));
            for (uuid, row) in members {
                let is_provider = self.bridges.contains_key(&bridge.name);
                let is_own = row.name == bridge.name;
                let kind = if is_own { "internal" } else { &row.kind };
                let vlans = if is_provider { port_vlans(&port) } else { Ok(PortVlans::default()) };
                let state = vlans.and_then(|vlans| {
                    let device = device(&row, kind, defaults, is_provider)?;
                    if port.interfaces.len() > 1 {
                        return Err(NO_BONDS.to_owned());
                    }
                    let number = match is_own && !is_provider {
                        true => OF_BRIDGE,
                        false => number(&row, &mut numbers.ports, now)?,
                    };
                    if let Some(bridge) = self.bridges.get_mut(&bridge.name) {
                        bridge.add(&row, number, vlans, device.is_some());
                    }
                    Ok(match device {
                        Some(device) => InterfaceState::Port { port: number, device },
                        None => InterfaceState::Patch(number),
                    })
                });
                let state = state.unwrap_or_else(InterfaceState::Refused);
                self.add(uuid, &bridge.name, &row, state, defaults.present);
            }
        }
    }

    /// Refuses patch ports that weft does not serve. It ignores those that ovn-controller has
    /// created between the integration bridge and the provider bridges, because the bridge mappings
    /// replace them.
    fn check_patches(&mut self, integration: &Text) {
        let peers: BTreeMap<Text, (Text, Text)> = self
            .interfaces
            .values()
            .filter(|it| matches!(it.state, InterfaceState::Patch(_)))
            .filter_map(|it| Some((it.name.clone(), (it.peer.clone()?, it.bridge.clone()))))
            .collect();
        for interface in self.interfaces.values_mut() {
            if !matches!(interface.state, InterfaceState::Patch(_)) {
                continue;
            }
            let peer = interface.peer.as_ref().and_then(|name| peers.get(name));
            let is_mutual = peer.is_some_and(|(back, _)| *back == interface.name);
            let to_integration = interface.bridge == *integration
                || peer.is_some_and(|(_, bridge)| bridge == integration);
            if !is_mutual {
                interface.state = InterfaceState::Refused(
                    "its options:peer is no patch port whose peer is this one".to_owned(),
                );
            } else if to_integration && !is_of_ovn(&interface.name) {
                interface.state = InterfaceState::Refused(format!(
                    "weft connects {integration} with other bridges by ovn-bridge-mappings"
                ));
            }
        }
    }

    /// Gives interfaces without a number the one that the database has, from an earlier run. So the
    /// cached flows of that run stay valid.
    fn keep_numbers(&self, replica: &Replica, numbers: &mut NumberPool<Text>, now: Instant) {
        let rows = replica.rows::<Interface>().filter_map(|(_, row)| {
            let number = row.ofport.and_then(|number| u32::try_from(number).ok())?;
            (1..=MAX_PORT.0).contains(&number).then_some((number, row))
        });
        // In ascending order, because the pool accepts only numbers above all earlier ones.
        let known: BTreeMap<u32, Interface> = rows
            .filter(|(_, row)| row.kind.is_empty() || OWN_KINDS.contains(&&*row.kind))
            .collect();
        for (number, row) in known.into_iter().filter(|(number, _)| *number != OF_BRIDGE.0) {
            numbers.prefer(&row.name, number, now);
        }
    }

    fn add(
        &mut self,
        uuid: Uuid,
        bridge: &Text,
        row: &Interface,
        mut state: InterfaceState,
        present: Option<(&BTreeSet<Text>, &BTreeSet<Text>)>,
    ) {
        let is_existing =
            matches!(state, InterfaceState::Port { device: DeviceConfig::Interface { .. }, .. });
        let is_lacking =
            present.is_some_and(|(all, made)| !all.contains(&row.name) || made.contains(&row.name));
        let lacks_device = is_existing && is_lacking;
        let is_port = matches!(state, InterfaceState::Port { .. });
        // Guests are attached to the integration bridge.
        let is_guest = is_port && !self.bridges.contains_key(bridge);
        let mut logical_port = row.external_ids.get("iface-id").filter(|_| is_guest).cloned();
        // Without its device, another host may serve the logical port meanwhile.
        if let Some(name) = logical_port.as_ref().filter(|_| !lacks_device) {
            match self.logical.entry(name.clone()) {
                Entry::Vacant(place) => drop(place.insert(uuid)),
                Entry::Occupied(_) => {
                    state = InterfaceState::Refused(format!(
                        "another interface has iface-id={name} as well: give each its own"
                    ));
                    logical_port = None;
                }
            }
        }
        let interface = LocalInterface {
            name: row.name.clone(),
            bridge: bridge.clone(),
            peer: row.options.get("peer").cloned(),
            logical_port,
            lacks_device,
            state,
        };
        self.interfaces.insert(uuid, interface);
    }

    /// The names of the devices that weft creates.
    pub fn made_devices(&self) -> BTreeSet<Text> {
        let is_made = |interface: &&LocalInterface| match &interface.state {
            InterfaceState::Port { device, .. } => {
                !matches!(device, DeviceConfig::Interface { .. })
            }
            InterfaceState::Patch(_) | InterfaceState::Refused(_) => false,
        };
        self.interfaces.values().filter(is_made).map(|it| it.name.clone()).collect()
    }

    /// The port and device of a logical port.
    pub fn of_logical(&self, name: &str) -> Option<(PortNo, &DeviceConfig)> {
        match &self.interfaces.get(self.logical.get(name)?)?.state {
            InterfaceState::Port { port, device } => Some((*port, device)),
            _ => None,
        }
    }

    /// The logical ports whose port or device differs between `self` and `other`.
    pub fn changed(&self, other: &Self) -> BTreeSet<Text> {
        let names = self.logical.keys().chain(other.logical.keys());
        let changed = names.filter(|name| self.of_logical(name) != other.of_logical(name));
        changed.cloned().collect()
    }
}

const NO_BONDS: &str = "weft makes no bonds: make one with `ip link`, and add its device";

/// The device of an interface; `None` for a patch port.
fn device(
    row: &Interface,
    kind: &str,
    defaults: &DeviceDefaults<'_>,
    is_provider: bool,
) -> Result<Option<DeviceConfig>, String> {
    if *row.name == *defaults.uplink {
        return Err(format!("{} is the uplink of the tunnels: use another device", row.name));
    }
    let requested = row.mtu_request.and_then(|mtu| u16::try_from(mtu).ok());
    let mtu = if is_provider { PROVIDER_MTU } else { defaults.mtu_bytes };
    let (name, mtu) = (row.name.to_string(), requested.unwrap_or(mtu));
    Ok(Some(match kind {
        "" | "system" => DeviceConfig::Interface { name, mtu: (!is_provider).then_some(mtu) },
        "internal" => DeviceConfig::Tap { name, guest: None, mtu },
        "tap" => DeviceConfig::Vm { name, mtu, multi_queue: false },
        "patch" => return Ok(None),
        kind => return Err(format!("weft has no interfaces of type {kind}")),
    }))
}

fn number(row: &Interface, numbers: &mut NumberPool<Text>, now: Instant) -> Result<PortNo, String> {
    let port = PortNo(numbers.number(row.name.clone(), now));
    if port > MAX_PORT || port == OF_BRIDGE {
        return Err(format!("a switch numbers at most {MAX_PORT} ports"));
    }
    Ok(port)
}

/// True for the names that ovn-controller gives to its patch ports.
fn is_of_ovn(name: &str) -> bool {
    name.starts_with("patch-") && name.contains("-to-")
}

/// The bridge with this name.
pub(crate) fn bridge_named(replica: &Replica, name: &str) -> Option<Uuid> {
    let by_name = replica.table("Bridge")?.index(index::NAME)?;
    by_name.find_atom(Atom::String(name.into())).map(|row| row.uuid()).next()
}
