//! A host with a single fault gets exactly one finding, whose command fixes the fault.

use doctor::diagnose::Diagnosis;
use doctor::report::Report;
use doctor::{Finding, Level};
use netdev::{LinkKind, LinkSpec};
use network::Network;
use std::process::Stdio;
use std::time::{Duration, Instant};
use testkit::host::{TestHost, WireEnd, pair};
use testkit::{require_program, require_root};

/// The longest time a diagnosis may take.
const LIMIT: Duration = Duration::from_secs(2);
/// Checks of the whole machine, whose result a test in a namespace cannot change.
const OF_THE_MACHINE: [&str; 3] = ["backlog", "mitigations", "conntrack"];

/// A host with a guest in another namespace, attached by a veth, and a second host.
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
             [[logical_switch.port]]\nname = \"a\"\nhost = \"h1\"\n\
             mac = \"02:00:00:00:00:01\"\ndevice = {{ interface = \"{}\" }}\n\
             [[logical_switch.port]]\nname = \"b\"\nhost = \"h2\"\n\
             mac = \"02:00:00:00:00:02\"\ndevice = {{ tap = \"t\" }}\n\
",
            uplink.name, uplink.ip4, far_end.ip4, vif.name
        );
        // One switch for each of the other tunnel types with end points.
        let others = (8..).zip(["gre", "vxlan", "stt"]).map(|(vni, tunnel)| {
            let port = |host: u8| {
                format!(
                    "[[logical_switch.port]]\nname = \"{tunnel}{host}\"\nhost = \"h{host}\"\n\
                     mac = \"02:00:00:00:{host:02}:{vni:02}\"\ndevice = {{ tap = \"{tunnel}\" }}\n"
                )
            };
            let switch = format!(
                "[[logical_switch]]\nname = \"by-{tunnel}\"\ntunnel = \"{tunnel}\"\nvni = {vni}\n\
                 mtu = 1400\n"
            );
            switch + &port(1) + &port(2)
        });
        let text = text + &others.collect::<String>();
        let network = Network::parse(&text, "network.toml").expect("the network is right");
        let lab = Self { host, _far: far, guest, uplink, vif, network };
        lab.host.netlink().set_mtu(lab.vif.index, 1400).unwrap();
        lab.guest.netlink().set_mtu(lab.guest.netlink().index_of("eth0").unwrap(), 1400).unwrap();
        lab.sh(&format!("ethtool -K {} gro on", lab.uplink.name));
        lab.sh("sysctl -qw net.ipv4.tcp_congestion_control=reno net.ipv4.conf.all.rp_filter=0");
        lab
    }

    /// Runs a shell command as root in the host's namespace, with a `/sys` that shows its devices.
    fn sh(&self, command: &str) {
        const ON_ITS_OWN: &str = "mount -t sysfs sysfs /sys && exec sh -c \"$0\"";
        let mut shell = self.host.program("unshare");
        let shell = shell.args(["--mount", "sh", "-c", ON_ITS_OWN, command]);
        let output = shell.stdin(Stdio::null()).output().expect("unshare");
        assert!(output.status.success(), "{command}: {output:?}");
    }

    fn diagnose(&self) -> Report {
        self.report(|scope| scope.diagnose())
    }

    fn report(&self, ask: impl Fn(&Diagnosis<'_>) -> netdev::Result<Report> + Sync) -> Report {
        let host = self.network.host("h1").unwrap();
        let scope = Diagnosis { nics: Vec::new(), network: Some((&self.network, host)) };
        self.host.run(|| ask(&scope)).expect("the host can be diagnosed")
    }

    /// The findings worse than PASS, except those of the whole machine.
    fn wrong(&self) -> Vec<Finding> {
        wrong(&self.diagnose())
    }
}

/// Commands that add a base chain at a hook, up to the start of a rule in it.
macro_rules! firewall {
    ($hook:literal) => {
        concat!(
            "nft add table inet f; nft add chain inet f c '{ type filter hook ",
            $hook,
            " priority 0; }'; nft add rule inet f c "
        )
    };
}

