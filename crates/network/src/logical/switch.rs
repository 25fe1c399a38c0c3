//! Logical flows of switches, except access control lists.

use super::{DatapathKeys, FlowCollector, Stage, next_to, set_of};
use crate::model::port_in_switch;
use crate::{
    FileLine, LogicalRouter, LogicalSwitch, Network, Port, RouterIndex, RouterLink, RouterPort,
    SwitchIndex,
};
use flow::DatapathKey;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use wire::MacAddr;

/// Adds the flows of all switches.
pub(super) fn add(network: &Network, keys: &DatapathKeys, flows: &mut FlowCollector) {
    let all: Arc<[DatapathKey]> = keys.switches.as_slice().into();
    let is_secured =
        |switch: &LogicalSwitch| switch.ports.iter().any(|port| port.security.is_some());
    let secured: Arc<[DatapathKey]> = network
        .logical_switches()
        .iter()
        .zip(&keys.switches)
        .filter(|(switch, _)| is_secured(switch))
        .map(|(_, key)| *key)
        .collect();
    add_common(flows, &all);
    add_branch_to_learning(flows, network, keys);
    add_port_security(flows, &secured);
    add_learning(flows, network, keys);
    for (switch, &key) in network.logical_switches().iter().zip(&keys.switches) {
        let datapath: Arc<[DatapathKey]> = [key].into();
        if switch.arp_responder {
            for port in &switch.ports {
                add_responder(flows, &datapath, port);
            }
        }
        for port in &switch.ports {
            let condition = format!("eth.dst == {}", port.mac);
            let actions = format!("outport = {:?}; output;", port.name);
            flows.add(&datapath, (Stage::LsInL2Lkup, 50), condition, actions, port.line);
        }
    }
    for (index, router) in network.logical_routers().iter().enumerate() {
        for port in &router.ports {
            if let RouterLink::Switch { switch, .. } = port.link {
                add_router_port(flows, network, keys, switch, (router, port));
                add_external_addresses(flows, network, keys, switch, (index, port));
            }
        }
    }
}

/// Adds the flows of every switch.
fn add_common(flows: &mut FlowCollector, all: &Arc<[DatapathKey]>) {
    flows.add(all, (Stage::LsInCheckPortSec, 100), "eth.src[40]", "drop;", None);
    // The frame is from a tunnel without logical ports: the sending host has done the other stages.
    let known_port = (Stage::LsInCheckPortSec, 90);
    flows.add(all, known_port, "flags[1] == 1", next_to(Stage::LsInL2Lkup), None);
    for stage in [Stage::LsInCheckPortSec, Stage::LsInPutFdb] {
        flows.add(all, (stage, 0), "1", "next;", None);
    }
    let flood = "outport = \"_MC_flood\"; output;";
    flows.add(all, (Stage::LsInL2Lkup, 70), "eth.mcast", flood, None);
    flows.add(all, (Stage::LsInL2Lkup, 0), "1", "next;", None);
    flows.add(all, (Stage::LsInL2Unknown, 0), "1", "drop;", None);
    for stage in [Stage::LsOutPutFdb, Stage::LsOutCheckPortSec] {
        flows.add(all, (stage, 0), "1", "next;", None);
    }
    flows.add(all, (Stage::LsOutApplyPortSec, 0), "1", "output;", None);
}

/// Lets packets skip the learning stages where nothing is learned: each stage delays the first
/// packet of a megaflow.
fn add_branch_to_learning(flows: &mut FlowCollector, network: &Network, keys: &DatapathKeys) {
    let switches = network.logical_switches().iter().zip(&keys.switches);
    let (learning, others): (Vec<_>, Vec<_>) = switches.partition(|(switch, _)| switch.learns());
    let keys = |switches: Vec<(&LogicalSwitch, &DatapathKey)>| -> Arc<[DatapathKey]> {
        switches.into_iter().map(|(_, key)| *key).collect()
    };
    let (learning, others) = (keys(learning), keys(others));
    for (stage, beyond) in
        [(Stage::LsInArpRsp, Stage::LsInL2Lkup), (Stage::LsOutStateful, Stage::LsOutCheckPortSec)]
    {
        flows.add(&learning, (stage, 0), "1", "next;", None);
        flows.add(&others, (stage, 0), "1", next_to(beyond), None);
    }
}

