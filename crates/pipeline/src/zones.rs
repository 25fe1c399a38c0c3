//! [`CtZones`]: the connection tracking zones of a program.
//!
//! As in OVN, each local port of a logical switch has a zone, and each logical router has two: one
//! for destination NAT and one for source NAT. Each logical switch has one for packets that a load
//! balancer sends back to their source. A zone number in the flows of a bridge is local to that
//! bridge: equal numbers in two bridges are different zones. A user of a zone is identified by its
//! names, not its keys, so that a reload changes neither its zone nor its connections.

use crate::program::{Datapath, DatapathKind, PortLocation, Program};
use flow::{DatapathKey, PortKey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Map<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;

/// A part of the network that has its own zone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ZoneUser {
    /// A local port of a logical switch.
    Port {
        /// The name of the switch.
        datapath: String,
        /// The name of the port.
        port: String,
    },
    /// Destination NAT of a logical router.
    Dnat(String),
    /// Source NAT of a logical router.
    Snat(String),
    /// Packets that a load balancer of a logical switch sends back to their source.
    Hairpin(String),
    /// A zone that the flows of a bridge name.
    Bridge {
        /// The name of the bridge.
        datapath: String,
        /// The number that the flows use.
        zone: u16,
    },
}

/// The zones of a router or switch, without those of its ports; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct DatapathZones {
    pub dnat: u16,
    pub snat: u16,
}

/// The zones of a program: 1 to 65,535. A user beyond that number has no zone, and the packets that
/// need it are dropped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CtZones {
    numbers: BTreeMap<ZoneUser, u16>,
    ports: Map<(DatapathKey, PortKey), u16>,
    datapaths: Map<DatapathKey, DatapathZones>,
    bridges: Map<(DatapathKey, u16), u16>,
    /// The reverse of `bridges`.
    bridge_zones: Map<u16, (DatapathKey, u16)>,
}

impl CtZones {
    /// The zones that an earlier program assigned to these users, to be passed to
    /// [`Program::allocate_zones`].
    pub fn earlier(zones: impl IntoIterator<Item = (ZoneUser, u16)>) -> Self {
        Self { numbers: zones.into_iter().collect(), ..Self::default() }
    }

    /// All users with their zones.
    pub fn iter(&self) -> impl Iterator<Item = (&ZoneUser, u16)> {
        self.numbers.iter().map(|(user, zone)| (user, *zone))
    }

    /// The user of a zone.
    pub fn user(&self, zone: u16) -> Option<&ZoneUser> {
        self.numbers.iter().find(|(_, number)| **number == zone).map(|(user, _)| user)
    }

    /// The zones of `self` that `next` does not assign to the same user. Their connections must be
    /// removed before `next` is used.
    pub fn freed(&self, next: &Self) -> Vec<u16> {
        let is_kept = |user, zone| next.numbers.get(user) == Some(zone);
        self.numbers.iter().filter(|(user, zone)| !is_kept(user, zone)).map(|(_, z)| *z).collect()
    }

    /// The zone of a local port of a logical switch; 0 for none.
    pub(crate) fn of_port(&self, datapath: DatapathKey, port: PortKey) -> u16 {
        self.ports.get(&(datapath, port)).copied().unwrap_or(0)
    }

    /// The zones of a router or switch, without those of its ports.
    pub(crate) fn of_datapath(&self, datapath: DatapathKey) -> DatapathZones {
        self.datapaths.get(&datapath).copied().unwrap_or_default()
    }

    /// The zone that the flows of a bridge call `shown`. A program without any zones contains only
    /// one bridge, and the two numbers are the same.
    pub(crate) fn of_bridge(&self, datapath: DatapathKey, shown: u16) -> Option<u16> {
        if self.is_empty() {
            return (datapath == Program::BRIDGE).then_some(shown);
        }
        self.bridges.get(&(datapath, shown)).copied()
    }

    /// The number of a zone in the flows of a bridge; 0 for a zone that is not the bridge's.
    pub(crate) fn shown_in_bridge(&self, datapath: DatapathKey, number: u16) -> u16 {
        if self.is_empty() {
            return number;
        }
        match self.bridge_zones.get(&number) {
            Some((bridge, shown)) if *bridge == datapath => *shown,
            _ => 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }
}

impl Program {
    /// True for ports of a logical switch through which packets leave it on this host, except
    /// router ports.
    fn is_attached_here(&self, location: PortLocation) -> bool {
        match location {
            PortLocation::Local(_) | PortLocation::Child { .. } => true,
            PortLocation::Patch { datapath, .. } => {
                self.datapath(datapath).is_some_and(|it| it.kind == DatapathKind::Provider)
            }
            _ => false,
        }
    }

