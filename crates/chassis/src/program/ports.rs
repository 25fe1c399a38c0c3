//! The placement of logical ports.

use super::roles::Attached;
use super::{Changes, LocalContext, ProgramBuilder};
use crate::claims;
use crate::tables::{PortBinding, Text, index};
use flow::{DatapathKey, PortKey};
use ovsdb::{Atom, Replica, Row, Table, Uuid};
use pipeline::{LogicalPort, PortLocation, PortSecurity};
use southbound::PortKind;
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::VlanId;

/// A port of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedPort {
    pub datapath: DatapathKey,
    pub key: PortKey,
    name: Text,
    local: Option<Attached>,
    is_resident: bool,
    /// The datapath behind a patch port.
    pub patch: Option<DatapathKey>,
}

impl PlacedPort {
    /// True if packets enter the datapath by this port on this host.
    pub fn is_own(&self) -> bool {
        self.local.is_some() || self.is_resident
    }
}

impl ProgramBuilder {
    /// Places the ports that changes of rows affect. `added` are datapaths without ports.
    pub(super) fn apply_ports(
        &mut self,
        replica: &Replica,
        changes: &Changes<'_>,
        added: &BTreeSet<Uuid>,
        context: &LocalContext<'_>,
    ) {
        let mut affected: BTreeSet<Uuid> = changes.uuids::<PortBinding>().collect();
        for change in changes.of::<PortBinding>() {
            // Ports that name this one: patch ports name their peer, chassisredirect ports their
            // distributed port, and containers their parent.
            for row in [&change.old, &change.new].into_iter().flatten() {
                if let Some(name) = row.get("logical_port") {
                    affected.extend(find(replica, index::OPTIONS, name.atoms()));
                    affected.extend(find(replica, index::PARENT, name.atoms()));
                }
            }
        }
        for &datapath in added {
            affected.extend(find(replica, index::DATAPATH, &[Atom::Uuid(datapath)]));
        }
        self.place(replica, affected, context);
    }

