//! Reads `tunnel` and `[tunnel_options.*]`. The descriptors of the tunnel types define the tables
//! and their keys.

use crate::errors::ProblemCollector;
use crate::section::{Field, Key, Located, Schema, Section, key};
use crate::{Dscp, TunnelOptions, suggest};
use flow::{OptionKind, Ttl, TunnelOption, TunnelType};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::LazyLock;
use wire::EtherType;

const LOGICAL_PORTS: Key = key("logical_ports", "logical_ports = true");
const CLAMP_MSS: Key = key("clamp_mss", "clamp_mss = true");

/// The schemas of `[tunnel_options]` and, by tunnel type, of `[tunnel_options.NAME]`. They are
/// leaked, because every schema is `'static`.
static SCHEMAS: LazyLock<(Schema, BTreeMap<TunnelType, Schema>)> = LazyLock::new(|| {
    let schemas: BTreeMap<_, _> =
        TunnelType::ALL.into_iter().map(|tunnel| (tunnel, type_schema(tunnel))).collect();
    let types = TunnelType::ALL.into_iter().map(|tunnel| key(tunnel.name(), schemas[&tunnel].name));
    let keys: Vec<Key> = types.chain([CLAMP_MSS]).collect();
    (Schema { name: "[tunnel_options]", keys: keys.leak() }, schemas)
});

fn type_schema(tunnel: TunnelType) -> Schema {
    let name: &'static str = format!("[tunnel_options.{tunnel}]").leak();
    let options = tunnel.descriptor().options;
    let mut keys: Vec<Key> =
        options.iter().map(|option| key(option.name, option.example)).collect();
    // The key is in this schema so that a better error than "unknown key" can name the reason.
    if refuses_logical_ports(tunnel) {
        keys.push(LOGICAL_PORTS);
    }
    Schema { name, keys: keys.leak() }
}

fn refuses_logical_ports(tunnel: TunnelType) -> bool {
    tunnel.has_endpoints() && !tunnel.has_option(OptionKind::LogicalPorts)
}

/// The options, with the positions of those that must agree with others.
#[derive(Default)]
pub(crate) struct OptionsDraft {
    pub(crate) options: TunnelOptions,
    /// Line of each destination port.
    pub(crate) port_at: BTreeMap<TunnelType, usize>,
    /// The multicast group for switches of a type that do not set their own.
    pub(crate) groups: BTreeMap<TunnelType, Located<IpAddr>>,
}

pub(super) fn tunnel_type(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
) -> Option<TunnelType> {
    let text = field.string(report)?;
    let found = text.parse().ok();
    if found.is_none() {
        let hint = suggest::hint(text, TunnelType::ALL.iter().map(|t| t.name()), "types");
        field.error(report, format!("unknown tunnel type {text:?}{hint}"));
    }
    found
}

pub(super) fn options(
    report: &mut ProblemCollector<'_>,
    field: Option<Field<'_, '_>>,
) -> OptionsDraft {
    let mut draft = OptionsDraft::default();
    let (all_types, schemas) = &*SCHEMAS;
    let Some(all) = field.and_then(|field| field.table(report, all_types)) else { return draft };
    if let Some(clamp) = all.get(CLAMP_MSS.name).and_then(|field| field.boolean(report)) {
        draft.options.clamp_mss = clamp;
    }
    for tunnel in TunnelType::ALL {
        let Some(field) = all.get(tunnel.name()) else { continue };
        let Some(section) = field.table(report, &schemas[&tunnel]) else { continue };
        for option in tunnel.descriptor().options {
            if let Some(field) = section.get(option.name) {
                read_option(report, tunnel, option, field, &mut draft);
            }
        }
        if refuses_logical_ports(tunnel) {
            refuse_logical_ports(report, &section, tunnel);
        }
    }
    draft
}

