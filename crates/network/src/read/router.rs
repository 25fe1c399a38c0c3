//! `[[logical_router]]`.

use super::{
    HostDraft, Setting, SwitchDraft, Unique, host_named, ip_net, object_name, services,
    switch_named, unicast_mac,
};
use crate::errors::ProblemCollector;
use crate::interface_address::not_unicast;
use crate::section::{Field, Located, Schema, Section, key};
use crate::{ForceSnat, HostIndex, IpNet, Prefix, SwitchIndex};
use flow::PortKey;
use std::net::IpAddr;
use wire::MacAddr;

pub(super) const ROUTER: Schema = Schema {
    name: "[[logical_router]]",
    keys: &[
        key("name", "name = \"core\""),
        key("host", "host = \"h1\""),
        key(
            "lb_force_snat_ip",
            "lb_force_snat_ip = \"router_ip\" or lb_force_snat_ip = [\"10.0.1.1\"]",
        ),
        key("dnat_force_snat_ip", "dnat_force_snat_ip = [\"10.0.1.1\"]"),
        key("port", "[[logical_router.port]]"),
        key("route", "[[logical_router.route]]"),
    ],
};

pub(super) const PORT: Schema = Schema {
    name: "[[logical_router.port]]",
    keys: &[
        key("name", "name = \"core-web\""),
        key("switch", "switch = \"web\""),
        key("peer", "peer = \"edge-core\""),
        key("mac", "mac = \"02:00:00:00:01:01\""),
        key("addresses", "addresses = [\"10.0.1.1/24\"]"),
    ],
};

pub(super) const ROUTE: Schema = Schema {
    name: "[[logical_router.route]]",
    keys: &[
        key("prefix", "prefix = \"0.0.0.0/0\""),
        key("next_hop", "next_hop = \"10.0.1.254\""),
        key("port", "port = \"core-web\""),
    ],
};

/// A logical router as read. Missing or invalid parts are absent, and have been reported.
pub(crate) struct RouterDraft {
    pub(crate) at: usize,
    pub(crate) name: Option<String>,
    pub(crate) home: Setting<Located<HostIndex>>,
    pub(crate) lb_force_snat: Setting<Located<ForceSnat>>,
    pub(crate) dnat_force_snat: Setting<Located<ForceSnat>>,
    pub(crate) ports: Vec<RouterPortDraft>,
    pub(crate) routes: Vec<RouteDraft>,
}

/// A port of a logical router as read. Missing or invalid parts are absent, and have been reported.
pub(crate) struct RouterPortDraft {
    pub(crate) at: usize,
    pub(crate) name: Option<String>,
    pub(crate) mac: Option<Located<MacAddr>>,
    pub(crate) addresses: Vec<Located<IpNet>>,
    pub(crate) link: Option<LinkDraft>,
}

/// The other end of a router port's link.
pub(crate) enum LinkDraft {
    Switch(Located<SwitchIndex>),
    /// The router port of that name.
    Peer(Located<String>),
}

/// A static route as read. Missing or invalid parts are absent, and have been reported.
pub(crate) struct RouteDraft {
    pub(crate) at: usize,
    pub(crate) prefix: Option<Located<Prefix>>,
    pub(crate) next_hop: Option<Located<IpAddr>>,
    /// The name of a port.
    pub(crate) port: Option<Located<String>>,
}

/// Reads the logical routers, with references to the tables that were read before.
pub(super) struct RouterReader<'s> {
    hosts: &'s [HostDraft],
    switches: &'s [SwitchDraft],
    names: Unique<String>,
    port_names: Unique<String>,
}

impl<'s> RouterReader<'s> {
    /// `names` and `port_names` are already in use.
    pub(super) fn new(
        hosts: &'s [HostDraft],
        switches: &'s [SwitchDraft],
        names: Unique<String>,
        port_names: Unique<String>,
    ) -> Self {
        Self { hosts, switches, names, port_names }
    }

    pub(super) fn routers(
        &mut self,
        report: &mut ProblemCollector<'_>,
        field: Option<Field<'_, '_>>,
    ) -> Vec<RouterDraft> {
        let sections = field.map_or_else(Vec::new, |field| field.tables(report, &ROUTER));
        sections.iter().map(|section| self.router(report, section)).collect()
    }

    fn router(
        &mut self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
    ) -> RouterDraft {
        let name = object_name(report, section, "logical switch or router", &mut self.names);
        let home = Setting::of(section.get("host"), |field| {
            let home = host_named(report, field, self.hosts)?;
            Some(field.located(home))
        });
        let lb_force_snat = Setting::of(section.get("lb_force_snat_ip"), |field| match field {
            field if field.is_array() => force_snat(report, field),
            field => router_ip(report, field),
        });
        let dnat_force_snat =
            Setting::of(section.get("dnat_force_snat_ip"), |field| force_snat(report, field));
        let known_problems = report.len();
        let ports = section.require(report, "port");
        let sections = ports.map_or_else(Vec::new, |field| field.tables(report, &PORT));
        if let (Some(field), true) = (ports, sections.is_empty() && report.len() == known_problems)
        {
            field.error(report, "`port` is empty; a logical router needs at least one port");
        }
        if let Some(first_too_many) = sections.get(usize::from(PortKey::MAX_PORT)) {
            report.error(
                first_too_many.at,
                format!(
                    "a logical router has at most {} ports, this one has {}",
                    PortKey::MAX_PORT,
                    sections.len()
                ),
            );
        }
        let ports = sections.iter().map(|section| self.port(report, section)).collect();
        let routes = section.get("route");
        let routes = routes.map_or_else(Vec::new, |field| field.tables(report, &ROUTE));
        let routes = routes.iter().map(|section| route(report, section)).collect();
        RouterDraft { at: section.at, name, home, lb_force_snat, dnat_force_snat, ports, routes }
    }

