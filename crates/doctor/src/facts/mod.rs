//! Facts: the state of the host as read from the kernel, without judgement.

mod host;
mod kernel;
pub mod mtu;
mod nic;
mod ports;
mod uplink;

pub use host::{HostFacts, Memlock};
pub use kernel::Kernel;
pub use mtu::{MtuPoint, MtuPointKind, SwitchMtu};
pub use netdev::KernelVersion;
pub use netdev::ethtool::hardware::Rss;
pub use netdev::nftables::Ruleset;
pub use nic::{Feature, Features, NicFacts};
pub use ports::{BoundSocket, TunnelDevice, TunnelListeners, registered_ports};
pub use uplink::{Device, Uplink};