fn add_port_security(flows: &mut FlowCollector, secured: &Arc<[DatapathKey]>) {
    let check_in = "reg0[15] = check_in_port_sec(); next;";
    flows.add(secured, (Stage::LsInCheckPortSec, 50), "1", check_in, None);
    flows.add(secured, (Stage::LsInApplyPortSec, 100), "reg0[15] == 1", "drop;", None);
    let group = "reg0[15] = 0; next;";
    flows.add(secured, (Stage::LsOutCheckPortSec, 100), "eth.mcast", group, None);
    let check_out = "reg0[15] = check_out_port_sec(); next;";
    flows.add(secured, (Stage::LsOutCheckPortSec, 50), "1", check_out, None);
    flows.add(secured, (Stage::LsOutApplyPortSec, 50), "reg0[15] == 1", "drop;", None);
}

/// Adds the learning flows of switches with ports behind which there may be MAC addresses that the
/// file does not list.
fn add_learning(flows: &mut FlowCollector, network: &Network, keys: &DatapathKeys) {
    let (mut learning, mut by_tunnel_inport) = (Vec::new(), Vec::new());
    let switches = network.logical_switches().iter().zip(&keys.switches);
    for (switch, &key) in switches.filter(|(switch, _)| switch.learns()) {
        learning.push(key);
        let stages = learning_stages(network, switch);
        if !stages.contains(&Stage::LsOutPutFdb) {
            by_tunnel_inport.push(key);
        }
        let datapath: Arc<[DatapathKey]> = [key].into();
        for port in &switch.ports {
            add_static_mac(flows, &datapath, stages, port.mac, port.line);
        }
        for port in switch.learning_ports() {
            let condition = format!("inport == {:?}", port.name);
            for &stage in stages {
                flows.add(&datapath, (stage, 50), condition.as_str(), PUT, port.line);
            }
        }
    }
    let (learning, by_tunnel_inport) = (learning.into(), by_tunnel_inport.into());
    let from_tunnel = (Stage::LsInCheckPortSec, 95);
    flows.add(&by_tunnel_inport, from_tunnel, "flags[1] == 1", next_to(Stage::LsInPutFdb), None);
    flows.add(&by_tunnel_inport, (Stage::LsInPutFdb, 50), "flags[1] == 1", PUT, None);
    let get = "outport = get_fdb(eth.dst); next;";
    flows.add(&learning, (Stage::LsInL2Lkup, 10), "1", get, None);
    let unknown = "outport = \"_MC_unknown\"; output;";
    flows.add(&learning, (Stage::LsInL2Unknown, 50), "outport == \"none\"", unknown, None);
    flows.add(&learning, (Stage::LsInL2Unknown, 10), "1", "output;", None);
}

/// Learns a source address, unless it is known.
const PUT: &str = "put_fdb(inport, eth.src); next;";

/// The stages in which a switch learns. Frames from a tunnel with logical ports passed the ingress
/// pipeline on the sending host. Without logical ports they pass it here, and `inport` is the port
/// that stands for that host.
fn learning_stages(network: &Network, switch: &LogicalSwitch) -> &'static [Stage] {
    match (switch.learns(), network.options().of(switch.tunnel).logical_ports) {
        (false, _) => &[],
        (true, false) => &[Stage::LsInPutFdb],
        (true, true) => &[Stage::LsInPutFdb, Stage::LsOutPutFdb],
    }
}

/// Prevents a MAC address of the file from being learned on another port.
fn add_static_mac(
    flows: &mut FlowCollector,
    datapath: &Arc<[DatapathKey]>,
    stages: &[Stage],
    mac: MacAddr,
    line: FileLine,
) {
    for &stage in stages {
        flows.add(datapath, (stage, 100), format!("eth.src == {mac}"), "next;", line);
    }
}

/// The switch answers ARP and neighbour solicitations for a guest's addresses, except to the guest
/// itself, which is detecting duplicates.
fn add_responder(flows: &mut FlowCollector, datapath: &Arc<[DatapathKey]>, port: &Port) {
    let Port { name, mac, line, .. } = port;
    for net in &port.addresses {
        let (condition, actions) = match net.addr() {
            IpAddr::V4(ip) => (
                format!("arp.tpa == {ip} && arp.op == 1"),
                format!(
                    "eth.dst = eth.src; eth.src = {mac}; arp.op = 2; arp.tha = arp.sha; arp.sha \
                     = {mac}; \
                     arp.tpa = arp.spa; arp.spa = {ip}; outport = inport; flags.loopback = 1; \
                     output;"
                ),
            ),
            IpAddr::V6(ip) => (
                solicitation_for(ip),
                format!(
                    "nd_na {{ eth.src = {mac}; ip6.src = {ip}; nd.tll = {mac}; \
                     outport = inport; flags.loopback = 1; output; }};"
                ),
            ),
        };
        let own = format!("{condition} && inport == {name:?}");
        flows.add(datapath, (Stage::LsInArpRsp, 100), own, "next;", *line);
        flows.add(datapath, (Stage::LsInArpRsp, 50), condition, actions, *line);
    }
}

