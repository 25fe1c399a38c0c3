//! The first requests of a connection, and the monitors.

use super::event::Unsuitable;
use super::server::SERVER_DATABASE;
use super::{DisconnectReason, Pending, Phase, SchemaMismatch, Session, Target};
use crate::layout;
use crate::schema::Schema;
use crate::update::MonitorMethod;
use crate::uuid::Uuid;
use serde_json::{Map, Value, json};
use std::sync::Arc;

type Handled = Result<(), DisconnectReason>;

impl Session {
    /// Begins after a connection is established.
    pub(super) fn begin_handshake(&mut self) {
        self.generation = 0;
        if let Some(lock) = self.config.lock.clone() {
            self.request_own("lock", &json!([lock]), Pending::Lock);
        }
        self.monitor_server();
    }

    /// Monitors the row of the database in `_Server`.
    fn monitor_server(&mut self) {
        self.phase = Phase::ServerMonitor;
        self.server.id = format!("server.{}", self.generation);
        self.server.is_active = false;
        let condition = super::server::request(&self.config.database).condition;
        let mut tables = Map::new();
        for table in self.server.layouts.iter() {
            let mut request = table.monitor_request();
            request["where"] = condition.to_json();
            tables.insert(table.name().to_string(), json!([request]));
        }
        let params = json!([SERVER_DATABASE, self.server.id, tables]);
        self.request_own("monitor_cond", &params, Pending::ServerMonitor);
    }

    /// Handles an error as the reply to the monitor request for `_Server`: the server has no such
    /// database.
    pub(super) fn server_monitor_refused(&mut self) {
        self.info = None;
        self.request_schema();
    }

    fn request_schema(&mut self) {
        self.phase = Phase::Schema;
        let params = json!([&*self.config.database]);
        self.request_own("get_schema", &params, Pending::Schema);
    }

    /// Handles a new or changed row in `_Server`.
    pub(super) fn server_changed(&mut self) -> Handled {
        let seen = self.seen;
        let info = self
            .seen
            .check(&self.config, &self.server.replica)
            .map_err(DisconnectReason::Unsuitable)?;
        // The data of a server without its cluster may be old, and its age is unknown.
        let is_new = self.phase == Phase::ServerMonitor;
        if info.is_cut_off() && is_new && !seen.knows_cluster(&info) {
            return Err(DisconnectReason::Unsuitable(Unsuitable::Disconnected));
        }
        self.link.set_cut_off(info.is_cut_off());
        let (schema, is_standalone) = (info.schema.clone(), info.is_standalone());
        self.info = Some(info);
        if self.phase != Phase::ServerMonitor {
            return Ok(());
        }
        self.request_own("set_db_change_aware", &json!([true]), Pending::Ignored);
        if is_standalone {
            // When a standalone database is converted, `_Server` keeps the old schema.
            self.request_schema();
            return Ok(());
        }
        let schema = schema.unwrap_or_default();
        let schema = Schema::from_text(schema.as_bytes())
            .map_err(|error| DisconnectReason::Protocol(error.to_string()))?;
        self.monitor_data(&schema, self.config.method)
    }

    /// Handles the reply to `get_schema`.
    pub(super) fn schema_arrived(&mut self, outcome: Result<Value, Value>) -> Handled {
        let refused = |error| DisconnectReason::Refused { method: "get_schema", error };
        let schema = Schema::from_json(&outcome.map_err(refused)?)
            .map_err(|error| DisconnectReason::Protocol(error.to_string()))?;
        // A server without `_Server` is older than `monitor_cond_since`.
        let newest = match self.info {
            Some(_) => MonitorMethod::MonitorCondSince,
            None => MonitorMethod::MonitorCond,
        };
        self.monitor_data(&schema, self.config.method.min(newest))
    }

    /// Finds the requested columns in the schema, and monitors them.
    fn monitor_data(&mut self, schema: &Schema, method: MonitorMethod) -> Handled {
        self.data.layouts = layout::resolve(&self.config.tables, schema).map_err(|problem| {
            let (database, version) = (Arc::clone(&self.config.database), schema.version.clone());
            DisconnectReason::Schema(Box::new(SchemaMismatch { database, version, problem }))
        })?;
        if !self.data.replica.has_layouts(&self.data.layouts) {
            self.data.transaction = Uuid::NIL;
        }
        if self.config.tables.is_empty() {
            self.phase = Phase::Ready;
            self.data.is_active = true;
            return Ok(());
        }
        self.request_data(method);
        Ok(())
    }

