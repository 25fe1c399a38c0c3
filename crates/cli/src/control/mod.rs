//! The control socket of a daemon: a Unix stream socket with one JSON object per line in each
//! direction.
//!
//! A client sends one request, such as `{"command":"show"}`. The daemon replies with
//!
//! - `{"ok": ...}`: the reply, or the header of a stream;
//! - `{"error": "...", "input": true}`: an error; `input` is set when the request itself is wrong;
//! - in a stream: any number of `{"row": ...}`, then `{"end": ...}` if the stream is finite.
//!
//! An endless stream continues until the client closes the connection.

mod client;
pub mod openflow;
pub mod ovs;
pub mod replies;
mod server;

pub use client::{DAEMON_EXITED, DaemonSelector, Stream, StreamEvent, request};
pub use server::{Connection, ControlSocket, listen_at, parse_request};

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use wire::MacAddr;

/// Maximum number of clients served at the same time.
pub const MAX_CLIENTS: usize = 16;
/// Maximum number of clients with view permission only. The other slots stay free for clients that
/// may change or stop the daemon.
pub const MAX_VIEWERS: usize = 8;

/// A request to a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// All counters: a [`Snapshot`](datapath::stats::Snapshot).
    Show,
    /// Configured and learned addresses: [`replies::FdbReply`].
    Fdb,
    /// Deletes the learned entries of a MAC address: [`replies::ForgetReply`].
    Forget {
        /// As text in JSON, parsed and checked by [`MacAddr`].
        #[serde(with = "mac")]
        mac: MacAddr,
    },
    /// Tunnels and their end points: [`replies::TunnelsReply`].
    Tunnels,
    /// Megaflows: a finite stream of [`replies::FlowRow`] that ends with [`replies::FlowTotals`].
    Flows {
        /// Only megaflows of packets received on this port.
        #[serde(default)]
        port: Option<String>,
        /// Only megaflows with at least this many packets.
        #[serde(default)]
        min_packets: u64,
    },
    /// Tracked connections: a finite stream of [`replies::ConnectionRow`] that ends with
    /// [`replies::ConnectionTotals`].
    Connections {
        /// Only the connections that this filter selects.
        #[serde(default)]
        filter: ConnectionFilter,
    },
    /// Numbers of tracked connections: a finite stream of [`replies::ConnectionUse`], for each zone
    /// and each port that has connections, which ends with [`replies::ConnectionTotals`].
    ConnectionUse,
    /// Removes tracked connections: [`replies::FlushReply`].
    FlushConnections {
        /// Only the connections that this filter selects.
        #[serde(default)]
        filter: ConnectionFilter,
    },
    /// Logical flows of the program: a finite stream of [`replies::ProgramRow`].
    Program {
        /// Only this logical switch or router.
        #[serde(default)]
        datapath: Option<String>,
    },
    /// Flows of a bridge, as ovs-ofctl prints them: a finite stream of [`replies::FlowLine`].
    BridgeFlows {
        /// The bridge.
        bridge: String,
        /// The words of a match; all flows if it is empty.
        #[serde(default)]
        selector: String,
        /// Includes age and counters.
        #[serde(default)]
        statistics: bool,
    },
    /// Counters of the ports of a bridge: a list of [`replies::BridgePortRow`].
    BridgePorts {
        /// The bridge.
        bridge: String,
        /// Only the port with this number or name.
        #[serde(default)]
        port: Option<String>,
    },
    /// Changes the flows of a bridge: [`replies::FlowsChanged`].
    ChangeFlows {
        /// The bridge.
        bridge: String,
        /// The type of the change.
        change: FlowChange,
        /// One or more flows.
        text: String,
        /// The source of the text, such as a file name.
        source: String,
    },
    /// Sends a packet from a bridge: [`replies::PacketSent`].
    PacketOut {
        /// The bridge.
        bridge: String,
        /// `in_port=PORT packet=HEX actions=ACTIONS`, as `ovs-ofctl packet-out` takes it.
        text: String,
    },
    /// Packets dropped from now on: an endless stream of [`replies::DropRow`].
    Drops {
        /// Only packets received on this port.
        #[serde(default)]
        port: Option<String>,
        /// Only packets dropped for this reason.
        #[serde(default)]
        reason: Option<String>,
    },
    /// Frames of a port from now on: an endless stream of [`replies::FrameRow`].
    Capture {
        /// The name of the port.
        port: String,
        /// Captures on the underlay, with outer headers.
        #[serde(default)]
        outer: bool,
        /// Maximum number of bytes kept of each frame.
        snap_bytes: usize,
    },
    /// The datapath, and how packets of each tunnel type and port are segmented, with reasons: a
    /// list of [`doctor::choice::Decision`].
    Decisions,
    /// The switches, routers, ports and hosts of the network:
    /// [`Topology`](crate::graph::topology::Topology).
    Topology,
    /// Measures the path MTU to another host: [`doctor::path::PathFacts`]. Takes up to ten seconds.
    Path {
        /// The name of the other host in the network file.
        host: String,
    },
    /// Applies another network file: [`replies::ReloadReply`].
    Reload {
        /// The absolute path of the file.
        network: PathBuf,
    },
    /// Pools of ports on this host, and attached devices: [`replies::PoolsReply`].
    Pools,
    /// Attaches an interface to a port of a pool: [`replies::AttachedRow`].
    AddPort {
        /// A pool, or a port of one.
        at: String,
        /// The interface.
        device: String,
        /// Identifies the requester; any text.
        #[serde(default)]
        owner: String,
        /// Selects only a port that has all these addresses.
        #[serde(default)]
        addresses: Vec<IpAddr>,
    },
    /// Detaches interfaces: [`replies::DeletedPort`]. Needs at least one member, and detaches the
    /// interfaces that match all given members.
    DeletePort {
        /// The port.
        #[serde(default)]
        port: Option<String>,
        /// The owner with which it was attached.
        #[serde(default)]
        owner: Option<String>,
    },
    /// Stops the daemon: [`replies::StopReply`]. The daemon closes the connection when it exits.
    Stop {
        /// Removes pinned programs and maps, so that nothing keeps forwarding.
        #[serde(default)]
        purge: bool,
    },
}

