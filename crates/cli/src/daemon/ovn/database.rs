//! [`Database`]: a connection to a database, its events, and at most one transaction at a time.

use super::RETRY;
use anyhow::{Context, Result};
use chassis::Host;
use ovsdb::io::{Client, TlsFiles};
use ovsdb::{Config, Event, RequestId, RowChange, TransactOutcome};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Instant;

/// The connection to a database, and the transaction that is under way.
pub struct Database {
    name: &'static str,
    pub client: Client,
    pub pending: Option<RequestId>,
    /// No transaction is sent before this time.
    pub retry_at: Option<Instant>,
    was_refused: bool,
}

/// The events of a connection since the last call.
#[derive(Default)]
pub struct Received {
    /// A complete update has arrived.
    pub is_updated: bool,
    /// The update was the first of the connection.
    pub is_first: bool,
    pub changes: Vec<RowChange>,
    /// All rows have arrived that the monitor conditions up to this sequence number select.
    pub applied_conditions: Option<u64>,
    /// The server has refused monitor conditions.
    pub has_refused_conditions: bool,
}

impl Database {
    pub fn new(name: &'static str, config: Config, tls: Option<TlsFiles>) -> Result<Self> {
        // A random seed: daemons of hosts that boot identically can have equal process ids.
        let seed = RandomState::new().build_hasher().finish();
        let client = Client::new(config.seed(seed), tls)
            .with_context(|| format!("cannot use the {name} database"))?;
        Ok(Self { name, client, pending: None, retry_at: None, was_refused: false })
    }

    /// Takes all events.
    pub fn receive(&mut self) -> Received {
        let mut received = Received::default();
        while let Some(event) = self.client.next_event(Some(Instant::now())) {
            match event {
                Event::Connected { remote } => {
                    messages::log!(
                        OVN_DATABASE_CONNECTED,
                        "connected to the {} database at {remote}",
                        self.name
                    );
                }
                Event::Disconnected { remote, reason } => {
                    messages::log!(
                        OVN_DATABASE_LOST,
                        "{} database at {remote}: {reason}",
                        self.name
                    );
                    self.pending = None;
                }
                Event::Update(update) => {
                    received.is_updated = true;
                    received.is_first |= update.is_first();
                    received.changes.extend(update.changes);
                }
                Event::Transacted { id, outcome } => self.handle_outcome(id, &outcome),
                Event::ConditionsApplied { seqno } => received.applied_conditions = Some(seqno),
                Event::ConditionsRefused { error, .. } => {
                    messages::log!(
                        OVN_DATABASE_UNCONDITIONAL,
                        "the {} database refuses to send a part of its rows, so this host reads \
                         all of them: {error}",
                        self.name
                    );
                    received.has_refused_conditions = true;
                }
                Event::Lock { is_held: true } => received.is_updated = true,
                _ => {}
            }
        }
        received
    }

    /// Takes all events of the southbound database for `host`, and requests the rows that the host
    /// needs now. True if rows have changed.
    pub fn pass_to(&mut self, host: &mut Host, now: Instant) -> bool {
        let received = self.receive();
        if received.is_updated || host.deadline().is_some_and(|deadline| deadline <= now) {
            host.handle_southbound(self.replica(), &received.changes, received.is_first, now);
        }
        if let Some(seqno) = received.applied_conditions {
            host.conditions_applied(seqno, self.replica());
        }
        if received.has_refused_conditions {
            host.conditions_refused();
        }
        host.request_rows(self.client.session_mut());
        received.is_updated
    }

    fn handle_outcome(&mut self, id: RequestId, outcome: &TransactOutcome) {
        if self.pending == Some(id) {
            self.pending = None;
        }
        match outcome {
            TransactOutcome::Committed(_) => self.was_refused = false,
            TransactOutcome::NotSent | TransactOutcome::Lost => {}
            TransactOutcome::Failed(error) => {
                // The transaction is retried, so only the first failure is logged.
                if !std::mem::replace(&mut self.was_refused, true) {
                    messages::log!(OVN_WRITE_FAILED, "{} database: {error}", self.name);
                }
                self.retry_at = Some(Instant::now() + RETRY);
            }
        }
    }

    /// True if a transaction can be sent now.
    pub fn may_transact(&self) -> bool {
        let is_due = self.retry_at.is_none_or(|at| at <= Instant::now());
        self.pending.is_none() && is_due && self.client.session().is_ready()
    }

    pub fn transact(&mut self, transaction: Option<ovsdb::Transaction>) {
        let Some(transaction) = transaction else { return };
        self.retry_at = None;
        match self.client.session_mut().transact(transaction) {
            Ok(id) => self.pending = Some(id),
            Err(error) => {
                messages::log!(OVN_WRITE_RETRIED, "{} database: {error}", self.name);
                self.retry_at = Some(Instant::now() + RETRY);
            }
        }
    }

    pub fn replica(&self) -> &ovsdb::Replica {
        self.client.session().replica()
    }
}
