//! Observing a datapath: copies of packets that were dropped, and of the frames of a port.
//!
//! Each observer receives its copies through a bounded queue of its own. A copy that does not fit
//! is skipped and counted, so forwarding never waits for an observer.

use crate::megaflow::MegaflowId;
use flow::{DropReason, PortNo};
use std::ops::Deref;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

/// Copies that may wait for an observer.
pub const QUEUE_LEN: usize = 4096;

/// A copy of a packet that was dropped; the packet itself may have been one of several copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DroppedPacket {
    /// When it was dropped.
    pub time: SystemTime,
    /// Its ingress port.
    pub port: PortNo,
    /// Why it was dropped.
    pub reason: DropReason,
    /// The megaflow whose actions dropped it; `None` if it was dropped before a lookup, or if the
    /// decision was not cached.
    pub megaflow: Option<MegaflowId>,
    /// Length of the whole frame in bytes.
    pub len: usize,
    /// The first bytes of the frame, as they were when it was dropped.
    pub head: Vec<u8>,
    /// Packets skipped since the previous copy because the observer was slow.
    pub missed: u64,
}

/// The direction in which a frame passes a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CaptureDirection {
    /// From the guest to the switch.
    FromGuest,
    /// From the switch to the guest.
    ToGuest,
}

/// A copy of a frame that passed a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedFrame {
    /// When it passed.
    pub time: SystemTime,
    /// The direction.
    pub direction: CaptureDirection,
    /// Length of the whole frame in bytes.
    pub len: usize,
    /// The first bytes of the frame. With checksum offload, the checksum in them is partial.
    pub bytes: Vec<u8>,
    /// Frames skipped since the previous copy because the observer was slow.
    pub missed: u64,
}

/// Makes a queue of [`QUEUE_LEN`] copies: the datapath's end and the observer's end.
pub fn channel<T>() -> (WatchSender<T>, WatchReceiver<T>) {
    let (queue, copies) = sync_channel(QUEUE_LEN);
    let alive = Arc::new(());
    let sender = WatchSender { queue, missed: 0, watcher: Arc::downgrade(&alive) };
    (sender, WatchReceiver { copies, alive })
}

/// The observer's end of a queue. Dropping it ends the observation.
#[derive(Debug)]
pub struct WatchReceiver<T> {
    copies: Receiver<T>,
    /// Lets the sender see whether the observer still exists without sending anything.
    alive: Arc<()>,
}

impl<T> WatchReceiver<T> {
    /// A reference that can be upgraded as long as the observer exists.
    pub fn token(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }
}

impl<T> Deref for WatchReceiver<T> {
    type Target = Receiver<T>;

    fn deref(&self) -> &Receiver<T> {
        &self.copies
    }
}

/// The datapath's end of a queue, with a count of the copies that did not fit.
#[derive(Clone, Debug)]
pub struct WatchSender<T> {
    queue: SyncSender<T>,
    missed: u64,
    watcher: Weak<()>,
}

impl<T> WatchSender<T> {
    /// True while the observer exists.
    pub fn is_watched(&self) -> bool {
        self.watcher.strong_count() > 0
    }

    /// Sends the copy that `make` builds from the number of copies skipped so far. Returns false
    /// when the observer is gone.
    pub fn send(&mut self, make: impl FnOnce(u64) -> T) -> bool {
        match self.queue.try_send(make(self.missed)) {
            Ok(()) => self.missed = 0,
            Err(TrySendError::Full(_)) => self.missed += 1,
            Err(TrySendError::Disconnected(_)) => return false,
        }
        true
    }
}
