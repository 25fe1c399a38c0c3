//! A port in the control thread: its configuration, and whether and why its device is open or not.

use super::device::{Device, DeviceMode, OpenError, OpenedDevice};
use super::fast_path::veth_name;
use datapath::config::{DeviceConfig, PortConfig};
use netdev::{Error, Ifindex, Link};
use std::mem::{Discriminant, discriminant};

const LINK_DOWN: &str = "link is down";
/// The longest time between two attempts: 10 s.
const BACKOFF_MAX_TICKS: u32 = 20;

/// Exponential backoff of attempts to make a device: 1, 2, 4 ... ticks.
#[derive(Default, Debug)]
struct Backoff {
    length_ticks: u32,
    left_ticks: u32,
}

impl Backoff {
    /// True if another attempt is due.
    fn tick(&mut self) -> bool {
        self.left_ticks = self.left_ticks.saturating_sub(1);
        self.left_ticks == 0
    }

    fn lengthen(&mut self) {
        self.length_ticks = (self.length_ticks * 2).clamp(1, BACKOFF_MAX_TICKS);
        self.left_ticks = self.length_ticks;
    }
}

/// Why a port has no device.
#[derive(Debug)]
struct DeviceFailure {
    text: String,
    /// Equal if the same failure repeats. The text may differ, e.g. in an interface index.
    kind: Option<(Discriminant<Error>, Option<i32>)>,
}

/// One port.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) config: PortConfig,
    state: DeviceState,
    backoff: Backoff,
}

#[derive(Debug)]
enum DeviceState {
    /// The workers have the device.
    Open {
        /// The link whose state is followed; `None` for a TAP.
        ifindex: Option<Ifindex>,
        /// False while that link is down.
        link_up: bool,
    },
    /// There is no device.
    Closed(Option<DeviceFailure>),
}

impl Port {
    pub(super) fn new(config: PortConfig) -> Self {
        Self { config, state: DeviceState::Closed(None), backoff: Backoff::default() }
    }

    /// Opens the device with `queues` queues if it is not open. Called at every tick.
    pub(super) fn try_open(&mut self, queues: usize, mode: DeviceMode) -> Option<OpenedDevice> {
        if matches!(self.state, DeviceState::Open { .. }) {
            return None;
        }
        match Device::open(&self.config.device, queues, self.backoff.tick(), mode) {
            Ok(Some((devices, link))) => {
                self.backoff = Backoff::default();
                let link_up = link.as_ref().is_none_or(Link::is_usable);
                self.state = DeviceState::Open {
                    ifindex: devices.first().and_then(Device::ifindex),
                    link_up,
                };
                match link_up {
                    true => self.log_up(),
                    // The other end of a new device is often not up yet.
                    false => {
                        let PortConfig { name, device, .. } = &self.config;
                        messages::log!(
                            PORT_WAITS, port = %name, %device, "port is down: {LINK_DOWN}"
                        );
                    }
                }
                self.check_mtu(link.as_ref());
                return Some((devices, link));
            }
            Ok(None) => {}
            Err(OpenError::Absent(error)) => {
                self.backoff = Backoff::default();
                self.refused(&error);
            }
            Err(OpenError::Failed(error)) => {
                self.backoff.lengthen();
                self.refused(&error);
            }
        }
        None
    }

    fn refused(&mut self, error: &Error) {
        let text = error.to_string();
        let kind = Some((discriminant(error), error.errno()));
        let is_new_failure = match &self.state {
            DeviceState::Closed(Some(failure)) => failure.kind != kind,
            _ => true,
        };
        if is_new_failure {
            messages::log!(
                PORT_NOT_OPENED,
                port = %self.config.name,
                "port is down, will retry: {text}"
            );
        }
        self.state = DeviceState::Closed(Some(DeviceFailure { text, kind }));
    }

    /// The name of the outer end of the veth pair that replaces a TAP with eBPF programs.
    pub(super) fn veth_name(&self) -> Option<String> {
        veth_name(&self.config.device)
    }

    /// The link whose state is followed, while the device is open.
    pub(super) fn ifindex(&self) -> Option<Ifindex> {
        match self.state {
            DeviceState::Open { ifindex, .. } => ifindex,
            DeviceState::Closed(_) => None,
        }
    }

    /// Updates the state from the link of [`Self::ifindex`]. True if it has changed.
    pub(super) fn observe(&mut self, link: &Link) -> bool {
        let up = link.is_usable();
        let DeviceState::Open { link_up, .. } = &mut self.state else { return false };
        if *link_up == up {
            return false;
        }
        *link_up = up;
        match up {
            true => self.log_up(),
            false => {
                let PortConfig { name, device, .. } = &self.config;
                messages::log!(PORT_DOWN, port = %name, %device, "port is down: {LINK_DOWN}");
            }
        }
        true
    }

    /// Records that the device is gone. False if that was known.
    pub(super) fn closed(&mut self, why: String) -> bool {
        if matches!(self.state, DeviceState::Closed(_)) {
            return false;
        }
        let PortConfig { name, device, .. } = &self.config;
        messages::log!(
            PORT_VANISHED,
            port = %name, %device,
            "port has vanished, will retry: {why}"
        );
        self.state = DeviceState::Closed(Some(DeviceFailure { text: why, kind: None }));
        true
    }

    /// Warns if the device's MTU differs from that of its logical switch.
    fn check_mtu(&self, link: Option<&Link>) {
        let DeviceConfig::Interface { mtu: Some(mtu), .. } = self.config.device else { return };
        if let Some(link) = link.filter(|link| link.mtu != u32::from(mtu)) {
            messages::log!(
                PORT_MTU_DIFFERS,
                port = %self.config.name,
                "the MTU of {} is {} bytes, that of its logical switch {} is {mtu}: long \
                 packets will be lost; set both ends of the device to {mtu}",
                link.name, link.mtu, self.config.logical_switch
            );
        }
    }

    fn log_up(&self) {
        let PortConfig { name, device, .. } = &self.config;
        messages::log!(PORT_UP, port = %name, %device, "port is up");
    }

    /// `up`, or why it is not.
    pub(super) fn state(&self) -> String {
        match &self.state {
            DeviceState::Open { link_up: true, .. } => "up".to_owned(),
            DeviceState::Open { .. } => format!("down: {LINK_DOWN}"),
            DeviceState::Closed(Some(failure)) => format!("down: {}", failure.text),
            DeviceState::Closed(None) => "down".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_limit_when_attempts_fail() {
        let mut backoff = Backoff::default();
        let lengths = [1, 2, 4, 8, 16, 20, 20].map(|_: u32| {
            backoff.lengthen();
            1 + std::iter::repeat_with(|| backoff.tick()).take_while(|over| !over).count() as u32
        });
        assert_eq!(lengths, [1, 2, 4, 8, 16, 20, 20]);
        assert!(Backoff::default().tick(), "the first attempt is immediate");
    }
}
