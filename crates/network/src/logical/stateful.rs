//! Logical flows of switches with an ACL that allows related packets, like those of ovn-northd(8).
//!
//! Such a switch tracks connections twice. The ingress pipeline uses the zone of the sender's port,
//! and the egress pipeline that of the receiver's port. A packet that an ACL allows commits its
//! connection. Replies and ICMP errors of a committed connection pass the ACLs in both directions.
//! When an ACL is changed so that it drops packets of a committed connection, the connection is
//! marked as blocked, and its replies are dropped as well.

use super::acl::{AclSwitches, OFFSET, actions, log, reject};
use super::{FlowCollector, Stage, next_to};
use crate::{Acl, AclAction};
use flow::DatapathKey;
use std::sync::Arc;

/// The priority of packets that are not tracked.
pub(super) const UNTRACKED: u16 = 110;
/// The priority of decisions above all ACLs.
const ABOVE: u16 = 65_532;
/// IPv6 neighbour discovery and multicast listener discovery: never tracked, always allowed.
const IPV6_SERVICE: &str = "nd || nd_rs || nd_ra || mldv1 || mldv2";
/// DHCPv6 replies.
const DHCPV6_REPLY: &str = "(udp && udp.src == 546 && udp.dst == 547)";

/// The stages of a pipeline that depend on connections.
struct Stages {
    pre_acl: Stage,
    pre_lb: Stage,
    pre_stateful: Stage,
    hint: Stage,
    acl: Stage,
    stateful: Stage,
}

const INGRESS: Stages = Stages {
    pre_acl: Stage::LsInPreAcl,
    pre_lb: Stage::LsInPreLb,
    pre_stateful: Stage::LsInPreStateful,
    hint: Stage::LsInAclHint,
    acl: Stage::LsInAcl,
    stateful: Stage::LsInStateful,
};

const EGRESS: Stages = Stages {
    pre_acl: Stage::LsOutPreAcl,
    pre_lb: Stage::LsOutPreLb,
    pre_stateful: Stage::LsOutPreStateful,
    hint: Stage::LsOutAclHint,
    acl: Stage::LsOutAcl,
    stateful: Stage::LsOutStateful,
};

/// For each state of the connection, the kinds of ACLs that may apply: `reg0[7]` for an ACL that
/// allows and commits, `reg0[8]` allows, `reg0[9]` drops, `reg0[10]` blocks the connection.
const HINTS: [(u16, &str, &str); 7] = [
    (7, "ct.new && !ct.est", "reg0[7] = 1; reg0[9] = 1; next;"),
    (6, "!ct.new && ct.est && !ct.rpl && ct_mark.blocked == 1", "reg0[7] = 1; reg0[9] = 1; next;"),
    (5, "!ct.trk", "reg0[8] = 1; reg0[9] = 1; next;"),
    (4, "!ct.new && ct.est && !ct.rpl && ct_mark.blocked == 0", "reg0[8] = 1; reg0[10] = 1; next;"),
    (3, "!ct.est", "reg0[9] = 1; next;"),
    (2, "ct.est && ct_mark.blocked == 1", "reg0[9] = 1; next;"),
    (1, "ct.est && ct_mark.blocked == 0", "reg0[10] = 1; next;"),
];

/// Adds the flows by which packets skip the stages that their switch does not need, and the flows
/// of stateful switches that do not depend on individual ACLs.
pub(super) fn add_pipeline(switches: &AclSwitches, flows: &mut FlowCollector) {
    let AclSwitches { stateful, filtered, filtering, unfiltered, .. } = switches;
    flows.add(filtering, (Stage::LsInAcl, 0), "1", next_to(Stage::LsInArpRsp), None);
    let egress = (Stage::LsOutPreAcl, 0);
    flows.add(filtered, egress, "1", next_to(Stage::LsOutAcl), None);
    flows.add(unfiltered, egress, "1", next_to(Stage::LsOutStateful), None);
    flows.add(filtered, (Stage::LsOutAcl, 0), "1", next_to(Stage::LsOutStateful), None);
    flows.add(filtering, (Stage::LsInLbAffCheck, 0), "1", next_to(Stage::LsInArpRsp), None);
    for stage in [
        Stage::LsInLbAffCheck,
        Stage::LsInLb,
        Stage::LsInLbAffLearn,
        Stage::LsInPreHairpin,
        Stage::LsInNatHairpin,
        Stage::LsInHairpin,
        Stage::LsInStateful,
    ] {
        flows.add(stateful, (stage, 0), "1", "next;", None);
    }
    for stages in [INGRESS, EGRESS] {
        add_pre_acl(&stages, switches, flows);
        add_stages(&stages, stateful, flows);
    }
}

