//! The device of one guest: opening it, and moving frames through it.

use super::config::{DeviceConfig, GuestConfig};
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::Filter;
use netdev::io_error::IoResult;
use netdev::tap::Tap;
use netdev::{Dad, Error, Ifindex, Link, Netlink, Netns, SizeLimits};
use packet::PacketBuf;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The device of a VIF, open.
#[derive(Debug)]
pub(super) enum Device {
    Tap(Tap),
    Interface(PacketSocket),
    /// The interface goes with the last of its queues.
    Vm {
        socket: PacketSocket,
        _owner: Arc<VmTap>,
    },
}

/// A TAP whose other end a virtual machine has open, or will: frames go through the interface itself.
#[derive(Debug)]
pub(super) struct VmTap(String);

/// The interface goes too, unless the machine has it open: then that outlives its switch, and the next one finds it.
impl Drop for VmTap {
    fn drop(&mut self) {
        if let Err(error) = Tap::release(&self.0) {
            tracing::debug!("{error}");
        }
    }
}

/// With the link of a device that is in this namespace and was not made here.
pub(super) type Opened = (Vec<Device>, Option<Link>);

/// Why there is no device, and when it is worth trying again.
pub(super) enum Refusal {
    /// What it needs is not there yet. Looking for it is cheap, and may be done at every tick.
    Absent(Error),
    /// The kernel was asked to make something, and did not.
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Device {
    /// Opens the device for so many workers, each its queue: all frames of a flow are received by one of them. The link of
    /// one that is in this namespace and not made by us comes with it.
    pub(super) fn open(
        config: &DeviceConfig,
        queues: usize,
        may_make: bool,
    ) -> Result<Option<Opened>, Refusal> {
        let taps = match config {
            DeviceConfig::Interface { name, .. } => {
                let link = Netlink::open()?.link(name).map_err(Refusal::Absent)?;
                let sockets = open_sockets(link.index, queues)?;
                let devices = sockets.into_iter().map(Self::Interface).collect();
                return Ok(Some((devices, Some(link))));
            }
            DeviceConfig::Vm { name, mtu } => {
                return Ok(may_make.then(|| open_for_vm(name, *mtu, queues)).transpose()?);
            }
            DeviceConfig::Tap { name, guest: Some(guest), mtu } => {
                let netns = Netns::open(&guest.netns).map_err(Refusal::Absent)?;
                may_make.then(|| open_in_guest(name, &netns, guest, *mtu, queues))
            }
            DeviceConfig::Tap { name, guest: None, mtu } => {
                may_make.then(|| open_here(name, *mtu, queues))
            }
        };
        let taps = taps.transpose()?;
        Ok(taps.map(|taps| (taps.into_iter().map(Self::Tap).collect(), None)))
    }

    /// The link to follow; `None` for a TAP, whose other end is the guest's affair.
    pub(super) fn ifindex(&self) -> Option<Ifindex> {
        match self {
            Self::Tap(_) => None,
            Self::Interface(socket) | Self::Vm { socket, .. } => Some(socket.ifindex()),
        }
    }

    /// True where the kernel may have to cut super-packets on their way; a TAP hands them over whole.
    pub(super) fn is_cut_by_kernel(&self) -> bool {
        !matches!(self, Self::Tap(_))
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tap(tap) => tap.as_fd(),
            Self::Interface(socket) | Self::Vm { socket, .. } => socket.as_fd(),
        }
    }

    pub(super) fn recv(&self, packet: &mut PacketBuf) -> IoResult<Option<()>> {
        match self {
            Self::Tap(tap) => tap.recv(packet),
            Self::Interface(socket) | Self::Vm { socket, .. } => {
                let Some(received) = socket.recv(packet)? else { return Ok(None) };
                if let Some(tag) = received.vlan {
                    super::restore_tag(packet, tag);
                }
                Ok(Some(()))
            }
        }
    }

