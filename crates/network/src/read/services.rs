//! `[[load_balancer]]` and `[[nat]]`.

use super::acl::word;
use super::{RouterDraft, Setting, SwitchDraft, Unique, ip_or_network, object_name, switch_named};
use crate::errors::ProblemCollector;
use crate::interface_address::not_unicast;
use crate::section::{Field, Located, Schema, Section, key};
use crate::{FileLine, NatKind, Prefix, RouterIndex, SwitchIndex, suggest};
use lflow::actions::Transport;
use std::net::{IpAddr, SocketAddr};

pub(super) const LOAD_BALANCER: Schema = Schema {
    name: "[[load_balancer]]",
    keys: &[
        key("name", "name = \"web\""),
        key("switches", "switches = [\"clients\"]"),
        key("routers", "routers = [\"edge\"]"),
        key("protocol", "protocol = \"tcp\""),
        key("vip", "vip = \"10.9.0.1:80\""),
        key("backends", "backends = [\"10.0.1.11:8080\"]"),
        key("affinity", "affinity = 300"),
    ],
};

pub(super) const NAT: Schema = Schema {
    name: "[[nat]]",
    keys: &[
        key("router", "router = \"edge\""),
        key("type", "type = \"snat\""),
        key("external", "external = \"203.0.113.1\""),
        key("internal", "internal = \"10.0.1.0/24\""),
    ],
};

/// A load balancer as far as it could be read.
pub(crate) struct LoadBalancerDraft {
    pub(crate) name: Option<String>,
    pub(crate) switches: Option<Vec<Located<SwitchIndex>>>,
    pub(crate) routers: Option<Vec<Located<RouterIndex>>>,
    pub(crate) protocol: Option<Transport>,
    pub(crate) vip: Option<Located<SocketAddr>>,
    pub(crate) backends: Option<Vec<Located<SocketAddr>>>,
    pub(crate) affinity_s: Setting<u16>,
    pub(crate) line: FileLine,
}

/// A rule of network address translation as far as it could be read.
pub(crate) struct NatDraft {
    pub(crate) router: Option<Located<RouterIndex>>,
    pub(crate) kind: Option<NatKind>,
    pub(crate) external: Option<Located<IpAddr>>,
    pub(crate) internal: Option<Located<Prefix>>,
    pub(crate) line: FileLine,
}

pub(super) fn load_balancers(
    report: &mut ProblemCollector<'_>,
    field: Option<Field<'_, '_>>,
    (switches, routers): (&[SwitchDraft], &[RouterDraft]),
) -> Vec<LoadBalancerDraft> {
    let sections = field.map_or_else(Vec::new, |field| field.tables(report, &LOAD_BALANCER));
    let mut names = Unique::new();
    let protocols: Vec<_> = Transport::ALL.iter().map(|it| (it.name(), *it)).collect();
    let read = |section: &Section<'_, '_>| LoadBalancerDraft {
        name: object_name(report, section, "load balancer", &mut names),
        switches: clients(report, section, "switches", |report, element| {
            switch_named(report, element, switches)
        }),
        routers: clients(report, section, "routers", |report, element| {
            router_named(report, element, routers)
        }),
        protocol: section
            .require(report, "protocol")
            .and_then(|field| word(report, field, "protocol", &protocols)),
        vip: section.require(report, "vip").and_then(|field| socket(report, field)),
        backends: section
            .require(report, "backends")
            .and_then(|field| list(report, (field, "backends"), socket)),
        affinity_s: Setting::of(section.get("affinity"), |field| {
            let rule = "seconds without a new connection after which a client loses its backend, \
                        1 to 65535";
            field.integer(report, 1..=u16::MAX, rule)
        }),
        line: FileLine(report.line(section.at)),
    };
    sections.iter().map(read).collect()
}

