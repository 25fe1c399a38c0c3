//! `tunnel` and `[tunnel_options.*]`.

use crate::errors::Report;
use crate::section::{Field, Key, Schema, Section, Sited, key};
use crate::{Dscp, OuterIp, ServiceTpid, TunnelOptions, suggest};
use flow::{Ttl, TunnelType};
use std::net::IpAddr;
use std::ops::RangeInclusive;

const TTL: Key = key("ttl", "ttl = \"inherit\" or ttl = 64");
const DSCP: Key = key("dscp", "dscp = \"inherit\" or dscp = 46");
const CHECKSUM: Key = key("checksum", "checksum = true");
/// Of all switches of type vxlan, or of one.
pub(super) const GROUP: Key = key("group", "group = \"239.1.1.1\"");
const LOGICAL_PORTS: Key = key("logical_ports", "logical_ports = true");

const OPTIONS: Schema = Schema {
    name: "[tunnel_options]",
    keys: &[
        key("vxlan", "[tunnel_options.vxlan]"),
        key("geneve", "[tunnel_options.geneve]"),
        key("gre", "[tunnel_options.gre]"),
        key("stt", "[tunnel_options.stt]"),
        key("vlan", "[tunnel_options.vlan]"),
        key("qinq", "[tunnel_options.qinq]"),
        key("clamp_mss", "clamp_mss = true"),
    ],
};

// `logical_ports` stands in the schemas of vxlan and gre so that it can be refused with the reason.
const VXLAN: Schema = Schema {
    name: "[tunnel_options.vxlan]",
    keys: &[
        key("udp_port", "udp_port = 4789"),
        CHECKSUM,
        TTL,
        DSCP,
        GROUP,
        key("group_ttl", "group_ttl = 1"),
        LOGICAL_PORTS,
    ],
};

const GENEVE: Schema = Schema {
    name: "[tunnel_options.geneve]",
    keys: &[key("udp_port", "udp_port = 6081"), CHECKSUM, LOGICAL_PORTS, TTL, DSCP],
};

const GRE: Schema = Schema {
    name: "[tunnel_options.gre]",
    keys: &[
        CHECKSUM,
        key("key", "key = true"),
        key("sequence", "sequence = false"),
        TTL,
        DSCP,
        LOGICAL_PORTS,
    ],
};

const STT: Schema = Schema {
    name: "[tunnel_options.stt]",
    keys: &[key("tcp_port", "tcp_port = 7471"), LOGICAL_PORTS, TTL, DSCP],
};

const VLAN: Schema = Schema { name: "[tunnel_options.vlan]", keys: &[] };

const QINQ: Schema =
    Schema { name: "[tunnel_options.qinq]", keys: &[key("s_tpid", "s_tpid = 0x88a8")] };

/// The options, and where the UDP ports are given, for they must differ when both types are in use.
#[derive(Default)]
pub(crate) struct OptionsDraft {
    pub(crate) options: TunnelOptions,
    pub(crate) vxlan_port_at: Option<usize>,
    pub(crate) geneve_port_at: Option<usize>,
    /// The multicast group of VXLAN switches that do not say another.
    pub(crate) vxlan_group: Option<Sited<IpAddr>>,
}

pub(super) fn tunnel_type(report: &mut Report<'_>, field: Field<'_, '_>) -> Option<TunnelType> {
    let text = field.string(report)?;
    let found = text.parse().ok();
    if found.is_none() {
        let hint = suggest::hint(text, TunnelType::ALL.iter().map(|t| t.name()), "types");
        field.error(report, format!("unknown tunnel type {text:?}{hint}"));
    }
    found
}

pub(super) fn options(report: &mut Report<'_>, field: Option<Field<'_, '_>>) -> OptionsDraft {
    let mut draft = OptionsDraft::default();
    let Some(all) = field.and_then(|field| field.table(report, &OPTIONS)) else { return draft };
    if let Some(clamp) = all.get("clamp_mss").and_then(|field| field.boolean(report)) {
        draft.options.clamp_mss = clamp;
    }
    for tunnel in TunnelType::ALL {
        let Some(field) = all.get(tunnel.name()) else { continue };
        let Some(section) = field.table(report, schema(tunnel)) else { continue };
        read_type(report, tunnel, &section, &mut draft);
    }
    draft
}

const fn schema(tunnel: TunnelType) -> &'static Schema {
    match tunnel {
        TunnelType::Vxlan => &VXLAN,
        TunnelType::Geneve => &GENEVE,
        TunnelType::Gre => &GRE,
        TunnelType::Stt => &STT,
        TunnelType::Vlan => &VLAN,
        TunnelType::QinQ => &QINQ,
    }
}

