//! Tests features of a server other than plain replication: conditions, locks, waiting, conversion.

use crate::harness::{Driver, Server, dump_of, zoo_schema};
use crate::random::zoo;
use ovsdb::io::{Client, wait_any};
use ovsdb::{
    Clause, Condition, Config, Event, Function, MonitorMethod, Reply, RowValues, Table,
    TransactOutcome, Transaction, Uuid,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

ovsdb::table! {
    /// An animal.
    struct Animal: "Animal" {
        name: "name" => String,
        legs: "legs" => i64,
        weight: "weight" => f64,
        age: "age" => Option<i64>,
        toys: "toys" => Vec<String>,
        notes: "notes" => BTreeMap<String, String>,
        cage: "cage" => Option<Uuid>,
        wings: "wings" or default => Option<i64>,
    }
}

fn animal(name: &str, legs: i64) -> Transaction {
    Transaction::new().insert("Animal", RowValues::new().set("name", name).set("legs", legs))
}

fn legs(condition: i64) -> Condition {
    Condition::any([Clause::new("legs", Function::Equals, condition)])
}

fn names(driver: &Driver) -> Vec<String> {
    let mut names: Vec<_> =
        driver.client.session().replica().rows::<Animal>().map(|(_, animal)| animal.name).collect();
    names.sort_unstable();
    names
}

fn applied(driver: &mut Driver, seqno: u64) {
    driver.until("the condition is applied", |driver| {
        driver.events.contains(&Event::ConditionsApplied { seqno })
    });
}

#[test]
fn one_thread_waits_for_two_servers_and_is_woken_for_either() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let servers = ["any0", "any1"].map(|name| Server::start(name, &zoo_schema(), &[]));
    let mut clients = servers.each_ref().map(|server| {
        let config = Config::new("zoo", [server.remote()]).table(Animal::request());
        Client::new(config, None).expect("a client can be made")
    });
    let end = Instant::now() + Duration::from_secs(30);
    let mut wait = |what: &str, done: &dyn Fn(&[Client; 2]) -> bool| {
        while !done(&clients) {
            assert!(Instant::now() < end, "{what}");
            let [a, b] = &mut clients;
            wait_any(&mut [a, b], Some(end));
            for client in &mut clients {
                while client.next_event(Some(Instant::now())).is_some() {}
            }
        }
    };
    wait("both are ready", &|clients| clients.iter().all(|client| client.session().is_ready()));
    for (at, server) in servers.iter().enumerate() {
        let mut writer = Driver::new(zoo(server));
        let outcome = writer.transact(animal("ant", 6));
        assert!(matches!(outcome, TransactOutcome::Committed(_)), "{outcome:?}");
        wait("the row arrives", &|clients| clients[at].session().replica().len() == 1);
    }
    let [a, b] = &mut clients;
    let waker = b.waker();
    std::thread::spawn(move || waker.wake());
    // Without the waker, it would wait for the deadline, or for the next probe.
    assert!((0..100).any(|_| wait_any(&mut [a, b], Some(end))));
}

#[test]
fn wait_ends_when_a_connection_was_established_at_once() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let server = Server::start("at-once", &zoo_schema(), &[]);
    let config = Config::new("zoo", [server.remote()]).table(Animal::request());
    let mut client = Client::new(config, None).expect("a client can be made");
    // A client that does not notice the connection would wait for the first probe, after five
    // seconds.
    let end = Instant::now() + Duration::from_secs(4);
    // The first call connects, and the second one notices that the connection is established.
    wait_any(&mut [&mut client], Some(end));
    wait_any(&mut [&mut client], Some(end));
    assert!(Instant::now() < end);
    assert!(matches!(client.next_event(Some(end)), Some(Event::Connected { .. })));
}

#[test]
fn rows_come_and_go_when_conditions_change() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let server = Server::start("conditions", &zoo_schema(), &[]);
    for method in [MonitorMethod::MonitorCond, MonitorMethod::MonitorCondSince] {
        let mut writer = Driver::new(zoo(&server));
        for (name, legs) in [("ant", 6), ("bee", 6), ("cat", 4), ("dog", 4), ("emu", 2)] {
            let outcome = writer.transact(animal(name, legs));
            assert!(matches!(outcome, TransactOutcome::Committed(_)), "{outcome:?}");
        }
        let table = Animal::request().matching(legs(4));
        let config = Config { method, ..Config::new("zoo", [server.remote()]).table(table) };
        let mut driver = Driver::new(config);
        driver.until_ready();
        assert_eq!(names(&driver), ["cat", "dog"]);
        let session = driver.client.session_mut();
        let any = [6, 2].map(|n| Clause::new("legs", Function::Equals, n));
        let seqno = session.set_condition("Animal", Condition::any(any)).unwrap();
        applied(&mut driver, seqno);
        assert_eq!(names(&driver), ["ant", "bee", "emu"]);
        let which = [Clause::new("name", Function::Equals, "emu")];
        let change = RowValues::new().set("legs", 3);
        writer.transact(Transaction::new().update("Animal", &which, change));
        driver.until("the emu is gone", |driver| names(driver).len() == 2);
        let seqno = driver.client.session_mut().set_condition("Animal", Condition::all()).unwrap();
        // The connection is lost before the reply to the condition.
        driver.client.session_mut().reconnect(std::time::Instant::now());
        applied(&mut driver, seqno);
        assert_eq!(names(&driver), ["ant", "bee", "cat", "dog", "emu"]);
        let seqno = driver.client.session_mut().set_condition("Animal", Condition::none()).unwrap();
        applied(&mut driver, seqno);
        assert_eq!(names(&driver), [""; 0]);
        let wrong = Condition::any([Clause::new("no_column", Function::Equals, 1)]);
        let seqno = driver.client.session_mut().set_condition("Animal", wrong).unwrap();
        driver.until("the condition is refused", |driver| {
            driver.events.iter().any(
                |event| matches!(event, Event::ConditionsRefused { seqno: at, .. } if *at == seqno),
            )
        });
        writer.transact(Transaction::new().delete("Animal", &[]));
    }
    testkit::report::peer("ovsdb-server", "monitor_cond_change, also while reconnecting");
}

