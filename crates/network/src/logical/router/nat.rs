//! Network address translation, with the stages that ovn-northd(8) uses on a gateway router.
//!
//! | stage | what it does |
//! |---|---|
//! | `lr_in_unsnat` | reverses SNAT for replies |
//! | `lr_in_dnat` | applies DNAT to inbound connections |
//! | `lr_out_undnat` | reverses DNAT for replies |
//! | `lr_out_post_undnat` | commits new connections |
//! | `lr_out_snat` | applies SNAT to outbound connections |

use super::{FlowCollector, RouterFlows, Stage};
use crate::logical::next_to;
use crate::logical::switch::solicitation_for;
use crate::{FileLine, ForceSnat, IpNet, Nat, RouterPort};
use flow::DatapathKey;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Adds the flows that do not depend on individual rules. In routers without NAT (`plain`), packets
/// skip these stages, because each stage delays the first packet of a megaflow.
pub(super) fn add_common(
    flows: &mut FlowCollector,
    plain: &Arc<[DatapathKey]>,
    translating: &Arc<[DatapathKey]>,
) {
    let routing = next_to(Stage::LrInIpRouting);
    flows.add(plain, (Stage::LrInUnsnat, 0), "1", routing, None);
    flows.add(plain, (Stage::LrOutUndnat, 0), "1", next_to(Stage::LrOutDelivery), None);
    for stage in [
        Stage::LrInUnsnat,
        Stage::LrInDefrag,
        Stage::LrInLbAffCheck,
        Stage::LrInDnat,
        Stage::LrInLbAffLearn,
        Stage::LrOutUndnat,
        Stage::LrOutPostUndnat,
        Stage::LrOutSnat,
    ] {
        flows.add(translating, (stage, 0), "1", "next;", None);
    }
    let discovery = "nd || nd_rs || nd_ra";
    flows.add(translating, (Stage::LrOutUndnat, 100), discovery, "next;", None);
    let undo = "flags.loopback = 1; ct_dnat;";
    flows.add(translating, (Stage::LrOutUndnat, 50), "ip", undo, None);
    let place = (Stage::LrOutPostUndnat, 50);
    flows.add(translating, place, "ip && ct.new", "ct_commit { }; next;", None);
    flows.add(translating, (Stage::LrOutSnat, 120), "nd_ns", "next;", None);
}

/// `ip4` or `ip6`.
pub(super) const fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ip4" } else { "ip6" }
}

