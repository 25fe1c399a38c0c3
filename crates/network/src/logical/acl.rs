//! Logical flows of access control lists.

use super::{DatapathKeys, FlowCollector, Stage, next_to, stateful};
use crate::model::port_in_switch;
use crate::{Acl, AclAction, AclDirection, AclScope, Network, RouterLink, SwitchIndex};
use flow::DatapathKey;
use lflow::expr;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Added to the priority of an ACL, as in OVN. Lower priorities are for the other flows of the
/// stage.
pub(super) const OFFSET: u16 = 1000;

/// A priority above all ACLs.
const EXEMPT: u16 = OFFSET + 0x8000;

/// Adds the flows of all ACLs.
pub(super) fn add(
    network: &Network,
    keys: &DatapathKeys,
    (scopes, switches): (&[ScopedAcl<'_>], &AclSwitches),
    flows: &mut FlowCollector,
) {
    stateful::add_pipeline(switches, flows);
    exempt_routers(network, keys, switches, flows);
    for (acl, datapaths) in scopes {
        let (stateful, stateless): (Vec<_>, Vec<_>) =
            datapaths.iter().copied().partition(|&key| switches.is_stateful(key));
        let (stage, port) = match acl.direction {
            AclDirection::FromPort => (Stage::LsInAcl, "inport"),
            AclDirection::ToPort => (Stage::LsOutAcl, "outport"),
        };
        let condition = match &acl.scope {
            AclScope::Switch(_) => acl.condition.clone(),
            AclScope::PortGroup(name) => {
                format!("{port} == @{name} && ({})", one_line(&acl.condition))
            }
        };
        let place = (stage, OFFSET + acl.priority);
        flows.add(&stateless.into(), place, condition.as_str(), actions(acl), acl.line);
        stateful::add_acl(acl, &stateful.into(), place, &one_line(&condition), flows);
    }
}

/// An ACL with the switches that it applies to.
pub(super) type ScopedAcl<'n> = (&'n Acl, Arc<[DatapathKey]>);

/// Each ACL with the switches that it applies to.
pub(super) fn scopes<'n>(network: &'n Network, keys: &DatapathKeys) -> Vec<ScopedAcl<'n>> {
    let groups = switches_of_groups(network, keys);
    let switches_of = |acl: &Acl| match &acl.scope {
        AclScope::Switch(switch) => [keys.switch(*switch)].into(),
        AclScope::PortGroup(name) => {
            groups.get(name.as_str()).map_or_else(Arc::default, Arc::clone)
        }
    };
    network.acls().iter().map(|acl| (acl, switches_of(acl))).collect()
}

/// Switches, grouped by the stages that their ACLs and load balancers need.
pub(super) struct AclSwitches {
    /// Those with an ACL that allows related packets, or with a load balancer.
    pub(super) stateful: Arc<[DatapathKey]>,
    /// Those with a load balancer.
    pub(super) balanced: Arc<[DatapathKey]>,
    /// Those with an ACL that allows related packets.
    pub(super) related: Arc<[DatapathKey]>,
    /// The others with ACLs in the direction `to-port`.
    pub(super) filtered: Arc<[DatapathKey]>,
    /// The others with ACLs in the direction `from-port`.
    pub(super) filtering: Arc<[DatapathKey]>,
    /// Those whose packets skip the ACLs in the direction `to-port`.
    pub(super) unfiltered: Arc<[DatapathKey]>,
    /// Those whose packets skip the ACLs in the direction `from-port`.
    pub(super) unfiltering: Arc<[DatapathKey]>,
    /// The keys in `stateful`.
    stateful_keys: BTreeSet<DatapathKey>,
    /// The switches with ACLs in the direction `from-port`.
    from_port_keys: BTreeSet<DatapathKey>,
}

