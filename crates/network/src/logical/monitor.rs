//! Logical flows of health checks, in the switches of checked backends. They are those of
//! ovn-northd(8), with a logical port for each host, because a host also checks the backends of
//! other hosts: see [`crate::health`].

use super::switch::solicitation_for;
use super::{DatapathKeys, FlowCollector, Stage, next_to};
use crate::health::{self, COMMON_MAC, MACS};
use crate::{HostIndex, Network, SwitchIndex};
use flow::DatapathKey;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub(super) fn add(network: &Network, keys: &DatapathKeys, flows: &mut FlowCollector) {
    for (index, sources) in health::monitored(network) {
        let datapath: Arc<[DatapathKey]> = [health::key_of(keys, index)].into();
        let switch = &network[SwitchIndex(index)];
        let ports: Vec<(HostIndex, String)> = health::hosts_of(network, index)
            .into_iter()
            .map(|host| (host, health::port_name(network, switch, host)))
            .collect();
        add_common(&datapath, &sources, flows);
        for (source, backend, protocol) in health::probes(network, index) {
            add_probe(&datapath, source, backend, protocol, flows);
        }
        for (_, name) in &ports {
            let condition = format!("inport == {name:?}");
            let stage = (Stage::LsInCheckPortSec, 110);
            flows.add(&datapath, stage, condition, next_to(Stage::LsInL2Lkup), None);
        }
        for &source in &sources {
            add_responder(&datapath, source, flows);
        }
        add_answers(&datapath, &ports, flows);
    }
}

/// Lets checks and their replies bypass access control lists and connection tracking. Guests cannot
/// abuse this: frames that they send from the source address of checks are dropped, and frames that
/// they send to it go to the hosts that check, or are dropped.
fn add_common(
    datapath: &Arc<[DatapathKey]>,
    sources: &BTreeSet<IpAddr>,
    flows: &mut FlowCollector,
) {
    let mut add = |place, condition: String, actions: String| {
        flows.add(datapath, place, condition, actions, None);
    };
    let forged = format!("eth.src == {MACS} && flags[1] == 0");
    add((Stage::LsInCheckPortSec, 99), forged, "drop;".to_owned());
    for source in sources {
        let (ip, error) = match source {
            IpAddr::V4(_) => ("ip4", "icmp4.type == 3"),
            IpAddr::V6(_) => ("ip6", "icmp6.type == 1"),
        };
        let answers = format!("eth.dst == {MACS} && {ip}.dst == {source} && (tcp || {error})");
        add((Stage::LsInApplyPortSec, 80), answers, next_to(Stage::LsInL2Lkup));
    }
    add((Stage::LsInL2Lkup, 108), format!("eth.dst == {MACS}"), "drop;".to_owned());
}

/// Lets a check bypass the access control lists on its way to the backend. If the tunnel carries no
/// logical ports, as with a VLAN, other machines can also send packets that match this flow, but no
/// other packets bypass the lists.
fn add_probe(
    datapath: &Arc<[DatapathKey]>,
    source: IpAddr,
    backend: SocketAddr,
    protocol: &str,
    flows: &mut FlowCollector,
) {
    let ip = if backend.is_ipv4() { "ip4" } else { "ip6" };
    let condition = format!(
        "eth.src == {MACS} && {ip}.src == {source} && {ip}.dst == {} && {protocol}.dst == {}",
        backend.ip(),
        backend.port()
    );
    let stage = (Stage::LsOutPreAcl, 120);
    flows.add(datapath, stage, condition, next_to(Stage::LsOutCheckPortSec), None);
}

/// Answers ARP and neighbour solicitations for the source address of checks.
fn add_responder(datapath: &Arc<[DatapathKey]>, source: IpAddr, flows: &mut FlowCollector) {
    let mac = COMMON_MAC;
    let (condition, actions) = match source {
        IpAddr::V4(ip) => (
            format!("arp.tpa == {ip} && arp.op == 1"),
            format!(
                "eth.dst = eth.src; eth.src = {mac}; arp.op = 2; arp.tha = arp.sha; arp.sha = \
                 {mac}; arp.tpa = arp.spa; arp.spa = {ip}; outport = inport; \
                 flags.loopback = 1; output;"
            ),
        ),
        IpAddr::V6(ip) => (
            solicitation_for(ip),
            format!(
                "nd_na {{ eth.src = {mac}; ip6.src = {ip}; nd.tll = {mac}; outport = inport; \
                 flags.loopback = 1; output; }};"
            ),
        ),
    };
    flows.add(datapath, (Stage::LsInArpRsp, 110), condition, actions, None);
}

/// Sends replies to the host that sent the check. ICMP errors have that host's port only in the
/// quoted packet, which a match cannot read, so each host gets a copy.
fn add_answers(
    datapath: &Arc<[DatapathKey]>,
    ports: &[(HostIndex, String)],
    flows: &mut FlowCollector,
) {
    const TAKE: &str = "handle_svc_check(inport);";
    let stage = Stage::LsInL2Lkup;
    let mut add = |priority, condition: String, actions: String| {
        flows.add(datapath, (stage, priority), condition, actions, None);
    };
    let send = |host: &HostIndex, name: &str| {
        format!("eth.dst = {}; outport = {name:?}; output;", health::mac_of(*host))
    };
    let error = format!("eth.dst == {MACS} && (icmp4.type == 3 || icmp6.type == 1)");
    add(110, format!("{error} && flags[1] == 1"), TAKE.to_owned());
    for (host, name) in ports {
        let answer = format!("eth.dst == {MACS} && {}", health::is_answer_to(*host));
        let here = format!("is_chassis_resident({name:?})");
        add(110, format!("{answer} && {here}"), TAKE.to_owned());
        add(109, answer, send(host, name));
        let others = ports.iter().filter(|(_, other)| other != name);
        let copies = others.map(|(host, name)| format!("clone {{ {} }}; ", send(host, name)));
        let copies: String = copies.collect();
        add(109, format!("{error} && flags[1] == 0 && {here}"), copies + TAKE);
    }
}
