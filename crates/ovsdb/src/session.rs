//! [`Session`]: a client of one database, as a state machine without I/O and without a clock.
//!
//! The owner of the socket drives the session with these functions, as
//! [`io::Client`](crate::io::Client) does:
//!
//! ```text
//! poll_action  -> Connect(remote): connect, then handle_connected or handle_disconnected
//!              -> Close: close the socket
//! poll_transmit -> bytes to send
//! handle_bytes  <- received bytes; then call poll_event until it returns None
//! next_deadline -> when to call handle_timeout at the latest
//! ```
//!
//! A connection passes these phases:
//!
//! ```text
//! Offline -> ServerMonitor: monitor_cond of _Server; is this server suitable?
//!              | standalone, or no _Server  | clustered: with schema
//!              v                            v
//!            Schema: get_schema ------> DataMonitor: monitor_cond_since, monitor_cond or monitor
//!                                           | reply
//!                                           v
//!                                         Ready: updates, transactions, condition changes
//! ```

use crate::condition::Condition;
use crate::datum::Interner;
use crate::framing::{Framer, Piece};
use crate::layout::Layouts;
use crate::remote::Remote;
use crate::replica::Replica;
use crate::transaction::{TransactOutcome, Transaction};
use crate::update::{MonitorMethod, StagedRow};
use crate::uuid::Uuid;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

mod conditions;
mod config;
mod event;
mod handshake;
mod incoming;
mod link;
mod server;
#[cfg(test)]
mod tests;

use conditions::Conditions;
pub use config::{Config, ConfigError, Times};
pub use event::{
    DisconnectReason, Event, Reply, RequestId, SchemaMismatch, Unsuitable, Update, UpdateKind,
};
pub use link::Action;
use link::{DueAction, Link};
use server::SeenCluster;
pub use server::ServerInfo;

/// A client of one database: it keeps a replica of the requested tables, and sends transactions.
#[derive(Debug)]
pub struct Session {
    config: Config,
    link: Link,
    framer: Framer,
    interner: Interner,
    phase: Phase,
    server: Monitor,
    data: Monitor,
    conditions: Conditions,
    seen: SeenCluster,
    info: Option<ServerInfo>,
    has_lock: bool,
    stage: Option<Stage>,
    /// Counts the monitors of a connection, to distinguish their updates.
    generation: u32,
    next_id: u64,
    pending: BTreeMap<u64, Pending>,
    outgoing: VecDeque<(Option<u64>, Vec<u8>)>,
    unsent_bytes: usize,
    must_close: bool,
    events: VecDeque<Event>,
}

/// The phase of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Offline,
    ServerMonitor,
    Schema,
    DataMonitor,
    Ready,
}

/// One of the two monitors: of the server's status (`_Server`), or of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Server,
    Data,
}

/// A monitor and its replica.
#[derive(Debug)]
struct Monitor {
    /// The identifier on this connection.
    id: String,
    method: MonitorMethod,
    /// The column layouts of the pending or active monitor request.
    layouts: Layouts,
    /// The last transaction of the replica; nil if the next dump must have all rows.
    transaction: Uuid,
    /// The reply to the monitor request has arrived.
    is_active: bool,
    replica: Replica,
}

/// Decoded rows of a table update that has not arrived completely.
#[derive(Debug)]
struct Stage {
    target: Target,
    method: MonitorMethod,
    rows: Vec<StagedRow>,
}

/// The purpose of a request that has no reply yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pending {
    ServerMonitor,
    Schema,
    DataMonitor,
    Conditions,
    Lock,
    Ignored,
    /// A transaction of the caller: its number of operations, and whether it was sent.
    Transact(usize, bool),
    /// Any other request of the caller.
    Other,
}

/// Why a request cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// There is no connection, or the replica is not complete yet.
    #[error("not connected, or not synchronized yet")]
    NotReady,
    /// Too many requests have no reply yet.
    #[error("too many requests without a reply (limit requests)")]
    TooManyRequests,
    /// Too many bytes wait for transmission.
    #[error("too many bytes wait for transmission (limit unsent_bytes)")]
    Full,
    /// The table is not replicated.
    #[error("the table is not replicated")]
    UnknownTable,
}

