//! Replays a recorded session, and cuts the connection at every byte.

use crate::harness::{Cluster, Driver, Dump, dump_of, zoo_schema};
use crate::random::{Random, transaction};
use ovsdb::{Action, Config, Session, TableRequest, Uuid};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The bytes that a real server sent to a session, and the last state.
struct Recording {
    config: Config,
    bytes: Vec<u8>,
    state: Dump,
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
            assert!(Instant::now() < deadline, "the replica follows");
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
    Recording { config, bytes, state: cluster.dump("zoo") }
}

/// Replies to the requests of a second connection from the recording.
struct Replay {
    server: Value,
    dump: Value,
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
        let mut server = results("\"Database\"").remove(0);
        for row in server["Database"].as_object_mut().unwrap().values_mut() {
            // The session has seen later indexes than that of the first reply.
            row["initial"]["index"] = json!(1 << 30);
        }
        let is_update = |message: &&Value| message["method"] == "update3";
        Self {
            server,
            dump: messages.iter().find(|message| message["result"][0] == json!(false)).unwrap()
                ["result"]
                .clone(),
            updates: messages.iter().filter(is_update).cloned().collect(),
        }
    }

    /// Serves a session from its monitor request on, until it has all updates.
    fn serve(&self, session: &mut Session, now: Instant) {
        session.handle_connected(now);
        let send = |session: &mut Session, message: &Value| {
            session.handle_bytes(now, message.to_string().as_bytes());
        };
        while let Some(request) = session.poll_transmit() {
            let request: Value = serde_json::from_slice(&request).unwrap();
            let (result, later) = match request["method"].as_str().unwrap() {
                "monitor_cond" => (self.server.clone(), 0..0),
                "monitor_cond_since" => self.since(&request["params"][3]),
                _ => (json!({}), 0..0),
            };
            send(session, &json!({"id": request["id"], "result": result, "error": null}));
            for update in &self.updates[later] {
                send(session, update);
            }
        }
    }

    /// The reply to a client that has all changes up to a transaction, and the updates after it.
    fn since(&self, transaction: &Value) -> (Value, std::ops::Range<usize>) {
        let all = self.updates.len();
        if *transaction == self.dump[1] && *transaction != Uuid::NIL.to_string() {
            return (json!([true, transaction, {}]), 0..all);
        }
        let known = self.updates.iter().position(|update| update["params"][1] == *transaction);
        match known {
            Some(at) => (json!([true, transaction, {}]), at + 1..all),
            None => (self.dump.clone(), 0..all),
        }
    }
}

#[test]
fn replica_is_the_same_when_the_connection_ends_at_any_byte() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let Recording { config, bytes, state } = record();
    let replay = Replay::new(&bytes);
    assert!(replay.updates.len() >= 6 && bytes.len() > 3000, "{} bytes", bytes.len());
    let (mut resumed, mut dumped) = (0, 0);
    for cut in 0..=bytes.len() {
        let mut now = Instant::now();
        let mut session = Session::new(config.clone(), now).unwrap();
        assert!(matches!(session.poll_action(now), Some(Action::Connect(_))));
        session.handle_connected(now);
        while session.poll_transmit().is_some() {}
        // In two parts, so that the framer stops in the middle, too.
        let (first, second) = bytes[..cut].split_at(cut / 2);
        for part in [first, second] {
            session.handle_bytes(now, part);
            while session.poll_transmit().is_some() {}
        }
        if session.last_transaction().is_nil() {
            dumped += 1
        } else {
            resumed += 1
        }
        session.handle_disconnected(now, "cut");
        now = session.next_deadline().unwrap();
        while !matches!(session.poll_action(now), Some(Action::Connect(_))) {}
        replay.serve(&mut session, now);
        assert!(session.is_ready(), "cut at {cut}");
        assert_eq!(dump_of(session.replica()), state, "cut at {cut}");
    }
    assert!(resumed > 100 && dumped > 100, "{resumed} resumed, {dumped} dumped");
    testkit::report::peer("ovsdb-server", "a recorded session is cut at every byte");
}
