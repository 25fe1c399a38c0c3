//! The device of a local port: opens it, and receives and sends frames.

use super::counter_delta::CounterDelta;
use super::fast_path::veth::{self, GuestEnd};
use super::fast_path::{release_interface, veth_headroom};
use datapath::config::{DeviceConfig, GuestConfig};
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use netdev::io_error::IoResult;
use netdev::tap::Tap;
use netdev::{Dad, Error, Ifindex, Link, Netlink, Netns, SizeLimits};
use packet::PacketBuf;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// An open device, as one worker uses it.
#[derive(Debug)]
pub(super) enum Device {
    Tap(Tap),
    /// A packet socket on a device in this namespace. The cleanup runs when the last worker has
    /// closed its socket.
    Socket {
        socket: PacketSocket,
        /// The guest's MTU in bytes.
        mtu: u16,
        /// The frames that the socket has lost; `None` if it only sends.
        overruns: Option<CounterDelta>,
        _cleanup: Arc<CloseAction>,
    },
}

/// The action to take when the device of a port is closed.
#[derive(Debug)]
pub(super) enum CloseAction {
    /// Nothing: the device existed before.
    Nothing,
    /// Undoes the changes to a device that existed before.
    Interface(Ifindex),
    /// Removes a TAP, unless a virtual machine has it open.
    VmTap(String),
    /// Removes a veth pair, given by its outer end.
    Pair(Ifindex),
}

impl Drop for CloseAction {
    fn drop(&mut self) {
        let netlink = |work: &dyn Fn(&Netlink) -> Result<(), Error>| {
            Netlink::open().and_then(|netlink| work(&netlink))
        };
        let closed = match self {
            Self::Nothing => Ok(()),
            Self::Interface(index) => netlink(&|here| release_interface(here, *index)),
            // If the machine has it open, the TAP stays, and the next process finds it.
            Self::VmTap(name) => Tap::delete_persistent(name).map(drop),
            Self::Pair(index) => veth::close(*index),
        };
        // It may be gone already.
        if let Err(error) = closed {
            messages::log!(DEVICE_NOT_CLOSED, "{error}");
        }
    }
}

/// How devices are opened.
#[derive(Clone, Copy, Debug)]
pub(super) enum DeviceMode {
    /// Workers receive frames from them and send frames to them.
    Receive,
    /// Workers only send: programs receive the frames and punt them by a TAP.
    SendOnly {
        /// UDP super-packets can be punted, too.
        udp_segmentation: bool,
    },
}

/// The device, one for each worker, and its link if it is in this namespace.
pub(super) type OpenedDevice = (Vec<Device>, Option<Link>);

