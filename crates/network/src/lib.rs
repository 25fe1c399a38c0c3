//! `network.toml`: the hosts, logical switches, ports and tunnels of a network, checked before
//! anything is applied.
//!
//! [`Network::load`] reads one file, which is the same on every host. It returns either a
//! consistent [`Network`], or [`Errors`] with everything that is wrong, each with line and column.
//! A `Network` needs no further checks: names resolve, numbers are in range, nothing occurs twice,
//! and guests' packets fit the underlay. `docs/network-toml.md` describes the format for users.
//!
//! A file passes these steps: text, TOML with positions, drafts (`read/`, one module per kind of
//! table), checks across the whole file (`check`), model.
#![forbid(unsafe_code)]

mod check;
mod connectivity;
mod errors;
mod health;
mod interface_address;
mod load;
pub mod logical;
mod model;
mod name;
mod options;
mod placement;
mod prefix;
mod program;
mod read;
mod section;
mod source;
mod suggest;

pub use ::ipnet::IpNet;
pub use errors::{Errors, Position, Problem};
pub use flow::{
    Carrier, DatapathKey, Dscp, KernelDatapath, NetworkId, PortKey, Ttl, TunnelSettings, TunnelType,
};
pub use health::BackendCheck;
pub use load::{has_same_content, read_file};
pub use logical::{LogicalFlow, LogicalNetwork, logical_flows};
pub use model::{
    Acl, AclAction, AclDirection, AclScope, Bridge, BridgePort, Device, FileLine, ForceSnat,
    HealthChecks, HealthTarget, Host, HostIndex, LoadBalancer, LogicalRouter, LogicalSwitch, Nat,
    NatKind, Network, Port, PortSecurity, Route, RouterIndex, RouterLink, RouterPort, Segment,
    SwitchIndex, Trust,
};
pub use name::interface_problem;
pub use options::{TunnelOptions, UnderlayFamily, default_connections, overhead_bytes};
pub use placement::{Placement, RemoteEnd};
pub use prefix::Prefix;
pub use program::load_program;
