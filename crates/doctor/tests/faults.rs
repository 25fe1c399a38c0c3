//! A host with a single fault gets exactly that fault named, with a command that mends it.

use doctor::examine::Subject;
use doctor::report::Report;
use doctor::{Finding, Level};
use netdev::{LinkKind, LinkSpec};
use network::Network;
use std::process::Stdio;
use std::time::{Duration, Instant};
use testkit::host::{TestHost, WireEnd, pair};
use testkit::{require_program, require_root};

/// How long an examination may take.
const LIMIT: Duration = Duration::from_secs(2);
/// What is the machine's, not the namespace's: a test cannot mend it.
const OF_THE_MACHINE: [&str; 3] = ["backlog", "mitigations", "conntrack"];

/// A host with a guest in a namespace of its own, attached by a veth, and another host beside it.
struct Lab {
    host: TestHost,
    _far: TestHost,
    guest: TestHost,
    uplink: WireEnd,
    vif: WireEnd,
    network: Network,
}

impl Lab {
    fn new() -> Self {
        let (host, far, guest) =
            (TestHost::new("host"), TestHost::new("far"), TestHost::new("guest"));
        let (uplink, far_end) = pair(&host, &far);
        let (vif, _) = pair(&host, &guest);
        let text = format!(
            "tunnel = \"geneve\"\n\
             [[host]]\nname = \"h1\"\nuplink = \"{}\"\nunderlay = [\"{}\"]\n\
             [[host]]\nname = \"h2\"\nuplink = \"eth0\"\nunderlay = [\"{}\"]\n\
             [[logical_switch]]\nname = \"blue\"\nvni = 7\nmtu = 1400\n\
             [[logical_switch.port]]\nname = \"a\"\nhost = \"h1\"\nmac = \"02:00:00:00:00:01\"\ndevice = {{ interface = \"{}\" }}\n\
             [[logical_switch.port]]\nname = \"b\"\nhost = \"h2\"\nmac = \"02:00:00:00:00:02\"\ndevice = {{ tap = \"t\" }}\n\
             [[logical_switch]]\nname = \"red\"\ntunnel = \"gre\"\nvni = 8\nmtu = 1400\n\
             [[logical_switch.port]]\nname = \"c\"\nhost = \"h1\"\nmac = \"02:00:00:00:00:03\"\ndevice = {{ tap = \"u\" }}\n\
             [[logical_switch.port]]\nname = \"d\"\nhost = \"h2\"\nmac = \"02:00:00:00:00:04\"\ndevice = {{ tap = \"u\" }}\n",
            uplink.name, uplink.ip4, far_end.ip4, vif.name
        );
        let network = Network::parse(&text, "network.toml").expect("the network is right");
        let lab = Self { host, _far: far, guest, uplink, vif, network };
        lab.host.netlink().set_mtu(lab.vif.index, 1400).unwrap();
        lab.guest.netlink().set_mtu(lab.guest.netlink().index_of("eth0").unwrap(), 1400).unwrap();
        lab.sh(&format!("ethtool -K {} gro on", lab.uplink.name));
        lab.sh("sysctl -qw net.ipv4.tcp_congestion_control=reno net.ipv4.conf.all.rp_filter=0");
        lab
    }

    fn sh(&self, command: &str) {
        let mut shell = self.host.program("sh");
        let output = shell.args(["-c", command]).stdin(Stdio::null()).output().expect("sh");
        assert!(output.status.success(), "{command}: {output:?}");
    }

    fn examine(&self) -> Report {
        self.report(|subject| subject.examine())
    }

