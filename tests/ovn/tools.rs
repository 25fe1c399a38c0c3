//! Tests the responses of a chassis to `ovs-appctl` and `ovn-appctl`.

use super::{LocalDatabase, join, lab_of, tool, wait_up, with_args};
use crate::common::{PATIENCE, traffic};
use std::os::unix::net::UnixStream;
use std::process::Output;
use testkit::host::wait_until;
use testkit::ovn::Ovn;

/// Runs ovs-appctl, or ovn-appctl if the arguments begin with `-t ovn-`.
fn call(database: &LocalDatabase<'_>, arguments: &str) -> Output {
    let program = if arguments.starts_with("-t ovn-") { "ovn-appctl" } else { "ovs-appctl" };
    let mut command = tool(&database.directory, program);
    command.env("OVN_RUNDIR", &database.directory);
    let arguments: Vec<_> = arguments.split(' ').collect();
    with_args(command, &["--timeout=20"]).args(arguments).output().expect("the program starts")
}

fn answer(database: &LocalDatabase<'_>, arguments: &str) -> String {
    let output = call(database, arguments);
    let text = String::from_utf8(output.stdout).expect("an answer is text");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {errors}");
    text
}

#[test]
fn tools_are_answered_as_by_the_stock_chassis() {
    require_ovn!();
    let lab = lab_of(2, 0);
    let mut ovn = Ovn::start("tools");
    let [first, second] = [0, 1].map(|at| &lab.guests[at]);
    ovn.configure(&super::switch("blue", &[first, second]));
    ovn.nbctl("acl-add blue to-lport 5 ip4 allow-related");
    let database = LocalDatabase::start(&lab, &ovn, 0);
    let mut daemon = join(&lab, &database);
    daemon.wait_answers();
    [first, second].into_iter().for_each(|guest| database.add_port(guest));
    wait_up(&lab, &ovn);
    traffic::ping(&first.netns, second.ip(4));
    // A client that sends nothing must not block other clients.
    let control = |name: &str| database.directory.join(format!("{name}.{}.ctl", daemon.pid()));
    let files: Vec<_> = ["ovs-vswitchd", "ovn-controller"]
        .into_iter()
        .flat_map(|name| [control(name), database.directory.join(format!("{name}.pid"))])
        .collect();
    let silent = UnixStream::connect(control("ovs-vswitchd")).expect("weft listens");

    assert!(answer(&database, "version").starts_with("ovs-vswitchd (weft) "));
    let version = answer(&database, "-t ovn-controller version");
    assert!(version.starts_with("ovn-controller (weft) "), "{version}");
    assert_eq!(answer(&database, "-t ovn-controller connection-status"), "connected\n");
    let zones = answer(&database, "-t ovn-controller ct-zone-list");
    let zone = zones.lines().find_map(|line| line.strip_prefix(&format!("{} ", second.name)));
    let zone: u16 = zone.expect("the port has a zone").parse().expect("a number");
    let of_zone = format!("dpctl/dump-conntrack system@ovs-system zone={zone}");
    let (from, to) = (first.ip(4), second.ip(4));
    let connection = answer(&database, &of_zone);
    let expected = format!("icmp,orig=(src={from},dst={to},id=");
    assert!(connection.starts_with(&expected), "{connection}");
    assert!(connection.contains(&format!(",type=8,code=0),reply=(src={to},dst={from},")));
    assert!(connection.ends_with(&format!(",zone={zone}\n")), "{connection}");
    assert!(answer(&database, "dpctl/dump-conntrack").contains(connection.trim()));
    let flows = answer(&database, "dpctl/dump-flows");
    let is_flow = |line: &str| line.contains(", packets:") && line.contains(", actions:");
    assert!(!flows.is_empty() && flows.lines().all(is_flow), "{flows}");
    assert_eq!(answer(&database, "dpctl/del-flows"), "");
    // Guests may send packets at any time, so a few flows may exist.
    let left = answer(&database, "dpctl/dump-flows");
    assert!(left.lines().count() < flows.lines().count(), "{left}");
    traffic::ping(&first.netns, second.ip(4));
    ovn.nbctl("create Chassis_Template_Var chassis=h1 variables:b=2 variables:a=1");
    ovn.nbctl("--wait=hv sync");
    let templates = answer(&database, "-t ovn-controller debug/dump-local-template-vars");
    let expected = "Local template vars:\nname: 'a' value: '1'\nname: 'b' value: '2'\n";
    assert_eq!(templates, expected);
    assert_eq!(answer(&database, "-t ovn-controller vlog/reopen"), "");
    assert_eq!(answer(&database, &format!("dpctl/flush-conntrack zone={zone}")), "");
    assert_eq!(answer(&database, &of_zone), "");

    for (arguments, command) in [
        ("dpif/show", "dpif/show"),
        ("dpctl/dump-conntrack -m", "dpctl/dump-conntrack -m"),
        ("-t ovn-controller group-table-list", "group-table-list"),
        // The two daemons have different commands, so these commands are unknown.
        ("connection-status", "connection-status"),
    ] {
        let output = call(&database, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_named = errors.starts_with(&format!("weft does not support `{command}`"));
        assert!(!output.status.success() && is_named, "{errors}");
        let listed = arguments.rsplit_once(' ').map_or("", |(program, _)| program);
        if listed.is_empty() || listed.starts_with("-t") {
            let list = answer(&database, format!("{listed} list-commands").trim_start());
            assert!(!list.contains(command) && list.contains("version\n"), "{list}");
        }
    }

    ovn.stop_southbound();
    wait_until(PATIENCE, "the lost connection is reported", || {
        answer(&database, "-t ovn-controller connection-status") == "not connected\n"
    });
    ovn.start_southbound();
    wait_until(PATIENCE, "the connection is reported", || {
        answer(&database, "-t ovn-controller connection-status") == "connected\n"
    });
    assert!(files.iter().all(|file| file.exists()));
    assert_eq!(answer(&database, "-t ovn-controller exit"), "");
    assert!(daemon.wait_end(PATIENCE).success());
    assert!(ovn.sbctl("list Chassis").is_empty());
    let left: Vec<_> = files.iter().filter(|file| file.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
    drop(silent);
}
