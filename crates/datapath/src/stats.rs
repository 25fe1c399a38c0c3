//! What a datapath tells about itself: the form in which counters are shown.

use flow::{DropCounters, Traffic};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::AddAssign;

/// Everything a datapath counts, at one moment.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Snapshot {
    /// The host's name in the network file.
    pub host: String,
    /// Which datapath it is: `user` or `kernel`.
    pub datapath: String,
    /// The process that forwards.
    pub pid: u32,
    /// Milliseconds since the datapath started.
    pub uptime_ms: u64,
    /// VIFs, in the order of their numbers.
    pub ports: Vec<PortStats>,
    /// The uplink, as far as tagged frames go, and what was dropped on receive before a port was known.
    pub uplink: UplinkStats,
    /// Remote end points, by tunnel type and address.
    pub endpoints: Vec<EndpointStats>,
    /// The cache of decisions.
    pub megaflows: MegaflowStats,
}

/// What the cache of decisions has, and how it was found.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct MegaflowStats {
    /// Megaflows; one that several workers have counts for each.
    pub megaflows: u64,
    /// Different masks of theirs.
    pub masks: u64,
    /// Packets looked up.
    pub lookups: u64,
    /// Found in the exact-match cache.
    pub exact_hits: u64,
    /// Found by searching the masks.
    pub search_hits: u64,
    /// Masks searched.
    pub mask_probes: u64,
}

impl AddAssign for MegaflowStats {
    fn add_assign(&mut self, other: Self) {
        self.megaflows += other.megaflows;
        self.masks += other.masks;
        self.lookups += other.lookups;
        self.exact_hits += other.exact_hits;
        self.search_hits += other.search_hits;
        self.mask_probes += other.mask_probes;
    }
}

/// Frames and bytes in one direction. A super-packet counts as one frame.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Count {
    /// Frames.
    pub packets: u64,
    /// Bytes, from the Ethernet header on.
    pub bytes: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

impl From<Traffic> for Count {
    fn from(traffic: Traffic) -> Self {
        Self { packets: traffic.packets, bytes: traffic.bytes }
    }
}

/// Counts by the name of the drop reason; reasons that have counted nothing are absent.
pub type Drops = BTreeMap<String, u64>;

/// The nonzero counters by name.
pub fn drops(counters: &DropCounters) -> Drops {
    counters.nonzero().map(|(reason, count)| (reason.name().to_owned(), count)).collect()
}

/// One VIF.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct PortStats {
    /// The port's number in the datapath.
    pub port: u32,
    /// Its name in the network file.
    pub name: String,
    /// The logical switch it belongs to.
    pub logical_switch: String,
    /// The device, with its namespace where it has one.
    pub device: String,
    /// `up`, or why it is not.
    pub state: String,
    /// From the guest.
    pub rx: Count,
    /// To the guest.
    pub tx: Count,
    /// Frames from this guest that were not delivered, and frames that this port refused.
    pub drops: Drops,
}

/// The uplink.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct UplinkStats {
    /// The device.
    pub device: String,
    /// `up`, or why it is not.
    pub state: String,
    /// Tagged frames received (VLAN and QinQ).
    pub rx: Count,
    /// Tagged frames sent.
    pub tx: Count,
    /// What came from the underlay, tunnelled or tagged, and was not delivered.
    pub drops: Drops,
}

/// One remote end point.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct EndpointStats {
    /// The tunnel type.
    pub tunnel: String,
    /// This host's address.
    pub local: IpAddr,
    /// The other host's.
    pub remote: IpAddr,
    /// `resolved` or `unresolved` for the types whose neighbour the datapath looks up itself, `kernel` where the kernel
    /// routes.
    pub neighbour: String,
    /// The longest outer packet that reaches it in one piece, in bytes: as configured, or as the underlay says.
    pub path_mtu: u16,
    /// Inner frames received from it.
    pub rx: Count,
    /// Inner frames sent to it.
    pub tx: Count,
}

impl EndpointStats {
    /// Adds what another thread has counted of the same end point.
    pub(crate) fn add(&mut self, other: &Self) {
        self.rx += other.rx;
        self.tx += other.tx;
    }
}
