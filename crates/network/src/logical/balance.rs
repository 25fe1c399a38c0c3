//! Logical flows of load balancers in the switches of their clients, like those of ovn-northd(8).
//! Those in routers are in `router/balance.rs`.
//!
//! The switch of a client translates the destination of a new connection to a backend. The
//! connection tracker stores the choice in the zone of the client's port. A client that is a
//! backend may be assigned to itself. Such a *hairpin* packet is sent back to it with the virtual
//! address as its source.

use super::acl::AclSwitches;
use super::{DatapathKeys, FlowCollector, Stage, stateful};
use crate::{LoadBalancer, Network};
use flow::DatapathKey;
use lflow::actions::Backend;
use std::net::IpAddr;
use std::sync::Arc;

/// Matches of packets that are never tracked.
const UNTRACKED: [&str; 3] =
    ["eth.mcast", "nd || nd_rs || nd_ra || mldv1 || mldv2", "reg0[16] == 1"];

pub(super) fn add(
    network: &Network,
    keys: &DatapathKeys,
    switches: &AclSwitches,
    flows: &mut FlowCollector,
) {
    add_common(&switches.balanced, flows);
    for balancer in network.load_balancers() {
        let datapaths: Arc<[DatapathKey]> =
            balancer.switches.iter().map(|switch| keys.switch(*switch)).collect();
        add_balancer(balancer, &datapaths, flows);
    }
}

fn add_common(balanced: &Arc<[DatapathKey]>, flows: &mut FlowCollector) {
    let mut add = |stage, priority, condition: &str, actions: &str| {
        flows.add(balanced, (stage, priority), condition, actions, None);
    };
    for stage in [Stage::LsInPreLb, Stage::LsOutPreLb] {
        for condition in UNTRACKED {
            add(stage, stateful::UNTRACKED, condition, "next;");
        }
        add(stage, 100, "ip", "reg0[2] = 1; next;");
    }
    for stage in [Stage::LsInPreStateful, Stage::LsOutPreStateful] {
        add(stage, 110, "reg0[2] == 1", "ct_lb_mark;");
    }
    add(
        Stage::LsInPreHairpin,
        100,
        "ip && ct.trk",
        "reg0[6] = chk_lb_hairpin(); reg0[12] = chk_lb_hairpin_reply(); next;",
    );
    let stage = Stage::LsInNatHairpin;
    add(stage, 100, "ip && ct.est && ct.trk && reg0[6] == 1", "ct_snat;");
    add(stage, 100, "ip && ct.new && ct.trk && reg0[6] == 1", "ct_snat_to_vip; next;");
    add(stage, 90, "ip && reg0[12] == 1", "ct_snat;");
    add(
        Stage::LsInHairpin,
        1,
        "reg0[6] == 1 || reg0[12] == 1",
        "eth.dst <-> eth.src; outport = inport; flags.loopback = 1; output;",
    );
}

fn add_balancer(
    balancer: &LoadBalancer,
    datapaths: &Arc<[DatapathKey]>,
    flows: &mut FlowCollector,
) {
    let LoadBalancer { protocol, vip, line, .. } = balancer;
    let (ip, register) = match vip.ip() {
        IpAddr::V4(_) => ("ip4", "reg1"),
        IpAddr::V6(_) => ("ip6", "xxreg1"),
    };
    let (address, port) = (vip.ip(), vip.port());
    let is_to_vip = format!("{ip}.dst == {address} && {}.dst == {port}", protocol.name());
    flows.add(
        datapaths,
        (Stage::LsInPreStateful, 120),
        format!("reg0[2] == 1 && {is_to_vip}"),
        format!("{register} = {address}; reg2[0..15] = {port}; ct_lb_mark;"),
        *line,
    );
    let choose = match choice(balancer, "") {
        Some(choice) => format!("reg0[1] = 0; {choice}"),
        None => "drop;".to_owned(),
    };
    flows.add(datapaths, (Stage::LsInLb, 120), format!("ct.new && {is_to_vip}"), choose, *line);
    if let Some(timeout_s) = balancer.affinity_s {
        add_affinity(balancer, timeout_s, datapaths, flows);
    }
}

/// The action that chooses a backend, with these further arguments; `None` if all are offline.
pub(super) fn choice(balancer: &LoadBalancer, arguments: &str) -> Option<String> {
    let backends: Vec<String> = balancer.active().map(ToString::to_string).collect();
    (!backends.is_empty())
        .then(|| format!("ct_lb_mark(backends={}{arguments});", backends.join(",")))
}

/// Source-address affinity. The backend of the client is in `reg4` or `xxreg0`, and in `reg8`.
///
/// ovn-northd leaves the virtual address out of the match in the stage `lb`, so that two load
/// balancers with a backend in common have one flow with two lists of actions there.
fn add_affinity(
    balancer: &LoadBalancer,
    timeout_s: u16,
    datapaths: &Arc<[DatapathKey]>,
    flows: &mut FlowCollector,
) {
    let LoadBalancer { protocol, vip, line, .. } = balancer;
    let (ip, register, known) = match vip.ip() {
        IpAddr::V4(_) => ("ip4", "reg1", "reg4"),
        IpAddr::V6(_) => ("ip6", "xxreg1", "xxreg0"),
    };
    let protocol = protocol.name();
    let is_to_vip = format!("{register} == {} && reg2[0..15] == {}", vip.ip(), vip.port());
    let mut add = |place, condition: String, actions: String| {
        flows.add(datapaths, place, condition, actions, *line);
    };
    add(
        (Stage::LsInLbAffCheck, 100),
        format!("ct.new && {ip} && {is_to_vip}"),
        "reg9[6] = chk_lb_aff(); next;".to_owned(),
    );
    for backend in balancer.active() {
        let (address, port) = (backend.ip(), backend.port());
        add(
            (Stage::LsInLb, 150),
            format!(
                "reg9[6] == 1 && ct.new && {ip}.dst == {} && {protocol}.dst == {} && \
                 {known} == {address} && reg8[0..15] == {port}",
                vip.ip(),
                vip.port()
            ),
            format!(
                "reg0[1] = 0; {register} = {}; reg2[0..15] = {}; ct_lb_mark(backends={backend});",
                vip.ip(),
                vip.port()
            ),
        );
        add(
            (Stage::LsInLbAffLearn, 100),
            format!(
                "reg9[6] == 0 && ct.new && {ip} && {is_to_vip} && {ip}.dst == {address} && \
                 {protocol}.dst == {port}"
            ),
            format!(
                "commit_lb_aff(vip = \"{vip}\", backend = \"{backend}\", proto = {protocol}, \
                 timeout = {timeout_s});"
            ),
        );
    }
}

/// The load balancer for the look-ups of hairpin packets.
pub(super) fn loaded(balancer: &LoadBalancer) -> lflow::LoadBalancer {
    let backend = |socket: &std::net::SocketAddr| Backend { ip: socket.ip(), port: socket.port() };
    lflow::LoadBalancer {
        name: balancer.name.clone(),
        protocol: balancer.protocol,
        vips: vec![(backend(&balancer.vip), balancer.backends.iter().map(backend).collect())],
        hairpin_sources: Vec::new(),
        cookie: 0,
    }
}
