//! Forwarding: routes, neighbours, packet length.

use super::{FlowCollector, RouterFlows, Stage, addresses};
use crate::logical::next_to;
use crate::logical::switch::solicited_node;
use crate::{FileLine, Prefix, Route, RouterLink, RouterPort};
use flow::DatapathKey;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use wire::MacAddr;

/// Bytes of a frame before its IP packet; routers accept no VLAN tags.
const ETHERNET_BYTES: u16 = 14;

pub(super) fn add_common(flows: &mut FlowCollector, all: &Arc<[DatapathKey]>) {
    // Link-local packets are never forwarded (RFC 4291 section 2.5.6).
    flows.add(all, (Stage::LrInIpRouting, 500), "ip6.dst == fe80::/10", "drop;", None);
    flows.add(all, (Stage::LrInIpRouting, 0), "1", "drop;", None);
    flows.add(all, (Stage::LrInArpResolve, 1), "ip4", "get_arp(outport, reg0); next;", None);
    flows.add(all, (Stage::LrInArpResolve, 1), "ip6", "get_nd(outport, xxreg0); next;", None);
    flows.add(all, (Stage::LrInArpResolve, 0), "1", "drop;", None);
    flows.add(all, (Stage::LrInChkPktLen, 0), "1", "next;", None);
    flows.add(all, (Stage::LrInLargerPkts, 50), "reg9[1] == 1 && reg9[0] == 0", "drop;", None);
    flows.add(all, (Stage::LrInLargerPkts, 0), "1", "next;", None);
    let stage = Stage::LrInArpRequest;
    flows.add(
        all,
        (stage, 100),
        "eth.dst == 00:00:00:00:00:00 && ip4",
        "arp { eth.dst = ff:ff:ff:ff:ff:ff; arp.spa = reg1; arp.tpa = reg0; arp.op = 1; output; };",
        None,
    );
    let solicit = "nd_ns { nd.target = xxreg0; output; };";
    flows.add(all, (stage, 100), "eth.dst == 00:00:00:00:00:00 && ip6", solicit, None);
    flows.add(all, (stage, 0), "1", "output;", None);
}

/// A route to a network.
struct ForwardingRoute<'r> {
    port: &'r RouterPort,
    prefix: Prefix,
    /// `None` for the network of the port itself.
    next_hop: Option<IpAddr>,
    /// The router's address in the network of the next hop.
    source: IpAddr,
    line: FileLine,
}

