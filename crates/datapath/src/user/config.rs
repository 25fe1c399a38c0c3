//! What a user datapath is made from.

use super::hand_over::HandOver;
use super::pair;
use crate::solicit::SolicitLimits;
use crate::upcall::UpcallLimits;
use flow::{EndpointId, PortNo, TagLink, TunnelSpec};
use netdev::IpPrefix;
use std::net::IpAddr;
use std::time::Duration;
use wire::MacAddr;

/// Everything a user datapath needs to know, checked by whoever made it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host's name, for logs and [`Snapshot`](crate::stats::Snapshot).
    pub host: String,
    /// The device toward the underlay.
    pub uplink: String,
    /// The number of the port by which frames leave by the uplink with the tags that they have.
    pub uplink_port: PortNo,
    /// What is reached over the uplink.
    pub underlay: Underlay,
    /// The local VIFs.
    pub ports: Vec<PortConfig>,
    /// The first outer source port of the range that carries the entropy of the inner flows.
    pub entropy_base: u16,
    /// How many ports the range has.
    pub entropy_ports: u16,
    /// The threads that forward.
    pub workers: Workers,
    /// Megaflows at most, of each thread.
    pub megaflows: usize,
    /// What may wait to be translated.
    pub upcalls: UpcallLimits,
    /// How often routers ask for neighbours, for the packets that each thread forwards.
    pub solicit: SolicitLimits,
    /// Where programs stand in front of the datapath.
    pub hand_over: Option<HandOver>,
}

/// The threads that forward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workers {
    /// How many; 1 to [`MAX_WORKERS`](super::MAX_WORKERS). Each packet is forwarded by one of them, chosen by the hash of its
    /// (inner) flow.
    pub count: usize,
    /// How long one that has nothing to do looks again before it sleeps, as long as that pays; zero: it sleeps at once.
    pub busy_poll: Duration,
}

impl Default for Workers {
    /// One, and half as long as the kernel itself waits before it halts the processor of a virtual machine.
    fn default() -> Self {
        Self { count: 1, busy_poll: Duration::from_micros(100) }
    }
}

/// What is reached over the uplink, and how. It may change while the datapath runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Underlay {
    /// The logical switches that are linked by tags.
    pub links: Vec<LinkConfig>,
    /// The MTU in bytes that the uplink needs for the longest tagged frame of this host's switches; 0 without `links`.
    pub tagged_mtu_bytes: u16,
    /// The local ends of tunnels: each is a socket.
    pub tunnels: Vec<TunnelConfig>,
    /// The remote ends.
    pub endpoints: Vec<EndpointConfig>,
}

/// A remote end point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointConfig {
    /// Its number, as actions name it.
    pub id: EndpointId,
    /// What is the same for all end points of its tunnel type.
    pub spec: TunnelSpec,
    /// This host's address.
    pub local: IpAddr,
    /// The other host's.
    pub remote: IpAddr,
}

/// A logical switch that is linked by tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// The number of the port by which its frames come in, without their tags.
    pub port: PortNo,
    /// The tags.
    pub link: TagLink,
}

/// The local end of a tunnel type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunnelConfig {
    /// The number of the port by which packets come out of it.
    pub port: PortNo,
    /// What is the same for all its end points.
    pub spec: TunnelSpec,
    /// This host's address.
    pub local: IpAddr,
    /// A multicast group that is heard in the place of that address, of UDP tunnels; frames to it leave by the sockets of the
    /// tunnel without one, which has to be there, too.
    pub group: Option<IpAddr>,
}

impl TunnelConfig {
    /// Where packets to this end are sent: the group, or this host's address.
    pub fn address(&self) -> IpAddr {
        self.group.unwrap_or(self.local)
    }
}

/// A local VIF.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Its number.
    pub port: PortNo,
    /// Its name in the network file.
    pub name: String,
    /// The logical switch it belongs to.
    pub logical_switch: String,
    /// The device.
    pub device: DeviceConfig,
}

/// The device behind a VIF.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceConfig {
    /// A TAP that the datapath makes; where programs stand in front of it, a veth pair in its place.
    Tap {
        /// The device's name.
        name: String,
        /// The namespace it is moved into, and what it is given there.
        guest: Option<GuestConfig>,
        /// The guest's MTU in bytes.
        mtu: u16,
    },
    /// A TAP that the datapath makes and a virtual machine opens.
    Vm {
        /// The device's name.
        name: String,
        /// The guest's MTU in bytes.
        mtu: u16,
    },
    /// A device that is there already.
    Interface {
        /// The device's name.
        name: String,
        /// The guest's MTU in bytes; the device should have the same.
        mtu: u16,
    },
}

/// What a TAP is given when it is put into a guest's namespace: there is nobody else to do it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GuestConfig {
    /// The namespace's name.
    pub netns: String,
    /// The guest's MAC address.
    pub mac: MacAddr,
    /// The guest's addresses with their prefix lengths.
    pub addresses: Vec<IpPrefix>,
}

impl DeviceConfig {
    /// Where programs stand in front of the datapath, the name of the outer end of the pair that a TAP is then; `None` for other devices.
    pub fn pair_name(&self) -> Option<String> {
        let Self::Tap { name, guest, .. } = self else { return None };
        Some(pair::outer_name(guest.as_ref().map(|guest| guest.netns.as_str()), name))
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