/// Reads `switches` or `routers`, of which a load balancer needs at least one. Without `routers`,
/// the missing one is `switches`.
fn clients<'a, 't, T>(
    report: &mut ProblemCollector<'_>,
    section: &Section<'a, 't>,
    name: &'static str,
    read: impl FnMut(&mut ProblemCollector<'_>, Field<'a, 't>) -> Option<T>,
) -> Option<Vec<T>> {
    let is_required =
        name == "switches" && section.get("routers").is_none() && !section.is_misspelt("routers");
    let field = if is_required {
        section.require(report, name)?
    } else {
        match section.get(name) {
            Some(field) => field,
            None => return Some(Vec::new()),
        }
    };
    list(report, (field, name), read)
}

/// The elements of an array that must not be empty; `None` if one is invalid.
fn list<'a, 't, T>(
    report: &mut ProblemCollector<'_>,
    (field, name): (Field<'a, 't>, &str),
    mut read: impl FnMut(&mut ProblemCollector<'_>, Field<'a, 't>) -> Option<T>,
) -> Option<Vec<T>> {
    let elements: Vec<_> = field.array(report)?.map(|element| read(report, element)).collect();
    if elements.is_empty() {
        field.error(report, format!("`{name}` is empty; a load balancer needs at least one"));
        return None;
    }
    elements.into_iter().collect()
}

/// Reads a unicast address with a port.
fn socket(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<Located<SocketAddr>> {
    let text = field.string(report)?;
    let problem = match text.parse::<SocketAddr>() {
        Ok(socket) if socket.port() == 0 => format!("{text:?} has port 0"),
        Ok(socket) => match not_unicast(socket.ip()) {
            Some(why) => format!("{} is {why}", socket.ip()),
            None => return Some(field.located(socket)),
        },
        Err(_) => format!("{text:?} is not an IP address with a port"),
    };
    let right = "write for example \"10.0.1.11:8080\" or \"[2001:db8::11]:8080\"";
    field.error(report, format!("{problem}; {right}"));
    None
}

pub(super) fn nats(
    report: &mut ProblemCollector<'_>,
    field: Option<Field<'_, '_>>,
    routers: &[RouterDraft],
) -> Vec<NatDraft> {
    let sections = field.map_or_else(Vec::new, |field| field.tables(report, &NAT));
    let kinds = NatKind::ALL.map(|kind| (kind.name(), kind));
    let read = |section: &Section<'_, '_>| NatDraft {
        router: section
            .require(report, "router")
            .and_then(|field| router_named(report, field, routers)),
        kind: section.require(report, "type").and_then(|field| word(report, field, "type", &kinds)),
        external: section.require(report, "external").and_then(|field| address(report, field)),
        internal: section.require(report, "internal").and_then(|field| {
            let prefix = ip_or_network(report, field)?;
            Some(field.located(prefix))
        }),
        line: FileLine(report.line(section.at)),
    };
    sections.iter().map(read).collect()
}

fn router_named(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
    routers: &[RouterDraft],
) -> Option<Located<RouterIndex>> {
    let name = field.string(report)?;
    let found = routers.iter().position(|router| router.name.as_deref() == Some(name));
    // A router with an invalid name, which has been reported, may be the one that is meant.
    if found.is_none() && routers.iter().all(|router| router.name.is_some()) {
        let known = routers.iter().filter_map(|router| router.name.as_deref());
        let hint = suggest::hint(name, known, "logical routers");
        field.error(report, format!("unknown logical router {name:?}{hint}"));
    }
    found.map(|index| field.located(RouterIndex(index)))
}

/// Reads a unicast address.
fn address(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<Located<IpAddr>> {
    let text = field.string(report)?;
    let problem = match text.parse::<IpAddr>() {
        Ok(addr) => match not_unicast(addr) {
            Some(why) => format!("{addr} is {why}"),
            None => return Some(field.located(addr)),
        },
        Err(_) => format!("{text:?} is not an IP address"),
    };
    field.error(report, format!("{problem}; write one address, such as \"203.0.113.1\""));
    None
}
