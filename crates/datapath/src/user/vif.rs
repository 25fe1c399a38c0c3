//! A VIF: the device of one guest, its state and its counters.

use super::config::{DeviceConfig, GuestConfig, PortConfig};
use crate::stats::{PortStats, drops};
use flow::{DropCounters, DropReason, Traffic};
use netdev::Error;
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::Filter;
use netdev::io_error::{IoError, IoResult};
use netdev::tap::{Tap, TapOptions};
use netdev::{Dad, Netlink, Netns, SizeLimits};
use packet::PacketBuf;
use std::os::fd::{AsFd, BorrowedFd};

/// The device of a VIF, open.
#[derive(Debug)]
pub(super) enum Device {
    Tap(Tap),
    Interface(PacketSocket),
}

impl Device {
    fn open(config: &DeviceConfig) -> Result<Self, Error> {
        match config {
            DeviceConfig::Tap { name, guest: None, mtu } => {
                let tap = Tap::open(name, TapOptions::default())?;
                let netlink = Netlink::open()?;
                let index = netlink.index_of(name)?;
                netlink.set_mtu(index, u32::from(*mtu))?;
                netlink.set_up(index)?;
                Ok(Self::Tap(tap))
            }
            DeviceConfig::Tap { name, guest: Some(guest), mtu } => {
                Ok(Self::Tap(open_in_guest(name, guest, *mtu)?))
            }
            DeviceConfig::Interface { name } => {
                let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
                Ok(Self::Interface(PacketSocket::open_name(name, &Filter::everything(), options)?))
            }
        }
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

/// Opens a TAP, moves it into the guest's namespace and gives it what the guest needs to speak.
///
/// It is made here and not there, because the descriptor keeps the namespace alive in which it was opened: a guest's
/// namespace that is deleted has to be gone, and the TAP with it.
fn open_in_guest(name: &str, guest: &GuestConfig, mtu: u16) -> Result<Tap, Error> {
    let netns = Netns::open(&guest.netns)?;
    let tap = Tap::open(PASSING_NAME, TapOptions::default())?;
    let passing_name = tap.name()?;
    let netlink = Netlink::open()?;
    netlink.move_to(netlink.index_of(&passing_name)?, &netns)?;
    netns.run_in(|| {
        let netlink = Netlink::open()?;
        let index = netlink.index_of(&passing_name)?;
        netlink.set_name(index, name)?;
        netlink.set_mac(index, guest.mac)?;
        netlink.set_mtu(index, u32::from(mtu))?;
        // One UDP_SEGMENT train carries a super-packet of this size with the tunnel's headers; a refusal (an old kernel)
        // costs a second send for the largest ones and nothing else.
        let limits =
            SizeLimits { gro: None, gro_ipv4: None, ..SizeLimits::all(GUEST_GSO_MAX_BYTES) };
        let _ = netlink.set_size_limits(index, limits);
        for &prefix in &guest.addresses {
            netlink.add_address(index, prefix, Dad::Skip)?;
        }
        netlink.set_up(index)
    })??;
    Ok(tap)
}

/// What a TAP is called until it is where it belongs; the kernel puts a free number for `%d`.
const PASSING_NAME: &str = "weft%d";
const GUEST_GSO_MAX_BYTES: u32 = 61_440;

/// One VIF.
#[derive(Debug)]
pub(super) struct Vif {
    pub(super) config: PortConfig,
    device: Option<Device>,
    /// Why there is no device; said once, not at every retry.
    trouble: Option<String>,
    pub(super) rx: Traffic,
    pub(super) tx: Traffic,
    pub(super) drops: DropCounters,
}

impl Vif {
    pub(super) fn new(config: PortConfig) -> Self {
        Self {
            config,
            device: None,
            trouble: None,
            rx: Traffic::default(),
            tx: Traffic::default(),
            drops: DropCounters::default(),
        }
    }

    pub(super) fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Opens the device if it is not open. True when it has just become so.
    pub(super) fn try_open(&mut self) -> bool {
        if self.device.is_some() {
            return false;
        }
        match Device::open(&self.config.device) {
            Ok(device) => {
                tracing::info!(port = %self.config.name, device = %self.config.device, "port is up");
                self.device = Some(device);
                self.trouble = None;
                true
            }
            Err(error) => {
                let text = error.to_string();
                if self.trouble.as_ref() != Some(&text) {
                    tracing::warn!(port = %self.config.name, "port is down, will retry: {text}");
                    self.trouble = Some(text);
                }
                false
            }
        }
    }

    /// Closes the device, because it is gone.
    pub(super) fn close(&mut self, why: &IoError) {
        if self.device.take().is_some() {
            tracing::warn!(port = %self.config.name, device = %self.config.device, "port has vanished: {why}");
            self.trouble = Some(why.to_string());
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
                (Some(_), _) => "up".to_owned(),
                (None, Some(trouble)) => format!("down: {trouble}"),
                (None, None) => "down".to_owned(),
            },
            rx: self.rx.into(),
            tx: self.tx.into(),
            drops: drops(&self.drops),
        }
    }
}