impl Request {
    /// True if the request changes nothing and shows no packet's payload. Clients that only have
    /// the permission to view may send it.
    pub fn is_view(&self) -> bool {
        match self {
            Self::Show
            | Self::Fdb
            | Self::Tunnels
            | Self::Flows { .. }
            | Self::Connections { .. }
            | Self::ConnectionUse
            | Self::Program { .. }
            | Self::BridgeFlows { .. }
            | Self::BridgePorts { .. }
            | Self::Drops { .. }
            | Self::Pools
            | Self::Decisions
            | Self::Topology => true,
            // The path measurement sends packets to another host.
            Self::Path { .. }
            | Self::Capture { .. }
            | Self::Forget { .. }
            | Self::FlushConnections { .. }
            | Self::ChangeFlows { .. }
            | Self::PacketOut { .. }
            | Self::Reload { .. }
            | Self::AddPort { .. }
            | Self::DeletePort { .. }
            | Self::Stop { .. } => false,
        }
    }
}

/// A change of the flows of a bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowChange {
    /// Adds a flow.
    Add,
    /// Replaces the actions of the flows that a match selects.
    Modify,
    /// Replaces the actions of the flow with this match and priority.
    ModifyStrict,
    /// Deletes the flows that a match selects.
    Delete,
    /// Deletes the flow with this match and priority.
    DeleteStrict,
    /// Applies lines of flows and commands.
    Lines,
    /// Replaces all flows by these lines.
    Replace,
}

impl FlowChange {
    /// The command word of a line with this change; `None` for a change that has several lines.
    pub fn command(self) -> Option<&'static str> {
        match self {
            Self::Add => Some("add"),
            Self::Modify => Some("modify"),
            Self::ModifyStrict => Some("modify_strict"),
            Self::Delete => Some("delete"),
            Self::DeleteStrict => Some("delete_strict"),
            Self::Lines | Self::Replace => None,
        }
    }
}

