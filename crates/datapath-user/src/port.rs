//! A port as the control thread knows it: what it is to be, whether its device is open, and why not.

use super::device::{Device, Mode, Opened, Refusal};
use super::fast_path::veth_name;
use datapath::config::{DeviceConfig, PortConfig};
use netdev::{Error, Ifindex, Link};
use std::mem::{Discriminant, discriminant};

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

/// One port.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) config: PortConfig,
    state: State,
    pause: Pause,
}

#[derive(Debug)]
enum State {
    /// A worker has the device.
    Open {
        /// The link to follow, where there is one.
        ifindex: Option<Ifindex>,
        /// False while that link is known to be down.
        link_up: bool,
    },
    /// There is none.
    Closed(Option<Trouble>),
}

impl Port {
    pub(super) fn new(config: PortConfig) -> Self {
        Self { config, state: State::Closed(None), pause: Pause::default() }
    }

    /// Opens the device if it is not open, for so many workers; to be called at every tick.
    pub(super) fn try_open(&mut self, queues: usize, mode: Mode) -> Option<Opened> {
        if matches!(self.state, State::Open { .. }) {
            return None;
        }
        match Device::open(&self.config.device, queues, self.pause.tick(), mode) {
            Ok(Some((devices, link))) => {
                self.pause = Pause::default();
                let link_up = link.as_ref().is_none_or(Link::is_usable);
                self.state =
                    State::Open { ifindex: devices.first().and_then(Device::ifindex), link_up };
                self.say_link(link_up);
                self.compare_mtu(link.as_ref());
                return Some((devices, link));
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
        None
    }

    fn refused(&mut self, error: &Error) {
        let text = error.to_string();
        let kind = Some((discriminant(error), error.errno()));
        let is_news = match &self.state {
            State::Closed(Some(trouble)) => trouble.kind != kind,
            _ => true,
        };
        if is_news {
            tracing::warn!(port = %self.config.name, "port is down, will retry: {text}");
        }
        self.state = State::Closed(Some(Trouble { text, kind }));
    }

    /// The name of the outer end of the veth pair that replaces a TAP behind programs.
    pub(super) fn veth_name(&self) -> Option<String> {
        veth_name(&self.config.device)
    }

    /// The link to follow while the device is open.
    pub(super) fn ifindex(&self) -> Option<Ifindex> {
        match self.state {
            State::Open { ifindex, .. } => ifindex,
            State::Closed(_) => None,
        }
    }

    /// Takes over what the link of [`Self::ifindex`] is like now. That it is gone, whoever has the device finds out.
    pub(super) fn observe(&mut self, link: &Link) {
        let up = link.is_usable();
        if let State::Open { link_up, .. } = &mut self.state
            && *link_up != up
        {
            *link_up = up;
            self.say_link(up);
        }
    }

    /// The device is gone; false when that is known.
    pub(super) fn closed(&mut self, why: String) -> bool {
        if matches!(self.state, State::Closed(_)) {
            return false;
        }
        tracing::warn!(port = %self.config.name, device = %self.config.device, "port has vanished: {why}");
        self.state = State::Closed(Some(Trouble { text: why, kind: None }));
        true
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

    fn say_link(&self, up: bool) {
        let PortConfig { name, device, .. } = &self.config;
        if up {
            tracing::info!(port = %name, %device, "port is up");
        } else {
            tracing::warn!(port = %name, %device, "port is down: {LINK_DOWN}");
        }
    }

    /// `up`, or why it is not.
    pub(super) fn state(&self) -> String {
        match &self.state {
            State::Open { link_up: true, .. } => "up".to_owned(),
            State::Open { .. } => format!("down: {LINK_DOWN}"),
            State::Closed(Some(trouble)) => format!("down: {}", trouble.text),
            State::Closed(None) => "down".to_owned(),
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
