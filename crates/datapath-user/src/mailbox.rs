//! How other threads speak to a worker: requests in a bounded queue and a descriptor that wakes it.

use super::device::Device;
use super::fast_path::{PathMtu, Resolved};
use super::receive::Receiver;
use super::transmit;
use super::uplink::UplinkSockets;
use super::watchers::Watch;
use datapath::Cursor;
use datapath::DatapathError;
use datapath::config::Underlay;
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use datapath::stats::{EndpointStats, MegaflowStats};
use datapath::upcall::Answer;
use flow::{Action, DropCounters, EndpointError, PortNo, Traffic};
use netdev::epoll::Waker;
use netdev::tap::Tap;
use packet::PacketBuf;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

/// What can be asked of a worker.
#[derive(Debug)]
pub(super) enum Request {
    /// A port has a device now.
    Plug(PortNo, Device),
    /// Its device is gone.
    Unplug(PortNo),
    /// There is no such port any more. The answer comes when its device is closed.
    RemovePort(PortNo, Sender<()>),
    /// Programs hand frames over by this queue from now on.
    PuntQueue(Tap),
    /// So many frames were lost before they could be read.
    Overrun(u64),
    /// Other sockets of the uplink.
    Uplink(UplinkSockets),
    /// The uplink is gone: everything that was bound to it is to be closed when this is answered.
    CloseUnderlay(Sender<()>),
    /// One more tunnel: where it is received, and what it is sent from if that is new.
    Tunnel(Box<Receiver>, Option<transmit::Sender>),
    /// Other end points, and only some of the tunnels that there are.
    Underlay(Arc<Underlay>, Sender<Result<(), EndpointError>>),
    /// The way to end points has changed.
    Resolved(Arc<[Resolved]>),
    /// What the paths to end points carry has changed.
    PathMtus(Arc<[PathMtu]>),
    Put(Arc<[Megaflow]>),
    Delete(Arc<[MegaflowId]>, Sender<Vec<(MegaflowId, Usage)>>),
    Get(Arc<[MegaflowId]>, Sender<Vec<Megaflow>>),
    Dump(Cursor, usize, Sender<Dumped<Megaflow>>),
    Usage(Cursor, usize, Sender<Dumped<MegaflowId>>),
    Answers(Vec<Answer>),
    Execute(PortNo, PacketBuf, Arc<[Action]>),
    Report(Sender<Report>),
    Watch(Watch),
    Stop,
}

/// Megaflows, or their numbers, with what they have counted, and where the next ones are.
pub(super) type Dumped<T> = (Vec<(T, Usage)>, Option<Cursor>);

/// What a worker counts.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) ports: Vec<(PortNo, PortCounters)>,
    pub(super) uplink: PortCounters,
    pub(super) endpoints: Vec<EndpointStats>,
    pub(super) megaflows: MegaflowStats,
}

/// What a port has counted.
#[derive(Clone, Debug, Default)]
pub(super) struct PortCounters {
    pub(super) rx: Traffic,
    pub(super) tx: Traffic,
    pub(super) drops: DropCounters,
}

impl AddAssign for PortCounters {
    fn add_assign(&mut self, other: Self) {
        self.rx += other.rx;
        self.tx += other.tx;
        other.drops.nonzero().for_each(|(reason, packets)| self.drops.add(reason, packets));
    }
}

/// A handle to a worker, to be cloned at will.
#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    sender: SyncSender<Request>,
    waker: Arc<Waker>,
}

const QUEUE: usize = 64;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

impl Mailbox {
    pub(super) fn new() -> netdev::Result<(Self, mpsc::Receiver<Request>, Arc<Waker>)> {
        let waker = Arc::new(Waker::new()?);
        let (sender, receiver) = sync_channel(QUEUE);
        Ok((Self { sender, waker: Arc::clone(&waker) }, receiver, waker))
    }

    /// Asks for something; waits for room in the queue.
    pub(super) fn send(&self, request: Request) -> Result<(), DatapathError> {
        if let Err(error) = self.sender.try_send(request) {
            match error {
                // The worker has been woken for what is in the queue.
                TrySendError::Full(request) => {
                    self.sender.send(request).map_err(|_| DatapathError::Stopped)?;
                }
                TrySendError::Disconnected(_) => return Err(DatapathError::Stopped),
            }
        }
        self.waker.wake();
        Ok(())
    }

    /// Asks for something that is answered.
    pub(super) fn ask<T>(
        &self,
        request: impl FnOnce(Sender<T>) -> Request,
    ) -> Result<T, DatapathError> {
        let (sender, receiver) = channel();
        self.send(request(sender))?;
        receiver.recv_timeout(ANSWER_TIMEOUT).map_err(|_| DatapathError::Busy)
    }
}
