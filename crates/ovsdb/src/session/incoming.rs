//! Handles messages of the server: rows, replies, notifications and requests.

use super::{
    DisconnectReason, Event, Monitor, Pending, Phase, Reply, RequestId, Session, Stage, Target,
    TransactOutcome, Update, UpdateKind,
};
use crate::framing::{Framer, RowText};
use crate::message::{self, Message, RawTables};
use crate::update::{MonitorMethod, RowUpdate, StagedRow, UpdateError, decode_row};
use crate::uuid::Uuid;
use serde_json::Value;
use serde_json::value::RawValue;
use std::time::Instant;

type Handled = Result<(), DisconnectReason>;

fn protocol(problem: impl Into<String>) -> DisconnectReason {
    DisconnectReason::Protocol(problem.into())
}

/// Parses a part of a message.
fn parse<'a, T: serde::Deserialize<'a>>(
    part: &'a RawValue,
    what: &str,
) -> Result<T, DisconnectReason> {
    serde_json::from_str(part.get()).map_err(|error| protocol(format!("{what}: {error}")))
}

impl Session {
    /// Handles a row of a message that is not complete yet.
    pub(super) fn handle_row(&mut self, framer: &Framer) -> Handled {
        if framer.rows() == 1 {
            let head = framer.head();
            self.stage = self.stage_for(&head)?;
        }
        // Rows of a cancelled monitor are ignored.
        let Some(mut stage) = self.stage.take() else { return Ok(()) };
        let staged = self.stage_row(&mut stage, framer.row());
        self.stage = Some(stage);
        staged
    }

    /// Finds the monitor that a message belongs to, from the part that has arrived.
    fn stage_for(&self, head: &[u8]) -> Result<Option<Stage>, DisconnectReason> {
        let found = match message::parse(head).map_err(protocol)? {
            Message::Reply { id, outcome: Ok(_) } => match self.pending_of(id) {
                Some(Pending::ServerMonitor) => Some((Target::Server, self.server.method)),
                Some(Pending::DataMonitor) => Some((Target::Data, self.data.method)),
                _ => None,
            },
            Message::Notification { method, params } => self.notified(&method, params)?,
            _ => None,
        };
        Ok(found.map(|(target, method)| Stage { target, method, rows: Vec::new() }))
    }

    /// The monitor of a notification `update`, `update2` or `update3`.
    fn notified(
        &self,
        notification: &str,
        params: &RawValue,
    ) -> Result<Option<(Target, MonitorMethod)>, DisconnectReason> {
        let params: Vec<&RawValue> = parse(params, notification)?;
        let id = params.first().map(|id| message::tree(id));
        for (target, monitor) in [(Target::Server, &self.server), (Target::Data, &self.data)] {
            let is_own = id.as_ref().is_some_and(|id| *id == *monitor.id.as_str());
            if is_own && monitor.is_active && monitor.method.notification() == notification {
                return Ok(Some((target, monitor.method)));
            }
        }
        Ok(None)
    }

    fn pending_of(&self, id: &RawValue) -> Option<Pending> {
        self.pending.get(&id.get().parse().ok()?).copied()
    }

    /// Decodes a row.
    fn stage_row(&mut self, stage: &mut Stage, row: RowText<'_>) -> Handled {
        let monitor = match stage.target {
            Target::Server => &self.server,
            Target::Data => &self.data,
        };
        let position =
            monitor.layouts.iter().position(|layout| layout.name().as_bytes() == row.table);
        let Some((table, layout)) =
            position.and_then(|at| monitor.layouts.get(at).map(|layout| (at, layout)))
        else {
            let table = String::from_utf8_lossy(row.table).into_owned();
            return Err(UpdateError::UnknownTable { table }.into());
        };
        let limit = self.config.limits.rows;
        if stage.rows.len() >= limit {
            return Err(crate::replica::ReplicaError::TooManyRows { limit }.into());
        }
        let change = decode_row(stage.method, layout, row.uuid, row.value, &mut self.interner)?;
        stage.rows.push(StagedRow { table, uuid: row.uuid, change });
        Ok(())
    }

