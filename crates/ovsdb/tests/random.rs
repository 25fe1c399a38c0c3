//! Tests random transactions that a real server executes. The dump of ovsdb-client is the oracle.

use crate::harness::{Driver, Dump, Server, zoo_schema};
use ovsdb::{Config, MonitorMethod, TableRequest, UpdateKind};
use serde_json::{Value, json};

/// A reproducible random number generator (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }

    fn list(&mut self, mut one: impl FnMut(&mut Self) -> Value) -> Vec<Value> {
        let mut list: Vec<_> = (0..self.below(5)).map(|_| one(self)).collect();
        list.sort_by_key(ToString::to_string);
        list.dedup();
        list
    }
}

fn text(random: &mut Random) -> Value {
    json!(random.pick(&[
        "",
        "a",
        "b",
        "ä\u{1f600}",
        "\"\\\n\u{7f}",
        "]}",
        "0123456789 long enough"
    ]))
}

fn real(random: &mut Random) -> Value {
    json!(random.pick(&[0.5, -1.25, 1e100, 3.0, 0.1]))
}

fn pairs(keys: Vec<Value>, mut value: impl FnMut() -> Value) -> Value {
    json!(["map", keys.into_iter().map(|key| json!([key, value()])).collect::<Vec<_>>()])
}

/// Values for some columns of an animal; `animals` and `cages` are rows to refer to.
fn row(random: &mut Random, animals: &[String], cages: &[String]) -> Value {
    let mut row = json!({});
    for _ in 0..random.below(6) {
        let (column, value) = match random.below(13) {
            0 => ("name", text(random)),
            1 => ("legs", json!(random.below(1000) as i64 - 500)),
            2 => ("weight", real(random)),
            3 => ("tame", json!(random.below(2) == 1)),
            4 => ("age", json!(["set", random.list(|r| json!(r.below(9))).get(..1)])),
            5 => ("toys", json!(["set", random.list(text)])),
            6 => ("lucky", json!(["set", random.list(|r| json!(r.below(9)))])),
            7 => ("sizes", json!(["set", random.list(real)])),
            8 => ("notes", {
                let keys = random.list(text);
                pairs(keys, || text(random))
            }),
            9 => ("scores", {
                let keys = random.list(|r| json!(r.below(5)));
                pairs(keys, || real(random))
            }),
            10 => ("single", {
                let key = text(random);
                pairs(vec![key], || json!(random.below(3)))
            }),
            11 if !cages.is_empty() => ("cage", json!(["uuid", random.pick(cages)])),
            _ if !animals.is_empty() => {
                let friends = random.list(|r| json!(["uuid", r.pick(animals)]));
                ("friends", json!(["set", friends]))
            }
            _ => continue,
        };
        // An absent option is an empty set.
        let value = if value == json!(["set", null]) { json!(["set", []]) } else { value };
        row[column] = value;
    }
    row
}

/// A transaction of some operations.
pub fn transaction(random: &mut Random, state: &Dump) -> Value {
    let rows = |table: &str| -> Vec<String> {
        state.get(table).map(|rows| rows.keys().cloned().collect()).unwrap_or_default()
    };
    let (animals, cages) = (rows("Animal"), rows("Cage"));
    let mut operations = vec![json!("zoo")];
    for number in 0..1 + random.below(4) {
        let values = row(random, &animals, &cages);
        let which = |random: &mut Random| {
            if random.below(6) == 0 || animals.is_empty() {
                json!([["legs", "<", 0]])
            } else {
                json!([["_uuid", "==", ["uuid", random.pick(&animals)]]])
            }
        };
        let operation = match random.below(8) {
            0..3 => json!({"op": "insert", "table": "Animal", "row": values}),
            3 => {
                let name = format!("cage{number}");
                let cage = json!({"op": "insert", "table": "Cage", "uuid-name": name,
                    "row": {"number": random.below(1 << 40)}});
                operations.push(cage);
                json!({"op": "update", "table": "Animal", "where": which(random),
                    "row": {"cage": ["named-uuid", name]}})
            }
            4 if animals.len() > 3 => {
                json!({"op": "delete", "table": "Animal", "where": which(random)})
            }
            5 => json!({"op": "mutate", "table": "Animal", "where": which(random), "mutations": [
                ["toys", "insert", text(random)], ["notes", "delete", ["set", random.list(text)]],
                ["legs", "+=", 1]]}),
            _ => json!({"op": "update", "table": "Animal", "where": which(random), "row": values}),
        };
        operations.push(operation);
    }
    json!(operations)
}

/// A configuration for all tables of the zoo.
pub fn zoo(server: &Server) -> Config {
    let animals = TableRequest::all_columns("Animal").index_elements("by_friend", "friends");
    Config::new("zoo", [server.remote()]).table(animals).table(TableRequest::all_columns("Cage"))
}

#[test]
fn replica_equals_the_dump_after_random_transactions() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let server = Server::start("random", &zoo_schema(), &[]);
    let methods =
        [MonitorMethod::Monitor, MonitorMethod::MonitorCond, MonitorMethod::MonitorCondSince];
    let mut drivers = methods.map(|method| Driver::new(Config { method, ..zoo(&server) }));
    drivers.iter_mut().for_each(Driver::until_ready);
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut state = Dump::new();
    for _ in 0..60 {
        server.transact(&transaction(&mut random, &state).to_string());
        state = server.dump("zoo");
        for driver in &mut drivers {
            driver.until_dump(&state);
        }
    }
    assert!(state["Animal"].len() > 10 && state.contains_key("Cage"), "{}", state["Animal"].len());
    for (driver, method) in drivers.iter().zip(methods) {
        assert_eq!(driver.updates[0].kind, UpdateKind::Dump(method));
        assert_eq!(driver.reasons(), [""; 0]);
        check_events(driver, &state);
        check_index(driver);
    }
}

/// Checks that the changes in all events add up to the final state.
fn check_events(driver: &Driver, state: &Dump) {
    let mut seen = std::collections::BTreeMap::new();
    for change in driver.updates.iter().flat_map(|update| &update.changes) {
        let key = (change.table().to_owned(), change.uuid().to_string());
        assert_eq!(seen.remove(&key), change.old, "the old row is the last new one");
        if let Some(new) = &change.new {
            seen.insert(key, new.clone());
        }
    }
    let rows: usize = state.values().map(std::collections::BTreeMap::len).sum();
    assert_eq!(seen.len(), rows);
    for ((table, uuid), row) in seen {
        let replica = driver.client.session().replica();
        assert_eq!(replica.row(&table, row.uuid()), Some(&row), "{uuid}");
    }
}

/// Checks that the index finds the same rows as a scan.
fn check_index(driver: &Driver) {
    let table = driver.client.session().replica().table("Animal").unwrap();
    let index = table.index("by_friend").unwrap();
    let mut found = 0;
    for friend in table.rows() {
        let wanted = ovsdb::Atom::Uuid(friend.uuid());
        let by_index: Vec<_> = index.find_atom(wanted.clone()).map(|row| row.uuid()).collect();
        let mut by_scan: Vec<_> = table
            .rows()
            .filter(|row| row.get("friends").unwrap().atoms().contains(&wanted))
            .map(|row| row.uuid())
            .collect();
        by_scan.sort_unstable();
        assert_eq!(by_index, by_scan);
        found += by_index.len();
    }
    let replica = driver.client.session().replica();
    let referenced: usize =
        table.rows().map(|row| replica.referenced(row, "friends").count()).sum();
    assert_eq!(found, referenced);
}
