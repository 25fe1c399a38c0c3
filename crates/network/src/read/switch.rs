//! `[[logical_switch]]`.

use super::bridge::{self, BridgeDraft};
use super::port::{self, PortDraft};
use super::tunnel::{OptionsDraft, group, names_where, tunnel_type};
use super::{HostDraft, Setting, Unique, object_name};
use crate::Segment;
use crate::errors::ProblemCollector;
use crate::section::{Field, Located, Schema, Section, key};
use flow::{NetworkId, OptionKind, PortKey, TunnelType};
use std::net::IpAddr;
use wire::VlanId;

pub(super) const SWITCH: Schema = Schema {
    name: "[[logical_switch]]",
    keys: &[
        key("name", "name = \"blue\""),
        key("tunnel", "tunnel = \"geneve\""),
        key("vni", "vni = 5001"),
        key("vlan", "vlan = 100, or vlan = { outer = 100, inner = 200 } for qinq"),
        key("mtu", "mtu = 1400"),
        key("group", "group = \"239.1.1.1\""),
        key("arp_responder", "arp_responder = true"),
        key("port", "[[logical_switch.port]]"),
        key("pool", "[[logical_switch.pool]]"),
    ],
};

pub(super) const VLAN_PAIR: Schema =
    Schema { name: "`vlan`", keys: &[key("outer", "outer = 100"), key("inner", "inner = 200")] };

/// A logical switch as read. Missing or invalid parts are absent, and have been reported.
pub(crate) struct SwitchDraft {
    pub(crate) at: usize,
    pub(crate) name: Option<String>,
    pub(crate) tunnel: Option<TunnelType>,
    pub(crate) segment: Option<Located<Segment>>,
    pub(crate) mtu: Setting<Located<u16>>,
    /// Its own group, or that of all VXLAN switches.
    pub(crate) group: Option<Located<IpAddr>>,
    pub(crate) arp_responder: Setting<bool>,
    pub(crate) ports: Vec<PortDraft>,
}

/// Reads the logical switches, with references to the tables that were read before.
pub(super) struct SwitchReader<'h> {
    default_tunnel: Setting<TunnelType>,
    options: &'h OptionsDraft,
    names: Unique<String>,
    ports: port::PortReader<'h>,
}

impl<'h> SwitchReader<'h> {
    pub(super) fn new(
        default_tunnel: Setting<TunnelType>,
        options: &'h OptionsDraft,
        hosts: &'h [HostDraft],
    ) -> Self {
        let ports = port::PortReader::new(hosts);
        Self { default_tunnel, options, names: Unique::new(), ports }
    }

    pub(super) fn switches(
        &mut self,
        report: &mut ProblemCollector<'_>,
        field: Option<Field<'_, '_>>,
    ) -> Vec<SwitchDraft> {
        let sections = field.map_or_else(Vec::new, |field| field.tables(report, &SWITCH));
        sections.iter().map(|section| self.switch(report, section)).collect()
    }

    fn switch(
        &mut self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
    ) -> SwitchDraft {
        let name = object_name(report, section, "logical switch", &mut self.names);
        let tunnel = self.tunnel(report, section);
        let segment = tunnel.and_then(|tunnel| self.segment(report, section, tunnel));
        let mtu = Setting::of(section.get("mtu"), |field| {
            let rule = "an MTU is 68 (RFC 791) to 65535 bytes of IP packet";
            field.integer(report, 68..=u16::MAX, rule).map(|mtu| field.located(mtu))
        });
        let group = self.group(report, section, tunnel);
        let arp_responder =
            Setting::of(section.get("arp_responder"), |field| field.boolean(report));
        let ports = self.switch_ports(report, section);
        SwitchDraft { at: section.at, name, tunnel, segment, mtu, group, arp_responder, ports }
    }

    /// Reads the bridges, whose names and devices differ from those of switches.
    pub(super) fn bridges(
        &mut self,
        report: &mut ProblemCollector<'_>,
        field: Option<Field<'_, '_>>,
    ) -> Vec<BridgeDraft> {
        bridge::bridges(report, field, &mut self.names, &mut self.ports)
    }

    /// The names of all logical switches and bridges, and of all their ports.
    pub(super) fn into_names(self) -> (Unique<String>, Unique<String>) {
        (self.names, self.ports.into_names())
    }

    fn tunnel(
        &self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
    ) -> Option<TunnelType> {
        if let Some(field) = section.get("tunnel") {
            return tunnel_type(report, field);
        }
        match self.default_tunnel {
            Setting::Given(tunnel) => Some(tunnel),
            Setting::Wrong => None,
            Setting::Default if section.is_misspelt("tunnel") => None,
            Setting::Default => {
                report.error(
                    section.at,
                    "[[logical_switch]] has no `tunnel` and there is no default; add one, such as \
                     tunnel = \"geneve\", here or as the first line of the file",
                );
                None
            }
        }
    }

