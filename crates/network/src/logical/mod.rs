//! Compiles a network to logical flows: the behaviour of its switches and routers, as text in OVN's
//! language.
//!
//! The flows are the same on every host. They do not contain the locations of ports, which are in
//! [`Placement`](crate::Placement). Stages and registers have the names of ovn-northd(8). These
//! registers are used:
//!
//! | register | use |
//! |---|---|
//! | `xreg0[0..47]` | MAC address of the router port by which the packet arrived |
//! | `reg0`, `xxreg0` | next hop |
//! | `reg1`, `xxreg1` | the router's address towards the next hop |
//! | `reg0[0]` of a switch | the packet is to be tracked |
//! | `reg0[1]` of a switch | the connection is to be committed |
//! | `reg0[2]` of a switch | the packet is to be tracked for load balancers |
//! | `reg0[6]` of a switch | the packet's backend is its sender |
//! | `reg0[12]` of a switch | the packet is a reply to such a packet |
//! | `reg0[16]` of a switch | the packet is not to be tracked at all |
//! | `reg1`, `xxreg1` and `reg2[0..15]` of a switch | virtual address and port before translation |
//! | `reg0[7]` to `reg0[10]` of a switch | hints for ACLs, from the connection's state |
//! | `reg0[15]` of a switch | result of port security |
//! | `reg9[0]` | the packet is an error message of the router |
//! | `reg9[1]` | the packet is too long |
//! | `reg9[2]` | the neighbour is already known |

mod acl;
mod balance;
mod guard;
mod monitor;
mod router;
mod stage;
mod stateful;
mod switch;

pub use stage::Stage;

use crate::health;
use crate::model::port_in_switch;
use crate::{
    FileLine, HostIndex, LogicalSwitch, Network, PortSecurity, Prefix, RouterIndex, RouterLink,
    SwitchIndex,
};
use flow::{DatapathKey, PortKey};
use lflow::LoadBalancer;
use pipeline::{DatapathKind, Direction};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The logical part of a network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalNetwork {
    /// Switches, then routers, each in the order of the file.
    pub datapaths: Vec<LogicalDatapath>,
    /// The address sets: the values of `$name` in matches.
    pub address_sets: BTreeMap<String, Vec<Prefix>>,
    /// The port groups: the port names of `@name` in matches.
    pub port_groups: BTreeMap<String, Vec<String>>,
    /// The flows by pipeline, then by table, then by descending priority.
    pub flows: Vec<LogicalFlow>,
    /// The load balancers, each with the keys of its switches.
    pub load_balancers: Vec<(LoadBalancer, Vec<DatapathKey>)>,
}

/// A logical switch or router.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalDatapath {
    /// Its key, unique in the network.
    pub key: DatapathKey,
    /// The key that tunnels carry instead, when it differs: two switches of different tunnel types
    /// may have the same VNI.
    pub tunnel_key: Option<DatapathKey>,
    /// Its name in the file.
    pub name: String,
    /// Switch or router.
    pub kind: DatapathKind,
    /// Its ports: those of guests, that of the uplink ([`LogicalPort::WIRE`]) if any, those of
    /// hosts ([`LogicalPort::of_host`]), those of health checks, then those of routers.
    pub ports: Vec<LogicalPort>,
    /// The multicast group of all ports except routers' ([`PortKey::FLOOD`]); empty for a router.
    pub flood: Option<Vec<PortKey>>,
    /// The multicast group for unknown unicast ([`PortKey::UNKNOWN`]): the ports that learn, and
    /// the uplink. Empty for a switch without such ports.
    pub unknown: Option<Vec<PortKey>>,
    /// Its line in the file.
    pub line: FileLine,
}

/// A port of a logical switch or router.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalPort {
    /// Its name, unique in the network. The switch port that leads to a router port is
    /// `SWITCH/PORT`.
    pub name: String,
    /// Its key, unique in its datapath.
    pub key: PortKey,
    /// The port of another datapath that it is linked to; `None` for the ports of guests and the
    /// uplink.
    pub peer: Option<(DatapathKey, PortKey)>,
    /// Its port security; `None` for no restriction.
    pub security: Option<PortSecurity>,
}

impl LogicalPort {
    /// The port of a `vlan` or `qinq` switch that stands for the uplink, by which other machines in
    /// the VLAN receive broadcasts. On a learning switch, it also leads to MAC addresses that the
    /// file does not list. Its key appears in no tunnel.
    pub const WIRE: PortKey = match PortKey::new(u16::MAX) {
        Some(key) => key,
        None => PortKey::FLOOD,
    };

    /// The port that stands for a host in a switch whose tunnel carries no logical ports: source
    /// addresses from that host are learned on it. Its key appears in no tunnel. `None` from the
    /// 32,765th host on, behind which nothing is learned.
    pub fn of_host(host: HostIndex) -> Option<PortKey> {
        let key = Self::WIRE.value().checked_sub(1)?.checked_sub(host.value().try_into().ok()?)?;
        if key > PortKey::UNKNOWN.value() { PortKey::new(key) } else { None }
    }

