//! Checks of access control lists, address sets and port groups.

use super::condition::MatchNames;
use crate::errors::ProblemCollector;
use crate::model::port_in_switch;
use crate::read::{AclDraft, LinkDraft, RouterDraft, ScopeDraft, SetsDraft, SwitchDraft};
use crate::section::Located;
use crate::{Acl, AclScope, TunnelOptions, suggest};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The port groups. Their members must be ports of logical switches.
pub(super) fn port_groups(
    report: &mut ProblemCollector<'_>,
    sets: &SetsDraft,
    switches: &[SwitchDraft],
) -> BTreeMap<String, Vec<String>> {
    let ports = || switches.iter().flat_map(|switch| &switch.ports);
    let names: HashSet<&str> = ports().filter_map(|port| port.name.as_deref()).collect();
    // A port with an invalid name, which has been reported, may be the one that is meant.
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

/// The ACLs; `None` when one is invalid, which has been reported.
pub(super) fn acls(
    report: &mut ProblemCollector<'_>,
    drafts: Vec<AclDraft>,
    sets: &SetsDraft,
    switches: &[SwitchDraft],
    routers: &[RouterDraft],
    options: &TunnelOptions,
) -> Option<Vec<Acl>> {
    let names = port_names(switches, routers).map(|ports| MatchNames::new(ports, sets));
    let checker =
        AclChecker { sets, switches, options, names, switch_of_port: switch_of_port(switches) };
    let acls: Vec<_> = drafts.into_iter().map(|draft| checker.acl(report, draft)).collect();
    acls.into_iter().collect()
}

/// The names of all switch ports that a match can use; `None` when some could not be read.
fn port_names(switches: &[SwitchDraft], routers: &[RouterDraft]) -> Option<BTreeSet<String>> {
    let guests = switches.iter().flat_map(|switch| &switch.ports).map(|port| port.name.clone());
    let routers = routers.iter().flat_map(|router| &router.ports).filter_map(|port| {
        match port.link.as_ref()? {
            LinkDraft::Peer(_) => None,
            LinkDraft::Switch(switch) => {
                let switch = switches.get(switch.value.value())?.name.as_ref();
                Some(
                    switch
                        .zip(port.name.as_ref())
                        .map(|(switch, port)| port_in_switch(switch, port)),
                )
            }
        }
    });
    guests.chain(routers).collect()
}

/// The switch of each port.
fn switch_of_port(switches: &[SwitchDraft]) -> HashMap<&str, usize> {
    let ports = switches.iter().enumerate().flat_map(|(index, switch)| {
        switch.ports.iter().filter_map(move |port| Some((port.name.as_deref()?, index)))
    });
    ports.collect()
}

struct AclChecker<'d> {
    sets: &'d SetsDraft,
    switches: &'d [SwitchDraft],
    options: &'d TunnelOptions,
    names: Option<MatchNames<'d>>,
    switch_of_port: HashMap<&'d str, usize>,
}

impl AclChecker<'_> {
    fn acl(&self, report: &mut ProblemCollector<'_>, draft: AclDraft) -> Option<Acl> {
        let carries_inport = self.carries_inport(draft.scope.as_ref());
        if let (Some(names), Some(condition)) = (&self.names, &draft.condition) {
            names.check(report, condition, draft.direction, carries_inport);
        }
        let scope = match draft.scope {
            None => None,
            Some(ScopeDraft::Switch(index)) => Some(AclScope::Switch(index)),
            Some(ScopeDraft::PortGroup(name)) => self.port_group(report, name),
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

    fn port_group(
        &self,
        report: &mut ProblemCollector<'_>,
        name: Located<String>,
    ) -> Option<AclScope> {
        if self.sets.port_groups.contains_key(&name.value) {
            return Some(AclScope::PortGroup(name.value));
        }
        let known = self.sets.port_groups.keys().map(String::as_str);
        let hint = suggest::hint(&name.value, known, "port groups");
        report.error(name.at, format!("unknown port group {:?}{hint}", name.value));
        None
    }

    /// Whether the tunnels of all switches that an ACL applies to carry logical ports. True for
    /// switches that could not be read.
    fn carries_inport(&self, scope: Option<&ScopeDraft>) -> bool {
        let carries = |index: &usize| {
            let tunnel = self.switches.get(*index).and_then(|switch| switch.tunnel);
            tunnel.is_none_or(|tunnel| self.options.of(tunnel).logical_ports)
        };
        match scope {
            None => true,
            Some(ScopeDraft::Switch(index)) => carries(&index.value()),
            Some(ScopeDraft::PortGroup(name)) => {
                let members = self.sets.port_groups.get(&name.value).into_iter().flatten();
                let switches =
                    members.filter_map(|member| self.switch_of_port.get(member.value.as_str()));
                switches.into_iter().all(carries)
            }
        }
    }
}
