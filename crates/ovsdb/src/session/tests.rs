use super::*;
use crate::datum::Datum;
use crate::request::TableRequest;
use crate::transaction::RowValues;
use crate::{Clause, Function, Limits};
use std::time::Duration;

const ROW: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const OTHER: &str = "bbbbbbbb-0000-4000-8000-000000000002";
const TXN: &str = "cccccccc-0000-4000-8000-000000000003";
const CID: &str = "dddddddd-0000-4000-8000-000000000004";
const SCHEMA: &str = r#"{"name":"db","version":"1.2.3","tables":{"T":{"columns":{
    "name":{"type":"string"},
    "n":{"type":{"key":"integer","min":0,"max":"unlimited"}}}}}}"#;

/// A session, and a server whose part the test plays.
struct Pair {
    session: Session,
    now: Instant,
}

fn config() -> Config {
    let remote = "unix:/nowhere".parse().unwrap();
    Config::new("db", [remote]).table(TableRequest::all_columns("T").index("name", &["name"]))
}

impl Pair {
    fn new(config: Config) -> Self {
        let now = Instant::now();
        Self { session: Session::new(config, now).unwrap(), now }
    }

    /// Connects; the first request is the next one.
    fn connect(&mut self) {
        self.now = self.session.next_deadline().unwrap().max(self.now);
        loop {
            match self.session.poll_action(self.now) {
                Some(Action::Close) => {}
                Some(Action::Connect(_)) => break,
                None => panic!("no connection"),
            }
        }
        self.session.handle_connected(self.now);
    }

    /// The next message of the session.
    fn request(&mut self, method: &str) -> Value {
        let message = self.session.poll_transmit().unwrap_or_else(|| panic!("no {method}"));
        let message: Value = serde_json::from_slice(&message).unwrap();
        assert_eq!(message["method"], method, "{message}");
        message
    }

    fn say(&mut self, message: &Value) {
        self.session.handle_bytes(self.now, message.to_string().as_bytes());
    }

    fn reply(&mut self, request: &Value, result: Value) {
        // In the order of OVS, so that rows are streamed.
        let text = format!(r#"{{"id":{},"result":{result},"error":null}}"#, request["id"]);
        self.session.handle_bytes(self.now, text.as_bytes());
    }

    fn refuse(&mut self, request: &Value, error: Value) {
        self.say(&json!({"id": request["id"], "result": null, "error": error}));
    }

    fn notify(&mut self, method: &str, params: Value) {
        let text = format!(r#"{{"id":null,"method":"{method}","params":{params}}}"#);
        self.session.handle_bytes(self.now, text.as_bytes());
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }

    /// The reason of the last disconnection.
    fn reason(&mut self) -> String {
        let reason = |event| match event {
            Event::Disconnected { reason, .. } => Some(reason.to_string()),
            _ => None,
        };
        let found = self.events().into_iter().filter_map(reason).next_back();
        assert_eq!(self.session.poll_action(self.now), Some(Action::Close));
        found.expect("disconnected")
    }

    /// Replies to the monitor of `_Server`.
    fn serve(&mut self, columns: Value) {
        let request = self.request("monitor_cond");
        assert_eq!(request["params"][0], "_Server");
        self.reply(&request, json!({"Database": {OTHER: {"initial": columns}}}));
    }

    /// Replies to the request for the schema.
    fn serve_schema(&mut self) {
        let request = self.request("get_schema");
        self.reply(&request, serde_json::from_str(SCHEMA).unwrap());
    }

    /// Connects, and replies up to the monitor request for the data, which it returns.
    fn until_monitored(&mut self) -> Value {
        self.connect();
        self.serve(standalone());
        self.request("set_db_change_aware");
        self.serve_schema();
        self.request("monitor_cond_since")
    }

    /// Connects, and dumps these rows.
    fn until_ready(&mut self, rows: Value) {
        let request = self.until_monitored();
        self.reply(&request, json!([false, TXN, {"T": rows}]));
        assert!(self.session.is_ready());
    }

    fn names(&self) -> Vec<String> {
        let table = self.session.replica().table("T").unwrap();
        table.index("name").unwrap().rows().filter_map(|row| row.value("name")).collect()
    }
}

fn standalone() -> Value {
    json!({"name": "db", "model": "standalone", "connected": true, "leader": true,
        "schema": SCHEMA})
}

fn clustered(index: i64) -> Value {
    json!({"name": "db", "model": "clustered", "connected": true, "leader": false,
        "schema": SCHEMA, "cid": ["uuid", CID], "index": index})
}

#[test]
fn replica_follows_when_rows_are_inserted_modified_and_deleted() {
    let mut pair = Pair::new(config());
    pair.until_ready(json!({ROW: {"initial": {"name": "a", "n": ["set", [1, 2]]}}}));
    let monitor = "data.0";
    pair.notify(
        "update3",
        json!([monitor, TXN, {"T": {
        ROW: {"modify": {"n": ["set", [2, 3]]}},
        OTHER: {"insert": {"name": "b"}}}}]),
    );
    assert_eq!(pair.names(), ["a", "b"]);
    let row = pair.session.replica().row("T", ROW.parse().unwrap()).unwrap();
    assert_eq!(row.get("n"), Some(&Datum::from(vec![1, 3])));
    pair.notify("update3", json!([monitor, TXN, {"T": {OTHER: {"delete": null}}}]));
    assert_eq!(pair.names(), ["a"]);
    let updates: Vec<_> = pair
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::Update(update) => Some(update),
            _ => None,
        })
        .collect();
    assert_eq!(updates.len(), 3);
    assert_eq!(updates[0].kind, UpdateKind::Dump(MonitorMethod::MonitorCondSince));
    assert_eq!(updates[1].changes.len(), 2);
    let change = &updates[2].changes[0];
    assert!(change.old.is_some() && change.new.is_none() && change.table() == "T");
    assert_eq!(pair.session.last_transaction().to_string(), TXN);
}