/// Adds the flows that send frames for a router port to that port only.
fn add_router_port(
    flows: &mut FlowCollector,
    network: &Network,
    keys: &DatapathKeys,
    switch: SwitchIndex,
    (router, port): (&LogicalRouter, &RouterPort),
) {
    let datapath: Arc<[DatapathKey]> = [keys.switch(switch)].into();
    let actions =
        format!("outport = {:?}; output;", port_in_switch(&network[switch].name, &port.name));
    let condition = format!("eth.dst == {}", port.mac);
    flows.add(&datapath, (Stage::LsInL2Lkup, 50), condition, actions.as_str(), port.line);
    add_static_mac(
        flows,
        &datapath,
        learning_stages(network, &network[switch]),
        port.mac,
        port.line,
    );
    let (v4, v6) = addresses(port);
    let request_match = router_request_match(router);
    if !v4.is_empty() {
        let condition = format!("{request_match}arp.op == 1 && arp.tpa == {}", set_of(&v4));
        flows.add(&datapath, (Stage::LsInL2Lkup, 80), condition, actions.as_str(), port.line);
    }
    if !v6.is_empty() {
        let condition = format!("{request_match}nd_ns && nd.target == {}", set_of(&v6));
        flows.add(&datapath, (Stage::LsInL2Lkup, 80), condition, actions.as_str(), port.line);
    }
}

/// The match for requests that a router answers. A router without a home host runs on every host,
/// and answers only guests of its host. A router with a home host also answers requests from other
/// hosts.
const fn router_request_match(router: &LogicalRouter) -> &'static str {
    match router.home {
        None => "flags[1] == 0 && ",
        Some(_) => "",
    }
}

/// Sends requests for the NAT and load balancer addresses of a router to its port.
fn add_external_addresses(
    flows: &mut FlowCollector,
    network: &Network,
    keys: &DatapathKeys,
    switch: SwitchIndex,
    (router, port): (usize, &RouterPort),
) {
    let datapath: Arc<[DatapathKey]> = [keys.switch(switch)].into();
    let name = port_in_switch(&network[switch].name, &port.name);
    let router = RouterIndex(router);
    let balanced = network.load_balancers_of(router).map(|it| (it.vip.ip(), it.line));
    let mut externals: Vec<(IpAddr, FileLine)> = network
        .nats_of(router)
        .map(|nat| (nat.external, nat.line))
        .chain(balanced.filter(|(vip, _)| port.address_towards(*vip).is_some()))
        .collect();
    externals.sort_by_key(|(address, _)| *address);
    externals.dedup_by_key(|(address, _)| *address);
    externals.retain(|(external, _)| port.addresses.iter().all(|net| net.addr() != *external));
    for (external, line) in externals {
        let condition = match external {
            IpAddr::V4(ip) => format!("arp.op == 1 && arp.tpa == {ip}"),
            IpAddr::V6(ip) => format!("nd_ns && nd.target == {ip}"),
        };
        let actions = format!("outport = {name:?}; output;");
        flows.add(&datapath, (Stage::LsInL2Lkup, 80), condition, actions, line);
    }
}

/// The addresses of a router port by family.
pub(super) fn addresses(port: &RouterPort) -> (Vec<Ipv4Addr>, Vec<Ipv6Addr>) {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for net in &port.addresses {
        match net.addr() {
            IpAddr::V4(ip) => v4.push(ip),
            IpAddr::V6(ip) => v6.push(ip),
        }
    }
    (v4, v6)
}

/// A neighbour solicitation for `ip`, sent to it or to its solicited-node group.
pub(super) fn solicitation_for(ip: Ipv6Addr) -> String {
    let group = solicited_node(ip);
    format!("nd_ns && ip6.dst == {{{ip}, {group}}} && nd.target == {ip}")
}

/// The solicited-node multicast group of an address (RFC 4291 section 2.7.1).
pub(super) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    const GROUP: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;
    Ipv6Addr::from_bits(GROUP | ip.to_bits() & 0xff_ffff)
}
