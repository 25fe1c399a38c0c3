//! Answers the requests that read or clear the state of the switch: megaflows, the program, learned
//! addresses and tunnels.

use super::Daemon;
use super::deployment::list_names;
use crate::control::Connection;
use crate::control::replies::{
    AffinityRow, BindingRow, FdbReply, FlowRef, FlowRow, FlowTotals, ForgetReply, LocalEnd,
    NextHopRow, PortAtLimit, ProgramRow, RemoteEnd, StationRow, TaggedCounters, TunnelsReply,
};
use crate::graph::topology::Topology;
use datapath::DumpCursor;
use datapath::stats::Snapshot;
use flow::{DatapathKey, Field, PortKey, PortNo, ShowActions};
use lflow::actions::Transport;
use network::Network;
use network::logical::LogicalPort;
use pipeline::{
    Datapath, DatapathKind, FdbPort, Flow, GroupId, IngressPort, NextHopKey, PortUsage, Program,
    StateQuery, TableId,
};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use wire::MacAddr;

/// The number of megaflows read in one call. The forwarding thread reads them between two batches
/// of frames.
pub(super) const DUMP_BATCH: usize = 128;

impl Daemon {
    /// Streams the megaflows.
    pub(super) fn flows(
        &self,
        port: Option<&str>,
        min_packets: u64,
        client: &mut Connection,
    ) -> io::Result<()> {
        let port = match port.map(|name| self.deployment().any_port(name)).transpose() {
            Ok(port) => port,
            Err(error) => return client.reject(&error),
        };
        client.ok(&json!({}))?;
        let mut next = Some(DumpCursor::default());
        while let Some(from) = next.take() {
            let (rows, then) = match self.switch.flows(from, DUMP_BATCH) {
                Ok(found) => found,
                Err(error) => return client.fail(&error.to_string()),
            };
            let deployment = self.deployment();
            for row in rows {
                let condition = &row.megaflow.condition;
                let has_in_port = condition.mask().get(Field::InPort) == Field::InPort.all_ones();
                let number = PortNo(condition.key().get(Field::InPort) as u32);
                if row.usage.packets < min_packets || port.is_some_and(|port| port != number) {
                    continue;
                }
                client.row(&FlowRow {
                    id: row.megaflow.id.to_string(),
                    port: has_in_port.then(|| deployment.port_name(number)),
                    condition: condition.to_string(),
                    actions: ShowActions(&row.megaflow.actions).to_string(),
                    connections: row.megaflow.fusion.map_or(0, |fusion| fusion.connections.len()),
                    packets: row.usage.packets,
                    bytes: row.usage.bytes,
                    age_ms: millis(row.age),
                    idle_ms: millis(row.idle),
                    generation: row.generation,
                    flows: row.flows.iter().map(|flow| FlowRef::from(&**flow)).collect(),
                })?;
            }
            next = then;
        }
        match self.datapath.snapshot() {
            Ok(now) => {
                client.end(&FlowTotals { cache: now.megaflows, switch: self.switch.stats() })
            }
            Err(error) => client.fail(&error.to_string()),
        }
    }

    /// Streams the logical flows of the program with their counters.
    pub(super) fn program(&self, name: Option<&str>, client: &mut Connection) -> io::Result<()> {
        let program = self.switch.program();
        let mut names: BTreeMap<GroupId, Vec<String>> = BTreeMap::new();
        let is_logical = |datapath: &Datapath| datapath.kind != DatapathKind::Bridge;
        for (_, datapath) in program.datapaths().filter(|(_, datapath)| is_logical(datapath)) {
            for &group in &datapath.groups {
                names.entry(group).or_default().push(datapath.name.clone());
            }
        }
        if let Some(name) = name {
            let logical = program.datapaths().filter(|(_, datapath)| is_logical(datapath));
            let mut known: Vec<_> = logical.map(|(_, dp)| dp.name.as_str()).collect();
            if !known.contains(&name) {
                known.sort_unstable();
                let host = &self.host;
                return client.reject(&format!(
                    "no logical switch or router `{name}` on host {host}: use one of {}",
                    list_names(&known)
                ));
            }
            names.retain(|_, names| names.iter().any(|known| known == name));
        }
        client.ok(&json!({}))?;
        for (group, mut datapaths) in names {
            datapaths.sort_unstable();
            for flow in flows_of(&program, group) {
                let (packets, bytes) = flow.counters.get();
                let (direction, table) = flow.table.in_pipeline();
                client.row(&ProgramRow {
                    datapaths: datapaths.clone(),
                    pipeline: direction.name().to_owned(),
                    table,
                    packets,
                    bytes,
                    flow: FlowRef::from(&*flow),
                })?;
            }
        }
        client.end(&json!({}))
    }

