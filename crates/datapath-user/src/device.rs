//! The device of one guest: opening it, and moving frames through it.

use super::fast_path::veth::{self, GuestEnd};
use datapath::config::{DeviceConfig, GuestConfig};
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
    /// One that is in this namespace. What is to be done when it is closed is done with the last of its queues.
    Socket {
        socket: PacketSocket,
        _closing: Arc<Closing>,
    },
}

/// What is to be done when the device of a port is closed.
#[derive(Debug)]
pub(super) enum Closing {
    /// Somebody else's.
    Nothing,
    /// Somebody else's, which was made to receive frames to any address.
    Promiscuous(Ifindex),
    /// A TAP whose other end a virtual machine has open, or will.
    VmTap(String),
    /// The end of a pair that was made.
    Pair(Ifindex),
}

impl Drop for Closing {
    fn drop(&mut self) {
        let netlink = |work: &dyn Fn(&Netlink) -> Result<(), Error>| {
            Netlink::open().and_then(|netlink| work(&netlink))
        };
        let closed = match self {
            Self::Nothing => Ok(()),
            Self::Promiscuous(index) => netlink(&|here| here.set_promiscuous(*index, false)),
            // Unless the machine has it open: then that outlives its switch, and the next one finds it.
            Self::VmTap(name) => Tap::delete_persistent(name).map(drop),
            Self::Pair(index) => veth::close(*index),
        };
        // It may be gone already.
        if let Err(error) = closed {
            tracing::debug!("{error}");
        }
    }
}

/// How devices are opened.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    /// Workers receive frames from them and send frames to them.
    Receive,
    /// Workers only send: programs receive the frames and punt them by a TAP.
    SendOnly {
        /// UDP super-packets can be punted, too.
        udp_segmentation: bool,
    },
}

/// With the link of a device that is in this namespace.
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
    /// one that is in this namespace comes with it.
    pub(super) fn open(
        config: &DeviceConfig,
        queues: usize,
        may_make: bool,
        mode: Mode,
    ) -> Result<Option<Opened>, Refusal> {
        match (config, mode) {
            (DeviceConfig::Interface { name, .. }, mode) => {
                let link = Netlink::open()?.link(name).map_err(Refusal::Absent)?;
                let devices = match mode {
                    Mode::Receive => Self::receiving(link.index, queues, Closing::Nothing)?,
                    Mode::SendOnly { .. } => Self::promiscuous(link.index, queues)?,
                };
                Ok(Some((devices, Some(link))))
            }
            (DeviceConfig::Vm { name, mtu }, mode) => {
                Ok(may_make.then(|| open_for_vm(name, *mtu, queues, mode)).transpose()?)
            }
            (DeviceConfig::Tap { name, guest, mtu }, mode) => {
                let netns = guest.as_ref().map(|guest| Netns::open(&guest.netns));
                let netns = netns.transpose().map_err(Refusal::Absent)?;
                if !may_make {
                    return Ok(None);
                }
                let guest = netns.as_ref().zip(guest.as_ref());
                if let Mode::SendOnly { udp_segmentation } = mode {
                    let inner = GuestEnd { name, guest, mtu: *mtu, udp_segmentation };
                    return Ok(Some(open_pair(&inner, queues)?));
                }
                veth::remove(guest.map(|(_, guest)| guest.netns.as_str()), name)?;
                let taps = match guest {
                    Some((netns, guest)) => open_in_guest(name, netns, guest, *mtu, queues),
                    None => open_here(name, *mtu, queues),
                };
                Ok(Some((taps?.into_iter().map(Self::Tap).collect(), None)))
            }
        }
    }

    fn receiving(index: Ifindex, queues: usize, closing: Closing) -> Result<Vec<Self>, Error> {
        let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
        let sockets = PacketSocket::open_group(index, &Filter::everything(), options, queues)?;
        Ok(Self::sockets(sockets, closing))
    }

    fn sending(index: Ifindex, queues: usize, closing: Closing) -> Result<Vec<Self>, Error> {
        let sockets = (0..queues).map(|_| PacketSocket::open_sender(index));
        Ok(Self::sockets(sockets.collect::<Result<_, _>>()?, closing))
    }

    /// Not by what a socket asks for: programs receive even when nobody has a socket any more.
    fn promiscuous(index: Ifindex, queues: usize) -> Result<Vec<Self>, Error> {
        Netlink::open()?.set_promiscuous(index, true)?;
        Self::sending(index, queues, Closing::Promiscuous(index))
    }

    fn sockets(sockets: Vec<PacketSocket>, closing: Closing) -> Vec<Self> {
        let closing = Arc::new(closing);
        let device = |socket| Self::Socket { socket, _closing: Arc::clone(&closing) };
        sockets.into_iter().map(device).collect()
    }

    /// The link to follow; `None` for a TAP, whose other end is the guest's affair.
    pub(super) fn ifindex(&self) -> Option<Ifindex> {
        match self {
            Self::Tap(_) => None,
            Self::Socket { socket, .. } => Some(socket.ifindex()),
        }
    }

    /// True where the kernel may have to cut super-packets on their way; a TAP hands them over whole.
    pub(super) fn is_segmented_by_kernel(&self) -> bool {
        !matches!(self, Self::Tap(_))
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tap(tap) => tap.as_fd(),
            Self::Socket { socket, .. } => socket.as_fd(),
        }
    }

    pub(super) fn recv(&self, packet: &mut PacketBuf) -> IoResult<Option<()>> {
        match self {
            Self::Tap(tap) => tap.recv(packet),
            Self::Socket { socket, .. } => {
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
            Self::Socket { socket, .. } => socket.send(packet),
        }
    }
}

