//! Provider bridges, and the localnet ports that connect logical switches with them.
//!
//! A localnet port leads to the bridge that `ovn-bridge-mappings` names for its network. The bridge
//! has a port for each localnet port whose switch packets of this host can reach.

use super::ports::find;
use super::{Changes, LocalContext, ProgramBuilder, datapath_key, ports};
use crate::local::LocalPorts;
use crate::provider::ProviderBridge;
use crate::tables::{DatapathBinding, PortBinding, Text, index};
use flow::{DatapathKey, PortKey};
use ovsdb::{Atom, Replica, Uuid};
use pipeline::{
    DatapathKind, LogicalPort, PortLocation, PortRole, PortSecurity, PortVlans, VlanSet,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// `type` of the ports that lead to a provider bridge.
const LOCALNET: &str = "localnet";
const TPIDS: [(&str, u16); 4] =
    [("802.1q", 0x8100), ("802.11q", 0x8100), ("802.1ad", 0x88a8), ("802.11ad", 0x88a8)];

/// The bridges of the program, and the localnet ports.
#[derive(Debug)]
pub(super) struct Bridges {
    /// The localnet ports whose network is mapped to a bridge, by row.
    localnets: BTreeMap<Uuid, Localnet>,
    /// The localnet port of each switch by which remote ports are reached.
    chosen: HashMap<DatapathKey, PortKey>,
    placed: BTreeMap<Text, PlacedBridge>,
    /// The localnet ports must be read again.
    pub is_outdated: bool,
    /// The bridges must get their ports again.
    pub lack_ports: bool,
}

impl Default for Bridges {
    fn default() -> Self {
        Self {
            localnets: BTreeMap::new(),
            chosen: HashMap::new(),
            placed: BTreeMap::new(),
            is_outdated: true,
            lack_ports: true,
        }
    }
}

/// A localnet port with its bridge.
#[derive(Clone, PartialEq, Debug)]
struct Localnet {
    /// The name of the bridge's port, which is that of ovn-controller's patch port.
    name: Text,
    datapath: DatapathKey,
    key: PortKey,
    bridge: Text,
    /// The VLANs of the bridge's port.
    vlans: PortVlans,
    /// The bridge's port.
    location: PortLocation,
}

/// A bridge in the program.
#[derive(Debug)]
struct PlacedBridge {
    key: DatapathKey,
    /// The keys of its ports, by name.
    keys: BTreeMap<Text, PortKey>,
    /// The locations and VLANs of its ports.
    ports: BTreeMap<PortKey, (PortLocation, PortVlans)>,
    next: u16,
}

impl PlacedBridge {
    fn new(key: DatapathKey) -> Self {
        Self { key, keys: BTreeMap::new(), ports: BTreeMap::new(), next: 1 }
    }

    /// The key of a port. Keys are reused as late as possible, because MAC addresses that were
    /// learned on a removed port may still be known. `None` if the bridge has 65,535 ports.
    fn key_of(&mut self, name: &Text) -> Option<PortKey> {
        if let Some(&key) = self.keys.get(name) {
            return Some(key);
        }
        let used: BTreeSet<PortKey> = self.keys.values().copied().collect();
        let after = self.next..=u16::MAX;
        let key =
            after.chain(1..self.next).filter_map(PortKey::new).find(|it| !used.contains(it))?;
        self.next = key.value().checked_add(1).unwrap_or(1);
        self.keys.insert(name.clone(), key);
        Some(key)
    }
}

impl Bridges {
    /// The location of a localnet port; `None` if its network is not mapped.
    pub fn location(&self, row: Uuid) -> Option<PortLocation> {
        self.localnets.get(&row).map(|localnet| localnet.location)
    }

    /// The localnet port by which a switch reaches its remote ports.
    pub fn of_switch(&self, datapath: DatapathKey) -> Option<PortKey> {
        self.chosen.get(&datapath).copied()
    }
}

impl ProgramBuilder {
    /// The switches with a localnet port whose network has a bridge on this host.
    pub fn provider_switches(&self, replica: &Replica) -> Vec<Uuid> {
        let rows = find(replica, index::KIND, &[Atom::String(LOCALNET.into())]);
        let rows = rows.into_iter().filter_map(|uuid| replica.get::<PortBinding>(uuid));
        let switches: BTreeSet<Uuid> = rows.map(|row| row.datapath).collect();
        let is_mapped =
            |uuid: &Uuid| self.datapaths.get(uuid).is_some_and(|it| self.has_localnet(*it));
        switches.into_iter().filter(is_mapped).collect()
    }

    /// True if the switch has a localnet port whose network has a bridge on this host.
    pub fn has_localnet(&self, switch: DatapathKey) -> bool {
        self.bridges.of_switch(switch).is_some()
    }

    /// True if changes of rows may have changed a localnet port.
    pub(super) fn affects_localnets(changes: &Changes<'_>) -> bool {
        let is_localnet = |row: &Option<Arc<ovsdb::Row>>| {
            row.as_ref()
                .and_then(|row| row.value::<Text>("type"))
                .is_some_and(|kind| *kind == *LOCALNET)
        };
        changes.of::<DatapathBinding>().next().is_some()
            || changes
                .of::<PortBinding>()
                .any(|change| is_localnet(&change.old) || is_localnet(&change.new))
    }

    /// Reads the localnet ports again, if they may have changed. Returns the switches whose ports
    /// must be placed again.
    pub(super) fn update_localnets(
        &mut self,
        replica: &Replica,
        context: &LocalContext<'_>,
    ) -> BTreeSet<Uuid> {
        if !std::mem::take(&mut self.bridges.is_outdated) {
            return BTreeSet::new();
        }
        self.update_bridges(context.local);
        let rows = ports::find(replica, index::KIND, &[Atom::String(LOCALNET.into())]);
        let mut localnets = BTreeMap::new();
        for uuid in rows {
            let Some(row) = replica.get::<PortBinding>(uuid) else { continue };
            localnets.extend(self.localnet(replica, &row, context).map(|it| (uuid, it)));
        }
        let mut by_name: Vec<&Localnet> = localnets.values().collect();
        by_name.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        // If a switch has several, the first by name is chosen.
        self.bridges.chosen = by_name.iter().map(|it| (it.datapath, it.key)).collect();
        let old = std::mem::replace(&mut self.bridges.localnets, localnets);
        let new = &self.bridges.localnets;
        let rows: BTreeSet<&Uuid> = old.keys().chain(new.keys()).collect();
        let changed = rows.into_iter().filter(|row| old.get(row) != new.get(row));
        let changed = changed.flat_map(|row| old.get(row).into_iter().chain(new.get(row)));
        let affected: BTreeSet<DatapathKey> = changed.map(|it| it.datapath).collect();
        self.bridges.lack_ports = true;
        let uuids = self.datapaths.iter().filter(|(_, key)| affected.contains(key));
        uuids.map(|(uuid, _)| *uuid).collect()
    }

    fn localnet(
        &mut self,
        replica: &Replica,
        row: &PortBinding,
        context: &LocalContext<'_>,
    ) -> Option<Localnet> {
        let datapath = datapath_key(&replica.get::<DatapathBinding>(row.datapath)?)?;
        let key = u16::try_from(row.tunnel_key).ok().and_then(PortKey::new)?;
        let bridge = context.mappings.get(row.options.get("network_name")?)?.clone();
        let name = format!("patch-{}-to-{}", row.logical_port, context.integration).into();
        let placed = self.bridges.placed.get_mut(&bridge)?;
        let location = PortLocation::Patch { datapath: placed.key, port: placed.key_of(&name)? };
        let tpid = row.options.get("ethtype").map(|name| name.to_ascii_lowercase());
        let tpid = TPIDS.iter().find(|(name, _)| tpid.as_deref() == Some(name));
        let passes_tags = row.options.get("vlan-passthru").is_some_and(|value| **value == *"true");
        let vlans = match row.tag.and_then(|tag| u16::try_from(tag).ok()).filter(|tag| *tag != 0) {
            Some(vlan) => PortVlans::Tunnel { vlan, tpid: tpid.map_or(0x8100, |(_, tpid)| *tpid) },
            None if passes_tags => PortVlans::default(),
            None => {
                let vlans = VlanSet::Only(Arc::new(BTreeSet::from([0])));
                PortVlans::Trunk { vlans, native: None }
            }
        };
        Some(Localnet { name, datapath, key, bridge, vlans, location })
    }

    /// Adds and removes bridges to match the local database.
    fn update_bridges(&mut self, local: &LocalPorts) {
        let placed = std::mem::take(&mut self.bridges.placed);
        for (name, bridge) in placed {
            if local.bridges.get(&name).is_some_and(|it| it.key == bridge.key) {
                self.bridges.placed.insert(name, bridge);
                continue;
            }
            let locations = bridge.ports.values().map(|(location, _)| *location);
            self.release_devices(bridge.key, locations);
            self.loader.remove_datapath(bridge.key);
        }
        for (name, bridge) in &local.bridges {
            if !self.bridges.placed.contains_key(name) {
                self.loader.add_datapath(bridge.key, name, DatapathKind::Provider);
                self.bridges.placed.insert(name.clone(), PlacedBridge::new(bridge.key));
            }
        }
    }

    /// Removes the roles that devices have in this bridge. A device may be the interface of a guest
    /// now.
    fn release_devices(
        &mut self,
        bridge: DatapathKey,
        locations: impl Iterator<Item = PortLocation>,
    ) {
        let program = self.loader.program_mut();
        for location in locations {
            if let PortLocation::Local(port) = location
                && program.port_role(port).and_then(PortRole::logical_port).map(|(key, _)| key)
                    == Some(bridge)
            {
                program.remove_port_role(port);
            }
        }
    }

    /// Gives the bridges their ports: the devices of the local database, and a patch port for each
    /// localnet port of a switch that packets of this host can pass through.
    pub(super) fn place_bridge_ports(&mut self, local: &LocalPorts) {
        if !std::mem::take(&mut self.bridges.lack_ports) {
            return;
        }
        let mut target_ports: BTreeMap<Text, BTreeMap<Text, (PortLocation, PortVlans)>> =
            BTreeMap::new();
        for (name, bridge) in &local.bridges {
            let ports = self.own_ports(local, bridge);
            target_ports.insert(name.clone(), ports);
        }
        let localnets = self.bridges.localnets.values();
        for localnet in localnets.filter(|it| self.reachable.contains(it.datapath)) {
            let Localnet { name, datapath, key, bridge, vlans, .. } = localnet;
            let location = PortLocation::Patch { datapath: *datapath, port: *key };
            if let Some(ports) = target_ports.get_mut(bridge) {
                ports.insert(name.clone(), (location, vlans.clone()));
            }
        }
        // First all removals, because a device may move from one bridge to another.
        for (bridge, ports) in &target_ports {
            self.remove_bridge_ports(bridge, ports);
        }
        for (bridge, ports) in target_ports {
            self.add_bridge_ports(&bridge, ports);
        }
    }

    /// The devices and patch ports of a bridge.
    fn own_ports(
        &mut self,
        local: &LocalPorts,
        bridge: &ProviderBridge,
    ) -> BTreeMap<Text, (PortLocation, PortVlans)> {
        let devices = bridge.devices.iter().map(|(name, (port, vlans))| {
            (name.clone(), (PortLocation::Local(*port), vlans.clone()))
        });
        let mut ports: BTreeMap<_, _> = devices.collect();
        for (name, (peer, vlans)) in &bridge.patches {
            let other = local
                .bridges
                .iter()
                .find(|(_, other)| other.patches.get(peer).is_some_and(|(back, _)| back == name));
            let Some(other) = other.and_then(|(name, _)| self.bridges.placed.get_mut(name)) else {
                continue;
            };
            if let Some(port) = other.key_of(peer) {
                let location = PortLocation::Patch { datapath: other.key, port };
                ports.insert(name.clone(), (location, vlans.clone()));
            }
        }
        ports
    }

    fn remove_bridge_ports(
        &mut self,
        bridge: &Text,
        target_ports: &BTreeMap<Text, (PortLocation, PortVlans)>,
    ) {
        let Some(placed) = self.bridges.placed.get_mut(bridge) else { return };
        let names: BTreeMap<PortKey, &Text> =
            placed.keys.iter().map(|(n, key)| (*key, n)).collect();
        let is_kept = |key: &PortKey, port: &(PortLocation, PortVlans)| {
            names.get(key).and_then(|name| target_ports.get(*name)) == Some(port)
        };
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut placed.ports)
            .into_iter()
            .partition(|(key, port)| is_kept(key, port));
        placed.ports = kept;
        let datapath = placed.key;
        for (key, (location, _)) in gone {
            self.release_devices(datapath, [location].into_iter());
            self.loader.remove_port(datapath, key);
            if let Some(entry) = self.loader.program_mut().datapath_mut(datapath) {
                entry.vlans.remove(&key);
            }
        }
        // Localnet ports of switches that are not reached keep their key.
        let localnets = self.bridges.localnets.values();
        let known: BTreeSet<&Text> = localnets.map(|it| &it.name).collect();
        if let Some(placed) = self.bridges.placed.get_mut(bridge) {
            placed.keys.retain(|name, _| target_ports.contains_key(name) || known.contains(name));
        }
    }

    fn add_bridge_ports(
        &mut self,
        bridge: &Text,
        target_ports: BTreeMap<Text, (PortLocation, PortVlans)>,
    ) {
        for (name, (location, vlans)) in target_ports {
            let Some(placed) = self.bridges.placed.get_mut(bridge) else { return };
            let (datapath, key) = (placed.key, placed.key_of(&name));
            let Some(key) = key.filter(|key| !placed.ports.contains_key(key)) else { continue };
            placed.ports.insert(key, (location, vlans.clone()));
            let security = PortSecurity::default();
            let port = LogicalPort { name: name.to_string(), location, security };
            self.loader.set_port(datapath, key, port);
            let program = self.loader.program_mut();
            if let Some(entry) = program.datapath_mut(datapath) {
                entry.vlans.insert(key, vlans);
            }
            if let PortLocation::Local(device) = location {
                program.set_port_role(device, PortRole::Vif { datapath, port: key });
            }
        }
    }
}
