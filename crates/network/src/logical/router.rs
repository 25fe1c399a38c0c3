//! Logical flows of routers.

mod balance;
mod forward;
mod input;
mod nat;

use super::switch::addresses;
use super::{DatapathKeys, FlowCollector, Stage};
use crate::{
    IpNet, LoadBalancer, LogicalRouter, Nat, Network, Prefix, RouterIndex, RouterLink, RouterPort,
};
use flow::DatapathKey;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// A router whose flows are being created.
struct RouterFlows<'n> {
    network: &'n Network,
    router: &'n LogicalRouter,
    datapath: Arc<[DatapathKey]>,
    /// Its NAT rules.
    nats: Vec<&'n Nat>,
    /// Its load balancers.
    balancers: Vec<&'n LoadBalancer>,
    /// For each switch, the router ports on it, each with its router.
    ports_on: &'n [Vec<(RouterIndex, &'n RouterPort)>],
    /// The MTU of the longest packets that can reach this router from a guest.
    longest_mtu: u16,
}

/// Adds the flows of all routers.
pub(super) fn add(network: &Network, keys: &DatapathKeys, flows: &mut FlowCollector) {
    let all: Arc<[DatapathKey]> = keys.routers.as_slice().into();
    let connectivity = network.connectivity();
    add_common(flows, &all);
    input::add_common(flows, &all);
    forward::add_common(flows, &all);
    let (translating, plain): (Vec<_>, Vec<_>) =
        (0..keys.routers.len()).map(RouterIndex).partition(|&router| {
            network.nats_of(router).next().is_some()
                || network.load_balancers_of(router).next().is_some()
        });
    let balancing = (0..keys.routers.len()).map(RouterIndex);
    let balancing =
        balancing.filter(|router| network.load_balancers_of(*router).next().is_some()).collect();
    let keys_of =
        |routers: Vec<RouterIndex>| routers.into_iter().map(|router| keys.router(router)).collect();
    nat::add_common(flows, &keys_of(plain), &keys_of(translating));
    balance::add_common(flows, &keys_of(balancing));
    let ports_on = ports_on_switches(network);
    let mut mtus: BTreeMap<usize, u16> = BTreeMap::new();
    for (index, switch) in network.logical_switches().iter().enumerate() {
        let longest = mtus.entry(connectivity.part_of_switch(index)).or_default();
        *longest = switch.mtu.max(*longest);
    }
    for (index, (router, &key)) in network.logical_routers().iter().zip(&keys.routers).enumerate() {
        let longest_mtu =
            mtus.get(&connectivity.part_of_router(index)).copied().unwrap_or_default();
        let datapath = [key].into();
        let nats = network.nats_of(RouterIndex(index)).collect();
        let balancers = network.load_balancers_of(RouterIndex(index)).collect();
        let ports_on = &ports_on;
        let router =
            RouterFlows { network, router, datapath, nats, balancers, ports_on, longest_mtu };
        for port in &router.router.ports {
            router.add_admission(flows, port);
            router.add_neighbor(flows, port);
            router.add_input(flows, port);
        }
        router.add_nat(flows);
        router.add_balancers(flows);
        router.add_routing(flows);
        router.add_resolve(flows);
        router.add_length(flows);
    }
}

fn ports_on_switches(network: &Network) -> Vec<Vec<(RouterIndex, &RouterPort)>> {
    let mut ports_on = vec![Vec::new(); network.logical_switches().len()];
    for (index, router) in network.logical_routers().iter().enumerate() {
        for port in &router.ports {
            if let RouterLink::Switch { switch, .. } = port.link {
                ports_on[switch.value()].push((RouterIndex(index), port));
            }
        }
    }
    ports_on
}

fn add_common(flows: &mut FlowCollector, all: &Arc<[DatapathKey]>) {
    let stage = Stage::LrInAdmission;
    flows.add(all, (stage, 100), "vlan.present || eth.src[40]", "drop;", None);
    flows.add(all, (stage, 0), "1", "drop;", None);
    flows.add(all, (Stage::LrInLookupNeighbor, 0), "1", "reg9[2] = 1; next;", None);
    let stage = Stage::LrInLearnNeighbor;
    flows.add(all, (stage, 100), "reg9[2] == 1", "next;", None);
    flows.add(
        all,
        (stage, 95),
        "nd_na && nd.tll == 0",
        "put_nd(inport, nd.target, eth.src); next;",
        None,
    );
    flows.add(all, (stage, 95), "nd_ns && (ip6.src == 0 || nd.sll == 0)", "next;", None);
    flows.add(all, (stage, 90), "arp", "put_arp(inport, arp.spa, arp.sha); next;", None);
    flows.add(all, (stage, 90), "nd_na", "put_nd(inport, nd.target, nd.tll); next;", None);
    flows.add(all, (stage, 90), "nd_ns", "put_nd(inport, ip6.src, nd.sll); next;", None);
    flows.add(all, (Stage::LrOutDelivery, 0), "1", "output;", None);
}

impl RouterFlows<'_> {
    fn add_admission(&self, flows: &mut FlowCollector, port: &RouterPort) {
        let RouterPort { name, mac, line, .. } = port;
        let actions = format!("xreg0[0..47] = {mac}; next;");
        for frames in ["eth.mcast".to_owned(), format!("eth.dst == {mac}")] {
            let condition = format!("{frames} && inport == {name:?}");
            flows.add(
                &self.datapath,
                (Stage::LrInAdmission, 50),
                condition,
                actions.as_str(),
                *line,
            );
        }
    }

    /// Learns neighbours only in the networks of the port.
    fn add_neighbor(&self, flows: &mut FlowCollector, port: &RouterPort) {
        let RouterPort { name, line, .. } = port;
        let place = (Stage::LrInLookupNeighbor, 100);
        for net in port.addresses.iter().map(|net| Prefix::from(*net)) {
            let lookups: &[(&str, &str, &str)] = if net.is_ipv4() {
                &[("arp", "arp.spa", "lookup_arp(inport, arp.spa, arp.sha)")]
            } else {
                &[
                    ("nd_na", "nd.target", "lookup_nd(inport, nd.target, nd.tll)"),
                    ("nd_ns", "ip6.src", "lookup_nd(inport, ip6.src, nd.sll)"),
                ]
            };
            for (packets, address, lookup) in lookups {
                let condition = format!("inport == {name:?} && {packets} && {address} == {net}");
                let actions = format!("reg9[2] = {lookup}; next;");
                flows.add(&self.datapath, place, condition, actions, *line);
            }
        }
    }
}

/// The directed broadcast addresses of a port's IPv4 networks. A /31 or a /32 has none (RFC 3021).
fn broadcasts(port: &RouterPort) -> Vec<Ipv4Addr> {
    let broadcast = |net: &IpNet| match net {
        IpNet::V4(net) if net.prefix_len() <= 30 => Some(net.broadcast()),
        _ => None,
    };
    port.addresses.iter().filter_map(broadcast).collect()
}
