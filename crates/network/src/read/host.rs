//! `[[host]]`.

use super::{Setting, Unique, interface_name, least_path_mtu, object_name};
use crate::errors::ProblemCollector;
use crate::interface_address::not_unicast;
use crate::section::{Field, Located, Schema, Section, key};
use crate::{Host, HostIndex, UnderlayFamily};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) const HOST: Schema = Schema {
    name: "[[host]]",
    keys: &[
        key("name", "name = \"h1\""),
        key("uplink", "uplink = \"eth0\""),
        key("underlay", "underlay = [\"192.0.2.1\"]"),
        key("least_path_mtu", "least_path_mtu = 1280"),
    ],
};

/// A host as read. Missing or invalid parts are absent, and have been reported.
pub(crate) struct HostDraft {
    pub(crate) at: usize,
    pub(crate) name: Option<String>,
    pub(crate) uplink: Option<String>,
    pub(crate) underlay4: Option<Ipv4Addr>,
    pub(crate) underlay6: Option<Ipv6Addr>,
    pub(crate) least_path_mtu: Setting<Located<u16>>,
    /// An underlay address was invalid, which has been reported.
    pub(crate) underlay_wrong: bool,
}

impl HostDraft {
    pub(crate) fn has(&self, family: UnderlayFamily) -> bool {
        match family {
            UnderlayFamily::V4 => self.underlay4.is_some(),
            UnderlayFamily::V6 => self.underlay6.is_some(),
        }
    }

    pub(crate) fn finish(self, index: usize) -> Option<Host> {
        let least_path_mtu = match self.least_path_mtu {
            Setting::Given(given) => Some(given.value),
            Setting::Default => None,
            Setting::Wrong => return None,
        };
        let Self { name, uplink, underlay4, underlay6, .. } = self;
        let (index, name, uplink) = (HostIndex(index), name?, uplink?);
        Some(Host { index, name, uplink, underlay4, underlay6, least_path_mtu })
    }
}

pub(super) fn hosts(report: &mut ProblemCollector<'_>, root: &Section<'_, '_>) -> Vec<HostDraft> {
    let Some(field) = root.get("host") else {
        if !root.is_misspelt("host") {
            report.file_error("there is no [[host]]; a network needs at least one");
        }
        return Vec::new();
    };
    let (mut names, mut addresses) = (Unique::new(), Unique::new());
    let known_problems = report.len();
    let sections = field.tables(report, &HOST);
    if sections.is_empty() && report.len() == known_problems {
        field.error(report, "`host` is empty; a network needs at least one [[host]]");
    }
    sections.iter().map(|section| host(report, section, &mut names, &mut addresses)).collect()
}

fn host(
    report: &mut ProblemCollector<'_>,
    section: &Section<'_, '_>,
    names: &mut Unique<String>,
    addresses: &mut Unique<IpAddr>,
) -> HostDraft {
    let name = object_name(report, section, "host", names);
    let uplink = section.require(report, "uplink").and_then(|field| interface_name(report, field));
    let mut host = HostDraft {
        at: section.at,
        name,
        uplink,
        underlay4: None,
        underlay6: None,
        least_path_mtu: least_path_mtu(report, section),
        underlay_wrong: false,
    };
    if let Some(field) = section.get("underlay") {
        match field.array(report) {
            None => host.underlay_wrong = true,
            Some(elements) => {
                for element in elements {
                    let added = underlay(report, &mut host, element, addresses);
                    host.underlay_wrong |= added.is_none();
                }
            }
        }
    }
    host
}

/// Adds one underlay address to `host`; `None` when it is invalid.
fn underlay(
    report: &mut ProblemCollector<'_>,
    host: &mut HostDraft,
    field: Field<'_, '_>,
    addresses: &mut Unique<IpAddr>,
) -> Option<()> {
    let text = field.string(report)?;
    let addr = match underlay_address(text) {
        Ok(addr) => addr,
        Err(problem) => {
            field.error(report, problem);
            return None;
        }
    };
    if let Some(first) = addresses.insert(addr, field.at) {
        let line = report.line(first);
        field.error(
            report,
            format!("{addr} is already an underlay address in line {line}; give each host its own"),
        );
        return None;
    }
    let family = UnderlayFamily::of(addr);
    if host.has(family) {
        field.error(
            report,
            format!(
                "{addr} is a second {family} address of this host; write at most one of each family"
            ),
        );
        return None;
    }
    match addr {
        IpAddr::V4(v4) => host.underlay4 = Some(v4),
        IpAddr::V6(v6) => host.underlay6 = Some(v6),
    }
    Some(())
}

fn underlay_address(text: &str) -> Result<IpAddr, String> {
    let Ok(addr) = text.parse() else {
        // Writing a prefix length is a common mistake, because guests' addresses have one.
        let before_slash = text.split_once('/').and_then(|(addr, _)| addr.parse::<IpAddr>().ok());
        return Err(match before_slash {
            Some(addr) => format!(
                "\"{text}\" has a prefix length; write the underlay address without it: \"{addr}\""
            ),
            None => format!(
                "\"{text}\" is not an IP address; write for example \"192.0.2.1\" or \
                 \"2001:db8::1\""
            ),
        });
    };
    let link_local = matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let why =
        if link_local { Some("link-local, so no route leads to it") } else { not_unicast(addr) };
    match why {
        Some(why) => {
            Err(format!("{addr} is {why}; write an address that the other hosts can reach"))
        }
        None => Ok(addr),
    }
}
