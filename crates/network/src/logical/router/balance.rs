//! Load balancers of a gateway router, with the stages of ovn-northd(8).
//!
//! | stage | what it does |
//! |---|---|
//! | `lr_in_unsnat` | skips packets for a virtual address that is an external one of NAT too |
//! | `lr_in_defrag` | packets for a virtual address pass the connection tracker |
//! | `lr_in_lb_aff_check` | looks up the backend of a client |
//! | `lr_in_dnat` | chooses the backend of a new connection |
//! | `lr_in_lb_aff_learn` | remembers the backend of a client |
//!
//! The stages of [NAT](super::nat) reverse the translation for replies.

use super::nat::family;
use super::{FlowCollector, RouterFlows, Stage};
use crate::logical::balance::choice;
use crate::logical::set_of;
use crate::{LoadBalancer, RouterPort};
use flow::DatapathKey;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Priority, match and actions for packets of connections that have a backend, and for ICMP errors
/// about such connections.
const KNOWN: [(u16, &str, &str); 6] = [
    (
        70,
        "ct.rel && !ct.est && !ct.new && ct_mark.skip_snat == 1",
        "flags.skip_snat_for_lb = 1; ct_commit_nat;",
    ),
    (
        70,
        "ct.rel && !ct.est && !ct.new && ct_mark.force_snat == 1",
        "flags.force_snat_for_lb = 1; ct_commit_nat;",
    ),
    (50, "ct.rel && !ct.est && !ct.new", "ct_commit_nat;"),
    (
        70,
        "ct.est && !ct.rel && !ct.new && ct_mark.natted && ct_mark.skip_snat == 1",
        "flags.skip_snat_for_lb = 1; next;",
    ),
    (
        70,
        "ct.est && !ct.rel && !ct.new && ct_mark.natted && ct_mark.force_snat == 1",
        "flags.force_snat_for_lb = 1; next;",
    ),
    (50, "ct.est && !ct.rel && !ct.new && ct_mark.natted", "next;"),
];

/// Adds the flows that do not depend on the individual load balancers.
pub(super) fn add_common(flows: &mut FlowCollector, balancing: &Arc<[DatapathKey]>) {
    for (priority, condition, actions) in KNOWN {
        flows.add(balancing, (Stage::LrInDnat, priority), condition, actions, None);
    }
}

