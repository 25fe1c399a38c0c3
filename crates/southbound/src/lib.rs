//! OVN's southbound database, read from the text that its tools print.
//!
//! ```text
//! ovsdb-client dump --format=json unix:ovnsb_db.sock OVN_Southbound
//! ovn-sbctl --format=json list Datapath_Binding -- list Port_Binding -- list Logical_Flow
//! ovn-sbctl --format=json --columns=... find Logical_Flow priority=100
//! ```
//!
//! Each prints JSON objects, one for each table: `{"caption": ..., "data": [[cell, ...], ...], "headings": [column, ...]}`, with
//! cells in the notation of RFC 7047 section 5.1. ovn-sbctl leaves the caption out; then the columns tell which table it is.
//! Tables and columns that are not needed here are passed over.
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
mod uuid;

pub use error::{RowName, SouthboundError, SouthboundProblem};
pub use network::{NetworkError, SouthboundNetwork};
pub use rows::{
    AddressSet, Chassis, DatapathBinding, FdbEntry, FlowOrigin, LogicalDpGroup, LogicalFlow,
    MacBinding, MulticastGroup, Options, PortBinding, PortGroup, PortKind, StaticMacBinding,
};
pub use uuid::{Uuid, UuidError};

/// The rows of a southbound database that matter to a pipeline, each table in the order of the text.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Southbound {
    /// Logical switches and routers.
    pub datapaths: Vec<DatapathBinding>,
    /// Their ports.
    pub ports: Vec<PortBinding>,
    /// The flows.
    pub flows: Vec<LogicalFlow>,
    /// The groups of datapaths that share flows.
    pub dp_groups: Vec<LogicalDpGroup>,
    /// Groups of ports that a packet can be sent to.
    pub multicast_groups: Vec<MulticastGroup>,
    /// Named sets of addresses.
    pub address_sets: Vec<AddressSet>,
    /// Named sets of ports.
    pub port_groups: Vec<PortGroup>,
    /// IP addresses that were learnt.
    pub mac_bindings: Vec<MacBinding>,
    /// IP addresses that were configured.
    pub static_mac_bindings: Vec<StaticMacBinding>,
    /// MAC addresses that were learnt.
    pub fdb: Vec<FdbEntry>,
    /// The hosts.
    pub chassis: Vec<Chassis>,
}