    /// Assigns zones to every local switch port, switch, router and bridge. A user that is in
    /// `previous` keeps its zone; others get the lowest free zones in the order of the datapaths'
    /// keys. A zone that is in `previous` is not assigned to another user.
    pub fn allocate_zones(&mut self, previous: &CtZones) {
        let mut datapaths: Vec<(DatapathKey, &Datapath)> = self.datapaths().collect();
        datapaths.sort_unstable_by_key(|(key, _)| *key);
        // OVN allows two datapaths with one name. They must not share a zone.
        let mut named: Map<(&str, DatapathKind), u32> = Map::default();
        for (_, datapath) in &datapaths {
            *named.entry((&datapath.name, datapath.kind)).or_default() += 1;
        }
        let mut users: Vec<(ZoneUser, DatapathKey, Option<PortKey>)> = Vec::new();
        for (key, datapath) in datapaths {
            let is_unique = named.get(&(datapath.name.as_str(), datapath.kind)) == Some(&1);
            let name = || match is_unique {
                true => datapath.name.clone(),
                false => format!("{} ({})", datapath.name, key.0),
            };
            match datapath.kind {
                DatapathKind::Switch => {
                    let ports = datapath.ports.iter();
                    let local = ports.filter(|(_, port)| self.is_attached_here(port.location));
                    let mut local: Vec<_> = local.collect();
                    local.sort_unstable_by_key(|(key, _)| **key);
                    users.extend(local.into_iter().map(|(port_key, port)| {
                        let user = ZoneUser::Port { datapath: name(), port: port.name.clone() };
                        (user, key, Some(*port_key))
                    }));
                    users.push((ZoneUser::Hairpin(name()), key, None));
                }
                DatapathKind::Router => {
                    users.push((ZoneUser::Dnat(name()), key, None));
                    users.push((ZoneUser::Snat(name()), key, None));
                }
                DatapathKind::Bridge => {
                    users.extend(
                        datapath
                            .bridge_zones
                            .iter()
                            .map(|&zone| (ZoneUser::Bridge { datapath: name(), zone }, key, None)),
                    );
                }
                DatapathKind::Provider => {}
            }
        }
        let taken: BTreeSet<u16> = previous.numbers.values().copied().collect();
        let mut free = (1..=u16::MAX).filter(|zone| !taken.contains(zone));
        let mut zones = CtZones::default();
        for (user, datapath, port) in users {
            let zone = previous.numbers.get(&user).copied().or_else(|| free.next());
            let Some(zone) = zone else { continue };
            match (&user, port) {
                (_, Some(port)) => drop(zones.ports.insert((datapath, port), zone)),
                (ZoneUser::Bridge { zone: shown, .. }, _) => {
                    zones.bridges.insert((datapath, *shown), zone);
                    zones.bridge_zones.insert(zone, (datapath, *shown));
                }
                (ZoneUser::Dnat(_), _) => zones.datapaths.entry(datapath).or_default().dnat = zone,
                (_, None) => zones.datapaths.entry(datapath).or_default().snat = zone,
            }
            zones.numbers.insert(user, zone);
        }
        self.set_zones(Arc::new(zones));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datapaths_of_one_name_share_no_zone() {
        let mut program = Program::default();
        for key in [1, 2] {
            program.set_datapath(DatapathKey(key), Datapath::new("edge", DatapathKind::Router));
        }
        program.set_datapath(DatapathKey(3), Datapath::new("edge", DatapathKind::Switch));
        program.allocate_zones(&CtZones::default());
        let first = Arc::clone(program.zones());
        let zones = [1, 2, 3].map(|key| first.of_datapath(DatapathKey(key)));
        let numbers: BTreeSet<u16> = zones.iter().flat_map(|it| [it.dnat, it.snat]).collect();
        assert_eq!(numbers, BTreeSet::from([0, 1, 2, 3, 4, 5]), "{zones:?}");
        program.allocate_zones(&first);
        assert_eq!([1, 2, 3].map(|key| program.zones().of_datapath(DatapathKey(key))), zones);
        assert_eq!(first.freed(program.zones()), [0; 0]);
    }
}
