//! `lr_in_ip_input`: packets for the router itself, and packets that routers do not forward.

use super::{FlowCollector, RouterFlows, Stage, addresses, broadcasts};
use crate::logical::set_of;
use crate::logical::switch::solicitation_for;
use crate::{Prefix, RouterPort};
use flow::DatapathKey;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

const STAGE: Stage = Stage::LrInIpInput;

/// Addresses that are valid on no link (RFC 1812 section 5.3.7, RFC 4291 section 2.5).
const BAD_ADDRESSES: &str = "ip4.src_mcast || ip4.src == 255.255.255.255 || \
     ip4.src == 127.0.0.0/8 || ip4.dst == 127.0.0.0/8 || ip4.src == 0.0.0.0/8 || \
     ip4.dst == 0.0.0.0/8 || ip6.src == ff00::/8 || ip6.src == ::1 || ip6.dst == ::1";

pub(super) fn add_common(flows: &mut FlowCollector, all: &Arc<[DatapathKey]>) {
    flows.add(all, (STAGE, 100), BAD_ADDRESSES, "drop;", None);
    // The router has already answered these.
    flows.add(all, (STAGE, 85), "arp || nd", "drop;", None);
    flows.add(all, (STAGE, 84), "nd_rs || nd_ra", "drop;", None);
    flows.add(all, (STAGE, 82), "ip4.mcast || ip6.mcast", "drop;", None);
    flows.add(
        all,
        (STAGE, 80),
        "ip6.src == {::, fe80::/10} || ip6.dst == fe80::/10",
        "drop;",
        None,
    );
    flows.add(all, (STAGE, 50), "eth.bcast", "drop;", None);
    flows.add(all, (STAGE, 30), "ip.ttl == {0, 1}", "drop;", None);
    flows.add(all, (STAGE, 0), "1", "next;", None);
}

impl RouterFlows<'_> {
    pub(super) fn add_input(&self, flows: &mut FlowCollector, port: &RouterPort) {
        let (v4, v6) = addresses(port);
        if let Some(first) = v4.first() {
            self.add_input4(flows, port, &v4, *first);
        }
        if let Some(first) = v6.first() {
            self.add_input6(flows, port, &v6, *first);
        }
    }

    fn add_input4(
        &self,
        flows: &mut FlowCollector,
        port: &RouterPort,
        ips: &[Ipv4Addr],
        first: Ipv4Addr,
    ) {
        let RouterPort { name, line, .. } = port;
        let mut add = |priority, condition: String, actions: String| {
            flows.add(&self.datapath, (STAGE, priority), condition, actions, *line);
        };
        let own = set_of(ips);
        let own_and_broadcast = set_of(&[ips, &broadcasts(port)].concat());
        let forged = format!("ip4.src == {own_and_broadcast} && reg9[0] == 0");
        add(100, forged, "drop;".to_owned());
        for net in &port.addresses {
            if net.addr().is_ipv4() {
                let (ip, network) = (net.addr(), Prefix::from(*net));
                add(
                    90,
                    format!(
                        "inport == {name:?} && arp.op == 1 && arp.tpa == {ip} && arp.spa == \
                             {network}"
                    ),
                    "eth.dst = eth.src; eth.src = xreg0[0..47]; arp.op = 2; arp.tha = arp.sha; \
                     arp.sha = xreg0[0..47]; arp.tpa <-> arp.spa; outport = inport; \
                     flags.loopback = 1; output;"
                        .to_owned(),
                );
            }
        }
        add(
            90,
            format!("ip4.dst == {own} && icmp4.type == 8 && icmp4.code == 0"),
            "ip4.dst <-> ip4.src; ip.ttl = 255; icmp4.type = 0; flags.loopback = 1; next;"
                .to_owned(),
        );
        // Directed broadcasts are not forwarded (RFC 2644).
        let mut refused = [ips, &broadcasts(port)].concat();
        refused.retain(|ip| !self.is_external((*ip).into()));
        if !refused.is_empty() {
            add(60, format!("ip4.dst == {}", set_of(&refused)), "drop;".to_owned());
        }
        add(
            31,
            format!("inport == {name:?} && ip4 && ip.ttl == {{0, 1}} && !ip.later_frag"),
            format!(
                "icmp4 {{ eth.dst <-> eth.src; icmp4.type = 11; icmp4.code = 0; ip4.dst = ip4.src; \
                 ip4.src = {first}; ip.ttl = 254; outport = {name:?}; flags.loopback = 1; output; \
                 }};"
            ),
        );
    }

    fn add_input6(
        &self,
        flows: &mut FlowCollector,
        port: &RouterPort,
        ips: &[Ipv6Addr],
        first: Ipv6Addr,
    ) {
        let RouterPort { name, line, .. } = port;
        let mut add = |priority, condition: String, actions: &str| {
            flows.add(&self.datapath, (STAGE, priority), condition, actions, *line);
        };
        let own = set_of(ips);
        add(100, format!("ip6.src == {own} && reg9[0] == 0"), "drop;");
        for &ip in ips {
            let solicitation = solicitation_for(ip);
            add(
                90,
                format!("inport == {name:?} && {solicitation}"),
                "nd_na_router { eth.src = xreg0[0..47]; ip6.src = nd.target; nd.tll = \
                 xreg0[0..47]; \
                 outport = inport; flags.loopback = 1; output; };",
            );
        }
        add(
            90,
            format!("ip6.dst == {own} && icmp6.type == 128 && icmp6.code == 0"),
            "ip6.dst <-> ip6.src; ip.ttl = 255; icmp6.type = 129; flags.loopback = 1; next;",
        );
        let refused = ips.iter().filter(|ip| !self.is_external((**ip).into()));
        let refused: Vec<_> = refused.collect();
        if !refused.is_empty() {
            add(60, format!("ip6.dst == {}", set_of(&refused)), "drop;");
        }
        add(
            31,
            format!("inport == {name:?} && ip6 && ip.ttl == {{0, 1}} && !ip.later_frag"),
            &format!(
                "icmp6 {{ eth.dst <-> eth.src; icmp6.type = 3; icmp6.code = 0; ip6.dst = ip6.src; \
                 ip6.src = {first}; ip.ttl = 254; outport = {name:?}; flags.loopback = 1; output; \
                 }};"
            ),
        );
    }
}