impl RouterFlows<'_> {
    /// True for an external address of a NAT rule, or a virtual address of a load balancer.
    pub(super) fn is_external(&self, address: IpAddr) -> bool {
        self.nats.iter().any(|nat| nat.external == address)
            || self.balancers.iter().any(|balancer| balancer.vip.ip() == address)
            || self.forced().iter().any(|(.., forced)| *forced == address)
    }

    pub(super) fn add_nat(&self, flows: &mut FlowCollector) {
        for nat in &self.nats {
            let Nat { kind, external, internal, line, .. } = nat;
            let ip = family(*external);
            let to_external = format!("ip && {ip}.dst == {external}");
            if kind.translates_destination() {
                let flag = match self.router.dnat_force_snat {
                    Some(_) => "flags.force_snat_for_dnat = 1; ",
                    None => "",
                };
                let actions = format!("{flag}flags.loopback = 1; ct_dnat({});", internal.addr());
                let place = (Stage::LrInDnat, 100);
                flows.add(&self.datapath, place, to_external.as_str(), actions, *line);
            }
            if kind.translates_source() {
                let place = (Stage::LrOutSnat, 1 + u16::from(internal.prefix_len()));
                let condition = format!("ip && {ip}.src == {internal} && (!ct.trk || !ct.rpl)");
                let actions = format!("ct_snat({external});");
                flows.add(&self.datapath, place, condition, actions, *line);
            }
        }
        // Several rules may share an external address.
        let externals: BTreeMap<IpAddr, &Nat> =
            self.nats.iter().map(|nat| (nat.external, *nat)).collect();
        for (external, nat) in externals {
            if self.nats.iter().any(|it| it.external == external && it.kind.translates_source()) {
                let condition = format!("ip && {}.dst == {external}", family(external));
                let place = (Stage::LrInUnsnat, 90);
                flows.add(&self.datapath, place, condition, "ct_snat;", nat.line);
            }
            if !self.has_address(external) {
                self.add_answers(flows, external, nat);
            }
        }
        self.add_forced(flows);
        self.add_untranslated(flows);
    }

    /// The forced SNAT addresses of the router. Each has the kind of connection, as in the name of
    /// its flag, and the egress port if the address is only for that port.
    fn forced(&self) -> Vec<(&'static str, Option<&RouterPort>, IpAddr)> {
        let mut forced = Vec::new();
        let of_kinds = [("lb", &self.router.lb_force_snat), ("dnat", &self.router.dnat_force_snat)];
        for (kind, force) in of_kinds {
            match force {
                Some(ForceSnat::Addresses(addresses)) => {
                    forced.extend(addresses.iter().map(|address| (kind, None, *address)));
                }
                Some(ForceSnat::RouterIp) => {
                    for port in &self.router.ports {
                        let mut own = port.addresses.iter().map(IpNet::addr);
                        let first4 = own.clone().find(IpAddr::is_ipv4);
                        let first = first4.into_iter().chain(own.find(IpAddr::is_ipv6));
                        forced.extend(first.map(|address| (kind, Some(port), address)));
                    }
                }
                None => {}
            }
        }
        forced
    }

    /// Applies forced SNAT to inbound connections, so that replies return through this router.
    fn add_forced(&self, flows: &mut FlowCollector) {
        let mut replies = BTreeSet::new();
        for (kind, port, address) in self.forced() {
            let ip = family(address);
            let (priority, arrives, leaves) = match port {
                Some(RouterPort { name, .. }) => {
                    (110, format!("inport == {name:?}"), format!(" && outport == {name:?}"))
                }
                None => (100, ip.to_owned(), String::new()),
            };
            let mut add = |place, condition: String, actions: &str| {
                flows.add(&self.datapath, place, condition, actions, self.router.line);
            };
            let condition = format!("{arrives} && {ip}.dst == {address}");
            if replies.insert(condition.clone()) {
                add((Stage::LrInUnsnat, 110), condition, "ct_snat;");
            }
            let condition = format!("flags.force_snat_for_{kind} == 1 && {ip}{leaves}");
            add((Stage::LrOutSnat, priority), condition, &format!("ct_snat({address});"));
        }
    }

    /// Drops packets to NAT addresses that no NAT rule or load balancer has translated.
    fn add_untranslated(&self, flows: &mut FlowCollector) {
        let nats = self.nats.iter().map(|nat| (nat.external, nat.line));
        let vips = self.balancers.iter().map(|balancer| (balancer.vip.ip(), balancer.line));
        let forced = self.forced().into_iter().map(|(.., address)| (address, self.router.line));
        let own: BTreeMap<IpAddr, FileLine> = vips
            .chain(nats)
            .chain(forced)
            .filter(|(address, _)| self.has_address(*address))
            .collect();
        for (address, line) in own {
            let condition = format!("{}.dst == {address}", family(address));
            flows.add(&self.datapath, (Stage::LrInArpResolve, 2), condition, "drop;", line);
        }
    }

    /// True for an address of one of the router's ports.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        let is = |port: &RouterPort| port.addresses.iter().any(|net| net.addr() == address);
        self.router.ports.iter().any(is)
    }

    /// Answers ARP and neighbour solicitations for an external address.
    fn add_answers(&self, flows: &mut FlowCollector, external: IpAddr, nat: &Nat) {
        let (condition, actions) = match external {
            IpAddr::V4(ip) => (
                format!("arp.op == 1 && arp.tpa == {ip}"),
                "eth.dst = eth.src; eth.src = xreg0[0..47]; arp.op = 2; arp.tha = arp.sha; \
                 arp.sha = xreg0[0..47]; arp.tpa <-> arp.spa; outport = inport; \
                 flags.loopback = 1; output;",
            ),
            IpAddr::V6(ip) => (
                solicitation_for(ip),
                "nd_na { eth.src = xreg0[0..47]; ip6.src = nd.target; nd.tll = xreg0[0..47]; \
                 outport = inport; flags.loopback = 1; output; };",
            ),
        };
        flows.add(&self.datapath, (Stage::LrInIpInput, 90), condition, actions, nat.line);
    }
}