    /// Places the ports with these names, and those that are bound to these hosts, again.
    pub fn replace<'n>(
        &mut self,
        replica: &Replica,
        names: impl IntoIterator<Item = &'n Text>,
        hosts: impl IntoIterator<Item = Uuid>,
        context: &LocalContext<'_>,
    ) {
        self.bridges.is_outdated = true;
        let by_name = names.into_iter().flat_map(|name| {
            let name = [Atom::String(Arc::clone(name))];
            [index::NAME, index::PARENT].map(|index| find(replica, index, &name))
        });
        let mut affected: BTreeSet<Uuid> = by_name.flatten().collect();
        for switch in self.update_localnets(replica, context) {
            affected.extend(find(replica, index::DATAPATH, &[Atom::Uuid(switch)]));
        }
        for host in hosts {
            affected.extend(find(replica, index::CHASSIS, &[Atom::Uuid(host)]));
        }
        self.place(replica, affected, context);
        self.update_reachable(replica, &BTreeSet::new(), context);
        self.place_bridge_ports(context.local);
    }

    /// Handles that rows of datapaths have arrived, or are not asked for any more. Returns true if
    /// that changes the program.
    pub fn follow_monitored(&mut self, replica: &Replica, context: &LocalContext<'_>) -> bool {
        self.reachable.outdate();
        let changes = self.update_reachable(replica, &BTreeSet::new(), context);
        self.place_bridge_ports(context.local);
        changes
    }

    fn place(&mut self, replica: &Replica, rows: BTreeSet<Uuid>, context: &LocalContext<'_>) {
        // The tag that a container waits for may be free now. Containers that have a tag keep it.
        let waiting = self.tag_conflicts.clone();
        let rows = rows.into_iter().filter(|uuid| !waiting.contains(uuid)).chain(waiting.clone());
        let rows: Vec<_> = rows.map(|uuid| (uuid, replica.get::<PortBinding>(uuid))).collect();
        // First all removals, because ports may exchange their keys.
        for (uuid, row) in &rows {
            let Some(old) = self.ports.get(uuid).cloned() else { continue };
            let identity = row.as_ref().and_then(|row| self.identity(row));
            if let Some(at) = old.local {
                self.roles.detach(&mut self.loader, at, (old.datapath, old.key));
            }
            if identity.as_ref() != Some(&(old.datapath, old.key)) {
                self.loader.remove_port(old.datapath, old.key);
                let (datapath, key) = (old.datapath, old.key);
                self.set_localport(datapath, key, false);
            }
            if row.as_ref().is_none_or(|row| row.logical_port != old.name) && old.is_resident {
                self.loader.set_resident(&old.name, false);
            }
            self.tag_conflicts.remove(uuid);
            if identity.is_none()
                && let Some(gone) = self.ports.remove(uuid)
            {
                self.reachable.remove(&gone);
            }
        }
        for (uuid, row) in rows {
            let Some(row) = row else { continue };
            let Some((datapath, key)) = self.identity(&row) else { continue };
            self.place_port(replica, uuid, &row, (datapath, key), context);
        }
        for uuid in self.tag_conflicts.difference(&waiting) {
            let name = self.ports.get(uuid).map(|port| port.name.clone()).unwrap_or_default();
            self.warnings.push(format!("port {name}: another port has its tag behind its parent"));
        }
    }

    /// Notes whether the packets of a port stay on this host.
    fn set_localport(&mut self, datapath: DatapathKey, key: PortKey, is_localport: bool) {
        let program = self.loader.program_mut();
        let is_known = program.datapath(datapath).map(|it| it.localports.contains(&key));
        // Changing a datapath copies it.
        if is_known.is_some_and(|is_known| is_known != is_localport)
            && let Some(entry) = program.datapath_mut(datapath)
        {
            match is_localport {
                true => entry.localports.insert(key),
                false => entry.localports.remove(&key),
            };
        }
    }

    fn identity(&self, row: &PortBinding) -> Option<(DatapathKey, PortKey)> {
        let key = u16::try_from(row.tunnel_key).ok().and_then(PortKey::new)?;
        let datapath = self.datapaths.get(&row.datapath)?;
        (!key.is_group()).then_some((*datapath, key))
    }

    fn place_port(
        &mut self,
        replica: &Replica,
        uuid: Uuid,
        row: &PortBinding,
        (datapath, key): (DatapathKey, PortKey),
        context: &LocalContext<'_>,
    ) {
        let mut location = self.location(replica, uuid, row, context);
        let name = row.logical_port.clone();
        let mut local = match location {
            PortLocation::Local(port) => Some(Attached { port, vlan: None }),
            PortLocation::Child { parent, vlan } => {
                Some(Attached { port: parent, vlan: Some(vlan.value()) })
            }
            _ => None,
        };
        if let Some(at) = local
            && !self.roles.attach(&mut self.loader, at, (datapath, key), &name)
        {
            self.tag_conflicts.insert(uuid);
            (local, location) = (None, PortLocation::Unbound);
        }
        let (security, problems) = PortSecurity::parse_as_ovn(&row.port_security);
        self.warnings.extend(problems.iter().map(|problem| format!("port {name}: {problem}")));
        let port = LogicalPort { name: name.to_string(), location, security };
        self.loader.set_port(datapath, key, port);
        let is_localport = PortKind::from(&*row.kind) == PortKind::Localport;
        self.set_localport(datapath, key, is_localport);
        let is_resident = row.chassis.is_some() && row.chassis == context.chassis;
        let was = self.ports.get(&uuid).filter(|old| old.name == name);
        if was.is_some_and(|old| old.is_resident) != is_resident {
            self.loader.set_resident(&name, is_resident);
        }
        let patch = match location {
            // Bridges have no logical flows.
            PortLocation::Patch { datapath, .. } if datapath < DatapathKey::FIRST_LOCAL => {
                Some(datapath)
            }
            _ => None,
        };
        let placed = PlacedPort { datapath, key, name, local, is_resident, patch };
        self.reachable.add(&placed);
        if let Some(old) = self.ports.insert(uuid, placed) {
            self.reachable.remove(&old);
        }
    }

    fn location(
        &self,
        replica: &Replica,
        uuid: Uuid,
        row: &PortBinding,
        context: &LocalContext<'_>,
    ) -> PortLocation {
        let kind = PortKind::from(&*row.kind);
        let local = context.local.of_logical(&row.logical_port);
        let local = local.map(|(port, _)| PortLocation::Local(port));
        let is_here = row.chassis.is_some() && row.chassis == context.chassis;
        let here = match kind {
            PortKind::Vif if claims::is_child(row) => child(replica, row, context),
            PortKind::Vif if claims::may_bind(row, context.names) => local,
            PortKind::Localnet => self.bridges.location(uuid),
            PortKind::Localport => local,
            PortKind::Patch => Some(self.patch(replica, row)),
            PortKind::L3Gateway if is_here => Some(self.patch(replica, row)),
            PortKind::ChassisRedirect if is_here => Some(self.redirect(replica, row)),
            _ => None,
        };
        // A switch with a localnet port reaches its ports on other hosts through the physical
        // network.
        let by_localnet = || {
            let is_reached_so =
                !matches!(kind, PortKind::Patch | PortKind::Localnet | PortKind::ChassisRedirect);
            let switch = self.datapaths.get(&row.datapath).filter(|_| is_reached_so)?;
            self.bridges.of_switch(*switch).map(PortLocation::Redirect)
        };
        here.or_else(by_localnet)
            .or_else(|| {
                let remote = row.chassis.filter(|_| !is_here)?;
                let endpoint = context.endpoints.of(remote, row.encap)?;
                Some(PortLocation::Remote { endpoint, logical_ports: true })
            })
            .unwrap_or(PortLocation::Unbound)
    }

    fn patch(&self, replica: &Replica, row: &PortBinding) -> PortLocation {
        let peer = named(replica, row, "peer").and_then(|peer| self.identity(&peer));
        peer.map_or(PortLocation::Unbound, |(datapath, port)| PortLocation::Patch {
            datapath,
            port,
        })
    }

    fn redirect(&self, replica: &Replica, row: &PortBinding) -> PortLocation {
        let port = named(replica, row, "distributed-port");
        let port = port.filter(|port| port.datapath == row.datapath);
        let port = port.and_then(|port| self.identity(&port));
        port.map_or(PortLocation::Unbound, |(_, port)| PortLocation::Redirect(port))
    }
}