#[test]
fn only_differences_are_reported_when_a_dump_replaces_the_replica() {
    let mut pair = Pair::new(config());
    pair.until_ready(json!({
        ROW: {"initial": {"name": "same"}}, OTHER: {"initial": {"name": "gone"}}}));
    pair.session.handle_disconnected(pair.now, "test");
    assert_eq!(pair.names(), ["gone", "same"], "the replica stays");
    pair.events();
    pair.until_ready(json!({ROW: {"initial": {"name": "same"}}, TXN: {"initial": {}}}));
    assert_eq!(pair.names(), ["", "same"]);
    let Some(Event::Update(update)) = pair.events().pop() else { panic!("no update") };
    assert_eq!(update.changes.len(), 2, "{:?}", update.changes);
}

#[test]
fn session_resumes_after_the_last_transaction() {
    let mut pair = Pair::new(config());
    let request = pair.until_monitored();
    assert_eq!(request["params"][3], Uuid::NIL.to_string());
    pair.reply(&request, json!([false, TXN, {"T": {ROW: {"initial": {"name": "a"}}}}]));
    pair.session.reconnect(pair.now);
    let request = pair.until_monitored();
    assert_eq!(request["params"][3], TXN);
    pair.reply(&request, json!([true, OTHER, {"T": {ROW: {"modify": {"name": "b"}}}}]));
    assert_eq!(pair.names(), ["b"]);
    let Some(Event::Update(update)) = pair.events().pop() else { panic!("no update") };
    assert_eq!((update.kind, update.transaction.to_string()), (UpdateKind::Resumed, OTHER.into()));
}

#[test]
fn dump_is_asked_for_when_a_difference_does_not_fit() {
    let mut pair = Pair::new(config());
    pair.until_ready(json!({}));
    pair.notify("update3", json!(["data.0", TXN, {"T": {ROW: {"modify": {"name": "x"}}}}]));
    let reason = pair.reason();
    assert!(reason.contains("modified row aaaaaaaa-0000") && reason.contains(" of T"), "{reason}");
    let request = pair.until_monitored();
    assert_eq!(request["params"][3], Uuid::NIL.to_string());
}