fn read_type(
    report: &mut Report<'_>,
    tunnel: TunnelType,
    section: &Section<'_, '_>,
    draft: &mut OptionsDraft,
) {
    let options = &mut draft.options;
    match tunnel {
        TunnelType::Vxlan => {
            let vxlan = &mut options.vxlan;
            draft.vxlan_port_at = port(report, section, "udp_port", &mut vxlan.udp_port);
            vxlan.checksum = asked(report, section, "checksum");
            outer(report, section, &mut vxlan.outer);
            draft.vxlan_group = section.get("group").and_then(|field| group(report, field));
            let ttl = section.get("group_ttl");
            let rule = "a TTL is 1 to 255";
            if let Some(ttl) = ttl.and_then(|field| field.integer(report, 1..=u8::MAX, rule)) {
                vxlan.group_ttl = ttl;
            }
            refuse_logical_ports(report, section, tunnel);
        }
        TunnelType::Geneve => {
            let geneve = &mut options.geneve;
            draft.geneve_port_at = port(report, section, "udp_port", &mut geneve.udp_port);
            geneve.checksum = asked(report, section, "checksum");
            flag(report, section, "logical_ports", &mut geneve.logical_ports);
            outer(report, section, &mut geneve.outer);
        }
        TunnelType::Gre => {
            let gre = &mut options.gre;
            flag(report, section, "checksum", &mut gre.checksum);
            flag(report, section, "key", &mut gre.key);
            flag(report, section, "sequence", &mut gre.sequence);
            outer(report, section, &mut gre.outer);
            refuse_logical_ports(report, section, tunnel);
        }
        TunnelType::Stt => {
            let stt = &mut options.stt;
            port(report, section, "tcp_port", &mut stt.tcp_port);
            flag(report, section, "logical_ports", &mut stt.logical_ports);
            outer(report, section, &mut stt.outer);
        }
        TunnelType::Vlan => {}
        TunnelType::QinQ => s_tpid(report, section, &mut options.qinq.s_tpid),
    }
}

/// Reads a port into `port` and returns where it is given.
fn port(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    name: &str,
    port: &mut u16,
) -> Option<usize> {
    let field = section.get(name)?;
    *port = field.integer(report, 1..=u16::MAX, "a port is 1 to 65535")?;
    Some(field.at)
}

fn flag(report: &mut Report<'_>, section: &Section<'_, '_>, name: &str, flag: &mut bool) {
    if let Some(value) = asked(report, section, name) {
        *flag = value;
    }
}

/// What the file says about something that is on or off; `None` when it says nothing.
fn asked(report: &mut Report<'_>, section: &Section<'_, '_>, name: &str) -> Option<bool> {
    section.get(name)?.boolean(report)
}

fn outer(report: &mut Report<'_>, section: &Section<'_, '_>, outer: &mut OuterIp) {
    if let Some(ttl) = inheritable(report, section, "ttl", 1..=u8::MAX) {
        outer.ttl = ttl.map_or(Ttl::Inherit, Ttl::Fixed);
    }
    if let Some(dscp) = inheritable(report, section, "dscp", 0..=63) {
        outer.dscp = dscp.map_or(Dscp::Inherit, Dscp::Fixed);
    }
}

/// Reads a number, or "inherit", which is `Some(None)`.
fn inheritable(
    report: &mut Report<'_>,
    section: &Section<'_, '_>,
    name: &str,
    range: RangeInclusive<u8>,
) -> Option<Option<u8>> {
    let field = section.get(name)?;
    let rule = format!("write \"inherit\" or {} to {}", range.start(), range.end());
    if field.is_string() {
        let text = field.string(report)?;
        if text != "inherit" {
            field.error(report, format!("`{name}` is {text:?}; {rule}"));
        }
        (text == "inherit").then_some(None)
    } else if field.is_integer() {
        field.integer(report, range, &rule).map(Some)
    } else {
        field.wrong_type(report, "a string or an integer");
        None
    }
}

/// Reads the multicast group of the underlay that stands for all hosts of a switch.
pub(super) fn group(report: &mut Report<'_>, field: Field<'_, '_>) -> Option<Sited<IpAddr>> {
    let text = field.string(report)?;
    match text.parse::<IpAddr>() {
        Ok(address) if address.is_multicast() => return Some(field.sited(address)),
        Ok(address) => field.error(
            report,
            format!(
                "{address} is no multicast address; write one such as \"239.1.1.1\" or \"ff05::1:1\""
            ),
        ),
        Err(_) => field.error(
            report,
            format!("{text:?} is no IP address; write one such as \"239.1.1.1\" or \"ff05::1:1\""),
        ),
    }
    None
}

fn refuse_logical_ports(report: &mut Report<'_>, section: &Section<'_, '_>, tunnel: TunnelType) {
    if let Some(field) = section.get("logical_ports") {
        report.error(
            field.key_at,
            format!(
                "{tunnel} has no room for logical ports; only geneve and stt take `logical_ports`"
            ),
        );
    }
}

fn s_tpid(report: &mut Report<'_>, section: &Section<'_, '_>, tpid: &mut ServiceTpid) {
    const RULE: &str = "write 0x88a8 (802.1ad), 0x8100 or 0x9100";
    let Some(field) = section.get("s_tpid") else { return };
    let Some(value) = field.integer(report, 0..=u16::MAX, RULE) else { return };
    match ServiceTpid::ALL.into_iter().find(|tpid| tpid.value() == value) {
        Some(found) => *tpid = found,
        None => field.error(report, format!("`s_tpid` is {value:#06x}; {RULE}")),
    }
}

/// The schemas of the types' tables.
#[cfg(test)]
pub(super) fn schemas() -> impl Iterator<Item = &'static Schema> {
    TunnelType::ALL.into_iter().map(schema)
}
