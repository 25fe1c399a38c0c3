//! The operating system's network devices: packet I/O (TAP, AF_PACKET, UDP and raw IP sockets) and control (network
//! namespaces, links, addresses, routes, neighbours, offload flags).
//!
//! All `unsafe` that talks to the operating system lives in this crate. Everything is synchronous; what can wait has a
//! file descriptor to poll. No program (`ip`, `tc`, `ethtool`) is ever run.

pub mod af_packet;
mod attributes;
pub mod batch;
pub mod bpf_fs;
pub mod capability;
pub mod child;
mod claim;
pub mod cpu;
pub mod epoll;
mod error;
pub mod ethtool;
pub mod filter;
mod genetlink;
pub mod icmp;
pub mod io_error;
mod kernel;
pub mod limits;
mod multicast;
mod netlink;
mod netns;
pub mod nftables;
mod quiet;
pub mod raw_ip;
mod request;
pub mod signal;
mod steering;
pub mod stt_sink;
mod sys;
pub mod tap;
pub mod udp;

pub use claim::Claim;
pub use error::{Error, Result};
pub use ethtool::Ethtool;
pub use ipnet::IpNet;
pub use kernel::KernelVersion;
pub use netlink::{
    Address, Dad, Event, GeneveSpec, GreSpec, Ifindex, Link, LinkKind, LinkSpec, LinkStats,
    LowerLink, Monitor, Neighbour, NeighbourState, Netlink, Route, RoutePath, SizeLimits, VlanSpec,
    VxlanEntry, VxlanSpec, XdpMode, check_link_name,
};
pub use netns::{Netns, OwnedNetns};
pub use quiet::keep_quiet;
pub use steering::{CpuMask, RxQueue, Steering};