fn wrong(report: &Report) -> Vec<Finding> {
    let findings = report.findings.iter();
    let findings = findings.filter(|f| f.level > Level::Pass && !OF_THE_MACHINE.contains(&f.check));
    findings.cloned().collect()
}

/// The command that causes a fault, the check that finds it, and its severity.
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
    ("echo 1 >/sys/class/net/eth0/queues/rx-0/rps_cpus", "rx_spreading", Level::Warn),
    ("sysctl -qw net.ipv4.conf.eth0.rp_filter=1", "rp_filter", Level::Warn),
    ("sysctl -qw net.ipv4.conf.all.rp_filter=1", "rp_filter", Level::Warn),
    ("sysctl -qw net.ipv4.ip_no_pmtu_disc=1", "path_mtu_discovery", Level::Warn),
    ("sysctl -qw net.ipv4.tcp_congestion_control=bbr", "congestion_control", Level::Warn),
    (
        "ip link add br7 type bridge; sysctl -qw net.bridge.bridge-nf-call-iptables=1",
        "bridge_filter",
        Level::Warn,
    ),
    (
        "ip link add br7 type bridge; sysctl -qw net.bridge.bridge-nf-call-ip6tables=1",
        "bridge_filter",
        Level::Warn,
    ),
    (concat!(firewall!("input"), "udp dport 6081 drop"), "firewall", Level::Fail),
    (concat!(firewall!("output"), "udp dport 6081 drop"), "firewall", Level::Fail),
    (concat!(firewall!("input"), "udp dport 4789 drop"), "firewall", Level::Fail),
    (concat!(firewall!("prerouting"), "udp dport 4789 drop"), "firewall", Level::Fail),
    (concat!(firewall!("output"), "meta l4proto gre drop"), "firewall", Level::Fail),
    // weft bypasses the firewall for these packets.
    (concat!(firewall!("input"), "meta l4proto gre drop"), "firewall", Level::Warn),
    (concat!(firewall!("input"), "tcp dport 7471 drop"), "firewall", Level::Warn),
    (concat!(firewall!("output"), "tcp dport 7471 drop"), "firewall", Level::Warn),
    ("ip link set dev eth0 mtu 1450", "mtu_uplink", Level::Fail),
    ("ip link set dev eth1 mtu 1300", "mtu_vif", Level::Fail),
    ("ip link set dev eth0 down", "link", Level::Fail),
    (
        "ip link add vxlan9 type vxlan external dstport 6081; ip link set vxlan9 up",
        "port",
        Level::Fail,
    ),
    (
        "ip link add vxlan9 type vxlan id 9 dstport 4789 dev eth0; ip link set vxlan9 up",
        "port",
        Level::Fail,
    ),
];

/// Commands that clean up after each fault what its fix does not.
const AFTER: &str = "nft flush ruleset; ip link del br7 2>/dev/null; \
                     sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0 \
                     net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0";

#[test]
fn single_fault_gives_one_finding_and_its_command_fixes_it() {
    require_root!();
    require_program!("ethtool", "ethtool");
    require_program!("nft", "nftables");
    let lab = Lab::new();
    lab.sh(AFTER);
    assert_eq!(lab.wrong(), [], "nothing is wrong to begin with");
    for (fault, check, level) in FAULTS {
        lab.sh(fault);
        let begun = Instant::now();
        let wrong = lab.wrong();
        assert!(begun.elapsed() < LIMIT, "{fault}: {:?}", begun.elapsed());
        // All switches share one uplink, so a fault of the uplink may be found once per switch.
        let named = wrong.iter().filter(|finding| finding.check == *check).count();
        assert!(named >= 1 && named == wrong.len(), "{fault}: {wrong:#?}");
        assert_eq!(wrong[0].level, *level, "{fault}");
        for finding in wrong {
            lab.sh(&finding.fix.expect("there is a command").command());
        }
        assert_eq!(lab.wrong(), [], "{fault} is fixed");
        lab.sh(AFTER);
    }
}