impl Session {
    /// A session that asks for a connection at the first [`poll_action`](Self::poll_action).
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration contradicts itself.
    pub fn new(config: Config, now: Instant) -> Result<Self, ConfigError> {
        config.check()?;
        let limits = config.limits;
        let server_request = [server::request(&config.database)];
        let server_layouts = server::schema()
            .ok()
            .and_then(|schema| crate::layout::resolve(&server_request, &schema).ok())
            .unwrap_or_else(|| [].into());
        Ok(Self {
            link: Link::new(config.times, config.remotes.clone(), config.seed, now),
            framer: Framer::new(limits),
            interner: Interner::default(),
            phase: Phase::Offline,
            server: Monitor::new(
                Replica::new(&server_request, limits.rows),
                MonitorMethod::MonitorCond,
                server_layouts,
            ),
            data: Monitor::new(Replica::new(&config.tables, limits.rows), config.method, [].into()),
            conditions: Conditions::new(&config.tables),
            seen: SeenCluster::default(),
            info: None,
            has_lock: false,
            stage: None,
            generation: 0,
            next_id: 0,
            pending: BTreeMap::new(),
            outgoing: VecDeque::new(),
            unsent_bytes: 0,
            must_close: false,
            events: VecDeque::new(),
            config,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The rows of the requested tables. They stay while there is no connection.
    pub fn replica(&self) -> &Replica {
        &self.data.replica
    }

    /// True if a connection is open and the replica is complete.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// The remote of the connection, or the next one to try.
    pub fn remote(&self) -> Option<&Remote> {
        self.link.remote()
    }

    /// The server's information about the database; `None` before the server has sent it, and for
    /// servers older than OVS 2.9.
    pub fn server(&self) -> Option<&ServerInfo> {
        self.info.as_ref()
    }

    /// The method in use; `None` if there is no complete update on this connection.
    pub fn method(&self) -> Option<MonitorMethod> {
        self.data.is_active.then_some(self.data.method)
    }

    /// The last transaction of the replica; nil if the server does not report it.
    pub fn last_transaction(&self) -> Uuid {
        self.data.transaction
    }

    /// True if the session has the configured lock.
    pub fn has_lock(&self) -> bool {
        self.has_lock
    }

    /// The next action for the owner of the socket.
    pub fn poll_action(&mut self, now: Instant) -> Option<Action> {
        if std::mem::take(&mut self.must_close) {
            return Some(Action::Close);
        }
        self.link.poll_connect(now).map(Action::Connect)
    }

    /// A message to send. Once taken, it counts as sent.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        let (id, message) = self.outgoing.pop_front()?;
        self.unsent_bytes = self.unsent_bytes.saturating_sub(message.len());
        if let Some(Pending::Transact(_, is_sent)) = id.and_then(|id| self.pending.get_mut(&id)) {
            *is_sent = true;
        }
        Some(message)
    }

    /// The next event. Take all of them after each call of a `handle_` function.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// True if an event is pending.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// The latest time to call [`handle_timeout`](Self::handle_timeout) or
    /// [`poll_action`](Self::poll_action).
    pub fn next_deadline(&self) -> Option<Instant> {
        self.link.deadline()
    }

    /// Call this when the connection of the last [`Action::Connect`] is established.
    pub fn handle_connected(&mut self, now: Instant) {
        if !self.link.connected(now) {
            return;
        }
        if let Some(remote) = self.link.remote().cloned() {
            self.events.push_back(Event::Connected { remote });
        }
        self.begin_handshake();
    }

    /// Call this when the connection is lost or could not be established.
    pub fn handle_disconnected(&mut self, now: Instant, reason: &str) {
        if !self.link.is_idle() {
            self.disconnect(now, DisconnectReason::Transport(reason.to_owned()));
            self.must_close = false;
        }
    }

    /// Processes received bytes.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        self.link.received(now);
        let mut input = bytes;
        while self.link.is_open() {
            match self.framer.next(&mut input) {
                Ok(None) => return,
                Ok(Some(piece)) => {
                    // Taken out of the session, because the handlers borrow the whole session.
                    let mut framer =
                        std::mem::replace(&mut self.framer, Framer::new(self.config.limits));
                    let handled = match piece {
                        Piece::Row => self.handle_row(&framer),
                        Piece::Message => self.handle_message(now, framer.message()),
                    };
                    std::mem::swap(&mut self.framer, &mut framer);
                    if let Err(reason) = handled {
                        self.disconnect(now, reason);
                    }
                }
                Err(error) => self.disconnect(now, error.into()),
            }
        }
    }

    /// Probes the server, or gives up a connection that does not answer.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.link.due(now) {
            DueAction::Nothing => {}
            DueAction::Probe => {
                self.send(None, &json!({"id": "echo", "method": "echo", "params": []}))
            }
            DueAction::GiveUp(reason) => self.disconnect(now, reason),
        }
    }

    /// Executes a transaction. [`Event::Transacted`] has the outcome.
    ///
    /// # Errors
    /// [`SendError`] if there is no complete replica, or a limit is reached. Nothing is sent then.
    pub fn transact(&mut self, transaction: Transaction) -> Result<RequestId, SendError> {
        if self.phase != Phase::Ready {
            return Err(SendError::NotReady);
        }
        let operations = transaction.len();
        let params = transaction.params(&self.config.database);
        self.request("transact", &params, Pending::Transact(operations, false))
    }

    /// Asks the server to cancel a pending transaction (RFC 7047 section 4.1.4). The outcome
    /// tells whether the server did.
    pub fn cancel(&mut self, id: RequestId) {
        if self.pending.contains_key(&id.0) {
            self.send(None, &json!({"id": null, "method": "cancel", "params": [id.0]}));
        }
    }

    /// Asks for the names of the server's databases. [`Event::Replied`] has the reply.
    ///
    /// # Errors
    /// [`SendError`] if there is no connection, or a limit is reached.
    pub fn list_dbs(&mut self) -> Result<RequestId, SendError> {
        self.request("list_dbs", &json!([]), Pending::Other)
    }

    /// Asks for the schema of a database. [`Event::Replied`] has the reply.
    ///
    /// # Errors
    /// [`SendError`] if there is no connection, or a limit is reached.
    pub fn get_schema(&mut self, database: &str) -> Result<RequestId, SendError> {
        self.request("get_schema", &json!([database]), Pending::Other)
    }

    /// Sends any other request. [`Event::Replied`] has the reply.
    ///
    /// # Errors
    /// [`SendError`] if there is no connection, or a limit is reached.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<RequestId, SendError> {
        self.request(method, params, Pending::Other)
    }

    /// Changes which rows of a table are replicated. [`Event::ConditionsApplied`] reports that the
    /// rows for the returned sequence number have arrived. A server without conditional monitoring
    /// sends all rows.
    ///
    /// The new condition is kept while there is no connection.
    ///
    /// # Errors
    /// [`SendError::UnknownTable`] if the table is not replicated.
    pub fn set_condition(&mut self, table: &str, condition: Condition) -> Result<u64, SendError> {
        self.set_conditions([(table, condition)])
    }

    /// As [`set_condition`](Self::set_condition), for several tables in one request.
    ///
    /// # Errors
    /// [`SendError::UnknownTable`] if one of the tables is not replicated. The conditions of
    /// the tables before it are changed.
    pub fn set_conditions<'t>(
        &mut self,
        conditions: impl IntoIterator<Item = (&'t str, Condition)>,
    ) -> Result<u64, SendError> {
        let mut conditions = conditions.into_iter();
        let set = conditions.try_fold(self.conditions.made(), |_, (table, condition)| {
            self.conditions.set(table, condition).ok_or(SendError::UnknownTable)
        });
        self.send_conditions();
        set
    }

    /// Replaces the remotes. A connection stays if its remote is among them.
    pub fn set_remotes(&mut self, now: Instant, remotes: Vec<Remote>) {
        let remote = self.link.remote().cloned();
        if !self.link.set_remotes(remotes) && !self.link.is_idle() {
            self.disconnect_from(now, remote, DisconnectReason::Requested);
        }
    }

    /// Closes the connection, and connects to the next remote.
    pub fn reconnect(&mut self, now: Instant) {
        if !self.link.is_idle() {
            self.disconnect(now, DisconnectReason::Requested);
        }
    }

    /// Sends a request of the caller, within the limits.
    fn request(
        &mut self,
        method: &str,
        params: &Value,
        pending: Pending,
    ) -> Result<RequestId, SendError> {
        if !self.link.is_open() {
            return Err(SendError::NotReady);
        }
        if self.pending.len() >= self.config.limits.requests {
            return Err(SendError::TooManyRequests);
        }
        let id = self.next_id;
        let message = json!({"id": id, "method": method, "params": params}).to_string();
        if self.unsent_bytes.saturating_add(message.len()) > self.config.limits.unsent_bytes {
            return Err(SendError::Full);
        }
        self.next_id += 1;
        self.pending.insert(id, pending);
        self.send_bytes(Some(id), message.into_bytes());
        Ok(RequestId(id))
    }

    /// Sends a request of the session itself, which no limit applies to.
    fn request_own(&mut self, method: &str, params: &Value, pending: Pending) {
        let id = self.next_id;
        self.next_id += 1;
        self.pending.insert(id, pending);
        self.send(Some(id), &json!({"id": id, "method": method, "params": params}));
    }

    fn send(&mut self, id: Option<u64>, message: &Value) {
        self.send_bytes(id, message.to_string().into_bytes());
    }

    fn send_bytes(&mut self, id: Option<u64>, message: Vec<u8>) {
        self.unsent_bytes += message.len();
        self.outgoing.push_back((id, message));
    }

    fn disconnect(&mut self, now: Instant, reason: DisconnectReason) {
        let remote = self.link.remote().cloned();
        self.disconnect_from(now, remote, reason);
    }

    /// Ends the connection. Requests without a reply are lost; the replica is kept.
    fn disconnect_from(&mut self, now: Instant, remote: Option<Remote>, reason: DisconnectReason) {
        self.phase = Phase::Offline;
        self.framer = Framer::new(self.config.limits);
        self.stage = None;
        self.info = None;
        self.server.is_active = false;
        self.data.is_active = false;
        if self.conditions.disconnected() {
            self.data.transaction = Uuid::NIL;
        }
        self.outgoing.clear();
        self.unsent_bytes = 0;
        self.must_close = true;
        self.link.ended(now, reason == DisconnectReason::Requested);
        for (id, pending) in std::mem::take(&mut self.pending) {
            let id = RequestId(id);
            self.events.extend(match pending {
                Pending::Transact(_, is_sent) => {
                    let outcome =
                        if is_sent { TransactOutcome::Lost } else { TransactOutcome::NotSent };
                    Some(Event::Transacted { id, outcome })
                }
                Pending::Other => Some(Event::Replied { id, reply: Reply::Lost }),
                _ => None,
            });
        }
        self.set_lock(false);
        if let Some(remote) = remote {
            self.events.push_back(Event::Disconnected { remote, reason });
        }
    }

    fn set_lock(&mut self, is_held: bool) {
        if self.has_lock != is_held {
            self.has_lock = is_held;
            self.events.push_back(Event::Lock { is_held });
        }
    }
}

impl Monitor {
    fn new(replica: Replica, method: MonitorMethod, layouts: Layouts) -> Self {
        Self {
            id: String::new(),
            method,
            layouts,
            transaction: Uuid::NIL,
            is_active: false,
            replica,
        }
    }
}
