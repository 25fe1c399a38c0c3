//! Tests devices of an OVN host that are removed and created.

use super::{Hosts, LocalDatabase, is_silent, lab, switch, wait_up};
use crate::common::{Daemon, Host, PATIENCE, traffic};
use crate::peers::program::{command, run};
use testkit::host::wait_until;
use testkit::ovn::Ovn;

/// Renames a device of a host.
fn rename(host: &Host, from: &str, to: &str) {
    for arguments in [format!("{from} down"), format!("{from} name {to}"), format!("{to} up")] {
        let mut ip = host.netns.command(command("ip"));
        ip.args(["link", "set"]).args(arguments.split_whitespace());
        run(ip, b"");
    }
}

#[test]
fn port_is_released_while_it_has_no_device() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("devices");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    let hosts = Hosts::start(&lab, &ovn);
    traffic::ping(&far.netns, near.ip(4));
    let (host, device) = (&lab.hosts[near.host], near.host_device());
    let is_up =
        |state: &str| ovn.nbctl(&format!("get Logical_Switch_Port {} up", near.name)) == state;
    let ofport = || hosts.databases[0].vsctl(&format!("get Interface {device} ofport error"));
    let before = ofport();
    for _ in 0..2 {
        rename(host, &device, "elsewhere");
        // The port must be released.
        ovn.nbctl(&format!("wait-until Logical_Switch_Port {} up=false", near.name));
        wait_until(PATIENCE, "the database says so", || {
            ofport() == format!("-1\n\"there is no device {device}\"\n")
        });
        let bound =
            format!("--bare --columns=chassis find Port_Binding logical_port={}", near.name);
        assert_eq!(ovn.sbctl(&bound).trim(), "");
        assert!(is_silent(far, near.ip(4)));
        rename(host, "elsewhere", &device);
        wait_up(&lab, &ovn);
        wait_until(PATIENCE, "the port has its number again", || ofport() == before);
        traffic::ping(&far.netns, near.ip(4));
    }
    // The device is created after its interface was added to the database.
    rename(host, &device, "elsewhere");
    hosts.databases[0].vsctl(&format!("del-port {device}"));
    hosts.databases[0].vsctl(&format!(
        "add-port br-int {device} -- set Interface {device} external_ids:iface-id={}",
        near.name
    ));
    assert!(is_up("false\n"));
    rename(host, "elsewhere", &device);
    wait_up(&lab, &ovn);
    traffic::ping(&far.netns, near.ip(4));
    hosts.stop(&ovn);
}

/// A host with `--datapath none` maintains its state in the databases, and does not process
/// packets.
#[test]
fn ports_are_claimed_and_packets_left_alone_when_there_is_no_datapath() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("none");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    let databases = [0, 1].map(|at| LocalDatabase::start(&lab, &ovn, at));
    let devices = |host: &Host| {
        let mut ip = host.netns.command(command("ip"));
        ip.args(["-oneline", "link", "show"]);
        run(ip, b"").lines().count()
    };
    let before = lab.hosts.each_ref().map(devices);
    let daemons = [0, 1].map(|at| {
        let database = &databases[at];
        let arguments = ["--datapath", "none"];
        Daemon::join_ovn(database.host, &database.remote(), &lab.control(at), &arguments)
    });
    daemons.iter().for_each(Daemon::wait_answers);
    databases[near.host].add_port(near);
    databases[far.host].add_port(far);
    wait_up(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    daemons.iter().for_each(|daemon| daemon.wait_says("no-datapath-started"));
    assert_eq!(lab.hosts.each_ref().map(devices), before);
    assert!(is_silent(near, far.ip(4)));
    Hosts { databases, daemons }.stop(&ovn);
}