#[test]
fn port_used_by_another_program_gives_one_finding() {
    require_root!();
    let lab = Lab::new();
    // A device with the name of a tunnel port of Open vSwitch's kernel module, which only ovs-vsctl
    // may delete.
    lab.sh("ip link add vxlan_sys_4789 type vxlan external dstport 4789; \
         ip link set vxlan_sys_4789 up");
    let wrong = lab.wrong();
    let [finding] = wrong.as_slice() else { panic!("{wrong:#?}") };
    assert_eq!((finding.check, finding.level), ("port", Level::Fail));
    assert_eq!(finding.seen, "UDP port 4789 is used by the vxlan device vxlan_sys_4789");
    let fix = finding.fix.as_ref().expect("there is a command").command();
    assert!(fix.starts_with("ovs-vsctl del-port"), "{fix}");
    lab.sh("ip link del vxlan_sys_4789");
    assert_eq!(lab.wrong(), []);
    // A program, such as the userspace datapath of Open vSwitch or another weft.
    let any = |port: u16| std::net::SocketAddr::from(([0, 0, 0, 0], port));
    let process = std::process::id();
    let udp =
        |port| lab.host.run(|| std::net::UdpSocket::bind(any(port)).expect("the port is free"));
    let sockets = [udp(4789), udp(6081)];
    let stt = lab.host.run(|| std::net::TcpListener::bind(any(7471)).expect("the port is free"));
    let wrong = lab.wrong();
    assert_eq!(wrong.len(), 3, "{wrong:#?}");
    for finding in wrong {
        assert_eq!((finding.check, finding.level), ("port", Level::Fail));
        assert!(finding.seen.ends_with(&format!("(process {process})")), "{finding:#?}");
        let look = format!("ps -o user=,args= -p {process}");
        assert!(finding.fix.expect("there is a command").command().starts_with(&look));
        lab.sh(&look);
    }
    drop((sockets, stt));
    assert_eq!(lab.wrong(), []);
}

#[test]
fn fault_beside_the_host_is_found() {
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
    // A route with a smaller MTU than the uplink.
    let far = lab.network.host("h2").unwrap().underlay4.unwrap();
    lab.sh(&format!("ip route add {far} dev {} mtu 1420", lab.uplink.name));
    assert_eq!(checks(), [("mtu_path", Level::Fail); 4]);
}

#[test]
fn safe_fixes_are_applied_and_can_be_undone() {
    require_root!();
    require_program!("ethtool", "ethtool");
    let lab = Lab::new();
    lab.sh("ethtool -K eth0 tx-udp-segmentation off rx-gro off; \
         sysctl -qw net.ipv4.ip_no_pmtu_disc=1");
    let faults = ["tx_udp", "rx_gro", "path_mtu_discovery"];
    assert_eq!(lab.wrong().iter().map(|f| f.check).collect::<Vec<_>>(), faults);
    // Only these faults: the settings of the whole machine stay as they are.
    let fix = |scope: &Diagnosis<'_>| {
        let report = scope.diagnose()?;
        let safe = report.findings.into_iter().filter(|f| faults.contains(&f.check));
        let fixed = doctor::diagnose::apply_all(&safe.collect::<Vec<_>>());
        Ok(Report { fixed, ..scope.diagnose()? })
    };
    let fixed = lab.report(fix);
    assert_eq!(wrong(&fixed), []);
    assert!(fixed.fixed.iter().all(|fixed| fixed.failed.is_none()), "{:?}", fixed.fixed);
    assert_eq!(fixed.fixed.len(), 3);
    for fixed in &fixed.fixed {
        lab.sh(&fixed.undo);
    }
    assert_eq!(lab.wrong().iter().map(|f| f.check).collect::<Vec<_>>(), faults);
}
