//! What there is: read from the kernel, never judged here.

mod host;
mod kernel;
pub mod mtu;
mod nic;
mod ports;
mod uplink;

pub use host::{HostFacts, Memlock};
pub use kernel::Kernel;
pub use mtu::{Place, PlaceKind, SwitchMtu};
pub use netdev::KernelVersion;
pub use netdev::nftables::Ruleset;
pub use nic::{Feature, Features, NicFacts, Rss};
pub use ports::{Ports, Socket, TUNNEL_PORTS, TunnelDevice};
pub use uplink::{Device, Uplink};
