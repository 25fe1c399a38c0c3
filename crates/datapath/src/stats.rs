//! The counters of a datapath in the form in which they are reported, for JSON as well.

use crate::histogram::HistogramCounts;
use flow::{DropCounters, PacketCounter};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::AddAssign;

/// All counters of a datapath at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Snapshot {
    /// The host's name in the network file.
    pub host: String,
    /// The provider: `user` or `kernel`.
    pub datapath: String,
    /// The process ID of the daemon.
    pub pid: u32,
    /// Milliseconds since the datapath started.
    pub uptime_ms: u64,
    /// The VIFs, in the order of their numbers.
    pub ports: Vec<PortStats>,
    /// The uplink: tagged frames, and packets dropped on receive before their port was known.
    pub uplink: UplinkStats,
    /// The remote end points, by tunnel type and address.
    pub endpoints: Vec<EndpointStats>,
    /// The megaflow cache.
    pub megaflows: MegaflowStats,
    /// The queues of packets that wait for a decision of the switch.
    #[serde(default)]
    pub upcalls: UpcallStats,
    /// The maps of the eBPF programs; empty without programs.
    #[serde(default)]
    pub maps: Vec<MapUse>,
    /// What is missing in the log.
    #[serde(default)]
    pub log: LogStats,
    /// Connection tracking.
    #[serde(default)]
    pub connections: ConnectionStats,
    /// What the daemon may still do.
    #[serde(default)]
    pub privileges: PrivilegeStats,
    /// The health of the backends of load balancers that this host checks.
    #[serde(default)]
    pub health: HealthStats,
}

/// The health checks of a host. The datapath leaves it empty; the daemon fills it in.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct HealthStats {
    /// The backends.
    pub backends: Vec<BackendHealth>,
    /// Checks that have begun.
    pub checks: u64,
    /// Checks that have failed.
    pub failures: u64,
    /// Checks that were not made, because all source ports or all checks were in use.
    pub put_off: u64,
    /// Packets to the health checks that answer none of them.
    pub strays: u64,
}

/// The health of a backend.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct BackendHealth {
    /// The name of its load balancer; empty with OVN.
    pub balancer: String,
    /// Its address and port.
    pub backend: SocketAddr,
    /// Its logical port.
    pub port: String,
    /// How it is checked: `tcp`, `http` or `udp`.
    pub kind: String,
    /// `online`, `offline`, or `unknown` until enough checks have been made.
    pub status: String,
    /// Why the last check has failed, if it has.
    pub failure: Option<String>,
}

/// The queues of packets that wait for a decision of the switch, one for each port.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct UpcallStats {
    /// Packets that wait now, in all queues.
    pub waiting: u64,
    /// How many packets may wait in the queue of one port.
    pub port_limit: u64,
    /// The length of its port's queue for each packet that began to wait, in packets.
    pub queue_lengths: HistogramCounts,
    /// How long packets have waited for a thread of the switch, in nanoseconds.
    pub waits_ns: HistogramCounts,
    /// Copies of packets for the controller that found no room in the queue of their port, or
    /// waited there too long.
    #[serde(default)]
    pub copies_lost: u64,
}

/// How full a map of the eBPF programs is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct MapUse {
    /// Its name in the kernel, such as `weft_flows`.
    pub name: String,
    /// Entries in use.
    pub entries: u64,
    /// How many there may be.
    pub limit: u64,
}

/// The connections that the datapath tracks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct ConnectionStats {
    /// Their number.
    pub connections: u32,
    /// How many there may be.
    pub limit: u32,
}

/// The privileges of the daemon, which each of its threads has. The datapath leaves it empty; the
/// daemon fills it in.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct PrivilegeStats {
    /// The permitted capabilities, such as `CAP_NET_RAW`.
    pub capabilities: Vec<String>,
    /// Programs that it starts gain no privileges.
    pub no_new_privs: bool,
    /// The kernel filters its system calls.
    pub seccomp: bool,
    /// Whether Landlock limits the files that it may change: `on`, `off`, or `partial` on a kernel
    /// that does not know all kinds of changes.
    pub landlock: String,
}

/// Log lines that were left out.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct LogStats {
    /// Log records of ACLs over their rate limit.
    pub over_rate: u64,
    /// Lines that standard error did not take in time. The datapath leaves it 0; the daemon that
    /// writes the log fills it in.
    pub not_written: u64,
    /// Messages left out because too many of their kind were logged within a few seconds. Filled in
    /// like `not_written`.
    #[serde(default)]
    pub limited: u64,
}

