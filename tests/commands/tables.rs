//! Tests of `weft ports`, `fdb`, `tunnels` and `flows`.

use super::call::{weft, weft_json};
use super::routed::{FAR, Routed};
use crate::common::{Daemon, PATIENCE, traffic};
use serde_json::{Value, json};
use testkit::host::wait_until;
use testkit::require_root;

#[test]
fn tables_show_the_state_of_the_switch() {
    require_root!();
    let routed = Routed::start();
    traffic::ping(&routed.near().netns, FAR.into());
    let control = &routed.lab.control(0);
    let ports = weft_json(control, &["ports"]);
    assert_eq!(ports[0]["name"], "g1");
    assert!(ports[0]["rx"]["packets"].as_u64() > Some(0), "{ports}");
    let (_, text, _) = weft(control, &["ports"]);
    assert!(text.starts_with("NO  PORT") && text.contains("g1"), "{text}");

    let fdb = weft_json(control, &["fdb"]);
    let stations: Vec<_> = fdb["stations"].as_array().expect("an array").iter().collect();
    assert_eq!(stations.iter().map(|s| &s["port"]).collect::<Vec<_>>(), ["g2", "g1"]);
    let learned = fdb["bindings"].as_array().expect("an array");
    let near = learned.iter().find(|binding| binding["ip"] == "10.0.1.10").expect("it was learned");
    assert_eq!((&near["port"], &near["mac"]), (&json!("core-web"), &json!("02:00:00:00:00:01")));
    let (code, stdout, _) = weft(control, &["fdb", "--forget", "02:00:00:00:00:01"]);
    assert_eq!((code, stdout.contains("1 entries")), (0, true), "{stdout}");
    assert_eq!(weft(control, &["fdb", "--forget", "02:00:00:00:00:77"]).0, 1);

    let tunnels = weft_json(control, &["tunnels"]);
    assert_eq!(tunnels["local"][0]["tunnel"], "geneve");
    assert_eq!((&tunnels["endpoints"][0]["host"]), &json!("h2"));
    assert_eq!(tunnels["endpoints"][0]["path_mtu"], 1500);

    let (code, out, _) = weft(control, &["flows", "--json", "--port", "g1", "--sort", "packets"]);
    assert_eq!(code, 0);
    let mut rows: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let totals = rows.pop().expect("a last line");
    assert!(totals["totals"]["cache"]["lookups"].as_u64() > Some(0), "{totals}");
    let count = |row: &Value| row["packets"].as_u64().expect("a number");
    assert!(rows.is_sorted_by_key(|row| std::cmp::Reverse(count(row))));
    assert!(rows.iter().all(|row| row["port"] == "g1"));
    let routed_row =
        rows.iter().find(|row| row["actions"].as_str().is_some_and(|a| a.contains("encap")));
    let flows = routed_row.expect("a megaflow into the tunnel")["flows"].to_string();
    assert!(flows.contains("lr_in_ip_routing") && flows.contains("network.toml:"), "{flows}");
    let (_, brief, _) = weft(control, &["flows", "--brief"]);
    assert!(!brief.contains("\n    "), "{brief}");

    let program = || weft(control, &["flows", "--logical", "--datapath", "core"]).1;
    wait_until(PATIENCE, "the routing flow has counted", || {
        let program = program();
        let routing = program.lines().find(|line| line.contains("ip4.dst == 10.0.2.0/24"));
        routing.is_some_and(|line| !line.contains("packets=0 "))
    });
    routed.daemons.into_iter().for_each(Daemon::stop);
}