    /// The index in [`Network::hosts`] of the host that a port stands for; `None` for other ports.
    /// The network may have fewer hosts.
    pub fn host(key: PortKey) -> Option<usize> {
        let index = Self::WIRE.value().checked_sub(1)?.checked_sub(key.value())?;
        (key > PortKey::UNKNOWN).then_some(index.into())
    }
}

/// A logical flow.
///
/// `Display` prints it like `ovn-sbctl lflow-list`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalFlow {
    /// The datapaths that it applies to, in order.
    pub datapaths: Arc<[DatapathKey]>,
    /// Its stage: pipeline and table.
    pub stage: Stage,
    /// Its priority: of the flows that match, the highest wins.
    pub priority: u16,
    /// Its match.
    pub condition: String,
    /// Its actions.
    pub actions: String,
    /// The line in the file that it was compiled from; `None` for flows that every network has.
    pub line: Option<FileLine>,
}

impl fmt::Display for LogicalFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, priority, condition, actions, .. } = self;
        let (table, name) = (stage.table(), stage.name());
        write!(
            f,
            "  table={table:<2}({name:<19}), priority={priority:<5}, match=({condition}), \
             action=({actions})"
        )
    }
}

/// A JSON object with `datapaths`, `pipeline`, `table`, `stage`, `priority`, `match`, `actions`,
/// `line`.
impl Serialize for LogicalFlow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let datapaths: Vec<u32> = self.datapaths.iter().map(|key| key.0).collect();
        let mut object = serializer.serialize_struct("LogicalFlow", 8)?;
        object.serialize_field("datapaths", &datapaths)?;
        object.serialize_field("pipeline", self.stage.direction().name())?;
        object.serialize_field("table", &self.stage.table())?;
        object.serialize_field("stage", self.stage.name())?;
        object.serialize_field("priority", &self.priority)?;
        object.serialize_field("match", &self.condition)?;
        object.serialize_field("actions", &self.actions)?;
        object.serialize_field("line", &self.line.map(|line| line.0))?;
        object.end()
    }
}

/// The flows like `ovn-sbctl lflow-list`: by datapath, ingress first.
impl fmt::Display for LogicalNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut flows: BTreeMap<(DatapathKey, Direction), Vec<&LogicalFlow>> = BTreeMap::new();
        for flow in &self.flows {
            for &key in &*flow.datapaths {
                flows.entry((key, flow.stage.direction())).or_default().push(flow);
            }
        }
        for datapath in &self.datapaths {
            for direction in [Direction::Ingress, Direction::Egress] {
                let pipeline = direction.name();
                writeln!(
                    f,
                    "Datapath: {:?} ({})  Pipeline: {pipeline}",
                    datapath.name, datapath.key
                )?;
                for flow in flows.get(&(datapath.key, direction)).into_iter().flatten() {
                    writeln!(f, "{flow}")?;
                }
            }
        }
        Ok(())
    }
}

/// Compiles a network to logical flows.
pub fn logical_flows(network: &Network) -> LogicalNetwork {
    let keys = DatapathKeys::new(network);
    let mut flows = FlowCollector { flows: Vec::new() };
    switch::add(network, &keys, &mut flows);
    let scopes = acl::scopes(network, &keys);
    let switches = acl::AclSwitches::new(network, &scopes, &keys);
    guard::add(network, &keys, &switches, &mut flows);
    acl::add(network, &keys, (&scopes, &switches), &mut flows);
    balance::add(network, &keys, &switches, &mut flows);
    monitor::add(network, &keys, &mut flows);
    router::add(network, &keys, &mut flows);
    let mut flows = flows.flows;
    flows.sort_by_key(|flow| (flow.stage, std::cmp::Reverse(flow.priority)));
    LogicalNetwork {
        datapaths: datapaths(network, &keys),
        address_sets: network.address_sets().clone(),
        port_groups: network.port_groups().clone(),
        flows,
        load_balancers: network
            .load_balancers()
            .iter()
            .map(|lb| (balance::loaded(lb), lb.switches.iter().map(|s| keys.switch(*s)).collect()))
            .collect(),
    }
}

fn datapaths(network: &Network, keys: &DatapathKeys) -> Vec<LogicalDatapath> {
    let mut datapaths: Vec<LogicalDatapath> = Vec::new();
    let monitored = health::monitored(network);
    for (index, (switch, &key)) in network.logical_switches().iter().zip(&keys.switches).enumerate()
    {
        let mut ports = guests_and_wire(switch);
        let flood = ports.iter().map(|port| port.key).collect();
        let unknown = switch.learns().then(|| {
            let wire = ports.iter().map(|port| port.key).filter(|&key| key == LogicalPort::WIRE);
            switch.learning_ports().map(|port| port.key).chain(wire).collect()
        });
        ports.extend(hosts(network, switch));
        if monitored.contains_key(&index) {
            ports.extend(health::logical_ports(network, index));
        }
        datapaths.push(LogicalDatapath {
            key,
            tunnel_key: (key != switch.datapath_key).then_some(switch.datapath_key),
            name: switch.name.clone(),
            kind: DatapathKind::Switch,
            flood: Some(flood),
            unknown,
            ports,
            line: switch.line,
        });
    }
    for (router, &key) in network.logical_routers().iter().zip(&keys.routers) {
        let mut ports = Vec::new();
        for port in &router.ports {
            let peer = match port.link {
                RouterLink::Switch { switch, key: switch_port } => {
                    datapaths[switch.value()].ports.push(LogicalPort {
                        name: port_in_switch(&network[switch].name, &port.name),
                        key: switch_port,
                        peer: Some((key, port.key)),
                        security: None,
                    });
                    (keys.switch(switch), switch_port)
                }
                RouterLink::Router { router, port } => (keys.router(router), port),
            };
            let name = port.name.clone();
            ports.push(LogicalPort { name, key: port.key, peer: Some(peer), security: None });
        }
        datapaths.push(LogicalDatapath {
            key,
            tunnel_key: None,
            name: router.name.clone(),
            kind: DatapathKind::Router,
            ports,
            flood: None,
            unknown: None,
            line: router.line,
        });
    }
    datapaths
}

