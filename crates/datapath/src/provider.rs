//! [`Datapath`]: the interface between the switch and a datapath provider.

use crate::config::{MAX_PORT, PortConfig, Underlay};
use crate::cpu_meter::PortWork;
use crate::megaflow::{Megaflow, MegaflowId, Usage};
use crate::stats::Snapshot;
use crate::tracker::Tracker;
use crate::upcall::{Answer, Upcall};
use crate::watch::{CapturedFrame, DroppedPacket, WatchReceiver};
#[cfg(doc)]
use flow::DropReason;
use flow::{Action, EndpointId, NamedMeter, PortNo};
use packet::PacketBuf;
use std::sync::Arc;
use std::time::Duration;

/// Why a datapath did not carry out a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatapathError {
    /// Its threads have ended.
    #[error("the datapath has stopped")]
    Stopped,
    /// A forwarding thread did not reply within its time limit.
    #[error("the datapath does not answer")]
    Busy,
    /// Another port has this number.
    #[error("port {0} exists already")]
    PortTaken(PortNo),
    /// The port number is 0, or above the highest that the datapath supports.
    #[error("port {0} is out of range (1 to {MAX_PORT})")]
    PortNumber(PortNo),
    /// A socket or device of the requested underlay cannot be opened.
    #[error("{0}")]
    Underlay(String),
    /// The maps of the eBPF programs cannot be updated. The datapath continues, and the request may
    /// be repeated.
    #[error("cannot update the eBPF maps: {0}")]
    FastPath(String),
}

/// A position within one table of megaflows. Only the table that returned it can interpret it; the
/// default is the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cursor(pub u32);

/// Where a [`Datapath::dump`] continues; the default is the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DumpCursor {
    /// The worker whose megaflows come next.
    pub worker: usize,
    /// The position among that worker's megaflows.
    pub at: Cursor,
}

/// One portion of a dump, and where the next one begins; `None` after the last.
pub type DumpPage<T> = (Vec<T>, Option<DumpCursor>);

/// Moves packets between ports and tunnels.
///
/// A datapath looks each packet up among its megaflows and executes the actions it finds. A packet
/// without a megaflow becomes an upcall.
///
/// # Threads
///
/// Every method may be called from any thread at any time. Only [`Datapath::upcalls`] waits for
/// traffic, and no method delays forwarding. [`Datapath::add_port`] and [`Datapath::set_underlay`]
/// may open devices or sockets. Their callers must be in the network namespace in which the
/// datapath was made.
///
/// # Order
///
/// - Requests of one thread are carried out in order.
/// - Packets of one flow that arrive by one port leave in order. A packet that went to the switch
///   may be overtaken by packets that arrive after its megaflow was installed. Each [`Answer`]
///   installs its megaflow before its packet is sent.
/// - After [`Datapath::delete`] has returned, no packet is executed by the deleted megaflows.
///
/// # Megaflows
///
/// If two megaflows match the same packet, they must have the same effect on it: which of them is
/// used is not specified. Translations have this property as long as the program and the learned
/// state that they read are the same.
///
/// [`Datapath::put`] reaches every worker. The megaflow of an [`Answer`] reaches only the worker
/// that raised the upcall. If another worker receives a matching packet, it raises an upcall of its
/// own. So a megaflow may exist in several workers, and each counts its own hits. [`Datapath::put`]
/// and [`Datapath::delete`] act on all of them.
pub trait Datapath: Send + Sync {
    /// Adds a port. Its device need not exist: the datapath opens it when it appears, and again
    /// after it has vanished.
    ///
    /// # Errors
    /// [`DatapathError::PortTaken`], [`DatapathError::PortNumber`], [`DatapathError::FastPath`], or
    /// the datapath has ended.
    fn add_port(&self, config: PortConfig) -> Result<(), DatapathError>;

    /// Removes a port, and its device if the datapath made it. The device is closed when this
    /// returns. It is no error if there is no such port.
    ///
    /// # Errors
    /// The datapath has ended, or does not answer.
    fn remove_port(&self, port: PortNo) -> Result<(), DatapathError>;

