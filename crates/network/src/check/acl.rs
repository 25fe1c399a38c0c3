//! The checks of access control lists and of the names that stand for sets.

use crate::errors::Report;
use crate::read::{AclDraft, ScopeDraft, SetsDraft, SwitchDraft};
use crate::{Acl, AclScope, suggest};
use std::collections::{BTreeMap, HashSet};

/// The port groups, whose members must be ports of logical switches.
pub(super) fn port_groups(
    report: &mut Report<'_>,
    sets: &SetsDraft,
    switches: &[SwitchDraft],
) -> BTreeMap<String, Vec<String>> {
    let ports = || switches.iter().flat_map(|switch| &switch.ports);
    let names: HashSet<&str> = ports().filter_map(|port| port.name.as_deref()).collect();
    // A port whose name was wrong has been reported; it may be the one that is meant.
    let all_named = ports().all(|port| port.name.is_some());
    for member in sets.port_groups.values().flatten() {
        if all_named && !names.contains(member.value.as_str()) {
            let known = ports().filter_map(|port| port.name.as_deref());
            let hint = suggest::hint(&member.value, known, "ports");
            report.error(member.at, format!("unknown port {:?}{hint}", member.value));
        }
    }
    let groups = sets.port_groups.iter();
    groups
        .map(|(name, members)| {
            (name.clone(), members.iter().map(|member| member.value.clone()).collect())
        })
        .collect()
}

/// The entries; `None` when one is wrong, which has been reported.
pub(super) fn acls(
    report: &mut Report<'_>,
    drafts: Vec<AclDraft>,
    sets: &SetsDraft,
) -> Option<Vec<Acl>> {
    let acls: Vec<Option<Acl>> = drafts.into_iter().map(|draft| acl(report, draft, sets)).collect();
    acls.into_iter().collect()
}

fn acl(report: &mut Report<'_>, draft: AclDraft, sets: &SetsDraft) -> Option<Acl> {
    let scope = match draft.scope {
        None => None,
        Some(ScopeDraft::Switch(index)) => Some(AclScope::Switch(index)),
        Some(ScopeDraft::PortGroup(name)) if sets.port_groups.contains_key(&name.value) => {
            Some(AclScope::PortGroup(name.value))
        }
        Some(ScopeDraft::PortGroup(name)) => {
            let known = sets.port_groups.keys().map(String::as_str);
            let hint = suggest::hint(&name.value, known, "port groups");
            report.error(name.at, format!("unknown port group {:?}{hint}", name.value));
            None
        }
    };
    Some(Acl {
        scope: scope?,
        direction: draft.direction?,
        priority: draft.priority?,
        condition: draft.condition?.value,
        action: draft.action?,
        log: draft.log,
        line: draft.line,
    })
}
