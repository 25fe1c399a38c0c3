//! The control socket of a daemon: a unix stream socket, one JSON object a line each way.
//!
//! A client sends one request, such as `{"command":"show"}`, and gets
//!
//! - `{"ok": ...}`: the answer, or the beginning of a stream,
//! - `{"error": "...", "input": true}`: why there is none; `input` when the request is what is wrong,
//! - of a stream: any number of `{"row": ...}`, and `{"end": ...}` when it ends by itself.
//!
//! A stream without an end of its own goes on until the client hangs up.

pub mod answers;
mod client;
mod server;

pub use client::{Next, Stream, Target, ask};
pub use server::{Client, Control};

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use wire::MacAddr;

/// Clients served at the same time.
pub const MAX_CLIENTS: usize = 16;

/// What can be asked of a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// All counters: a [`Snapshot`](datapath::stats::Snapshot).
    Show,
    /// Where addresses are: [`answers::Fdb`].
    Fdb,
    /// Forgets what was learnt of a MAC address: [`answers::Forgotten`].
    Forget {
        /// In the notation of `wire`, so that it is checked where it is read.
        #[serde(with = "mac")]
        mac: MacAddr,
    },
    /// The ends of tunnels: [`answers::Tunnels`].
    Tunnels,
    /// The megaflows: a stream of [`answers::FlowRow`] that ends with [`answers::FlowsEnd`].
    Flows {
        /// Only those of packets that come in by this port.
        #[serde(default)]
        port: Option<String>,
        /// Only those with so many packets.
        #[serde(default)]
        min_packets: u64,
    },
    /// The flows of the program: a stream of [`answers::ProgramRow`] that ends.
    Program {
        /// Only this logical switch or router.
        #[serde(default)]
        datapath: Option<String>,
    },
    /// Packets that are not delivered, from now on: a stream of [`answers::DropRow`].
    Drops {
        /// Only those that came in by this port.
        #[serde(default)]
        port: Option<String>,
        /// Only those for this reason.
        #[serde(default)]
        reason: Option<String>,
    },
    /// The frames of a port, from now on: a stream of [`answers::FrameRow`].
    Capture {
        /// The port.
        port: String,
        /// As they are on the underlay.
        #[serde(default)]
        outer: bool,
        /// Bytes of each frame.
        snap_bytes: usize,
    },
    /// Which datapath forwards, how packets of each tunnel type leave the host and reach ports, and why so: a list of
    /// [`doctor::choice::Chosen`].
    Chosen,
    /// How long packets may be on the way to another host: [`doctor::path::PathFacts`]. Takes up to ten seconds.
    Path {
        /// Its name in the network file.
        host: String,
    },
    /// Goes over to another network file: [`answers::Reloaded`].
    Reload {
        /// Its absolute path.
        network: PathBuf,
    },
    /// Ends: [`answers::Stopping`]. The daemon hangs up when it has.
    Stop {
        /// Nothing goes on forwarding.
        #[serde(default)]
        purge: bool,
    },
}

/// Where the daemon of `host` listens unless told otherwise.
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
    fn requests_are_read_as_they_are_written() {
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
    fn faults_of_requests_are_named() {
        let table = [
            (r#"{"command":"halt"}"#, "unknown variant `halt`"),
            (r#"{"command":"flows","prot":"a"}"#, "unknown field `prot`"),
            (r#"{"command":"forget","mac":"x"}"#, "`x`"),
            (r#"{"command":"capture","port":"a"}"#, "missing field `snap_bytes`"),
        ];
        for (text, fault) in table {
            let said = serde_json::from_str::<Request>(text).unwrap_err().to_string();
            assert!(said.contains(fault), "{text}: {said}");
        }
    }
}