    /// The configured and learned addresses.
    pub(super) fn fdb(&self) -> FdbReply {
        let deployment = self.deployment();
        let program = self.switch.program();
        let network = deployment.network.as_ref();
        let mut fdb = FdbReply::default();
        if let Some(network) = network {
            fdb.stations = configured_stations(network, &program);
        }
        let names_at = |datapath: DatapathKey, place| match place {
            FdbPort::Logical(port) => names(&program, datapath, port),
            FdbPort::Port(port) => {
                let bridge_port = program.datapath(datapath);
                let bridge_port = bridge_port.and_then(|bridge| bridge.bridge_ports.get(&port));
                let name = bridge_port.map(|port| port.name.clone());
                let name = name.unwrap_or_else(|| deployment.port_name(port));
                (datapath_name(&program, datapath), name)
            }
        };
        fdb.stations.extend(self.switch.fdb().into_iter().map(|(key, place)| {
            let (logical_switch, port) = names_at(key.datapath, place);
            let (mac, age_ms) = (key.mac.to_string(), self.age_ms(&StateQuery::Fdb(key)));
            let host = network.and_then(|network| host_of(network, &logical_switch, place));
            StationRow { logical_switch, mac, port, host, addresses: Vec::new(), age_ms }
        }));
        fdb.bindings.extend(self.switch.bindings().into_iter().map(|(key, mac)| {
            let (datapath, port) = names(&program, key.datapath, key.port);
            let (mac, age_ms) = (mac.to_string(), self.age_ms(&StateQuery::MacBinding(key)));
            BindingRow { datapath, port, ip: key.ip, mac, age_ms }
        }));
        self.add_clients(&mut fdb, &program);
        let refused = |what: &'static str| {
            move |(at, usage): (IngressPort, PortUsage)| {
                let (datapath, port) = names_at(at.datapath, at.port);
                let PortUsage { known, refused } = usage;
                (refused > 0).then(|| PortAtLimit {
                    datapath,
                    port,
                    what: what.to_owned(),
                    known,
                    refused,
                })
            }
        };
        fdb.refused
            .extend(self.switch.ports_of_stations().into_iter().filter_map(refused("stations")));
        fdb.refused
            .extend(self.switch.ports_of_bindings().into_iter().filter_map(refused("bindings")));
        let of_affinities = self.switch.ports_of_affinities().into_iter();
        fdb.refused.extend(of_affinities.filter_map(refused("affinities")));
        let of_next_hops = self.switch.ports_of_next_hops().into_iter();
        fdb.refused.extend(of_next_hops.filter_map(refused("next hops")));
        fdb.refused.sort_unstable_by(|a, b| (&a.datapath, &a.port).cmp(&(&b.datapath, &b.port)));
        fdb.stations
            .sort_unstable_by(|a, b| (&a.logical_switch, &a.mac).cmp(&(&b.logical_switch, &b.mac)));
        fdb.bindings.sort_unstable_by(|a, b| (&a.datapath, a.ip).cmp(&(&b.datapath, b.ip)));
        fdb
    }

    /// Adds the clients of load balancers with affinity, and the connections with a remembered next
    /// hop.
    fn add_clients(&self, fdb: &mut FdbReply, program: &Program) {
        let protocol =
            |number: u8| Transport::from_ip_protocol(number).map_or("ip", |it| it.name());
        fdb.affinities.extend(self.switch.affinities().into_iter().map(|(key, affinity)| {
            AffinityRow {
                datapath: datapath_name(program, key.datapath),
                client: key.client,
                protocol: key.vip.service.map_or("ip", |(number, _)| protocol(number)).to_owned(),
                vip: key.vip.to_string(),
                backend: affinity.to_string(),
                age_ms: self.age_ms(&StateQuery::Affinity(key)),
                timeout_ms: u64::from(affinity.timeout_s) * 1000,
            }
        }));
        fdb.next_hops.extend(self.switch.next_hops().into_iter().map(|(key, mac)| {
            let NextHopKey { datapath, addresses: (client, server), ports, .. } = key;
            NextHopRow {
                datapath: datapath_name(program, datapath),
                protocol: protocol(key.protocol).to_owned(),
                client: SocketAddr::new(client, ports.0),
                server: SocketAddr::new(server, ports.1),
                mac: mac.to_string(),
                age_ms: self.age_ms(&StateQuery::NextHop(key)),
            }
        }));
        fdb.affinities.sort_unstable_by(|a, b| {
            (&a.datapath, &a.vip, a.client).cmp(&(&b.datapath, &b.vip, b.client))
        });
        fdb.next_hops.sort_unstable_by(|a, b| {
            (&a.datapath, a.client, a.server).cmp(&(&b.datapath, b.client, b.server))
        });
    }

    /// The topology of the network, from the network file and the attached devices, or from OVN.
    pub(super) fn topology(&self) -> Topology {
        let deployment = self.deployment();
        match deployment.network.as_deref() {
            Some(network) => Topology::of_network(network, |port| {
                let attached = deployment.attached.get(port)?;
                Some(format!("interface {}", attached.device))
            }),
            None => Topology::of_program(&self.switch.program(), &deployment.config, |address| {
                deployment.host_at(address).map(str::to_owned)
            }),
        }
    }

    fn age_ms(&self, query: &StateQuery) -> Option<u64> {
        self.switch.learned_since(query).map(millis)
    }

    /// Deletes the learned forwarding entries and IP bindings of a MAC address.
    pub(super) fn forget(&self, mac: MacAddr) -> ForgetReply {
        let stations = self.switch.fdb().into_iter().filter(|(key, _)| key.mac == mac);
        let bindings = self.switch.bindings().into_iter().filter(|(_, known)| *known == mac);
        let queries = stations
            .map(|(key, _)| StateQuery::Fdb(key))
            .chain(bindings.map(|(key, _)| StateQuery::MacBinding(key)));
        let queries: Vec<_> = queries.collect();
        queries.iter().for_each(|query| self.switch.forget(query));
        ForgetReply { entries: queries.len() }
    }

    /// The tunnels and their end points, with counters. Moves the end points out of the snapshot.
    pub(super) fn tunnels(&self, now: &mut Snapshot) -> TunnelsReply {
        let deployment = self.deployment();
        let underlay = &deployment.config.underlay;
        let local = underlay.tunnels.iter().map(|tunnel| LocalEnd {
            tunnel: tunnel.spec.tunnel.name().to_owned(),
            local: tunnel.address(),
            port: tunnel.spec.port,
        });
        let remote = std::mem::take(&mut now.endpoints).into_iter().map(|stats| RemoteEnd {
            host: deployment.host_at(stats.remote).map(str::to_owned),
            stats,
        });
        TunnelsReply {
            uplink: now.uplink.device.clone(),
            uplink_state: now.uplink.state.clone(),
            tags: (!underlay.links.is_empty())
                .then_some(TaggedCounters { rx: now.uplink.rx, tx: now.uplink.tx }),
            local: local.collect(),
            endpoints: remote.collect(),
            path_mtu_reports: now.uplink.path_mtu_reports.clone(),
        }
    }
}

