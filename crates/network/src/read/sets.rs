//! `[address_set]` and `[port_group]`: named sets of addresses and ports for matches.

use super::{SwitchDraft, ip_or_network};
use crate::Prefix;
use crate::errors::ProblemCollector;
use crate::section::{Field, Located, Section};
use std::collections::{BTreeMap, HashMap};

/// Address sets and port groups as read. Invalid ones are absent, and have been reported.
#[derive(Default)]
pub(crate) struct SetsDraft {
    pub(crate) address_sets: BTreeMap<String, Vec<Prefix>>,
    pub(crate) port_groups: BTreeMap<String, PortGroupDraft>,
}

impl SetsDraft {
    /// Replaces the names of pools in port groups by those of their ports.
    pub(super) fn expand_pools(&mut self, switches: &[SwitchDraft]) {
        let mut pools: HashMap<&str, Vec<&str>> = HashMap::new();
        for port in switches.iter().flat_map(|switch| &switch.ports) {
            if let (Some(pool), Some(name)) = (&port.pool, &port.name) {
                pools.entry(pool).or_default().push(name);
            }
        }
        for members in self.port_groups.values_mut() {
            let named = std::mem::take(members);
            for member in named {
                match pools.get(member.value.as_str()) {
                    Some(ports) => members.extend(
                        ports
                            .iter()
                            .map(|name| Located { value: (*name).to_owned(), at: member.at }),
                    ),
                    None => members.push(member),
                }
            }
        }
    }
}

/// The names of the ports of a group.
pub(crate) type PortGroupDraft = Vec<Located<String>>;

pub(super) fn sets(report: &mut ProblemCollector<'_>, root: &Section<'_, '_>) -> SetsDraft {
    let mut draft = SetsDraft::default();
    if let Some(field) = root.get("address_set") {
        let entries = field.named_entries(report, "admins = [\"10.0.0.5\"]").into_iter().flatten();
        for (name, field) in entries {
            let members = address_set(report, field);
            if is_set_name(report, name, &field, '$') {
                draft.address_sets.insert(name.to_owned(), members);
            }
        }
    }
    if let Some(field) = root.get("port_group") {
        let entries = field.named_entries(report, "web = [\"web1\"]").into_iter().flatten();
        for (name, field) in entries {
            let members = port_group(report, field);
            if is_set_name(report, name, &field, '@') {
                draft.port_groups.insert(name.to_owned(), members);
            }
        }
    }
    draft
}

/// Whether a name can follow `sigil` in a match; reports it when not.
fn is_set_name(
    report: &mut ProblemCollector<'_>,
    name: &str,
    field: &Field<'_, '_>,
    sigil: char,
) -> bool {
    match crate::name::set_problem(name) {
        Some(problem) => {
            report.error(field.key_at, format!("{problem}; matches refer to it as `{sigil}name`"));
            false
        }
        None => true,
    }
}

fn address_set(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> Vec<Prefix> {
    let mut first: Option<Prefix> = None;
    let mut members = Vec::new();
    for element in field.array(report).into_iter().flatten() {
        let Some(prefix) = ip_or_network(report, element) else { continue };
        let family = first.get_or_insert(prefix);
        if family.is_ipv4() != prefix.is_ipv4() {
            element.error(
                report,
                format!(
                    "{prefix} and {family} are of different address families; use one set for \
                     each family"
                ),
            );
        }
        members.push(prefix);
    }
    members
}

fn port_group(report: &mut ProblemCollector<'_>, field: Field<'_, '_>) -> PortGroupDraft {
    let elements = field.array(report).into_iter().flatten();
    elements
        .filter_map(|element| {
            let name = element.string(report)?.to_owned();
            Some(element.located(name))
        })
        .collect()
}