impl AclSwitches {
    pub(super) fn new(network: &Network, scopes: &[ScopedAcl<'_>], keys: &DatapathKeys) -> Self {
        let with = |is_selected: fn(&Acl) -> bool| -> BTreeSet<DatapathKey> {
            let selected = scopes.iter().filter(|(acl, _)| is_selected(acl));
            selected.flat_map(|(_, datapaths)| datapaths.iter().copied()).collect()
        };
        let related = with(|acl| acl.action == AclAction::AllowRelated);
        let balancers = network.load_balancers().iter();
        let balanced: BTreeSet<DatapathKey> =
            balancers.flat_map(|lb| &lb.switches).map(|switch| keys.switch(*switch)).collect();
        let stateful: BTreeSet<DatapathKey> = related.union(&balanced).copied().collect();
        let to = with(|acl| acl.direction == AclDirection::ToPort);
        let from = with(|acl| acl.direction == AclDirection::FromPort);
        let some = |is_selected: &dyn Fn(&DatapathKey) -> bool| {
            keys.switches.iter().copied().filter(is_selected).collect()
        };
        Self {
            filtered: some(&|key| to.contains(key) && !stateful.contains(key)),
            filtering: some(&|key| from.contains(key) && !stateful.contains(key)),
            unfiltered: some(&|key| !to.contains(key) && !stateful.contains(key)),
            unfiltering: some(&|key| !from.contains(key) && !stateful.contains(key)),
            stateful: some(&|key| stateful.contains(key)),
            balanced: some(&|key| balanced.contains(key)),
            related: some(&|key| related.contains(key)),
            stateful_keys: stateful,
            from_port_keys: from,
        }
    }

    /// True for a switch that tracks connections.
    pub(super) fn is_stateful(&self, switch: DatapathKey) -> bool {
        self.stateful_keys.contains(&switch)
    }

    /// The stage in which a packet continues after the guards.
    pub(super) fn stage_after_guards(&self, switch: DatapathKey) -> Stage {
        if self.is_stateful(switch) {
            Stage::LsInPreAcl
        } else if self.from_port_keys.contains(&switch) {
            Stage::LsInAcl
        } else {
            Stage::LsInArpRsp
        }
    }

    /// The switches by the stage in which their packets continue after the guards.
    pub(super) fn by_stage_after_guards(&self) -> [(&Arc<[DatapathKey]>, Stage); 3] {
        [
            (&self.stateful, Stage::LsInPreAcl),
            (&self.filtering, Stage::LsInAcl),
            (&self.unfiltering, Stage::LsInArpRsp),
        ]
    }
}

/// ACLs apply to guests only: ports that lead to routers are exempt, and their packets are not
/// tracked.
fn exempt_routers(
    network: &Network,
    keys: &DatapathKeys,
    switches: &AclSwitches,
    flows: &mut FlowCollector,
) {
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
        let key = keys.switch(switch);
        let (datapath, is_stateful) = ([key].into(), switches.is_stateful(key));
        let name = port_in_switch(&network[switch].name, &port.name);
        for (acl, pre_acl, pre_lb, side) in [
            (Stage::LsInAcl, Stage::LsInPreAcl, Stage::LsInPreLb, "inport"),
            (Stage::LsOutAcl, Stage::LsOutPreAcl, Stage::LsOutPreLb, "outport"),
        ] {
            let condition = format!("{side} == {name:?}");
            if is_stateful {
                let untracked = (pre_acl, stateful::UNTRACKED);
                flows.add(&datapath, untracked, condition.as_str(), "next;", port.line);
            }
            if switches.balanced.contains(&key) {
                // The connection tracking zone of the client's port must not be used behind the
                // router.
                let is_out = side == "outport" && !switches.related.contains(&key);
                let actions = if is_out { "ct_clear; next;" } else { "next;" };
                let untracked = (pre_lb, stateful::UNTRACKED);
                let condition = format!("ip && {condition}");
                flows.add(&datapath, untracked, condition, actions, port.line);
            }
            if limited.contains(&switch) || is_stateful {
                flows.add(&datapath, (acl, EXEMPT), condition, "next;", port.line);
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

/// The action that logs a packet; empty if the ACL does not log.
pub(super) fn log(acl: &Acl) -> String {
    let verdict = match acl.action {
        AclAction::Allow | AclAction::AllowRelated | AclAction::AllowStateless => "allow",
        AclAction::Drop => "drop",
        AclAction::Reject => "reject",
    };
    acl.log.as_ref().map_or_else(String::new, |name| {
        format!("log(name={name:?}, verdict={verdict}, severity=info); ")
    })
}

/// The actions of an ACL that does not depend on connections.
pub(super) fn actions(acl: &Acl) -> String {
    let log = log(acl);
    match acl.action {
        AclAction::Allow | AclAction::AllowRelated | AclAction::AllowStateless => log + "next;",
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
pub(super) fn reject(direction: AclDirection) -> String {
    let next = match direction {
        AclDirection::FromPort => next_to(Stage::LsOutCheckPortSec),
        AclDirection::ToPort => next_to(Stage::LsInL2Lkup),
    };
    format!("reg0 = 0; reject {{ outport <-> inport; {next} }};")
}