    /// Replaces the tunnels and end points. Those that stay the same lose no packet. When this has
    /// returned, frames to removed end points are dropped as [`DropReason::UnknownEndpoint`], and
    /// so are frames from them while their tunnel exists. Frames to new end points are dropped as
    /// [`DropReason::EndpointUnresolved`] until their next hop is known.
    ///
    /// # Errors
    /// [`DatapathError::Underlay`]: a part of it may be in place, and the call may be repeated. Or
    /// the datapath has ended.
    fn set_underlay(&self, underlay: Underlay) -> Result<(), DatapathError>;

    /// Limits how many punted frames of each port may wait for the user datapath, as
    /// [`Config::punt_limit`](crate::config::Config::punt_limit). A datapath without programs
    /// ignores it.
    ///
    /// # Errors
    /// [`DatapathError::FastPath`].
    fn set_punt_limit(&self, limit: u32) -> Result<(), DatapathError> {
        let _ = limit;
        Ok(())
    }

    /// Limits the processor time for the upcalls of each guest's port, as
    /// [`Config::upcall_cpu_percent`](crate::config::Config::upcall_cpu_percent).
    fn set_upcall_cpu_percent(&self, percent: u32) {
        let _ = percent;
    }

    /// Charges ports for the processor time that the switch has spent on their upcalls. A port that
    /// has spent more than its limit is in debt: its upcalls wait, and what does not fit in its
    /// queue is dropped as [`DropReason::UpcallBudget`].
    fn charge_upcalls(&self, work: &[PortWork]) {
        let _ = work;
    }

    /// Sets the meters that log records of ACLs may name. A name that is not among them has the
    /// rate and burst of records without a meter. A meter whose rate changes starts with a full
    /// bucket.
    fn set_log_meters(&self, meters: &[NamedMeter]) {
        let _ = meters;
    }

    /// Sets the path MTU of an end point that path probes have found, in bytes of outer packet, for
    /// ten minutes. One that is not lower than the configured MTU ends what probes have found
    /// or a router has reported before. A lower one that a router has reported stays in force.
    ///
    /// # Errors
    /// The datapath has ended.
    fn set_probed_path_mtu(&self, endpoint: EndpointId, bytes: u16) -> Result<(), DatapathError> {
        let _ = (endpoint, bytes);
        Ok(())
    }

    /// Installs megaflows. One with the match of an existing megaflow replaces its actions and
    /// keeps its counters. They are in place once a later [`Datapath::snapshot`] of the same thread
    /// has returned. A megaflow that does not fit is not installed, and its packets become upcalls.
    ///
    /// # Errors
    /// The datapath has ended.
    fn put(&self, megaflows: Vec<Megaflow>) -> Result<(), DatapathError>;

    /// Begins an epoch of megaflows. Those that [`Datapath::put`], [`Datapath::answer`] or
    /// [`Datapath::confirm`] handle from now on belong to it. The others stay in force until
    /// [`Datapath::withdraw_unconfirmed`].
    ///
    /// # Errors
    /// The datapath has ended.
    fn begin_epoch(&self) -> Result<(), DatapathError>;

    /// Moves megaflows to the current epoch, if they exist and are in force. A megaflow out of
    /// force stays so.
    ///
    /// # Errors
    /// The datapath has ended.
    fn confirm(&self, megaflows: Vec<MegaflowId>) -> Result<(), DatapathError>;

    /// Puts the megaflows of earlier epochs out of force, in a time that does not depend on their
    /// number. When this has returned, their packets become upcalls, except those that were being
    /// executed. The megaflows still exist: they count, and are reported and deleted like others. A
    /// put brings a megaflow into force again.
    ///
    /// # Errors
    /// [`DatapathError::FastPath`] or [`DatapathError::Busy`]: some may still be in force. Or the
    /// datapath has ended.
    fn withdraw_unconfirmed(&self) -> Result<(), DatapathError>;

    /// Deletes megaflows and returns their final counters. Megaflows that do not exist are skipped.
    ///
    /// # Errors
    /// [`DatapathError::FastPath`]: those that could not be deleted still exist and are reported by
    /// dumps. Or the datapath has ended.
    fn delete(&self, megaflows: Vec<MegaflowId>)
    -> Result<Vec<(MegaflowId, Usage)>, DatapathError>;