impl RouterFlows<'_> {
    pub(super) fn add_balancers(&self, flows: &mut FlowCollector) {
        // Load balancers of different ports and protocols may share a virtual address.
        let vips: BTreeMap<IpAddr, &LoadBalancer> =
            self.balancers.iter().map(|balancer| (balancer.vip.ip(), *balancer)).collect();
        for (vip, balancer) in vips {
            let condition = format!("ip && {}.dst == {vip}", family(vip));
            let place = (Stage::LrInDefrag, 100);
            flows.add(&self.datapath, place, condition, "ct_dnat;", balancer.line);
        }
        for balancer in &self.balancers {
            self.add_balancer(flows, balancer);
        }
        for port in &self.router.ports {
            self.add_vip_answers(flows, port);
        }
    }

    fn add_balancer(&self, flows: &mut FlowCollector, balancer: &LoadBalancer) {
        let LoadBalancer { vip, line, .. } = balancer;
        let (ip, protocol) = (family(vip.ip()), balancer.protocol.name());
        let (address, port) = (vip.ip(), vip.port());
        if self.nats.iter().any(|nat| nat.external == address) {
            let condition =
                format!("{ip} && {ip}.dst == {address} && {protocol} && {protocol}.dst == {port}");
            flows.add(&self.datapath, (Stage::LrInUnsnat, 120), condition, "next;", *line);
        }
        let is_new = format!(
            "ct.new && !ct.rel && {ip} && {ip}.dst == {address} && {protocol} && \
             {protocol}.dst == {port}"
        );
        let (flag, arguments) = self.lb_force_snat();
        let choose = choice(balancer, arguments);
        let choose = choose.map_or_else(|| "drop;".to_owned(), |it| format!("{flag}{it}"));
        flows.add(&self.datapath, (Stage::LrInDnat, 120), is_new.as_str(), choose, *line);
        if let Some(timeout_s) = balancer.affinity_s {
            self.add_lb_affinity(flows, balancer, is_new, timeout_s);
        }
    }

    /// The texts that mark new connections for forced SNAT: an action before `ct_lb_mark`, and an
    /// argument of `ct_lb_mark`.
    const fn lb_force_snat(&self) -> (&'static str, &'static str) {
        match self.router.lb_force_snat {
            Some(_) => ("flags.force_snat_for_lb = 1; ", "; force_snat"),
            None => ("", ""),
        }
    }

    /// Source-address affinity. The backend of the client is in `reg4` or `xxreg1`, and in `reg8`.
    ///
    /// As in a switch, the match in the stage `dnat` has the virtual address, which ovn-northd
    /// leaves out: two load balancers may have a backend in common.
    fn add_lb_affinity(
        &self,
        flows: &mut FlowCollector,
        balancer: &LoadBalancer,
        is_new: String,
        timeout_s: u16,
    ) {
        let LoadBalancer { vip, line, .. } = balancer;
        let (flag, arguments) = self.lb_force_snat();
        let (ip, protocol) = (family(vip.ip()), balancer.protocol.name());
        let (register, known) = match vip.ip() {
            IpAddr::V4(_) => ("reg0", "reg4"),
            IpAddr::V6(_) => ("xxreg0", "xxreg1"),
        };
        let mut add = |place, condition: String, actions: String| {
            flows.add(&self.datapath, place, condition, actions, *line);
        };
        add(
            (Stage::LrInLbAffCheck, 100),
            is_new,
            format!(
                "{register} = {ip}.dst; reg9[16..31] = {protocol}.dst; reg9[6] = chk_lb_aff(); \
                 next;"
            ),
        );
        for backend in balancer.active() {
            let (address, port) = (backend.ip(), backend.port());
            add(
                (Stage::LrInDnat, 150),
                format!(
                    "reg9[6] == 1 && ct.new && {ip}.dst == {} && {protocol}.dst == {} && \
                     {known} == {address} && reg8[0..15] == {port}",
                    vip.ip(),
                    vip.port()
                ),
                format!(
                    "{register} = {}; {flag}ct_lb_mark(backends={backend}{arguments});",
                    vip.ip()
                ),
            );
            add(
                (Stage::LrInLbAffLearn, 100),
                format!(
                    "reg9[6] == 0 && ct.new && {ip} && {register} == {} && reg9[16..31] == {} && \
                     {ip}.dst == {address} && {protocol}.dst == {port}",
                    vip.ip(),
                    vip.port()
                ),
                format!(
                    "commit_lb_aff(vip = \"{vip}\", backend = \"{backend}\", proto = {protocol}, \
                     timeout = {timeout_s});"
                ),
            );
        }
    }

    /// Answers ARP and neighbour solicitations for virtual addresses in the networks of a port.
    /// Other virtual addresses are reached through a route to the router.
    fn add_vip_answers(&self, flows: &mut FlowCollector, port: &RouterPort) {
        let vips: BTreeSet<IpAddr> = self
            .balancers
            .iter()
            .map(|balancer| balancer.vip.ip())
            .filter(|vip| port.address_towards(*vip).is_some())
            .collect();
        let vips: Vec<_> = vips.into_iter().filter(|vip| !self.has_address(*vip)).collect();
        let (v4, v6): (Vec<_>, Vec<_>) = vips.into_iter().partition(IpAddr::is_ipv4);
        let name = &port.name;
        let place = (Stage::LrInIpInput, 90);
        if !v4.is_empty() {
            let condition =
                format!("inport == {name:?} && arp.op == 1 && arp.tpa == {}", set_of(&v4));
            let actions = "eth.dst = eth.src; eth.src = xreg0[0..47]; arp.op = 2; \
                           arp.tha = arp.sha; arp.sha = xreg0[0..47]; arp.tpa <-> arp.spa; \
                           outport = inport; flags.loopback = 1; output;";
            flows.add(&self.datapath, place, condition, actions, port.line);
        }
        if !v6.is_empty() {
            let condition = format!("inport == {name:?} && nd_ns && nd.target == {}", set_of(&v6));
            let actions = "nd_na { eth.src = xreg0[0..47]; ip6.src = nd.target; \
                           nd.tll = xreg0[0..47]; outport = inport; flags.loopback = 1; output; };";
            flows.add(&self.datapath, place, condition, actions, port.line);
        }
    }
}
