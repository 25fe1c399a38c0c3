//! The conditions of a monitor: those in effect, those sent without a reply, and those to send.

use crate::condition::Condition;
use crate::request::TableRequest;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The conditions of a table.
#[derive(Debug)]
struct Table {
    name: Arc<str>,
    /// In effect at the server.
    applied: Condition,
    /// Sent, without a reply.
    sent: Option<Condition>,
    /// To be sent.
    wanted: Option<Condition>,
}

/// The conditions of all tables.
#[derive(Debug)]
pub(super) struct Conditions {
    tables: Vec<Table>,
    /// The sequence numbers of the last change made, sent and applied.
    made: u64,
    sent: u64,
    applied: u64,
}

impl Conditions {
    pub fn new(requests: &[TableRequest]) -> Self {
        let table = |request: &TableRequest| Table {
            name: Arc::clone(&request.name),
            applied: request.condition.clone(),
            sent: None,
            wanted: None,
        };
        Self { tables: requests.iter().map(table).collect(), made: 0, sent: 0, applied: 0 }
    }

    /// Sets a condition, which is sent later. Returns the sequence number at which it is in effect;
    /// `None` if the table is unknown.
    pub fn set(&mut self, table: &str, condition: Condition) -> Option<u64> {
        let table = self.tables.iter_mut().find(|candidate| &*candidate.name == table)?;
        let newest = table.wanted.as_ref().or(table.sent.as_ref()).unwrap_or(&table.applied);
        if *newest != condition {
            table.wanted = Some(condition);
            self.made += 1;
        }
        Some(self.made)
    }

    /// The sequence number of the last change.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Handles the loss of the connection. True if sent conditions had no reply: then it is unknown
    /// which conditions the server would have applied to the changes since the last transaction.
    pub fn disconnected(&mut self) -> bool {
        self.tables.iter().any(|table| table.sent.is_some())
    }

    /// Takes the newest conditions for a request that dumps everything.
    pub fn use_newest(&mut self) {
        for table in &mut self.tables {
            let newest = table.wanted.take().or(table.sent.take());
            table.sent = None;
            if let Some(newest) = newest {
                table.applied = newest;
            }
        }
        self.sent = self.made;
    }

    /// The condition for the monitor request, by the table's position.
    pub fn applied_at(&self, at: usize) -> Condition {
        self.tables.get(at).map(|table| table.applied.clone()).unwrap_or_default()
    }

    /// The changes to send now, as the parameter of `monitor_cond_change`; `is_present` returns
    /// whether the server has the table at a position.
    pub fn take_changes(&mut self, is_present: impl Fn(usize) -> bool) -> Option<Value> {
        let mut changes = Map::new();
        for (at, table) in self.tables.iter_mut().enumerate() {
            if let Some(wanted) = table.wanted.take() {
                if is_present(at) {
                    let change = json!([{ "where": wanted.to_json() }]);
                    changes.insert(table.name.to_string(), change);
                    table.sent = Some(wanted);
                } else {
                    table.applied = wanted;
                }
            }
        }
        let is_new = self.sent != self.made;
        self.sent = self.made;
        is_new.then_some(Value::Object(changes))
    }

    /// Records that the server applies the sent conditions. Returns their sequence number, if it is
    /// new.
    pub fn confirm(&mut self) -> Option<u64> {
        for table in &mut self.tables {
            if let Some(sent) = table.sent.take() {
                table.applied = sent;
            }
        }
        let is_new = self.applied != self.sent;
        self.applied = self.sent;
        is_new.then_some(self.applied)
    }

    /// Records that the server refuses the sent conditions. Returns their sequence number.
    pub fn refuse(&mut self) -> u64 {
        for table in &mut self.tables {
            table.sent = None;
        }
        self.sent
    }
}
