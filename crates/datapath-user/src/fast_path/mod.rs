//! The interface to eBPF programs that run in front of the user datapath (docs/adr/0011).
//!
//! A program of the kernel datapath either executes all actions of a packet's megaflow, or punts
//! the unchanged packet: it redirects it to a TAP ([`punt`]) behind an Ethernet header that names
//! the ingress port. The user datapath then continues as if it had read the packet from that port.
//!
//! With programs in front, the sockets of ports and uplink only send, except those of UDP tunnels
//! and STT. A guest's device is a veth pair ([`veth`]) instead of a TAP, because the programs are
//! attached to its outer end. Its frames have room for outer headers ([`veth_headroom`]), and the
//! kernel joins the segments that arrive in VXLAN ([`vxlan_gro`]).
//!
//! The kernel datapath calls [`release_interface`] and [`remove_orphaned_devices`] when it cleans
//! up after a killed daemon. They are here because this module makes the devices and changes that
//! they undo.

pub(crate) mod punt;
mod punt_interface;
pub(crate) mod punt_reader;
pub(crate) mod veth;
pub(crate) mod veth_headroom;
pub(crate) mod vxlan_gro;

pub use punt::{ETHERTYPE, QUEUE_LEN as PUNT_QUEUE_LEN};

use datapath::config::DeviceConfig;
use flow::{EndpointId, EntropySeed, NextHop, PortNo};
use netdev::{Error, Ifindex, Link, Netlink};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// How packets are punted to the user datapath, and by whom.
#[derive(Clone, Debug)]
pub struct Punt {
    /// The name of the TAP; for a `%d` in it, the kernel chooses a free number. The user datapath
    /// makes it with one queue for each worker, and it vanishes with the process.
    pub device: String,
    /// The seed by which the programs, too, choose outer source ports.
    pub entropy: EntropySeed,
    /// The programs.
    pub fast_path: Arc<dyn FastPath>,
}

/// The Ethernet addresses toward an end point; `None` while they are unknown.
pub type ResolvedNextHop = (EndpointId, Option<NextHop>);

/// Whether the route to an end point leads over the uplink.
pub type RouteChange = (EndpointId, bool);

/// The path MTU toward an end point in bytes of the outer packet; `None` if the configured one
/// applies.
pub type PathMtu = (EndpointId, Option<u16>);

/// A redirection of the datagrams to a tunnel's UDP port: programs deliver them to sockets at
/// another port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRedirect {
    /// The tunnel's UDP port.
    pub tunnel_port: u16,
    /// The UDP port of the sockets, at the same addresses.
    pub socket_port: u16,
}

/// The programs, as the user datapath sees them: it reports changes of links and next hops to them.
///
/// Changes are reported in the order in which they happen. The reporting thread is the one that
/// starts the datapath, adds or removes a port, or sets an underlay, before that call returns;
/// otherwise it is a thread of the datapath. The thread that removes a port may be in another
/// network namespace than the devices. All calls but
/// [`punted_read_until`](FastPath::punted_read_until) and
/// [`pause_misses`](FastPath::pause_misses) are made while the datapath is locked, so an
/// implementation must not call the datapath. There are no calls after the datapath was asked to
/// stop, except these two.
pub trait FastPath: Send + Sync + Debug {
    /// Packets can be punted to the TAP with this index; `None`: there is no TAP, so they cannot be
    /// punted. The first call precedes those about ports.
    fn punt_device(&self, device: Option<Ifindex>);

    /// The workers have handled all frames that were punted until `time_ns`, in the programs'
    /// clock; `u64::MAX`: no punted frame waits. Called by the workers after each batch, so it must
    /// be fast.
    fn punted_read_until(&self, time_ns: u64) {
        let _ = time_ns;
    }

    /// The port has used up the processor time for its upcalls: the programs refuse its packets
    /// without a megaflow for this time, and count them as dropped. Packets may still be punted.
    fn pause_misses(&self, port: PortNo, pause: Duration) {
        let _ = (port, pause);
    }

    /// A kernel device occupies the UDP port of VXLAN: datagrams that the programs do not forward
    /// must be redirected to sockets at another port. Returns whether the programs can do that.
    /// `None`: the sockets are at the tunnel's own port. Called before these sockets are opened.
    fn redirect_vxlan(&self, ports: Option<PortRedirect>) -> bool {
        ports.is_none()
    }

    /// The uplink's state has changed; `None`: it is gone. Frames can be sent while it is
    /// [usable](Link::is_usable).
    fn uplink(&self, link: Option<&Link>);

    /// The state of a port's device has changed; `None`: it is gone or about to be removed. Frames
    /// can be sent to the guest while it is [usable](Link::is_usable). Of a veth pair
    /// ([`Link::has_peer_in_other_netns`]) it is the outer end. The same state may be reported
    /// repeatedly.
    fn port(&self, port: PortNo, link: Option<&Link>);

    /// The next hops of these end points have changed. All end points that are no multicast groups
    /// are reported. After a change of the underlay, those with a known next hop are reported
    /// again. An end point that was never reported is unresolved.
    fn resolved(&self, changes: &[ResolvedNextHop]);

    /// The routes to these end points now lead over the uplink, or no longer. Reported only while
    /// the underlay [checks the reverse path](datapath::config::Underlay::checks_reverse_path).
    /// After a change of the underlay, those with such a route are reported again. An end point
    /// that was never reported has none.
    fn routed(&self, changes: &[RouteChange]);

    /// The path MTUs toward these end points have changed. They are reported again after each
    /// change of the underlay.
    fn path_mtus(&self, changes: &[PathMtu]);
}

/// The name of the outer end of the veth pair that replaces a TAP; `None` for other devices.
pub fn veth_name(device: &DeviceConfig) -> Option<String> {
    let DeviceConfig::Tap { name, guest, .. } = device else { return None };
    Some(veth::outer_name(guest.as_ref().map(|guest| guest.netns.as_str()), name))
}

/// Undoes the changes of a process to a device that weft has not made: promiscuous mode, and its
/// membership in a bridge for headroom.
///
/// # Errors
/// The device is gone, or the kernel refuses.
pub fn release_interface(netlink: &Netlink, index: Ifindex) -> Result<(), Error> {
    if netlink.link_by_index(index)?.promiscuous {
        netlink.set_promiscuous(index, false)?;
    }
    veth_headroom::withdraw(netlink, index)
}

/// Removes the devices that a killed process has left in this thread's network namespace. Returns
/// the number of veth pairs removed.
///
/// # Errors
/// The kernel refuses to list or delete a device.
pub fn remove_orphaned_devices() -> Result<usize, Error> {
    let netlink = Netlink::open()?;
    vxlan_gro::remove(&netlink)?;
    veth_headroom::release_all(&netlink)?;
    veth::remove_others(&[])
}

/// True if the kernel joins the segments that arrive in VXLAN before programs in this thread's
/// network namespace see them, provided that the receive offload (GRO) of the NIC is on.
///
/// # Errors
/// The netlink request fails.
pub fn is_vxlan_gro_enabled() -> Result<bool, Error> {
    vxlan_gro::is_up(&Netlink::open()?)
}
