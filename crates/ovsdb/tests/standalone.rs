//! Tests one server with one database.

use crate::harness::{Driver, Server, VSWITCH_SCHEMA, dump_of};
use ovsdb::{
    Clause, Config, Function, MonitorMethod, Mutation, RowValues, Schema, TableRequest,
    TransactOutcome, Transaction, UpdateKind,
};
use std::collections::BTreeMap;
use std::fs;

/// Monitors all tables and columns of the Open_vSwitch database.
pub fn whole_database(server: &Server) -> Config {
    let schema = Schema::from_text(&fs::read(VSWITCH_SCHEMA).expect("a schema")).expect("a schema");
    let mut config = Config::new("Open_vSwitch", [server.remote()]);
    config.tables = schema.tables.keys().map(|name| TableRequest::all_columns(name)).collect();
    config
}

fn named(name: &str) -> [Clause; 1] {
    [Clause::new("name", Function::Equals, name)]
}

#[test]
fn replica_equals_the_dump_when_others_and_the_client_change_rows() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let server = Server::start("vsctl", VSWITCH_SCHEMA, &[]);
    let mut driver = Driver::new(whole_database(&server));
    let vsctl = |arguments: &[&str]| {
        let mut all = vec!["--db=unix:db.sock", "--no-wait"];
        all.extend(arguments);
        server.directory.run("ovs-vsctl", &all);
    };
    vsctl(&["init"]);
    driver.until_equal(&server);
    vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "other_config:a=b", "flood_vlans=1,2"]);
    vsctl(&["add-port", "br0", "p0", "tag=9", "--", "set", "interface", "p0", "mtu_request=1400"]);
    driver.until_equal(&server);
    vsctl(&["set", "bridge", "br0", "other_config:c=d", "flood_vlans=2,3"]);
    vsctl(&["remove", "bridge", "br0", "other_config", "a"]);
    driver.until_equal(&server);
    let outcome = driver.transact(
        Transaction::new()
            .wait_until_absent("Bridge", &named("br1"))
            .insert_named(
                "br",
                "Bridge",
                RowValues::new()
                    .set("name", "br1")
                    .set("other_config", BTreeMap::from([("ä\"\\", "\u{1f600}")])),
            )
            .mutate("Open_vSwitch", &[], &[Mutation::insert_named("bridges", "br")])
            .comment("test"),
    );
    let TransactOutcome::Committed(results) = outcome else { panic!("{outcome:?}") };
    let uuid = results[1].uuid.expect("a new row");
    let row = driver.client.session().replica().row("Bridge", uuid).expect("before the outcome");
    assert_eq!(row.value::<String>("name").as_deref(), Some("br1"));
    assert_eq!(results[2].count, Some(1));
    driver.until_equal(&server);
    vsctl(&["del-br", "br0"]);
    driver.until_equal(&server);
    assert_eq!(driver.updates[0].kind, UpdateKind::Dump(MonitorMethod::MonitorCondSince));
    assert!(driver.updates[1..].iter().all(|update| update.kind == UpdateKind::Changes));
    assert!(!dump_of(driver.client.session().replica()).is_empty());
    testkit::report::peer("ovsdb-server", "monitor_cond_since and transact over a Unix socket");
}
