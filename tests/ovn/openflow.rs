//! Tests the responses of a host to ovs-ofctl, and hosts whose settings are incomplete.

use super::{LocalDatabase, join, lab_of, switch, tool, wait_up, with_args};
use crate::common::traffic;
use std::process::Output;
use testkit::ovn::Ovn;

fn call(database: &LocalDatabase<'_>, arguments: &str) -> Output {
    let command = tool(&database.directory, "ovs-ofctl");
    let arguments: Vec<_> = arguments.split(' ').collect();
    with_args(command, &["--timeout=20"]).args(arguments).output().expect("the program starts")
}

/// The output of a command of ovs-ofctl. Panics also if ovs-ofctl warns about a message that it
/// does not understand.
fn answer(database: &LocalDatabase<'_>, arguments: &str) -> String {
    let output = call(database, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{arguments}: {errors}");
    String::from_utf8(output.stdout).expect("an answer is text")
}

#[test]
fn flows_of_a_host_are_read_by_ovs_ofctl() {
    require_ovn!();
    let lab = lab_of(2, 0);
    let ovn = Ovn::start("openflow");
    let [first, second] = [0, 1].map(|at| &lab.guests[at]);
    ovn.configure(&switch("blue", &[first, second]));
    let (from, to) = (first.ip(4), second.ip(4));
    ovn.nbctl("acl-add blue to-lport 5 tcp.dst==84 drop");
    ovn.nbctl(&format!("lb-add lb 192.0.2.77:80 {from}:81,{to}:82"));
    ovn.nbctl("set load_balancer lb selection_fields=ip_src,tp_src");
    ovn.nbctl("ls-lb-add blue lb");
    let database = LocalDatabase::start(&lab, &ovn, 0);
    let remote = database.vsctl("--no-wait get open . external_ids:ovn-remote");
    database.vsctl("--no-wait remove open . external_ids ovn-remote");
    let daemon = join(&lab, &database);
    // The host cannot join OVN yet, but ovs-vsctl must return.
    database.vsctl("add-br br-ex");
    database.vsctl("add-br br-int");
    assert_eq!(database.vsctl("get interface br-int ofport").trim(), "65534");
    assert_eq!(answer(&database, "add-flow br-ex action=normal"), "");
    assert!(!answer(&database, "dump-flows br-int").contains("table="));

    database.vsctl(&format!("--no-wait set open . external_ids:ovn-remote={}", remote.trim()));
    daemon.wait_answers();
    [first, second].into_iter().for_each(|guest| database.add_port(guest));
    wait_up(&lab, &ovn);
    traffic::ping(&first.netns, to);
    ovn.nbctl("--wait=hv sync");
    for version in ["OpenFlow10", "OpenFlow13"] {
        let dump = |arguments: &str| {
            answer(&database, &format!("-O {version} dump-flows br-int {arguments}"))
        };
        let all = dump("");
        let acl = all.lines().find(|line| line.contains("tp_dst=84")).expect("the ACL is there");
        assert!(acl.contains(",tcp,") && acl.contains(",metadata=0x1,"), "{acl}");
        assert!(all.contains("ct(table="), "{all}");
        // The ACL's table number, which is the same as in ovn-controller 23.03.
        let of_table = dump("table=46");
        let count = of_table.lines().filter(|line| line.contains(" table=46, ")).count();
        assert!(of_table.contains("tp_dst=84") && count + 1 == of_table.lines().count());
        // Other selections must be refused, not ignored.
        let refused = call(&database, &format!("-O {version} dump-flows br-int tcp"));
        let output =
            String::from_utf8_lossy(&[refused.stdout, refused.stderr].concat()).into_owned();
        assert!(output.contains("OFPBRC_EPERM") && !output.contains(" table="), "{output}");
        let normal = answer(&database, &format!("-O {version} --no-stats dump-flows br-ex"));
        assert!(normal.trim().ends_with("priority=0 actions=NORMAL"), "{normal}");
        let add = |flow: &str| call(&database, &format!("-O {version} add-flow {flow}"));
        assert!(add("br-ex actions=normal").status.success());
        for flow in
            ["br-ex actions=drop", "br-ex in_port=1,actions=normal", "br-int actions=normal"]
        {
            assert!(!add(flow).status.success(), "{flow}");
        }
    }
    let groups = ["OpenFlow10", "OpenFlow13"].map(|version| {
        let groups = answer(&database, &format!("-O {version} dump-groups br-int"));
        let group = groups.lines().find(|line| line.contains("type=select"));
        let group = group.unwrap_or_else(|| panic!("{groups}")).to_owned();
        for backend in [format!("nat(dst={from}:81)"), format!("nat(dst={to}:82)")] {
            assert!(group.contains(&backend), "{group}");
        }
        group
    });
    assert!(groups[0].contains("selection_method=hash,fields(ip_src,tcp_src)"), "{}", groups[0]);
    let group = &groups[1];
    let number = group.split_once("group_id=").and_then(|(_, rest)| rest.split_once(','));
    let number = number.expect("the group has a number").0;
    let flows = answer(&database, "-O OpenFlow13 dump-flows br-int");
    assert!(flows.contains(&format!("group:{number}")), "{flows}");

    database.vsctl("del-br br-ex");
    assert!(!database.directory.join("br-ex.mgmt").exists());
    daemon.stop();
    assert!(!database.directory.join("br-int.mgmt").exists());
}
