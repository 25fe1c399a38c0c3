//! Bridges: datapaths whose flows are written in the syntax of ovs-ofctl.

use super::{Device, FileLine, HostIndex};
use crate::IpNet;
use flow::PortNo;
use std::path::PathBuf;
use wire::MacAddr;

/// A bridge on one host, programmed in the syntax of ovs-ofctl.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bridge {
    /// Its name, unique among the bridges, logical switches and routers of the network.
    pub name: String,
    /// The host it is on.
    pub host: HostIndex,
    /// The MTU of its ports in bytes of IP packet, 68 to 65,535.
    pub mtu: u16,
    /// The file of its flows, relative to the directory of the network file; `None` to begin
    /// without flows.
    pub flows: Option<PathBuf>,
    /// Its ports in the order of the file.
    pub ports: Vec<BridgePort>,
    /// Its line in the file.
    pub line: FileLine,
}

/// A port of a bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgePort {
    /// Its name, unique in the network.
    pub name: String,
    /// The port number that flows use, 1 to 65,279: as given, or the first free one in the order of
    /// the file.
    pub number: PortNo,
    /// Its interface on the host, unique there.
    pub device: Device,
    /// The guest's MAC address; needed for a device in a network namespace.
    pub mac: Option<MacAddr>,
    /// The guest's IP addresses, which the device in the namespace gets.
    pub addresses: Vec<IpNet>,
    /// Its line in the file.
    pub line: FileLine,
}
