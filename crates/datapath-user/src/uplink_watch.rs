//! The link state of the uplink, and whether its MTU suffices.

use datapath::config::{Config, Underlay};
use netdev::{Ifindex, Link};

/// The state of the uplink's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UplinkState {
    Up,
    Down,
    /// The device does not exist.
    Gone,
}

impl UplinkState {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Gone => "gone",
        }
    }
}

/// The least MTU of the uplink in bytes, for tunnels and for tagged frames; 0 if there are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MtuNeeded {
    tunnels: u16,
    tags: u16,
}

impl MtuNeeded {
    fn of(underlay: &Underlay) -> Self {
        let tunnels = underlay.tunnels.iter().map(|tunnel| tunnel.spec.path_mtu_bytes).max();
        Self { tunnels: tunnels.unwrap_or(0), tags: underlay.tagged_mtu_bytes }
    }

    /// A warning if `mtu` is too low, with the remedy.
    fn low_mtu_warning(self, mtu: u32) -> Option<String> {
        let Self { tunnels, tags } = self;
        let needed = tunnels.max(tags);
        if mtu >= u32::from(needed) {
            return None;
        }
        let instead = if mtu < u32::from(tunnels) {
            format!("or write underlay_mtu = {mtu} on all hosts")
        } else {
            let bytes = u32::from(tags) - mtu;
            format!("or give the logical switches linked by tags an MTU that is {bytes} bytes less")
        };
        Some(format!(
            "the uplink's MTU is {mtu} bytes, and the network file needs {needed}: long packets \
             will be lost; set it to {needed}, {instead}"
        ))
    }
}

/// The uplink, as the control thread sees it.
#[derive(Debug)]
pub(super) struct UplinkWatch {
    pub(super) device: String,
    pub(super) ifindex: Ifindex,
    state: UplinkState,
    /// The least MTU for the longest packets of tunnels and the longest tagged frames.
    mtu_needed: MtuNeeded,
    /// The MTU that was found too low. The warning is repeated only after the device was gone.
    mtu_too_low: Option<u32>,
}

impl UplinkWatch {
    /// Starts in state `Up`, until the first call of [`observe`](Self::observe).
    pub(super) fn new(config: &Config, ifindex: Ifindex) -> Self {
        Self {
            device: config.uplink.clone(),
            ifindex,
            state: UplinkState::Up,
            mtu_needed: MtuNeeded::of(&config.underlay),
            mtu_too_low: None,
        }
    }

    /// Sets the least MTU for another underlay.
    pub(super) fn require(&mut self, underlay: &Underlay) {
        let needed = MtuNeeded::of(underlay);
        if needed != self.mtu_needed {
            (self.mtu_needed, self.mtu_too_low) = (needed, None);
        }
    }

    pub(super) fn state(&self) -> UplinkState {
        self.state
    }

    /// Updates the state; `None` means that the device is gone.
    pub(super) fn observe(&mut self, link: Option<&Link>) {
        let state = match link {
            Some(link) if link.up && link.running => UplinkState::Up,
            Some(_) => UplinkState::Down,
            None => UplinkState::Gone,
        };
        if state != self.state {
            self.state = state;
            let text = match state {
                UplinkState::Up => "up again",
                UplinkState::Down => "down",
                UplinkState::Gone => "gone; will retry until it is back",
            };
            messages::log!(UPLINK_CHANGED, uplink = %self.device, "uplink is {text}");
        }
        let too_low =
            link.and_then(|link| Some((link.mtu, self.mtu_needed.low_mtu_warning(link.mtu)?)));
        let mtu = too_low.as_ref().map(|(mtu, _)| *mtu);
        if let Some((_, text)) = too_low
            && mtu != self.mtu_too_low
        {
            messages::log!(UPLINK_MTU_TOO_LOW, uplink = %self.device, "{text}");
        }
        self.mtu_too_low = mtu;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_is_found_too_low_when_tunnels_or_tags_need_more() {
        let needed = MtuNeeded { tunnels: 9000, tags: 1504 };
        assert_eq!(needed.low_mtu_warning(9000), None);
        let text = needed.low_mtu_warning(1500).unwrap();
        assert!(text.contains("set it to 9000, or write underlay_mtu = 1500"), "{text}");
        let text = MtuNeeded { tunnels: 0, tags: 1504 }.low_mtu_warning(1500).unwrap();
        assert!(text.contains("set it to 1504") && text.contains("4 bytes less"), "{text}");
        assert_eq!(MtuNeeded { tunnels: 0, tags: 0 }.low_mtu_warning(68), None);
    }
}
