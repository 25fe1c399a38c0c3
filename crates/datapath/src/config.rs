//! The configuration of a datapath: ports, tunnels, end points and limits.

use crate::solicit::SolicitLimits;
use crate::upcall::UpcallLimits;
use flow::{EndpointId, PortNo, TagLink, TunnelSpec};
use netdev::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use wire::MacAddr;

/// The highest port number that may have a device; 0 is the uplink.
pub const MAX_PORT: PortNo = PortNo(0xffff);
/// The most forwarding threads.
pub const MAX_WORKERS: usize = 64;

/// Everything a datapath needs to start. The caller has validated it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host's name, for logs and [`Snapshot`](crate::stats::Snapshot).
    pub host: String,
    /// The name of the device toward the underlay.
    pub uplink: String,
    /// The port number that stands for the uplink: output to it sends a frame with its own tags.
    pub uplink_port: PortNo,
    /// The tunnels, end points and tagged links on the uplink.
    pub underlay: Underlay,
    /// The local virtual interfaces (VIFs).
    pub ports: Vec<PortConfig>,
    /// The first outer source port. The range carries the entropy of the inner flows.
    pub entropy_base: u16,
    /// The number of outer source ports in that range.
    pub entropy_ports: u16,
    /// The forwarding threads.
    pub workers: Workers,
    /// The most megaflows of each forwarding thread.
    pub megaflows: usize,
    /// How many packets may wait for translation.
    pub upcalls: UpcallLimits,
    /// With eBPF programs: how many punted frames of one port may wait for the user datapath. A
    /// frame counts once for each begun 8 KiB or 16 segments, whichever is more.
    pub punt_limit: u32,
    /// The most processor time for the upcalls of each guest's port ([`PortPeer`]), in percent of
    /// one processor.
    pub upcall_cpu_percent: u32,
    /// How often logical routers ask for neighbours; each forwarding thread has these limits.
    pub solicit: SolicitLimits,
    /// Limits and timeouts of tracked connections.
    pub conntrack: conntrack::Config,
}

/// The default of [`Config::punt_limit`]: a quarter of the queue.
pub const PUNT_LIMIT: u32 = 1024;
/// The default of [`Config::upcall_cpu_percent`]: a quarter of a processor.
pub const UPCALL_CPU_PERCENT: u32 = 25;

/// The forwarding threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workers {
    /// Their number, 1 to [`MAX_WORKERS`]. The hash of a packet's (inner) flow selects the thread.
    pub count: usize,
    /// How long an idle thread busy-polls before it sleeps, adaptively; zero never busy-polls.
    pub busy_poll: Duration,
}

impl Default for Workers {
    /// One thread. It busy-polls for half as long as the kernel polls before it halts the processor
    /// of a virtual machine (haltpoll).
    fn default() -> Self {
        Self { count: 1, busy_poll: Duration::from_micros(100) }
    }
}

/// The tunnels and tagged links of the uplink. They may change while the datapath runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Underlay {
    /// The logical switches that are linked by VLAN tags.
    pub links: Vec<LinkConfig>,
    /// The uplink MTU in bytes that the longest tagged frame needs; 0 without `links`.
    pub tagged_mtu_bytes: u16,
    /// The local ends of tunnels. Each has its own socket.
    pub tunnels: Vec<TunnelConfig>,
    /// The remote ends of tunnels.
    pub endpoints: Vec<EndpointConfig>,
    /// The least path MTU that is accepted from a router's report, in bytes of outer packet.
    pub least_path_mtu_bytes: u16,
    /// The same for single end points, by remote address.
    pub least_path_mtus: BTreeMap<IpAddr, u16>,
    /// Packets are accepted only from end points to which a route leads over the uplink.
    pub checks_reverse_path: bool,
}

impl Underlay {
    /// The default of `least_path_mtu_bytes`: the least MTU of IPv6 (RFC 8200 section 5), which
    /// practically all IPv4 paths have as well.
    pub const LEAST_PATH_MTU_BYTES: u16 = 1280;

    /// The least path MTU that is believed of the path to `remote`, in bytes of outer packet.
    #[must_use]
    pub fn least_path_mtu(&self, remote: IpAddr) -> u16 {
        self.least_path_mtus.get(&remote).copied().unwrap_or(self.least_path_mtu_bytes)
    }
}

impl Default for Underlay {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            tagged_mtu_bytes: 0,
            tunnels: Vec::new(),
            endpoints: Vec::new(),
            least_path_mtu_bytes: Self::LEAST_PATH_MTU_BYTES,
            least_path_mtus: BTreeMap::new(),
            checks_reverse_path: false,
        }
    }
}

