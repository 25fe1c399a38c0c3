//! Reads TOML tables into drafts: each table by itself, with references to tables that were read
//! before.
//!
//! A draft holds the parts that could be read. Each missing part has been reported, so that later
//! checks need not report the consequences of that error.

mod acl;
mod bridge;
mod connections;
mod host;
#[cfg(test)]
mod json_schema;
mod port;
mod router;
mod services;
mod sets;
mod switch;
mod tunnel;
mod underlay;

pub(crate) use acl::{AclDraft, ScopeDraft};
pub(crate) use bridge::BridgeDraft;
pub(crate) use host::HostDraft;
pub(crate) use router::{LinkDraft, RouteDraft, RouterDraft, RouterPortDraft};
pub(crate) use services::{HealthDraft, HealthKind, LoadBalancerDraft, NatDraft};
pub(crate) use sets::SetsDraft;
pub(crate) use switch::SwitchDraft;
pub(crate) use tunnel::OptionsDraft;

use crate::errors::ProblemCollector;
use crate::interface_address;
use crate::section::{Field, Located, Schema, Section, key};
use crate::{HostIndex, IpNet, Prefix, SwitchIndex, UnderlayFamily, suggest};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use toml::de::DeTable;
use wire::MacAddr;

/// The version of the format. A change that makes older files invalid increases it.
const VERSION: u32 = 1;

const ROOT: Schema = Schema {
    name: "the network",
    keys: &[
        key("tunnel", "tunnel = \"geneve\""),
        key("underlay_mtu", "underlay_mtu = 1500"),
        key("least_path_mtu", "least_path_mtu = 1280"),
        key("path_probes", "path_probes = true"),
        key("underlay_family", "underlay_family = 4"),
        key("underlay", "[underlay]"),
        key("punt_limit", "punt_limit = 1024"),
        key("upcall_cpu_percent", "upcall_cpu_percent = 25"),
        key("tunnel_options", "[tunnel_options.geneve]"),
        key("host", "[[host]]"),
        key("logical_switch", "[[logical_switch]]"),
        key("logical_router", "[[logical_router]]"),
        key("bridge", "[[bridge]]"),
        key("address_set", "[address_set]"),
        key("port_group", "[port_group]"),
        key("acl", "[[acl]]"),
        key("load_balancer", "[[load_balancer]]"),
        key("nat", "[[nat]]"),
        key("connections", "[connections]"),
        key("version", "version = 1"),
    ],
};

/// The state of a key that has a default: absent, invalid (and reported), or given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Setting<T> {
    Default,
    Wrong,
    Given(T),
}

impl<T> Setting<T> {
    /// The value, or `default` if it is absent; `None` if it is invalid, which has been reported.
    pub(crate) fn given_or(self, default: T) -> Option<T> {
        match self {
            Self::Default => Some(default),
            Self::Wrong => None,
            Self::Given(given) => Some(given),
        }
    }

    /// The setting of a field that may be absent, read by `read`.
    fn of<'a, 't>(
        field: Option<Field<'a, 't>>,
        read: impl FnOnce(Field<'a, 't>) -> Option<T>,
    ) -> Self {
        match field {
            None => Self::Default,
            Some(field) => read(field).map_or(Self::Wrong, Self::Given),
        }
    }
}

/// A network as read. Missing or invalid parts are absent, and have been reported.
pub(crate) struct NetworkDraft {
    pub(crate) underlay_mtu: Setting<Located<u16>>,
    pub(crate) least_path_mtu: Setting<Located<u16>>,
    pub(crate) path_probes: Setting<bool>,
    pub(crate) checks_reverse_path: Setting<bool>,
    pub(crate) underlay_family: Setting<UnderlayFamily>,
    pub(crate) punt_limit: Setting<u32>,
    pub(crate) upcall_cpu_percent: Setting<u32>,
    pub(crate) connections: conntrack::Config,
    pub(crate) options: OptionsDraft,
    pub(crate) hosts: Vec<HostDraft>,
    pub(crate) switches: Vec<SwitchDraft>,
    pub(crate) bridges: Vec<BridgeDraft>,
    pub(crate) routers: Vec<RouterDraft>,
    pub(crate) sets: SetsDraft,
    pub(crate) acls: Vec<AclDraft>,
    pub(crate) load_balancers: Vec<LoadBalancerDraft>,
    pub(crate) nats: Vec<NatDraft>,
}