/// The size of the megaflow cache and the results of its lookups.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct MegaflowStats {
    /// Megaflows; one that several workers have is counted for each.
    pub megaflows: u64,
    /// Different masks of these megaflows.
    pub masks: u64,
    /// Packets looked up.
    pub lookups: u64,
    /// Packets found in the exact-match cache.
    pub exact_hits: u64,
    /// Packets found by searching the masks.
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
pub struct PacketCount {
    /// Frames.
    pub packets: u64,
    /// Bytes, Ethernet header included.
    pub bytes: u64,
}

impl AddAssign for PacketCount {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

impl From<PacketCounter> for PacketCount {
    fn from(traffic: PacketCounter) -> Self {
        Self { packets: traffic.packets, bytes: traffic.bytes }
    }
}

/// Counters by the name of the drop reason. Reasons with a count of zero are absent.
pub type Drops = BTreeMap<String, u64>;

/// Returns the nonzero counters by name.
pub fn drops(counters: &DropCounters) -> Drops {
    counters.nonzero().map(|(reason, count)| (reason.name().to_owned(), count)).collect()
}

/// One VIF.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct PortStats {
    /// The port's number in the datapath.
    pub port: u32,
    /// Its name in the network file.
    pub name: String,
    /// The logical switch it belongs to.
    pub logical_switch: String,
    /// The device, and its namespace if it is in one.
    pub device: String,
    /// `up`, or why it is not.
    pub state: String,
    /// Frames from the guest.
    pub rx: PacketCount,
    /// Frames to the guest.
    pub tx: PacketCount,
    /// Frames from this guest that were dropped, and frames that could not be sent to it.
    pub drops: Drops,
    /// What the packets of this guest that need more than the fast path have cost.
    #[serde(default)]
    pub slow_path: SlowPathStats,
}

/// What the daemon has done for the packets of a port that need more than the fast path: upcalls,
/// and packets that eBPF programs have punted.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct SlowPathStats {
    /// Upcalls that the switch has handled.
    pub upcalls: u64,
    /// The processor time for upcalls, in nanoseconds: translation, megaflows, and what forwarding
    /// threads do for packets without a megaflow.
    pub upcall_cpu_ns: u64,
    /// The most processor time for upcalls, in percent of one processor; 0 for a port without
    /// limit.
    pub upcall_cpu_limit_percent: u32,
    /// Packets that eBPF programs have punted.
    pub punted: u64,
    /// The processor time for punted packets that had a megaflow, in nanoseconds: an estimate from
    /// samples.
    pub punted_cpu_ns: u64,
}

/// The uplink.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct UplinkStats {
    /// The device.
    pub device: String,
    /// `up`, or why it is not.
    pub state: String,
    /// Tagged frames received (VLAN and QinQ).
    pub rx: PacketCount,
    /// Tagged frames sent.
    pub tx: PacketCount,
    /// Packets from the underlay, tunnelled or tagged, that were dropped.
    pub drops: Drops,
    /// Reports of path MTUs from routers of the underlay.
    #[serde(default)]
    pub path_mtu_reports: PathMtuReports,
}

/// The ICMP reports of path MTUs ("fragmentation needed", "packet too big") that arrived.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct PathMtuReports {
    /// The least path MTU that is believed, in bytes of outer packet.
    pub least_path_mtu: u16,
    /// How many were believed.
    pub believed: u64,
    /// How many were ignored, by reason. Reasons with a count of zero are absent.
    pub ignored: BTreeMap<String, u64>,
}

/// The report behind a path MTU that is lower than the configured one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct PathMtuReport {
    /// The MTU that it stated, in bytes of outer packet.
    pub mtu: u16,
    /// Who sent it: a router of the underlay, or somebody who claims to be one. `None` if this host
    /// has found the MTU with path probes.
    pub router: Option<IpAddr>,
    /// Seconds since it arrived or was found.
    pub age_s: u64,
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
    /// `resolved` or `unresolved` where the datapath resolves the next hop itself; `kernel` where
    /// the kernel's sockets route.
    pub neighbour: String,
    /// Its packets are dropped as `unknown_endpoint`, because the route to it does not lead over
    /// the uplink, and `authenticate = "reverse-path"` is set.
    #[serde(default)]
    pub refused: bool,
    /// The path MTU in bytes of the outer packet: as configured, or lower if an ICMP message said
    /// so.
    pub path_mtu: u16,
    /// The ICMP message that said so; `None` while the configured path MTU applies.
    #[serde(default)]
    pub path_mtu_report: Option<PathMtuReport>,
    /// Inner frames received from it.
    pub rx: PacketCount,
    /// Inner frames sent to it.
    pub tx: PacketCount,
}