    fn port(
        &mut self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
    ) -> RouterPortDraft {
        let name = object_name(report, section, "port", &mut self.port_names);
        let mac = section.require(report, "mac").and_then(|field| {
            let mac = unicast_mac(report, field)?;
            Some(field.located(mac))
        });
        let addresses = section
            .require(report, "addresses")
            .map_or_else(Vec::new, |field| addresses(report, field));
        let link = self.link(report, section);
        RouterPortDraft { at: section.at, name, mac, addresses, link }
    }

    fn link(
        &self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
    ) -> Option<LinkDraft> {
        const RIGHT: &str = "write switch = \"web\" for a logical switch, or peer = \
                             \"edge-core\" for a port of \
                             another logical router";
        match (section.get("switch"), section.get("peer")) {
            (Some(field), None) => {
                switch_named(report, field, self.switches).map(LinkDraft::Switch)
            }
            (None, Some(field)) => {
                let name = field.string(report)?.to_owned();
                Some(LinkDraft::Peer(field.located(name)))
            }
            (Some(_), Some(peer)) => {
                let place = "a port of a logical router has either `switch` or `peer`";
                report.error(peer.key_at, format!("{place}; {RIGHT}"));
                None
            }
            (None, None) if section.is_misspelt("switch") || section.is_misspelt("peer") => None,
            (None, None) => {
                let place = "[[logical_router.port]] has neither `switch` nor `peer`";
                report.error(section.at, format!("{place}; {RIGHT}"));
                None
            }
        }
    }
}

fn router_ip(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
) -> Option<Located<ForceSnat>> {
    let text = field.string(report)?;
    if text != "router_ip" {
        let right = "write \"router_ip\", or addresses as in [\"10.0.1.1\", \"2001:db8::1\"]";
        field.error(report, format!("{text:?} is not \"router_ip\"; {right}"));
        return None;
    }
    Some(field.located(ForceSnat::RouterIp))
}

/// Reads an array of one address, or of one of each family.
fn force_snat(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
) -> Option<Located<ForceSnat>> {
    let elements: Vec<_> =
        field.array(report)?.map(|element| services::address(report, element)).collect();
    let addresses: Vec<_> =
        elements.into_iter().map(|element| Some(element?.value)).collect::<Option<_>>()?;
    let of_v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    let of_v6 = addresses.len() - of_v4;
    if addresses.is_empty() || of_v4 > 1 || of_v6 > 1 {
        field.error(
            report,
            format!(
                "the array has {of_v4} IPv4 and {of_v6} IPv6 addresses; write one address, or one \
                 of each family"
            ),
        );
        return None;
    }
    Some(field.located(ForceSnat::Addresses(addresses)))
}

fn addresses(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Vec<Located<IpNet>> {
    let known_problems = report.len();
    let elements = field.array(report).into_iter().flatten();
    let addresses: Vec<_> = elements
        .filter_map(|element| {
            let net = ip_net(report, element)?;
            Some(element.located(net))
        })
        .collect();
    if addresses.is_empty() && report.len() == known_problems {
        field.error(
            report,
            "`addresses` is empty; a port of a logical router needs at least one, such as \
             addresses = [\"10.0.1.1/24\"]",
        );
    }
    addresses
}

fn route(report: &mut ProblemCollector<'_>, section: &Section<'_, '_>) -> RouteDraft {
    let prefix = section.require(report, "prefix").and_then(|field| {
        let prefix = Prefix::parse(field.string(report)?, false);
        let prefix = prefix.map_err(|problem| field.error(report, problem)).ok()?;
        Some(field.located(prefix))
    });
    let next_hop = section.require(report, "next_hop").and_then(|field| {
        let addr = next_hop(report, field)?;
        Some(field.located(addr))
    });
    let port = section.get("port").and_then(|field| {
        let name = field.string(report)?.to_owned();
        Some(field.located(name))
    });
    RouteDraft { at: section.at, prefix, next_hop, port }
}

fn next_hop(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<IpAddr> {
    let text = field.string(report)?;
    let Ok(addr) = text.parse::<IpAddr>() else {
        field.error(
            report,
            format!(
                "{text:?} is not an IP address; write that of the next router, such as \
                 \"10.0.1.254\""
            ),
        );
        return None;
    };
    if let Some(why) = not_unicast(addr) {
        field.error(report, format!("{addr} is {why}; write the address of the next router"));
        return None;
    }
    Some(addr)
}