/// The location of a container's port, if the interface of its parent is on this host.
fn child(replica: &Replica, row: &PortBinding, context: &LocalContext<'_>) -> Option<PortLocation> {
    let parent = claims::local_parent(replica, row, context)?;
    let (parent, _) = context.local.of_logical(&parent)?;
    let vlan = VlanId::new(u16::try_from(row.tag?).ok()?)?;
    Some(PortLocation::Child { parent, vlan })
}

/// The port that an option names.
fn named(replica: &Replica, row: &PortBinding, option: &str) -> Option<PortBinding> {
    port_named(replica, row.options.get(option)?)
}

/// The port with this name.
pub(crate) fn port_named(replica: &Replica, name: &str) -> Option<PortBinding> {
    PortBinding::from_row(row_named(replica, name)?)
}

/// The row of the port with this name.
pub(crate) fn row_named<'r>(replica: &'r Replica, name: &str) -> Option<&'r Arc<Row>> {
    let by_name = replica.table(PortBinding::NAME)?.index(index::NAME)?;
    by_name.find_atom(Atom::String(name.into())).next()
}

/// The ports with one of these keys in an index.
pub(crate) fn find(replica: &Replica, index: &str, keys: &[Atom]) -> Vec<Uuid> {
    let found = replica.table(PortBinding::NAME).and_then(|table| table.index(index));
    let rows = found.into_iter().flat_map(|found| {
        keys.iter().flat_map(move |key| found.find_atom(key.clone())).collect::<Vec<_>>()
    });
    rows.map(|row| row.uuid()).collect()
}
