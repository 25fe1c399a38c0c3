//! A lab: two hosts joined by an underlay, each with two guests unless its [`Shape`] differs. Hosts
//! and guests are network namespaces of this machine.
//!
//! ```text
//!   h1g1   h1g2                     h2g1   h2g2      guests: eth0, 10.77.0.<host><guest>/24
//!     |      |                        |      |
//!   [    h1    ] uplink ---- uplink [    h2    ]     hosts: 192.0.2.<host>/24, 2001:db8::<host>/64
//! ```
//!
//! Every [`Contender`] runs in a lab of this layout. It creates the `eth0` of the guests and
//! connects it to `uplink`. Dropping the lab removes all namespaces.

mod attach;
mod attachment;
mod contender;
mod counters;
mod host;
mod kernel;
mod names;
mod network_file;
mod ovs;
pub(crate) mod policy;
mod profile;
pub(crate) mod scratch;
mod session;
mod shape;
mod stateful;
mod underlay;
mod weft;

pub use attachment::Attachment;
pub use contender::{Contender, Datapath, KernelTunnel, OvsTunnel, StatefulRules, StatefulSwitch};
pub use counters::{WireCounters, retransmitted};
pub use host::{CONGESTION_CONTROL, GUEST_DEVICE, Guest, Host, UPLINK, processors};
pub use network_file::{NO_CPU_LIMIT, network_toml};
pub use policy::{RoutedGuest, RoutedSetup};
pub use profile::{OffloadFlags, Profile, ProfileError};
pub use session::{Session, check_privileges, remove_stale};
pub use shape::{DEFAULT_UPLINK_MTU, IpVersion, Shape};
pub use underlay::Lab;
pub(crate) use weft::{attach_large, attach_with};
