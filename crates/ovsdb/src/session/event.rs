//! [`Event`]: the events that a session reports.

use crate::framing::FramingError;
use crate::layout::LayoutError;
use crate::remote::Remote;
use crate::replica::{ReplicaError, RowChange};
use crate::transaction::TransactOutcome;
use crate::update::{MonitorMethod, UpdateError};
use crate::uuid::Uuid;
use serde_json::Value;
use std::sync::Arc;

/// Identifies a request of the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(pub(super) u64);

/// An event of a session.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A connection is established. Synchronization begins.
    Connected {
        /// The server.
        remote: Remote,
    },
    /// A connection is lost or could not be established. The replica stays as it is. The session
    /// tries the next remote.
    Disconnected {
        /// The server.
        remote: Remote,
        /// The reason.
        reason: DisconnectReason,
    },
    /// The replica has changed by a complete table update.
    Update(Update),
    /// The outcome of [`Session::transact`](super::Session::transact).
    Transacted {
        /// The request.
        id: RequestId,
        /// The outcome.
        outcome: TransactOutcome,
    },
    /// The reply to another request.
    Replied {
        /// The request.
        id: RequestId,
        /// The reply.
        reply: Reply,
    },
    /// The server applies the conditions up to this sequence number of
    /// [`Session::set_condition`](super::Session::set_condition). All rows that they select have
    /// arrived.
    ConditionsApplied {
        /// The sequence number.
        seqno: u64,
    },
    /// The server refuses new conditions. The old ones stay in effect.
    ConditionsRefused {
        /// The sequence number.
        seqno: u64,
        /// The server's error.
        error: Value,
    },
    /// The session has got or lost the configured lock.
    Lock {
        /// True if it has the lock.
        is_held: bool,
    },
}

/// A change of the replica.
#[derive(Clone, PartialEq, Debug)]
pub struct Update {
    /// How complete the update is.
    pub kind: UpdateKind,
    /// The last transaction that the replica contains; nil if the server does not report it.
    pub transaction: Uuid,
    /// The rows that changed, each with its old and new value.
    pub changes: Vec<RowChange>,
}

/// How complete an update is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpdateKind {
    /// The first update of a connection: a complete dump. Rows that it lacks are gone.
    Dump(MonitorMethod),
    /// The first update of a connection: the changes since the last transaction that was known.
    Resumed,
    /// The changes of one or several transactions.
    Changes,
}

impl Update {
    /// True for the first update of a connection.
    pub fn is_first(&self) -> bool {
        self.kind != UpdateKind::Changes
    }
}

/// The reply to a request.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// The server's result.
    Result(Value),
    /// The server's error.
    Error(Value),
    /// The connection was lost before the reply.
    Lost,
}

/// Why a connection ended.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum DisconnectReason {
    /// The transport failed, or the peer closed it.
    #[error("connection lost: {0}")]
    Transport(String),
    /// The connection was not established in time.
    #[error("the connection was not established in time (connect_timeout)")]
    ConnectTimeout,
    /// The server did not answer an echo request in time.
    #[error("the server sent nothing, not even a reply to an echo request (probe_interval)")]
    Inactive,
    /// The bytes are not messages, or exceed a limit.
    #[error("cannot read the server's messages: {0}")]
    Framing(#[from] FramingError),
    /// A message violates the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// A row of a table update cannot be decoded.
    #[error("cannot decode a table update: {0}")]
    Update(#[from] UpdateError),
    /// A table update does not fit the replica.
    #[error("cannot apply a table update: {0}")]
    Replica(#[from] ReplicaError),
    /// The server's schema does not fit the request.
    #[error(transparent)]
    Schema(Box<SchemaMismatch>),
    /// The server is up, but this session may not use it.
    #[error("the server is not suitable: {0}")]
    Unsuitable(Unsuitable),
    /// The server refused a request that the session depends on.
    #[error("the server refused `{method}`: {error}")]
    Refused {
        /// The request.
        method: &'static str,
        /// The server's error.
        error: Value,
    },
    /// The client requested it.
    #[error("the client closed the connection")]
    Requested,
}

/// A mismatch between a server's schema and the requested tables.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the schema of {database} (version {version}) does not fit: {problem}")]
pub struct SchemaMismatch {
    /// The database.
    pub database: Arc<str>,
    /// The version of the server's schema.
    pub version: String,
    /// The mismatch.
    #[source]
    pub problem: LayoutError,
}

/// Why a server that is up is not used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsuitable {
    /// It does not serve the database.
    #[error("it has no database {0}")]
    NoDatabase(String),
    /// It has no schema yet: it has not joined its cluster, or not reached its relay source.
    #[error("it has not joined its cluster yet")]
    NotJoined,
    /// It has lost its cluster or relay source.
    #[error("it is disconnected from its cluster")]
    Disconnected,
    /// It is a follower or relay, and the session wants the leader.
    #[error("it is not the leader")]
    NotLeader,
    /// Its data is older than data that the session has seen.
    #[error("its data is stale: raft index {index}, and {seen} was seen before")]
    Stale {
        /// The server's raft index.
        index: i64,
        /// The greatest index seen.
        seen: i64,
    },
    /// It belongs to another cluster.
    #[error("it belongs to the cluster {found}, not {expected}")]
    OtherCluster {
        /// The cluster configured.
        expected: Uuid,
        /// The server's cluster; nil if it has none.
        found: Uuid,
    },
}