#[test]
fn typed_rows_are_read_and_errors_of_transactions_are_explained() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let server = Server::start("typed", &zoo_schema(), &[]);
    let mut driver = Driver::new(Config::new("zoo", [server.remote()]).table(Animal::request()));
    let cage = RowValues::new().set("number", 7);
    let values = RowValues::new()
        .set("name", "cat")
        .set("weight", 4.5)
        .set("age", Some(3))
        .set("toys", vec!["ball", "mouse"])
        .set("notes", BTreeMap::from([("owner", "nobody")]))
        .set_named("cage", &["cage"]);
    let outcome = driver.transact(
        Transaction::new().insert_named("cage", "Cage", cage.clone()).insert("Animal", values),
    );
    let TransactOutcome::Committed(results) = outcome else { panic!("{outcome:?}") };
    let uuid = results[1].uuid.unwrap();
    let cat: Animal = driver.client.session().replica().get(uuid).unwrap();
    let expected = Animal {
        name: "cat".to_owned(),
        legs: 0,
        weight: 4.5,
        age: Some(3),
        toys: vec!["ball".to_owned(), "mouse".to_owned()],
        notes: BTreeMap::from([("owner".to_owned(), "nobody".to_owned())]),
        cage: results[0].uuid,
        wings: None,
    };
    assert_eq!(cat, expected);
    let change = driver.updates.last().unwrap().changes[0].typed::<Animal>().unwrap();
    assert_eq!(change, (None, Some(expected)));

    let failed = |outcome| match outcome {
        TransactOutcome::Failed(error) => (error.operation, error.to_string()),
        other => panic!("{other:?}"),
    };
    // The index over `number` is checked after all operations.
    let twice = Transaction::new()
        .insert_named("a", "Cage", cage.clone())
        .insert("Animal", RowValues::new().set_named("cage", &["a"]));
    let (operation, error) = failed(driver.transact(twice));
    assert_eq!(operation, None);
    assert!(error.contains("constraint violation"), "{error}");
    let negative =
        Transaction::new().comment("x").insert("Cage", RowValues::new().set("number", -1));
    let (operation, error) = failed(driver.transact(negative));
    assert_eq!(operation, Some(1));
    assert!(error.contains("constraint violation") && error.contains("operation 1"), "{error}");
    let (_, error) = failed(driver.transact(Transaction::new().json(json!({"op": "dance"}))));
    assert!(error.contains("No operation \"dance\""), "{error}");
    let stale = RowValues::new().set("name", "dog");
    let wait = Transaction::new().wait_for_row("Animal", uuid, &stale).delete("Animal", &[]);
    let (operation, error) = failed(driver.transact(wait));
    assert_eq!(operation, Some(0));
    assert!(error.contains("timed out"), "{error}");
    let select = Transaction::new()
        .select("Animal", &[Clause::new("legs", Function::LessOrEqual, 0)], &["name"])
        .wait_for_row("Animal", uuid, &RowValues::new().set("name", "cat"))
        .commit_durably();
    let outcome = driver.transact(select);
    let TransactOutcome::Committed(results) = outcome else { panic!("{outcome:?}") };
    assert_eq!(results[0].rows, [json!({"name": "cat"})]);
}

#[test]
fn waiting_transaction_ends_when_its_row_comes_or_the_client_cancels_it() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let server = Server::start("waiting", &zoo_schema(), &[]);
    let mut driver = Driver::new(zoo(&server));
    driver.until_ready();
    let wait = |name: &str| {
        Transaction::new().json(json!({"op": "wait", "table": "Animal", "until": "!=", "rows": [],
            "where": [["name", "==", name]], "columns": ["name"]}))
    };
    let session = driver.client.session_mut();
    let first = session.transact(wait("cat")).unwrap();
    let second = session.transact(wait("unicorn")).unwrap();
    let mut other = Driver::new(zoo(&server));
    other.transact(animal("cat", 4));
    assert!(matches!(driver.outcome(first), TransactOutcome::Committed(_)));
    driver.client.session_mut().cancel(second);
    let outcome = driver.outcome(second);
    let TransactOutcome::Failed(error) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.error, "canceled");
}

