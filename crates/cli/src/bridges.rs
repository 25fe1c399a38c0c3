//! The bridges of a host, whose flows have the syntax of ovs-ofctl: ports, flows, and keys in the
//! program.

use crate::Failure;
use flow::{DatapathKey, PortNo};
use network::Bridge;
use ofctl::BridgeError;
use pipeline::{BridgePort, BridgePortKind, Program};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Instant;

/// A flow file that was read.
pub struct FlowFile {
    /// Its path, for errors and for the sources of flows.
    pub name: String,
    /// Its content.
    pub text: String,
}

/// The flow files of bridges, by the names of the bridges.
pub type FlowFiles = BTreeMap<String, FlowFile>;

/// A bridge in the program of a host.
#[derive(Clone, Debug)]
pub struct HostBridge {
    /// Its key in the program.
    pub key: DatapathKey,
    /// Its ports and flows.
    pub flows: ofctl::Bridge,
}

/// The bridges of a host, by name.
pub type HostBridges = BTreeMap<String, HostBridge>;

/// The clock for the ages of flows, in milliseconds. It is monotonic.
pub fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Creates a bridge that has ports but no flows. `number` maps each of its ports to a datapath
/// port.
///
/// # Errors
/// The name or number of a port is not valid in flows. The checks of `network` exclude that.
pub fn without_flows(
    key: DatapathKey,
    bridge: &Bridge,
    mut number: impl FnMut(&network::BridgePort) -> PortNo,
) -> Result<HostBridge, ofctl::PortError> {
    let ports = bridge.ports.iter().map(|port| {
        let (name, kind) = (port.name.clone(), BridgePortKind::Device);
        (port.number, BridgePort { name, number: number(port), kind })
    });
    Ok(HostBridge { key, flows: ofctl::Bridge::new(&bridge.name, ports)? })
}

/// Gives the bridges their flows, and adds them to the program. Flows that a bridge of the same
/// name had in `previous` keep their counters, if the file still has them. A bridge without a file
/// keeps all its flows.
///
/// # Errors
/// A flow file has a syntax error or names an unknown port.
pub fn load(
    bridges: &mut HostBridges,
    files: &FlowFiles,
    previous: &HostBridges,
    program: &mut Program,
) -> Result<(), Failure> {
    for (name, bridge) in bridges {
        if let Some(previous) = previous.get(name) {
            bridge.flows.adopt_flows(&previous.flows);
        }
        if let Some(file) = files.get(name) {
            bridge.flows.replace(&file.text, &file.name, now_ms()).map_err(|error| {
                Failure::Input(match error {
                    // This error already begins with the name of the file.
                    BridgeError::Problems(problems) => anyhow::Error::new(problems),
                    error => anyhow::anyhow!("{}: {error}", file.name),
                })
            })?;
        }
        bridge.flows.install(program, bridge.key);
    }
    Ok(())
}
