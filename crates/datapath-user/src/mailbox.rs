//! Requests from other threads to a worker: a bounded queue and an eventfd that wakes the worker.

use super::device::Device;
use super::fast_path::punt_reader::PuntReader;
use super::fast_path::{PathMtu, ResolvedNextHop, RouteChange};
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
use flow::{Action, DropCounters, DropReason, EndpointError, PacketCounter, PortNo};
use netdev::epoll::Waker;
use packet::PacketBuf;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

/// A request to a worker. A `Sender` in it receives the reply.
#[derive(Debug)]
pub(super) enum Request {
    /// Use this device for a port.
    AttachDevice(PortNo, Device),
    /// The link of a port's device is running, or it is not: it is down or has no carrier. Then the
    /// kernel drops what the device sends, and reports no error.
    Link(PortNo, bool),
    /// The link of the uplink is running, or it is not.
    UplinkLink(bool),
    /// Close the device of a port, because it is gone.
    DetachDevice(PortNo),
    /// Remove a port. The reply is its device, which the requester closes: packets cannot wait for
    /// that.
    RemovePort(PortNo, Sender<Option<Device>>),
    /// Receive punted frames from this queue of the TAP.
    PuntQueue(PuntReader),
    /// Count this many punted frames that the TAP dropped.
    Overrun(u64),
    /// Use these sockets of the uplink.
    Uplink(UplinkSockets),
    /// Close all sockets that are bound to the uplink, because it is gone.
    CloseUnderlay(Sender<()>),
    /// Add a tunnel: its receiving socket, and its sending one unless another tunnel shares it.
    Tunnel(Box<Receiver>, Option<transmit::Sender>),
    /// Replace the end points, and remove tunnels that are no longer configured.
    Underlay(Arc<Underlay>, Sender<Result<(), EndpointError>>),
    /// The next hops of end points have changed.
    Resolved(Arc<[ResolvedNextHop]>),
    /// Routes to end points now lead over the uplink, or no longer.
    Routed(Arc<[RouteChange]>),
    /// The path MTUs of end points have changed.
    PathMtus(Arc<[PathMtu]>),
    Put(Arc<[Megaflow]>),
    BeginEpoch,
    Confirm(Arc<[MegaflowId]>),
    WithdrawUnconfirmed(Sender<()>),
    Delete(Arc<[MegaflowId]>, Sender<Vec<(MegaflowId, Usage)>>),
    Get(Arc<[MegaflowId]>, Sender<Vec<Megaflow>>),
    Dump(Cursor, usize, Sender<DumpedPage<Megaflow>>),
    Usage(Cursor, usize, Sender<DumpedPage<MegaflowId>>),
    Answers(Vec<Answer>),
    /// Let routers request every neighbour again.
    ForgetSolicitations,
    Execute(PortNo, PacketBuf, Arc<[Action]>),
    Report(Sender<WorkerCounters>),
    Watch(Watch),
    Stop,
}

/// Megaflows or their numbers with their counters, and where the next portion begins.
pub(super) type DumpedPage<T> = (Vec<(T, Usage)>, Option<Cursor>);

/// The counters of a worker.
#[derive(Debug, Default)]
pub(super) struct WorkerCounters {
    pub(super) ports: Vec<(PortNo, PortReport)>,
    pub(super) uplink: PortCounters,
    pub(super) endpoints: Vec<EndpointStats>,
    pub(super) megaflows: MegaflowStats,
}

/// The counters of a port.
#[derive(Clone, Debug, Default)]
pub(super) struct PortCounters {
    pub(super) rx: PacketCounter,
    pub(super) tx: PacketCounter,
    pub(super) drops: DropCounters,
}

/// The counters of a port without those that are 0. A worker does not forward while it makes a
/// report, and there may be many ports.
#[derive(Clone, Debug, Default)]
pub(super) struct PortReport {
    pub(super) rx: PacketCounter,
    pub(super) tx: PacketCounter,
    pub(super) drops: Vec<(DropReason, u64)>,
}

impl AddAssign for PortCounters {
    fn add_assign(&mut self, other: Self) {
        self.rx += other.rx;
        self.tx += other.tx;
        other.drops.nonzero().for_each(|(reason, packets)| self.drops.add(reason, packets));
    }
}

impl AddAssign<PortReport> for PortCounters {
    fn add_assign(&mut self, other: PortReport) {
        self.rx += other.rx;
        self.tx += other.tx;
        other.drops.into_iter().for_each(|(reason, packets)| self.drops.add(reason, packets));
    }
}

/// A handle by which other threads send requests to a worker.
#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    sender: SyncSender<Request>,
    waker: Arc<Waker>,
}

const QUEUE: usize = 64;
/// How long a request waits for its worker. A busy host can keep a worker from running for seconds,
/// and a reload must not fail for that. Requests to a worker that has ended fail at once.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

impl Mailbox {
    pub(super) fn new() -> netdev::Result<(Self, mpsc::Receiver<Request>, Arc<Waker>)> {
        let waker = Arc::new(Waker::new()?);
        let (sender, receiver) = sync_channel(QUEUE);
        Ok((Self { sender, waker: Arc::clone(&waker) }, receiver, waker))
    }

    /// Sends a request; blocks while the queue is full.
    pub(super) fn send(&self, request: Request) -> Result<(), DatapathError> {
        if let Err(error) = self.sender.try_send(request) {
            match error {
                // The worker is awake, because the queue is not empty.
                TrySendError::Full(request) => {
                    self.sender.send(request).map_err(|_| DatapathError::Stopped)?;
                }
                TrySendError::Disconnected(_) => return Err(DatapathError::Stopped),
            }
        }
        self.waker.wake();
        Ok(())
    }

    /// Sends a request and waits for its reply.
    pub(super) fn ask<T>(
        &self,
        request: impl FnOnce(Sender<T>) -> Request,
    ) -> Result<T, DatapathError> {
        let (sender, receiver) = channel();
        self.send(request(sender))?;
        receiver.recv_timeout(ANSWER_TIMEOUT).map_err(|_| DatapathError::Busy)
    }
}
