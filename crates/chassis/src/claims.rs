//! Which logical ports this host claims: the rule that every chassis of a deployment follows.

use crate::program::LocalContext;
use crate::program::ports::row_named;
use crate::tables::{HaChassis, HaChassisGroup, PortBinding, Text, index};
use ovsdb::{Atom, Replica, Table, Uuid};
use southbound::PortKind;
use std::collections::BTreeSet;

/// True if the port may be bound to the host with these names: `options:requested-chassis` is empty
/// or names it. The first name of a list is the main host; further ones serve migrations.
pub(crate) fn may_bind(row: &PortBinding, names: [&str; 2]) -> bool {
    let requested = row.options.get("requested-chassis").map_or("", |list| list);
    let main = requested.split(',').next().unwrap_or_default().trim();
    main.is_empty() || names.contains(&main)
}

/// True for the port of a container, which has a parent.
pub(crate) fn is_child(row: &PortBinding) -> bool {
    row.parent_port.as_ref().is_some_and(|parent| !parent.is_empty())
}

/// The parent of a container's port, if its interface is on this host.
pub(crate) fn local_parent(
    replica: &Replica,
    row: &PortBinding,
    context: &LocalContext<'_>,
) -> Option<Text> {
    let name = row.parent_port.clone()?;
    let parent = PortBinding::from_row(row_named(replica, &name)?)?;
    let is_local = context.local.logical.contains_key(&name) && may_bind(&parent, context.names);
    (is_local && row.tag.is_some_and(|tag| tag != 0)).then_some(name)
}

/// True if this host claims the port.
pub(crate) fn should_claim(
    replica: &Replica,
    row: &PortBinding,
    context: &LocalContext<'_>,
) -> bool {
    match PortKind::from(&*row.kind) {
        PortKind::Vif if is_child(row) => local_parent(replica, row, context).is_some(),
        PortKind::Vif => {
            context.local.logical.contains_key(&row.logical_port) && may_bind(row, context.names)
        }
        PortKind::L3Gateway => {
            let [system_id, _] = context.names;
            row.options.get("l3gateway-chassis").is_some_and(|host| **host == *system_id)
        }
        PortKind::ChassisRedirect => {
            let preferred = row.ha_chassis_group.and_then(|group| preferred_host(replica, group));
            preferred.is_some() && preferred == context.chassis
        }
        PortKind::Patch | PortKind::Localnet | PortKind::Localport | PortKind::Other(_) => false,
    }
}

/// The host of the group with the highest priority. weft has no BFD, so it does not know whether
/// that host is up.
fn preferred_host(replica: &Replica, group: Uuid) -> Option<Uuid> {
    let members = replica.get::<HaChassisGroup>(group)?.ha_chassis;
    let members = members.into_iter().filter_map(|member| replica.get::<HaChassis>(member));
    let hosts = members.filter_map(|member| Some((member.priority, member.chassis?)));
    hosts.max().map(|(_, host)| host)
}

/// The rows that this host has claimed, or may have to claim.
pub(crate) fn candidates(replica: &Replica, context: &LocalContext<'_>) -> BTreeSet<Uuid> {
    let local = context.local.logical.keys().filter_map(|name| row_named(replica, name));
    let mut rows: BTreeSet<Uuid> = local.map(|row| row.uuid()).collect();
    let Some(table) = replica.table(PortBinding::NAME) else { return rows };
    for name in context.local.logical.keys() {
        let children = table.index(index::PARENT).into_iter();
        let children = children.flat_map(|by| by.find_atom(Atom::String(name.clone())));
        rows.extend(children.map(|row| row.uuid()));
    }
    let bound = context.chassis.zip(table.index(index::CHASSIS));
    let bound = bound.into_iter().flat_map(|(host, by)| by.find_atom(Atom::Uuid(host)));
    rows.extend(bound.map(|row| row.uuid()));
    let [system_id, _] = context.names;
    let gateways = table.index(index::OPTIONS).into_iter();
    let gateways = gateways.flat_map(|by| by.find_atom(Atom::String(system_id.into())));
    rows.extend(gateways.map(|row| row.uuid()));
    let redirects = table.index(index::HA_GROUP).into_iter().flat_map(|by| by.rows());
    rows.extend(redirects.map(|row| row.uuid()));
    rows
}
