//! Logical flows of access control lists.

use super::{DatapathKeys, FlowCollector, Stage, next_to};
use crate::model::port_in_switch;
use crate::{Acl, AclAction, AclDirection, AclScope, Network, RouterLink, SwitchIndex};
use flow::DatapathKey;
use lflow::expr;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Added to the priority of an ACL, as in OVN. Lower priorities are the pipeline's own.
const OFFSET: u16 = 1000;

/// A priority above all ACLs.
const EXEMPT: u16 = OFFSET + 0x8000;

/// Adds the flows of all ACLs.
pub(super) fn add(network: &Network, keys: &DatapathKeys, flows: &mut FlowCollector) {
    exempt_routers(network, keys, flows);
    let groups = switches_of_groups(network, keys);
    let none: Arc<[DatapathKey]> = Arc::default();
    for acl in network.acls() {
        let (stage, port) = match acl.direction {
            AclDirection::FromPort => (Stage::LsInAcl, "inport"),
            AclDirection::ToPort => (Stage::LsOutAcl, "outport"),
        };
        let (datapaths, condition) = match &acl.scope {
            AclScope::Switch(switch) => ([keys.switch(*switch)].into(), acl.condition.clone()),
            AclScope::PortGroup(name) => (
                Arc::clone(groups.get(name.as_str()).unwrap_or(&none)),
                format!("{port} == @{name} && ({})", one_line(&acl.condition)),
            ),
        };
        let place = (stage, OFFSET + acl.priority);
        flows.add(&datapaths, place, condition, actions(acl), acl.line);
    }
}

/// ACLs apply to guests only: ports that lead to routers are exempt.
fn exempt_routers(network: &Network, keys: &DatapathKeys, flows: &mut FlowCollector) {
    let limited: BTreeSet<SwitchIndex> = network
        .acls()
        .iter()
        .filter_map(|acl| match acl.scope {
            AclScope::Switch(switch) => Some(switch),
            AclScope::PortGroup(_) => None,
        })
        .collect();
    for port in network.logical_routers().iter().flat_map(|router| &router.ports) {
        let RouterLink::Switch { switch, .. } = port.link else { continue };
        if limited.contains(&switch) {
            let datapath = [keys.switch(switch)].into();
            let name = port_in_switch(&network[switch].name, &port.name);
            for (stage, side) in [(Stage::LsInAcl, "inport"), (Stage::LsOutAcl, "outport")] {
                let condition = format!("{side} == {name:?}");
                flows.add(&datapath, (stage, EXEMPT), condition, "next;", port.line);
            }
        }
    }
}

/// For each port group, the switches that its ports are on.
fn switches_of_groups<'n>(
    network: &'n Network,
    keys: &DatapathKeys,
) -> BTreeMap<&'n str, Arc<[DatapathKey]>> {
    let switches = network.logical_switches().iter().zip(&keys.switches);
    let home: HashMap<&str, DatapathKey> = switches
        .flat_map(|(switch, &key)| switch.ports.iter().map(move |port| (port.name.as_str(), key)))
        .collect();
    let groups = network.port_groups().iter();
    groups
        .map(|(name, members)| {
            let mut keys: Vec<_> =
                members.iter().filter_map(|member| home.get(member.as_str()).copied()).collect();
            keys.sort_unstable();
            keys.dedup();
            (name.as_str(), keys.into())
        })
        .collect()
}

fn actions(acl: &Acl) -> String {
    let verdict = acl.action.name();
    let log = acl.log.as_ref().map_or_else(String::new, |name| {
        format!("log(name={name:?}, verdict={verdict}, severity=info); ")
    });
    match acl.action {
        AclAction::Allow => log + "next;",
        // A lone `drop;` is required; with other actions, a packet that is sent nowhere is dropped
        // too.
        AclAction::Drop if log.is_empty() => "drop;".to_owned(),
        AclAction::Drop => log.trim_end().to_owned(),
        AclAction::Reject => log + &reject(acl.direction),
    }
}

/// A match without its comments, which would hide the text that is appended to it.
fn one_line(condition: &str) -> String {
    // The match was parsed when the network was read.
    expr::parse(condition).map_or_else(|_| condition.to_owned(), |expr| expr.to_string())
}

/// The actions that send the reply to the port of the sender. From the ingress pipeline it goes to
/// the switch's egress. From the egress pipeline it goes through the destination lookup, because
/// that port may be on another host.
fn reject(direction: AclDirection) -> String {
    let next = match direction {
        AclDirection::FromPort => next_to(Stage::LsOutCheckPortSec),
        AclDirection::ToPort => next_to(Stage::LsInL2Lkup),
    };
    format!("reg0 = 0; reject {{ outport <-> inport; {next} }};")
}