/// A remote end point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointConfig {
    /// Its number, by which actions refer to it.
    pub id: EndpointId,
    /// The settings shared by all end points of its tunnel type.
    pub spec: TunnelSpec,
    /// This host's address.
    pub local: IpAddr,
    /// The other host's address.
    pub remote: IpAddr,
}

/// A logical switch that is linked by VLAN tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// The port by which its frames enter the pipeline, after the tags are removed.
    pub port: PortNo,
    /// The tags.
    pub link: TagLink,
}

/// The local end of a tunnel type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunnelConfig {
    /// The port by which decapsulated packets enter the pipeline.
    pub port: PortNo,
    /// The settings shared by all its end points.
    pub spec: TunnelSpec,
    /// This host's address.
    pub local: IpAddr,
    /// The multicast group to receive from instead of `local` (UDP tunnels only). Frames to the
    /// group are sent from the sockets of the tunnel without group, which must exist as well.
    pub group: Option<IpAddr>,
}

impl TunnelConfig {
    /// The destination address of packets to this end: the group, or this host's address.
    pub fn address(&self) -> IpAddr {
        self.group.unwrap_or(self.local)
    }
}

/// A local VIF.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Its number, 1 to [`MAX_PORT`].
    pub port: PortNo,
    /// Its name in the network file.
    pub name: String,
    /// The logical switch it belongs to.
    pub logical_switch: String,
    /// Its device.
    pub device: DeviceConfig,
    /// Who sends frames to it.
    pub peer: PortPeer,
}

/// Who sends frames to a port. The processor time for upcalls is limited only for guests: one
/// machine of a network could use up the share of all others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum PortPeer {
    /// A guest, or machines behind it.
    #[default]
    Guest,
    /// A physical network with many machines.
    Network,
    /// A guest if the device is a veth or a TAP, and a network otherwise.
    ByDevice,
}

impl PortPeer {
    /// True for a network. `kind` is the kind of the device as the kernel names it; `None` for
    /// hardware.
    #[must_use]
    pub fn is_network(self, kind: Option<&str>) -> bool {
        match self {
            Self::Guest => false,
            Self::Network => true,
            Self::ByDevice => !matches!(kind, Some("veth" | "tun" | "netkit" | "macvtap")),
        }
    }
}

/// The device of a VIF.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceConfig {
    /// A TAP that the datapath creates. With eBPF programs it creates a veth pair instead.
    Tap {
        /// The device's name.
        name: String,
        /// The namespace to move it into, and its addresses there.
        guest: Option<GuestConfig>,
        /// The guest's MTU in bytes.
        mtu: u16,
    },
    /// A TAP that the datapath creates and a virtual machine opens.
    Vm {
        /// The device's name.
        name: String,
        /// The guest's MTU in bytes.
        mtu: u16,
        /// The machine may open several queues.
        multi_queue: bool,
    },
    /// A device that exists already.
    Interface {
        /// The device's name.
        name: String,
        /// The guest's MTU in bytes, which the device should have. `None` for a device that leads
        /// to other machines than guests: then the device's own MTU applies.
        mtu: Option<u16>,
    },
}

/// The settings of a guest's device in the guest's namespace. The datapath applies them, because
/// nothing else configures the device there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GuestConfig {
    /// The namespace's name.
    pub netns: String,
    /// The guest's MAC address.
    pub mac: MacAddr,
    /// The guest's addresses with their prefix lengths.
    pub addresses: Vec<IpNet>,
}

impl DeviceConfig {
    /// The name of the device, if it is in the namespace of the daemon.
    #[must_use]
    pub fn own_name(&self) -> Option<&str> {
        match self {
            Self::Tap { guest: Some(_), .. } => None,
            Self::Tap { name, .. } | Self::Vm { name, .. } | Self::Interface { name, .. } => {
                Some(name)
            }
        }
    }
}

impl std::fmt::Display for DeviceConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tap { name, guest: Some(guest), .. } => {
                write!(f, "tap {name} in {}", guest.netns)
            }
            Self::Tap { name, guest: None, .. } => write!(f, "tap {name}"),
            Self::Vm { name, .. } => write!(f, "vm {name}"),
            Self::Interface { name, .. } => write!(f, "interface {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_of_a_bridge_leads_to_a_guest_if_it_is_a_veth_or_a_tap() {
        for (kind, is_network) in
            [(None, true), (Some("bond"), true), (Some("vlan"), true), (Some("veth"), false)]
        {
            assert_eq!(PortPeer::ByDevice.is_network(kind), is_network, "{kind:?}");
            assert!(PortPeer::Network.is_network(kind) && !PortPeer::Guest.is_network(kind));
        }
    }
}