/// Reads a whole file.
pub(crate) fn network(report: &mut ProblemCollector<'_>, root: &DeTable<'_>) -> NetworkDraft {
    let root = Section::open(report, &ROOT, 0, root);
    if let Some(field) = root.get("version") {
        field.integer(report, 1..=VERSION, "this weft reads version 1 of network.toml");
    }
    let default_tunnel = match root.get("tunnel") {
        None if root.is_misspelt("tunnel") => Setting::Wrong,
        field => Setting::of(field, |field| tunnel::tunnel_type(report, field)),
    };
    let underlay_mtu = Setting::of(root.get("underlay_mtu"), |field| {
        let rule = "an underlay MTU is 576 to 65535 bytes of IP packet";
        field.integer(report, 576..=u16::MAX, rule).map(|mtu| field.located(mtu))
    });
    let least_path_mtu = least_path_mtu(report, &root);
    let checks_reverse_path = underlay::checks_reverse_path(report, root.get("underlay"));
    let path_probes = Setting::of(root.get("path_probes"), |field| field.boolean(report));
    let underlay_family =
        Setting::of(root.get("underlay_family"), |field| underlay_family(report, field));
    let punt_limit = Setting::of(root.get("punt_limit"), |field| {
        let rule = "a limit of punted packets is 128 to 4096";
        field.integer(report, 128..=4096, rule)
    });
    let upcall_cpu_percent = Setting::of(root.get("upcall_cpu_percent"), |field| {
        let rule = "the processor time for upcalls is 1 to 6400 percent of one processor";
        field.integer(report, 1..=6400, rule)
    });
    let connections = connections::connections(report, root.get("connections"));
    let options = tunnel::options(report, root.get("tunnel_options"));
    let hosts = host::hosts(report, &root);
    let mut reader = switch::SwitchReader::new(default_tunnel, &options, &hosts);
    let switches = reader.switches(report, root.get("logical_switch"));
    let bridges = reader.bridges(report, root.get("bridge"));
    let (switch_names, port_names) = reader.into_names();
    let mut reader = router::RouterReader::new(&hosts, &switches, switch_names, port_names);
    let routers = reader.routers(report, root.get("logical_router"));
    let mut sets = sets::sets(report, &root);
    sets.expand_pools(&switches);
    let acls = acl::acls(report, root.get("acl"), &switches);
    let load_balancers =
        services::load_balancers(report, root.get("load_balancer"), (&switches, &routers));
    let nats = services::nats(report, root.get("nat"), &routers);
    NetworkDraft {
        underlay_mtu,
        least_path_mtu,
        path_probes,
        checks_reverse_path,
        underlay_family,
        punt_limit,
        upcall_cpu_percent,
        connections,
        options,
        hosts,
        switches,
        bridges,
        routers,
        sets,
        acls,
        load_balancers,
        nats,
    }
}

/// Reads `least_path_mtu` of the network or of a host.
fn least_path_mtu(
    report: &mut ProblemCollector<'_>,
    section: &Section<'_, '_>,
) -> Setting<Located<u16>> {
    Setting::of(section.get("least_path_mtu"), |field| {
        let rule = "a least path MTU is 576 to 65535 bytes of IP packet";
        field.integer(report, 576..=u16::MAX, rule).map(|mtu| field.located(mtu))
    })
}

fn underlay_family(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
) -> Option<UnderlayFamily> {
    match field.integer(report, 4..=6, "write 4 or 6")? {
        4 => Some(UnderlayFamily::V4),
        6 => Some(UnderlayFamily::V6),
        number => {
            field.error(report, format!("`underlay_family` is {number}; write 4 or 6"));
            None
        }
    }
}

/// Finds duplicates: maps each key to the offset of its first occurrence.
pub(crate) struct Unique<K> {
    first: HashMap<K, usize>,
}

impl<K: Eq + Hash> Unique<K> {
    pub(crate) fn new() -> Self {
        Self { first: HashMap::new() }
    }

    /// The offset of the first occurrence of `key`.
    pub(crate) fn get(&self, key: &K) -> Option<usize> {
        self.first.get(key).copied()
    }