/// Makes a TAP, or finds that of a virtual machine that runs already. The link comes with it: it is without carrier as long as
/// no machine has it open.
fn open_for_vm(name: &str, mtu: u16, queues: usize, mode: Mode) -> Result<Opened, Error> {
    Tap::create_persistent(name)?;
    // From here on, what goes wrong removes it.
    let closing = Closing::VmTap(name.to_owned());
    let netlink = Netlink::open()?;
    let index = netlink.index_of(name)?;
    let devices = match mode {
        Mode::Receive => Device::receiving(index, queues, closing)?,
        Mode::SendOnly { .. } => Device::sending(index, queues, closing)?,
    };
    netdev::silence_host_stack(name)?;
    netlink.set_mtu(index, u32::from(mtu))?;
    netlink.set_up(index)?;
    Ok((devices, Some(netlink.link_by_index(index)?)))
}

fn open_pair(inner: &GuestEnd<'_>, queues: usize) -> Result<Opened, Error> {
    let link = veth::open(inner)?;
    Ok((Device::sending(link.index, queues, Closing::Pair(link.index))?, Some(link)))
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
    refuse_taken(&inside, name, Some(netns))?;
    let taps = Tap::open_queues(PASSING_NAME, queues)?;
    let passing_name = taps.iter().map(Tap::name).collect::<Result<Vec<_>, _>>()?.swap_remove(0);
    let here = Netlink::open()?;
    here.move_to(here.index_of(&passing_name)?, netns)?;
    let index = inside.index_of(&passing_name)?;
    inside.set_name(index, name)?;
    inside.set_mac(index, guest.mac)?;
    inside.set_mtu(index, u32::from(mtu))?;
    configure_guest(&inside, index, netns, guest)?;
    Ok(taps)
}

/// Gives a device in a guest's namespace what the guest needs to speak, beside its name and address.
pub(super) fn configure_guest(
    inside: &Netlink,
    index: Ifindex,
    netns: &Netns,
    guest: &GuestConfig,
) -> Result<(), Error> {
    // One UDP_SEGMENT train carries a super-packet of this size with the tunnel's headers; a refusal (an old kernel)
    // costs a second send for the largest ones and nothing else.
    let limits = SizeLimits { gro: None, gro_ipv4: None, ..SizeLimits::all(GUEST_GSO_MAX_BYTES) };
    let _ = inside.set_size_limits(index, limits);
    for &prefix in &guest.addresses {
        match inside.add_address(index, prefix, Dad::Skip) {
            // IPv6 can be disabled in a guest; what it has of IPv4 works all the same.
            Err(error) if prefix.addr().is_ipv6() => {
                tracing::warn!(%netns, "the guest is without an address: {error}");
            }
            result => result?,
        }
    }
    inside.set_up(index)
}

/// Looks before a device is made that could not get its name: making, moving and removing one makes every guest wait.
pub(super) fn refuse_taken(
    inside: &Netlink,
    name: &str,
    netns: Option<&Netns>,
) -> Result<(), Error> {
    let place = netns.map_or_else(|| "this namespace".to_owned(), |it| format!("namespace {it}"));
    match inside.index_of(name) {
        Ok(_) => Err(Error::invalid(
            format!("create device {name} in {place}"),
            "it has a link of that name already: remove it, or give one of the two another name",
        )),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// What a TAP is called until it is where it belongs; the kernel puts a free number for `%d`.
const PASSING_NAME: &str = "weft%d";
const GUEST_GSO_MAX_BYTES: u32 = 61_440;
