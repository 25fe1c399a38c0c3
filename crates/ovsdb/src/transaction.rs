//! [`Transaction`]: operations that a server executes all or not at all (RFC 7047 section 5.2),
//! and their outcome.

use crate::condition::Clause;
use crate::datum::Datum;
use crate::uuid::Uuid;
use serde_json::{Map, Value, json};
use std::fmt;

/// Operations in order, built step by step.
///
/// ```
/// use ovsdb::{Clause, Function, Mutation, RowValues, Transaction};
///
/// let named = |name: &str| [Clause::new("name", Function::Equals, name)];
/// let transaction = Transaction::new()
///     .wait_until_absent("Bridge", &named("br0"))
///     .insert_named("new_bridge", "Bridge", RowValues::new().set("name", "br0"))
///     .mutate("Open_vSwitch", &[], &[Mutation::insert_named("bridges", "new_bridge")])
///     .comment("add bridge br0");
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Transaction {
    operations: Vec<Value>,
}

/// The values of columns.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RowValues(Map<String, Value>);

impl RowValues {
    /// No values: an inserted row has the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a column.
    #[must_use]
    pub fn set(mut self, column: &str, value: impl Into<Datum>) -> Self {
        self.0.insert(column.to_owned(), value.into().to_json());
        self
    }

    /// Sets a column of references to rows that the same transaction inserts under these names.
    #[must_use]
    pub fn set_named(mut self, column: &str, names: &[&str]) -> Self {
        self.0.insert(column.to_owned(), named_uuids(names));
        self
    }
}

fn named_uuids(names: &[&str]) -> Value {
    match names {
        [name] => json!(["named-uuid", name]),
        _ => {
            let names = names.iter().map(|name| json!(["named-uuid", name]));
            json!(["set", names.collect::<Vec<_>>()])
        }
    }
}

/// A change of a column that depends on its old value (RFC 7047 section 5.1, `<mutation>`).
#[derive(Clone, PartialEq, Debug)]
pub struct Mutation(Value);

impl Mutation {
    /// Adds to a number: to each element of a set of numbers.
    pub fn add(column: &str, value: impl Into<Datum>) -> Self {
        Self(json!([column, "+=", value.into().to_json()]))
    }

    /// Subtracts from a number.
    pub fn subtract(column: &str, value: impl Into<Datum>) -> Self {
        Self(json!([column, "-=", value.into().to_json()]))
    }

    /// Inserts elements into a set, or pairs into a map. Keys that exist keep their values.
    pub fn insert(column: &str, value: impl Into<Datum>) -> Self {
        Self(json!([column, "insert", value.into().to_json()]))
    }

    /// Inserts a reference to a row that the same transaction inserts under this name.
    pub fn insert_named(column: &str, name: &str) -> Self {
        Self(json!([column, "insert", named_uuids(&[name])]))
    }

    /// Deletes elements from a set, or pairs from a map. A set of keys deletes these from a map.
    pub fn delete(column: &str, value: impl Into<Datum>) -> Self {
        Self(json!([column, "delete", value.into().to_json()]))
    }
}

fn clauses(conditions: &[Clause]) -> Value {
    conditions.iter().map(Clause::to_json).collect()
}

impl Transaction {
    /// A transaction without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// True if there are no operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Adds an operation in the notation of RFC 7047.
    #[must_use]
    pub fn json(mut self, operation: Value) -> Self {
        self.operations.push(operation);
        self
    }

    /// Inserts a row.
    #[must_use]
    pub fn insert(self, table: &str, row: RowValues) -> Self {
        self.json(json!({"op": "insert", "table": table, "row": row.0}))
    }

    /// Inserts a row to which other operations refer by `name`.
    #[must_use]
    pub fn insert_named(self, name: &str, table: &str, row: RowValues) -> Self {
        self.json(json!({"op": "insert", "table": table, "row": row.0, "uuid-name": name}))
    }

    /// Inserts a row under a UUID of the client's choice. Since OVS 2.13.
    ///
    /// A client that repeats such a transaction after a lost connection never inserts twice.
    #[must_use]
    pub fn insert_with_uuid(self, uuid: Uuid, table: &str, row: RowValues) -> Self {
        let uuid = uuid.to_string();
        self.json(json!({"op": "insert", "table": table, "row": row.0, "uuid": uuid}))
    }

    /// Reads columns of the rows that match all clauses.
    #[must_use]
    pub fn select(self, table: &str, conditions: &[Clause], columns: &[&str]) -> Self {
        let conditions = clauses(conditions);
        self.json(json!({"op": "select", "table": table, "where": conditions, "columns": columns}))
    }

    /// Sets columns of the rows that match all clauses.
    #[must_use]
    pub fn update(self, table: &str, conditions: &[Clause], row: RowValues) -> Self {
        let conditions = clauses(conditions);
        self.json(json!({"op": "update", "table": table, "where": conditions, "row": row.0}))
    }

    /// Changes columns of the rows that match all clauses.
    #[must_use]
    pub fn mutate(self, table: &str, conditions: &[Clause], mutations: &[Mutation]) -> Self {
        let mutations: Vec<_> = mutations.iter().map(|mutation| &mutation.0).collect();
        let conditions = clauses(conditions);
        self.json(json!({
            "op": "mutate", "table": table, "where": conditions, "mutations": mutations,
        }))
    }