fn guests_and_wire(switch: &LogicalSwitch) -> Vec<LogicalPort> {
    let guests = switch.ports.iter().map(|port| LogicalPort {
        name: port.name.clone(),
        key: port.key,
        peer: None,
        security: port.security.clone(),
    });
    let wire = (!switch.tunnel.has_endpoints()).then(|| LogicalPort {
        name: format!("{}//uplink", switch.name),
        key: LogicalPort::WIRE,
        peer: None,
        security: None,
    });
    guests.chain(wire).collect()
}

/// The ports that stand for hosts, in switches whose tunnel carries no logical ports and that
/// learn.
fn hosts(network: &Network, switch: &LogicalSwitch) -> Vec<LogicalPort> {
    let tunnel = switch.tunnel;
    if !tunnel.has_endpoints() || network.options().of(tunnel).logical_ports {
        return Vec::new();
    }
    let port = |host: HostIndex| {
        let name = format!("{}//{}", switch.name, network[host].name);
        Some(LogicalPort { name, key: LogicalPort::of_host(host)?, peer: None, security: None })
    };
    switch.learning_hosts().into_iter().filter_map(port).collect()
}

/// The keys of all datapaths.
#[derive(Clone, Debug)]
pub(crate) struct DatapathKeys {
    switches: Vec<DatapathKey>,
    routers: Vec<DatapathKey>,
    pub(crate) bridges: Vec<DatapathKey>,
}

impl DatapathKeys {
    /// A switch's key is that of its segment, unless an earlier switch of another tunnel type has
    /// it. Such switches, and routers and bridges, which appear on no wire, get the highest free
    /// keys of 24 bits.
    pub(crate) fn new(network: &Network) -> Self {
        const MAX: u32 = 0xff_ffff;
        let switches = network.logical_switches();
        let mut taken: BTreeSet<DatapathKey> =
            switches.iter().map(|switch| switch.datapath_key).collect();
        let mut free = (1..=MAX).rev().map(DatapathKey);
        let mut fresh = move |taken: &BTreeSet<DatapathKey>| {
            // A file of 256 MiB cannot hold that many switches and routers.
            free.find(|key| !taken.contains(key)).unwrap_or(DatapathKey(MAX))
        };
        let mut first = BTreeSet::new();
        let switches: Vec<_> = switches
            .iter()
            .map(|switch| {
                let is_new = first.insert(switch.datapath_key);
                if is_new { switch.datapath_key } else { fresh(&taken) }
            })
            .collect();
        taken.extend(&switches);
        let routers = network.logical_routers().iter().map(|_| fresh(&taken)).collect();
        let bridges = network.bridges().iter().map(|_| fresh(&taken)).collect();
        Self { switches, routers, bridges }
    }

    /// The key of a switch.
    pub(crate) fn switch(&self, index: SwitchIndex) -> DatapathKey {
        self.switches[index.value()]
    }

    /// The key of a router.
    pub(crate) fn router(&self, index: RouterIndex) -> DatapathKey {
        self.routers[index.value()]
    }
}

/// Collects flows.
struct FlowCollector {
    flows: Vec<LogicalFlow>,
}

impl FlowCollector {
    /// Adds a flow; one that applies to no datapath is left out.
    fn add(
        &mut self,
        datapaths: &Arc<[DatapathKey]>,
        (stage, priority): (Stage, u16),
        condition: impl Into<String>,
        actions: impl Into<String>,
        line: impl Into<Option<FileLine>>,
    ) {
        if !datapaths.is_empty() {
            self.flows.push(LogicalFlow {
                datapaths: Arc::clone(datapaths),
                stage,
                priority,
                condition: condition.into(),
                actions: actions.into(),
                line: line.into(),
            });
        }
    }
}

/// `next(...)` to a stage that is not the next one.
fn next_to(stage: Stage) -> String {
    format!("next(pipeline={},table={});", stage.direction().name(), stage.table())
}

/// `{a, b}`, or `a` alone.
fn set_of(items: &[impl fmt::Display]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    match items.as_slice() {
        [only] => only.clone(),
        _ => format!("{{{}}}", items.join(", ")),
    }
}