    /// Handles a complete message.
    pub(super) fn handle_message(&mut self, now: Instant, text: &[u8]) -> Handled {
        match message::parse(text).map_err(protocol)? {
            Message::Request { method, params, id } => {
                let outcome = if method == "echo" { Ok(params) } else { Err("unknown method") };
                let reply = message::reply(id, outcome);
                if self.unsent_bytes + reply.len() > self.config.limits.unsent_bytes {
                    return Err(protocol("it asks more than it reads answers (unsent_bytes)"));
                }
                self.send_bytes(None, reply);
                Ok(())
            }
            Message::Notification { method, params } => self.handle_notification(&method, params),
            Message::Reply { id, outcome } => {
                let Some(number) = id.get().parse::<u64>().ok() else { return Ok(()) };
                match self.pending.remove(&number) {
                    Some(pending) => self.handle_reply(now, RequestId(number), pending, outcome),
                    None => Ok(()),
                }
            }
        }
    }

    fn handle_notification(&mut self, method: &str, params: &RawValue) -> Handled {
        match method {
            "update" | "update2" | "update3" => {
                let staged = self.stage.take();
                let Some((target, version)) = self.notified(method, params)? else {
                    return Ok(());
                };
                let (transaction, tables) = if version == MonitorMethod::MonitorCondSince {
                    let (_, transaction, tables): (Value, Uuid, RawTables<'_>) =
                        parse(params, method)?;
                    (transaction, tables)
                } else {
                    let (_, tables): (Value, RawTables<'_>) = parse(params, method)?;
                    (Uuid::NIL, tables)
                };
                let rows = self.rows_of(staged, target, version, &tables)?;
                self.apply(target, transaction, rows)
            }
            "monitor_canceled" => {
                let (id,): (Value,) = parse(params, method)?;
                let is_own = |monitor: &Monitor| monitor.is_active && id == *monitor.id.as_str();
                if is_own(&self.server) {
                    self.monitor_cancelled(Target::Server);
                } else if is_own(&self.data) {
                    self.monitor_cancelled(Target::Data);
                }
                Ok(())
            }
            "locked" | "stolen" => {
                let (name,): (String,) = parse(params, method)?;
                if self.config.lock.as_ref() == Some(&name) {
                    self.set_lock(method == "locked");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// All rows of a complete message: those that were decoded before its end, and those in the
    /// message.
    fn rows_of(
        &mut self,
        staged: Option<Stage>,
        target: Target,
        method: MonitorMethod,
        tables: &RawTables<'_>,
    ) -> Result<Vec<StagedRow>, DisconnectReason> {
        let staged = staged.filter(|stage| stage.target == target && stage.method == method);
        let mut stage = staged.unwrap_or(Stage { target, method, rows: Vec::new() });
        for (table, rows) in &tables.0 {
            for (uuid, value) in &rows.0 {
                let (table, value) = (table.as_bytes(), value.get().as_bytes());
                self.stage_row(&mut stage, RowText { table, uuid: *uuid, value })?;
            }
        }
        Ok(stage.rows)
    }

    fn handle_reply(
        &mut self,
        now: Instant,
        id: RequestId,
        pending: Pending,
        outcome: Result<&RawValue, &RawValue>,
    ) -> Handled {
        match (pending, outcome) {
            (Pending::ServerMonitor, Ok(result)) => {
                let tables = parse(result, "monitor_cond")?;
                let staged = self.stage.take();
                let method = self.server.method;
                let rows = self.rows_of(staged, Target::Server, method, &tables)?;
                self.server.is_active = true;
                let layouts = std::sync::Arc::clone(&self.server.layouts);
                self.server.replica.replace(&layouts, rows)?;
                self.server_changed()
            }
            (Pending::ServerMonitor, Err(_)) => {
                self.server_monitor_refused();
                Ok(())
            }
            (Pending::Schema, outcome) => {
                self.schema_arrived(outcome.map(message::tree).map_err(message::tree))
            }
            (Pending::DataMonitor, Ok(result)) => self.data_monitored(now, result),
            (Pending::DataMonitor, Err(error)) => self.data_monitor_refused(message::tree(error)),
            (Pending::Conditions, outcome) => {
                self.conditions_answered(outcome);
                Ok(())
            }
            (Pending::Lock, Ok(result)) => {
                let is_held = message::tree(result).get("locked") == Some(&Value::Bool(true));
                self.set_lock(is_held);
                Ok(())
            }
            (Pending::Lock, Err(error)) => {
                let error = message::tree(error);
                Err(DisconnectReason::Refused { method: "lock", error })
            }
            (Pending::Ignored, _) => Ok(()),
            (Pending::Transact(operations, _), outcome) => {
                let outcome = match outcome {
                    Ok(result) => TransactOutcome::from_result(&message::tree(result), operations),
                    Err(error) => TransactOutcome::from_error(&message::tree(error)),
                };
                self.events.push_back(Event::Transacted { id, outcome });
                Ok(())
            }
            (Pending::Other, outcome) => {
                let reply = match outcome {
                    Ok(result) => Reply::Result(message::tree(result)),
                    Err(error) => Reply::Error(message::tree(error)),
                };
                self.events.push_back(Event::Replied { id, reply });
                Ok(())
            }
        }
    }

    /// Handles the reply to changed conditions. Sends the conditions that were set meanwhile.
    fn conditions_answered(&mut self, outcome: Result<&RawValue, &RawValue>) {
        self.link.set_syncing(false);
        match outcome {
            Ok(_) => self.conditions_confirmed(),
            Err(error) => {
                let (seqno, error) = (self.conditions.refuse(), message::tree(error));
                self.events.push_back(Event::ConditionsRefused { seqno, error });
            }
        }
        self.send_conditions();
    }

    /// Handles the reply to the monitor request for the data.
    fn data_monitored(&mut self, now: Instant, result: &RawValue) -> Handled {
        let method = self.data.method;
        let staged = self.stage.take();
        let (found, transaction, tables) = if method == MonitorMethod::MonitorCondSince {
            parse::<(bool, Uuid, RawTables<'_>)>(result, method.request())?
        } else {
            (false, Uuid::NIL, parse(result, method.request())?)
        };
        let rows = self.rows_of(staged, Target::Data, method, &tables)?;
        self.phase = Phase::Ready;
        self.data.is_active = true;
        self.link.set_syncing(false);
        if found {
            if self.data.transaction.is_nil() {
                return Err(protocol("it resumes after a transaction that nobody named"));
            }
            self.apply_data(UpdateKind::Resumed, transaction, rows)?;
        } else {
            if rows.iter().any(|row| !matches!(row.change, RowUpdate::Put(_))) {
                return Err(protocol("a dump modifies or deletes rows"));
            }
            let layouts = std::sync::Arc::clone(&self.data.layouts);
            let changes = self.data.replica.replace(&layouts, rows)?;
            self.data.transaction = transaction;
            let kind = UpdateKind::Dump(method);
            self.events.push_back(Event::Update(Update { kind, transaction, changes }));
        }
        self.link.synced(now);
        self.conditions_confirmed();
        self.send_conditions();
        Ok(())
    }

    /// Applies the changes of a notification.
    fn apply(&mut self, target: Target, transaction: Uuid, rows: Vec<StagedRow>) -> Handled {
        match target {
            Target::Server => {
                if let (_, Some(error)) = self.server.replica.apply(rows) {
                    return Err(error.into());
                }
                self.server_changed()
            }
            Target::Data => self.apply_data(UpdateKind::Changes, transaction, rows),
        }
    }

    fn apply_data(&mut self, kind: UpdateKind, transaction: Uuid, rows: Vec<StagedRow>) -> Handled {
        let (changes, error) = self.data.replica.apply(rows);
        // After an error, the next connection needs a full dump.
        let transaction = if error.is_some() { Uuid::NIL } else { transaction };
        self.data.transaction = transaction;
        if kind != UpdateKind::Changes || !changes.is_empty() {
            self.events.push_back(Event::Update(Update { kind, transaction, changes }));
        }
        error.map_or(Ok(()), |error| Err(error.into()))
    }
}
