//! `[[load_balancer]]` and `[[nat]]`.

use super::acl::word;
use super::{RouterDraft, Setting, SwitchDraft, Unique, ip_or_network, object_name, switch_named};
use crate::errors::ProblemCollector;
use crate::interface_address::not_unicast;
use crate::section::{Field, Located, Schema, Section, key};
use crate::{FileLine, NatKind, Prefix, RouterIndex, SwitchIndex, suggest};
use lflow::actions::Transport;
use services::health::{HttpPath, MAX_PATH_LEN, Timing};
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
        key("health", "health = { sources = [\"10.0.1.254\"] }"),
    ],
};

pub(super) const HEALTH: Schema = Schema {
    name: "`health`",
    keys: &[
        key("kind", "kind = \"http\""),
        key("sources", "sources = [\"10.0.1.254\"]"),
        key("path", "path = \"/healthy\""),
        key("interval", "interval = 5"),
        key("timeout", "timeout = 3"),
        key("failures", "failures = 3"),
        key("successes", "successes = 1"),
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

/// A load balancer as read. Missing or invalid parts are absent, and have been reported.
pub(crate) struct LoadBalancerDraft {
    pub(crate) name: Option<String>,
    pub(crate) switches: Option<Vec<Located<SwitchIndex>>>,
    pub(crate) routers: Option<Vec<Located<RouterIndex>>>,
    pub(crate) protocol: Option<Transport>,
    pub(crate) vip: Option<Located<SocketAddr>>,
    pub(crate) backends: Option<Vec<Located<SocketAddr>>>,
    pub(crate) affinity_s: Setting<u16>,
    pub(crate) health: Setting<HealthDraft>,
    pub(crate) line: FileLine,
}

/// The health checks of a load balancer.
pub(crate) struct HealthDraft {
    /// The position of the table.
    pub(crate) at: usize,
    /// `None` for the default of the protocol.
    pub(crate) kind: Option<Located<HealthKind>>,
    pub(crate) sources: Vec<Located<IpAddr>>,
    pub(crate) path: Option<Located<HttpPath>>,
    pub(crate) timing: Timing,
}

/// The kind of health check, by its word in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HealthKind {
    Tcp,
    Udp,
    Http,
}

/// A NAT rule as read. Missing or invalid parts are absent, and have been reported.
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
        health: Setting::of(section.get("health"), |field| health(report, field)),
        line: FileLine(report.line(section.at)),
    };
    sections.iter().map(read).collect()
}

fn health(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<HealthDraft> {
    /// The longest interval and timeout, in seconds.
    const MAX_SECONDS: u32 = 3600;
    let section = field.table(report, &HEALTH)?;
    let errors = report.len();
    let kinds = [("tcp", HealthKind::Tcp), ("http", HealthKind::Http), ("udp", HealthKind::Udp)];
    let kind = section.get("kind").and_then(|field| {
        let kind = word(report, field, "kind", &kinds)?;
        Some(field.located(kind))
    });
    let sources = section.require(report, "sources").and_then(|field| {
        list(report, (field, "sources"), |report, element| address(report, element))
    });
    let path = section.get("path").and_then(|field| {
        let text = field.string(report)?;
        let path = HttpPath::new(text);
        if path.is_none() {
            let message = format!(
                "{text:?} is no path; write one that begins with `/` and has at most \
                 {MAX_PATH_LEN} visible ASCII characters"
            );
            field.error(report, message);
        }
        Some(field.located(path?))
    });
    let mut number = |name, max, default, rule: &str| {
        let field = section.get(name);
        field.map_or(Some(default), |field| field.integer(report, 1..=max, rule))
    };
    let interval = number("interval", MAX_SECONDS, 5, "seconds between checks, 1 to 3600");
    let timeout = number("timeout", MAX_SECONDS, 3, "seconds a backend may take, 1 to 3600");
    let failures = number("failures", 100, 3, "failures in a row, 1 to 100");
    let successes = number("successes", 100, 1, "successes in a row, 1 to 100");
    // A key of the wrong type has been reported.
    if report.len() > errors {
        return None;
    }
    let timing = Timing {
        interval_ms: interval? * 1000,
        timeout_ms: timeout? * 1000,
        failures: failures?,
        successes: successes?,
    };
    Some(HealthDraft { at: field.at, kind, sources: sources?, path, timing })
}

/// Reads `switches` or `routers`. A load balancer needs at least one of both keys; if both are
/// missing, the error names `switches`.
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
pub(super) fn address(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
) -> Option<Located<IpAddr>> {
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
