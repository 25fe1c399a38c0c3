//! The eBPF programs in front of the user datapath, as its control thread sees them.

use super::counter_delta::CounterDelta;
use super::fast_path::{PortRedirect, Punt};
use netdev::{Error, Ifindex, Netlink};

/// The eBPF programs in front of the datapath, and the devices that they need.
#[derive(Debug)]
pub(super) struct PuntingPrograms {
    pub(super) punt: Punt,
    /// The punt TAP while it exists.
    pub(super) tap: Option<Ifindex>,
    /// UDP super-packets can be punted.
    pub(super) udp_segmentation: bool,
    /// Frames that the TAP dropped.
    pub(super) overruns: CounterDelta,
    /// The redirection of VXLAN datagrams, if a kernel device owns their port.
    pub(super) redirect: Option<PortRedirect>,
    /// The uplink, if it was made promiscuous.
    promiscuous: Option<Ifindex>,
}

impl PuntingPrograms {
    pub(super) fn new(punt: Punt) -> Self {
        let (tap, overruns) = (None, CounterDelta::default());
        Self { punt, tap, udp_segmentation: false, overruns, redirect: None, promiscuous: None }
    }

    /// Makes the uplink promiscuous for tagged frames, which carry the guests' MAC addresses. It is
    /// set on the device, so that programs receive these frames even when the process is killed.
    pub(super) fn receive_tags(
        &mut self,
        uplink: Option<Ifindex>,
        netlink: &Netlink,
    ) -> Result<(), Error> {
        if let Some(before) = self.promiscuous.take().filter(|before| Some(*before) != uplink) {
            match netlink.set_promiscuous(before, false) {
                Err(error) if error.is_not_found() => {}
                result => result?,
            }
        }
        if let Some(index) = uplink {
            netlink.set_promiscuous(index, true)?;
            self.promiscuous = Some(index);
        }
        Ok(())
    }
}
