//! The observers of one worker, which get copies of dropped packets or of a port's frames.

use datapath::megaflow::MegaflowId;
use datapath::watch::{
    CaptureDirection, CapturedFrame, DroppedPacket, WatchReceiver, WatchSender, channel,
};
use flow::{DropReason, PortNo};
use packet::PacketBuf;
use std::time::SystemTime;

/// Bytes copied of a dropped packet: enough for all headers of most packets.
const DROP_SNAP_BYTES: usize = 192;

/// One observation that a worker serves.
#[derive(Clone, Debug)]
pub(super) enum Watch {
    Drops(WatchSender<DroppedPacket>),
    Frames { port: PortNo, snap_bytes: usize, frames: WatchSender<CapturedFrame> },
}

impl Watch {
    /// Observes all dropped packets.
    pub(super) fn drops() -> (Self, WatchReceiver<DroppedPacket>) {
        let (sender, watching) = channel();
        (Self::Drops(sender), watching)
    }

    /// Observes the first `snap_bytes` bytes of all frames of a port.
    pub(super) fn frames(port: PortNo, snap_bytes: usize) -> (Self, WatchReceiver<CapturedFrame>) {
        let (frames, watching) = channel();
        (Self::Frames { port, snap_bytes, frames }, watching)
    }

    fn is_watched(&self) -> bool {
        match self {
            Self::Drops(drops) => drops.is_watched(),
            Self::Frames { frames, .. } => frames.is_watched(),
        }
    }
}

/// The observations that a worker serves.
#[derive(Debug, Default)]
pub(super) struct Watchers(Vec<Watch>);

impl Watchers {
    pub(super) fn add(&mut self, watch: Watch) {
        self.0.push(watch);
    }

    /// Removes observers that are gone, even if nothing was sent to them since.
    pub(super) fn remove_gone(&mut self) {
        self.0.retain(Watch::is_watched);
    }

    /// True when there is no observer, which is the usual case.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cold]
    pub(super) fn dropped(
        &mut self,
        port: PortNo,
        reason: DropReason,
        megaflow: Option<MegaflowId>,
        packet: &PacketBuf,
    ) {
        self.0.retain_mut(|watch| {
            let Watch::Drops(drops) = watch else { return true };
            drops.send(|missed| DroppedPacket {
                time: SystemTime::now(),
                port,
                reason,
                megaflow,
                len: packet.len(),
                head: first_bytes(packet, DROP_SNAP_BYTES),
                missed,
            })
        });
    }

    #[cold]
    pub(super) fn frame(&mut self, of: PortNo, direction: CaptureDirection, packet: &PacketBuf) {
        self.0.retain_mut(|watch| {
            let Watch::Frames { port, snap_bytes, frames } = watch else { return true };
            *port != of
                || frames.send(|missed| CapturedFrame {
                    time: SystemTime::now(),
                    direction,
                    len: packet.len(),
                    bytes: first_bytes(packet, *snap_bytes),
                    missed,
                })
        });
    }
}

fn first_bytes(packet: &PacketBuf, most: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(packet.len().min(most));
    for piece in packet.pieces() {
        let room = most - bytes.len();
        bytes.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::watch::QUEUE_LEN;

    #[test]
    fn skipped_frames_are_counted_and_a_gone_observer_is_removed() {
        let (watch, frames) = Watch::frames(PortNo(3), 20);
        let mut watchers = Watchers::default();
        watchers.add(watch);
        let packet = PacketBuf::from_bytes(&[7; 60]);
        watchers.frame(PortNo(4), CaptureDirection::ToGuest, &packet);
        for _ in 0..QUEUE_LEN + 5 {
            watchers.frame(PortNo(3), CaptureDirection::FromGuest, &packet);
        }
        let first = frames.try_recv().unwrap();
        assert_eq!((first.len, first.bytes.len(), first.missed), (60, 20, 0));
        assert_eq!(frames.try_iter().count(), QUEUE_LEN - 1);
        watchers.frame(PortNo(3), CaptureDirection::FromGuest, &packet);
        assert_eq!(frames.try_recv().unwrap().missed, 5);
        drop(frames);
        watchers.frame(PortNo(3), CaptureDirection::FromGuest, &packet);
        assert!(watchers.is_empty());
    }

    #[test]
    fn gone_observers_are_removed_without_traffic() {
        let (gone, left) = (Watch::frames(PortNo(3), 20), Watch::drops());
        let mut watchers = Watchers::default();
        watchers.add(gone.0);
        watchers.add(left.0);
        drop(gone.1);
        watchers.remove_gone();
        assert_eq!(watchers.0.len(), 1);
        drop(left.1);
        watchers.remove_gone();
        assert!(watchers.is_empty());
    }

    #[test]
    fn dropped_packets_are_reported_with_reason_and_first_bytes() {
        let (watch, drops) = Watch::drops();
        let mut watchers = Watchers::default();
        watchers.add(watch);
        let packet = PacketBuf::from_bytes(&[1; 300]);
        let id = Some(MegaflowId(9));
        watchers.dropped(PortNo(1), DropReason::FlowDrop, id, &packet);
        let copy = drops.try_recv().unwrap();
        assert_eq!((copy.port, copy.reason, copy.megaflow), (PortNo(1), DropReason::FlowDrop, id));
        assert_eq!((copy.len, copy.head.len()), (300, DROP_SNAP_BYTES));
    }
}