    /// The multicast group of a switch.
    fn group(
        &self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
        tunnel: Option<TunnelType>,
    ) -> Option<Located<IpAddr>> {
        let supports_group = |tunnel: TunnelType| tunnel.has_option(OptionKind::Group);
        match (tunnel, section.get("group")) {
            (None, None) => None,
            (Some(tunnel), None) => self.options.groups.get(&tunnel).copied(),
            (Some(tunnel), Some(field)) if !supports_group(tunnel) => {
                let names = names_where(supports_group);
                let why = format!("only {names} sends to multicast groups");
                report.error(field.key_at, format!("a {tunnel} switch takes no `group`; {why}"));
                None
            }
            (_, Some(field)) => group(report, field),
        }
    }

    fn segment(
        &self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
        tunnel: TunnelType,
    ) -> Option<Located<Segment>> {
        let network_id = tunnel.descriptor().network_id;
        let unkeyed = tunnel.has_option(OptionKind::Key) && !self.options.options.of(tunnel).key;
        let needed = network_id.key_name();
        let refused = if needed == "vni" { "vlan" } else { "vni" };
        if let Some(field) = section.get(refused) {
            let alone = section.get(needed).is_none() && !unkeyed;
            let right = if alone { right_segment(tunnel) } else { "remove it".to_owned() };
            report.error(field.key_at, format!("a {tunnel} switch takes no `{refused}`; {right}"));
            // If this is the only key given, the error covers the missing right key too.
            if alone {
                return None;
            }
        }
        let field = section.get(needed);
        if unkeyed {
            if let Some(field) = field {
                report.error(
                    field.key_at,
                    format!(
                        "{tunnel} without key carries no `vni`; remove it, or set key = true in \
                         [tunnel_options.{tunnel}]"
                    ),
                );
            }
            return Some(Located { value: Segment::Unkeyed, at: section.at });
        }
        let Some(field) = field else {
            if !section.is_misspelt(needed) {
                let right = right_segment(tunnel);
                report.error(
                    section.at,
                    format!("[[logical_switch]] has no `{needed}`, which {tunnel} needs; {right}"),
                );
            }
            return None;
        };
        let segment = match network_id {
            NetworkId::Vlan => vlan(report, field),
            NetworkId::VlanPair => vlan_pair(report, field),
            // 0 is refused although the standards allow it, because Open vSwitch and OVN interpret
            // it as "no key".
            NetworkId::Vni { max, rule } => field.integer(report, 1..=max, rule).map(Segment::Vni),
        };
        Some(field.located(segment?))
    }

    fn switch_ports(
        &mut self,
        report: &mut ProblemCollector<'_>,
        section: &Section<'_, '_>,
    ) -> Vec<PortDraft> {
        let tables = |report: &mut ProblemCollector<'_>, name, schema| {
            section.get(name).map_or_else(Vec::new, |field| field.tables(report, schema))
        };
        let sections = tables(report, "port", &port::PORT);
        let pools = tables(report, "pool", &port::pool::POOL);
        if let Some(first_too_many) = sections.get(usize::from(PortKey::MAX_PORT)) {
            report.error(
                first_too_many.at,
                format!(
                    "a logical switch has at most {} ports, this one has {}; move ports to \
                     another switch",
                    PortKey::MAX_PORT,
                    sections.len()
                ),
            );
        }
        self.ports.ports(report, &sections, &pools)
    }
}

/// An example of the key that a switch of this type needs.
fn right_segment(tunnel: TunnelType) -> String {
    let network_id = tunnel.descriptor().network_id;
    let range = if network_id == NetworkId::Vlan { " (1 to 4094)" } else { "" };
    format!("write {}{range}", network_id.example())
}

fn vlan(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<Segment> {
    if field.is_table() {
        field.error(
            report,
            "`vlan` of a vlan switch is one number; write vlan = 100, or tunnel = \"qinq\" \
             for two tags",
        );
        return None;
    }
    vlan_id(report, field.with_example("vlan = 100")).map(Segment::Vlan)
}

fn vlan_pair(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<Segment> {
    if field.is_integer() {
        field.error(
            report,
            "`vlan` of a qinq switch is two numbers; write vlan = { outer = 100, inner = 200 }, \
             or tunnel = \"vlan\" for one tag",
        );
        return None;
    }
    let field = field.with_example("vlan = { outer = 100, inner = 200 }");
    let pair = field.table(report, &VLAN_PAIR)?;
    let outer = pair.require(report, "outer").and_then(|field| vlan_id(report, field));
    let inner = pair.require(report, "inner").and_then(|field| vlan_id(report, field));
    Some(Segment::QinQ { outer: outer?, inner: inner? })
}

fn vlan_id(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<VlanId> {
    field.integer(report, 1..=4094, "a VLAN is 1 to 4094").and_then(VlanId::new)
}
