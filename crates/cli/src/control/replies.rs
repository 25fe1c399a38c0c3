//! The JSON objects that a daemon sends in reply to requests.

use datapath::stats::{EndpointStats, MegaflowStats, PacketCount, PathMtuReports};
use pipeline::Flow;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use switch::SwitchStats;

/// A logical flow of the program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlowRef {
    /// The name of its pipeline stage, such as `ls_in_acl`.
    pub stage: String,
    /// Its priority: of the flows that match, the highest wins.
    pub priority: u16,
    /// Its source, such as `network.toml:31`; no line number if weft adds it to every network.
    pub source: String,
    /// Its match expression.
    #[serde(rename = "match")]
    pub condition: String,
    /// Its actions.
    pub actions: String,
}

impl From<&Flow> for FlowRef {
    fn from(flow: &Flow) -> Self {
        let text = &flow.text;
        Self {
            stage: text.stage.to_string(),
            priority: flow.priority,
            source: text.source.to_string(),
            condition: text.condition.to_string(),
            actions: text.actions.to_string(),
        }
    }
}

/// A flow of a bridge, as ovs-ofctl prints it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlowLine {
    /// The line.
    pub line: String,
}

/// The counters of a port of a bridge.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BridgePortRow {
    /// Its number in flows.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Frames from its device.
    pub rx: PacketCount,
    /// Frames to its device.
    pub tx: PacketCount,
    /// Frames from it that were dropped, and frames that could not be sent to it.
    pub drops: u64,
}

/// The reply to a change of flows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlowsChanged {
    /// How many flows the bridge has now.
    pub flows: usize,
    /// The generation of the first program that contains the change.
    pub generation: u64,
}

/// The reply to a packet that is sent from a bridge.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PacketSent {
    /// Its length.
    pub bytes: usize,
}

/// The reply to a stop request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StopReply {
    /// The host of the daemon.
    pub host: String,
    /// The directory of the pinned programs; `None` when nothing stays.
    pub pinned: Option<PathBuf>,
    /// True when the programs are known to keep forwarding. False when their BPF file system may
    /// end with the daemon.
    #[serde(default)]
    pub lasting: bool,
    /// The number of megaflows in the maps of the programs.
    pub megaflows: u64,
}

/// A megaflow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlowRow {
    /// Its identifier in the datapath.
    pub id: String,
    /// The port on which its packets are received; `None` when it matches several ports.
    pub port: Option<String>,
    /// Its key and mask.
    #[serde(rename = "match")]
    pub condition: String,
    /// Its datapath actions.
    pub actions: String,
    /// The tracked connections of a fused megaflow, one for each zone; 0 for other megaflows.
    #[serde(default)]
    pub connections: usize,
    /// Packets that hit it; a super-packet counts once.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Milliseconds since it was installed.
    pub age_ms: u64,
    /// Milliseconds since its last packet, or since it was installed.
    pub idle_ms: u64,
    /// The generation of the program that it was translated with.
    pub generation: u64,
    /// The logical flows that its packets match, in pipeline order.
    pub flows: Vec<FlowRef>,
}

/// Totals of all megaflows: the end of their stream.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FlowTotals {
    /// Counters of the datapath cache.
    pub cache: MegaflowStats,
    /// Counters of upcalls and revalidation.
    pub switch: SwitchStats,
}

/// A tracked connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionRow {
    /// The number of its zone.
    pub zone: u16,
    /// The user of the zone: `SWITCH/PORT`, `ROUTER dnat`, `ROUTER snat` or `SWITCH hairpin`;
    /// `None` if the zone has no user any more.
    pub user: Option<String>,
    /// `tcp`, `udp`, `sctp`, `icmp`, `icmp6`, or a number.
    pub protocol: String,
    /// The addresses of packets in the direction of the first packet, before NAT.
    pub original: ConnectionEnds,
    /// The addresses of packets in the other direction, before NAT is undone.
    pub reply: ConnectionEnds,
    /// The state of TCP or SCTP in the terms of nf_conntrack; for other protocols `UNREPLIED`,
    /// `REPLIED` or `ASSURED`.
    pub state: String,
    /// True if the source is translated.
    pub source_nat: bool,
    /// True if the destination is translated.
    pub destination_nat: bool,
    /// The mark.
    pub mark: u32,
    /// The label, in hexadecimal.
    pub label: String,
    /// The port whose packet opened it.
    pub port: String,
    /// Milliseconds until it expires without further packets.
    pub expires_ms: u64,
}

