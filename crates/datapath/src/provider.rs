//! [`Datapath`]: what a switch asks of whoever moves its packets.

use crate::megaflow::{Megaflow, MegaflowId, Usage};
use crate::stats::Snapshot;
use crate::upcall::{Answer, Upcall};
use crate::user::cache::Cursor;
use crate::user::{PortConfig, Underlay};
use crate::watch::{CapturedFrame, DroppedPacket, Watching};
#[cfg(doc)]
use flow::DropReason;
use flow::{Action, PortNo};
use packet::PacketBuf;
use std::sync::Arc;
use std::time::Duration;

/// A datapath that does not do what it is asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatapathError {
    /// It has ended.
    #[error("the datapath has stopped")]
    Stopped,
    /// It did not answer in time.
    #[error("the datapath does not answer")]
    Busy,
    /// A port number is taken.
    #[error("port {0} is there already")]
    PortTaken(PortNo),
    /// A port number is beyond what the datapath has.
    #[error("there can be no port {0}")]
    PortNumber(PortNo),
    /// What another underlay needs cannot be opened.
    #[error("{0}")]
    Underlay(String),
    /// Programs in front of the datapath cannot be told something; the datapath goes on, and it may be tried again.
    #[error("the programs' tables: {0}")]
    Programs(String),
}

/// Where a [`Datapath::dump`] goes on; to begin with, before the first.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DumpCursor {
    /// The worker whose megaflows are next.
    pub worker: usize,
    /// Where among them.
    pub at: Cursor,
}

/// Some of the megaflows or usages, and where the next ones are; `None` behind the last.
pub type Portion<T> = (Vec<T>, Option<DumpCursor>);

/// Moves packets between ports and tunnels: looks each up among the megaflows and executes their actions, or hands it up.
///
/// # Threads
///
/// Every method may be called from any thread at any time. None waits for traffic but [`Datapath::upcalls`], and none holds
/// up forwarding. Those that may open devices or sockets, [`Datapath::add_port`] and [`Datapath::set_underlay`], are called by threads
/// that are in the network namespace in which the datapath was made.
///
/// # Order
///
/// - What one thread asks for is done in that order.
/// - Packets that came in by one port and belong to one flow leave in their order. A packet that went up is overtaken by those that
///   came after its megaflow was put; each [`Answer`] puts its megaflow before its packet is sent.
/// - After [`Datapath::delete`] has returned no packet is executed by those megaflows any more.
///
/// # Megaflows
///
/// Two megaflows that both match a packet have to agree on what becomes of it: which of them is used is not said. What a
/// translation returns has this property as long as its program and its answers about learnt state are the same.
///
/// [`Datapath::put`] reaches every worker of the datapath. The megaflow of an [`Answer`] reaches the worker from which its upcall came,
/// and need not reach another: a packet that another worker receives comes up even if the megaflow matches it, and is answered
/// with a megaflow of its own, or the same once more. So a megaflow may be in several workers, and in some only; each counts
/// for itself. To change or delete one, [`Datapath::put`] and [`Datapath::delete`] need not know where it is.
pub trait Datapath: Send + Sync {
    /// Adds a port. Its device may be there already or not: it is opened when it can be, and opened again when it was gone.
    ///
    /// # Errors
    /// [`DatapathError::PortTaken`], [`DatapathError::PortNumber`], [`DatapathError::Programs`], or the datapath has ended.
    fn add_port(&self, config: PortConfig) -> Result<(), DatapathError>;

    /// Removes a port, and with it the device if the datapath made it; when this returns, the device is closed. No such port is
    /// no error.
    ///
    /// # Errors
    /// The datapath has ended, or does not answer.
    fn remove_port(&self, port: PortNo) -> Result<(), DatapathError>;

    /// Goes over to other tunnels and end points. Those that stay as they are lose no packet. When this has returned, frames to
    /// those that are gone are dropped as [`DropReason::UnknownEndpoint`], and so are frames from them while their tunnel is there;
    /// to new ones as [`DropReason::EndpointUnresolved`] until the way to them is known.
    ///
    /// # Errors
    /// [`DatapathError::Underlay`]: some of it may be in place then, and it may be tried again. Or the datapath has ended.
    fn set_underlay(&self, underlay: Underlay) -> Result<(), DatapathError>;

    /// Puts megaflows, in the place of those with the same condition, whose counters go on. They are in place when a
    /// [`Datapath::snapshot`] returns that the same thread takes afterwards. What does not fit is not put: its packets come up.
    ///
    /// # Errors
    /// The datapath has ended.
    fn put(&self, megaflows: Vec<Megaflow>) -> Result<(), DatapathError>;

    /// Deletes megaflows; returns what each has counted. One that is not there counts for nothing.
    ///
    /// # Errors
    /// [`DatapathError::Programs`]: those that could not be deleted are there still, and seen to be. Or the datapath has ended.
    fn delete(&self, megaflows: Vec<MegaflowId>)
    -> Result<Vec<(MegaflowId, Usage)>, DatapathError>;

    /// Those of these megaflows that are there, each once.
    ///
    /// # Errors
    /// The datapath has ended.
    fn get(&self, megaflows: Vec<MegaflowId>) -> Result<Vec<Megaflow>, DatapathError>;

    /// Some of the megaflows, from `from` on, with what they have counted. Those that are there all the time are met at least
    /// once; a megaflow in several workers, once for each.
    ///
    /// # Errors
    /// The datapath has ended.
    fn dump(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<Portion<(Megaflow, Usage)>, DatapathError>;

    /// The same without conditions and actions, which costs much less.
    ///
    /// # Errors
    /// The datapath has ended.
    fn usage(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<Portion<(MegaflowId, Usage)>, DatapathError>;

    /// Moves up to `most` upcalls into `out`, fair between ports; waits up to `timeout` for the first. False once the datapath
    /// has ended.
    fn upcalls(&self, most: usize, timeout: Duration, out: &mut Vec<Upcall>) -> bool;

    /// Answers upcalls, each by the worker from which it came: see the trait. Whoever calls is held up while too many answers
    /// wait.
    ///
    /// # Errors
    /// The datapath has ended.
    fn answer(&self, answers: Vec<Answer>) -> Result<(), DatapathError>;

    /// Executes actions on a packet as if it had come in by `port`.
    ///
    /// # Errors
    /// The datapath has ended.
    fn execute(
        &self,
        port: PortNo,
        packet: PacketBuf,
        actions: Arc<[Action]>,
    ) -> Result<(), DatapathError>;

    /// All counters of this moment. They may be a little behind what they count.
    ///
    /// # Errors
    /// The datapath has ended, or does not answer.
    fn snapshot(&self) -> Result<Snapshot, DatapathError>;

    /// From now on, copies of the packets that are not delivered. What comes from the underlay and is no frame of any tunnel is
    /// counted, and not shown. To end it, drop what is returned.
    ///
    /// # Errors
    /// The datapath has ended.
    fn watch_drops(&self) -> Result<Watching<DroppedPacket>, DatapathError>;

    /// From now on, copies of the first `snap_bytes` bytes of the frames that a port's guest sends and gets. To end it, drop
    /// what is returned.
    ///
    /// # Errors
    /// The datapath has ended.
    fn watch_frames(
        &self,
        port: PortNo,
        snap_bytes: usize,
    ) -> Result<Watching<CapturedFrame>, DatapathError>;

    /// Milliseconds since the datapath started: the clock of [`Usage::used_ms`].
    fn now_ms(&self) -> u64;

    /// Ends it.
    fn stop(&self);
}