#[test]
fn older_methods_are_used_when_the_server_does_not_know_the_newer() {
    let mut pair = Pair::new(config());
    let request = pair.until_monitored();
    pair.refuse(&request, json!("unknown method"));
    let request = pair.request("monitor_cond");
    pair.refuse(&request, json!({"error": "unknown method"}));
    let request = pair.request("monitor");
    pair.reply(&request, json!({"T": {ROW: {"new": {"name": "a", "n": 1}}}}));
    assert_eq!(pair.names(), ["a"]);
    pair.notify(
        "update",
        json!(["data.0", {"T": {
        ROW: {"old": {"name": "a"}, "new": {"name": "b", "n": 1}}}}]),
    );
    assert_eq!(pair.names(), ["b"]);
    pair.notify("update", json!(["data.0", {"T": {ROW: {"old": {"name": "b", "n": 1}}}}]));
    assert!(pair.names().is_empty());
    assert_eq!(pair.session.method(), Some(MonitorMethod::Monitor));
}

#[test]
fn schema_is_asked_for_when_the_server_says_nothing_about_itself() {
    let mut pair = Pair::new(config());
    pair.connect();
    let request = pair.request("monitor_cond");
    pair.refuse(&request, json!({"error": "unknown database"}));
    pair.serve_schema();
    let request = pair.request("monitor_cond");
    pair.reply(&request, json!({"T": {ROW: {"initial": {"name": "a"}}}}));
    assert_eq!(pair.names(), ["a"]);
    assert!(pair.session.server().is_none());
}

#[test]
fn monitor_error_is_no_reason_to_fall_back_when_the_method_is_known() {
    let mut pair = Pair::new(config());
    let request = pair.until_monitored();
    pair.refuse(&request, json!({"error": "syntax error", "details": "no column x"}));
    let reason = pair.reason();
    assert!(reason.contains("refused `monitor_cond_since`"), "{reason}");
    assert!(reason.contains("no column x"), "{reason}");
}