/// The addresses of a packet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionEnds {
    /// Source.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// The source port of TCP, UDP and SCTP.
    pub src_port: Option<u16>,
    /// The destination port.
    pub dst_port: Option<u16>,
    /// The identifier of ICMP and ICMPv6.
    pub icmp_id: Option<u16>,
    /// The type of its ICMP or ICMPv6 messages in this direction.
    #[serde(default)]
    pub icmp_type: Option<u8>,
    /// Their code.
    #[serde(default)]
    pub icmp_code: Option<u8>,
}

/// How many connections a zone or a port has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionUse {
    /// `zone` or `port`.
    pub what: String,
    /// The name of the port, or the user of the zone. The number of a zone without a user.
    pub name: String,
    /// Connections.
    pub connections: u32,
    /// The maximum number of connections; `None` if it has no separate limit.
    pub limit: Option<u32>,
}

/// Totals of connection tracking: the end of its streams.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ConnectionTotals {
    /// Connections.
    pub connections: u32,
    /// The maximum number of connections.
    pub limit: u32,
    /// Connections committed since the start.
    pub committed: u64,
    /// Connections that expired or that a RST ended.
    pub expired: u64,
    /// Connections that a packet of another connection replaced.
    pub replaced: u64,
    /// Connections removed by request.
    pub flushed: u64,
    /// Times that a connection could not be saved for the next daemon, because the file system of
    /// the control socket was full.
    #[serde(default)]
    pub not_saved: u64,
    /// Refused commits, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Invalid packets, by reason.
    pub invalid: BTreeMap<String, u64>,
}

/// The reply to a request to remove connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlushReply {
    /// Number of removed connections.
    pub removed: u64,
}

/// A logical flow of the program with its counters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramRow {
    /// The logical switches and routers that have it.
    pub datapaths: Vec<String>,
    /// `ingress` or `egress`.
    pub pipeline: String,
    /// The number of its table in this pipeline.
    pub table: u8,
    /// Packets that matched it since its program was published.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// The flow.
    #[serde(flatten)]
    pub flow: FlowRef,
}

/// The forwarding database: configured and learned addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FdbReply {
    /// MAC addresses.
    pub stations: Vec<StationRow>,
    /// IP addresses that logical routers have resolved.
    pub bindings: Vec<BindingRow>,
    /// Clients of load balancers with affinity, and the backends that serve them.
    pub affinities: Vec<AffinityRow>,
    /// Connections that were opened through one of several next hops.
    pub next_hops: Vec<NextHopRow>,
    /// Ports that have reached a learning limit.
    pub refused: Vec<PortAtLimit>,
}

/// A client of a load balancer with affinity.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AffinityRow {
    /// The logical switch or router that executes the load balancer.
    pub datapath: String,
    /// The client.
    pub client: IpAddr,
    /// The protocol of the virtual address, such as `tcp`; `ip` for all traffic.
    pub protocol: String,
    /// The virtual address, with the port if it has one.
    pub vip: String,
    /// The backend, with the port if the virtual address has one.
    pub backend: String,
    /// Milliseconds since the last new connection.
    pub age_ms: Option<u64>,
    /// Milliseconds without a new connection after which the client loses its backend.
    pub timeout_ms: u64,
}

/// A connection that was opened through one of several next hops.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NextHopRow {
    /// The logical router.
    pub datapath: String,
    /// The protocol.
    pub protocol: String,
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Address and port of the server.
    pub server: SocketAddr,
    /// The MAC address of the next hop.
    pub mac: String,
    /// Milliseconds since the last packet.
    pub age_ms: Option<u64>,
}

