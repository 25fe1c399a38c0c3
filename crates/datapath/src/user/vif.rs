//! A VIF: the device of one guest, its state and its counters.

use super::config::{DeviceConfig, GuestConfig, PortConfig};
use crate::stats::{PortStats, drops};
use flow::{DropCounters, DropReason, Traffic};
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::Filter;
use netdev::io_error::{IoError, IoResult};
use netdev::tap::Tap;
use netdev::{Dad, Error, Ifindex, Link, Netlink, Netns, SizeLimits};
use packet::PacketBuf;
use std::mem::{Discriminant, discriminant};
use std::os::fd::{AsFd, BorrowedFd};

/// The device of a VIF, open.
#[derive(Debug)]
pub(super) enum Device {
    Tap(Tap),
    Interface(PacketSocket),
}

type Opened = (Device, Option<Link>);

/// Why there is no device, and when it is worth trying again.
enum Refusal {
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
    /// Opens the device; the link of one that is in this namespace and not made by us comes with it.
    fn open(config: &DeviceConfig, may_make: bool) -> Result<Option<Opened>, Refusal> {
        let tap = match config {
            DeviceConfig::Interface { name, .. } => {
                let link = Netlink::open()?.link(name).map_err(Refusal::Absent)?;
                let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
                let socket = PacketSocket::open(link.index, &Filter::everything(), options)?;
                return Ok(Some((Self::Interface(socket), Some(link))));
            }
            DeviceConfig::Tap { name, guest: Some(guest), mtu } => {
                let netns = Netns::open(&guest.netns).map_err(Refusal::Absent)?;
                may_make.then(|| open_in_guest(name, &netns, guest, *mtu))
            }
            DeviceConfig::Tap { name, guest: None, mtu } => may_make.then(|| open_here(name, *mtu)),
        };
        Ok(tap.transpose()?.map(|tap| (Self::Tap(tap), None)))
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tap(tap) => tap.as_fd(),
            Self::Interface(socket) => socket.as_fd(),
        }
    }

    pub(super) fn recv(&self, packet: &mut PacketBuf) -> IoResult<Option<()>> {
        match self {
            Self::Tap(tap) => tap.recv(packet),
            Self::Interface(socket) => {
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
            Self::Interface(socket) => socket.send(packet),
        }
    }
}

fn open_here(name: &str, mtu: u16) -> Result<Tap, Error> {
    let tap = Tap::open(name)?;
    let netlink = Netlink::open()?;
    let index = netlink.index_of(name)?;
    netlink.set_mtu(index, u32::from(mtu))?;
    netlink.set_up(index)?;
    Ok(tap)
}