/// Reads the value of an option. A wrong value is reported, and the default stays.
fn read_option(
    report: &mut ProblemCollector<'_>,
    tunnel: TunnelType,
    option: &TunnelOption,
    field: Field<'_, '_>,
    draft: &mut OptionsDraft,
) {
    fn set<T>(place: &mut T, value: Option<T>) {
        if let Some(value) = value {
            *place = value;
        }
    }
    let settings = draft.options.of_mut(tunnel);
    match option.kind {
        OptionKind::Port => {
            let port = field.integer(report, 1..=u16::MAX, "a port is 1 to 65535");
            draft.port_at.extend(port.map(|_| (tunnel, field.at)));
            set(&mut settings.port, port);
        }
        OptionKind::Checksum => {
            set(&mut settings.checksum, field.boolean(report).map(Some));
        }
        OptionKind::Key => set(&mut settings.key, field.boolean(report)),
        OptionKind::Sequence => set(&mut settings.sequence, field.boolean(report)),
        OptionKind::LogicalPorts => set(&mut settings.logical_ports, field.boolean(report)),
        OptionKind::Ttl => {
            let ttl = inheritable(report, option.name, field, 1..=u8::MAX);
            set(&mut settings.ttl, ttl.map(|ttl| ttl.map_or(Ttl::Inherit, Ttl::Fixed)));
        }
        OptionKind::Dscp => {
            let dscp = inheritable(report, option.name, field, 0..=63);
            set(&mut settings.dscp, dscp.map(|dscp| dscp.map_or(Dscp::Inherit, Dscp::Fixed)));
        }
        OptionKind::Group => {
            draft.groups.extend(group(report, field).map(|group| (tunnel, group)));
        }
        OptionKind::GroupTtl => {
            set(&mut settings.group_ttl, field.integer(report, 1..=u8::MAX, "a TTL is 1 to 255"));
        }
        OptionKind::ServiceTpid => {
            set(&mut settings.service_tpid, service_tpid(report, option.name, field));
        }
    }
}

/// Reads a number, or "inherit", which is `Some(None)`.
fn inheritable(
    report: &mut ProblemCollector<'_>,
    name: &str,
    field: Field<'_, '_>,
    range: RangeInclusive<u8>,
) -> Option<Option<u8>> {
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

/// Reads the underlay's multicast group, which reaches all hosts of a switch.
pub(super) fn group(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
) -> Option<Located<IpAddr>> {
    const RULE: &str = "write for example \"239.1.1.1\" or \"ff05::1:1\"";
    let text = field.string(report)?;
    match text.parse::<IpAddr>() {
        Ok(address) if address.is_multicast() => return Some(field.located(address)),
        Ok(address) => {
            field.error(report, format!("{address} is not a multicast address; {RULE}"));
        }
        Err(_) => field.error(report, format!("{text:?} is not an IP address; {RULE}")),
    }
    None
}

fn refuse_logical_ports(
    report: &mut ProblemCollector<'_>,
    section: &Section<'_, '_>,
    tunnel: TunnelType,
) {
    if let Some(field) = section.get(LOGICAL_PORTS.name) {
        let names = names_where(|tunnel| tunnel.has_option(OptionKind::LogicalPorts));
        report.error(
            field.key_at,
            format!("{tunnel} has no room for logical ports; only {names} take `logical_ports`"),
        );
    }
}

/// The names of the tunnel types for which `is_of_kind` holds, as a list in a sentence.
pub(super) fn names_where(is_of_kind: impl Fn(TunnelType) -> bool) -> String {
    let of_kind = TunnelType::ALL.into_iter().filter(|tunnel| is_of_kind(*tunnel));
    let names: Vec<&str> = of_kind.map(TunnelType::name).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

fn service_tpid(
    report: &mut ProblemCollector<'_>,
    name: &str,
    field: Field<'_, '_>,
) -> Option<EtherType> {
    const RULE: &str = "write 0x88a8 (802.1ad), 0x8100 or 0x9100";
    let value = field.integer(report, 0..=u16::MAX, RULE)?;
    let tpid = EtherType(value);
    if !tpid.is_vlan() {
        field.error(report, format!("`{name}` is {value:#06x}; {RULE}"));
    }
    tpid.is_vlan().then_some(tpid)
}

/// The schemas of `[tunnel_options]` and of the types' tables.
#[cfg(test)]
pub(super) fn schemas() -> impl Iterator<Item = &'static Schema> {
    std::iter::once(&SCHEMAS.0).chain(SCHEMAS.1.values())
}