/// A port that has reached a learning limit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortAtLimit {
    /// The logical switch.
    pub datapath: String,
    /// The port that received the packets; the logical port if it is known.
    pub port: String,
    /// The type of the rejected entries: `stations`, `bindings`, `affinities` or `next hops`.
    pub what: String,
    /// Number of entries that are known behind the port.
    pub known: usize,
    /// Number of rejected entries since the port got its first one.
    pub refused: u64,
}

/// A MAC address in a logical switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StationRow {
    /// The switch.
    pub logical_switch: String,
    /// The address.
    pub mac: String,
    /// The logical port; `SWITCH//HOST` or `SWITCH//uplink` where only the host or the uplink is
    /// known.
    pub port: String,
    /// The host of the port; `None` for `SWITCH//uplink`.
    pub host: Option<String>,
    /// The IP addresses that the network file gives the port.
    pub addresses: Vec<String>,
    /// Milliseconds since its last packet; `None` for an address of the network file.
    pub age_ms: Option<u64>,
}

/// An IP address behind a logical port, with its MAC address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BindingRow {
    /// The logical router or switch.
    pub datapath: String,
    /// The logical port.
    pub port: String,
    /// The address.
    pub ip: IpAddr,
    /// The MAC address that the IP address resolves to.
    pub mac: String,
    /// Milliseconds since its last packet; `None` for a configured address.
    pub age_ms: Option<u64>,
}

/// The reply to a `forget` request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ForgetReply {
    /// Number of deleted stations and bindings.
    pub entries: usize,
}

/// The tunnels of a host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TunnelsReply {
    /// The device that leads to the other hosts.
    pub uplink: String,
    /// `up`, or the reason why the uplink is down.
    pub uplink_state: String,
    /// Counters of tagged frames; `None` when no switch uses VLAN or QinQ.
    pub tags: Option<TaggedCounters>,
    /// The tunnel sockets of this host.
    pub local: Vec<LocalEnd>,
    /// The end points on other hosts.
    pub endpoints: Vec<RemoteEnd>,
    /// Reports of path MTUs from routers of the underlay.
    #[serde(default)]
    pub path_mtu_reports: PathMtuReports,
}

/// Counters of tagged frames on the uplink.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TaggedCounters {
    /// Received.
    pub rx: PacketCount,
    /// Sent.
    pub tx: PacketCount,
}

/// The local end of a tunnel type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LocalEnd {
    /// The tunnel type.
    pub tunnel: String,
    /// This host's address.
    pub local: IpAddr,
    /// The UDP or TCP port; 0 for GRE, which has none.
    pub port: u16,
}

/// The remote end of a tunnel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RemoteEnd {
    /// The other host's name.
    pub host: Option<String>,
    /// The state and counters of the end point.
    #[serde(flatten)]
    pub stats: EndpointStats,
}

/// A dropped packet, or a dropped copy of a packet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DropRow {
    /// Time of the drop (RFC 3339, UTC).
    pub time: String,
    /// The port that received the packet.
    pub port: String,
    /// The name of the drop reason.
    pub reason: String,
    /// The drop reason as a sentence.
    pub meaning: String,
    /// Length of the whole frame in bytes.
    pub len: usize,
    /// Its header fields at the time of the drop; empty if they cannot be parsed.
    pub packet: String,
    /// The logical flow that decided; `None` if there was none or it has been deleted.
    pub flow: Option<FlowRef>,
    /// Packets missed since the last row because this client is slow.
    pub missed: u64,
}

/// The header of a capture stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaptureStart {
    /// A description of what is captured.
    pub what: String,
}

/// A captured frame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FrameRow {
    /// Time of capture in nanoseconds since 1970.
    pub time_ns: u64,
    /// `from_guest` or `to_guest`; on the underlay `sent` or `received`.
    pub direction: String,
    /// Length of the whole frame in bytes.
    pub len: usize,
    /// The first bytes of the frame, in hexadecimal.
    pub bytes: String,
    /// Frames missed since the last row because this client is slow.
    pub missed: u64,
}

/// The reply to a request for the pools of ports.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolsReply {
    /// The host.
    pub host: String,
    /// The pools with ports on this host, by name.
    pub pools: Vec<PoolRow>,
    /// The attached interfaces.
    pub attached: Vec<AttachedRow>,
}