/// Opens a TAP, moves it into the guest's namespace and gives it what the guest needs to speak.
///
/// It is made here and not there, because the descriptor keeps the namespace alive in which it was opened: a guest's
/// namespace that is deleted has to be gone, and the TAP with it.
fn open_in_guest(name: &str, netns: &Netns, guest: &GuestConfig, mtu: u16) -> Result<Tap, Error> {
    let inside = netns.netlink()?;
    refuse_taken(&inside, name, netns)?;
    let tap = Tap::open(PASSING_NAME)?;
    let passing_name = tap.name()?;
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
    Ok(tap)
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
const LINK_DOWN: &str = "link is down";
/// The longest pause between two attempts to make a device: 10 s.
const PAUSE_MAX_TICKS: u32 = 20;

/// When a device may be made again: after 1, 2, 4 ... ticks.
#[derive(Default, Debug)]
struct Pause {
    length_ticks: u32,
    left_ticks: u32,
}

impl Pause {
    /// True when the pause is over.
    fn tick(&mut self) -> bool {
        self.left_ticks = self.left_ticks.saturating_sub(1);
        self.left_ticks == 0
    }

    fn lengthen(&mut self) {
        self.length_ticks = (self.length_ticks * 2).clamp(1, PAUSE_MAX_TICKS);
        self.left_ticks = self.length_ticks;
    }
}

/// Why there is no device.
#[derive(Debug)]
struct Trouble {
    text: String,
    /// What is the same when the same happens again; the text may have the number of a link that is new each time.
    kind: Option<(Discriminant<Error>, Option<i32>)>,
}

/// One VIF.
#[derive(Debug)]
pub(super) struct Vif {
    pub(super) config: PortConfig,
    device: Option<Device>,
    /// False while the link of an open device is known to be down; the guest's end of a TAP is the guest's affair.
    link_up: bool,
    /// Said once, not at every retry.
    trouble: Option<Trouble>,
    pause: Pause,
    pub(super) rx: Traffic,
    pub(super) tx: Traffic,
    pub(super) drops: DropCounters,
}

impl Vif {
    pub(super) fn new(config: PortConfig) -> Self {
        Self {
            config,
            device: None,
            link_up: true,
            trouble: None,
            pause: Pause::default(),
            rx: Traffic::default(),
            tx: Traffic::default(),
            drops: DropCounters::default(),
        }
    }

    pub(super) fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Opens the device if it is not open; to be called at every tick. True when it has just become so.
    pub(super) fn try_open(&mut self) -> bool {
        if self.device.is_some() {
            return false;
        }
        match Device::open(&self.config.device, self.pause.tick()) {
            Ok(Some((device, link))) => {
                self.device = Some(device);
                self.trouble = None;
                self.pause = Pause::default();
                self.link_up = link.as_ref().is_none_or(|link| link.up && link.running);
                self.say_link();
                self.compare_mtu(link.as_ref());
                return true;
            }
            Ok(None) => {}
            Err(Refusal::Absent(error)) => {
                self.pause = Pause::default();
                self.refused(&error);
            }
            Err(Refusal::Failed(error)) => {
                self.pause.lengthen();
                self.refused(&error);
            }
        }
        false
    }

    fn refused(&mut self, error: &Error) {
        let text = error.to_string();
        let kind = Some((discriminant(error), error.errno()));
        if self.trouble.as_ref().is_none_or(|trouble| trouble.kind != kind) {
            tracing::warn!(port = %self.config.name, "port is down, will retry: {text}");
        }
        self.trouble = Some(Trouble { text, kind });
    }

    /// The link to follow while the device is open.
    pub(super) fn ifindex(&self) -> Option<Ifindex> {
        match &self.device {
            Some(Device::Interface(socket)) => Some(socket.ifindex()),
            _ => None,
        }
    }

    /// Takes over what the link of [`Self::ifindex`] is like now; there is no such link any more when there is `None`.
    pub(super) fn observe(&mut self, link: Option<&Link>) {
        let Some(link) = link else { return self.close(&IoError::DeviceGone) };
        let up = link.up && link.running;
        if up != self.link_up {
            self.link_up = up;
            self.say_link();
        }
    }

    /// Says so when the guest and its switch cannot be of one mind about the longest packet.
    fn compare_mtu(&self, link: Option<&Link>) {
        let DeviceConfig::Interface { mtu, .. } = self.config.device else { return };
        if let Some(link) = link.filter(|link| link.mtu != u32::from(mtu)) {
            tracing::warn!(
                port = %self.config.name,
                "the MTU of {} is {} bytes, that of its logical switch {} is {mtu}: long packets will be lost unless both \
                 ends of the device have an MTU of {mtu}",
                link.name, link.mtu, self.config.logical_switch
            );
        }
    }

    fn say_link(&self) {
        let PortConfig { name, device, .. } = &self.config;
        if self.link_up {
            tracing::info!(port = %name, %device, "port is up");
        } else {
            tracing::warn!(port = %name, %device, "port is down: {LINK_DOWN}");
        }
    }

    /// Closes the device, because it is gone.
    pub(super) fn close(&mut self, why: &IoError) {
        if self.device.take().is_some() {
            tracing::warn!(port = %self.config.name, device = %self.config.device, "port has vanished: {why}");
            self.trouble = Some(Trouble { text: why.to_string(), kind: None });
        }
    }

    pub(super) fn send(&mut self, packet: &PacketBuf) -> Result<(), DropReason> {
        let device = self.device.as_ref().ok_or(DropReason::PortDown)?;
        match device.send(packet) {
            Ok(()) => {
                self.tx.add(packet.len());
                Ok(())
            }
            Err(error) => {
                let reason = match error {
                    IoError::Full => DropReason::QueueFull,
                    IoError::LinkDown | IoError::DeviceGone => DropReason::PortDown,
                    IoError::TooBig => DropReason::PortTooBig,
                    _ => DropReason::DeviceError,
                };
                if matches!(error, IoError::DeviceGone) {
                    self.close(&error);
                }
                Err(reason)
            }
        }
    }

    pub(super) fn stats(&self) -> PortStats {
        PortStats {
            port: self.config.port.0,
            name: self.config.name.clone(),
            logical_switch: self.config.logical_switch.clone(),
            device: self.config.device.to_string(),
            state: match (&self.device, &self.trouble) {
                (Some(_), _) if self.link_up => "up".to_owned(),
                (Some(_), _) => format!("down: {LINK_DOWN}"),
                (None, Some(trouble)) => format!("down: {}", trouble.text),
                (None, None) => "down".to_owned(),
            },
            rx: self.rx.into(),
            tx: self.tx.into(),
            drops: drops(&self.drops),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit_when_making_keeps_failing() {
        let mut pause = Pause::default();
        let lengths = [1, 2, 4, 8, 16, 20, 20].map(|_: u32| {
            pause.lengthen();
            1 + std::iter::repeat_with(|| pause.tick()).take_while(|over| !over).count() as u32
        });
        assert_eq!(lengths, [1, 2, 4, 8, 16, 20, 20]);
        assert!(Pause::default().tick(), "the first attempt is at once");
    }
}
