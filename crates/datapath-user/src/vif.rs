//! A local port in a worker: its device and counters.

use super::device::Device;
use super::segment_limit::SegmentLimit;
use super::segmented_send::{SegmentedSender, needs_segmentation};
use flow::{DropCounters, DropReason, PacketCounter};
use netdev::io_error::IoError;
use packet::PacketBuf;

/// One VIF.
#[derive(Debug, Default)]
pub(super) struct Vif {
    /// `None` while the device does not exist.
    pub(super) device: Option<Device>,
    /// The kernel would drop what the device sends, because its link is not running.
    pub(super) is_down: bool,
    pub(super) rx: PacketCounter,
    pub(super) tx: PacketCounter,
    pub(super) drops: DropCounters,
    pub(super) segment_limit: SegmentLimit,
    /// So many of the next turns are measured.
    metered_turns: u8,
    /// Allocated on first use: few guests send super-packets behind unknown tags.
    segmented_sender: Option<Box<SegmentedSender>>,
    /// Why the device is gone, until the worker has reported it to the control thread.
    pub(super) gone: Option<String>,
}

/// So many turns are measured after one in which a frame had no megaflow. A guest that alternates
/// between turns with and without such frames has all of them measured.
const METERED_TURNS: u8 = 64;

impl Vif {
    /// Has the next turns measured.
    pub(super) fn meter_turns(&mut self) {
        self.metered_turns = METERED_TURNS;
    }

    /// Whether this turn is to be measured.
    pub(super) fn take_metered_turn(&mut self) -> bool {
        let is_metered = self.metered_turns > 0;
        self.metered_turns = self.metered_turns.saturating_sub(1);
        is_metered
    }

    /// Closes the device because it is gone.
    pub(super) fn close(&mut self, why: &IoError) {
        if self.device.take().is_some() {
            self.gone = Some(why.to_string());
        }
    }

    pub(super) fn send(&mut self, packet: &mut PacketBuf) -> Result<(), DropReason> {
        let device = self.device.as_ref().filter(|_| !self.is_down);
        let device = device.ok_or(DropReason::PortDown)?;
        let mut sent = if device.is_segmented_by_kernel() && needs_segmentation(packet) {
            self.segmented_sender
                .get_or_insert_default()
                .send(packet, |segment| device.send(segment))?
        } else {
            device.send(packet)
        };
        let may_retry = matches!(sent, Err(IoError::TooBig)) && packet.offload.gso.is_none();
        if may_retry && device.limit_segments(packet) {
            sent = device.send(packet);
        }
        match sent {
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
}