    /// Deletes the rows that match all clauses.
    #[must_use]
    pub fn delete(self, table: &str, conditions: &[Clause]) -> Self {
        self.json(json!({"op": "delete", "table": table, "where": clauses(conditions)}))
    }

    /// Fails the transaction with `timed out` unless the columns of the row have these values.
    #[must_use]
    pub fn wait_for_row(self, table: &str, uuid: Uuid, row: &RowValues) -> Self {
        let columns: Vec<_> = row.0.keys().collect();
        self.json(json!({
            "op": "wait", "timeout": 0, "table": table, "until": "==", "columns": columns,
            "where": [["_uuid", "==", ["uuid", uuid.to_string()]]], "rows": [row.0],
        }))
    }

    /// Fails the transaction with `timed out` unless no row matches all clauses.
    #[must_use]
    pub fn wait_until_absent(self, table: &str, conditions: &[Clause]) -> Self {
        self.json(json!({
            "op": "wait", "timeout": 0, "table": table, "until": "==", "columns": ["_uuid"],
            "where": clauses(conditions), "rows": [],
        }))
    }

    /// Replies after the transaction is on disk.
    #[must_use]
    pub fn commit_durably(self) -> Self {
        self.json(json!({"op": "commit", "durable": true}))
    }

    /// Writes a comment to the server's log of transactions.
    #[must_use]
    pub fn comment(self, text: &str) -> Self {
        self.json(json!({"op": "comment", "comment": text}))
    }

    /// Fails the transaction unless this client has the lock.
    #[must_use]
    pub fn assert_lock(self, name: &str) -> Self {
        self.json(json!({"op": "assert", "lock": name}))
    }

    /// The parameters of the request.
    pub(crate) fn params(self, database: &str) -> Value {
        let mut params = vec![json!(database)];
        params.extend(self.operations);
        Value::Array(params)
    }
}

/// The outcome of a transaction.
#[derive(Clone, PartialEq, Debug)]
pub enum TransactOutcome {
    /// The server executed all operations. The changes of replicated rows have arrived in an
    /// earlier event.
    Committed(Vec<OperationResult>),
    /// The server executed nothing.
    Failed(TransactError),
    /// The connection was lost before the request was sent. Nothing was executed.
    NotSent,
    /// The connection was lost before the reply. It is unknown whether the transaction was
    /// executed: look at the replica after the next complete update, or repeat a transaction with a
    /// `wait` operation.
    Lost,
}

/// The result of one operation.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct OperationResult {
    /// The UUID of an inserted row.
    pub uuid: Option<Uuid>,
    /// The number of rows updated, mutated or deleted.
    pub count: Option<u64>,
    /// The rows selected, in the notation of RFC 7047.
    pub rows: Vec<Value>,
}

/// Why a transaction failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactError {
    /// The operation at fault, from 0; `None` if the transaction as a whole failed.
    pub operation: Option<usize>,
    /// The error's name, such as `constraint violation` or `timed out`.
    pub error: String,
    /// The server's explanation.
    pub details: String,
}

impl fmt::Display for TransactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the transaction failed")?;
        if let Some(operation) = self.operation {
            write!(f, " in operation {operation}")?;
        }
        write!(f, ": {}", self.error)?;
        if !self.details.is_empty() {
            write!(f, " ({})", self.details)?;
        }
        Ok(())
    }
}

impl std::error::Error for TransactError {}

impl TransactOutcome {
    /// Reads the `result` of a reply to a request with this number of operations.
    pub(crate) fn from_result(result: &Value, operations: usize) -> Self {
        let failed = |operation, error: &str, details: &str| {
            let (error, details) = (error.to_owned(), details.to_owned());
            Self::Failed(TransactError { operation, error, details })
        };
        let Some(list) = result.as_array() else {
            return failed(None, "malformed reply", "the result is no array");
        };
        for (at, item) in list.iter().enumerate() {
            if let Some(error) = item.get("error").and_then(Value::as_str) {
                let details = item.get("details").and_then(Value::as_str).unwrap_or_default();
                return failed((at < operations).then_some(at), error, details);
            }
        }
        if list.len() < operations || list.iter().take(operations).any(|item| !item.is_object()) {
            return failed(None, "malformed reply", "an operation has no result");
        }
        Self::Committed(list.iter().map(operation_result).collect())
    }

    /// Reads the `error` of a reply.
    pub(crate) fn from_error(error: &Value) -> Self {
        let text = |name| error.get(name).and_then(Value::as_str);
        let name = error.as_str().or_else(|| text("error"));
        Self::Failed(TransactError {
            operation: None,
            error: name.map_or_else(|| error.to_string(), str::to_owned),
            details: text("details").unwrap_or_default().to_owned(),
        })
    }
}

fn operation_result(item: &Value) -> OperationResult {
    let uuid = item.get("uuid").and_then(|value| {
        match crate::datum::Atom::from_json(crate::schema::AtomKind::Uuid, value) {
            Some(crate::datum::Atom::Uuid(uuid)) => Some(uuid),
            _ => None,
        }
    });
    OperationResult {
        uuid,
        count: item.get("count").and_then(Value::as_u64),
        rows: item.get("rows").and_then(Value::as_array).cloned().unwrap_or_default(),
    }
}
