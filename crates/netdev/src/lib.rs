//! Network devices of Linux: packet I/O (TAP, AF_PACKET, UDP and raw IP sockets) and configuration
//! (network namespaces, links, addresses, routes, neighbours, offloads).
//!
//! All `unsafe` that talks to the operating system lives in this crate. All calls are synchronous.
//! Whatever can block has a file descriptor to poll. No external program (`ip`, `tc`, `ethtool`) is
//! ever run.

pub mod af_packet;
mod attributes;
pub mod batch;
pub mod boot_clock;
pub mod bpf_fs;
pub mod capability;
pub mod child;
pub mod cpu;
pub mod epoll;
mod error;
pub mod ethtool;
pub mod filter;
mod genetlink;
mod host_stack;
pub mod icmp;
pub mod io_error;
mod kernel;
pub mod limits;
pub mod mapped_file;
mod multicast;
mod netlink;
mod netns;
mod netns_lock;
pub mod nftables;
pub mod pid_file;
pub mod raw_ip;
pub mod regular_file;
mod request;
pub mod sandbox;
pub mod signal;
mod steering;
pub mod stt_sink;
mod sys;
pub mod tap;
pub mod terminal;
pub mod thread_clock;
pub mod udp;
pub mod unix;
mod xfrm;

pub use error::{Error, Result};
pub use ethtool::Ethtool;
pub use host_stack::silence_host_stack;
pub use ipnet::IpNet;
pub use kernel::KernelVersion;
pub use netlink::{
    Address, Dad, GeneveSpec, GreSpec, Ifindex, Link, LinkKind, LinkSpec, LinkStats, LowerLink,
    Monitor, Neighbour, NeighbourState, Netlink, NetlinkEvent, Route, RoutePath, SizeLimits,
    TunQueues, VlanSpec, VxlanSpec, XdpMode, check_link_name,
};
pub use netns::{Netns, OwnedNetns};
pub use netns_lock::NetnsLock;
pub use steering::{CpuMask, RxQueue, Steering};
pub use xfrm::ipsec_policies;
