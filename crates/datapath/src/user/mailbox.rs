//! How other threads speak to the forwarding thread: requests in a bounded queue and a descriptor that wakes it.

use crate::stats::Snapshot;
use netdev::epoll::Waker;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

/// What can be asked of the forwarding thread.
#[derive(Debug)]
pub enum Request {
    /// Answer with all counters.
    Snapshot(Sender<Snapshot>),
    /// End the loop.
    Stop,
}

/// The forwarding thread did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MailboxError {
    /// The loop has ended.
    #[error("the datapath has stopped")]
    Stopped,
    /// The loop did not answer in time, or its queue is full.
    #[error("the datapath does not answer")]
    Busy,
}

/// A handle to the forwarding thread, to be cloned at will.
#[derive(Clone, Debug)]
pub struct Mailbox {
    sender: SyncSender<Request>,
    waker: Arc<Waker>,
}

const QUEUE: usize = 16;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

impl Mailbox {
    pub(crate) fn new() -> netdev::Result<(Self, Receiver<Request>, Arc<Waker>)> {
        let waker = Arc::new(Waker::new()?);
        let (sender, receiver) = sync_channel(QUEUE);
        Ok((Self { sender, waker: Arc::clone(&waker) }, receiver, waker))
    }

    fn send(&self, request: Request) -> Result<(), MailboxError> {
        self.sender.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => MailboxError::Busy,
            TrySendError::Disconnected(_) => MailboxError::Stopped,
        })?;
        self.waker.wake();
        Ok(())
    }

    /// All counters of this moment.
    ///
    /// # Errors
    /// [`MailboxError`] when the loop has ended or does not answer within two seconds.
    pub fn snapshot(&self) -> Result<Snapshot, MailboxError> {
        let (sender, receiver) = channel();
        self.send(Request::Snapshot(sender))?;
        receiver.recv_timeout(ANSWER_TIMEOUT).map_err(|_| MailboxError::Busy)
    }

    /// Asks the loop to end.
    pub fn stop(&self) {
        // A loop that is gone already has stopped.
        let _ = self.send(Request::Stop);
    }
}
