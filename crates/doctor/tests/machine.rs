//! The diagnosis of the machine that runs the tests. It must succeed in time, with and without
//! root.

use doctor::Level;
use doctor::diagnose::Diagnosis;
use doctor::facts::Uplink;
use netdev::{Ifindex, Link, LinkKind, LinkSpec, LowerLink, Netlink};
use network::Network;
use std::time::{Duration, Instant};
use testkit::host::{TestHost, pair};
use testkit::require_root;

const LIMIT: Duration = Duration::from_secs(2);

#[test]
fn machine_is_diagnosed_in_time_and_every_fault_has_a_command() {
    let begun = Instant::now();
    let report = Diagnosis::default().diagnose().expect("it can be diagnosed");
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    for check in ["kernel", "privileges", "bpf", "mitigations", "firewall", "port"] {
        assert!(report.findings.iter().any(|f| f.check == check), "{check}: {report:#?}");
    }
    for finding in &report.findings {
        let has_command = finding.fix.as_ref().is_some_and(|fix| !fix.command().is_empty());
        assert_eq!(has_command, finding.level > Level::Pass, "{finding:?}");
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["findings"].as_array().unwrap().len(), report.findings.len());
    let text = report.text();
    assert!(text.ends_with(" fail\n") && text.contains("PASS kernel host: Linux "), "{text}");
}

#[test]
fn bridge_is_diagnosed_like_any_device() {
    require_root!();
    let host = TestHost::new("bridge");
    host.netlink().create(&LinkSpec::new("br0").up(), &LinkKind::Bridge).unwrap();
    let scope = Diagnosis { nics: vec!["br0".to_owned()], network: None };
    let report = host.run(|| scope.diagnose()).unwrap();
    assert_eq!((report.nics[0].name.as_str(), report.nics[0].driver.as_str()), ("br0", "bridge"));
    assert_eq!(report.nics[0].tunnels.len(), flow::TunnelType::ALL.len());
    assert!(report.nics[0].features.contains_key("tx-udp_tnl-segmentation"));
}

#[test]
fn devices_below_an_uplink_are_found_for_every_kind_of_uplink() {
    let links = Netlink::open().unwrap().links().unwrap();
    let link = |name: &str, index: u32, kind: Option<&str>, master: u32, lower: u32| Link {
        name: name.to_owned(),
        index: Ifindex(index),
        kind: kind.map(str::to_owned),
        master: (master != 0).then_some(Ifindex(master)),
        lower: (lower != 0).then_some(LowerLink { index: Ifindex(lower), netns: None }),
        ..links[0].clone()
    };
    let links = [
        link("card0", 1, None, 4, 0),
        link("card1", 2, None, 4, 0),
        link("card2", 3, None, 7, 0),
        link("bond0", 4, Some("bond"), 0, 0),
        link("bond0.7", 5, Some("vlan"), 0, 4),
        link("tap0", 6, Some("tun"), 7, 0),
        link("br0", 7, Some("bridge"), 0, 0),
        link("veth0", 8, Some("veth"), 0, 1),
    ];
    for (uplink, below) in [
        ("bond0.7", vec!["bond0", "card0", "card1"]),
        ("bond0", vec!["card0", "card1"]),
        ("br0", vec!["card2"]),
        ("veth0", vec![]),
        ("card0", vec![]),
    ] {
        let found = Uplink::find(&links, uplink).unwrap().below;
        let names: Vec<_> = found.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, below, "{uplink}");
    }
    assert_eq!(Uplink::find(&links, "eth9"), None);
}

#[test]
fn device_below_an_uplink_is_diagnosed_too() {
    require_root!();
    let (host, far) = (TestHost::new("host"), TestHost::new("far"));
    let (end, _) = pair(&host, &far);
    let mut ip = host.program("ip");
    let made = ip.args(["link", "add", "link", &end.name, "name", "m0", "up", "type", "macvlan"]);
    assert!(made.status().expect("ip").success());
    let scope = Diagnosis { nics: vec!["m0".to_owned()], network: None };
    let report = host.run(|| scope.diagnose()).unwrap();
    let names: Vec<_> = report.nics.iter().map(|nic| nic.name.as_str()).collect();
    assert_eq!(names, ["m0", end.name.as_str()]);
    // A veth has GRO off by default; the macvlan on it has GRO on.
    let gro: Vec<_> = report.findings.iter().filter(|f| f.check == "rx_gro").collect();
    assert_eq!(gro.len(), 2);
    let below = gro.iter().find(|f| f.subject == end.name).unwrap();
    assert_eq!(below.level, Level::Warn);
}

#[test]
fn missing_uplink_is_a_failure_and_the_other_checks_run() {
    let text = "tunnel = \"geneve\"\n\
         [[host]]\nname = \"h1\"\nuplink = \"no-such-nic\"\nunderlay = [\"192.0.2.1\"]\n\
         [[host]]\nname = \"h2\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.2\"]\n\
         [[logical_switch]]\nname = \"blue\"\nvni = 7\n\
         [[logical_switch.port]]\nname = \"a\"\nhost = \"h1\"\n\
         mac = \"02:00:00:00:00:01\"\ndevice = { tap = \"t\" }\n";
    let network = Network::parse(text, "network.toml").expect("the network is right");
    let host = network.host("h1").unwrap();
    let scope = Diagnosis { nics: Vec::new(), network: Some((&network, host)) };
    let report = scope.diagnose().unwrap();
    let failed: Vec<_> = report.findings.iter().filter(|f| f.level == Level::Fail).collect();
    assert_eq!((failed[0].check, failed[0].subject.as_str()), ("link", "no-such-nic"));
    assert!(report.findings.iter().any(|f| f.check == "kernel"), "{report:#?}");
}

#[test]
fn device_is_not_found_when_there_is_none() {
    let scope = Diagnosis { nics: vec!["no-such-nic".to_owned()], network: None };
    assert!(scope.diagnose().unwrap_err().is_not_found());
}
