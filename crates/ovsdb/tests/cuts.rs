//! Feeds an OVSDB session the first N bytes of a recording, disconnects and reconnects it, for
//! every N. The replica must end up the same.

use crate::harness::{Cluster, Driver, Dump, dump_of, zoo_schema};
use crate::random::{Random, transaction};
use ovsdb::{Action, Config, Session, TableRequest, Uuid};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A recording of one session with a real server.
struct Recording {
    /// The configuration of the session.
    config: Config,
    /// All bytes that the server sent.
    bytes: Vec<u8>,
    /// The content of the database at the end.
    final_state: Dump,
}

/// Records a session during random transactions.
fn record() -> Recording {
    let cluster = Cluster::start("cuts", &zoo_schema(), 1);
    let config = Config::new("zoo", cluster.remotes())
        .table(TableRequest::all_columns("Animal").index("name", &["name"]))
        .table(TableRequest::all_columns("Cage"));
    let mut writer = Driver::new(config.clone());
    writer.until_ready();
    let mut random = Random(0xfeed_beef_cafe_0001);
    let mut change = |count| {
        for _ in 0..count {
            let state = cluster.dump("zoo");
            cluster.transact(&transaction(&mut random, &state).to_string());
        }
        cluster.dump("zoo")
    };
    change(4);
    let mut session = Session::new(config.clone(), Instant::now()).unwrap();
    let Some(Action::Connect(ovsdb::Remote::Unix(path))) = session.poll_action(Instant::now())
    else {
        panic!("no connection")
    };
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    session.handle_connected(Instant::now());
    let mut bytes = Vec::new();
    let mut follow = |state: &Dump, session: &mut Session| {
        let deadline = Instant::now() + testkit::program::LIMIT;
        while !session.is_ready() || dump_of(session.replica()) != *state {
            assert!(Instant::now() < deadline, "the replica does not reach the server's state");
            while let Some(message) = session.poll_transmit() {
                stream.write_all(&message).unwrap();
            }
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer) {
                Ok(length) => {
                    bytes.extend_from_slice(&buffer[..length]);
                    session.handle_bytes(Instant::now(), &buffer[..length]);
                    while session.poll_event().is_some() {}
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    follow(&cluster.dump("zoo"), &mut session);
    for _ in 0..6 {
        let state = change(1);
        follow(&state, &mut session);
    }
    Recording { config, bytes, final_state: cluster.dump("zoo") }
}

/// Replies to the requests of a second connection, with the messages of the recording.
struct Replay {
    /// The result of the monitor request for the server's row in the database `_Server`.
    server_row_reply: Value,
    /// The result of `monitor_cond_since` that contains all rows.
    full_reply: Value,
    /// The `update3` notifications, in order.
    updates: Vec<Value>,
}

impl Replay {
    fn new(bytes: &[u8]) -> Self {
        let messages: Vec<Value> =
            serde_json::Deserializer::from_slice(bytes).into_iter().map(Result::unwrap).collect();
        let results = |name: &str| {
            let found = messages.iter().map(|message| &message["result"]);
            found.filter(|result| result.to_string().contains(name)).cloned().collect::<Vec<_>>()
        };
        let mut server_row_reply = results("\"Database\"").remove(0);
        for row in server_row_reply["Database"].as_object_mut().unwrap().values_mut() {
            // The session refuses a server whose raft index is lower than one that it has seen, so
            // this reports a high index.
            row["initial"]["index"] = json!(1 << 30);
        }
        let is_update = |message: &&Value| message["method"] == "update3";
        let is_full = |message: &&Value| message["result"][0] == json!(false);
        Self {
            server_row_reply,
            full_reply: messages.iter().find(is_full).unwrap()["result"].clone(),
            updates: messages.iter().filter(is_update).cloned().collect(),
        }
    }

    /// Replies to all requests of a session, and sends it the updates that it lacks.
    fn serve(&self, session: &mut Session, now: Instant) {
        session.handle_connected(now);
        let send = |session: &mut Session, message: &Value| {
            session.handle_bytes(now, message.to_string().as_bytes());
        };
        while let Some(request) = session.poll_transmit() {
            let request: Value = serde_json::from_slice(&request).unwrap();
            let (result, later) = match request["method"].as_str().unwrap() {
                "monitor_cond" => (self.server_row_reply.clone(), 0..0),
                "monitor_cond_since" => self.since(&request["params"][3]),
                _ => (json!({}), 0..0),
            };
            send(session, &json!({"id": request["id"], "result": result, "error": null}));
            for update in &self.updates[later] {
                send(session, update);
            }
        }
    }

    /// The result of `monitor_cond_since` for a client that has all changes up to `transaction`,
    /// and the range of the later updates.
    fn since(&self, transaction: &Value) -> (Value, std::ops::Range<usize>) {
        let all = self.updates.len();
        if *transaction == self.full_reply[1] && *transaction != Uuid::NIL.to_string() {
            return (json!([true, transaction, {}]), 0..all);
        }
        let known = self.updates.iter().position(|update| update["params"][1] == *transaction);
        match known {
            Some(at) => (json!([true, transaction, {}]), at + 1..all),
            None => (self.full_reply.clone(), 0..all),
        }
    }
}

#[test]
fn replica_is_the_same_when_the_connection_ends_at_any_byte() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let Recording { config, bytes, final_state } = record();
    let replay = Replay::new(&bytes);
    assert!(replay.updates.len() >= 6 && bytes.len() > 3000, "{} bytes", bytes.len());
    // How many sessions resume after their last transaction, and how many fetch all rows again.
    let (mut resumed, mut refetched) = (0, 0);
    for cut in 0..=bytes.len() {
        let mut now = Instant::now();
        let mut session = Session::new(config.clone(), now).unwrap();
        assert!(matches!(session.poll_action(now), Some(Action::Connect(_))));
        session.handle_connected(now);
        while session.poll_transmit().is_some() {}
        // Delivers the bytes in two parts, so that the JSON parser must also resume within a
        // message.
        let (first, second) = bytes[..cut].split_at(cut / 2);
        for part in [first, second] {
            session.handle_bytes(now, part);
            while session.poll_transmit().is_some() {}
        }
        if session.last_transaction().is_nil() {
            refetched += 1
        } else {
            resumed += 1
        }
        session.handle_disconnected(now, "cut");
        now = session.next_deadline().unwrap();
        while !matches!(session.poll_action(now), Some(Action::Connect(_))) {}
        replay.serve(&mut session, now);
        assert!(session.is_ready(), "cut at {cut}");
        assert_eq!(dump_of(session.replica()), final_state, "cut at {cut}");
    }
    assert!(resumed > 100 && refetched > 100, "{resumed} resumed, {refetched} fetched all rows");
    testkit::report::peer("ovsdb-server", "a recorded session is cut at every byte");
}
