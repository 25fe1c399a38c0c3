//! Targets for the OVSDB client: schemas, and messages from a server.

use ovsdb::{Action, Config, Datum, Event, Limits, Schema, Session, TableRequest};
use std::time::Instant;

/// The schema of the database, with a column of each type.
pub const SCHEMA: &str = r#"{"name":"d","version":"1","tables":{"T":{"columns":{
    "s":{"type":"string"},"i":{"type":"integer"},"r":{"type":"real"},"b":{"type":"boolean"},
    "u":{"type":"uuid"},"o":{"type":{"key":"integer","min":0}},
    "is":{"type":{"key":"integer","min":0,"max":"unlimited"}},
    "m":{"type":{"key":"string","value":"real","min":0,"max":"unlimited"}}}}}}"#;
/// The UUID of the row that the replica has before an update.
pub const ROW: &str = "aaaaaaaa-0000-4000-8000-000000000001";

/// Parses a schema. Returns whether it is valid.
pub fn schema(bytes: &[u8]) -> bool {
    match Schema::from_text(bytes) {
        Ok(schema) => {
            for column in schema.tables.values().flat_map(|table| table.columns.values()) {
                let default = column.ty.default_datum();
                assert!(default.len() >= column.ty.min as usize, "{}", column.ty);
                assert!(default.len() <= column.ty.max as usize, "{}", column.ty);
            }
            true
        }
        Err(error) => {
            assert!(!error.problem.is_empty());
            false
        }
    }
}

/// A session that has just connected.
fn connected(now: Instant) -> Session {
    let request = TableRequest::all_columns("T")
        .index("s", &["s", "i"])
        .index_elements("is", "is")
        .index_map_values("m", "m");
    let mut config = Config::new("d", ["unix:/s".parse().expect("a remote")]).table(request);
    config.limits = Limits { message_bytes: 4096, depth: 16, rows: 100, ..Limits::default() };
    let mut session = Session::new(config, now).expect("a valid configuration");
    assert!(matches!(session.poll_action(now), Some(Action::Connect(_))));
    session.handle_connected(now);
    session
}

/// The result of a session: all events, and the rows at the end.
#[derive(PartialEq, Debug)]
pub struct Outcome {
    events: Vec<Event>,
    rows: Vec<String>,
    /// True if the session has a complete replica.
    pub is_ready: bool,
}

fn outcome(session: &mut Session) -> Outcome {
    let events: Vec<_> = std::iter::from_fn(|| session.poll_event()).collect();
    let table = session.replica().table("T").expect("it is requested");
    let mut rows: Vec<_> = table.rows().map(|row| format!("{row:?}")).collect();
    rows.sort_unstable();
    assert_eq!(rows.len(), session.replica().len());
    for row in table.rows() {
        check_row(session, row);
    }
    Outcome { events, rows, is_ready: session.is_ready() }
}

/// Checks that values have the types of their columns, and that indexes find the row.
fn check_row(session: &Session, row: &ovsdb::Row) {
    let table = session.replica().table("T").expect("it is requested");
    for (column, value) in row.layout().columns().iter().zip(row.values()) {
        assert!(column.ty.check(value).is_ok(), "{}: {value:?}", column.name);
    }
    let key: Vec<Datum> = ["s", "i"].iter().filter_map(|name| row.get(name).cloned()).collect();
    let finds = |index: &str, key: &[Datum]| {
        let found = table.index(index).expect("it is requested").find(key);
        found.filter(|other| other.uuid() == row.uuid()).count()
    };
    if key.len() == 2 {
        assert_eq!(finds("s", &key), 1);
    }
    for atom in row.get("is").map(Datum::atoms).unwrap_or_default() {
        assert_eq!(finds("is", &[Datum::Scalar(atom.clone())]), 1);
    }
}

/// Feeds the same bytes to two sessions: to one in parts, whose size is the first byte, and to the
/// other as a whole. Both must have the same outcome.
pub fn stream(bytes: &[u8]) -> Option<Outcome> {
    let (&size, text) = bytes.split_first()?;
    let now = Instant::now();
    let mut whole = connected(now);
    whole.handle_bytes(now, text);
    let whole = outcome(&mut whole);
    let mut parts = connected(now);
    for part in text.chunks(usize::from(size).max(1)) {
        parts.handle_bytes(now, part);
        while parts.poll_transmit().is_some() {}
    }
    let parts = outcome(&mut parts);
    assert_eq!(whole, parts);
    Some(whole)
}

/// Sends an update to a replica with one row, in two messages that differ in the order of their
/// members. In one, the client parses each row separately. In the other, the rows are part of the
/// whole message. Both must have the same outcome.
///
/// Returns the number of rows; `None` if the session refuses the update.
pub fn update(bytes: &[u8]) -> Option<usize> {
    // The input must be one JSON value. Otherwise it could end the message.
    serde_json::from_slice::<&serde_json::value::RawValue>(bytes).ok()?;
    let text = str::from_utf8(bytes).ok()?;
    let params = format!(r#""params":["data.0",{text}]"#);
    let outcomes = [
        format!(r#"{{"id":null,"method":"update2",{params}}}"#),
        format!(r#"{{"id":null,{params},"method":"update2"}}"#),
    ]
    .map(|message| {
        let now = Instant::now();
        let mut session = connected(now);
        session.handle_bytes(now, b"{\"id\":0,\"error\":\"unknown method\"}");
        let reply = format!(r#"{{"id":1,"result":{SCHEMA},"error":null}}"#);
        session.handle_bytes(now, reply.as_bytes());
        let rows = format!(
            r#"{{"id":2,"result":{{"T":{{"{ROW}":{{"initial":{{"s":"a","is":["set",[1,2]],
            "m":["map",[["k",1]]]}}}}}}}}}}"#
        );
        session.handle_bytes(now, rows.as_bytes());
        assert!(session.is_ready());
        session.handle_bytes(now, message.as_bytes());
        outcome(&mut session)
    });
    let [early, late] = &outcomes;
    assert_eq!(early.rows, late.rows);
    assert_eq!(early.is_ready, late.is_ready);
    early.is_ready.then_some(early.rows.len())
}
