use netdev::ethtool::{UnchangedFeature, UnchangedReason};
use testkit::host::{TestHost, pair};

const TUNNEL_TSO: &str = "tx-udp_tnl-segmentation";
const TSO: &str = "tx-tcp-segmentation";
const CHECKSUM: &str = "tx-checksum-ip-generic";

#[test]
fn features_change_and_are_read_back_when_set() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, _) = pair(&a, &b);
    let ethtool = a.ethtool().unwrap();
    assert_eq!(ethtool.driver(&end.name).unwrap().driver, "veth");
    for on in [false, true] {
        assert_eq!(
            ethtool.set_features(&end.name, &[(TUNNEL_TSO, on), ("rx-gro", on)]).unwrap(),
            []
        );
        let features = ethtool.features(&end.name).unwrap();
        assert_eq!((features[TUNNEL_TSO].active, features["rx-gro"].active), (on, on));
        assert!(features[TUNNEL_TSO].available && features[TSO].active);
    }
}

#[test]
fn last_value_counts_when_a_feature_is_given_twice() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, _) = pair(&a, &b);
    let ethtool = a.ethtool().unwrap();
    let unchanged = ethtool.set_features(&end.name, &[(TSO, true), (TSO, false)]).unwrap();
    assert!(!ethtool.features(&end.name).unwrap()[TSO].active);
    let first = UnchangedFeature {
        name: TSO.to_owned(),
        requested: true,
        reason: UnchangedReason::Depends,
    };
    assert_eq!(unchanged, [first]);
}

#[test]
fn result_names_unchanged_features_with_the_reason() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, _) = pair(&a, &b);
    let ethtool = a.ethtool().unwrap();
    assert_eq!(ethtool.set_features(&end.name, &[(CHECKSUM, false), (TSO, false)]).unwrap(), []);
    let settings = [
        (TSO, true),
        ("no-such-feature", true),
        ("vlan-challenged", true),
        ("rx-ntuple-filter", true),
        ("rx-ntuple-filter", false),
        (TUNNEL_TSO, false),
    ];
    let unchanged =
        |name: &str, reason| UnchangedFeature { name: name.to_owned(), requested: true, reason };
    assert_eq!(
        ethtool.set_features(&end.name, &settings).unwrap(),
        [
            unchanged(TSO, UnchangedReason::Depends),
            unchanged("no-such-feature", UnchangedReason::Unknown),
            unchanged("vlan-challenged", UnchangedReason::Fixed),
            unchanged("rx-ntuple-filter", UnchangedReason::Fixed),
        ]
    );
    assert_eq!(ethtool.set_features(&end.name, &[(CHECKSUM, true)]).unwrap(), []);
    assert!(ethtool.features(&end.name).unwrap()[TSO].active, "the recorded request takes effect");
}

#[test]
fn devices_are_those_of_the_namespace_when_the_handle_is_used_elsewhere() {
    testkit::require_root!();
    let (a, b) = (TestHost::new("a"), TestHost::new("b"));
    let (end, _) = pair(&a, &b);
    let other = TestHost::new("other").ethtool().unwrap();
    assert!(other.features(&end.name).unwrap_err().is_not_found());
}