#[test]
fn lock_passes_to_the_next_client_when_the_holder_leaves() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let server = Server::start("lock", &zoo_schema(), &[]);
    let config = Config { lock: Some("keeper".to_owned()), ..zoo(&server) };
    let mut first = Driver::new(config.clone());
    first.until("the lock", |driver| driver.client.session().has_lock());
    let mut second = Driver::new(config);
    second.until_ready();
    assert!(!second.client.session().has_lock());
    let guarded = || animal("cat", 4).assert_lock("keeper");
    assert!(matches!(first.transact(guarded()), TransactOutcome::Committed(_)));
    let outcome = second.transact(guarded());
    assert!(matches!(&outcome, TransactOutcome::Failed(error) if error.error == "not owner"));
    drop(first);
    second.until("the lock", |driver| driver.client.session().has_lock());
    assert!(matches!(second.transact(guarded()), TransactOutcome::Committed(_)));
}

#[test]
fn replica_has_the_new_columns_when_the_database_is_converted() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let server = Server::start("convert", &zoo_schema(), &[]);
    let mut driver = Driver::new(zoo(&server));
    driver.transact(animal("cat", 4));
    let schema = fs::read_to_string(zoo_schema()).unwrap();
    let converted = schema.replace("\"toys\"", "\"wings\"").replace("1.0.0", "2.0.0");
    fs::write(server.directory.path().join("new.ovsschema"), converted).unwrap();
    server.directory.run("ovsdb-client", &["convert", "unix:db.sock", "new.ovsschema"]);
    driver.until("the new column", |driver| {
        let replica = driver.client.session().replica();
        let layout = replica.table("Animal").and_then(|table| table.layout().cloned());
        layout.is_some_and(|layout| layout.position("wings").is_some())
    });
    driver.until_equal(&server);
    assert_eq!(driver.reasons(), [""; 0], "on the same connection");
    let change = &driver.updates.last().unwrap().changes[0];
    assert!(change.old.as_ref().unwrap().get("toys").is_some());
    assert!(change.new.as_ref().unwrap().get("wings").is_some());

    // A typed table notices that a column is gone, and names it.
    let mut typed = Driver::new(Config::new("zoo", [server.remote()]).table(Animal::request()));
    typed.until("the reason", |driver| !driver.reasons().is_empty());
    let reason = &typed.reasons()[0];
    assert!(reason.contains("zoo (version 2.0.0)") && reason.contains("Animal.toys"), "{reason}");
}

#[test]
fn replica_stays_and_is_compared_when_the_server_restarts() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let mut server = Server::start("restart", &zoo_schema(), &[]);
    let mut driver = Driver::new(zoo(&server));
    driver.transact(animal("cat", 4));
    driver.transact(animal("dog", 4));
    let before = dump_of(driver.client.session().replica());
    server.stop();
    driver.until("the loss", |driver| !driver.reasons().is_empty());
    assert_eq!(dump_of(driver.client.session().replica()), before);
    server.restart();
    server.transact(
        r#"["zoo", {"op": "delete", "table": "Animal", "where": [["name", "==", "dog"]]}]"#,
    );
    let updates = driver.updates.len();
    driver.until_equal(&server);
    let changes: Vec<_> = driver.updates[updates..].iter().flat_map(|u| &u.changes).collect();
    assert_eq!(changes.len(), 1, "only the difference: {changes:?}");
}

#[test]
fn server_answers_requests_about_databases() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let server = Server::start("requests", &zoo_schema(), &[]);
    let mut driver = Driver::new(Config::new("zoo", [server.remote()]));
    driver.until_ready();
    let session = driver.client.session_mut();
    let (databases, schema) = (session.list_dbs().unwrap(), session.get_schema("zoo").unwrap());
    let wrong = session.call("dance", &json!([])).unwrap();
    let reply = |driver: &Driver, wanted| {
        driver.events.iter().find_map(|event| match event {
            Event::Replied { id, reply } if *id == wanted => Some(reply.clone()),
            _ => None,
        })
    };
    driver.until("all replies", |driver| reply(driver, wrong).is_some());
    let Some(Reply::Result(databases)) = reply(&driver, databases) else { panic!("no databases") };
    assert!(databases == json!(["_Server", "zoo"]) || databases == json!(["zoo", "_Server"]));
    let Some(Reply::Result(schema)) = reply(&driver, schema) else { panic!("no schema") };
    assert_eq!(ovsdb::Schema::from_json(&schema).unwrap().version, "1.0.0");
    assert_eq!(reply(&driver, wrong), Some(Reply::Error(json!("unknown method"))));
}