/// The MAC addresses that the network file configures for the switches of this host.
fn configured_stations(network: &Network, program: &Program) -> Vec<StationRow> {
    let is_local = |name: &str| program.datapaths().any(|(_, datapath)| datapath.name == name);
    let switches = network.logical_switches().iter().filter(|switch| is_local(&switch.name));
    let stations = switches.flat_map(|switch| {
        switch.ports.iter().map(|port| StationRow {
            logical_switch: switch.name.clone(),
            mac: port.mac.to_string(),
            port: port.name.clone(),
            host: Some(network[port.host].name.clone()),
            addresses: port.addresses.iter().map(|net| net.addr().to_string()).collect(),
            age_ms: None,
        })
    });
    stations.collect()
}

/// The flows of a datapath group without duplicates, in pipeline order.
fn flows_of(program: &Program, group: GroupId) -> Vec<Arc<Flow>> {
    let tables = (0..TableId::LOGICAL).flat_map(|number| {
        let of = |direction| TableId::logical(direction, number);
        [of(pipeline::Direction::Ingress), of(pipeline::Direction::Egress)]
    });
    let rules = tables.flatten().flat_map(|table| program.rules(group, table));
    let mut flows: Vec<_> = rules.map(|(_, _, flow)| Arc::clone(flow)).collect();
    flows.sort_unstable_by_key(|flow| (flow.table, Reverse(flow.priority), flow.id));
    flows.dedup_by_key(|flow| flow.id);
    flows
}

/// The names of a datapath and one of its logical ports.
fn names(program: &Program, datapath: DatapathKey, port: PortKey) -> (String, String) {
    let named = program.datapath(datapath).and_then(|datapath| datapath.ports.get(&port));
    let name = named.map_or_else(|| port.to_string(), |port| port.name.clone());
    (datapath_name(program, datapath), name)
}

fn datapath_name(program: &Program, key: DatapathKey) -> String {
    program.datapath(key).map_or_else(|| key.to_string(), |datapath| datapath.name.clone())
}

/// The host behind which a MAC address was learned; `None` when only the uplink is known.
fn host_of(network: &Network, switch: &str, place: FdbPort) -> Option<String> {
    let FdbPort::Logical(key) = place else { return None };
    let switch = network.logical_switch(switch)?;
    let index = match switch.port(key) {
        Some(port) => port.host.value(),
        None => LogicalPort::host(key)?,
    };
    network.hosts().get(index).map(|host| host.name.clone())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
