//! Watching a datapath at work: packets that are not delivered, and the frames of a port.
//!
//! A watcher gets copies through a queue of its own with a limit. What does not fit is not copied: forwarding never waits
//! for who looks on. A watcher that is gone costs nothing.

use crate::megaflow::MegaflowId;
use flow::{DropReason, PortNo};
use packet::PacketBuf;
use std::ops::Deref;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

/// Bytes kept of a packet that is not delivered: all headers of most.
const DROP_SNAP_BYTES: usize = 192;
/// Copies that wait for a watcher.
const QUEUE: usize = 4096;

/// A packet that was not delivered, or one copy of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DroppedPacket {
    /// When.
    pub time: SystemTime,
    /// By which port it came in.
    pub port: PortNo,
    /// Why it was not delivered.
    pub reason: DropReason,
    /// The megaflow that decided; `None` where no decision was needed, or none was cached.
    pub megaflow: Option<MegaflowId>,
    /// Bytes of the whole frame.
    pub len: usize,
    /// How it begins, as it was when it was dropped.
    pub head: Vec<u8>,
    /// Packets since the last one that were not copied because the watcher is slow.
    pub missed: u64,
}

/// Which way a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From the guest.
    FromGuest,
    /// To the guest.
    ToGuest,
}

/// A frame of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedFrame {
    /// When.
    pub time: SystemTime,
    /// Which way.
    pub direction: Direction,
    /// Bytes of the whole frame.
    pub len: usize,
    /// The frame, cut to what the watcher wants of it. Its checksum is as the offloads leave it.
    pub bytes: Vec<u8>,
    /// Frames since the last one that were not copied because the watcher is slow.
    pub missed: u64,
}

/// What is asked of the workers.
#[derive(Clone, Debug)]
pub(crate) enum Watch {
    Drops(Sender<DroppedPacket>),
    Frames { port: PortNo, snap_bytes: usize, frames: Sender<CapturedFrame> },
}

impl Watch {
    pub(crate) fn drops() -> (Self, Watching<DroppedPacket>) {
        let (sender, watching) = queue();
        (Self::Drops(sender), watching)
    }

    pub(crate) fn frames(port: PortNo, snap_bytes: usize) -> (Self, Watching<CapturedFrame>) {
        let (frames, watching) = queue();
        (Self::Frames { port, snap_bytes, frames }, watching)
    }

    fn is_watched(&self) -> bool {
        match self {
            Self::Drops(drops) => drops.is_watched(),
            Self::Frames { frames, .. } => frames.is_watched(),
        }
    }
}

fn queue<T>() -> (Sender<T>, Watching<T>) {
    let (queue, copies) = sync_channel(QUEUE);
    let here = Arc::new(());
    (Sender { queue, missed: 0, watcher: Arc::downgrade(&here) }, Watching { copies, _here: here })
}

/// What a watcher gets: its copies, through a queue. Dropping it ends the watching.
#[derive(Debug)]
pub struct Watching<T> {
    copies: Receiver<T>,
    /// Says that the watcher is still there, which a queue says only to who puts something into it.
    _here: Arc<()>,
}

impl<T> Watching<T> {
    /// Refers to something as long as somebody has this.
    pub fn token(&self) -> Weak<()> {
        Arc::downgrade(&self._here)
    }
}

impl<T> Deref for Watching<T> {
    type Target = Receiver<T>;

    fn deref(&self) -> &Receiver<T> {
        &self.copies
    }
}

/// The sending end of a queue, with a count of what did not fit.
#[derive(Clone, Debug)]
pub(crate) struct Sender<T> {
    queue: SyncSender<T>,
    missed: u64,
    watcher: Weak<()>,
}

impl<T> Sender<T> {
    fn is_watched(&self) -> bool {
        self.watcher.strong_count() > 0
    }

    /// Sends what `make` makes of the number of those missed. False when nobody listens any more.
    fn send(&mut self, make: impl FnOnce(u64) -> T) -> bool {
        match self.queue.try_send(make(self.missed)) {
            Ok(()) => self.missed = 0,
            Err(TrySendError::Full(_)) => self.missed += 1,
            Err(TrySendError::Disconnected(_)) => return false,
        }
        true
    }
}

/// The watchers that a worker has.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Vec<Watch>);

impl Watchers {
    pub(crate) fn add(&mut self, watch: Watch) {
        self.0.push(watch);
    }

    /// Forgets watchers that are gone, also those for whom there was nothing to see since.
    pub(crate) fn tidy(&mut self) {
        self.0.retain(Watch::is_watched);
    }

    /// True on most days.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cold]
    pub(crate) fn dropped(
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
    pub(crate) fn frame(&mut self, of: PortNo, direction: Direction, packet: &PacketBuf) {
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

    #[test]
    fn frames_that_do_not_fit_are_counted_and_who_is_gone_costs_nothing() {
        let (watch, frames) = Watch::frames(PortNo(3), 20);
        let mut watchers = Watchers::default();
        watchers.add(watch);
        let packet = PacketBuf::from_bytes(&[7; 60]);
        watchers.frame(PortNo(4), Direction::ToGuest, &packet);
        for _ in 0..QUEUE + 5 {
            watchers.frame(PortNo(3), Direction::FromGuest, &packet);
        }
        let first = frames.try_recv().unwrap();
        assert_eq!((first.len, first.bytes.len(), first.missed), (60, 20, 0));
        assert_eq!(frames.try_iter().count(), QUEUE - 1);
        watchers.frame(PortNo(3), Direction::FromGuest, &packet);
        assert_eq!(frames.try_recv().unwrap().missed, 5);
        drop(frames);
        watchers.frame(PortNo(3), Direction::FromGuest, &packet);
        assert!(watchers.is_empty());
    }

    #[test]
    fn watchers_that_are_gone_are_forgotten_when_there_is_nothing_to_see() {
        let (gone, left) = (Watch::frames(PortNo(3), 20), Watch::drops());
        let mut watchers = Watchers::default();
        watchers.add(gone.0);
        watchers.add(left.0);
        drop(gone.1);
        watchers.tidy();
        assert_eq!(watchers.0.len(), 1);
        drop(left.1);
        watchers.tidy();
        assert!(watchers.is_empty());
    }

    #[test]
    fn drops_are_told_with_their_reason_and_how_the_packet_began() {
        let (watch, drops) = Watch::drops();
        let mut watchers = Watchers::default();
        watchers.add(watch);
        let packet = PacketBuf::from_bytes(&[1; 300]);
        let id = Some(MegaflowId(9));
        watchers.dropped(PortNo(1), DropReason::FlowDrop, id, &packet);
        let told = drops.try_recv().unwrap();
        assert_eq!((told.port, told.reason, told.megaflow), (PortNo(1), DropReason::FlowDrop, id));
        assert_eq!((told.len, told.head.len()), (300, DROP_SNAP_BYTES));
    }
}