    /// Adds an occurrence of `key`. Returns `None` for the first one, otherwise the offset of the
    /// first.
    pub(crate) fn insert(&mut self, key: K, at: usize) -> Option<usize> {
        match self.first.entry(key) {
            Entry::Occupied(entry) => Some(*entry.get()),
            Entry::Vacant(entry) => {
                entry.insert(at);
                None
            }
        }
    }
}

/// Reads the `name` of a table of the kind `kind` (`host`, `logical switch`, `port`). It must not
/// be in `names` yet.
fn object_name(
    report: &mut ProblemCollector<'_>,
    section: &Section<'_, '_>,
    kind: &str,
    names: &mut Unique<String>,
) -> Option<String> {
    let field = section.require(report, "name")?;
    let name = field.string(report)?;
    if let Some(problem) = crate::name::object_problem(name) {
        field.error(report, problem);
        return None;
    }
    if let Some(first) = names.insert(name.to_owned(), field.at) {
        let line = report.line(first);
        field.error(
            report,
            format!(
                "`{name}` is already the name of the {kind} in line {line}; give each {kind} \
                     its own name"
            ),
        );
        return None;
    }
    Some(name.to_owned())
}

/// Finds a logical switch by its name.
fn switch_named(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
    switches: &[SwitchDraft],
) -> Option<Located<SwitchIndex>> {
    let name = field.string(report)?;
    let found = switches.iter().position(|switch| switch.name.as_deref() == Some(name));
    // A switch with an invalid name, which has been reported, may be the one that is meant.
    if found.is_none() && switches.iter().all(|switch| switch.name.is_some()) {
        let known = switches.iter().filter_map(|switch| switch.name.as_deref());
        let hint = suggest::hint(name, known, "logical switches");
        field.error(report, format!("unknown logical switch {name:?}{hint}"));
    }
    found.map(|index| field.located(SwitchIndex(index)))
}

/// Finds a host by its name.
fn host_named(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
    hosts: &[HostDraft],
) -> Option<HostIndex> {
    let name = field.string(report)?;
    let found = hosts.iter().position(|host| host.name.as_deref() == Some(name));
    if found.is_none() {
        unknown_host(report, field, name, hosts);
    }
    found.map(HostIndex)
}

/// Reports an unknown host, unless a host with an invalid name, which has been reported, may be the
/// one that is meant.
fn unknown_host(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
    name: &str,
    hosts: &[HostDraft],
) {
    if !hosts.is_empty() && hosts.iter().all(|host| host.name.is_some()) {
        let known = hosts.iter().filter_map(|host| host.name.as_deref());
        let hint = suggest::hint(name, known, "hosts");
        field.error(report, format!("unknown host {name:?}{hint}"));
    }
}

/// Reads a unicast MAC address.
fn unicast_mac(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<MacAddr> {
    let text = field.string(report)?;
    let mac: MacAddr = match text.parse() {
        Ok(mac) => mac,
        Err(error) => {
            field.error(report, format!("{text:?} is {error}"));
            return None;
        }
    };
    if !mac.is_unicast() {
        let why = if mac.is_multicast() { "a multicast address" } else { "all zero" };
        field.error(
            report,
            format!("{mac} is {why}; a port needs a unicast address, such as 02:00:00:00:00:01"),
        );
        return None;
    }
    Some(mac)
}

/// Reads an interface address with its prefix length.
fn ip_net(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<IpNet> {
    interface_address::parse(field.string(report)?)
        .map_err(|problem| field.error(report, problem))
        .ok()
}

/// Reads an address, or a network with its prefix length.
fn ip_or_network(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<Prefix> {
    Prefix::parse(field.string(report)?, true).map_err(|problem| field.error(report, problem)).ok()
}

/// Reads the name of an interface.
fn interface_name(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<String> {
    let name = field.string(report)?;
    match crate::name::interface_problem(name) {
        Some(problem) => {
            field.error(report, problem);
            None
        }
        None => Some(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_names_every_key() {
        let manual = include_str!("../../../../docs/network-toml.md");
        // The manual has no table of these keys: it explains them where they are used.
        let in_prose = ["[tunnel_options]", "`vlan`", "`device`"];
        let tables = json_schema::tables().filter(|schema| !in_prose.contains(&schema.name));
        let schemas = std::iter::once(&ROOT).chain(tables);
        for schema in schemas {
            for key in schema.keys {
                let entry = format!("| `{}` |", key.name);
                assert!(manual.contains(&entry), "{} of {}", key.name, schema.name);
            }
        }
    }
}