fn add_pre_acl(stages: &Stages, switches: &AclSwitches, flows: &mut FlowCollector) {
    let AclSwitches { stateful, related, .. } = switches;
    for stage in [stages.pre_acl, stages.pre_lb] {
        flows.add(stateful, (stage, 0), "1", "next;", None);
    }
    let untracked = format!("{IPV6_SERVICE} || {DHCPV6_REPLY}");
    let pre_acl = stages.pre_acl;
    flows.add(related, (pre_acl, UNTRACKED), untracked, "next;", None);
    flows.add(related, (pre_acl, UNTRACKED), "eth.mcast", "next;", None);
    flows.add(related, (pre_acl, 100), "ip", "reg0[0] = 1; next;", None);
}

fn add_stages(stages: &Stages, stateful: &Arc<[DatapathKey]>, flows: &mut FlowCollector) {
    let mut add = |stage, priority, condition: &str, actions: &str| {
        flows.add(stateful, (stage, priority), condition, actions, None);
    };
    let &Stages { pre_stateful, hint, acl, stateful, .. } = stages;
    add(pre_stateful, 100, "reg0[0] == 1", "ct_next;");
    add(pre_stateful, 0, "1", "next;");
    for (priority, condition, actions) in HINTS {
        add(hint, priority, condition, actions);
    }
    add(hint, 0, "1", "next;");
    add(acl, ABOVE, "ct.inv || (ct.est && ct.rpl && ct_mark.blocked == 1)", "drop;");
    let reply = "ct.est && !ct.rel && !ct.new && !ct.inv && ct.rpl && ct_mark.blocked == 0";
    add(acl, ABOVE, reply, "next;");
    let related = "!ct.est && ct.rel && !ct.new && !ct.inv && ct_mark.blocked == 0";
    add(acl, ABOVE, related, "next;");
    add(acl, ABOVE, IPV6_SERVICE, "next;");
    add(acl, 1, "ip && !ct.est", "reg0[1] = 1; next;");
    add(acl, 1, "ip && ct.est && ct_mark.blocked == 1", "reg0[1] = 1; next;");
    add(acl, 0, "1", "next;");
    add(stateful, 100, "reg0[1] == 1", "ct_commit { ct_mark.blocked = 0; }; next;");
}

/// Adds the flows of an ACL in stateful switches.
pub(super) fn add_acl(
    acl: &Acl,
    datapaths: &Arc<[DatapathKey]>,
    place: (Stage, u16),
    condition: &str,
    flows: &mut FlowCollector,
) {
    let mut add = |place, condition: &str, actions: String| {
        flows.add(datapaths, place, condition, actions, acl.line);
    };
    let with = |bit: &str| format!("{bit} == 1 && ({condition})");
    match acl.action {
        AclAction::AllowStateless => {
            let pre_acl = match place.0 {
                Stage::LsInAcl => Stage::LsInPreAcl,
                _ => Stage::LsOutPreAcl,
            };
            let actions_before = "reg0[16] = 1; next;".to_owned();
            add((pre_acl, OFFSET + acl.priority), condition, actions_before);
            add(place, condition, actions(acl));
        }
        AclAction::Allow | AclAction::AllowRelated => {
            add(place, &with("reg0[7]"), format!("reg0[1] = 1; {}next;", log(acl)));
            add(place, &with("reg0[8]"), format!("{}next;", log(acl)));
        }
        AclAction::Drop => {
            add(place, &with("reg0[9]"), actions(acl));
            let block = format!("ct_commit {{ ct_mark.blocked = 1; }}; {}", log(acl));
            add(place, &with("reg0[10]"), block.trim_end().to_owned());
        }
        AclAction::Reject => {
            let reject = format!("{}{}", log(acl), reject(acl.direction));
            add(place, &with("reg0[9]"), reject.clone());
            add(
                place,
                &with("reg0[10]"),
                format!("ct_commit {{ ct_mark.blocked = 1; }}; {reject}"),
            );
        }
    }
}
