//! `network.toml`: the hosts, logical switches, ports and tunnels of a network, checked before anything is
//! applied.
//!
//! [`Network::load`] reads one file, the same on every host, and returns either a [`Network`], in which
//! everything is consistent, or [`Errors`] with everything that is wrong, each with its line and column. There
//! is nothing in between, so whoever holds a `Network` needs no further checks: names resolve, numbers are in
//! range, nothing is there twice, packets of the guests fit the underlay. `docs/network-toml.md` describes the
//! format for users.
//!
//! The way of a file: text -> TOML with positions -> drafts (`read/`, one module for each kind of table) ->
//! checks that need the whole (`check`) -> model.
#![forbid(unsafe_code)]

mod check;
mod errors;
mod interface_address;
mod load;
pub mod logical;
mod model;
mod name;
mod options;
mod placement;
mod prefix;
mod program;
mod reach;
mod read;
mod section;
mod source;
mod suggest;

pub use ::ipnet::IpNet;
pub use errors::{Errors, Position, Problem};
pub use flow::{
    Carrier, DatapathKey, Dscp, KernelDatapath, NetworkId, PortKey, Ttl, TunnelSettings, TunnelType,
};
pub use logical::{LogicalFlow, LogicalNetwork, logical_flows};
pub use model::{
    Acl, AclAction, AclDirection, AclScope, Device, Host, HostIndex, Line, LogicalRouter,
    LogicalSwitch, Network, Port, PortSecurity, Route, RouterIndex, RouterLink, RouterPort,
    Segment, SwitchIndex,
};
pub use options::{Family, TunnelOptions, overhead_bytes};
pub use placement::{FarEnd, Placement};
pub use prefix::Prefix;
pub use program::load_program;