/// Why a device cannot be opened, which decides when to try again.
pub(super) enum OpenError {
    /// The device or the guest's namespace does not exist yet. Checking that is cheap, so it is
    /// retried at every tick.
    Absent(Error),
    /// The kernel refused to make or configure the device.
    Failed(Error),
}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Device {
    /// Opens the device with one queue for each worker. All frames of a flow reach the same worker.
    /// `None` if it would have to be made and `may_make` is false.
    pub(super) fn open(
        config: &DeviceConfig,
        queues: usize,
        may_make: bool,
        mode: DeviceMode,
    ) -> Result<Option<OpenedDevice>, OpenError> {
        match (config, mode) {
            (DeviceConfig::Interface { name, mtu }, mode) => {
                let netlink = Netlink::open()?;
                let link = netlink.link(name).map_err(OpenError::Absent)?;
                let mtu = mtu.unwrap_or(u16::try_from(link.mtu).unwrap_or(u16::MAX));
                let devices = match mode {
                    DeviceMode::Receive => {
                        // An earlier process may have been killed before it did this.
                        veth_headroom::withdraw(&netlink, link.index)?;
                        Self::receiving(link.index, mtu, queues, CloseAction::Nothing)?
                    }
                    DeviceMode::SendOnly { .. } => Self::promiscuous(&link, mtu, queues)?,
                };
                Ok(Some((devices, Some(link))))
            }
            (DeviceConfig::Vm { name, mtu, multi_queue }, mode) => {
                let tap = VmTap { name, mtu: *mtu, multi_queue: *multi_queue };
                Ok(may_make.then(|| open_for_vm(&tap, queues, mode)).transpose()?)
            }
            (DeviceConfig::Tap { name, guest, mtu }, mode) => {
                let netns = guest.as_ref().map(|guest| Netns::open(&guest.netns));
                let netns = netns.transpose().map_err(OpenError::Absent)?;
                if !may_make {
                    return Ok(None);
                }
                let guest = netns.as_ref().zip(guest.as_ref());
                if let DeviceMode::SendOnly { udp_segmentation } = mode {
                    let inner = GuestEnd { name, guest, mtu: *mtu, udp_segmentation };
                    return Ok(Some(open_veth(&inner, queues)?));
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

    fn receiving(
        index: Ifindex,
        mtu: u16,
        queues: usize,
        cleanup: CloseAction,
    ) -> Result<Vec<Self>, Error> {
        let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
        let sockets =
            PacketSocket::open_group(index, &SocketFilter::everything(), options, queues)?;
        Ok(Self::sockets(sockets, mtu, true, cleanup))
    }

    fn sending(
        index: Ifindex,
        mtu: u16,
        queues: usize,
        cleanup: CloseAction,
    ) -> Result<Vec<Self>, Error> {
        let sockets = (0..queues).map(|_| PacketSocket::open_sender(index));
        Ok(Self::sockets(sockets.collect::<Result<_, _>>()?, mtu, false, cleanup))
    }

    /// Sets promiscuous mode on the device rather than on a socket, because programs receive even
    /// when the process and its sockets are gone.
    fn promiscuous(link: &Link, mtu: u16, queues: usize) -> Result<Vec<Self>, Error> {
        let (netlink, index) = (Netlink::open()?, link.index);
        netlink.set_promiscuous(index, true)?;
        // From here on, dropping `cleanup` undoes both changes after an error.
        let cleanup = CloseAction::Interface(index);
        veth_headroom::provide_to_interface(&netlink, link);
        Self::sending(index, mtu, queues, cleanup)
    }

    fn sockets(
        sockets: Vec<PacketSocket>,
        mtu: u16,
        may_receive: bool,
        cleanup: CloseAction,
    ) -> Vec<Self> {
        let cleanup = Arc::new(cleanup);
        let device = |socket| Self::Socket {
            socket,
            mtu,
            overruns: may_receive.then(CounterDelta::default),
            _cleanup: Arc::clone(&cleanup),
        };
        sockets.into_iter().map(device).collect()
    }

    /// The frames that were lost since the last call because no worker received them in time.
    pub(super) fn new_overruns(&mut self) -> u64 {
        match self {
            Self::Socket { socket, overruns: Some(overruns), .. } => {
                socket.stats().map_or(0, |stats| overruns.advance_to(stats.dropped))
            }
            // A TAP's driver counts them, in the guest's namespace.
            Self::Socket { overruns: None, .. } | Self::Tap(_) => 0,
        }
    }

    /// The link whose state is followed; `None` for a TAP, which is in the guest's namespace.
    pub(super) fn ifindex(&self) -> Option<Ifindex> {
        match self {
            Self::Tap(_) => None,
            Self::Socket { socket, .. } => Some(socket.ifindex()),
        }
    }

    /// True if the kernel may segment super-packets behind this device. A TAP delivers them whole.
    pub(super) fn is_segmented_by_kernel(&self) -> bool {
        !matches!(self, Self::Tap(_))
    }

    /// Makes a super-packet of a TCP packet that was too long for the device. Returns false if that
    /// is not possible.
    ///
    /// A virtual end point on this machine may send a super-packet through a tunnel. The UDP socket
    /// of the tunnel does not report the segment size, and a packet that the underlay carries in
    /// one piece may be longer than the MTU of the guest.
    #[cold]
    pub(super) fn limit_segments(&self, packet: &mut PacketBuf) -> bool {
        let Self::Socket { mtu, .. } = self else { return false };
        packet.linearize();
        let Ok(at) = packet.located() else { return false };
        let max_frame_len = at.l3 + usize::from(*mtu);
        packet::limit_segments(packet, max_frame_len).is_ok() && packet.offload.gso.is_some()
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

/// The TAP of a virtual machine, as [`DeviceConfig::Vm`] describes it.
struct VmTap<'a> {
    name: &'a str,
    mtu: u16,
    multi_queue: bool,
}

/// Makes a TAP, or finds that of a running virtual machine. Its link has no carrier until a machine
/// opens it.
///
/// Only the machine opens queues of the TAP, `queues` are packet sockets on its interface.
fn open_for_vm(tap: &VmTap<'_>, queues: usize, mode: DeviceMode) -> Result<OpenedDevice, Error> {
    let &VmTap { name, mtu, multi_queue } = tap;
    Tap::create_persistent(name, multi_queue)?;
    // From here on, an error removes the TAP.
    let cleanup = CloseAction::VmTap(name.to_owned());
    let netlink = Netlink::open()?;
    let index = netlink.index_of(name)?;
    let devices = match mode {
        DeviceMode::Receive => Device::receiving(index, mtu, queues, cleanup)?,
        DeviceMode::SendOnly { .. } => Device::sending(index, mtu, queues, cleanup)?,
    };
    netdev::silence_host_stack(name)?;
    netlink.set_mtu(index, u32::from(mtu))?;
    netlink.set_up(index)?;
    Ok((devices, Some(netlink.link_by_index(index)?)))
}

fn open_veth(inner: &GuestEnd<'_>, queues: usize) -> Result<OpenedDevice, Error> {
    let link = veth::open(inner)?;
    let devices = Device::sending(link.index, inner.mtu, queues, CloseAction::Pair(link.index))?;
    Ok((devices, Some(link)))
}

fn open_here(name: &str, mtu: u16, queues: usize) -> Result<Vec<Tap>, Error> {
    let taps = Tap::open_queues(name, queues)?;
    let netlink = Netlink::open()?;
    let index = netlink.index_of(name)?;
    netlink.set_mtu(index, u32::from(mtu))?;
    netlink.set_up(index)?;
    Ok(taps)
}

/// Opens a TAP, moves it into the guest's namespace and configures it there.
///
/// It is opened in this namespace, because the file descriptor keeps the namespace in which it was
/// opened alive. A guest's namespace must vanish with its TAP when it is deleted.
fn open_in_guest(
    name: &str,
    netns: &Netns,
    guest: &GuestConfig,
    mtu: u16,
    queues: usize,
) -> Result<Vec<Tap>, Error> {
    let inside = netns.netlink()?;
    check_name_is_free(&inside, name, Some(netns))?;
    let taps = Tap::open_queues(TEMPORARY_NAME, queues)?;
    let temporary_name = taps.iter().map(Tap::name).collect::<Result<Vec<_>, _>>()?.swap_remove(0);
    let here = Netlink::open()?;
    here.move_to(here.index_of(&temporary_name)?, netns)?;
    let index = inside.index_of(&temporary_name)?;
    inside.set_name(index, name)?;
    inside.set_mac(index, guest.mac)?;
    inside.set_mtu(index, u32::from(mtu))?;
    configure_guest(&inside, index, netns, guest)?;
    Ok(taps)
}

/// Sets the size limits and IP addresses of a device in a guest's namespace, and brings it up.
pub(super) fn configure_guest(
    inside: &Netlink,
    index: Ifindex,
    netns: &Netns,
    guest: &GuestConfig,
) -> Result<(), Error> {
    // A super-packet of this size and the tunnel's headers fit one UDP batch. An old kernel may
    // refuse the limit; then the largest super-packets take two batches.
    let limits = SizeLimits { gro: None, gro_ipv4: None, ..SizeLimits::all(GUEST_GSO_MAX_BYTES) };
    let _ = inside.set_size_limits(index, limits);
    for &prefix in &guest.addresses {
        match inside.add_address(index, prefix, Dad::Skip) {
            // IPv6 may be disabled in the guest; IPv4 works nevertheless.
            Err(error) if prefix.addr().is_ipv6() => {
                messages::log!(
                    GUEST_ADDRESS_NOT_SET,
                    %netns,
                    "cannot add the IPv6 address {prefix} of a guest: {error}"
                );
            }
            result => result?,
        }
    }
    inside.set_up(index)
}

/// Fails if a device name is in use. Checked before a device is made, because making, moving and
/// removing one holds the kernel's RTNL lock, for which all guests wait.
pub(super) fn check_name_is_free(
    inside: &Netlink,
    name: &str,
    netns: Option<&Netns>,
) -> Result<(), Error> {
    let namespace =
        netns.map_or_else(|| "this namespace".to_owned(), |it| format!("namespace {it}"));
    match inside.index_of(name) {
        Ok(_) => Err(Error::invalid(
            format!("create device {name} in {namespace}"),
            "it has a link of that name already: remove one of the two, or rename it",
        )),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// The name of a TAP until it is in the guest's namespace; the kernel replaces `%d` by a free
/// number.
const TEMPORARY_NAME: &str = "weft%d";
const GUEST_GSO_MAX_BYTES: u32 = 61_440;

#[cfg(test)]
mod tests {
    use super::*;
    use netdev::{LinkKind, LinkSpec};
    use testkit::host::TestHost;

    #[test]
    fn frames_are_counted_when_the_socket_has_no_room_for_them() {
        testkit::require_root!();
        /// More bytes than a socket keeps.
        const FRAMES: u32 = 40_000;
        let host = TestHost::new("overrun");
        host.sysctl("net/ipv6/conf/default/disable_ipv6", "1").expect("it can be set");
        let peer = LinkSpec::new("far").up();
        let near = host.netlink().create(&LinkSpec::new("near").up(), &LinkKind::Veth { peer });
        let near = near.expect("a veth pair");
        let far = host.netlink().index_of("far").expect("its other end");
        let open = || Device::receiving(near, 1500, 1, CloseAction::Nothing);
        let mut device = host.run(open).expect("a socket").pop().expect("one for the worker");
        let sender = host.run(|| PacketSocket::open_sender(far)).expect("a socket");
        let frame = PacketBuf::from_bytes(&[0xff; 1500]);
        for _ in 0..FRAMES {
            // A busy kernel may have no room for some.
            let _ = sender.send(&frame);
        }
        let mut overruns = device.new_overruns();
        assert!(overruns > 0);
        let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        let mut received = 0;
        while let Ok(Some(())) = device.recv(&mut packet) {
            received += 1;
        }
        overruns += device.new_overruns();
        let Device::Socket { socket, .. } = &device else { panic!("a packet socket") };
        assert_eq!(socket.stats().expect("its counters").frames, received + overruns);
        assert_eq!(device.new_overruns(), 0, "they are counted once");
    }
}
