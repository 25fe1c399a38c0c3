//! What a daemon answers, as JSON.

use datapath::stats::{Count, EndpointStats, MegaflowStats};
use pipeline::Flow;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use switch::SwitchStats;

/// A flow of the program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlowRef {
    /// The name of its stage.
    pub stage: String,
    /// The highest of those that match decides.
    pub priority: u16,
    /// Where it comes from, such as `network.toml:31`; without a line when every network has it.
    pub source: String,
    /// Which packets.
    #[serde(rename = "match")]
    pub condition: String,
    /// What is done with them.
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

/// A daemon that ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stopping {
    /// Its host.
    pub host: String,
    /// Where it is pinned what goes on forwarding; `None` when nothing does.
    pub pinned: Option<PathBuf>,
    /// The megaflows that go on.
    pub megaflows: u64,
}

/// A megaflow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlowRow {
    /// Its number.
    pub id: String,
    /// The port by which its packets come in; `None` when it is for several.
    pub port: Option<String>,
    /// Which packets.
    #[serde(rename = "match")]
    pub condition: String,
    /// What is done with them.
    pub actions: String,
    /// Packets; a super-packet is one.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Since it was put.
    pub age_ms: u64,
    /// Since it was hit last, or put.
    pub idle_ms: u64,
    /// The generation of the program that decided.
    pub generation: u64,
    /// The flows that decided, in order.
    pub flows: Vec<FlowRef>,
}

/// All megaflows together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FlowsEnd {
    /// Of the datapath.
    pub cache: MegaflowStats,
    /// Of the switch.
    pub switch: SwitchStats,
}

/// A flow of the program, with what it has decided.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramRow {
    /// The logical switches and routers that have it.
    pub datapaths: Vec<String>,
    /// `ingress` or `egress`.
    pub pipeline: String,
    /// The number of its table.
    pub table: u8,
    /// Packets that it decided, since its program is in use.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The flow.
    #[serde(flatten)]
    pub flow: FlowRef,
}

/// Where addresses are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Fdb {
    /// MAC addresses.
    pub stations: Vec<Station>,
    /// IP addresses that routers have asked for.
    pub bindings: Vec<Binding>,
    /// Ports of which not everything was learnt.
    pub refused: Vec<Refused>,
}

/// A port of which more was to be learnt than it may teach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// The logical switch.
    pub datapath: String,
    /// The port by which the packets came in: a logical port, where it is known.
    pub port: String,
    /// What was to be learnt: `stations` or `bindings`.
    pub what: String,
    /// How much of it is known.
    pub known: usize,
    /// How much was refused, until now and as long as anything is known.
    pub refused: u64,
}

/// A MAC address in a logical switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Station {
    /// The switch.
    pub logical_switch: String,
    /// The address.
    pub mac: String,
    /// The logical port: of the network file, or one that stands for a host or the uplink (`SWITCH//HOST`, `SWITCH//uplink`).
    pub port: String,
    /// The host, but for the uplink.
    pub host: Option<String>,
    /// IP addresses, of a port of the network file.
    pub addresses: Vec<String>,
    /// Since it was seen last; `None` when it is in the network file.
    pub age_ms: Option<u64>,
}

/// An IP address behind a logical port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Binding {
    /// The logical router or switch.
    pub datapath: String,
    /// The logical port.
    pub port: String,
    /// The address.
    pub ip: IpAddr,
    /// Whose it is.
    pub mac: String,
    /// Since it was seen last; `None` when it is configured.
    pub age_ms: Option<u64>,
}

/// How much was forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Forgotten {
    /// Stations and bindings.
    pub entries: usize,
}

/// The ends of tunnels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tunnels {
    /// The device that leads to the other hosts.
    pub uplink: String,
    /// `up`, or why it is not.
    pub uplink_state: String,
    /// True when tagged frames leave by it (VLAN, QinQ), and how many.
    pub tags: Option<Tagged>,
    /// The ends on this host.
    pub local: Vec<LocalEnd>,
    /// The ends on others.
    pub endpoints: Vec<RemoteEnd>,
}

/// Tagged frames on the uplink.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tagged {
    /// Received.
    pub rx: Count,
    /// Sent.
    pub tx: Count,
}

/// An end of a tunnel type on this host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LocalEnd {
    /// The tunnel type.
    pub tunnel: String,
    /// This host's address.
    pub local: IpAddr,
    /// The UDP or TCP port; 0 for GRE, which has none.
    pub port: u16,
}

/// An end of a tunnel on another host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RemoteEnd {
    /// The other host's name.
    pub host: Option<String>,
    /// What the datapath knows.
    #[serde(flatten)]
    pub stats: EndpointStats,
}

/// A packet that was not delivered, or one copy of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DropRow {
    /// When, in UTC.
    pub time: String,
    /// The port by which it came in.
    pub port: String,
    /// Why.
    pub reason: String,
    /// The same as a sentence.
    pub meaning: String,
    /// Bytes of the whole frame.
    pub len: usize,
    /// Its headers, as they were when it was dropped; empty when they make no sense.
    pub packet: String,
    /// The flow that decided; `None` where none did, or it is not known any more.
    pub flow: Option<FlowRef>,
    /// Packets since the last row that were not copied because this client is slow.
    pub missed: u64,
}

/// How a capture begins.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaptureStart {
    /// What is captured.
    pub what: String,
}

/// A frame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FrameRow {
    /// When: nanoseconds since 1970.
    pub time_ns: u64,
    /// `from_guest` or `to_guest`; of the underlay `sent` or `received`.
    pub direction: String,
    /// Bytes of the whole frame.
    pub len: usize,
    /// The frame, cut to what was asked for, in hexadecimal.
    pub bytes: String,
    /// Frames since the last row that were not copied because this client is slow.
    pub missed: u64,
}

/// What a reload has changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reloaded {
    /// The file.
    pub network: PathBuf,
    /// The generation of the program that is in use now.
    pub generation: u64,
    /// Names of ports.
    pub ports: Changes,
    /// Tunnel types and remote addresses.
    pub endpoints: Changes,
    /// Names of logical switches and routers that concern this host.
    pub datapaths: Changes,
}

/// What has become of one kind of thing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Changes {
    /// There now.
    pub added: Vec<String>,
    /// Removed, and there again with another configuration.
    pub changed: Vec<String>,
    /// Not there any more.
    pub removed: Vec<String>,
    /// How many are as they were.
    pub kept: usize,
}

impl Changes {
    /// In one line.
    pub fn summary(&self) -> String {
        let count = |names: &[String], what: &str| match names {
            [] => None,
            names if names.len() <= MANY => {
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

/// More names are not told in a line.
const MANY: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_in_a_line() {
        let names = |count: u32| (1..=count).map(|number| format!("p{number}")).collect();
        let changes = Changes { added: names(2), changed: names(0), removed: names(9), kept: 5 };
        assert_eq!(changes.summary(), "2 added (p1, p2), 9 removed, 5 kept");
        assert_eq!(Changes::default().summary(), "0 kept");
    }
}