    pub(super) fn send(&self, packet: &PacketBuf) -> IoResult<()> {
        match self {
            Self::Tap(tap) => tap.send(packet),
            Self::Interface(socket) | Self::Vm { socket, .. } => socket.send(packet),
        }
    }
}

fn open_sockets(index: Ifindex, count: usize) -> Result<Vec<PacketSocket>, Error> {
    let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    PacketSocket::open_group(index, &Filter::everything(), options, count)
}

/// Makes a TAP, or finds that of a virtual machine that runs already. The link comes with it: it is without carrier as long as
/// no machine has it open.
fn open_for_vm(name: &str, mtu: u16, queues: usize) -> Result<Opened, Error> {
    Tap::provide(name)?;
    let netlink = Netlink::open()?;
    let index = netlink.index_of(name)?;
    // From here on, what goes wrong removes it.
    let owner = Arc::new(VmTap(name.to_owned()));
    let sockets = open_sockets(index, queues)?;
    netdev::keep_quiet(name)?;
    netlink.set_mtu(index, u32::from(mtu))?;
    netlink.set_up(index)?;
    let link = netlink.link_by_index(index)?;
    let devices =
        sockets.into_iter().map(|socket| Device::Vm { socket, _owner: Arc::clone(&owner) });
    Ok((devices.collect(), Some(link)))
}

fn open_here(name: &str, mtu: u16, queues: usize) -> Result<Vec<Tap>, Error> {
    let taps = Tap::open_queues(name, queues)?;
    let netlink = Netlink::open()?;
    let index = netlink.index_of(name)?;
    netlink.set_mtu(index, u32::from(mtu))?;
    netlink.set_up(index)?;
    Ok(taps)
}

/// Opens a TAP, moves it into the guest's namespace and gives it what the guest needs to speak.
///
/// It is made here and not there, because the descriptor keeps the namespace alive in which it was opened: a guest's
/// namespace that is deleted has to be gone, and the TAP with it.
fn open_in_guest(
    name: &str,
    netns: &Netns,
    guest: &GuestConfig,
    mtu: u16,
    queues: usize,
) -> Result<Vec<Tap>, Error> {
    let inside = netns.netlink()?;
    refuse_taken(&inside, name, netns)?;
    let taps = Tap::open_queues(PASSING_NAME, queues)?;
    let passing_name = taps.iter().map(Tap::name).collect::<Result<Vec<_>, _>>()?.swap_remove(0);
    let here = Netlink::open()?;
    here.move_to(here.index_of(&passing_name)?, netns)?;
    let index = inside.index_of(&passing_name)?;
    inside.set_name(index, name)?;
    inside.set_mac(index, guest.mac)?;
    inside.set_mtu(index, u32::from(mtu))?;
    // One UDP_SEGMENT train carries a super-packet of this size with the tunnel's headers; a refusal (an old kernel)
    // costs a second send for the largest ones and nothing else.
    let limits = SizeLimits { gro: None, gro_ipv4: None, ..SizeLimits::all(GUEST_GSO_MAX_BYTES) };
    let _ = inside.set_size_limits(index, limits);
    for &prefix in &guest.addresses {
        match inside.add_address(index, prefix, Dad::Skip) {
            // IPv6 can be disabled in a guest; what it has of IPv4 works all the same.
            Err(error) if prefix.address().is_ipv6() => {
                tracing::warn!(%netns, "the guest is without an address: {error}");
            }
            result => result?,
        }
    }
    inside.set_up(index)?;
    Ok(taps)
}

/// Looks before a TAP is made that could not get its name: making, moving and removing one makes every guest wait.
fn refuse_taken(inside: &Netlink, name: &str, netns: &Netns) -> Result<(), Error> {
    match inside.index_of(name) {
        Ok(_) => Err(Error::invalid(
            format!("create TAP {name} in namespace {netns}"),
            "it has a link of that name already: remove it, or give one of the two another name",
        )),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// What a TAP is called until it is where it belongs; the kernel puts a free number for `%d`.
const PASSING_NAME: &str = "weft%d";
const GUEST_GSO_MAX_BYTES: u32 = 61_440;