    fn report(&self, ask: impl Fn(&Subject<'_>) -> netdev::Result<Report> + Sync) -> Report {
        let host = self.network.host("h1").unwrap();
        let subject = Subject { nics: Vec::new(), network: Some((&self.network, host)) };
        self.host.run(|| ask(&subject)).expect("the host can be examined")
    }

    /// What is wrong, but for the machine.
    fn wrong(&self) -> Vec<Finding> {
        wrong(&self.examine())
    }
}

fn wrong(report: &Report) -> Vec<Finding> {
    let findings = report.findings.iter();
    let findings = findings.filter(|f| f.level > Level::Pass && !OF_THE_MACHINE.contains(&f.check));
    findings.cloned().collect()
}

/// How a fault is made, the check that names it, how bad it is.
const FAULTS: &[(&str, &str, Level)] = &[
    ("ethtool -K eth0 tx-udp-segmentation off", "tx_udp", Level::Warn),
    ("ethtool -K eth0 tx-udp_tnl-segmentation off", "tx_udp_tnl", Level::Warn),
    ("ethtool -K eth0 tx-udp_tnl-csum-segmentation off", "tx_udp_tnl_csum", Level::Warn),
    ("ethtool -K eth0 tx-gre-segmentation off", "tx_gre", Level::Warn),
    ("ethtool -K eth0 tx-gre-csum-segmentation off", "tx_gre_csum", Level::Warn),
    ("ethtool -K eth0 tx-tcp-segmentation off", "tx_tcp", Level::Warn),
    ("ethtool -K eth0 tx-tcp6-segmentation off", "tx_tcp6", Level::Warn),
    ("ethtool -K eth0 tx-checksum-ip-generic off", "tx_checksum", Level::Warn),
    ("ethtool -K eth0 tx-scatter-gather off", "tx_sg", Level::Warn),
    ("ethtool -K eth0 tx-generic-segmentation off", "tx_gso", Level::Warn),
    ("ethtool -K eth0 rx-checksum off", "rx_checksum", Level::Warn),
    ("ethtool -K eth0 rx-gro off", "rx_gro", Level::Warn),
    ("sysctl -qw net.ipv4.conf.eth0.rp_filter=1", "rp_filter", Level::Warn),
    ("sysctl -qw net.ipv4.conf.all.rp_filter=1", "rp_filter", Level::Warn),
    ("sysctl -qw net.ipv4.ip_no_pmtu_disc=1", "path_mtu_discovery", Level::Warn),
    ("sysctl -qw net.ipv4.tcp_congestion_control=bbr", "congestion_control", Level::Warn),
    (
        "nft add table inet f; nft add chain inet f i '{ type filter hook input priority 0; }'; nft add rule inet f i udp dport 6081 drop",
        "firewall",
        Level::Fail,
    ),
    (
        "nft add table inet f; nft add chain inet f o '{ type filter hook output priority 0; }'; nft add rule inet f o meta l4proto gre drop",
        "firewall",
        Level::Fail,
    ),
    (
        "nft add table inet f; nft add chain inet f i '{ type filter hook input priority 0; }'; nft add rule inet f i meta l4proto gre drop",
        "firewall",
        Level::Warn,
    ),
    ("ip link set dev eth0 mtu 1450", "mtu_uplink", Level::Fail),
    ("ip link set dev eth1 mtu 1300", "mtu_vif", Level::Fail),
    (
        "ip link add vxlan9 type vxlan external dstport 6081; ip link set vxlan9 up",
        "port",
        Level::Fail,
    ),
];

#[test]
fn single_fault_is_named_alone_and_its_command_mends_it() {
    require_root!();
    require_program!("ethtool", "ethtool");
    require_program!("nft", "nftables");
    let lab = Lab::new();
    assert_eq!(lab.wrong(), [], "nothing is wrong to begin with");
    for (fault, check, level) in FAULTS {
        lab.sh(fault);
        let begun = Instant::now();
        let wrong = lab.wrong();
        assert!(begun.elapsed() < LIMIT, "{fault}: {:?}", begun.elapsed());
        // Both switches send through the one uplink.
        let named = wrong.iter().filter(|finding| finding.check == *check).count();
        assert!(named >= 1 && named == wrong.len(), "{fault}: {wrong:#?}");
        assert_eq!(wrong[0].level, *level, "{fault}");
        for finding in wrong {
            lab.sh(&finding.mend.expect("there is a command").command());
        }
        assert_eq!(lab.wrong(), [], "{fault} is mended");
        lab.sh("nft flush ruleset; sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0");
    }
}

#[test]
fn fault_elsewhere_than_on_the_host_is_named() {
    require_root!();
    let lab = Lab::new();
    let eth0 = lab.guest.netlink().index_of("eth0").unwrap();
    let checks = || lab.wrong().into_iter().map(|f| (f.check, f.level)).collect::<Vec<_>>();
    for (mtu, expected) in [
        (1500, vec![("mtu_guest", Level::Fail)]),
        (1300, vec![("mtu_guest", Level::Warn)]),
        (1400, vec![]),
    ] {
        lab.guest.netlink().set_mtu(eth0, mtu).unwrap();
        assert_eq!(checks(), expected, "guest {mtu}");
    }
    // A bridge between weft and the guest.
    let netlink = lab.host.netlink();
    let bridge = netlink.create(&LinkSpec::new("br0").up(), &LinkKind::Bridge).unwrap();
    netlink.set_master(lab.vif.index, Some(bridge)).unwrap();
    lab.host.sysctl("net/bridge/bridge-nf-call-iptables", "0").unwrap();
    lab.host.sysctl("net/bridge/bridge-nf-call-ip6tables", "0").unwrap();
    assert_eq!(checks(), []);
    netlink.set_mtu(bridge, 1280).unwrap();
    assert_eq!(checks(), [("mtu_bridge", Level::Fail)]);
    netlink.set_mtu(bridge, 1400).unwrap();
    lab.host.sysctl("net/bridge/bridge-nf-call-iptables", "1").unwrap();
    assert_eq!(checks(), [("bridge_filter", Level::Warn)]);
    lab.host.sysctl("net/bridge/bridge-nf-call-iptables", "0").unwrap();
    // A route that is narrower than the uplink.
    let far = lab.network.host("h2").unwrap().underlay4.unwrap();
    lab.sh(&format!("ip route add {far} dev {} mtu 1420", lab.uplink.name));
    assert_eq!(checks(), [("mtu_path", Level::Fail), ("mtu_path", Level::Fail)]);
}

#[test]
fn what_is_safe_is_mended_and_can_be_undone() {
    require_root!();
    require_program!("ethtool", "ethtool");
    let lab = Lab::new();
    lab.sh(
        "ethtool -K eth0 tx-udp-segmentation off rx-gro off; sysctl -qw net.ipv4.ip_no_pmtu_disc=1",
    );
    let faults = ["tx_udp", "rx_gro", "path_mtu_discovery"];
    assert_eq!(lab.wrong().iter().map(|f| f.check).collect::<Vec<_>>(), faults);
    // The machine's own settings are left as they are.
    let mend = |subject: &Subject<'_>| {
        let report = subject.examine()?;
        let safe = report.findings.into_iter().filter(|f| faults.contains(&f.check));
        let fixed = doctor::examine::apply_all(&safe.collect::<Vec<_>>());
        Ok(Report { fixed, ..subject.examine()? })
    };
    let mended = lab.report(mend);
    assert_eq!(wrong(&mended), []);
    assert!(mended.fixed.iter().all(|fixed| fixed.failed.is_none()), "{:?}", mended.fixed);
    assert_eq!(mended.fixed.len(), 3);
    for fixed in &mended.fixed {
        lab.sh(&fixed.undo);
    }
    assert_eq!(lab.wrong().iter().map(|f| f.check).collect::<Vec<_>>(), faults);
}
