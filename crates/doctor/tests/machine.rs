//! The machine that the tests run on, whatever it is: it can be examined, with and without a privilege, and quickly.

use doctor::Level;
use doctor::examine::Subject;
use netdev::{LinkKind, LinkSpec};
use std::time::{Duration, Instant};
use testkit::host::TestHost;
use testkit::require_root;

const LIMIT: Duration = Duration::from_secs(2);

#[test]
fn machine_is_examined_in_time_and_every_fault_has_a_command() {
    let begun = Instant::now();
    let report = Subject::default().examine().expect("it can be examined");
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    for check in ["kernel", "privileges", "bpf", "mitigations", "firewall", "port"] {
        assert!(report.findings.iter().any(|f| f.check == check), "{check}: {report:#?}");
    }
    for finding in &report.findings {
        let has_command = finding.mend.as_ref().is_some_and(|mend| !mend.command().is_empty());
        assert_eq!(has_command, finding.level > Level::Pass, "{finding:?}");
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["findings"].as_array().unwrap().len(), report.findings.len());
    let text = report.text();
    assert!(text.ends_with(" fail\n") && text.contains("PASS kernel host: Linux "), "{text}");
}

#[test]
fn bridge_is_examined_as_any_device() {
    require_root!();
    let host = TestHost::new("bridge");
    host.netlink().create(&LinkSpec::new("br0").up(), &LinkKind::Bridge).unwrap();
    let subject = Subject { nics: vec!["br0".to_owned()], network: None };
    let report = host.run(|| subject.examine()).unwrap();
    assert_eq!((report.nics[0].name.as_str(), report.nics[0].driver.as_str()), ("br0", "bridge"));
    assert_eq!(report.nics[0].tunnels.len(), 6);
    assert!(report.nics[0].features.contains_key("tx-udp_tnl-segmentation"));
}

#[test]
fn device_is_not_found_when_there_is_none() {
    let subject = Subject { nics: vec!["no-such-nic".to_owned()], network: None };
    assert!(subject.examine().unwrap_err().is_not_found());
}
