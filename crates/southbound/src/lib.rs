//! OVN's southbound database, parsed from the output of its tools.
//!
//! ```text
//! ovsdb-client dump --format=json unix:ovnsb_db.sock OVN_Southbound
//! ovn-sbctl --format=json list Datapath_Binding -- list Port_Binding -- list Logical_Flow
//! ovn-sbctl --format=json --columns=... find Logical_Flow priority=100
//! ```
//!
//! Each prints one JSON object for each table, with cells in the notation of RFC 7047 section 5.1:
//! `{"caption": ..., "data": [[cell, ...], ...], "headings": [column, ...]}`. ovn-sbctl omits the
//! caption; the table is then recognized by its columns. Tables and columns that this crate does
//! not need are ignored.
//!
//! ```text
//! text -> tables (dump) -> rows of cells (cell) -> typed rows (rows)
//! ```
#![forbid(unsafe_code)]

mod cell;
mod dump;
mod error;
mod network;
mod rows;
mod table;
#[cfg(test)]
mod tests;

pub use error::{RowName, SouthboundError, SouthboundProblem};
pub use network::{NetworkError, SouthboundNetwork, constant};
pub use rows::{
    AddressSet, Chassis, DatapathBinding, FdbEntry, FlowOrigin, LoadBalancer, LogicalDpGroup,
    LogicalFlow, MacBinding, MulticastGroup, PortBinding, PortGroup, PortKind, StaticMacBinding,
    StringMap, port_group_name,
};

/// The rows of a southbound database that define a pipeline, each table in the order of the text.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Southbound {
    /// Logical switches and routers.
    pub datapaths: Vec<DatapathBinding>,
    /// Ports of logical switches and routers.
    pub ports: Vec<PortBinding>,
    /// Logical flows.
    pub flows: Vec<LogicalFlow>,
    /// Groups of datapaths that share flows.
    pub dp_groups: Vec<LogicalDpGroup>,
    /// Load balancers of logical switches.
    pub load_balancers: Vec<LoadBalancer>,
    /// Multicast groups.
    pub multicast_groups: Vec<MulticastGroup>,
    /// Named sets of addresses.
    pub address_sets: Vec<AddressSet>,
    /// Named sets of ports.
    pub port_groups: Vec<PortGroup>,
    /// Learned MAC bindings of IP addresses.
    pub mac_bindings: Vec<MacBinding>,
    /// Configured MAC bindings of IP addresses.
    pub static_mac_bindings: Vec<StaticMacBinding>,
    /// Learned ports of MAC addresses.
    pub fdb: Vec<FdbEntry>,
    /// Hosts.
    pub chassis: Vec<Chassis>,
}