    /// Sends the monitor request.
    fn request_data(&mut self, method: MonitorMethod) {
        self.phase = Phase::DataMonitor;
        self.data.method = method;
        self.data.id = format!("data.{}", self.generation);
        self.data.is_active = false;
        if method != MonitorMethod::MonitorCondSince {
            self.data.transaction = Uuid::NIL;
        }
        if self.data.transaction.is_nil() {
            self.conditions.use_newest();
        }
        let mut tables = Map::new();
        for (at, table) in self.data.layouts.iter().enumerate() {
            if !table.is_present() {
                continue;
            }
            let mut request = table.monitor_request();
            let condition = self.conditions.applied_at(at);
            if method != MonitorMethod::Monitor && !condition.is_all() {
                request["where"] = condition.to_json();
            }
            tables.insert(table.name().to_string(), json!([request]));
        }
        let mut params = vec![json!(&*self.config.database), json!(self.data.id), tables.into()];
        if method == MonitorMethod::MonitorCondSince {
            params.push(json!(self.data.transaction.to_string()));
        }
        self.link.set_syncing(true);
        self.request_own(method.request(), &Value::Array(params), Pending::DataMonitor);
    }

    /// Handles a refused monitor request: an old server does not know the method.
    pub(super) fn data_monitor_refused(&mut self, error: Value) -> Handled {
        let method = self.data.method;
        let is_unknown = error == "unknown method"
            || error.get("error").is_some_and(|error| error == "unknown method");
        let older = match method {
            MonitorMethod::MonitorCondSince => Some(MonitorMethod::MonitorCond),
            MonitorMethod::MonitorCond => Some(MonitorMethod::Monitor),
            MonitorMethod::Monitor => None,
        };
        match older.filter(|_| is_unknown) {
            Some(older) => {
                self.request_data(older);
                Ok(())
            }
            None => Err(DisconnectReason::Refused { method: method.request(), error }),
        }
    }

    /// Handles that the server has cancelled a monitor, because the database was converted or
    /// removed. The handshake begins again, on the same connection.
    pub(super) fn monitor_cancelled(&mut self, target: Target) {
        let other = match target {
            Target::Server => &mut self.data,
            Target::Data => &mut self.server,
        };
        if other.is_active {
            other.is_active = false;
            let params = json!([other.id]);
            self.request_own("monitor_cancel", &params, Pending::Ignored);
        }
        let is_own = |pending: &Pending| {
            matches!(
                pending,
                Pending::ServerMonitor
                    | Pending::Schema
                    | Pending::DataMonitor
                    | Pending::Conditions
            )
        };
        for pending in self.pending.values_mut().filter(|pending| is_own(pending)) {
            *pending = Pending::Ignored;
        }
        self.data.transaction = Uuid::NIL;
        self.stage = None;
        self.generation += 1;
        self.monitor_server();
    }

    /// Sends changed conditions, unless earlier ones have no reply yet.
    pub(super) fn send_conditions(&mut self) {
        let is_busy = || self.pending.values().any(|pending| *pending == Pending::Conditions);
        if self.phase != Phase::Ready || self.config.tables.is_empty() || is_busy() {
            return;
        }
        let layouts = Arc::clone(&self.data.layouts);
        let has_conditions = self.data.method != MonitorMethod::Monitor;
        let is_present =
            |at: usize| has_conditions && layouts.get(at).is_some_and(|table| table.is_present());
        let Some(changes) = self.conditions.take_changes(is_present) else { return };
        if changes.as_object().is_some_and(Map::is_empty) {
            self.conditions_confirmed();
            return;
        }
        self.link.set_syncing(true);
        let params = json!([self.data.id, self.data.id, changes]);
        self.request_own("monitor_cond_change", &params, Pending::Conditions);
    }

    /// Handles that the server applies the sent conditions.
    pub(super) fn conditions_confirmed(&mut self) {
        if let Some(seqno) = self.conditions.confirm() {
            self.events.push_back(super::Event::ConditionsApplied { seqno });
        }
    }
}
