//! Tests clusters of servers: resumption, followers, and the loss of a leader.

use crate::harness::{Cluster, Driver, dump_of, zoo_schema};
use ovsdb::{
    Clause, Config, Event, Function, RowValues, TableRequest, TransactOutcome, Transaction,
    UpdateKind, Uuid,
};

fn zoo(remotes: Vec<ovsdb::Remote>) -> Config {
    let animals = TableRequest::all_columns("Animal").index("name", &["name"]);
    Config::new("zoo", remotes).table(animals).table(TableRequest::all_columns("Cage"))
}

fn animal(name: &str) -> Transaction {
    Transaction::new().insert("Animal", RowValues::new().set("name", name))
}

fn names(driver: &Driver) -> Vec<String> {
    let table = driver.client.session().replica().table("Animal").unwrap();
    table.index("name").unwrap().rows().filter_map(|row| row.value("name")).collect()
}

#[test]
fn only_changes_are_sent_when_a_client_comes_back_to_a_cluster() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let cluster = Cluster::start("resume", &zoo_schema(), 1);
    let mut driver = Driver::new(zoo(cluster.remotes()));
    let mut other = Driver::new(zoo(cluster.remotes()));
    for number in 0..20 {
        let outcome = other.transact(animal(&format!("animal {number:02}")));
        assert!(matches!(outcome, TransactOutcome::Committed(_)), "{outcome:?}");
    }
    driver.until("all animals", |driver| names(driver).len() == 20);
    assert!(!driver.client.session().last_transaction().is_nil());
    driver.client.session_mut().reconnect(std::time::Instant::now());
    assert!(matches!(other.transact(animal("new")), TransactOutcome::Committed(_)));
    let updates = driver.updates.len();
    driver.until("the new animal", |driver| names(driver).len() == 21);
    driver.until_ready();
    assert_eq!(driver.updates[updates].kind, UpdateKind::Resumed, "found: true");
    let changes: usize = driver.updates[updates..].iter().map(|update| update.changes.len()).sum();
    assert_eq!(changes, 1, "no full dump");
    testkit::report::peer("ovsdb-server", "monitor_cond_since resumes in a cluster");
}

#[test]
fn no_transaction_is_lost_or_doubled_when_the_leader_is_killed() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let mut cluster = Cluster::start("leader", &zoo_schema(), 3);
    let mut writer = Driver::new(zoo(cluster.remotes()).seed(1));
    let mut readers: Vec<_> =
        (0..3).map(|at| Driver::new(zoo(vec![cluster.remotes()[at].clone()]).seed(9))).collect();
    let mut expected = Vec::new();
    let mut lost = 0;
    for number in 0..30 {
        let name = format!("animal {number:02}");
        writer.until_ready();
        if number == 10 {
            let leader = cluster.leader();
            // The transaction has no reply yet when the leader dies.
            let id = writer.client.session_mut().transact(once(&name)).expect("ready");
            writer.client.next_event(Some(std::time::Instant::now()));
            cluster.kill(leader);
            readers.remove(leader);
            let outcome = writer.outcome(id);
            lost += usize::from(!matches!(outcome, TransactOutcome::Committed(_)));
            if lost > 0 {
                insert_until_known(&mut writer, &name);
            }
        } else {
            insert_until_known(&mut writer, &name);
        }
        expected.push(name);
    }
    for reader in &mut readers {
        reader.until("all animals", |driver| names(driver).len() >= expected.len());
        assert_eq!(names(reader), expected);
    }
    writer.until("all animals", |driver| names(driver) == expected);
    let dumps: Vec<_> =
        readers.iter().chain([&writer]).map(|d| dump_of(d.client.session().replica())).collect();
    assert!(dumps.iter().all(|dump| *dump == dumps[0]), "all replicas are equal");
    let followers = readers.iter().filter_map(|driver| driver.client.session().server());
    assert!(followers.into_iter().any(|info| !info.is_leader), "a follower serves, too");
    testkit::report::peer("ovsdb-server", "the leader of three is killed during a transaction");
}

/// Inserts an animal unless it exists.
fn once(name: &str) -> Transaction {
    let same = [Clause::new("name", Function::Equals, name)];
    Transaction::new()
        .wait_until_absent("Animal", &same)
        .insert("Animal", RowValues::new().set("name", name))
}

/// Repeats the insertion until it is known that this or an earlier attempt was committed.
fn insert_until_known(driver: &mut Driver, name: &str) {
    for _ in 0..100 {
        match driver.transact(once(name)) {
            TransactOutcome::Committed(_) => return,
            TransactOutcome::Failed(error) if error.error == "timed out" => return,
            // A server without a leader refuses. After a lost connection the outcome is unknown.
            TransactOutcome::Failed(_) | TransactOutcome::Lost | TransactOutcome::NotSent => {
                let pause = std::time::Instant::now() + std::time::Duration::from_millis(100);
                while std::time::Instant::now() < pause {
                    if let Some(event) = driver.client.next_event(Some(pause)) {
                        match event {
                            Event::Update(update) => driver.updates.push(update),
                            event => driver.events.push(event),
                        }
                    }
                }
            }
        }
    }
    panic!("{name}: no outcome after {:#?}", driver.events);
}

#[test]
fn leader_is_found_when_only_the_leader_will_do() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let cluster = Cluster::start("only", &zoo_schema(), 3);
    for seed in 0..4 {
        let config = Config { leader_only: true, ..zoo(cluster.remotes()).seed(seed) };
        let mut driver = Driver::new(config);
        driver.until_ready();
        let session = driver.client.session();
        assert!(session.server().is_some_and(|info| info.is_leader));
        assert_eq!(session.remote(), Some(&cluster.remotes()[cluster.leader()]));
        assert!(driver.reasons().iter().all(|reason| reason.contains("not the leader")));
    }
    let cluster_id = Some(Uuid::MAX);
    let mut driver = Driver::new(Config { cluster_id, ..zoo(cluster.remotes()) });
    driver.until("another cluster", |driver| driver.reasons().len() > 2);
    assert!(driver.reasons()[0].contains("belongs to the cluster"), "{:?}", driver.reasons());
}