/// Selects the connections that match all given members.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
pub struct ConnectionFilter {
    /// Only connections of this zone: its number, or its user as in the list
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Only connections that packets from this port have opened
    #[arg(long, value_name = "NAME")]
    pub port: Option<String>,
    /// Only connections with this address, port or both, in any direction, before or after NAT
    #[arg(long, value_name = "[IP][:PORT]")]
    pub address: Option<String>,
    /// Only connections whose first packet had this source
    #[arg(long, value_name = "[IP][:PORT]")]
    pub src: Option<String>,
    /// Only connections whose first packet had this destination
    #[arg(long, value_name = "[IP][:PORT]")]
    pub dst: Option<String>,
    /// Only connections whose replies have this source
    #[arg(long, value_name = "[IP][:PORT]")]
    pub reply_src: Option<String>,
    /// Only connections whose replies have this destination
    #[arg(long, value_name = "[IP][:PORT]")]
    pub reply_dst: Option<String>,
    /// Only connections of this protocol: tcp, udp, sctp, icmp, icmp6 or a number
    #[arg(long, value_name = "NAME")]
    pub protocol: Option<String>,
    /// Only connections in this state, such as established
    #[arg(long, value_name = "STATE")]
    pub state: Option<String>,
}

/// The default control socket of the daemon of `host`.
pub fn default_path(host: &str) -> PathBuf {
    Path::new("/run/weft").join(format!("{host}.sock"))
}

/// A MAC address in JSON: `02:00:00:00:00:01`.
mod mac {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use wire::MacAddr;

    pub fn serialize<S: Serializer>(mac: &MacAddr, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(mac)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MacAddr, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error| D::Error::custom(format!("`{text}`: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_serialization() {
        let table = [
            (Request::Show, r#"{"command":"show"}"#),
            (
                Request::Flows { port: None, min_packets: 3 },
                r#"{"command":"flows","port":null,"min_packets":3}"#,
            ),
            (
                Request::Forget { mac: MacAddr([2, 0, 0, 0, 0, 1]) },
                r#"{"command":"forget","mac":"02:00:00:00:00:01"}"#,
            ),
            (
                Request::Reload { network: "/etc/weft/network.toml".into() },
                r#"{"command":"reload","network":"/etc/weft/network.toml"}"#,
            ),
            (
                Request::ChangeFlows {
                    bridge: "br0".to_owned(),
                    change: FlowChange::DeleteStrict,
                    text: "ip".to_owned(),
                    source: "me".to_owned(),
                },
                concat!(
                    r#"{"command":"change_flows","bridge":"br0","change":"delete_strict","#,
                    r#""text":"ip","source":"me"}"#
                ),
            ),
        ];
        for (request, text) in table {
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        }
        let stop: Request = serde_json::from_str(r#"{"command":"stop"}"#).unwrap();
        assert_eq!(stop, Request::Stop { purge: false });
        let short: Request = serde_json::from_str(r#"{"command":"flows"}"#).unwrap();
        assert_eq!(short, Request::Flows { port: None, min_packets: 0 });
    }

    #[test]
    fn viewers_see_flows_and_do_not_change_them() {
        let bridge = "br0".to_owned();
        let flows = Request::BridgeFlows {
            bridge: bridge.clone(),
            selector: String::new(),
            statistics: true,
        };
        let ports = Request::BridgePorts { bridge: bridge.clone(), port: None };
        assert!(flows.is_view() && ports.is_view());
        let (text, source) = (String::new(), String::new());
        let change = Request::ChangeFlows { bridge, change: FlowChange::Lines, text, source };
        assert!(!change.is_view());
    }

    #[test]
    fn parse_error_names_the_invalid_part_of_a_request() {
        let table = [
            (r#"{"command":"halt"}"#, "unknown variant `halt`"),
            (r#"{"command":"flows","prot":"a"}"#, "unknown field `prot`"),
            (r#"{"command":"forget","mac":"x"}"#, "`x`"),
            (r#"{"command":"capture","port":"a"}"#, "missing field `snap_bytes`"),
        ];
        for (text, fault) in table {
            let error = serde_json::from_str::<Request>(text).unwrap_err().to_string();
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}
