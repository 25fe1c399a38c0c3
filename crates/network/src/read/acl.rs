//! `[[acl]]`.

use super::{SwitchDraft, switch_named};
use crate::errors::ProblemCollector;
use crate::section::{Field, Located, Schema, Section, key};
use crate::{AclAction, AclDirection, FileLine, SwitchIndex, suggest};

pub(super) const ACL: Schema = Schema {
    name: "[[acl]]",
    keys: &[
        key("switch", "switch = \"web\""),
        key("port_group", "port_group = \"web\""),
        key("direction", "direction = \"to-port\""),
        key("priority", "priority = 1000"),
        key("match", "match = 'ip4 && tcp.dst == 22'"),
        key("action", "action = \"drop\""),
        key("log", "log = \"no-ssh\""),
    ],
};

/// An ACL as read. Missing or invalid parts are `None`, and have been reported.
pub(crate) struct AclDraft {
    pub(crate) scope: Option<ScopeDraft>,
    pub(crate) direction: Option<AclDirection>,
    pub(crate) priority: Option<u16>,
    pub(crate) condition: Option<Located<String>>,
    pub(crate) action: Option<AclAction>,
    pub(crate) log: Option<String>,
    pub(crate) line: FileLine,
}

/// The ports that an ACL applies to.
pub(crate) enum ScopeDraft {
    Switch(SwitchIndex),
    PortGroup(Located<String>),
}

pub(super) fn acls(
    report: &mut ProblemCollector<'_>,
    field: Option<Field<'_, '_>>,
    switches: &[SwitchDraft],
) -> Vec<AclDraft> {
    let sections = field.map_or_else(Vec::new, |field| field.tables(report, &ACL));
    sections.iter().map(|section| acl(report, section, switches)).collect()
}

fn acl(
    report: &mut ProblemCollector<'_>,
    section: &Section<'_, '_>,
    switches: &[SwitchDraft],
) -> AclDraft {
    let directions = AclDirection::ALL.map(|direction| (direction.name(), direction));
    let actions = AclAction::ALL.map(|action| (action.name(), action));
    AclDraft {
        scope: scope(report, section, switches),
        direction: section
            .require(report, "direction")
            .and_then(|field| word(report, field, "direction", &directions)),
        priority: section.require(report, "priority").and_then(|field| {
            field.integer(report, 0..=0x7fff, "a priority is 0 to 32767; the highest decides")
        }),
        condition: section.require(report, "match").and_then(|field| {
            let text = field.string(report)?.to_owned();
            Some(field.located(text))
        }),
        action: section
            .require(report, "action")
            .and_then(|field| word(report, field, "action", &actions)),
        log: section.get("log").and_then(|field| log_name(report, field)),
        line: FileLine(report.line(section.at)),
    }
}

fn scope(
    report: &mut ProblemCollector<'_>,
    section: &Section<'_, '_>,
    switches: &[SwitchDraft],
) -> Option<ScopeDraft> {
    const RIGHT: &str = "write switch = \"web\" for all ports of a logical switch, or port_group \
                         = \"web\" for some";
    match (section.get("switch"), section.get("port_group")) {
        (Some(field), None) => {
            switch_named(report, field, switches).map(|index| ScopeDraft::Switch(index.value))
        }
        (None, Some(field)) => {
            let name = field.string(report)?.to_owned();
            Some(ScopeDraft::PortGroup(field.located(name)))
        }
        (Some(_), Some(group)) => {
            report.error(
                group.key_at,
                format!("[[acl]] has both `switch` and `port_group`; {RIGHT}"),
            );
            None
        }
        (None, None) if section.is_misspelt("switch") || section.is_misspelt("port_group") => None,
        (None, None) => {
            report.error(
                section.at,
                format!("[[acl]] has neither `switch` nor `port_group`; {RIGHT}"),
            );
            None
        }
    }
}

/// Reads one of several words.
pub(super) fn word<T: Copy>(
    report: &mut ProblemCollector<'_>,
    field: Field<'_, '_>,
    key: &str,
    words: &[(&'static str, T)],
) -> Option<T> {
    let text = field.string(report)?;
    let found = words.iter().find(|(name, _)| *name == text).map(|&(_, value)| value);
    if found.is_none() {
        let hint = suggest::hint(text, words.iter().map(|&(name, _)| name), &format!("{key}s"));
        field.error(report, format!("unknown {key} {text:?}{hint}"));
    }
    found
}

fn log_name(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Option<String> {
    let name = field.string(report)?;
    if let Some(problem) = crate::name::object_problem(name) {
        field.error(report, problem);
        return None;
    }
    Some(name.to_owned())
}