/// The ports of a pool on this host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolRow {
    /// Its name.
    pub name: String,
    /// Its logical switch.
    pub logical_switch: String,
    /// The MTU of the logical switch in bytes.
    pub mtu: u16,
    /// The number of its ports on this host.
    pub ports: usize,
    /// How many of them have no interface.
    pub free: usize,
}

/// An interface that is attached to a port of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AttachedRow {
    /// The port.
    pub port: String,
    /// Its pool. This and the following are empty if the network file no longer has the port.
    pub pool: String,
    /// Its logical switch.
    pub logical_switch: String,
    /// The interface.
    pub device: String,
    /// The owner that the requester has set.
    pub owner: String,
    /// The MAC address that the guest must use.
    pub mac: String,
    /// The IP addresses that the guest must use, with prefix length.
    pub addresses: Vec<String>,
    /// The addresses of logical routers in the networks of these addresses.
    pub gateways: Vec<String>,
    /// The MTU of the logical switch in bytes.
    pub mtu: u16,
    /// `up`, or why it is not; null in the reply to `add_port`.
    pub state: Option<String>,
}

/// The reply to a request that detaches interfaces.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeletedPort {
    /// The ports that had an interface.
    pub removed: Vec<String>,
}

/// The reply to a reload request: what has changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReloadReply {
    /// The network file.
    pub network: PathBuf,
    /// The generation of the new program.
    pub generation: u64,
    /// Changes of ports, by name.
    pub ports: ReloadChanges,
    /// Changes of end points, by tunnel type and remote address.
    pub endpoints: ReloadChanges,
    /// Changes of the logical switches and routers of this host, by name.
    pub datapaths: ReloadChanges,
}

/// The changes of one type of item by a reload.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReloadChanges {
    /// New in the file.
    pub added: Vec<String>,
    /// Replaced because their configuration differs.
    pub changed: Vec<String>,
    /// No longer in the file.
    pub removed: Vec<String>,
    /// How many are unchanged.
    pub kept: usize,
}

impl ReloadChanges {
    /// Compares two maps by their keys.
    pub fn between<V: PartialEq>(old: &BTreeMap<String, V>, new: &BTreeMap<String, V>) -> Self {
        let only = |here: &BTreeMap<String, V>, there: &BTreeMap<String, V>| -> Vec<String> {
            here.keys().filter(|name| !there.contains_key(*name)).cloned().collect()
        };
        let common = || old.iter().filter_map(|(name, was)| Some((name, was, new.get(name)?)));
        let changed = common().filter(|(_, was, now)| was != now);
        Self {
            added: only(new, old),
            changed: changed.map(|(name, ..)| name.clone()).collect(),
            removed: only(old, new),
            kept: common().filter(|(_, was, now)| was == now).count(),
        }
    }

    /// Whether anything differs.
    pub fn any(&self) -> bool {
        [&self.added, &self.changed, &self.removed].into_iter().any(|names| !names.is_empty())
    }

    /// The changes in one line.
    pub fn summary(&self) -> String {
        let count = |names: &[String], what: &str| match names {
            [] => None,
            names if names.len() <= MAX_NAMES => {
                Some(format!("{} {what} ({})", names.len(), names.join(", ")))
            }
            names => Some(format!("{} {what}", names.len())),
        };
        let kept = Some(format!("{} kept", self.kept));
        let Self { added, changed, removed, .. } = self;
        let parts =
            [count(added, "added"), count(changed, "changed"), count(removed, "removed"), kept];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The longest list of names that a summary shows in full; of longer lists it shows the length.
const MAX_NAMES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lists_few_names_and_counts_many() {
        let names = |count: u32| (1..=count).map(|number| format!("p{number}")).collect();
        let changes =
            ReloadChanges { added: names(2), changed: names(0), removed: names(9), kept: 5 };
        assert_eq!(changes.summary(), "2 added (p1, p2), 9 removed, 5 kept");
        assert_eq!(ReloadChanges::default().summary(), "0 kept");
    }
}