    /// Returns those of these megaflows that exist, each once.
    ///
    /// # Errors
    /// The datapath has ended.
    fn get(&self, megaflows: Vec<MegaflowId>) -> Result<Vec<Megaflow>, DatapathError>;

    /// Returns those of these megaflows whose entry in the fast path differs from what was
    /// installed: in its match, its actions or its generation.
    ///
    /// # Errors
    /// [`DatapathError::FastPath`]: the fast path cannot be read.
    fn damaged(&self, _: &[MegaflowId]) -> Result<Vec<MegaflowId>, DatapathError> {
        Ok(Vec::new())
    }

    /// Returns up to `most` megaflows from `from` on, with their counters. A megaflow that exists
    /// during the whole dump is returned at least once, and once for each worker that has it.
    ///
    /// # Errors
    /// The datapath has ended.
    fn dump(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<DumpPage<(Megaflow, Usage)>, DatapathError>;

    /// Like [`Datapath::dump`], without matches and actions, which makes it much cheaper.
    ///
    /// # Errors
    /// The datapath has ended.
    fn usage(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<DumpPage<(MegaflowId, Usage)>, DatapathError>;

    /// Moves up to `most` upcalls into `out`, fairly between ports, and waits up to `timeout` for
    /// the first. Returns false once the datapath has ended.
    fn upcalls(&self, most: usize, timeout: Duration, out: &mut Vec<Upcall>) -> bool;

    /// Passes answers to the workers that raised the upcalls. Blocks while too many answers wait.
    ///
    /// # Errors
    /// The datapath has ended.
    fn answer(&self, answers: Vec<Answer>) -> Result<(), DatapathError>;

    /// Lets routers request every neighbour again at once, because a learned address was forgotten.
    ///
    /// # Errors
    /// The datapath has ended.
    fn forget_solicitations(&self) -> Result<(), DatapathError> {
        Ok(())
    }

    /// Executes actions on a packet as if it had arrived by `port`.
    ///
    /// # Errors
    /// The datapath has ended.
    fn execute(
        &self,
        port: PortNo,
        packet: PacketBuf,
        actions: Arc<[Action]>,
    ) -> Result<(), DatapathError>;

    /// Returns all counters. They may lag slightly behind the traffic.
    ///
    /// # Errors
    /// The datapath has ended, or does not answer.
    fn snapshot(&self) -> Result<Snapshot, DatapathError>;

    /// Starts to copy dropped packets to the returned receiver; dropping it ends that. Packets from
    /// the underlay that belong to no tunnel are counted and not copied.
    ///
    /// # Errors
    /// The datapath has ended.
    fn watch_drops(&self) -> Result<WatchReceiver<DroppedPacket>, DatapathError>;

    /// Starts to copy the first `snap_bytes` bytes of each frame that a port's guest sends and
    /// receives; dropping the returned receiver ends that.
    ///
    /// # Errors
    /// The datapath has ended.
    fn watch_frames(
        &self,
        port: PortNo,
        snap_bytes: usize,
    ) -> Result<WatchReceiver<CapturedFrame>, DatapathError>;

    /// The connections that it tracks; `None` for a datapath without connection tracking.
    fn tracker(&self) -> Option<&Tracker> {
        None
    }

    /// The part that executes fused megaflows; `None` if the datapath cannot.
    fn fused(&self) -> Option<Arc<dyn FusedMegaflows>> {
        None
    }

    /// Milliseconds since the datapath started: the clock of [`Usage::used_ms`].
    fn now_ms(&self) -> u64;

    /// Ends the datapath's threads.
    fn stop(&self);
}

/// The part of a datapath that executes fused megaflows.
///
/// It is separate from the [`Datapath`], because the datapath's own threads use it when a
/// connection changes.
pub trait FusedMegaflows: Send + Sync {
    /// Installs a fused megaflow where packets cannot be tracked; elsewhere they are tracked
    /// instead. Returns false if it cannot be executed or does not fit; it is absent then.
    fn put(&self, megaflow: &Megaflow) -> bool;

    /// Punts the packets of these megaflows from now on, until the megaflows are deleted. Megaflows
    /// that do not exist are skipped. Does not wait for packets that are being executed.
    fn suspend(&self, megaflows: &[MegaflowId]);
}