impl RouterFlows<'_> {
    /// Adds the routes. Longer prefixes have higher priority, and the network of a port has a
    /// higher one than a route to the same network.
    pub(super) fn add_routing(&self, flows: &mut FlowCollector) {
        for port in &self.router.ports {
            for net in &port.addresses {
                let route = ForwardingRoute {
                    port,
                    prefix: Prefix::from(*net),
                    next_hop: None,
                    source: net.addr(),
                    line: port.line,
                };
                self.add_route(flows, &route);
            }
        }
        let mut hops = BTreeMap::new();
        for route in &self.router.routes {
            let Some(port) = self.router.port(route.port) else { continue };
            let Route { prefix, next_hop, source, line, .. } = *route;
            self.add_route(
                flows,
                &ForwardingRoute { port, prefix, next_hop: Some(next_hop), source, line },
            );
            if let IpAddr::V6(hop) = next_hop {
                hops.entry(hop).or_insert(line);
            }
        }
        for (hop, line) in hops {
            self.add_solicitation(flows, hop, line);
        }
    }

    fn add_route(&self, flows: &mut FlowCollector, route: &ForwardingRoute<'_>) {
        const OF_PORT: u16 = 2;
        const STATIC: u16 = 1;
        let &ForwardingRoute { port, prefix, next_hop, source, line } = route;
        let RouterPort { name, mac, .. } = port;
        let (hop, from, dst) = if prefix.is_ipv4() {
            ("reg0", "reg1", "ip4.dst")
        } else {
            ("xxreg0", "xxreg1", "ip6.dst")
        };
        let (to, rank) = match next_hop {
            Some(addr) => (addr.to_string(), STATIC),
            None => (dst.to_owned(), OF_PORT),
        };
        let (addr, len) = (prefix.addr(), prefix.prefix_len());
        flows.add(
            &self.datapath,
            (Stage::LrInIpRouting, u16::from(len) * 3 + rank),
            format!("{dst} == {addr}/{len}"),
            format!(
                "ip.ttl--; {hop} = {to}; {from} = {source}; eth.src = {mac}; outport = {name:?}; \
                 flags.loopback = 1; next;"
            ),
            line,
        );
    }

    /// Sends a neighbour solicitation to the solicited-node group of the next hop, not of the
    /// packet's destination.
    fn add_solicitation(&self, flows: &mut FlowCollector, hop: Ipv6Addr, line: FileLine) {
        let group = solicited_node(hop);
        let [.., a, b, c, d] = group.octets();
        let mac = MacAddr([0x33, 0x33, a, b, c, d]);
        flows.add(
            &self.datapath,
            (Stage::LrInArpRequest, 200),
            format!("eth.dst == 00:00:00:00:00:00 && ip6 && xxreg0 == {hop}"),
            format!("nd_ns {{ eth.dst = {mac}; ip6.dst = {group}; nd.target = {hop}; output; }};"),
            line,
        );
    }

    /// Adds the neighbours that the file lists: guests and other routers.
    pub(super) fn add_resolve(&self, flows: &mut FlowCollector) {
        for port in &self.router.ports {
            match port.link {
                RouterLink::Switch { switch, .. } => {
                    for guest in &self.network[switch].ports {
                        for net in &guest.addresses {
                            self.add_neighbour(flows, port, net.addr(), guest.mac, guest.line);
                        }
                    }
                    for (router, other) in &self.ports_on[switch.value()] {
                        if other.name == port.name {
                            continue;
                        }
                        self.add_router_neighbour(flows, port, other);
                        for nat in self.network.nats_of(*router) {
                            let is_own = other.addresses.iter().any(|a| a.addr() == nat.external);
                            if !is_own && other.address_towards(nat.external).is_some() {
                                self.add_neighbour(flows, port, nat.external, other.mac, nat.line);
                            }
                        }
                    }
                }
                RouterLink::Router { router, port: there } => {
                    if let Some(other) = self.network[router].port(there) {
                        self.add_router_neighbour(flows, port, other);
                    }
                }
            }
        }
    }

    fn add_router_neighbour(
        &self,
        flows: &mut FlowCollector,
        port: &RouterPort,
        other: &RouterPort,
    ) {
        for net in &other.addresses {
            self.add_neighbour(flows, port, net.addr(), other.mac, other.line);
        }
    }

    fn add_neighbour(
        &self,
        flows: &mut FlowCollector,
        port: &RouterPort,
        ip: IpAddr,
        mac: MacAddr,
        line: FileLine,
    ) {
        if port.address_towards(ip).is_none() {
            return;
        }
        let register = if ip.is_ipv4() { "reg0" } else { "xxreg0" };
        let condition = format!("outport == {:?} && {register} == {ip}", port.name);
        let actions = format!("eth.dst = {mac}; next;");
        flows.add(&self.datapath, (Stage::LrInArpResolve, 100), condition, actions, line);
    }

    /// For each egress port with a smaller MTU than packets may have: the length check and the ICMP
    /// error.
    pub(super) fn add_length(&self, flows: &mut FlowCollector) {
        for out in &self.router.ports {
            let Some(mtu) = self.mtu(out).filter(|&mtu| mtu < self.longest_mtu) else { continue };
            let bytes = mtu.saturating_add(ETHERNET_BYTES);
            let condition = format!("outport == {:?}", out.name);
            let actions = format!("reg9[1] = check_pkt_larger({bytes}); next;");
            flows.add(&self.datapath, (Stage::LrInChkPktLen, 50), condition, actions, out.line);
            for inside in &self.router.ports {
                if self.mtu(inside).is_none_or(|other| other > mtu) {
                    self.add_too_long(flows, inside, out, mtu);
                }
            }
        }
    }

    /// The MTU of a port's switch; `None` for a port that is linked to a router.
    fn mtu(&self, port: &RouterPort) -> Option<u16> {
        match port.link {
            RouterLink::Switch { switch, .. } => Some(self.network[switch].mtu),
            RouterLink::Router { .. } => None,
        }
    }

    /// Sends an ICMP error. The error passes the router's ingress pipeline as if it had arrived by
    /// the same port as the packet, and is routed to the packet's sender.
    fn add_too_long(
        &self,
        flows: &mut FlowCollector,
        inside: &RouterPort,
        out: &RouterPort,
        mtu: u16,
    ) {
        let (v4, v6) = addresses(inside);
        let again = next_to(Stage::LrInAdmission);
        let condition = |family| {
            format!(
                "inport == {:?} && outport == {:?} && {family} && reg9[1] == 1 && reg9[0] == 0",
                inside.name, out.name
            )
        };
        let mac = inside.mac;
        let place = (Stage::LrInLargerPkts, 60);
        if let Some(ip) = v4.first() {
            let actions = format!(
                "icmp4_error {{ reg9[0] = 1; reg9[1] = 0; eth.dst = {mac}; ip4.dst = ip4.src; \
                 ip4.src = {ip}; \
                 ip.ttl = 255; icmp4.type = 3; icmp4.code = 4; icmp4.frag_mtu = {mtu}; {again} }};"
            );
            flows.add(&self.datapath, place, condition("ip4"), actions, out.line);
        }
        if let Some(ip) = v6.first() {
            let actions = format!(
                "icmp6_error {{ reg9[0] = 1; reg9[1] = 0; eth.dst = {mac}; ip6.dst = ip6.src; \
                 ip6.src = {ip}; \
                 ip.ttl = 255; icmp6.type = 2; icmp6.code = 0; icmp6.frag_mtu = {mtu}; {again} }};"
            );
            flows.add(&self.datapath, place, condition("ip6"), actions, out.line);
        }
    }
}
