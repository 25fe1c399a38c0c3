//! Tests a guest of an OVN that moves to another host, as in a live migration.

use super::{Hosts, switch};
use crate::common::{PATIENCE, Setup};
use crate::migration::{Mover, end_flows, lab_of_mover, start_flows};
use crate::peers::program::{Running, command};
use serde_json::Value;
use testkit::host::wait_until;
use testkit::ovn::Ovn;

/// The hosts of port `g1` in the output of `ovsdb-client monitor`, in order; an empty string means
/// no host.
fn hosts_of_port(monitor: &Running) -> Vec<String> {
    let output = monitor.output();
    let tables = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let rows = tables.flat_map(|table| table["data"].as_array().cloned().unwrap_or_default());
    // A row consists of its UUID, the operation, and the columns.
    rows.filter(|row| row[1] != "old" && row[2] == "g1")
        .map(|row| row[3][1].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// In a live migration, libvirt adds the interface on the new host before the machine moves. Then
/// the platform sets `requested-chassis` to the new host.
#[test]
fn flow_goes_on_when_requested_chassis_moves_its_guest() {
    require_ovn!();
    let (lab, moved) = lab_of_mover(Setup::new("geneve"));
    let ovn = Ovn::start("migrated");
    ovn.configure(&switch("blue", &lab.guests.iter().collect::<Vec<_>>()));
    ovn.nbctl("lsp-set-options g1 requested-chassis=h1");
    let hosts = Hosts::start(&lab, &ovn);
    let device = moved.host_device();
    hosts.databases[1].vsctl(&format!(
        "add-port br-int {device} -- set Interface {device} external_ids:iface-id=g1"
    ));
    ovn.nbctl("--wait=hv sync");
    let chassis =
        |name: &str| ovn.sbctl(&format!("--bare --columns=_uuid find Chassis name={name}"));
    let bound = || ovn.sbctl("--bare --columns=chassis find Port_Binding logical_port=g1");
    assert_eq!(bound().trim(), chassis("h1").trim());
    let mut monitor = lab.hosts[0].netns.command(command("ovsdb-client"));
    monitor.args(["monitor", "--format=json", &ovn.southbound(), "OVN_Southbound"]);
    monitor.args(["Port_Binding", "logical_port", "chassis"]);
    let monitor = Running::start("monitor", monitor, lab.dir.path());
    wait_until(PATIENCE, "the monitor runs", || !hosts_of_port(&monitor).is_empty());
    let mover = Mover::start(&lab.guests[0], &moved);
    let flows = start_flows(&lab);
    mover.move_over();
    ovn.nbctl("lsp-set-options g1 requested-chassis=h2");
    mover.announce();
    end_flows(flows, "requested-chassis", &hosts.daemons[1]);
    assert_eq!(bound().trim(), chassis("h2").trim());
    // The old host must not release the port after the new host has claimed it.
    let (seen, new) = (hosts_of_port(&monitor), chassis("h2").trim().to_owned());
    let claimed = seen.iter().position(|host| *host == new).expect("h2 has claimed it");
    assert!(seen[claimed..].iter().all(|host| *host == new), "{seen:?}, h2 is {new}");
    drop(monitor);
    // The interface on the old host is removed.
    hosts.databases[0].vsctl(&format!("del-port br-int {}", lab.guests[0].host_device()));
    ovn.nbctl("--wait=hv sync");
    ovn.nbctl("wait-until Logical_Switch_Port g1 up=true");
    drop(mover);
    hosts.stop(&ovn);
}
