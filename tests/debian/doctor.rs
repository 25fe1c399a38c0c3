//! Tests `weft doctor` in an emulated machine: faults that affect the whole machine, and features
//! that only another kernel has.

use crate::common::daemon::WEFT;
use ::doctor::checks::tunnel::{OuterHeaders, PerformedBy, tunnel_support};
use ::doctor::facts::NicFacts;
use flow::TunnelType;
use netlink_sys::{Socket, SocketAddr};
use serde_json::Value;
use std::fs;
use std::process::Command;
use testkit::merging::Merging;

const BACKLOG: &str = "net/core/netdev_max_backlog";
const CONNTRACK_MAX: &str = "net/netfilter/nf_conntrack_max";
const CONNTRACK_COUNT: &str = "net/netfilter/nf_conntrack_count";
/// The number of connections that the test makes the kernel track.
const TRACKED: u16 = 20;

#[test]
#[ignore = "runs in the machine with Debian's kernel"]
fn segments_behind_tags_are_merged_as_predicted() {
    let lab = Merging::new();
    let device = lab.device();
    let nic = lab.receiver.run(|| NicFacts::read(device)).expect("a device");
    for (tunnel, tags) in [(TunnelType::Vlan, &[0x8100][..]), (TunnelType::QinQ, &[0x88a8, 0x8100])]
    {
        // This kernel supports 802.1Q, so it merges tagged segments.
        assert!(lab.merges(tags), "{tunnel}");
        assert_eq!(
            tunnel_support(&nic, tunnel, OuterHeaders::DEFAULT).gro.outcome,
            PerformedBy::InSoftware,
            "{tunnel}"
        );
    }
}

/// For each fault: the sysctl, its faulty value, the check that detects it, and the severity.
const FAULTS: &[(&str, &str, &str, &str)] = &[
    (BACKLOG, "1000", "backlog", "warn"),
    (CONNTRACK_MAX, "22", "conntrack", "warn"),
    (CONNTRACK_MAX, "20", "conntrack", "fail"),
];

#[test]
#[ignore = "runs in the machine with Debian's kernel"]
fn single_fault_of_the_machine_gives_one_finding_and_its_command_fixes_it() {
    set(BACKLOG, "10000");
    (1..=TRACKED).for_each(track);
    assert_eq!(get(CONNTRACK_COUNT), TRACKED.to_string());
    let healthy = wrong(&doctor(&[]));
    assert!(
        healthy.iter().all(|(check, ..)| check != "backlog" && check != "conntrack"),
        "{healthy:?}"
    );
    for (key, fault, check, level) in FAULTS {
        let was = get(key);
        set(key, fault);
        let named = wrong(&doctor(&[]));
        let new: Vec<_> = named.iter().filter(|found| !healthy.contains(found)).collect();
        let [(found, how_bad, command)] = new[..] else { panic!("{key}={fault}: {new:?}") };
        assert_eq!((&**found, &**how_bad), (*check, *level), "{key}={fault}");
        sh(command);
        assert_eq!(wrong(&doctor(&[])), healthy, "{command} fixes it");

        set(key, fault);
        let fixed = &doctor(&["--fix"])["fixed"];
        let of_this = fixed.as_array().expect("a list").iter().find(|fix| fix["did"] == **command);
        let fix = of_this.unwrap_or_else(|| panic!("{command} is not in {fixed}"));
        assert!(fix["failed"].is_null() && get(key) != *fault, "{fix}");
        sh(fix["undo"].as_str().expect("a command"));
        assert_eq!(get(key), *fault, "it is as it was");
        set(key, &was);
    }
}

/// The JSON report of `weft doctor`.
fn doctor(arguments: &[&str]) -> Value {
    let output = Command::new(WEFT).args(["doctor", "--json"]).args(arguments).output();
    let output = output.expect("weft can be started");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The check, the level and the suggested command of each finding that is worse than PASS.
fn wrong(report: &Value) -> Vec<(String, String, String)> {
    let findings = report["findings"].as_array().expect("findings").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let wrong = findings.filter(|finding| finding["level"] != "pass");
    wrong.map(|f| (text(&f["check"]), text(&f["level"]), text(&f["fix"]["command"]))).collect()
}

fn sh(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().expect("a shell");
    assert!(status.success(), "{command}");
}

fn set(key: &str, value: &str) {
    fs::write(format!("/proc/sys/{key}"), value).unwrap_or_else(|error| panic!("{key}: {error}"));
}

fn get(key: &str) -> String {
    let text = fs::read_to_string(format!("/proc/sys/{key}"));
    text.unwrap_or_else(|error| panic!("{key}: {error}")).trim().to_owned()
}

/// Makes the kernel track a UDP connection from this port, like `conntrack --create`.
fn track(port: u16) {
    const NETLINK_NETFILTER: isize = 12;
    const NEW: u16 = 1 << 8;
    /// The netlink flags REQUEST, ACK, EXCL and CREATE.
    const FLAGS: u16 = 1 | 4 | 0x200 | 0x400;
    const NESTED: u16 = 1 << 15;
    const UDP: u8 = 17;
    let attribute = |kind: u16, value: &[u8]| {
        let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let tuple = |kind: u16, [from, to]: [(u8, u16); 2]| {
        let ip = [attribute(1, &[10, 0, 0, from.0]), attribute(2, &[10, 0, 0, to.0])].concat();
        let ports = [attribute(2, &from.1.to_be_bytes()), attribute(3, &to.1.to_be_bytes())];
        let transport = [attribute(1, &[UDP]), ports.concat()].concat();
        let both = [attribute(1 | NESTED, &ip), attribute(2 | NESTED, &transport)].concat();
        attribute(kind | NESTED, &both)
    };
    let ends = [(1, port), (2, 9)];
    let family = [2, 0, 0, 0];
    let body = [
        family.to_vec(),
        tuple(1, ends),
        tuple(2, [ends[1], ends[0]]),
        attribute(7, &600_u32.to_be_bytes()),
    ]
    .concat();
    let mut message = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend([NEW, FLAGS].map(u16::to_ne_bytes).concat());
    message.extend([0; 8]);
    message.extend(body);
    let socket = Socket::new(NETLINK_NETFILTER).expect("a netlink socket");
    socket.connect(&SocketAddr::new(0, 0)).expect("it is the kernel's");
    socket.send(&message, 0).expect("a message can be sent");
    let (answer, _) = socket.recv_from_full().expect("an answer");
    assert_eq!(answer.get(16..20), Some(&[0; 4][..]), "the kernel refuses: {answer:02x?}");
}