#[test]
fn unsuitable_server_is_left_with_the_reason() {
    let without = |name: &str, value: Value| {
        let mut row = clustered(5);
        row[name] = value;
        row
    };
    let leader_only = Config { leader_only: true, ..config() };
    let pinned = Config { cluster_id: Some(Uuid::MAX), ..config() };
    for (config, row, expected) in [
        (config(), without("schema", json!(["set", []])), "not joined its cluster"),
        (config(), without("connected", json!(false)), "disconnected from its cluster"),
        (config(), without("name", json!("other")), "no database db"),
        (leader_only, clustered(5), "not the leader"),
        (pinned, clustered(5), "belongs to the cluster dddddddd"),
    ] {
        let mut pair = Pair::new(config);
        pair.connect();
        pair.serve(row);
        let reason = pair.reason();
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn follower_is_left_when_its_raft_index_is_behind_what_was_seen() {
    let mut pair = Pair::new(config());
    for (index, expected) in [(5, None), (4, Some("raft index 4, and 5")), (5, None)] {
        pair.connect();
        pair.serve(clustered(index));
        match expected {
            Some(expected) => assert!(pair.reason().contains(expected)),
            None => {
                pair.request("set_db_change_aware");
                pair.session.reconnect(pair.now);
            }
        }
    }
    pair.connect();
    let mut rebuilt = clustered(1);
    rebuilt["cid"] = json!(["uuid", OTHER]);
    pair.serve(rebuilt);
    pair.request("set_db_change_aware");
    assert_eq!(pair.session.server().unwrap().index, Some(1), "a rebuilt cluster starts again");
}

#[test]
fn server_is_left_when_it_is_without_its_cluster_for_too_long() {
    let mut pair = Pair::new(config());
    pair.connect();
    pair.serve(clustered(5));
    pair.notify("update2", json!(["server.0", {"Database": {OTHER: {"modify": {"index": 9}}}}]));
    assert_eq!(pair.session.server().unwrap().index, Some(9));
    let patience = pair.session.config().times.election_patience;
    for (is_connected, is_used) in [(false, true), (true, true), (false, true), (false, false)] {
        let change = json!({"connected": is_connected, "index": 9});
        pair.notify("update2", json!(["server.0", {"Database": {OTHER: {"modify": change}}}]));
        pair.now += patience * 2 / 3;
        pair.session.handle_timeout(pair.now);
        assert_eq!(pair.session.server().is_some(), is_used);
    }
    assert!(pair.reason().contains("disconnected from its cluster"));
}

#[test]
fn server_without_its_known_cluster_is_used_until_the_patience_ends() {
    let mut pair = Pair::new(config());
    pair.connect();
    pair.serve(clustered(5));
    pair.request("set_db_change_aware");
    pair.session.reconnect(pair.now);
    let mut row = clustered(5);
    row["connected"] = json!(false);
    pair.connect();
    pair.serve(row);
    pair.request("set_db_change_aware");
    pair.now += pair.session.config().times.election_patience;
    pair.session.handle_timeout(pair.now);
    assert!(pair.reason().contains("disconnected from its cluster"));
}

#[test]
fn column_of_another_type_is_refused_with_table_and_column() {
    let mut config = config();
    let column = |name: &str, expected, is_optional| crate::ColumnRequest {
        name: name.into(),
        expected,
        is_optional,
    };
    let integer = Some(<i64 as crate::FromDatum>::EXPECTED);
    config.tables[0].columns = Some(vec![column("name", integer, false)]);
    config.tables[0].indexes.clear();
    let mut pair = Pair::new(config.clone());
    pair.connect();
    pair.serve(clustered(5));
    let reason = pair.reason();
    assert!(reason.contains("db (version 1.2.3)"), "{reason}");
    assert!(reason.contains("T.name is a string; expected an integer"), "{reason}");

    config.tables[0].columns = Some(vec![column("absent", integer, false)]);
    let mut pair = Pair::new(config.clone());
    pair.connect();
    pair.serve(clustered(5));
    assert!(pair.reason().contains("no column T.absent"));

    config.tables[0].columns = Some(vec![column("absent", integer, true)]);
    let mut pair = Pair::new(config);
    let request = pair.until_monitored();
    assert_eq!(request["params"][2], json!({"T": [{"columns": []}]}));
    pair.reply(&request, json!([false, TXN, {"T": {ROW: {"initial": {}}}}]));
    let row = pair.session.replica().row("T", ROW.parse().unwrap()).unwrap();
    assert_eq!(row.value::<i64>("absent"), Some(0));
}

#[test]
fn value_of_another_type_is_refused_with_table_and_column() {
    let mut pair = Pair::new(config());
    let request = pair.until_monitored();
    pair.reply(&request, json!([false, TXN, {"T": {ROW: {"initial": {"n": ["set", ["x"]]}}}}]));
    let reason = pair.reason();
    assert!(reason.contains("T.n of row aaaaaaaa-0000-4000-8000-000000000001"), "{reason}");
    assert!(reason.contains("expected a value of type integer, not \"x\""), "{reason}");
    assert!(pair.names().is_empty());
}

#[test]
fn limits_are_named_when_a_server_exceeds_them() {
    let limits = Limits { rows: 1, message_bytes: 4096, depth: 12, ..Limits::default() };
    let two = json!({ROW: {"initial": {}}, OTHER: {"initial": {}}});
    let long = json!({ROW: {"initial": {"name": "x".repeat(5000)}}});
    for (rows, expected) in [(two, "limit rows"), (long, "limit message_bytes")] {
        let mut pair = Pair::new(Config { limits, ..config() });
        let request = pair.until_monitored();
        pair.reply(&request, json!([false, TXN, {"T": rows}]));
        let reason = pair.reason();
        assert!(reason.contains(expected), "{reason}");
    }
    let mut pair = Pair::new(Config { limits, ..config() });
    pair.until_ready(json!({ROW: {"initial": {}}}));
    pair.notify("update3", json!(["data.0", TXN, {"T": {OTHER: {"insert": {}}}}]));
    assert!(pair.reason().contains("limit rows"));
    let mut pair = Pair::new(Config { limits, ..config() });
    pair.connect();
    let deep = format!("{{\"id\":0,\"result\":{}", "[".repeat(50));
    pair.session.handle_bytes(pair.now, deep.as_bytes());
    assert!(pair.reason().contains("limit depth"));
    let wrong = Limits { depth: 1000, ..limits };
    let error = Session::new(Config { limits: wrong, ..config() }, Instant::now()).err();
    assert_eq!(error, Some(ConfigError::Limit { name: "depth" }));
    let times = Times { max_backoff: Duration::MAX, ..Times::default() };
    let error = Session::new(Config { times, ..config() }, Instant::now()).err();
    assert_eq!(error, Some(ConfigError::Time { name: "max_backoff" }));
}

#[test]
fn conditions_are_sent_one_after_another_and_confirmed() {
    let mut pair = Pair::new(config());
    let condition = |n: i64| Condition::any([Clause::new("n", Function::Includes, n)]);
    assert_eq!(pair.session.set_condition("T", condition(1)), Ok(1), "before the connection");
    assert_eq!(pair.session.set_condition("U", condition(1)), Err(SendError::UnknownTable));
    let request = pair.until_monitored();
    assert_eq!(request["params"][2]["T"][0]["where"], json!([["n", "includes", 1]]));
    pair.reply(&request, json!([false, TXN, {}]));
    assert!(pair.events().contains(&Event::ConditionsApplied { seqno: 1 }));
    assert_eq!(pair.session.set_condition("T", condition(1)), Ok(1), "unchanged");
    assert_eq!(pair.session.set_condition("T", condition(2)), Ok(2));
    assert_eq!(pair.session.set_condition("T", Condition::none()), Ok(3));
    let request = pair.request("monitor_cond_change");
    let expected = json!(["data.0", "data.0", {"T": [{"where": [["n", "includes", 2]]}]}]);
    assert_eq!(request["params"], expected);
    assert!(pair.session.poll_transmit().is_none(), "one at a time");
    pair.reply(&request, json!({}));
    assert_eq!(pair.events(), [Event::ConditionsApplied { seqno: 2 }]);
    let request = pair.request("monitor_cond_change");
    assert_eq!(request["params"][2]["T"][0]["where"], json!([false]));
    pair.refuse(&request, json!({"error": "no"}));
    let refused = Event::ConditionsRefused { seqno: 3, error: json!({"error": "no"}) };
    assert_eq!(pair.events(), [refused]);
}

#[test]
fn dump_is_asked_for_when_conditions_were_on_their_way() {
    let mut pair = Pair::new(config());
    pair.until_ready(json!({}));
    pair.session.set_condition("T", Condition::none()).unwrap();
    pair.request("monitor_cond_change");
    pair.session.handle_disconnected(pair.now, "test");
    let request = pair.until_monitored();
    assert_eq!(request["params"][3], Uuid::NIL.to_string());
    assert_eq!(request["params"][2]["T"][0]["where"], json!([false]));

    let mut pair = Pair::new(config());
    pair.until_ready(json!({}));
    pair.session.handle_disconnected(pair.now, "test");
    pair.session.set_condition("T", Condition::none()).unwrap();
    let request = pair.until_monitored();
    assert_eq!(request["params"][3], TXN, "the old conditions, then the new");
    assert_eq!(request["params"][2]["T"][0].get("where"), None);
    pair.reply(&request, json!([true, TXN, {}]));
    pair.request("monitor_cond_change");
}

#[test]
fn transactions_are_lost_or_not_sent_when_the_connection_ends() {
    let mut pair = Pair::new(config());
    let insert = || Transaction::new().insert("T", RowValues::new().set("name", "a"));
    assert_eq!(pair.session.transact(insert()), Err(SendError::NotReady));
    pair.until_ready(json!({}));
    let sent = pair.session.transact(insert()).unwrap();
    let request = pair.request("transact");
    assert_eq!(
        request["params"],
        json!(["db", {"op": "insert", "table": "T", "row": {"name": "a"}}])
    );
    let unsent = pair.session.transact(insert()).unwrap();
    let other = pair.session.list_dbs().unwrap();
    pair.events();
    pair.session.handle_disconnected(pair.now, "test");
    let events = pair.events();
    assert_eq!(
        events[..3],
        [
            Event::Transacted { id: sent, outcome: TransactOutcome::Lost },
            Event::Transacted { id: unsent, outcome: TransactOutcome::NotSent },
            Event::Replied { id: other, reply: Reply::Lost },
        ]
    );
}

#[test]
fn requests_are_refused_when_there_are_too_many() {
    let limits = Limits { requests: 2, unsent_bytes: 1024, ..Limits::default() };
    let mut pair = Pair::new(Config { limits, ..config() });
    pair.until_ready(json!({}));
    // `set_db_change_aware` has no reply yet.
    let long = Value::from("x".repeat(2000));
    assert_eq!(pair.session.call("echo", &json!([long])), Err(SendError::Full));
    pair.session.list_dbs().unwrap();
    assert_eq!(pair.session.list_dbs(), Err(SendError::TooManyRequests));
}

#[test]
fn echo_is_answered_and_sent_and_silence_ends_the_connection() {
    let mut pair = Pair::new(config());
    pair.until_ready(json!({}));
    pair.say(&json!({"id": "echo", "method": "echo", "params": [1, "a"]}));
    let reply: Value = serde_json::from_slice(&pair.session.poll_transmit().unwrap()).unwrap();
    assert_eq!(reply, json!({"id": "echo", "result": [1, "a"], "error": null}));
    pair.say(&json!({"id": 7, "method": "steal everything", "params": []}));
    let reply: Value = serde_json::from_slice(&pair.session.poll_transmit().unwrap()).unwrap();
    assert_eq!(reply["error"], "unknown method");
    pair.now += Duration::from_secs(5);
    pair.session.handle_timeout(pair.now);
    pair.request("echo");
    pair.now += Duration::from_secs(5);
    pair.session.handle_timeout(pair.now);
    assert!(pair.reason().contains("probe_interval"));
}

#[test]
fn everything_is_monitored_again_when_the_server_cancels_a_monitor() {
    let mut pair = Pair::new(config());
    pair.until_ready(json!({ROW: {"initial": {"name": "a"}}}));
    pair.notify("monitor_canceled", json!(["data.0"]));
    assert_eq!(pair.request("monitor_cancel")["params"], json!(["server.0"]));
    pair.serve(standalone());
    pair.request("set_db_change_aware");
    pair.serve_schema();
    let request = pair.request("monitor_cond_since");
    assert_eq!(request["params"][1], "data.1");
    pair.notify("update3", json!(["data.0", TXN, {"T": {ROW: {"modify": {"name": "late"}}}}]));
    pair.reply(&request, json!([false, TXN, {"T": {ROW: {"initial": {"name": "b"}}}}]));
    assert_eq!(pair.names(), ["b"]);
}

#[test]
fn lock_is_asked_for_on_every_connection_and_reported() {
    let mut pair = Pair::new(Config { lock: Some("l".to_owned()), ..config() });
    pair.connect();
    let request = pair.request("lock");
    assert_eq!(request["params"], json!(["l"]));
    pair.reply(&request, json!({"locked": false}));
    assert!(!pair.session.has_lock());
    pair.notify("locked", json!(["l"]));
    assert!(pair.session.has_lock());
    pair.notify("stolen", json!(["l"]));
    assert!(!pair.session.has_lock());
    pair.notify("locked", json!(["other"]));
    assert!(!pair.session.has_lock());
    assert_eq!(pair.events().len(), 3);
}

#[test]
fn protocol_errors_are_refused() {
    for (text, expected) in [
        (r#"{"id":null}"#, "neither `method` nor `id`"),
        (r#"{"id":0}"#, "neither `result` nor `error`"),
        (r#"{"method":"echo","id":1}"#, "`echo` has no params"),
        (r#"{"id":0,"result":{"Database":7}}"#, "monitor_cond: "),
        (r#"{"id":0 "result":1}"#, "not JSON-RPC"),
        ("\u{1}", "expected a JSON object"),
        (
            r#"{"id":0,"result":{"Nowhere":{"aaaaaaaa-0000-4000-8000-000000000001":{}}}}"#,
            "has rows of Nowhere, which is not monitored",
        ),
        (
            r#"{"id":0,"result":{"Database":{"aaaaaaaa-0000-4000-8000-000000000001":{}}}}"#,
            "the update of a row is empty",
        ),
        (
            r#"{"id":0,"result":{"Database":{"aaaaaaaa-0000-4000-8000-000000000001":{"new":{}}}}}"#,
            "`new` has no meaning in update2",
        ),
    ] {
        let mut pair = Pair::new(config());
        pair.connect();
        pair.session.handle_bytes(pair.now, text.as_bytes());
        let reason = pair.reason();
        assert!(reason.contains(expected), "{text}: {reason}");
    }
}
